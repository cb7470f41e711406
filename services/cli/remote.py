"""Asks a control service from the command line: finds its address and token, and turns its errors into sentences."""

import json
import os
import time
import urllib.request
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tidemark.services.cli.asking import NoAnswer, NoObject, NotHeard, ServerAnswer, asked
from tidemark.services.cli.login import LoginFailed, stored_token
from tidemark.services.cli.settings import cli_settings
from tidemark.services.local.folders import ADDRESS_FILE

_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404
_UNKNOWN: Final = (502, 503, 504)
"""Of the service, or a proxy before it, that has heard no answer."""
_AGAIN_S: Final = 1
"""Until a lost answer is asked for again: a service or proxy that begins again is seldom there at once."""
_NAMES_MAX: Final = 20
"""Of processors that a sentence names: one line of a terminal or three."""


class RemoteFailed(Exception):
    """The service is not there, or refuses: a sentence for the user."""


class Unanswered(RemoteFailed):
    """It is not known whether what was asked is done."""


class Unheard(RemoteFailed):
    """Nobody is there to hear it now: it is not done."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A control service, asked by its REST."""

    url: str
    token: str

    def get(self, path: str) -> Any:
        """Read what is at a path."""
        return self._ask("GET", path, None)

    def send(self, method: str, path: str, body: object = None) -> Any:
        """Change what is at a path. Where the answer is lost it is asked for once more, under the same id: it is not done twice.

        Unanswered, where this one is lost, too; Unheard, where it is not done.
        """
        body, request = {} if body is None and method in ("POST", "PATCH") else body, uuid.uuid4().hex
        try:
            return self._ask(method, path, body, request)
        except Unanswered:
            time.sleep(_AGAIN_S)
        try:
            return self._ask(method, path, body, request)
        except (Unanswered, Unheard) as error:
            raise Unanswered(f"{error}; whether it was done is not known: look before you ask again") from error

    def _ask(self, method: str, path: str, body: object, request_id: str = "") -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        headers |= {"Idempotency-Key": request_id} if request_id else {}
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310 - checked by `find`
        try:
            answer = asked(request, cli_settings().request_timeout_ms / 1000)
        except NoAnswer as error:
            message = f"{self.url}: the control service does not answer ({error})"
            if isinstance(error, NotHeard):
                raise Unheard(f"{message}; is it running?") from error
            raise Unanswered(message) from error
        if not answer.done:
            remedy = (
                ""
                if self.token or answer.status != _UNAUTHORIZED
                else "; `tidemark login` gets a token, TIDEMARK_TOKEN holds one"
            )
            said = _said(request.full_url, answer)
            there = self._there() if answer.status == _NOT_FOUND and "there is no processor named" in said else ""
            raise (Unanswered if answer.status in _UNKNOWN else RemoteFailed)(said + there + remedy)
        try:
            return answer.found()
        except NoObject as error:
            raise RemoteFailed(f"{request.full_url} answers with {error}; is it the control service's?") from error

    def _there(self) -> str:
        """Which processors the user sees, for one who has named none of them; "" where that cannot be told."""
        request = urllib.request.Request(f"{self.url}/v1/processors", headers={"Authorization": f"Bearer {self.token}"})  # noqa: S310 - checked
        try:
            names = sorted(
                each["name"] for each in asked(request, cli_settings().request_timeout_ms / 1000).found()["processors"]
            )
        except (NoAnswer, NoObject, KeyError, TypeError):
            return ""
        more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
        return f"; there is {', '.join(names[:_NAMES_MAX]) or 'none'}{more}"


def is_here() -> bool:
    """Whether commands ask a service of this machine's folder, and none that TIDEMARK_CONTROL names."""
    return not os.environ.get("TIDEMARK_CONTROL")


def find(data_dir: Path) -> Remote:
    """TIDEMARK_CONTROL (with the token), else the service of the installation on the folder. RemoteFailed names the command to start.

    The token is in TIDEMARK_TOKEN, or in the file that TIDEMARK_TOKEN_FILE names, or what `tidemark login` has got.
    """
    url = os.environ.get("TIDEMARK_CONTROL", "")
    if url:
        if not url.startswith(("http://", "https://")):
            message = f"TIDEMARK_CONTROL: expected http://… or https://…, found {url!r}"
            raise RemoteFailed(message)
        url = url.rstrip("/")
        return Remote(url, _token() or _logged_in(url))
    return here(data_dir)


def here(data_dir: Path) -> Remote:
    """The service of the installation on the folder. Unheard names the command to start."""
    try:
        address = json.loads((data_dir / ADDRESS_FILE).read_text())
        try:
            return Remote(address["url"], Path(address["token_file"]).read_text().strip())
        except PermissionError:
            # Another user's installation on this machine: who has logged in there is somebody, too.
            return Remote(address["url"], _logged_in(address["url"]))
    except (FileNotFoundError, NotADirectoryError) as error:
        message = (
            f"no control service runs on {data_dir}: `tidemark run FILE --data {data_dir}` starts one,"
            " and TIDEMARK_CONTROL with TIDEMARK_TOKEN names one elsewhere"
        )
        raise Unheard(message) from error


def address_of(data_dir: Path) -> str:
    """Of the control service that commands ask; no token is needed. RemoteFailed."""
    if is_here():
        try:
            return str(json.loads((data_dir / ADDRESS_FILE).read_text())["url"])
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RemoteFailed(
                f"no control service runs on {data_dir}, and TIDEMARK_CONTROL names none elsewhere"
            ) from error
    return os.environ["TIDEMARK_CONTROL"].rstrip("/")


def _logged_in(url: str) -> str:
    try:
        return stored_token(url)
    except LoginFailed as error:
        raise RemoteFailed(str(error)) from error


def _token() -> str:
    path = os.environ.get("TIDEMARK_TOKEN_FILE", "")
    if not path:
        return os.environ.get("TIDEMARK_TOKEN", "")
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        message = (
            f"TIDEMARK_TOKEN_FILE: expected a file with the control service's token, found {path!r}: {error.strerror}"
        )
        raise RemoteFailed(message) from error


def path_of(name: str, *parts: str) -> str:
    """The path of a processor, or of what is below it."""
    return "/".join(("/v1/processors", quote(name, safe=""), *parts))


def _said(url: str, answer: ServerAnswer) -> str:
    try:
        problem = answer.found()["error"]
        known = {name: problem[name] for name in ("place", "expectation", "finding")}
    except (NoObject, KeyError, TypeError):
        return f"{url} answers with {answer.said()}"
    if errors := problem.get("errors"):
        return "\n".join(_one(e) for e in errors)
    remedy = f"; {problem['remedy']}" if problem.get("remedy") else ""
    return f"{known['place']}: expected {known['expectation']}; {known['finding']}{remedy}"


def _one(error: dict[str, Any]) -> str:
    line = f" (line {error['line']})" if error.get("line") else ""
    accepted = f"; accepted: {', '.join(error['accepted'])}" if error.get("accepted") else ""
    nearest = f"; did you mean {error['nearest']}?" if error.get("nearest") else ""
    return f"{error['place']}{line}: {error['message']}{accepted}{nearest}"
