"""An epoch as an OpenTelemetry trace, from the reads to the release (`TIDEMARK_TRACES`): sent as OTLP, JSON over HTTP.

A trace's and its root's ids follow from job and epoch. So every process makes its own spans of it, and no message carries them. A span
is the time between two phases (`Moment`). Nothing waits for the collector: spans beyond a bound are dropped, and counted in the log.
"""

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import urlsplit

import structlog

from tidemark.shared.model.ids import Epoch, JobId, TaskId
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.process.settings import TraceSettings
from tidemark.shared.runtime.context import Moment, Phase

_log = structlog.get_logger()
_INTERNAL: Final = 1
"""A span's kind in OTLP: inside of a program."""
_NS_PER_MS: Final = 1_000_000
"""A unit."""
_SPANS: Final[Mapping[Phase, tuple[str, Phase]]] = {
    "snapshot-taken": ("snapshot", "snapshot-begun"),
    "state-durable": ("store state", "snapshot-taken"),
    "released": ("release", "releasing"),
    "commit-decided": ("barriers", "checkpoint-started"),
    "commit-stored": ("commit", "commit-decided"),
    "mirrored": ("mirror", "commit-stored"),
}
"""By the phase that ends it: a span's name, and the phase that begins it, both of one epoch."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of an epoch; times on the wall clock, ms since 1970."""

    name: str
    trace: str
    id: str
    parent: str
    begin_ms: int
    end_ms: int
    attributes: Mapping[str, str | int]


@dataclass(slots=True)
class Tracing:
    """Makes spans of phases. `unique` gives ids of spans, 32 hexadecimal digits."""

    settings: TraceSettings
    clock: Clock
    unique: Callable[[], str]
    waiting: deque[Span] = field(default_factory=deque)
    """`waiting_max`."""
    dropped: int = 0
    _reached: OrderedDict[tuple[JobId, TaskId | None, Phase], tuple[Epoch, int]] = field(default_factory=OrderedDict)
    """When a phase was last reached, for which epoch; `remembered_max`."""
    _began: OrderedDict[tuple[JobId, Epoch], int] = field(default_factory=OrderedDict)
    """When the rows of an epoch began to be read: when the one before it was ended. `remembered_max`."""

    def passing(self, moment: Moment) -> None:
        """A phase is reached: the spans that it ends."""
        now_ms = self.clock.now_ms()
        last = self._reached.get((moment.job, moment.task, moment.phase))
        if moment.phase == "checkpoint-started":
            self._note(self._began, (moment.job, moment.epoch), last[1] if last is not None else now_ms)
        if moment.phase == "snapshot-begun":
            self._input(moment, last, now_ms)
        elif moment.phase in _SPANS:
            name, since = _SPANS[moment.phase]
            self._span(name, moment, self._at(moment, since), now_ms)
        self._note(self._reached, (moment.job, moment.task, moment.phase), (moment.epoch, now_ms))
        if moment.phase == "mirrored":
            began_ms = self._began.pop((moment.job, moment.epoch), None)
            self._span("epoch", moment, began_ms, now_ms, root=True)

    def _input(self, moment: Moment, last: tuple[Epoch, int] | None, now_ms: int) -> None:
        """A task's work for an epoch until its barriers came, with Spark's step at its end."""
        restored = self._reached.get((moment.job, moment.task, "restored"))
        begins = [at_ms for found in (last, restored) if found is not None for at_ms in found[1:]]
        self._span("rows", moment, max(begins, default=None), now_ms)
        self._span("step", moment, self._at(moment, "step-running"), now_ms)

    def _at(self, moment: Moment, phase: Phase) -> int | None:
        """When this phase of the same epoch was reached here, ms."""
        found = self._reached.get((moment.job, moment.task, phase))
        return found[1] if found is not None and found[0] == moment.epoch else None

    def _note(self, noted: "OrderedDict[Any, Any]", key: object, value: object) -> None:
        noted[key] = value
        noted.move_to_end(key)
        while len(noted) > self.settings.remembered_max:
            noted.popitem(last=False)

    def _span(self, name: str, moment: Moment, begin_ms: int | None, end_ms: int, *, root: bool = False) -> None:
        if begin_ms is None:
            return  # its begin was not seen here: before this process, or in another
        if len(self.waiting) >= self.settings.waiting_max:
            self.dropped += 1
            return
        trace, top = ids_of(moment.job, moment.epoch)
        attributes: dict[str, str | int] = {"tidemark.job": moment.job, "tidemark.epoch": moment.epoch}
        if moment.processor:
            attributes["tidemark.processor"] = moment.processor
        if moment.task is not None:
            attributes["tidemark.task"] = str(moment.task)
        own, parent = (top, "") if root else (self.unique()[:16], top)
        self.waiting.append(Span(name, trace, own, parent, begin_ms, end_ms, attributes))

    async def send(self, post: Callable[[dict[str, Any]], Awaitable[None]], place: str) -> None:
        """Send what waits, again and again. A collector that is away costs the spans of its absence, and nothing else."""
        while True:
            await self.clock.sleep_ms(self.settings.interval_ms)
            spans = [self.waiting.popleft() for _ in range(len(self.waiting))]
            if spans:
                try:
                    await post(request_of(spans, place))
                except OSError as error:  # a time-out is one, too
                    self.dropped += len(spans)
                    _log.warning(
                        "traces.away",
                        host=urlsplit(self.settings.url).hostname,
                        reason=str(error),
                        dropped=self.dropped,
                    )


def ids_of(job: JobId, epoch: Epoch) -> tuple[str, str]:
    """The ids of an epoch's trace and of its root: 32 and 16 hexadecimal digits."""
    digits = blake2b(f"{job}/{epoch}".encode(), digest_size=24).hexdigest()
    return digits[:32], digits[32:]


def request_of(spans: list[Span], place: str) -> dict[str, Any]:
    """OTLP's request, as protobuf's JSON has it."""
    service = {"service.name": f"tidemark-{place.rsplit('-', 1)[0]}", "service.instance.id": place}
    scope = {"scope": {"name": "tidemark"}, "spans": [_encoded(span) for span in spans]}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(service)}, "scopeSpans": [scope]}]}


def _encoded(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.trace,
        "spanId": span.id,
        "parentSpanId": span.parent,
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.begin_ms * _NS_PER_MS),
        "endTimeUnixNano": str(span.end_ms * _NS_PER_MS),
        "attributes": _attributes(span.attributes),
    }


def _attributes(given: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in given.items()
    ]


def traced(
    settings: TraceSettings, place: str, clock: Clock, executor: Executor, unique: Callable[[], str]
) -> Callable[[Moment], None]:
    """The function that `Outside.passing` calls; sends beside. The loop must run."""
    tracing = Tracing(settings, clock, unique)

    async def run() -> None:
        import aiohttp  # noqa: PLC0415 - loaded only where traces are wanted

        waits = aiohttp.ClientTimeout(total=settings.request_timeout_ms / 1000)
        headers = {name.strip(): value.strip() for name, _, value in (each.partition(":") for each in settings.headers)}
        async with aiohttp.ClientSession(timeout=waits, headers=headers) as session:

            async def post(request: dict[str, Any]) -> None:
                try:
                    async with session.post(settings.url, json=request, raise_for_status=True):
                        pass
                except aiohttp.ClientError as error:
                    # The error's own text has the URL, in which there may be a secret.
                    status = getattr(error, "status", None)
                    raise ConnectionError(type(error).__name__ if status is None else f"status {status}") from error

            await tracing.send(post, place)

    def ended(error: BaseException) -> None:
        _log.error("traces.ended", reason=repr(error))

    executor.spawn(run(), "traces", ended)
    return tracing.passing
