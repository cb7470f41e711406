"""The routes, declared once: the server serves them, and /openapi.json describes them from the same table."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from aiohttp import web
from msgspec import Meta, Struct

from tidemark.services.control.commands import Document, Whole
from tidemark.shared.process.users import Role
from tidemark.shared.process.web import Rule

Handler = Callable[[web.Request, Any], Awaitable[web.StreamResponse]]
"""(request, its decoded body or None) → answer; raises Problem."""


# --- bodies -----------------------------------------------------------------------------------------------------------


class CreateBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A processor to be registered; with `start` it runs, or is not registered. The document is YAML or JSON text, or an object."""

    name: str
    document: Document
    parallelism: dict[str, Whole] = {}
    start: bool = False


class DocumentBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A document to be judged; `against` names a processor whose document it is compared with."""

    document: Document
    against: str = ""


class CompleteBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A document that is being written, as JSON text: the part before the cursor, and the part behind it."""

    before: str
    after: str = ""


class TryBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A document to be tried out on records, or on the newest ones of its topic where there are none."""

    document: Document
    rows: list[dict[str, Any]] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    """Records that are taken from the topic, and documents and dead letters that are shown, at most."""


class StartBody(Struct, frozen=True, forbid_unknown_fields=True):
    """From the last checkpoint, from the kept one of this name, or without state (`resume` false)."""

    resume: bool = True
    checkpoint: str = ""


class StopBody(Struct, frozen=True, forbid_unknown_fields=True):
    """At a checkpoint, windows stay open; `drain`: the input ends (at `until` by split, else at the present end) and windows close."""

    drain: bool = False
    until: dict[str, Whole] = {}


class ModifyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The changes; anything not named stays."""

    document: Document | None = None
    parallelism: dict[str, Whole] | None = None
    resumeFromCheckpoint: bool = True  # noqa: N815 - the language's word
    replaces: str = ""
    """The `documentDigest` of the document that was changed: refused where another is there by now. Empty: whatever is there."""


class EmptyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing is to be said."""


class KeepBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The name under which the last checkpoint is kept."""

    name: str


class SkipBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of commit `epoch` to pass over: the target of the sink at `vertex` (without it: of every waiting sink) refuses them."""

    epoch: Whole
    vertex: str | None = None


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter behind the question mark."""

    name: str
    type: Literal["integer", "boolean", "string"]
    text: str
    default: int | bool | str


@dataclass(frozen=True, slots=True)
class Route:
    """One route. `handler` names the method of `api.Api`."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    handler: str
    summary: str
    body: Any = None
    """Type of the JSON body; None: there is none."""
    query: tuple[Query, ...] = ()
    answers: dict[int, str] = field(default_factory=lambda: {200: "done"})
    open: bool = False
    """Without a token: liveness, and what stands before a login."""
    content: str = "application/json"
    needs: Role | None = None
    """The role that a request needs, where that is not viewer for GET and operator for all else."""
    changes: bool = True
    """Whether the audit log notes it (not for GET) where it was not refused."""

    @property
    def tells(self) -> bool:
        """It tells of processors and connections, or judges by them: of those that are there when it is asked."""
        return not self.open and (self.path.startswith("/v1/") or self.handler.startswith("page_"))

    @property
    def role(self) -> Role:
        """The least role that may ask."""
        return self.needs or ("viewer" if self.method == "GET" else "operator")

    def rule(self, name: str | None) -> Rule:
        """The rule for requests with this `{name}` in their path. Other routes know only names that the user may see."""
        if self.path.startswith("/v1/connections/"):
            return Rule(self.role, connection=name)
        return Rule(self.role, processor=name)


_LIMIT: Final = Query("limit", "integer", "at most so many", 10)
_LINES: Final = Query("limit", "integer", "at most so many lines", 100)
_MANY: Final = Query("limit", "integer", "at most so many", 100)
_DEEDS: Final = Query("limit", "integer", "at most so many, the latest first", 100)
_VERBOSE: Final = Query("verbose", "boolean", "each operator, too", default=False)
_SCALE: Final = Query("scale", "integer", "sizes in so many bytes: 1024 for KiB", 1)
_EDGE: Final = Query("edge", "string", "rows of this edge of the plan (its `id`) instead of output documents", "")
_CODE: Final = Query("code", "string", "those with this code alone, such as DocumentLate", "")
EVENTS: Final = "text/event-stream"
_CHANGED: Final = {200: "done; `request` is the id under which a repeat is known", 409: "refused, with the reason"}
_MADE: Final = {201: "created", 409: "refused, with the reason", 422: "all errors of the document"}
_JUDGED: Final = {200: "no errors", 422: "all errors of the document"}
_MODIFIED: Final = {**_CHANGED, 422: "all errors of the document"}
_SHOWN: Final = {200: "documents, not all of them committed yet", 409: "it does not run, or has no such edge"}
_WRITTEN: Final = {200: "written", 422: "what is wrong with it"}
_DRAWN: Final = {
    200: "a page",
    400: "a page with the error",
    404: "a page with the error",
    409: "a page with the error",
}
_LETTERS: Final = {
    200: "the letters",
    404: "there is no such processor, or no queue that can be read here",
    409: "the brokers refuse",
}
_TRIED: Final = {
    200: "what came out",
    409: "it failed, or reaches outside",
    422: "all errors of the document",
    429: "others are tried out",
}
_REDRIVEN: Final = {
    200: "how many letters and corrections",
    404: "there is no such processor, or the service has no settings of its data",
    409: "why not",
    429: "others run",
}
_BEGUN: Final = {
    202: "it runs, GET shows its verdict",
    404: "there is no such processor, or the service has no settings of its data",
    409: "one runs already",
    429: "others run",
}
_TESTED: Final = {200: "it answers", 404: "there is none of this name", 409: "it does not answer, and why"}
_ONE: Final = {200: "as it is known", 404: "there is none of this name"}

_CONSOLE: Final = "/console/processors/{name}"
FOLDERS: Final = ("/console", "/console/processors")
"""Addresses above those of pages: the first page is meant."""
_PAGES: Final[tuple[tuple[str, str, str, Role | None], ...]] = (
    ("/", "page_processors", "processors", None),
    (_CONSOLE, "page_processor", "one processor, its graph with figures", None),
    (f"{_CONSOLE}/checkpoints", "page_checkpoints", "its checkpoints", None),
    (f"{_CONSOLE}/time", "page_time", "event time, and what holds the watermark", None),
    (f"{_CONSOLE}/sample", "page_sample", "rows of an edge, or output", None),
    (f"{_CONSOLE}/dead-letters", "page_letters", "late records and other dead letters", None),
    (f"{_CONSOLE}/verdict", "page_verdict", "its last audit and redrive", None),
    (f"{_CONSOLE}/logs", "page_logs", "log lines", None),
    (f"{_CONSOLE}/document", "page_document", "its document", None),
    ("/console/connections", "page_connections", "connections", None),
    ("/console/workers", "page_workers", "workers", None),
    ("/console/audit", "page_audit", "who changed what", "admin"),
)
CONSOLE_HEADER: Final = "Tidemark-Console"
"""Of requests by the console's script; browsers send it for no other site."""
REQUEST_HEADER: Final = "Idempotency-Key"
"""Of a change: its id."""
JOB_HEADER: Final = "Tidemark-Job"
"""Of a change of a processor: the job that who asks has seen."""
REPLACES_HEADER: Final = "Tidemark-Replaces"
"""Of a change of a connection: the digest of the one that it was made from."""
ID_HEADERS: Final = (REQUEST_HEADER, JOB_HEADER, REPLACES_HEADER)
"""Those that go into messages."""
LOGIN: Final = "/console/login"
BEGIN: Final = f"{LOGIN}/begin"
DONE: Final = f"{LOGIN}/done"
"""Where the provider sends browsers back to."""
TOKEN_PROMPT: Final = "/token"  # noqa: S105 - a path
"""Where a browser asks for a token. At the root: browsers send what was given at a prompt for what lies beside it and below."""
ASSETS: Final = {"console.css": "text/css", "console.js": "text/javascript", "completion.js": "text/javascript"}

ROUTES: Final = (
    Route("GET", "/healthz", "liveness", "Whether the process lives", open=True),
    Route("GET", "/readyz", "readiness", "Whether Kafka answers and all is known", answers={200: "ready", 503: "not ready, and why"}),
    Route("GET", "/openapi.json", "openapi", "This description"),
    *(Route("GET", path, page, f"Console: {text}", content="text/html", needs=needs, answers=_DRAWN) for path, page, text, needs in _PAGES),
    *(Route("GET", f"/console/{name}", f"asset_{name.removeprefix('console.').replace('.', '_')}", f"Console: {kind}", content=kind,
            open=kind == "text/css")
      for name, kind in ASSETS.items()),
    Route("GET", "/v1/processors", "processors", "All processors"),
    Route("POST", "/v1/processors", "create", "Register a processor", CreateBody, answers=_MADE),
    Route("POST", "/v1/validate", "validate", "Judge a document", DocumentBody, answers=_JUDGED, needs="viewer"),
    Route("POST", "/v1/complete", "complete", "What may stand at a place of a document", CompleteBody,
          answers={200: "`proposals`, each of which takes the place of `before` and `after`"}, needs="viewer", changes=False),
    Route("POST", "/v1/try", "try_out", "Run a document's stages over some records, and write nothing", TryBody, answers=_TRIED),
    Route("GET", "/v1/processors/{name}", "processor", "One processor", answers=_ONE),
    Route("PATCH", "/v1/processors/{name}", "modify", "Change document or parallelism", ModifyBody, answers=_MODIFIED),
    Route("DELETE", "/v1/processors/{name}", "drop", "Forget a stopped processor and what it stored", answers=_CHANGED, needs="admin"),
    Route("POST", "/v1/processors/{name}/start", "start", "Start it", StartBody, answers=_CHANGED),
    Route("POST", "/v1/processors/{name}/stop", "stop", "Stop or drain it", StopBody, answers=_CHANGED),
    Route("POST", "/v1/processors/{name}/skip", "skip", "Pass over what a target refuses of a commit", SkipBody, answers=_CHANGED),
    Route("GET", "/v1/processors/{name}/stats", "stats", "Statistics", query=(_VERBOSE, _SCALE), answers=_ONE),
    Route("GET", "/v1/processors/{name}/watermark", "watermark", "What holds its watermark back now", answers=_ONE),
    Route("GET", "/v1/processors/{name}/sample", "sample", "Some output documents of a running processor, or rows of an edge",
          query=(_LIMIT, _EDGE), answers=_SHOWN),
    Route("GET", "/v1/processors/{name}/logs", "logs", "What services have logged about it", query=(_LINES,), answers=_ONE),
    Route("GET", "/v1/processors/{name}/plan", "plan", "Its vertices with their figures, and edges", answers=_ONE),
    Route("GET", "/v1/processors/{name}/checkpoints", "checkpoints", "Its checkpoints, the newest first; those that are kept",
          query=(_MANY,), answers=_ONE),
    Route("POST", "/v1/processors/{name}/checkpoints", "keep", "Keep its last checkpoint under a name", KeepBody, answers=_CHANGED),
    Route("DELETE", "/v1/processors/{name}/checkpoints/{checkpoint}", "forget", "Forget a kept checkpoint", answers=_CHANGED),
    Route("GET", "/v1/processors/{name}/history", "history", "Event time and lag of the last minutes", answers=_ONE),
    Route("GET", "/v1/processors/{name}/dead-letters", "letters", "Its newest dead letters, late records among them", query=(_MANY, _CODE),
          answers=_LETTERS),
    Route("POST", "/v1/processors/{name}/redrive", "work_redrive", "Late records through the windows that they missed, each once",
          EmptyBody, answers=_REDRIVEN),
    Route("GET", "/v1/processors/{name}/redrive", "work_redrive_state", "Its last redrive", answers=_ONE),
    Route("POST", "/v1/processors/{name}/audit", "work_audit", "Begin to check that each record counted once", EmptyBody,
          answers=_BEGUN),
    Route("GET", "/v1/processors/{name}/audit", "work_audit_state", "Its last audit, and whether one runs", answers=_ONE),
    Route("GET", "/v1/processors/{name}/live", "live", "Its plan once a second, as server-sent events", answers=_ONE, content=EVENTS),
    Route("GET", "/v1/live", "live_all", "All processors once a second, as server-sent events", content=EVENTS),
    Route("GET", "/v1/user", "user", "Who asks: name, and rights"),
    Route("GET", "/v1/login", "sign_on", "Where the command line logs in; empty where it cannot", open=True),
    Route("GET", "/v1/workers", "workers", "Workers, their slots and what they host"),
    Route("GET", "/v1/audit", "audit", "Who changed what, or tried to, here and lately", query=(_DEEDS,), needs="admin"),
    Route("GET", "/v1/connections", "connections", "The registry of connections, without secrets"),
    Route("PUT", "/v1/connections/{name}", "connect", "Write a connection", dict[str, Any], answers=_WRITTEN, needs="admin"),
    Route("POST", "/v1/connections/{name}/test", "probe", "Ask its other side for a sign of life", EmptyBody, answers=_TESTED),
    Route("DELETE", "/v1/connections/{name}", "disconnect", "Delete a connection", answers=_CHANGED, needs="admin"),
)  # fmt: skip

_LED: Final = {
    302: "to the provider, or to the page that was asked for",
    400: "a page with the error",
    503: "a page with the error",
}
_NEXT: Final = Query("next", "string", "the page to return to", "/")
LOGIN_ROUTES: Final = (
    Route("GET", LOGIN, "login_page", "Console: how to log in", content="text/html", query=(_NEXT,), open=True),
    Route("GET", BEGIN, "login_begin", "Console: to the provider", content="text/html", query=(_NEXT,), open=True, answers=_LED),
    Route("GET", DONE, "login_done", "Console: from the provider", content="text/html", open=True, answers=_LED),
    Route("GET", TOKEN_PROMPT, "login_token", "Console: a token at the prompt", content="text/html", query=(_NEXT,), answers=_LED),
    Route("POST", "/console/logout", "login_end", "Console: end the session", answers={200: "`next`: where to go"}, open=True),
)  # fmt: skip
"""Of an installation whose console logs in by a provider."""
