"""Runs a pipeline over a preloaded topic in a real installation, and measures it. It asserts results, never a time."""

import asyncio
import json
import signal
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.harness.bench import documents, results
from tests.harness.bench.events import Load, preload
from tests.harness.bench.flowing import Commits, Stream, flowed
from tests.harness.bench.watching import Meter, Profiler, pin
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.runtime.topics import Topics

PIPELINE = ("source-0", "operator-0", "spark-0", "sink-0")
"""What is pinned where a pipeline is: what runs it, not what it talks to."""
HOSTS = {"source-0", "spark-0", "sink-0"}
"""Where the windowed pipeline has tasks, without a shuffle by record id."""


@dataclass(frozen=True)
class Case:
    """One measurement."""

    load: Load
    epoch_ms: int = 100
    pinned: bool = False
    ids: documents.Ids = "none"
    profile_s: int = 0


@dataclass(frozen=True)
class Flow:
    """A steady stream, and what is done to it."""

    rate: int = 10_000
    seconds: float = 15.0
    epoch_ms: int = 100
    floor_s: float = 0.0
    """How long the same stream is sent without a pipeline first."""
    kills: tuple[str, ...] = ()
    """Places whose processes get SIGKILL, one after the other."""
    between_s: float = 8.0
    windowed: bool = False
    """Counted by minute on Spark: it all comes out at the end, and an outage lasts until the next generation's first commit."""
    at_once: bool = False
    """Begin before all workers are there: those that the pipeline needs suffice."""


@dataclass
class Figures:
    """What was found."""

    events: int
    keys: int
    epoch_ms: int
    pinned: bool
    ids: documents.Ids
    seconds: float
    """From the start of the sources until the last result is released."""
    events_per_s: float
    steady_events_per_s: float
    """What the source took between its first and its last heartbeat with progress, without start and end."""
    rows: int
    """Results, all of them compared."""
    commits: int
    spark_jobs: int
    steps: int
    peak_rss_mib: float
    cpu_s: dict[str, float] = field(default_factory=dict)
    profile: dict[str, list[str]] = field(default_factory=dict)


class Rig:
    """An installation, with topics that several measurements may read."""

    def __init__(self, installed: Installation, folder: Path) -> None:
        self.installed = installed
        self._folder = folder
        self._loaded: set[str] = set()
        self._seen: set[str] = set()

    async def load(self, load: Load) -> None:
        """The topic, written once."""
        await self._ready()
        if load.topic not in self._loaded:
            await self.installed.log.create_topic(load.topic, load.partitions, {"retention.ms": "-1"})
            await preload(self.installed.cluster.bootstrap, load)
            self._loaded.add(load.topic)

    async def ready(self) -> float:
        """When all workers were up, Spark's session with them; monotonic seconds."""
        await self._ready()
        return time.monotonic()

    async def _ready(self) -> None:
        waited = {place for place in self.installed.cluster.pids() if place in PIPELINE} - self._seen
        if waited:
            async for beat in self.installed.client.heartbeats():
                self._seen.add(str(beat.place))
                if waited <= self._seen:
                    return

    async def windows(self, case: Case) -> Figures:
        """Run the windowed pipeline to the end of its topic; results.Inexact if a row is wrong."""
        await self.load(case.load)
        unique = uuid.uuid4().hex[:8]
        target = f"results-{unique}"
        await self.installed.log.create_topic(target, 1, {"retention.ms": "-1"})
        document = documents.windowed(case.load.topic, target, epoch_ms=case.epoch_ms, ids=case.ids)
        places = self.installed.cluster.pids()
        pin((places[p] for p in PIPELINE), (0,) if case.pinned else range(2))
        beats = _Beats(self.installed, HOSTS | {"operator-0"} if case.ids == "source" else HOSTS)
        name = ProcessorName(f"bench-{unique}")
        async with AsyncExitStack() as stack:
            meter = await stack.enter_async_context(Meter(places))
            counting = asyncio.create_task(beats.run(name))
            stack.callback(counting.cancel)
            profiled = {p: pid for p, pid in places.items() if p != "broker"} if case.profile_s else {}
            spy = await stack.enter_async_context(Profiler(profiled, self._folder / unique, case.profile_s))
            began, seconds, commits = await self._run(name, document)
            await beats.over.wait()
        values = await results.values_of(self.installed.log, target)
        rows = results.check(case.load, values)
        load = case.load
        return Figures(
            load.events, load.keys, case.epoch_ms, case.pinned, case.ids, round(seconds, 2), round(load.events / seconds),
            round(beats.steady(began)), rows, commits, beats.counters.get("sparkJobs", 0), beats.counters.get("steps", 0),
            round(meter.usage.peak_rss_mib), meter.usage.cpu_s, spy.shown(),
        )  # fmt: skip

    async def _run(self, name: ProcessorName, document: str) -> tuple[float, float, int]:
        """(when its sources began, seconds until all was released, commits)."""
        await self.installed.ensure_started(name, document, {})
        await self.installed.until_running(name)
        began = time.monotonic()
        status = await self.installed.until_ended(name)
        seconds = time.monotonic() - began
        assert status.state == "FINISHED", f"{name} is {status.state}: {status.reason}"
        return began, seconds, status.commits

    async def flowing(self, case: Flow) -> tuple[Stream, Stream, list[tuple[str, float]]]:
        """(a stream through a pipeline, one through none, how long the stream stood still after each kill)."""
        log, bootstrap = self.installed.log, self.installed.cluster.bootstrap
        if not case.at_once:
            await self._ready()
        unique = uuid.uuid4().hex[:8]
        source, target, name = f"in-{unique}", f"out-{unique}", ProcessorName(f"flow-{unique}")
        for topic, partitions in ((source, 4), (target, 1)):
            await log.create_topic(topic, partitions, {"retention.ms": "-1"})
        floor = Stream(case.rate)
        if case.floor_s:
            await flowed(bootstrap, log, source, source, 4, floor, case.floor_s)
        await self.installed.ensure_started(name, self._flow(case, source, target), {})
        await self.installed.until_running(name)
        stream, commits = Stream(case.rate), Commits()
        job = (await self.installed.client.statuses())[name].job
        following = asyncio.create_task(commits.follow(log, Topics().commits(job)))
        killed: list[tuple[str, float]] = []

        async def kill() -> None:
            for place in case.kills:
                await asyncio.sleep(case.between_s)
                killed.append((place, time.monotonic()))
                self.installed.cluster.kill(place, signal.SIGKILL)
            await asyncio.sleep(case.between_s)

        async def drain() -> None:
            await self.installed.client.request(
                StopProcessor(self.installed.client.unique(), name, drain=True, until={})
            )
            await self.installed.until_ended(name)

        try:
            seconds = max(case.seconds, case.between_s * (len(case.kills) + 1)) if case.kills else case.seconds
            await flowed(
                bootstrap, log, source, target, 1, stream, seconds, beside=kill if case.kills else None, behind=drain
            )
        finally:
            following.cancel()
        outage_s = commits.outage_s if case.windowed else stream.outage_s
        return stream, floor, [(place, outage_s(at)) for place, at in killed]

    @staticmethod
    def _flow(case: Flow, source: str, target: str) -> str:
        if case.windowed:
            return documents.windowed(source, target, epoch_ms=case.epoch_ms, follows=True)
        return documents.stateless(source, target, epoch_ms=case.epoch_ms, start="latest")


class _Beats:
    """Counters of a processor's tasks as heartbeats tell them."""

    def __init__(self, installed: Installation, hosts: AbstractSet[str] = HOSTS) -> None:
        self._installed = installed
        self._hosts = hosts
        self.counters: dict[str, int] = {}
        self.over = asyncio.Event()
        """Every worker that had a task of it has told its last counters, and beaten again without the task."""
        self._progress: list[tuple[float, int]] = []

    async def run(self, name: ProcessorName) -> None:
        at_work: set[str] = set()
        left: set[str] = set()
        async for beat in self._installed.client.heartbeats():
            if any(task.name == name for task in beat.tasks):
                at_work.add(beat.place)
            elif beat.place in at_work:
                left.add(beat.place)
            if at_work == left == self._hosts:
                self.over.set()
            for task in beat.tasks:
                if task.name == name:
                    for key, value in task.counters.items():
                        self.counters[key] = max(value, self.counters.get(key, 0))
                    if task.vertex.startswith("source"):
                        self._progress.append((time.monotonic(), task.counters.get("records", 0)))

    def steady(self, began: float) -> float:
        """Events a second between the first and the last heartbeat that found the source at work."""
        moved = [p for i, p in enumerate(self._progress) if i == 0 or p[1] > self._progress[i - 1][1]]
        moved = [p for p in moved if p[0] > began][:-1]
        if len(moved) < 2:
            return 0.0
        return (moved[-1][1] - moved[0][1]) / (moved[-1][0] - moved[0][0])


@asynccontextmanager
async def rig(folder: Path, workers: Mapping[str, int] | None = None) -> AsyncIterator[Rig]:
    """An installation on this folder for the time of the block. `workers`: processes of a service, if more than one."""
    async with installation(folder / "data", {"TIDEMARK_LOG": "json"}, workers) as installed:
        yield Rig(installed, folder)


def table(figures: Sequence[Figures]) -> str:
    """The figures for people."""
    lines = ["   keys epoch ms cores    ids   events/s     steady      s commits  jobs    MiB  CPU seconds"]
    for f in figures:
        cpu = ", ".join(f"{name} {s:g}" for name, s in sorted(f.cpu_s.items(), key=lambda item: -item[1]) if s >= 0.1)
        lines.append(
            f"{f.keys:>7} {f.epoch_ms:>8} {1 if f.pinned else 2:>5} {f.ids:>6} {f.events_per_s:>10,.0f} "
            f"{f.steady_events_per_s:>10,.0f} {f.seconds:>6.2f} {f.commits:>7} {f.spark_jobs:>5} {f.peak_rss_mib:>6,.0f}  {cpu}"
        )
    return "\n".join(lines)


def as_json(figures: Sequence[Figures]) -> str:
    """The figures for machines."""
    return json.dumps([asdict(f) for f in figures], indent=2)
