"""`tidemark login` and `logout`: a person's tokens of the installation's OpenID provider, got by the device grant (RFC 8628).

The command shows an address and a code, the person logs in there with any browser, and the command gets its tokens. They lie in a
file of the user alone, by the address of the control service; commands take them where no token is given, and renew them before
their end.
"""

import base64
import fcntl
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import typer

from tidemark.services.cli.asking import NoAnswer, NoObject, ServerAnswer, asked, shown
from tidemark.services.cli.settings import cli_settings

_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_WAIT_S: Final = 5
"""Between two questions where the provider names no time, and what "slow down" adds (RFC 8628, 3.2 and 3.5)."""
_WAIT_S_MAX: Final = 60
"""Between two questions while nobody answers: twice as long after each (RFC 8628, 3.5)."""
_EXPIRES_S: Final = 600
"""For a person to log in, where the provider names no time."""
_SECONDS_MAX: Final = 86_400
"""Of a time that a provider names: a day is longer than any of these codes count."""
_TROUBLE: Final = (408, 429)
"""Statuses, beside those from 500, of a server that may answer later."""
_RENEW_S: Final = 60
"""A token is renewed so long before its end: a command has it for one request after another."""
_ANSWER_MAX: Final = 1 << 20
"""Bytes of a provider's answer that are read."""


class LoginFailed(Exception):
    """There is no login: a sentence for the user."""


class _Refused(LoginFailed):
    """The provider answers with an error."""

    def __init__(self, url: str, error: str, text: str) -> None:
        super().__init__(f"{url} refuses: {error}{f' ({text})' if text else ''}")
        self.error = error


class _Away(LoginFailed):
    """The provider does not answer, or is in trouble: it may answer later."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The tokens for one control service."""

    issuer: str
    client: str
    token: str
    refresh: str


def login(url: str) -> None:
    """Get tokens for the control service at `url`, and keep them. LoginFailed."""
    told = _ask(f"{url}/v1/login")
    issuer, client = str(told.get("issuer", "")), str(told.get("clientId", ""))
    if not issuer or not client:
        raise LoginFailed(
            f"{url}: the installation has no login for commands (oidc.device_client_id in control's TIDEMARK_EXTRA)"
        )
    about = _about(issuer)
    where = _endpoint(about, issuer, "device_authorization_endpoint")
    scopes = told.get("scopes")
    named = scopes if isinstance(scopes, list) else ["openid"]
    begun = _ask(where, client_id=client, scope=" ".join(map(str, named)))
    try:
        code, user_code, page = begun["device_code"], begun["user_code"], begun["verification_uri"]
    except KeyError as error:
        raise LoginFailed(f"{where}: expected device_code, user_code and verification_uri, found no {error}") from error
    direct = begun.get("verification_uri_complete")
    _say(f"Open {shown(page)} and enter {shown(user_code)}{f', or open {shown(direct)}' if direct else ''}")
    found = _wait(_endpoint(about, issuer, "token_endpoint"), client, str(code), begun)
    _keep(url, _stored(issuer, client, found, ""))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _wait(url: str, client: str, code: str, begun: dict[str, Any]) -> dict[str, Any]:
    wait_s = pause_s = max(1.0, _seconds(begun, "interval", _WAIT_S))
    until, away = time.monotonic() + _seconds(begun, "expires_in", _EXPIRES_S), ""
    while (left_s := until - time.monotonic()) > 0:
        time.sleep(min(pause_s, left_s))
        try:
            return _ask(url, grant_type=_GRANT, device_code=code, client_id=client)
        except _Away as error:
            if not away:
                _say(f"{error}; the code still counts, and is asked for again")
            away, pause_s = str(error), min(2 * pause_s, _WAIT_S_MAX)
        except _Refused as error:
            if error.error == "slow_down":
                wait_s += _WAIT_S
            elif error.error != "authorization_pending":
                raise
            away, pause_s = "", wait_s
    raise LoginFailed(away or "nobody has logged in with the code in time: begin again")


def _seconds(begun: dict[str, Any], name: str, otherwise: float) -> float:
    found = begun.get(name)
    try:
        found_s = otherwise if found is None else float(found)
    except (TypeError, ValueError):
        found_s = -1.0
    if not 0 <= found_s <= _SECONDS_MAX:
        raise LoginFailed(f"the provider's {name}: expected seconds up to {_SECONDS_MAX}, found {shown(found)!r}")
    return found_s


def logout(url: str) -> bool:
    """Forget the tokens for `url`, and revoke the refresh token where that is possible; False: there were none. LoginFailed."""
    with _file() as kept:
        found = kept.pop(url, None)
    if found is None:
        return False
    stored = _read(found)
    about = _about(stored.issuer)
    if stored.refresh and about.get("revocation_endpoint"):
        where = _endpoint(about, stored.issuer, "revocation_endpoint")
        answer = _send(where, {"token": stored.refresh, "client_id": stored.client})
        if not answer.done:  # the body of another one says nothing (RFC 7009, 2.2)
            raise _failed(where, answer)
    return True


def stored_token(url: str) -> str:
    """The token for `url`, renewed where it ends soon; "" where nobody has logged in there. LoginFailed."""
    if not _path().exists():
        return ""
    with _file() as kept:
        # The lock holds while one command renews: a refresh token counts once at many providers.
        if url not in kept:
            return ""
        stored = _read(kept[url])
        left_s = _ends_s(stored.token) - time.time()
        if left_s > _RENEW_S or (left_s > 0 and not stored.refresh):
            return stored.token
        if not stored.refresh:
            raise LoginFailed(f"the login at {stored.issuer} has ended: `tidemark login`")
        try:
            where = _endpoint(_about(stored.issuer), stored.issuer, "token_endpoint")
            found = _ask(where, grant_type="refresh_token", refresh_token=stored.refresh, client_id=stored.client)
        except _Refused as error:
            raise LoginFailed(f"the login at {stored.issuer} has ended ({error}): `tidemark login`") from error
        except _Away:
            if left_s > 0:
                return stored.token
            raise
        newer = _stored(stored.issuer, stored.client, found, stored.refresh)
        kept[url] = _fields(newer)
        return newer.token


def _stored(issuer: str, client: str, found: dict[str, Any], refresh: str) -> Stored:
    if not found.get("id_token"):
        raise LoginFailed(f"{issuer} gave no ID token; is openid among oidc.scopes?")
    return Stored(issuer, client, str(found["id_token"]), str(found.get("refresh_token") or refresh))


def _ends_s(token: str) -> float:
    """Of the service's own check nothing is taken away here: this alone says when to renew."""
    try:
        part = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise LoginFailed("the kept ID token is none: `tidemark login`") from error


def _about(issuer: str) -> dict[str, Any]:
    url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    found = _ask(url)
    if found.get("issuer") != issuer:
        raise LoginFailed(f"{url} is of the issuer {str(found.get('issuer'))[:200]!r}, not of {issuer!r}")
    return found


def _endpoint(about: dict[str, Any], issuer: str, name: str) -> str:
    from tidemark.services.control.settings import safe_address

    found = about.get(name)
    if not isinstance(found, str) or not safe_address(found, as_safe_as=issuer):
        raise LoginFailed(
            f"{issuer} has no {name} with https, which `tidemark login` needs; found {str(found)[:200]!r}"
        )
    return found


def _ask(url: str, **form: str) -> dict[str, Any]:
    """An answer, a JSON object; of a POST, if there is a form. LoginFailed."""
    answer = _send(url, form)
    if not answer.done:
        raise _failed(url, answer)
    try:
        return answer.found()
    except NoObject as error:
        raise _Away(f"{url} answered with {error}") from error


def _send(url: str, form: dict[str, str]) -> ServerAnswer:
    data = urlencode(form).encode() if form else None
    if not url.startswith(("http://", "https://")):
        raise LoginFailed(f"expected http://… or https://…, found {url[:200]!r}")
    try:
        request = urllib.request.Request(url, data, {"Accept": "application/json"})  # noqa: S310 - checked above
        return asked(request, cli_settings().request_timeout_ms / 1000, _ANSWER_MAX)
    except (NoAnswer, ValueError) as error:
        raise _Away(f"{shown(url)} does not answer ({error})") from error


def _failed(url: str, answer: ServerAnswer) -> LoginFailed:
    if answer.status in _TROUBLE or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _Away(f"{url} answered with {answer.said()}")
    try:
        said = answer.found()
        return _Refused(url, shown(said["error"]), shown(said.get("error_description") or ""))
    except (NoObject, KeyError):
        return LoginFailed(f"{url} answered with {answer.said()}")


def _path() -> Path:
    return Path(cli_settings().logins_file or Path(typer.get_app_dir("tidemark")) / "logins.json")


def _fields(stored: Stored) -> dict[str, str]:
    return {"issuer": stored.issuer, "client": stored.client, "token": stored.token, "refresh": stored.refresh}


def _read(fields: object) -> Stored:
    if not isinstance(fields, dict) or sorted(fields) != sorted(Stored.__slots__):
        raise _broken("entries with issuer, client, token and refresh are expected")
    if not all(isinstance(each, str) for each in fields.values()):
        raise _broken("texts are expected")
    return Stored(**fields)


def _broken(why: object) -> LoginFailed:
    return LoginFailed(f"{_path()}: expected the logins of `tidemark login` ({why}); remove it, and log in again")


def _keep(url: str, stored: Stored) -> None:
    with _file() as kept:
        kept[url] = _fields(stored)


@contextmanager
def _file() -> Iterator[dict[str, Any]]:
    """What is kept, by address; written at the end if it was changed. One command at a time; the file is its user's alone."""
    path = _path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            text = path.read_text() if path.exists() else "{}"
            kept = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _broken(error) from error
        if not isinstance(kept, dict):
            raise _broken("an object is expected")
        yield kept
        if (now := json.dumps(kept, indent=1)) != text:
            temporary = path.with_suffix(".new")
            temporary.unlink(missing_ok=True)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write(now)
            temporary.replace(path)
