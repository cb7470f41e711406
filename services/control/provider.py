"""What a login asks of the OpenID provider: tokens for a code, newer ones for a refresh token, and the end of one.

OpenID Connect Core 3.1.3 and 12, RFC 7009. Its address, endpoints and keys come from `issuer.py`.
"""

import base64
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

import msgspec

from tidemark.services.control.issuer import IssuerAway, IssuerKeys
from tidemark.services.control.settings import OidcSettings
from tidemark.shared.ports.http import AnswerTooLong, HttpAnswer, HttpClient, HttpRequest, ServerAway, ServerDenied

_DONE: Final = 200
_REFUSED: Final = (400, 401, 403)
"""Statuses by which an endpoint refuses a request; others are of a provider in trouble."""
_SAID_MAX: Final = 300
"""Characters of a provider's text that an answer repeats."""


class LoginRefused(Exception):
    """The provider gives no token: a sentence that says why, without one."""


class Tokens(msgspec.Struct, frozen=True):
    """An answer with tokens. The access token is left alone: who has logged in is told by the other."""

    id_token: str | None = None
    refresh_token: str | None = None


class _Trouble(msgspec.Struct, frozen=True):
    """Texts, by the protocol; a refusal is one whatever they are."""

    error: Any = None
    error_description: Any = None


def shown(text: str) -> str:
    """A provider's text, bounded, without what is not to be seen."""
    return "".join(each if each.isprintable() else "?" for each in text[:_SAID_MAX])


@dataclass(slots=True)
class Provider:
    """Of one issuer, by one client of it."""

    settings: OidcSettings
    keys: IssuerKeys
    http: HttpClient
    secret: str
    """The client's; "": it has none."""

    async def exchange(self, code: str, verifier: str, redirect_uri: str) -> Tokens:
        """The tokens for a code. LoginRefused, IssuerAway."""
        return await self._tokens(
            grant_type="authorization_code", code=code, code_verifier=verifier, redirect_uri=redirect_uri
        )

    async def refresh(self, token: str) -> Tokens:
        """Newer tokens. LoginRefused, IssuerAway."""
        return await self._tokens(grant_type="refresh_token", refresh_token=token)

    async def revoke(self, token: str) -> None:
        """End a refresh token, if the provider has a place for that. IssuerAway."""
        about = await self.keys.about()
        if about.revocation_endpoint is not None:
            answer = await self._post(about.endpoint("revocation_endpoint"), token=token)
            if answer.status != _DONE:
                raise IssuerAway(f"it has not ended a refresh token (status {answer.status})")

    async def _tokens(self, **form: str) -> Tokens:
        about = await self.keys.about()
        url = about.endpoint("token_endpoint")
        answer = await self._post(url, **form)
        if answer.status in _REFUSED:
            trouble = _read(answer.body, _Trouble, url)
            why = [str(each) for each in (trouble.error or answer.status, trouble.error_description) if each]
            raise LoginRefused(f"it refuses: {shown(' '.join(why))}")
        if answer.status != _DONE:
            raise IssuerAway(f"{url} answered with status {answer.status}")
        found: Tokens = _read(answer.body, Tokens, url)
        return found

    async def _post(self, url: str, **form: str) -> HttpAnswer:
        settings, headers = self.settings, [("Accept", "application/json")]
        headers.append(("Content-Type", "application/x-www-form-urlencoded"))
        methods = (await self.keys.about()).token_endpoint_auth_methods_supported or ["client_secret_basic"]
        if self.secret and "client_secret_basic" in methods:
            pair = f"{quote_plus(settings.client_id)}:{quote_plus(self.secret)}".encode()
            headers.append(("Authorization", f"Basic {base64.b64encode(pair).decode()}"))
        else:
            form["client_id"] = settings.client_id
            form |= {"client_secret": self.secret} if self.secret else {}
        wait_s = settings.answer_timeout_ms / 1000
        body = urlencode(form).encode()
        try:
            return await self.http.ask(
                HttpRequest("POST", url, tuple(headers), body, wait_s, 0, settings.answer_bytes_max)
            )
        except (ServerAway, ServerDenied, AnswerTooLong, ValueError) as error:
            raise IssuerAway(f"{url}: {error}") from error


def _read(body: bytes, kind: type[Any], url: str) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise IssuerAway(f"{url} answered with no JSON object as OpenID Connect has it ({error})") from error
