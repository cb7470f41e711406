"""Audits and redrives as a service of the installation: a program each, for whoever asks by REST, or from time to time.

Their state stands in a topic, so each replica tells the same, and one that comes later goes on: a work of which nobody has said for
`work_silent_ms` that it still runs is begun again by the one that notices. Both may be repeated at any time. The verdict names the last
checkpoint that was compared: an audit at an interval waits until there is a later one.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web
from msgspec.structs import replace

from tidemark.services.control.programs import Programs
from tidemark.services.control.readmodel import Followed, ReadModel
from tidemark.services.control.routes import JOB_HEADER, REQUEST_HEADER
from tidemark.services.control.settings import ControlSettings
from tidemark.services.control.stats import shown_time
from tidemark.shared.model.formats import WORK, JsonCodec
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import ProcessorStatus, another_job
from tidemark.shared.model.verdicts import AuditWork, Kind, ProgramVerdict
from tidemark.shared.ports.clock import Clock, Executor, Handle
from tidemark.shared.ports.log import Log, LogError, LogRecord, NewRecord, TopicPartition
from tidemark.shared.process.web import CONFLICT, NOT_FOUND, Problem, broker_away
from tidemark.shared.runtime.measures import Measure
from tidemark.shared.runtime.topics import LATEST_CONFIG, Topics

_log = structlog.get_logger()
PROGRAM: Final = "tidemark.services.audit.program"
NEEDED: Final = ("TIDEMARK_STORE", "TIDEMARK_BLOBS")
_CODEC: Final[JsonCodec[AuditWork]] = JsonCodec(WORK, AuditWork)


def _untold(*_: object, **__: object) -> None:
    """There is no topic of events."""


@dataclass(slots=True)
class Works:
    """Of one control service. `place`: its name, which people see. `tell`: `Events.tell`."""

    log: Log
    topics: Topics
    clock: Clock
    executor: Executor
    settings: ControlSettings
    model: ReadModel
    place: str = "control"
    tell: Callable[..., None] = _untold
    programs: Programs = field(init=False)
    known: dict[tuple[Kind, ProcessorName], AuditWork] = field(default_factory=dict)
    """The last record of each."""
    _own: dict[tuple[Kind, ProcessorName], Handle] = field(default_factory=dict)
    """Those that run here."""
    _begins: dict[tuple[Kind, ProcessorName], asyncio.Event] = field(default_factory=dict)
    """Those whose first record is being sent; the event is its end."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Behind the end of a work nobody says that it runs."""
    _told_ms: int = 0
    """When this service has last told of its own, by the monotonic clock."""
    _heard_ms: dict[tuple[Kind, ProcessorName], int] = field(default_factory=dict)
    """When each was heard of last, by the monotonic clock: other services' times are by their clocks. One that had ended before this
    service began: when it ended, as far as the clocks agree."""
    _topic: Followed = field(init=False)

    def __post_init__(self) -> None:
        """None runs."""
        self.programs = Programs(self.executor)
        self._topic = self.model.follow(self.topics.works, self._take, LATEST_CONFIG)

    def start(self, on_error: Callable[[BaseException], None]) -> list[Handle]:
        """Look for what is to be done, from now on."""
        return [self.executor.spawn(self._look(), "look for works", on_error)]

    def stop(self) -> None:
        """End the programs. Another service, or the next one, begins their work again."""
        for handle in self._own.values():
            handle.cancel()
        self.programs.stop()

    def of(self, kind: Kind, status: ProcessorStatus) -> AuditWork | None:
        """The state of a processor's work. Problem until the topic has been read."""
        if not self._topic.read:
            raise broker_away("the topic of audits and redrives is still being read")
        work = self.known.get((kind, status.name))
        return work if work is not None and work.job == status.job else None

    async def begin(self, kind: Kind, status: ProcessorStatus, request: str = "") -> None:
        """Begin one, once the brokers know of it; not again for the same request. Problem where it cannot be, or another one runs."""
        lacking = [name for name in NEEDED if not os.environ.get(name)]
        if lacking:
            expected = f"{' and '.join(NEEDED)} of this service, as the coordinator has them"
            raise Problem(
                NOT_FOUND, kind, expected, f"{' and '.join(lacking)} not set: it cannot read the installation's data"
            )
        key = kind, status.name
        while (other := self._begins.get(key)) is not None:  # what it leads to is known when the brokers have answered
            await other.wait()
        self._begins[key] = asyncio.Event()
        try:
            await self._begin(kind, status, request)
        finally:
            self._begins.pop(key).set()

    async def _begin(self, kind: Kind, status: ProcessorStatus, request: str) -> None:
        before = self.of(kind, status)
        if (
            before is not None
            and request
            and before.request == request
            and (not before.running or not self._silent(before))
        ):
            return
        if before is not None and before.running and not self._silent(before):
            raise Problem(
                CONFLICT,
                status.name,
                f"no {kind} under way",
                f"one that began at {shown_time(before.began_ms)}, by {before.by}",
            )
        self.programs.check_room()
        now_ms = self.clock.now_ms()
        verdict = None if before is None else before.verdict
        if before is not None and before.running:  # left by another service: it is the same work
            request = request or before.request
        work = AuditWork(
            kind, status.name, status.job, status.released, True, self.place, now_ms, now_ms, verdict, request=request
        )
        try:
            await self._send(work)
        except LogError as error:  # if the record is there none the less, it is a work that its service has left
            raise broker_away(str(error)) from error
        self._know(work)
        self._own[kind, status.name] = self.executor.spawn(self._carry_out(work), f"{kind} {status.name}", _log_broken)

    def _know(self, work: AuditWork) -> None:
        key = work.kind, work.name
        self.known[key], self._heard_ms[key] = work, self.clock.monotonic_ms()

    async def ended(self, kind: Kind, status: ProcessorStatus) -> AuditWork | None:
        """Wait for the end of one that runs, here or at another replica; None: there is none any more. It runs still: this service ends."""
        while (work := self.of(kind, status)) is not None and work.running:
            if (own := self._own.get((kind, status.name))) is None:
                await self.clock.sleep_ms(self.settings.look_ms)
            else:
                await own.join()
                return self.of(kind, status)
        return work

    def measures(self) -> Iterator[Measure]:
        """The verdicts of audits."""
        for (kind, name), work in self.known.items():
            if kind == "audit" and work.verdict is not None:
                yield Measure("audited_epoch", work.verdict.epoch, {"processor": name})
                yield Measure("audit_outcome", 1, {"processor": name, "outcome": work.verdict.outcome})

    # --- work -------------------------------------------------------------------------------------------------------------

    async def _carry_out(self, work: AuditWork) -> None:
        try:
            verdict = await self._judged(work)
            ended = replace(work, running=False, told_ms=self.clock.now_ms(), verdict=verdict)
            _log.info("control.verdict", processor=work.name, of=work.kind, outcome=verdict.outcome, why=verdict.why)
            async with self._turn:
                del self._own[work.kind, work.name]
                self._know(self.known[work.kind, work.name])
                await self._publish(ended)
            self._know(ended)
            self._tell(ended)
        except Exception:  # a fault of Tidemark's: nobody holds the work for under way, or its request for done
            self._know(replace(work, running=False, request=""))
            raise
        finally:
            self._own.pop((work.kind, work.name), None)

    def _tell(self, work: AuditWork) -> None:
        """Of a work that has ended: by its replica and by each that reads of it, under the same id, so none is lost with a service."""
        if work.verdict is not None and not work.running:
            facts = {
                "of": work.kind,
                "outcome": work.verdict.outcome,
                "why": work.verdict.why,
                "epoch": work.verdict.epoch,
            }
            self.tell("verdict", f"{work.job}-{work.kind}-{work.began_ms}-{work.by}", work.name, **facts)

    async def _judged(self, work: AuditWork) -> ProgramVerdict:
        words = (PROGRAM, work.kind, work.name)
        try:
            status, said, why = await self.programs.run(words, b"", self.settings.work_s_max, os.environ)
            return msgspec.json.decode(said, type=ProgramVerdict) if status == 0 else ProgramVerdict("cannot", why)
        except (Problem, msgspec.DecodeError) as problem:
            return ProgramVerdict("cannot", str(getattr(problem, "finding", problem)))
        except OSError as error:
            _log.error("works.no_program", processor=work.name, of=work.kind, error=str(error))
            return ProgramVerdict("cannot", f"its program did not start: {error}")

    async def _publish(self, work: AuditWork) -> None:
        """Until the brokers have it."""
        while True:
            try:
                await self._send(work)
            except LogError as error:
                _log.warning("works.log_away", reason=str(error))
                await self.clock.sleep_ms(self.settings.retry_ms)
            else:
                return

    async def _send(self, work: AuditWork, *, gone: bool = False) -> None:
        writer = await self.log.writer("works")
        try:
            record = NewRecord(None if gone else _CODEC.encode(work), f"{work.kind}/{work.name}".encode())
            await (await writer.send(TopicPartition(self.topics.works, 0), record))
        finally:
            await writer.close()

    # --- looking ----------------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            await self.clock.sleep_ms(self.settings.look_ms)
            if not self._topic.read or not self.model.ready():
                continue
            try:
                await self._tell_of_own()
                await self._forget()
            except LogError as error:
                _log.warning("works.log_away", reason=str(error))
            for status in list(self.model.statuses.values()):
                for kind in self._wanted(status):
                    try:
                        await self.begin(kind, status)
                    except Problem as problem:
                        _log.info("works.not_begun", processor=status.name, of=kind, reason=problem.finding)

    def _wanted(self, status: ProcessorStatus) -> list[Kind]:
        """Works that begin without a request: those that their service has left, and an audit where it is time for one."""
        known = [work for kind in ("audit", "redrive") if (work := self.known.get((kind, status.name))) is not None]
        left = [w.kind for w in known if w.running and w.job == status.job and self._silent(w)]
        return left or (["audit"] if self._due(status) else [])

    def _due(self, status: ProcessorStatus) -> bool:
        """Whether there are later checkpoints than at the last audit, and that was long enough ago; one at a time."""
        if not self.settings.audit_interval_ms or not status.released or self.programs.under_way:
            return False
        work = self.known.get(("audit", status.name))
        if work is None or work.job != status.job or work.verdict is None:
            return work is None or not work.running
        later = status.released > work.released or work.verdict.outcome == "away"
        since_ms = self.clock.monotonic_ms() - self._heard_ms["audit", status.name]
        return not work.running and later and since_ms >= self.settings.audit_interval_ms

    def _silent(self, work: AuditWork) -> bool:
        """Whether the service that ran it has gone."""
        key, now_ms = (work.kind, work.name), self.clock.monotonic_ms()
        return key not in self._own and now_ms - self._heard_ms.get(key, now_ms) > self.settings.work_silent_ms

    async def _tell_of_own(self) -> None:
        monotonic_ms, now_ms = self.clock.monotonic_ms(), self.clock.now_ms()
        if monotonic_ms - self._told_ms < self.settings.work_silent_ms // 4:
            return
        self._told_ms = monotonic_ms
        for key in list(self._own):
            async with self._turn:
                if key in self._own:
                    self._know(replace(self.known[key], told_ms=now_ms))
                    await self._send(self.known[key])

    async def _forget(self) -> None:
        """Works of processors that were dropped."""
        for key in [key for key in self.known if key[1] not in self.model.statuses and key not in self._own]:
            await self._send(self.known[key], gone=True)
            self._drop(key)

    def _drop(self, key: tuple[Kind, ProcessorName]) -> None:
        self.known.pop(key, None)
        self._heard_ms.pop(key, None)

    def _take(self, record: LogRecord) -> None:
        word, _, name = (record.key or b"").decode(errors="replace").partition("/")
        kind: Kind = "redrive" if word == "redrive" else "audit"
        key = kind, ProcessorName(name)
        if key in self._own:
            return
        if record.value is None:
            self._drop(key)
            return
        work = self.model.unreadable.read(record, lambda found: _CODEC.decode(found.value or b""))
        if work is not None:
            self._know(work)
            if not work.running and not self._topic.read:
                since_ms = self.clock.now_ms() - work.told_ms
                # Below 0 where the clock was ahead then: nobody knows how long ago that was.
                self._heard_ms[key] -= since_ms if since_ms >= 0 else self.settings.audit_interval_ms
            self._tell(work)


def _log_broken(error: BaseException) -> None:
    _log.error("works.broken", error=repr(error), exc_info=error)


# --- routes -----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class WorkRoutes:
    """Handlers, by the names that the routes give."""

    works: Works
    status_of: Callable[[web.Request], ProcessorStatus]
    """Of a processor that is there. Problem."""
    answer: Callable[..., web.Response]

    async def work_audit(self, request: web.Request, _body: object) -> web.Response:
        """Begin an audit."""
        status = self.status_of(request)
        await self.works.begin("audit", status, self._asked(request, status))
        return self.answer(
            {"answers": "the audit runs; its verdict will be shown here", **self._shown("audit", status)}, 202
        )

    async def work_redrive(self, request: web.Request, _body: object) -> web.Response:
        """Carry one out, and wait for it."""
        status = self.status_of(request)
        await self.works.begin("redrive", status, self._asked(request, status))
        work = await self.works.ended("redrive", status)
        verdict = None if work is None or work.running else work.verdict
        if verdict is None or verdict.outcome != "done":
            gone = (
                "the processor was dropped, or began without state, meanwhile"
                if work is None
                else "the service was ended"
            )
            why = gone if verdict is None else verdict.why
            raise Problem(CONFLICT, status.name, "late records that can be redriven", why)
        told = f"{verdict.letters:,} late records redriven, {verdict.corrections:,} corrections in {verdict.topic}"
        shown = {"letters": verdict.letters, "corrections": verdict.corrections, "topic": verdict.topic}
        return self.answer({"answers": told, **shown})

    async def work_audit_state(self, request: web.Request, _body: object) -> web.Response:
        """How the last audit stands."""
        return self.answer(self._shown("audit", self.status_of(request)))

    async def work_redrive_state(self, request: web.Request, _body: object) -> web.Response:
        """How the last redrive stands."""
        return self.answer(self._shown("redrive", self.status_of(request)))

    def _asked(self, request: web.Request, status: ProcessorStatus) -> str:
        """The request's id. Problem where it is about another job than the processor has."""
        if changed := another_job(request.headers.get(JOB_HEADER, ""), status.job):
            raise Problem(CONFLICT, status.name, "the job that it has", f"it {changed}", "look at it again")
        return request.headers.get(REQUEST_HEADER, "")

    def _shown(self, kind: Kind, status: ProcessorStatus) -> dict[str, Any]:
        work = self.works.of(kind, status)
        if work is None:
            return {"running": False, "verdict": None}
        verdict = None if work.verdict is None else {**_EMPTY, **msgspec.to_builtins(work.verdict)}
        return {
            "running": work.running,
            "by": work.by,
            "began": shown_time(work.began_ms),
            "told": shown_time(work.told_ms),
            "verdict": verdict,
        }


_EMPTY: Final = {name: getattr(ProgramVerdict("held"), name) for name in ProgramVerdict.__struct_fields__}
"""A verdict as it is kept has no fields with defaults."""
