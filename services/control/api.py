"""Handlers of the routes. A read answers from the read model and says if that may be old; a change asks the coordinator."""

import difflib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from tidemark.services.control import commands as do
from tidemark.services.control import routes
from tidemark.services.control.audit import DEEDS_MAX, NAMED, Audit
from tidemark.services.control.history import CHECKPOINTS_MAX
from tidemark.services.control.logs import lines_of
from tidemark.services.control.openapi import describe
from tidemark.services.control.outside import letters_of, newest_of, try_connection
from tidemark.services.control.plan import Plans
from tidemark.services.control.programs import Programs
from tidemark.services.control.readmodel import LOOK_MS, ReadModel
from tidemark.services.control.settings import ControlSettings
from tidemark.services.control.stats import (
    SCALE_MAX,
    beyond_clock,
    counts_are_final,
    mostly_dead,
    shown_time,
    shown_watermark,
    stats_of,
    task_stats,
)
from tidemark.services.control.works import WorkRoutes
from tidemark.shared.language.completion import complete
from tidemark.shared.language.documents import InvalidDocument
from tidemark.shared.language.documents.load import load
from tidemark.shared.language.redaction import connection_digest, redacted_document
from tidemark.shared.language.values import to_json
from tidemark.shared.model.ids import ProcessorName, TaskId
from tidemark.shared.model.messages import ProcessorStatus
from tidemark.shared.model.processors import document_digest
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.process.users import User
from tidemark.shared.process.web import (
    BAD_REQUEST,
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    STANDS,
    UNAVAILABLE,
    USER,
    Problem,
    Rule,
    allow,
    broker_away,
)
from tidemark.shared.runtime.watermark import explain_watermark

STALE_HEADER: Final = "Tidemark-Stale"
BEHIND: Final = web.RequestKey("behind", str)
"""Key of why what a request is told may not be all that is known."""
_EVENTS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
}
"""Of a stream: nginx holds back what a service sends, until it has some KiB, unless the last says otherwise."""
TRY: Final = ("tidemark.services.library.trial",)
TRY_S: Final = 60
"""Until a try-out is ended; its own bound is of processor time."""
COMPLETED_MAX: Final = 200_000
"""Characters of a document that is completed: it is read at each letter, on the service's loop."""
CHANGES_MAX: Final = 2_000
"""Lines of a comparison."""


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A response whose body is a value as JSON."""
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json", headers=headers or {}
    )


@dataclass(slots=True)
class Api:
    """Handlers, by the names that the routes give."""

    model: ReadModel
    commands: do.Commands
    settings: ControlSettings
    clock: Clock
    executor: Executor
    audit_log: Audit
    plans: Plans
    agents_state: Callable[[], str] | None = None
    """The state of the agents, for readiness; None without agents."""
    issuer_state: Callable[[], str] | None = None
    """Likewise of the OpenID provider."""
    served: Sequence[routes.Route] = routes.ROUTES
    """Those that are served."""
    ending: bool = False
    """The service stops: live events end."""
    programs: Programs = field(init=False)
    works: WorkRoutes = field(init=False)
    """Of audits and redrives."""

    def __post_init__(self) -> None:
        """No program runs yet."""
        self.programs = Programs(self.executor)

    # --- about the service ------------------------------------------------------------------------------------------------

    async def liveness(self, _request: web.Request, _body: object) -> web.Response:
        """Answers as long as the process does."""
        return answer({"alive": True})

    async def readiness(self, _request: web.Request, _body: object) -> web.Response:
        """Whether Kafka answers and the read model is whole."""
        away = self.model.away()
        state = {
            "ready": self.model.ready() and not away,
            "kafka": away or "answers",
            "agents": self.agents_state() if self.agents_state is not None else "off",
            "issuer": self.issuer_state() if self.issuer_state is not None else "off",
        }
        return answer(state, 200 if state["ready"] else UNAVAILABLE)

    async def openapi(self, _request: web.Request, _body: object) -> web.Response:
        """The description of the routes."""
        return answer(describe(self.served))

    async def user(self, request: web.Request, _body: object) -> web.Response:
        """The user of the request."""
        return answer({"name": request[USER].name, "role": request[USER].role})

    async def sign_on(self, _request: web.Request, _body: object) -> web.Response:
        """The provider and its client for commands; who asks has no token yet."""
        oidc = self.settings.oidc
        there = bool(oidc.issuer and oidc.device_client_id)
        found = (oidc.issuer, oidc.device_client_id, oidc.scopes) if there else ("", "", ())
        return answer(dict(zip(("issuer", "clientId", "scopes"), found, strict=True)))

    # --- reading ----------------------------------------------------------------------------------------------------------

    async def processors(self, request: web.Request, _body: object) -> web.Response:
        """Those that the user sees, by name."""
        self._known()
        return self._told(self._all(request[USER]))

    async def processor(self, request: web.Request, _body: object) -> web.Response:
        """One, with its document."""
        status = self.status_of(request)
        beats = self.model.tasks(status)
        shown = self._shown(status) | {
            "document": await self.executor.blocking(_document, status.document),
            "documentDigest": document_digest(status.document),
            "parallelism": status.parallelism,
            "tasks": [
                {"vertex": v, "index": i, "worker": place, **task_stats(beats.get(TaskId(v, i)))}
                for v, i, place in status.tasks
            ],
            "kept": _kept(status),
        }
        return self._told(shown)

    async def stats(self, request: web.Request, _body: object) -> web.Response:
        """A processor's figures, under the names that Atlas gives them."""
        status = self.status_of(request)
        verbose, scale = _flag(request, "verbose"), _number(request, "scale", 1, SCALE_MAX)
        await self._final(status)
        now_ms = self.clock.now_ms()
        return self._told({"stats": stats_of(status, self.model.counted(status), now_ms, verbose=verbose, scale=scale)})

    async def _final(self, status: ProcessorStatus) -> None:
        """Behind the end of the input: wait for its tasks' last counts, which come with heartbeats, but no longer than for all else."""
        until_ms = self.clock.monotonic_ms() + self.settings.shown_ms_max
        while status.state == "FINISHED" and self.model.heard(status):
            if counts_are_final(status, self.model.counted(status).values()) or self.clock.monotonic_ms() >= until_ms:
                return
            await self.clock.sleep_ms(LOOK_MS)

    async def watermark(self, request: web.Request, _body: object) -> web.Response:
        """From the sinks to the split that is furthest behind."""
        status = self.status_of(request)
        return self._told(
            {"watermark": shown_watermark(explain_watermark(status, self.model.tasks(status), self.clock.now_ms()))}
        )

    async def sample(self, request: web.Request, _body: object) -> web.Response:
        """Some output, or rows of an edge."""
        status = self.status_of(request)
        if reason := self.model.away():
            raise broker_away(reason)
        limit, edge = _number(request, "limit", 10, self.settings.sample_max), request.query.get("edge", "")
        if not edge:
            return self._told({"documents": await self.commands.ask_sample(status.name, limit)})
        found = await self.commands.ask_edge(status.name, edge, limit)
        rows = [{**row, "eventTime": _time(row["eventTime"])} for row in found.rows]
        return self._told({"edge": edge, "rows": rows, "troubles": found.troubles})

    async def logs(self, request: web.Request, _body: object) -> web.Response:
        """Lines about the processor."""
        status = self.status_of(request)
        if not self.settings.logs:
            remedy = "look at what the services' containers have printed"
            raise Problem(NOT_FOUND, "logs", "the services' log files on this machine", "they are not here", remedy)
        limit = _number(request, "limit", 100, self.settings.log_lines_max)
        folder, bytes_max = Path(self.settings.logs), self.settings.log_bytes_max
        return self._told({"lines": await self.executor.blocking(lines_of, folder, status, limit, bytes_max)})

    async def plan(self, request: web.Request, _body: object) -> web.Response:
        """The plan of a processor: its vertices and edges, with their figures."""
        return self._told(await self._plan(self.status_of(request)))

    async def checkpoints(self, request: web.Request, _body: object) -> web.Response:
        """Those of which this process has heard, and those that users named."""
        status = self.status_of(request)
        limit = _number(request, "limit", 100, CHECKPOINTS_MAX)
        found = reversed(self.model.history.of(status.job).checkpoints.values())
        shown = [each.shown(status.released) for each in islice(found, limit)]
        return self._told({"checkpoints": shown, "kept": _kept(status)})

    async def history(self, request: web.Request, _body: object) -> web.Response:
        """The measured points of a processor, by time."""
        points = [
            {
                "time": shown_time(point.at_ms),
                "watermark": None if point.watermark_ms is None else shown_time(point.watermark_ms),
                "sourceWatermark": None if point.source_ms is None else shown_time(point.source_ms),
                "processingTimeLagMillis": point.lag_ms,
            }
            for point in self.model.history.of(self.status_of(request).job).points
        ]
        return self._told({"points": points})

    async def letters(self, request: web.Request, _body: object) -> web.Response:
        """Those written last, the newest first, and how many of them have each code."""
        status = self.status_of(request)
        limit, code = _number(request, "limit", 100, self.settings.log_lines_max), request.query.get("code", "")
        processor, connections = await self.commands.check(status.document), self.commands.connect_briefly()
        try:
            found = await letters_of(processor, connections, self.settings.log_lines_max)
        finally:
            await connections.close()
        letters = [to_json(each, canonical=False) for each in found if each.get("processorName") in (None, status.name)]
        letters.sort(key=lambda letter: str(letter.get("dlqTime")))
        codes = Counter(_code(each) for each in letters)
        shown = [each for each in reversed(letters) if code in ("", _code(each))]
        return self._told({"letters": shown[:limit], "codes": dict(codes.most_common())})

    async def try_out(self, request: web.Request, body: routes.TryBody) -> web.Response:
        """In a process of its own, on the caller's records or the newest of its topic."""
        processor, rows, others = await self.commands.check(body.document, request[USER]), body.rows, 0
        if rows is None:
            connections = self.commands.connect_briefly()
            try:
                rows, others = await newest_of(processor, connections, body.limit)
            finally:
                await connections.close()
        asked = {"document": do.text_of(body.document), "rows": rows, "limit": body.limit}
        status, said, why = await self.programs.run(
            TRY, msgspec.json.encode(asked), TRY_S, {}, lambda: request.transport is not None
        )
        if status != 0:
            raise Problem(CONFLICT, "document", "a document that can be tried out here", why)
        found = msgspec.json.decode(said)
        counts = f"{found.pop('out'):,} out, {found.pop('dead'):,} dead letters"
        failed = f"; it failed: {found['error']}" if "error" in found else ""
        unread = f", {others:,} more were no documents" if others else ""
        return answer({"answers": f"{len(rows):,} records{unread}; {counts}{failed}", **found})

    async def live(self, request: web.Request, _body: object) -> web.StreamResponse:
        """The plan, as long as the client listens and the processor is there."""
        self.status_of(request)
        return await self._stream(request, lambda: self._plan(self.status_of(request)))

    async def live_all(self, request: web.Request, _body: object) -> web.StreamResponse:
        """The list, as long as the client listens."""
        self._known()

        async def look() -> dict[str, Any]:
            return self._all(request[USER])

        return await self._stream(request, look)

    async def workers(self, request: web.Request, _body: object) -> web.Response:
        """Those that were heard of lately, with the tasks that the user sees."""
        self._known()
        user = request[USER]
        workers = [
            {
                "place": beat.place,
                "service": beat.service,
                "host": beat.host,
                "pid": beat.pid,
                "slots": beat.slots,
                "processors": sorted({task.name for task in beat.tasks if user.sees(task.name)}),
                "tasks": [f"{t.name}: {t.vertex}/{t.index}" for t in beat.tasks if user.sees(t.name)],
            }
            for beat in self.model.living()
        ]
        return self._told({"workers": workers})

    async def audit(self, request: web.Request, _body: object) -> web.Response:
        """The latest deeds on processors that the user administers; a user without a namespace sees those on no processor, too."""
        limit, user = _number(request, "limit", 100, DEEDS_MAX), request[USER]
        seen = (deed for deed in self.audit_log.deeds if user.may("admin", deed["processor"]))
        return answer({"deeds": list(islice(seen, limit))})

    async def connections(self, request: web.Request, _body: object) -> web.Response:
        """Those of the registry that the user sees."""
        self._known()
        shown = self._connections(request[USER])
        return self._told(
            {"connections": shown, "digests": {name: connection_digest(each) for name, each in shown.items()}}
        )

    # --- changing ---------------------------------------------------------------------------------------------------------

    async def validate(self, request: web.Request, body: routes.DocumentBody) -> web.Response:
        """Judged against the registry's connections, and compared with what a processor has."""
        await self.commands.check(body.document, request[USER])
        if not body.against:
            return answer({"valid": True})
        allow(request[USER], Rule(processor=body.against))
        status = self.status_named(body.against)
        changes = await self.executor.blocking(_changes, status.document, body.document)
        return answer({"valid": True, "changes": changes})

    async def complete(self, request: web.Request, body: routes.CompleteBody) -> web.Response:
        """From the schema of documents, the registry's connections, and the document itself."""
        if len(body.before) + len(body.after) > COMPLETED_MAX:
            finding = f"{len(body.before) + len(body.after)}"
            raise Problem(BAD_REQUEST, "document", f"at most {COMPLETED_MAX} characters", finding)
        known = {name: str(each.get("type", "")) for name, each in self._connections(request[USER]).items()}
        found = complete(body.before, body.after, known)
        return answer(msgspec.to_builtins(found))

    async def create(self, request: web.Request, body: routes.CreateBody) -> web.Response:
        """Create a processor."""
        request[NAMED] = body.name
        if not request[USER].may("operator", body.name):
            user = request[USER]
            raise Problem(FORBIDDEN, "name", "a name in a namespace of yours", f"{user.name}, who is {user.role}")
        command = do.Create(
            name=body.name,
            request=_request_id(request),
            document=body.document,
            parallelism=body.parallelism,
            start=body.start,
        )
        done = await self.commands.carry_out(command, request[USER])
        return answer({"request": done}, 201, {"Location": f"/v1/processors/{body.name}"})

    async def modify(self, request: web.Request, body: routes.ModifyBody) -> web.Response:
        """Give a processor another document."""
        command = do.Modify(
            **_asked(request),
            document=body.document,
            parallelism=body.parallelism,
            resume=body.resumeFromCheckpoint,
            replaces=body.replaces,
        )
        return answer({"request": await self.commands.carry_out(command, request[USER])})

    async def drop(self, request: web.Request, _body: object) -> web.Response:
        """Forget a processor that is stopped."""
        return await self._do(do.DropStopped(**_asked(request)))

    async def start(self, request: web.Request, body: routes.StartBody) -> web.Response:
        """Start a processor."""
        return await self._do(do.Start(**_asked(request), resume=body.resume, checkpoint=body.checkpoint))

    async def stop(self, request: web.Request, body: routes.StopBody) -> web.Response:
        """Stop a processor."""
        return await self._do(do.Stop(**_asked(request), drain=body.drain, until=body.until))

    async def skip(self, request: web.Request, body: routes.SkipBody) -> web.Response:
        """Pass over the rows that a target refuses."""
        return await self._do(do.SkipCommit(**_asked(request), epoch=body.epoch, vertex=body.vertex))

    async def keep(self, request: web.Request, body: routes.KeepBody) -> web.Response:
        """Give the last checkpoint a name."""
        return await self._do(do.Keep(**_asked(request), checkpoint=body.name))

    async def forget(self, request: web.Request, _body: object) -> web.Response:
        """Take a kept checkpoint's name."""
        return await self._do(do.Forget(**_asked(request), checkpoint=request.match_info["checkpoint"]))

    async def connect(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        """Write a connection."""
        return await self._connect(request, body)

    async def disconnect(self, request: web.Request, _body: object) -> web.Response:
        """Delete a connection."""
        return await self._connect(request, None)

    async def _connect(self, request: web.Request, connection: dict[str, Any] | None) -> web.Response:
        name, replaces = request.match_info["name"], request.headers.get(routes.REPLACES_HEADER, "")
        command = do.Connect(name=name, request=_request_id(request), connection=connection, replaces=replaces)
        return await self._do(command)

    async def probe(self, request: web.Request, _body: object) -> web.Response:
        """Asked from here, as workers would."""
        self._known()
        name, connections = request.match_info["name"], self.commands.connect_briefly()
        connection = self.commands.registered().get(name)
        if connection is None:
            raise Problem(NOT_FOUND, "name", "a connection of the registry", f"there is no connection named {name}")
        try:
            said = await try_connection(connection, connections, self.executor)
        finally:
            await connections.close()
        return answer({"answers": said})

    async def _do(self, command: do.Command) -> web.Response:
        return answer({"request": await self.commands.carry_out(command)})

    # --- parts ------------------------------------------------------------------------------------------------------------

    def _known(self) -> None:
        """503 until everything has been read once."""
        if not self.model.ready():
            raise broker_away(self.model.away() or "the registry is still being read")

    def _all(self, user: User) -> dict[str, Any]:
        statuses = sorted(self.model.statuses.items())
        return {"processors": [self._shown(status) for name, status in statuses if user.sees(name)]}

    def _connections(self, user: User) -> dict[str, Any]:
        return {name: each for name, each in self.model.connections.items() if user.sees_connection(name)}

    async def _plan(self, status: ProcessorStatus) -> dict[str, Any]:
        return await self.plans.shown(status, self.model.tasks(status), self.model.history)

    async def _stream(self, request: web.Request, look: Callable[[], Awaitable[dict[str, Any]]]) -> web.StreamResponse:
        user, stands = request[USER], request.get(STANDS, lambda: True)
        stream = web.StreamResponse(headers=_EVENTS)
        await stream.prepare(request)
        with suppress(ConnectionError):  # The listener left.
            while not self.ending and self.clock.now_ms() < user.until_ms and stands():
                await stream.write(b"data: " + msgspec.json.encode(await look()) + b"\n\n")
                await self.clock.sleep_ms(self.settings.look_ms)
        return stream

    def status_of(self, request: web.Request) -> ProcessorStatus:
        """Of the processor that the path names. Problem."""
        return self.status_named(request.match_info["name"])

    def status_named(self, text: str) -> ProcessorStatus:
        """Of a processor that is there. Problem."""
        self._known()
        name = ProcessorName(text)
        status = self.model.statuses.get(name)
        if status is None:
            finding = f"there is no processor named {name}"
            raise Problem(NOT_FOUND, "name", "a processor that exists", finding)
        return status

    def _told(self, value: object) -> web.Response:
        """The answer, with a header that says why it may be old."""
        away = self.model.away()
        return answer(value, headers={STALE_HEADER: away.replace("\n", " ")[:200]} if away else None)

    def _shown(self, status: ProcessorStatus) -> dict[str, Any]:
        tasks = self.model.tasks(status)
        watermarks = [b.output_watermark_ms for t, b in tasks.items() if status.services.get(t.vertex) == "source"]
        doubts = (beyond_clock(status, tasks, self.clock.now_ms()), mostly_dead(status, tasks))
        return {
            "name": status.name,
            "state": status.state,
            "reason": status.reason or "; ".join(said for said in doubts if said),
            "job": status.job,
            "generation": status.generation,
            "planVersion": status.plan_version,
            "epoch": status.last,
            "releasedEpoch": status.released,
            "commits": status.commits,
            "watermark": shown_time(min(watermarks, default=MIN_TIME)),
            "inputPerSecond": self._input_rate(status),
            "lagMillis": max((beat.counters.get("lagMs", 0) for beat in tasks.values()), default=0),
        }

    def _input_rate(self, status: ProcessorStatus) -> float | None:
        job = self.model.history.of(status.job)
        found = [job.rates(v).get("inRows") for v, service in status.services.items() if service == "source"]
        known = [each for each in found if each is not None]
        return round(sum(known), 1) if known and status.state == "RUNNING" else None


def _request_id(request: web.Request) -> str:
    return request.headers.get(routes.REQUEST_HEADER, "")


def _asked(request: web.Request) -> dict[str, str]:
    """Of a request about a processor that is there: its name, the request's id, the job that who asks has seen."""
    job = request.headers.get(routes.JOB_HEADER, "")
    return {"name": request.match_info["name"], "request": _request_id(request), "job": job}


def _code(letter: Any) -> str:
    info = letter.get("errInfo")
    return str(info.get("code") or "") if isinstance(info, dict) else ""


def _kept(status: ProcessorStatus) -> list[dict[str, Any]]:
    return [{"name": name, "epoch": epoch} for name, epoch in status.checkpoints]


def _document(text: str) -> Any:
    """As it may be shown; null if it is of another release, which reads it otherwise."""
    try:
        return redacted_document(load(text)[0])
    except InvalidDocument:
        return None


def _changes(running: str, new: do.Document) -> list[str]:
    """The differences of two documents, line by line."""
    return list(islice(difflib.unified_diff(_lines(running), _lines(new), "running", "new", lineterm=""), CHANGES_MAX))


def _lines(document: do.Document) -> list[str]:
    """A document's lines, as far as they may be shown."""
    tree = load(document)[0] if isinstance(document, str) else document
    return json.dumps(redacted_document(tree), indent=2, ensure_ascii=False).splitlines()


def _number(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(most)) or not 1 <= int(text) <= most:
        raise Problem(BAD_REQUEST, f"query {name}", f"a number from 1 to {most}", repr(text))
    return int(text)


def _time(time_ms: int | None) -> str | None:
    return None if time_ms is None else shown_time(time_ms)


def _flag(request: web.Request, name: str) -> bool:
    text = request.query.get(name, "false")
    if text not in ("true", "false"):
        raise Problem(BAD_REQUEST, f"query {name}", "true or false", repr(text))
    return text == "true"
