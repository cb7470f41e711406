"""The HTTP server: who may ask, how large a question may be, and errors as answers."""

import base64
import binascii
import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog
from aiohttp import web

from services.control.api import Api
from services.control.errors import BAD_REQUEST, FORBIDDEN, INTERNAL, TOO_LARGE, UNAUTHORIZED, Problem
from services.control.routes import ROUTES, Handler, Route

_log = structlog.get_logger()
Next = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(api: Api, token: str) -> web.Application:
    """Every route of the table, behind the token."""
    app = web.Application(client_max_size=api.settings.body_bytes_max, middlewares=[_answering, _guard(token)])
    for route in ROUTES:
        app.router.add_route(route.method, route.path, _served(route, getattr(api, route.handler)))
    return app


def _served(route: Route, handler: Handler) -> Next:
    async def served(request: web.Request) -> web.StreamResponse:
        return await handler(request, await _body(request, route.body) if route.body is not None else None)

    return served


async def _body(request: web.Request, kind: Any) -> Any:
    if request.content_type != "application/json":
        raise Problem(BAD_REQUEST, "header Content-Type", "application/json", repr(request.content_type))
    try:
        data = await request.read()
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise Problem(BAD_REQUEST, "body", "the object that /openapi.json describes", str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem(BAD_REQUEST, "body", "JSON", str(error)) from error


def _guard(token: str) -> Any:
    """Bearer token for everything; for reading also as the password of a browser's prompt, which other sites cannot use to change."""
    open_paths = {route.path for route in ROUTES if route.open}
    wanted = token.encode()

    @web.middleware
    async def guard(request: web.Request, handler: Next) -> web.StreamResponse:
        if request.path in open_paths:
            return await handler(request)
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        by_page = scheme.lower() == "basic"
        secret = _password(given) if by_page else given.strip().encode()
        if scheme.lower() not in ("bearer", "basic") or not hmac.compare_digest(secret, wanted):
            raise Problem(
                UNAUTHORIZED,
                "header Authorization",
                "Bearer and the service's token",
                "none" if not scheme else "another",
                headers={"WWW-Authenticate": 'Basic realm="tidemark"'},
            )
        if by_page and request.method not in ("GET", "HEAD"):
            raise Problem(FORBIDDEN, "header Authorization", "Bearer, where something is changed", "Basic")
        return await handler(request)

    return guard


def _password(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


@web.middleware
async def _answering(request: web.Request, handler: Next) -> web.StreamResponse:
    """Whatever goes wrong is an answer in JSON, with place, expectation and finding."""
    try:
        return await handler(request)
    except Problem as problem:
        return problem.answer()
    except web.HTTPRequestEntityTooLarge as error:
        return Problem(TOO_LARGE, "body", "at most the size that `body_bytes_max` sets", error.text or "more").answer()
    except web.HTTPException as error:
        if error.status < BAD_REQUEST:
            raise
        return Problem(
            error.status, request.path, "a route of /openapi.json", f"{request.method}: {error.reason}"
        ).answer()
    except Exception as error:  # noqa: BLE001 - the server stays up; the fault is in its log and in the answer
        _log.exception("control.failed", path=request.path, error=repr(error))
        return Problem(INTERNAL, request.path, "an answer", "a fault of the service; its log has more").answer()
