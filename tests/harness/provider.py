"""An OpenID provider that people log in at: it redirects, checks codes, PKCE and clients, rotates refresh tokens, and signs for real."""

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus, urlencode

from aiohttp import web
from joserfc.util import urlsafe_b64encode

from tests.harness.issuer import Issuer, listening, new_key

CLIENT = "console"
COMMAND = "command-line"


@dataclass
class Provider(Issuer):
    """Its users agree to each login at once."""

    secret: str = "secret-of-the-console"
    """Of the client; "": it is public."""
    redirect_uris: set[str] = field(default_factory=set)
    life_s: int = 600
    """Of an ID token."""
    changed: dict[str, Any] = field(default_factory=dict)
    """Claims of ID tokens that differ."""
    refuses: str = ""
    """The error of each login."""
    token_status: int = 200
    troubled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set where tokens are asked for and `token_status` is another."""
    answers: asyncio.Event | None = None
    """For which such an answer waits."""
    token_asked: int = 0
    """Requests for tokens."""
    refusal: dict[str, Any] = field(default_factory=lambda: {"error": "invalid_grant"})
    """Of a refresh token that counts no more."""
    gives_refresh: bool = True
    refreshed: int = 0
    ended: list[dict[str, str]] = field(default_factory=list)
    """What browsers brought to the end of a session."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    device_answers: tuple[str, ...] = ("authorization_pending",)
    """The errors that come before a command's tokens."""
    device_changes: dict[str, Any] = field(default_factory=dict)
    """What differs in the answer to the begin of a command's login."""
    cuts: int = 0
    """So many requests for tokens are not answered: the connection is closed."""
    devices: dict[str, list[str]] = field(default_factory=dict)
    refresh_tokens: set[str] = field(default_factory=set)
    revoked: web.Response | None = None
    """Instead of the revocation's own answer."""

    async def authorize(self, request: web.Request) -> web.Response:
        """Back to the client, with a code."""
        asked = dict(request.query)
        if asked.get("client_id") != CLIENT or asked.get("redirect_uri") not in self.redirect_uris:
            return web.Response(status=400, text="no such client, or not its address")
        if asked.get("response_type") != "code" or asked.get("code_challenge_method") != "S256":
            return web.Response(status=400, text="no code flow with PKCE")
        back = {"state": asked["state"], "iss": self.url}
        if self.refuses:
            back |= {"error": self.refuses, "error_description": "the user said no"}
        else:
            code = secrets.token_urlsafe(16)
            self.codes[code] = asked
            back |= {"code": code}
        raise web.HTTPFound(f"{asked['redirect_uri']}?{urlencode(back)}")

    async def token(self, request: web.Request) -> web.Response:  # type: ignore[override]
        """Of a code, or of a refresh token; each counts once."""
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.token_asked += 1
        if self.cuts and request.transport is not None:
            self.cuts -= 1
            request.transport.abort()
            return web.Response()
        if self.token_status != 200:
            self.troubled.set()
            if self.answers is not None:
                await self.answers.wait()
            return web.Response(status=self.token_status, text="trouble")
        if self._client(request, form) == (COMMAND, ""):
            return self.of_device(form)
        if self._client(request, form) != (CLIENT, self.secret):
            return web.json_response({"error": "invalid_client"}, status=401)
        if form.get("grant_type") == "authorization_code":
            asked = self.codes.pop(form["code"], None)
            verifier = urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest()).decode()
            if asked is None or asked["code_challenge"] != verifier or asked["redirect_uri"] != form["redirect_uri"]:
                return web.json_response({"error": "invalid_grant", "error_description": "no such code"}, status=400)
            return self.given(nonce=asked.get("nonce"))
        if form.get("grant_type") == "refresh_token" and form["refresh_token"] in self.refresh_tokens:
            self.refresh_tokens.remove(form["refresh_token"])
            self.refreshed += 1
            return self.given()
        return web.json_response(self.refusal, status=400)

    async def device(self, request: web.Request) -> web.Response:
        """A code for a command, and one for its user."""
        form = await request.post()
        if form.get("client_id") != COMMAND:
            return web.json_response({"error": "invalid_client"}, status=401)
        code = secrets.token_urlsafe(8)
        self.devices[code] = list(self.device_answers)
        found = {
            "device_code": code,
            "user_code": "ABCD-EFGH",
            "verification_uri": f"{self.url}/device",
            "interval": 1,
            "expires_in": 60,
            **self.device_changes,
        }
        return web.json_response(found)

    def of_device(self, form: dict[str, str]) -> web.Response:
        """What comes at each question of a command, in turn."""
        if form.get("grant_type") == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return web.json_response({"error": "invalid_grant"}, status=400)
            self.refresh_tokens.remove(form["refresh_token"])
            self.refreshed += 1
            return self.given(aud=COMMAND)
        answers = self.devices[form["device_code"]]
        if answers:
            return web.json_response({"error": answers.pop(0)}, status=400)
        del self.devices[form["device_code"]]
        return self.given(aud=COMMAND)

    def given(self, **more: Any) -> web.Response:
        """Tokens."""
        claims = {"aud": CLIENT, "exp": int(time.time()) + self.life_s, **more, **self.changed}
        found = {"access_token": "opaque", "token_type": "Bearer", "id_token": Issuer.token(self, **claims).decode()}
        if self.gives_refresh:
            found["refresh_token"] = secrets.token_urlsafe(32)
            self.refresh_tokens.add(found["refresh_token"])
        return web.json_response(found)

    def _client(self, request: web.Request, form: dict[str, str]) -> tuple[str, str]:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            name, _, secret = base64.b64decode(given).decode().partition(":")
            return unquote_plus(name), unquote_plus(secret)
        return form.get("client_id", ""), form.get("client_secret", "")

    async def revoke(self, request: web.Request) -> web.Response:
        """A refresh token ends."""
        self.refresh_tokens.discard(str((await request.post())["token"]))
        return self.revoked or web.Response()

    async def end_session(self, request: web.Request) -> web.Response:
        """Back to the client."""
        self.ended.append(dict(request.query))
        raise web.HTTPFound(request.query["post_logout_redirect_uri"])


@asynccontextmanager
async def provider_of() -> AsyncIterator[Provider]:
    """A provider that listens."""
    provider = Provider(keys={"RS256": new_key("RS256", "key-of-RS256")})
    app = web.Application()
    app.router.add_get("/authorize", provider.authorize)
    app.router.add_post("/token", provider.token)
    app.router.add_post("/revoke", provider.revoke)
    app.router.add_post("/device", provider.device)
    app.router.add_get("/end", provider.end_session)
    async with listening(provider, app):
        provider.about = {
            "authorization_endpoint": f"{provider.url}/authorize",
            "token_endpoint": f"{provider.url}/token",
            "device_authorization_endpoint": f"{provider.url}/device",
            "revocation_endpoint": f"{provider.url}/revoke",
            "end_session_endpoint": f"{provider.url}/end",
        }
        yield provider
