"""The console: pages of what REST answers to the same user. It asks the handlers of `Api`, so it knows and hides what REST does."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import web

from tidemark.services.control import pages
from tidemark.services.control.api import BEHIND, STALE_HEADER, Api
from tidemark.services.control.html import Html, moment, tag
from tidemark.services.control.pages import Drawn, PageContext
from tidemark.services.control.routes import ASSETS, LOGIN
from tidemark.services.control.sessions import SESSION
from tidemark.services.control.stats import shown_time
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.process.web import USER, Problem

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:;"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Nothing is loaded from, or sent to, elsewhere; no script or style stands in a page."""
_VIEWS: Final = (
    ("", "Graph"),
    ("/checkpoints", "Checkpoints"),
    ("/time", "Event time"),
    ("/sample", "Sample"),
    ("/dead-letters", "Dead letters"),
    ("/verdict", "Audit"),
    ("/logs", "Logs"),
    ("/document", "Document"),
)
_REFUSED: Final = {400: "Not understood", 401: "Not logged in", 403: "Not allowed", 404: "Not found", 500: "A fault"}
"""Headings of pages that only tell an error, by status."""
_LIVES: Final = (200, 503)
"""Of a page whose figures are asked for again: what is away comes back, what is not there does not."""


def _text(name: str) -> str:
    return files("tidemark.services.control").joinpath(name).read_text(encoding="utf-8")


_BUILD: Final = sha256("".join(map(_text, ASSETS)).encode()).hexdigest()[:16]
"""What tells pages of this release's scripts from another's."""
Ask = Callable[[web.Request, Any], Awaitable[web.Response]]


@dataclass(slots=True)
class Console:
    """Handlers of pages, by the names that the routes give."""

    api: Api

    async def asset_css(self, _request: web.Request, _body: object) -> web.Response:
        """The style sheet of all pages."""
        return _asset("console.css")

    async def asset_js(self, _request: web.Request, _body: object) -> web.Response:
        """The script of all pages."""
        return _asset("console.js")

    async def asset_completion_js(self, _request: web.Request, _body: object) -> web.Response:
        """The editor's script."""
        return _asset("completion.js")

    async def page_processors(self, request: web.Request, _body: object) -> web.Response:
        """The page with all processors."""
        return await self._page(request, "Processors", pages.processors, self.api.processors, lives=True)

    async def page_processor(self, request: web.Request, _body: object) -> web.Response:
        """The page of a processor: its graph and its figures."""
        asked = (self.api.processor, self.api.stats, self.api.plan)
        return await self._page(request, "Graph", pages.graph, *asked, lives=True)

    async def page_checkpoints(self, request: web.Request, _body: object) -> web.Response:
        """How long they took, and where."""
        return await self._page(request, "Checkpoints", pages.checkpoints, self.api.checkpoints, lives=True)

    async def page_time(self, request: web.Request, _body: object) -> web.Response:
        """Watermarks against the clock, and the reason why they stand there."""
        asked = (self.api.history, self.api.watermark)
        return await self._page(request, "Event time", pages.event_time, *asked, lives=True)

    async def page_sample(self, request: web.Request, _body: object) -> web.Response:
        """Rows of an edge, or output; none is read before one has asked for it."""
        asked = (self.api.plan, self.api.sample) if "edge" in request.query else (self.api.plan,)
        return await self._page(request, "Sample", pages.sample, *asked)

    async def page_letters(self, request: web.Request, _body: object) -> web.Response:
        """Dead letters by code."""
        return await self._page(request, "Dead letters", pages.letters, self.api.letters)

    async def page_verdict(self, request: web.Request, _body: object) -> web.Response:
        """Findings of audits and redrives."""
        asked = (self.api.works.work_audit_state, self.api.works.work_redrive_state)
        return await self._page(request, "Audit", pages.verdict, *asked, lives=True)

    async def page_logs(self, request: web.Request, _body: object) -> web.Response:
        """The page with a processor's log lines."""
        return await self._page(request, "Logs", pages.logs, self.api.logs)

    async def page_document(self, request: web.Request, _body: object) -> web.Response:
        """The document, to be read or changed."""
        return await self._page(request, "Document", pages.document, self.api.processor)

    async def page_connections(self, request: web.Request, _body: object) -> web.Response:
        """The page with the registry of connections."""
        return await self._page(request, "Connections", pages.connections, self.api.connections)

    async def page_workers(self, request: web.Request, _body: object) -> web.Response:
        """The page with the workers and what they host."""
        return await self._page(request, "Workers", pages.workers, self.api.workers, lives=True)

    async def page_audit(self, request: web.Request, _body: object) -> web.Response:
        """The log of users' deeds."""
        return await self._page(request, "Audit", pages.audit, self.api.audit)

    async def _page(
        self, request: web.Request, title: str, draw: Callable[..., Drawn], *asked: Ask, lives: bool = False
    ) -> web.Response:
        """A page of what the handlers answer. lives: its living part is asked for again as often as processors are looked at."""
        name, status, stale, now = request.match_info.get("name", ""), 200, "", shown_time(self.api.clock.now_ms())
        try:
            answers = [await ask(request, None) for ask in asked]
            stale = answers[0].headers.get(STALE_HEADER, request.get(BEHIND, ""))
            bodies = [msgspec.json.decode(answer.body or b"") for answer in answers]  # type: ignore[arg-type]
            drawn = draw(PageContext(name, request[USER], request.query), *bodies)
        except Problem as problem:
            status, drawn = problem.status, Drawn(_trouble(problem))
        old = tag("p", f"This is what was known, and not sure to be all: {stale}", class_="trouble") if stale else None
        known = self.api.model.statuses.get(ProcessorName(name))
        of = None if known is None or status not in _LIVES else known.job
        told, of_page = tag("p", f"As of {moment(now)}", class_="hint"), drawn.living is None
        every = self.api.settings.look_ms if lives and status in _LIVES else None
        main = tag(
            "main",
            tag("h1", f"{name}: {title.lower()}" if name else title),
            _views(request) if name else None,
            tag("p", id="notice", role="status"),
            tag(
                "div",
                None if of_page else told,
                old,
                drawn.living,
                id="live",
                data_at=moment(now),
                data_every=every,
                data_of=of,
            ),
            told if of_page else None,
            drawn.staying,
            tag("div", id="said", role="status"),
            id="main",
        )
        text = whole(f"{name} · {title}" if name else title, _header(request), main)
        return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)


def is_page(path: str) -> bool:
    """Whether people look at what is there, so that errors are pages, too."""
    return path == "/" or (path.startswith("/console/") and path.removeprefix("/console/") not in ASSETS)


def refusal(request: web.Request, problem: Problem) -> web.Response:
    """A page for what no page's handler answers: nothing is there, or the user may not see it.

    Without a script where nobody has logged in: the browser would ask for the token of each script, too.
    """
    known = USER in request
    said = tag("div", id="said", role="status") if known else None
    main = tag("main", tag("h1", _REFUSED.get(problem.status, "Not now")), _trouble(problem), said, id="main")
    head = _header(request) if known else tag("header", tag("strong", "Tidemark"))
    text = whole("Refused", head, main, scripts=("console.js",) if known else ())
    headers = {**HEADERS, **problem.headers}
    return web.Response(text=text, status=problem.status, content_type="text/html", headers=headers)


def _trouble(problem: Problem) -> Html:
    said = f"{problem.place}: expected {problem.expectation}; {problem.finding}"
    return tag("p", said, f"; {problem.remedy}" if problem.remedy else "", class_="trouble")


def whole(title: str, *body: Html, scripts: Sequence[str] = ("console.js", "completion.js")) -> str:
    """A page from its head to its end."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · Tidemark"),
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href="/console/console.css"),
        [tag("script", src=f"/console/{name}", defer=True) for name in scripts],
    )
    bare = "Scripts are off: this page shows what was when it was loaded, and its buttons do nothing."
    unscripted = tag("noscript", tag("p", bare, class_="trouble")) if scripts else None
    page = tag("html", head, tag("body", unscripted, *body), lang="en", data_build=_BUILD)
    return f"<!doctype html>\n{page}\n"


def _asset(name: str) -> web.Response:
    return web.Response(text=_text(name), content_type=ASSETS[name], headers=HEADERS)


def _header(request: web.Request) -> Html:
    user = request[USER]
    links = [("/", "Processors"), ("/console/connections", "Connections"), ("/console/workers", "Workers")]
    if user.may("admin"):
        links.append(("/console/audit", "Audit"))
    return tag(
        "header",
        tag("a", "To the content", href="#main", class_="skip"),
        tag("strong", "Tidemark"),
        _links("Installation", links, request.path),
        tag("span", f"{user.name}, {user.role}; times are UTC", class_="hint"),
        pages.button("Log out", "POST", "/console/logout", next=LOGIN) if SESSION in request else None,
    )


def _views(request: web.Request) -> Html:
    name = request.match_info["name"]
    own = f"/console/processors/{quote(name, safe='')}"  # of a name in an address, which may be none of a processor
    here = own + request.path.removeprefix(f"/console/processors/{name}")
    return _links(f"Views of {name}", [(own + view, text) for view, text in _VIEWS], here)


def _links(label: str, links: list[tuple[str, str]], path: str) -> Html:
    items = [tag("li", tag("a", t, href=h, aria_current="page" if h == path else None)) for h, t in links]
    return tag("nav", tag("ul", items), aria_label=label)
