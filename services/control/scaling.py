"""Numbers of tasks that follow the load, within bounds that a document gives (`options.tasks`), as requests to the coordinator.

It asks as people do with `tidemark rescale`: the coordinator decides, and the processor goes on with the new number behind a checkpoint.
A request is named by the generation that it is for and by its numbers, so several replicas ask for the same once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final

import structlog

from tidemark.services.control.audit import Audit
from tidemark.services.control.history import Job
from tidemark.services.control.readmodel import ReadModel
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.documents.model import TaskBounds
from tidemark.shared.model.ids import Generation, JobId, ProcessorName
from tidemark.shared.model.messages import ModifyProcessor, ProcessorStatus, TaskBeat
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.log import LogError
from tidemark.shared.runtime.client import Client, RequestRefused, RequestTimeout

_log = structlog.get_logger()
BUSY: Final = 0.8
"""Fraction of the time from which a vertex is busy: what waits then may wait for it."""
CALM: Final = 0.5
"""Of the fewer tasks, too, after they have become fewer: far enough below BUSY that they do not become more again."""
STEP: Final = 2
"""How many times as many, or as few, at a time: how much more there is to do is not known while what waits is worked through."""


@dataclass(slots=True)
class Watched:
    """A running generation. Times are monotonic, ms."""

    job: JobId
    generation: Generation
    since_ms: int
    busy_since_ms: dict[str, int] = field(default_factory=dict)
    """By service: since when it has been behind and busy without a break."""
    calm_since_ms: dict[str, int] = field(default_factory=dict)
    """Since when fewer tasks would do."""
    asked: set[str] = field(default_factory=set)
    """Requests that were answered; a refused one is not repeated."""


@dataclass(slots=True)
class Scaling:
    """Looks at all processors that run."""

    model: ReadModel
    client: Client
    clock: Clock
    executor: Executor
    settings: ControlSettings
    audit: Audit
    _watched: dict[ProcessorName, Watched] = field(default_factory=dict)
    _bounds: dict[ProcessorName, tuple[str, Mapping[str, TaskBounds]]] = field(default_factory=dict)
    """With the document that has them: to parse one takes milliseconds, or seconds."""

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await self.clock.sleep_ms(self.settings.look_ms)
            for status in list(self.model.statuses.values()):
                bounds = await self._bounds_of(status)
                if status.state != "RUNNING" or not bounds:
                    self._watched.pop(status.name, None)
                elif wanted := self.wanted(status, bounds):
                    await self._ask(status, wanted)
            for gone in self._watched.keys() - self.model.statuses.keys():
                del self._watched[gone]
            for gone in self._bounds.keys() - self.model.statuses.keys():
                del self._bounds[gone]

    def wanted(self, status: ProcessorStatus, bounds: Mapping[str, TaskBounds]) -> dict[str, int]:
        """Other numbers of tasks, by service; {}: they are as they should be, or that is not known yet."""
        now_ms = self.clock.monotonic_ms()
        watched = self._watched.get(status.name)
        if watched is None or (watched.job, watched.generation) != (status.job, status.generation):
            watched = self._watched[status.name] = Watched(status.job, status.generation, now_ms)
        beats = self.model.tasks(status)
        if len(beats) < len(status.tasks) or now_ms - watched.since_ms < self.settings.scale_after_ms:
            return {}
        job = self.model.history.of(status.job)
        lag_ms = max((beat.counters.get("lagMs", 0) for beat in beats.values()), default=0)
        found = {}
        for service, bound in bounds.items():
            if service not in status.services.values():
                continue  # with windows on operators there are no Spark stages
            now = status.parallelism.get(service, 1)
            busy = _busy(status, service, beats.values(), job)
            wanted = min(max(self._count(watched, service, now, busy, lag_ms, now_ms), bound.min), bound.max)
            if wanted != now:
                found[service] = wanted
        return found

    def _count(self, watched: Watched, service: str, now: int, busy: float, lag_ms: int, now_ms: int) -> int:
        behind = busy >= BUSY and lag_ms >= self.settings.scale_lag_ms
        fewer = max(ceil(now * busy / CALM), ceil(now / STEP))
        calm = fewer < now and lag_ms < self.settings.scale_lag_ms
        for holds, since in ((behind, watched.busy_since_ms), (calm, watched.calm_since_ms)):
            if holds:
                since.setdefault(service, now_ms)
            else:
                since.pop(service, None)
        if behind and now_ms - watched.busy_since_ms[service] >= self.settings.scale_up_ms:
            return now * STEP
        if calm and now_ms - watched.calm_since_ms[service] >= self.settings.scale_down_ms:
            return max(1, fewer)
        return now

    async def _ask(self, status: ProcessorStatus, wanted: Mapping[str, int]) -> None:
        numbers = ",".join(f"{service}={count}" for service, count in sorted(wanted.items()))
        request = f"scale-{status.job}-{status.generation}-{numbers}"
        watched = self._watched[status.name]
        if request in watched.asked:
            return
        parallelism = {**status.parallelism, **wanted}
        refused = ""
        try:
            await self.client.request(
                ModifyProcessor(request, status.name, None, parallelism), self.settings.command_timeout_ms
            )
        except RequestRefused as error:
            refused = str(error)
        except (RequestTimeout, LogError) as error:  # The next look asks again, under the same id.
            _log.warning("scaling.unanswered", processor=status.name, wanted=numbers, reason=str(error))
            return
        watched.asked.add(request)
        _log.info("scaling.asked", processor=status.name, wanted=numbers, refused=refused)
        self.audit.note(
            "tidemark", "", f"scale {numbers}", status.name, status=409 if refused else 200, finding=refused
        )

    async def _bounds_of(self, status: ProcessorStatus) -> Mapping[str, TaskBounds]:
        known = self._bounds.get(status.name)
        if known is None or known[0] != status.document:
            known = status.document, await self.executor.blocking(_bounds_in, status.document)
            self._bounds[status.name] = known
        return known[1]


def _bounds_in(document: str) -> Mapping[str, TaskBounds]:
    try:
        return parse(document).options.tasks
    except InvalidDocument:  # Of another release, which has other bounds, or none.
        return {}


def _busy(status: ProcessorStatus, service: str, beats: Iterable[TaskBeat], job: Job) -> float:
    """The fraction of the time in which the tasks of its busiest vertex work: of all of them, for a hot key has one busy, however many."""
    tasks: dict[str, int] = {}
    for beat in beats:
        tasks[beat.vertex] = tasks.get(beat.vertex, 0) + 1
    rates = {
        v: job.rates(v).get("busyMs", 0.0) for v, each in status.services.items() if each == service and v in tasks
    }
    return max((rate / 1000 / tasks[vertex] for vertex, rate in rates.items()), default=0.0)
