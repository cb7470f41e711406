"""Logins of people at the console by an OpenID provider: the code flow with PKCE, a session in a cookie, renewed while it lasts.

What a session may do is what its ID token says: each request goes through the same checks as one with the token in its header
(`oidc.py`). A session changes something only with the header of the console's script, as a page's password does.
"""

import asyncio
import contextlib
import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlencode, urlsplit

import structlog
from aiohttp import web
from joserfc.util import urlsafe_b64encode

from tidemark.services.control.audit import Audit
from tidemark.services.control.console import HEADERS, is_page, whole
from tidemark.services.control.html import Child, tag
from tidemark.services.control.issuer import IssuerAway
from tidemark.services.control.oidc import TokenRefused, Untimely, Vouching
from tidemark.services.control.provider import LoginRefused, Provider, shown
from tidemark.services.control.routes import BEGIN, CONSOLE_HEADER, DONE, LOGIN, TOKEN_PROMPT
from tidemark.services.control.sessions import SESSION, Cookies, PendingLogin, Session, TooLarge
from tidemark.services.control.stats import shown_time
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.http import HttpClient
from tidemark.shared.process.settings import ProcessSettingsError
from tidemark.shared.process.users import User
from tidemark.shared.process.web import BAD_REQUEST, FORBIDDEN, STANDS, UNAUTHORIZED, UNAVAILABLE, USER, Problem

_log = structlog.get_logger()
_NEXT_MAX: Final = 2_000
"""Characters of the page to which a login returns."""
_QUARTER: Final = 4


@dataclass(slots=True)
class _Turn:
    """Of requests with one session, whose token the first of them renews."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    here: int = 0
    away: str = ""
    """Why the first of them could not: the others do not wait for that again, nor use the refresh token once more."""


@dataclass(slots=True)
class Login:
    """Handlers of the login, and the users of sessions."""

    vouching: Vouching
    provider: Provider
    clock: Clock
    audit: Audit
    sessions: Cookies
    pending: Cookies
    _renewing: dict[str, _Turn] = field(default_factory=dict)
    """By session, while it is renewed."""
    _renewed: OrderedDict[str, tuple[int, Session | None]] = field(default_factory=OrderedDict)
    """By refresh token: when it was used, and what came of it; None: the provider has refused."""
    _ended: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Sessions that were logged out here: a copy of such a cookie counts no more."""

    # --- pages ------------------------------------------------------------------------------------------------------------

    async def login_page(self, request: web.Request, _body: object) -> web.Response:
        """How one can log in."""
        behind = urlencode({"next": _inside(request.query.get("next", ""))})
        host = urlsplit(self.provider.settings.issuer).netloc
        return _page(
            200,
            "Log in",
            tag("p", tag("a", f"Log in at {host}", href=f"{BEGIN}?{behind}", class_="act")),
            tag(
                "p",
                "Or ",
                tag("a", "use a token", href=f"{TOKEN_PROMPT}?{behind}"),
                ", as the password; any name will do.",
                class_="hint",
            ),
        )

    async def login_token(self, request: web.Request, _body: object) -> web.Response:
        """Back to the page: the guard has asked the browser for a token."""
        raise web.HTTPFound(_inside(request.query.get("next", "")))

    async def login_begin(self, request: web.Request, _body: object) -> web.Response:
        """Send the browser to the provider."""
        settings = self.provider.settings
        try:
            about = await self.provider.keys.about()
            url = about.endpoint("authorization_endpoint")
        except IssuerAway as error:
            return self._failed(UNAVAILABLE, f"The provider does not answer: {error}.", "Try again later.")
        begun = PendingLogin(
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(48),
            _inside(request.query.get("next", "")),
            self._now_s(),
        )
        self.pending.write(request, begun)
        asked = {
            "response_type": "code",
            "client_id": settings.client_id,
            "redirect_uri": self._back(),
            "scope": " ".join(settings.scopes),
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": urlsafe_b64encode(hashlib.sha256(begun.verifier.encode()).digest()).decode(),
            "code_challenge_method": "S256",
        }
        raise web.HTTPFound(f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}")

    async def login_done(self, request: web.Request, _body: object) -> web.Response:
        """From the provider, with a code: the session begins."""
        given, settings = request.query, self.provider.settings
        begun = self.pending.read(request, PendingLogin)
        if begun is None or self._now_s() - begun.begun_s > settings.login_s_max:
            finding = (
                f"This browser has begun no login here within {settings.login_s_max // 60} minutes, or at another address than"
                f" {settings.public_url}, or has ended it already; or it takes no cookies, which a login needs."
            )
            return self._failed(BAD_REQUEST, finding)
        if not hmac.compare_digest(begun.state.encode(), given.get("state", "").encode()):
            return self._failed(
                BAD_REQUEST, "This answer is to another login than the one that this browser has begun last."
            )
        self.pending.remove(request)
        if given.get("iss", settings.issuer) != settings.issuer:
            return self._failed(BAD_REQUEST, f"The answer is of {shown(given['iss'])!r}, not of {settings.issuer}.")
        if "code" not in given:
            why = (
                f"{shown(given.get('error', 'no code'))}: {shown(given.get('error_description', 'no reason is given'))}"
            )
            return self._failed(FORBIDDEN, f"The provider has refused the login ({why}).")
        try:
            tokens = await self.provider.exchange(given["code"], begun.verifier, self._back())
            token = tokens.id_token or ""
            claims = await self._claims(token, begun.nonce)
            user = self.vouching.user(claims)
            subject = str(claims.get("sub"))
            id_ = secrets.token_urlsafe(16)
            session = Session(id_, subject, token, tokens.refresh_token or "", self._now_s())
            self.sessions.write(request, session)
        except IssuerAway as error:
            return self._failed(UNAVAILABLE, f"The provider does not answer: {error}.", "Try again later.")
        except (LoginRefused, TooLarge) as error:
            return self._failed(BAD_REQUEST, f"The provider gave no session: {error}.")
        except TokenRefused as error:
            remedy = ""
            if isinstance(error, Untimely):
                remedy = (
                    f"It is {shown_time(self.clock.now_ms())} here: are the provider's clock and this one the same?"
                )
            return self._failed(BAD_REQUEST, f"What the provider gave does not count: {error}.", remedy)
        except Problem as problem:
            return self._failed(
                problem.status,
                f"Expected {problem.expectation}; found {problem.finding}.",
                "Who runs this installation gives rights.",
            )
        self.audit.note(user.name, user.role, "login", "", status=200, address=request.remote or "")
        raise web.HTTPFound(settings.public_url + begun.next)

    async def login_end(self, request: web.Request, _body: object) -> web.Response:
        """The session ends here and, where it has a place for that, at the provider. No right, nor a token that still counts, is needed."""
        if CONSOLE_HEADER not in request.headers:  # as the guard says of other routes
            expectation = "Bearer, where something is changed"
            raise Problem(FORBIDDEN, "header Authorization", expectation, "a session's cookie alone")
        session, settings, after = self.sessions.read(request, Session), self.provider.settings, LOGIN
        if session is None:
            return web.json_response({"next": after})
        with contextlib.suppress(Problem, web.HTTPFound):  # the log of deeds has no user then
            user = await self.user_of(request)
            session = request[SESSION]
            if user is not None:
                request[USER] = user
        self._ended[session.id] = None
        _bound(self._ended, settings.sessions_max)
        self.sessions.remove(request)
        try:
            about = await self.provider.keys.about()
            if about.end_session_endpoint is not None:
                url = about.endpoint("end_session_endpoint")
                asked = {
                    "id_token_hint": session.id_token,
                    "client_id": settings.client_id,
                    "post_logout_redirect_uri": settings.public_url + LOGIN,
                }
                after = f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}"
            if session.refresh_token:
                await self.provider.revoke(session.refresh_token)
        except IssuerAway as error:
            # The session has ended here; what the provider keeps ends by its own time.
            _log.warning("login.end_not_told", issuer=settings.issuer, reason=str(error))
        return web.json_response({"next": after})

    async def sent(self, request: web.Request, response: web.StreamResponse) -> None:
        """Before an answer's first byte: its cookies."""
        self.sessions.send(request, response)

    # --- users ------------------------------------------------------------------------------------------------------------

    async def user_of(self, request: web.Request) -> User | None:
        """The user of a request without a token; None where the browser is to ask for one. Problem, web.HTTPFound to the login."""
        if request.path == TOKEN_PROMPT:
            return None
        session = self.sessions.read(request, Session)
        if session is None or session.id in self._ended:
            self._nobody(request)
        settings, now_s = self.provider.settings, self._now_s()
        if now_s - session.begun_s > settings.session_s_max:
            self._nobody(request)
        try:
            claims = await self._still(session.id_token)
            life_s = 0 if claims is None else claims["exp"] - claims.get("iat", now_s)
            soon_s = min(settings.renew_s, life_s / _QUARTER)
            if session.refresh_token and (claims is None or claims["exp"] - now_s <= soon_s):
                try:
                    newer = await self._renew(request, session)
                    if newer is not None:  # else another replica may have renewed it: the browser gets its cookie
                        session, claims = newer, await self._still(newer.id_token)
                except IssuerAway:
                    if claims is None:  # else the token counted when the request came
                        raise
            if claims is None:
                self._nobody(request)
            user = self.vouching.user(claims)
        except (TokenRefused, TooLarge):
            self._nobody(request)
        except Problem:  # no rights: the login says so on a page, and may be another's
            if _is_page(request):
                self._nobody(request)
            raise
        except IssuerAway as error:
            raise Problem(
                UNAVAILABLE,
                "cookie",
                f"the issuer {settings.issuer} to answer",
                str(error),
                "try again",
                headers={"Retry-After": "10"},
            ) from error
        request[SESSION] = session
        request[STANDS] = lambda: session.id not in self._ended
        return user

    async def _still(self, token: str) -> dict[str, Any] | None:
        """The claims, if the token counts. IssuerAway."""
        try:
            return await self.vouching.claims(token.encode())
        except TokenRefused:
            return None

    async def _renew(self, request: web.Request, session: Session) -> Session | None:
        """A newer session, once for all requests that come with the same cookie; None where it is not renewed any more. IssuerAway."""
        turn = self._renewing.setdefault(session.id, _Turn())
        turn.here += 1
        try:
            async with turn.lock:
                found = await self._renewed_of(session, turn)
        finally:
            turn.here -= 1
            if not turn.here:
                del self._renewing[session.id]
        if found is not None:
            self.sessions.write(request, found)
        return found

    async def _renewed_of(self, session: Session, turn: _Turn) -> Session | None:
        """In its turn. None: the provider has ended it. IssuerAway."""
        settings, used = self.provider.settings, session.refresh_token
        while self._renewed and self._past(next(iter(self._renewed.values()))[0]):
            self._renewed.popitem(last=False)
        if used in self._renewed:
            return self._renewed[used][1]
        if turn.away:
            raise IssuerAway(turn.away)
        try:
            found = await self._newer(session)
        except IssuerAway as error:
            turn.away = str(error)
            raise
        self._renewed[used] = self.clock.monotonic_ms(), found
        _bound(self._renewed, settings.sessions_max)
        return found

    def _past(self, at_ms: int) -> bool:
        return self.clock.monotonic_ms() - at_ms > self.provider.settings.renewed_ms

    async def _newer(self, session: Session) -> Session | None:
        """None: the provider has ended it. IssuerAway."""
        try:
            tokens = await self.provider.refresh(session.refresh_token)
            claims = await self.vouching.claims((tokens.id_token or "").encode(), at_once=True)
            if str(claims.get("sub")) != session.subject:
                raise TokenRefused(
                    f"the newer token is of {shown(str(claims.get('sub')))!r}, not of {session.subject!r}"
                )
        except (LoginRefused, TokenRefused) as error:
            _log.info("login.not_renewed", reason=str(error))
            return None
        newer = tokens.refresh_token or session.refresh_token
        return Session(session.id, session.subject, tokens.id_token or "", newer, session.begun_s)

    def _nobody(self, request: web.Request) -> NoReturn:
        """To the login, where a page is asked for; else an answer that says so, at which no browser opens its prompt."""
        self.sessions.remove(request)
        if _is_page(request):
            raise web.HTTPFound(f"{LOGIN}?{urlencode({'next': request.path_qs})}")
        raise Problem(
            UNAUTHORIZED,
            "header Authorization",
            "Bearer and a token, or the cookie of a session that lasts",
            "none",
            f"log in again at {self.provider.settings.public_url}{LOGIN}",
            headers={"WWW-Authenticate": 'Bearer realm="tidemark"'},
        )

    async def _claims(self, token: str, nonce: str) -> dict[str, Any]:
        """Of a token that was given for this login alone. TokenRefused, IssuerAway."""
        if not token:
            raise TokenRefused("there is no ID token in it")
        claims = await self.vouching.claims(token.encode(), at_once=True)
        client = self.provider.settings.client_id
        named = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if client not in named or claims.get("azp", client) != client:
            raise TokenRefused(f"the token is for {shown(str(claims.get('azp', named)))}, not for {client}")
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise TokenRefused("the token's nonce is not that of this login")
        return claims

    def _back(self) -> str:
        return self.provider.settings.public_url + DONE

    def _now_s(self) -> int:
        return self.clock.now_ms() // 1000

    def _failed(self, status: int, finding: str, remedy: str = "") -> web.Response:
        _log.warning("login.failed", status=status, reason=finding)
        again = tag("p", tag("a", "Log in again", href=LOGIN))
        return _page(status, "No login", tag("p", finding, f" {remedy}" if remedy else "", class_="trouble"), again)


def login_of(vouching: Vouching, http: HttpClient, audit: Audit, token: str) -> Login:
    """By the settings of `vouching`. token: the service's own, by which its replicas read each other's cookies. ProcessSettingsError."""
    settings, secret = vouching.settings, ""
    if settings.client_secret_file:
        try:
            secret = Path(settings.client_secret_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"oidc.client_secret_file: expected a file with the client's secret ({error})"
            raise ProcessSettingsError(message) from error
        if not secret:
            raise ProcessSettingsError(f"oidc.client_secret_file: {settings.client_secret_file} is empty")
    return Login(
        vouching,
        Provider(settings, vouching.keys, http, secret),
        vouching.clock,
        audit,
        Cookies(settings.public_url, token, "session", "/"),
        Cookies(settings.public_url, token, "login", LOGIN, settings.login_s_max),
    )


def _inside(page: str) -> str:
    """A page of this service; the first one for what is none. The answer puts the service's own address in front of it."""
    plain = (
        page.startswith("/") and len(page) <= _NEXT_MAX and all("!" <= each <= "~" and each != "\\" for each in page)
    )
    return page if plain and not page.startswith(("//", LOGIN, TOKEN_PROMPT)) else "/"


def _is_page(request: web.Request) -> bool:
    return request.method == "GET" and is_page(request.path)


def _bound(kept: "OrderedDict[str, Any]", most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)


def _page(status: int, title: str, *children: Child) -> web.Response:
    main = tag("main", tag("h1", title), *children, id="main")
    text = whole(title, tag("header", tag("strong", "Tidemark")), main, scripts=())
    return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)
