"""The HTTP server: every route of the table, its body decoded as declared."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from tidemark.services.control.api import BEHIND, STALE_HEADER, Api
from tidemark.services.control.commands import check_id
from tidemark.services.control.console import Console, is_page, refusal
from tidemark.services.control.login import Login
from tidemark.services.control.routes import (
    CONSOLE_HEADER,
    EVENTS,
    FOLDERS,
    ID_HEADERS,
    LOGIN_ROUTES,
    ROUTES,
    Handler,
    Route,
)
from tidemark.shared.process.users import User, Users
from tidemark.shared.process.web import (
    BAD_REQUEST,
    Next,
    Problem,
    Rule,
    answering,
    crowded,
    expected,
    guard,
    problem_of,
    read_body,
)


def application(
    api: Api,
    users: Users,
    *outer: Any,
    vouched: Callable[[bytes], Awaitable[User | None]] | None = None,
    login: Login | None = None,
) -> web.Application:
    """Every route of the table, behind a token of its role. outer: middlewares before all others. vouched: as `guard` takes it.

    login: of the console; None: it takes tokens alone.
    """
    served = api.served = ROUTES if login is None else (*ROUTES, *LOGIN_ROUTES)
    open_paths = {route.path for route in served if route.open}
    table: dict[tuple[str, str], Route] = {(route.method, route.path): route for route in served}

    def rule(request: web.Request) -> Rule:
        resource = request.match_info.route.resource
        method = "GET" if request.method == "HEAD" else request.method
        route = table.get((method, resource.canonical if resource is not None else ""))
        return Rule() if route is None else route.rule(request.match_info.get("name"))

    session = None if login is None else login.user_of
    guarded = guard(users, open_paths, rule, page_header=CONSOLE_HEADER, vouched=vouched, session=session)
    app = web.Application(
        client_max_size=api.settings.body_bytes_max,
        middlewares=[
            *outer,
            answering,
            _paged,
            api.audit_log.middleware({route.path for route in served if not route.changes}),
            guarded,
            # Logins ask the provider, so they are counted.
            crowded(
                api.settings.requests_max,
                {route.path for route in ROUTES if route.open},
                api.settings.user_requests_max,
            ),
        ],
    )
    if login is not None:
        app.on_response_prepare.append(login.sent)
    of_kind: dict[str, Any] = {"page": (console := Console(api)), "asset": console, "work": api.works, "login": login}
    for route in served:
        of = of_kind.get(route.handler.partition("_")[0], api)
        handler = _served(route, getattr(of, route.handler), api)
        # What is read can be asked for without its body, too; a stream has no end.
        for method in ("GET", "HEAD") if route.method == "GET" and route.content != EVENTS else (route.method,):
            app.router.add_route(method, route.path, handler, expect_handler=expected)
    return app


@web.middleware
async def _paged(request: web.Request, handler: Next) -> web.StreamResponse:
    """People see errors as pages, whatever refuses."""
    if request.method not in ("GET", "HEAD"):
        return await handler(request)
    if (shorter := _without_slash(request)) is not None:
        raise web.HTTPFound(shorter)
    if not is_page(request.path):
        return await handler(request)
    try:
        return await handler(request)
    except Exception as error:  # noqa: BLE001 - `problem_of` knows each, and logs what is a fault
        return refusal(request, problem_of(request, error))


def _without_slash(request: web.Request) -> str | None:
    """The page that is meant by an address with a slash at its end, or by the folder of pages; None: it is one."""
    path, query = request.rel_url.raw_path, request.rel_url.raw_query_string
    plain = path.rstrip("/")
    if not path.startswith("/console") or (plain == path and plain not in FOLDERS):
        return None
    page = "/" if plain in FOLDERS else plain
    return f"{page}?{query}" if query else page


def _served(route: Route, handler: Handler, api: Api) -> Next:
    async def served(request: web.Request) -> web.StreamResponse:
        for name in ID_HEADERS:
            check_id(request.headers.get(name, ""), f"header {name}", api.settings.request_characters_max)
        body = await _body(request, route.body, api) if route.body is not None else None
        behind = request[BEHIND] = await api.model.up_to_now() if route.tells else ""
        found = await handler(request, body)
        if behind:
            found.headers.setdefault(STALE_HEADER, behind.replace("\n", " ")[:200])
        return found

    return served


def _broken(error: BaseException) -> None:
    """Nothing can break while a body is waited for."""
    raise error


async def _body(request: web.Request, kind: object, api: Api) -> Any:
    if request.content_type != "application/json":
        given = repr(request.content_type) if "Content-Type" in request.headers else "none"
        raise Problem(BAD_REQUEST, "header Content-Type", "application/json", given)
    try:
        data = await read_body(request, api.settings.body_timeout_ms, api.clock, api.executor, _broken)
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise Problem(BAD_REQUEST, "body", "the object that /openapi.json describes", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(BAD_REQUEST, "body", "JSON", str(error)) from error
