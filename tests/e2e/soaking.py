"""Many faults in one run, chosen by a seed: kills at phases and at random moments, pauses past the heartbeat, the broker's kills.

A fault strikes once. Each is recorded with service, place, epoch and phase. Those that missed their phase are handed back to be repeated.
The feed goes on by a slice with each fault, so that all of them meet work.
"""

import asyncio
import json
import random
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from tests.e2e.faults import Kill, orders
from tests.e2e.jobs import Contents, Job
from tidemark.services.cli.installation import Installation
from tidemark.services.local.supervisor import BROKER
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.messages import ProcessorStatus
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.runtime.context import Phase
from tidemark.shared.runtime.reading import followed

PHASES: dict[str, tuple[Phase, ...]] = {
    "source": ("snapshot-taken", "state-durable"),
    "operator": ("snapshot-taken", "state-durable"),
    "spark": ("snapshot-taken", "step-running", "state-durable"),
    "sink": ("staged", "snapshot-taken", "state-durable", "releasing", "released"),
    "coordinator": ("commit-decided", "commit-stored", "mirrored"),
}
"""Where each service can be struck."""
BEATS_OF_A_PAUSE = 150
"""Heartbeats of all workers heard while a process stands still, at most: longer than a coordinator's lease."""
COMMITS_PATIENCE = 40
"""A phase that has not come after so many commits is missed."""


@dataclass(frozen=True)
class Sudden:
    """SIGKILL from outside after so many heartbeats of anyone: at a random moment."""

    place: str
    beats: int


@dataclass(frozen=True)
class Pause:
    """SIGSTOP until the process has been given up, then SIGCONT."""

    place: str
    beats: int


Outer = Sudden | Pause
Card = TypeVar("Card")


@dataclass(frozen=True)
class Struck:
    """A fault that happened."""

    place: str
    phase: str
    epoch: int


@dataclass(frozen=True)
class Round:
    """The faults of one run."""

    kills: Sequence[Kill]
    outers: Sequence[Outer]

    @property
    def count(self) -> int:
        return len(self.kills) + len(self.outers)


class Deck(Generic[Card]):
    """Deals its cards in an order of chance, all of them before any of them again."""

    def __init__(self, chance: random.Random, cards: Iterable[Card]) -> None:
        self._chance = chance
        self._cards = list(cards)
        self._left: list[Card] = []

    def deal(self) -> Card:
        """The next card."""
        if not self._left:
            self._left = self._chance.sample(self._cards, len(self._cards))
        return self._left.pop()


class Rounds:
    """Rounds of faults for one job: few of them strike each phase of each service, and each service and the broker from outside."""

    def __init__(self, job: Job, seed: int) -> None:
        self._chance = random.Random(f"{job.name} {seed}")
        self._workers = job.workers
        services = [service for service, count in job.workers.items() if count]
        kinds: list[type[Outer]] = [Sudden, Pause]
        self._phases = Deck(self._chance, [(s, phase) for s in services for phase in PHASES[s]])
        self._outers = Deck(self._chance, [*((s, kind) for s in services for kind in kinds), *[(BROKER, kinds[0])] * 2])

    def next(self, kills: int, outers: int) -> Round:
        """So many kills at phases, each at another place or phase, and so many faults from outside."""
        at_phases: dict[tuple[str, str], Kill] = {}
        while len(at_phases) < kills:
            service, phase = self._phases.deal()
            place = self._place(service)
            at_phases.setdefault((place, phase), Kill(place, phase, self._chance.randint(2, 6)))
        outer: list[Outer] = []
        for _ in range(outers):
            service, kind = self._outers.deal()
            outer.append(kind(service if service == BROKER else self._place(service), self._chance.randint(1, 60)))
        return Round(list(at_phases.values()), outer)

    def _place(self, service: str) -> str:
        return f"{service}-{self._chance.randrange(self._workers[service])}"


@dataclass
class Striking:
    """Carries a round out beside a run (`run_job`'s `beside` and `hold`)."""

    round: Round
    job: Job
    folder: Path
    """Where dying processes leave their records."""
    struck: list[Struck] = field(default_factory=list)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _status: ProcessorStatus | None = None
    _beats: int = 0
    _over: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """For every process."""
        return {"TIDEMARK_KILL_AT": orders(self.round.kills, self.folder)}

    def missed(self) -> list[Kill]:
        """Those whose phase has not come."""
        return [kill for kill in self.round.kills if not kill.record(self.folder).exists()]

    async def hold(self, sent: int) -> None:
        """The feed waits until as large a part of the faults has struck."""
        while not self._over and sent / len(self.job.order) > (self._done() + 1) / (self.round.count + 1):
            await self._moving()

    def _done(self) -> int:
        return len(self.struck) + len(self.round.kills) - len(self.missed())

    async def __call__(self, installed: Installation) -> None:
        watching = [asyncio.create_task(self._watch(installed)), asyncio.create_task(self._listen(installed))]
        try:
            await self._until(lambda: self._seen().commits >= 1)
            for outer in self.round.outers:
                await self._strike(installed, outer)
            since = self._seen().commits
            await self._until(lambda: not self.missed() or self._seen().commits > since + COMMITS_PATIENCE)
        finally:
            self._over = True
            self._moved.set()
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    # --- what is seen -----------------------------------------------------------------------------------------------------

    async def _watch(self, installed: Installation) -> None:
        async for status in installed.client.watch(self.job.name):
            self._status = status
            self._moved.set()

    async def _listen(self, installed: Installation) -> None:
        async for _ in installed.client.heartbeats():
            self._beats += 1
            self._moved.set()

    async def _moving(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    async def _until(self, reached: Callable[[], bool]) -> None:
        while self._status is None or not reached():
            if self._status is not None and self._status.state == "FAILED":
                message = f"{self._status.name} failed: {self._status.reason}"
                raise AssertionError(message)
            await self._moving()

    def _seen(self) -> ProcessorStatus:
        assert self._status is not None
        return self._status

    # --- faults from outside ----------------------------------------------------------------------------------------------

    async def _strike(self, installed: Installation, outer: Outer) -> None:
        beats = self._beats + outer.beats
        await self._until(lambda: self._beats >= beats)
        # A worker that hosts nothing may have been removed meanwhile: then another of its service is struck.
        outer = replace(outer, place=await self._present(installed, outer.place))
        before = self._seen()
        pid = installed.cluster.pids()[outer.place]
        with suppress(ProcessLookupError, KeyError):
            match outer:
                case Sudden():
                    installed.cluster.kill(outer.place, signal.SIGKILL)
                    self.struck.append(Struck(outer.place, "random", before.last + 1))
                case Pause():
                    installed.cluster.kill(outer.place, signal.SIGSTOP)
                    self.struck.append(Struck(outer.place, "paused", before.last + 1))
                    await self._given_up(outer, before)
                    if installed.cluster.pids().get(outer.place) == pid:
                        installed.cluster.kill(outer.place, signal.SIGCONT)
        await self._until(lambda: self._seen().commits > before.commits)

    async def _present(self, installed: Installation, place: str) -> str:
        """The place once somebody sits there, or another of its service."""
        service = place.rpartition("-")[0] or place
        found: list[str] = []

        def somebody() -> bool:
            seats = sorted(seat for seat in installed.cluster.pids() if seat.startswith(service))
            found[:] = [place] if place in seats else seats
            return bool(found)

        await self._until(somebody)
        return found[0]

    async def _given_up(self, pause: Pause, before: ProcessorStatus) -> None:
        """A coordinator loses its lease, and a worker its tasks; one that had not registered yet has none, so beats bound the wait."""
        beats = self._beats + BEATS_OF_A_PAUSE
        waits = pause.place.startswith("coordinator")
        await self._until(lambda: self._beats >= beats or (not waits and self._seen().generation > before.generation))

    # --- afterwards ---------------------------------------------------------------------------------------------------------

    def records(self) -> list[Struck]:
        """Every fault that struck."""
        found = list(self.struck)
        for kill in self.round.kills:
            if kill.record(self.folder).exists():
                said = json.loads(kill.record(self.folder).read_text())
                found.append(Struck(said["place"], said["phase"], said["epoch"]))
        return found


@dataclass
class Watcher:
    """Reads a job's outputs all the time, read committed and by manifests, and keeps what it saw."""

    job: Job
    out: Path
    records: dict[str, list[tuple[int, bytes | None]]] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    async def run(self, installed: Installation) -> None:
        """Until cancelled."""
        await asyncio.gather(*(self._topic(installed, topic) for topic in self.job.topics), self._files(installed))

    async def _topic(self, installed: Installation, topic: str) -> None:
        seen = self.records.setdefault(topic, [])
        async for r in followed(installed.log, SystemClock(), TopicPartition(topic, 0), committed_only=True):
            if seen and r.offset <= seen[-1][0]:
                self.wrong.append(f"{topic}: offset {r.offset} was read after {seen[-1][0]}")
            seen.append((r.offset, r.value))

    async def _files(self, installed: Installation) -> None:
        async for _ in installed.client.heartbeats():
            folder = self.out / self.job.folder
            for path in sorted([*folder.glob("_manifests/**/*.json"), *folder.glob("_delta_log/*.json")]):
                data = path.read_bytes()
                if self.manifests.setdefault(str(path), data) != data:
                    self.wrong.append(f"{path} changed after it was published")

    def check(self, final: Contents) -> None:
        """AssertionError if anything was shown that did not stay, or twice."""
        assert self.wrong == []
        for topic, seen in self.records.items():
            left = list(final.topics[topic])
            for offset, value in seen:
                assert (value or b"") in left, f"{topic}: offset {offset} was shown, and did not stay: {value!r}"
                left.remove(value or b"")
        for path, data in self.manifests.items():
            assert Path(path).read_bytes() == data, f"{path} was seen, and is another one now"
