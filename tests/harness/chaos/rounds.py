"""Rounds of one installation: both jobs are fed while faults strike, one is drained under a kill, then all has to come right."""

import asyncio
import random
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tests.harness.chaos.faults import Fault, Faults
from tests.harness.chaos.jobs import Feeder, Job, drawn, records, steady
from tests.harness.chaos.oracle import Reader, judge, open_still, outputs_of, there
from tests.harness.chaos.steps import Steps, Wrong
from tests.harness.chaos.world import World
from tidemark.services.cli.remote import RemoteFailed, find
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import DropProcessor, ProcessorStatus, StopProcessor
from tidemark.shared.ports.log import LogError
from tidemark.shared.runtime.client import RequestTimeout

STEADY_PER_S, DRAINED_PER_S = 80.0, 60.0
DRAIN_AT = 0.8
"""Of the time in which faults strike."""
SETTLES_S_MAX = 600.0
"""From the end of all faults until all is as it must be, on a machine that may be busy: a JVM may take minutes there to begin."""
_RETRY_S = 1.0
_ASKED_S = 20.0
"""For the broker to say how things stand, where a step does not end: it may be what hangs."""
_NO_STATEMENT = 3
"""Of `tidemark audit`: the status where nothing is wrong and something could not be compared."""
_SHAPES: Final = {"plain": "a projection", "marks": "a computation", "window": "windows", "join": "a join"}
UNSAID: Final = "in the order of their arrival"
T = TypeVar("T")


@dataclass(frozen=True)
class Measure:
    """Of a round."""

    faults: int = 12
    striking_s: float = 40.0
    settles_s: float = SETTLES_S_MAX


class Piece:
    """The rounds of one installation."""

    def __init__(
        self, world: World, seed: int, measure: Measure, say: Callable[[str], None], faults: Faults | None = None
    ) -> None:
        self._measure = measure
        self._world = world
        self._it = world.installed
        self._chance = random.Random(f"{seed} jobs")
        workers = {s: n for s, n in world.cluster.settings.workers.items() if n}
        self._faults = faults or Faults(f"{seed} faults", workers, disks=bool(world.disks))
        self._say = say
        self._out = world.folder / "out"
        self._steady = steady(self._out)
        self._feeder = Feeder(self._it.log, self._steady)
        self._reader = Reader(self._steady, self._it.log)
        self._beside: list[asyncio.Task[Any]] = []
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._steps = Steps("the beginning", measure.settles_s, self._stands)
        self._at: tuple[Job, int] = (self._steady, 0)
        self.rounds = 0
        self.figures: dict[str, float] = {"records": 0, "generations": 0, "longest to settle, s": 0}

    async def run(self, seconds: float, rounds: int | None) -> None:
        """As many as asked for, or until the time is over; Wrong."""
        work = asyncio.ensure_future(self._steps.followed(self._run(seconds, rounds)))
        either: set[asyncio.Future[Any]] = {work, self._failed}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
            raise Wrong(self._failed.result())
        await work

    async def close(self) -> None:
        """Nobody reads or watches any more."""
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)

    async def _run(self, seconds: float, rounds: int | None) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        await self._begin(self._steady)
        self._beside.append(asyncio.ensure_future(self._reader.run()))
        while self.rounds < rounds if rounds is not None else loop.time() < ends:
            await self._round(self.rounds)
            self.rounds += 1
        await self._finish()

    async def _begin(self, job: Job) -> None:
        self._steps.begin(f"the start of {job.name}", self._measure.settles_s)
        log = self._it.log
        await patiently(lambda: log.create_topic(job.source, job.partitions, {"retention.ms": "-1"}))
        for topic in filter(None, (job.topic, job.letters)):
            await patiently(lambda topic=topic: log.create_topic(topic, 1, {"retention.ms": "-1"}))  # type: ignore[misc]
        if job.table:
            await asyncio.to_thread(_make_table, job)
        await patiently(lambda: self._it.ensure_started(job.name, job.document, job.tasks))
        self._beside.append(asyncio.ensure_future(self._watch(job.name)))

    async def _watch(self, name: ProcessorName) -> None:
        async for status in self._it.client.watch(name):
            if status.state == "FAILED" and not self._failed.done():
                self._failed.set_result(f"{name} is FAILED: {status.reason}")

    # --- a round ----------------------------------------------------------------------------------------------------------

    async def _round(self, number: int) -> None:
        job = drawn(self._chance, number, self._out)
        self._say(f"round {number}: {job.name} with {_shape(job)}")
        self._at = job, number
        await self._begin(job)
        feeder, reader = Feeder(self._it.log, job), Reader(job, self._it.log)
        reading = asyncio.ensure_future(reader.run())
        striking_s = self._measure.striking_s
        self._steps.begin(f"feeding {job.name} and draining it", striking_s + self._measure.settles_s)
        try:
            async with self._striking():
                steady_rows = records(self._steady, self._chance, number, round(STEADY_PER_S * striking_s))
                drained_rows = records(job, self._chance, number, round(DRAINED_PER_S * DRAIN_AT * striking_s))
                feeding = asyncio.ensure_future(self._feeder.feed(steady_rows, STEADY_PER_S))
                try:
                    await feeder.feed(drained_rows, DRAINED_PER_S)
                    await self._drained(job)
                    await feeding
                finally:
                    feeding.cancel()
            began = asyncio.get_running_loop().time()
            await self._settled(job, feeder, reader, number)
            took = asyncio.get_running_loop().time() - began
        finally:
            reading.cancel()
        self.figures["longest to settle, s"] = max(self.figures["longest to settle, s"], round(took, 1))
        self.figures["records"] += feeder.sent
        await self._audited(self._steady)
        await self._audited(job)
        self.figures["generations"] += (await self._status(job.name)).generation
        self._steps.begin(f"dropping {job.name}", self._measure.settles_s)
        await patiently(lambda: self._it.client.request(DropProcessor(self._it.client.unique(), job.name)))
        self._say(f"round {number}: settled in {took:.0f} s; audits agree")

    @asynccontextmanager
    async def _striking(self) -> AsyncIterator[None]:
        """Faults strike within, and are over behind it."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def strike(fault: Fault) -> None:
            await asyncio.sleep(began + fault.at_s - loop.time())
            self._say(
                f"  {fault.what} {fault.where} {fault.how}" + (f" for {fault.for_s:.1f} s" if fault.for_s else "")
            )
            await self._world.strike(fault, self._faults.left_bytes())

        drawn_now = self._faults.next(self._measure.faults, self._measure.striking_s)
        strikes = [asyncio.ensure_future(strike(fault)) for fault in drawn_now]
        try:
            yield
            await asyncio.gather(*strikes)
        finally:
            for each in strikes:
                each.cancel()
            await asyncio.gather(*strikes, return_exceptions=True)
            self._world.disarm()

    async def _drained(self, job: Job) -> None:
        """Ask for it, and kill somebody behind it: before it is answered, or after."""
        client = self._it.client
        request = StopProcessor(client.unique(), job.name, drain=True)
        victim, waits = self._faults.victim(), self._chance.choice([0.0, 0.05, 0.3, 1.0, 3.0])
        asking = asyncio.ensure_future(patiently(lambda: client.request(request)))
        await asyncio.sleep(waits)
        self._say(f"  kill {victim} behind the drain, by {waits} s")
        self._world.kill(victim)
        await asking

    # --- afterwards ---------------------------------------------------------------------------------------------------------

    async def _settled(self, job: Job, feeder: Feeder, reader: Reader, number: int) -> None:
        """All is as it must be, within the time that recovery may take."""
        self._steps.begin(f"all that is due behind the faults of round {number}", self._measure.settles_s)
        await self._ended(job.name)
        source = await patiently(lambda: there(self._steady, self._it.log))
        due = {i for i in source if not open_still(i, number)}
        while not due <= self._reader.ids.keys():  # noqa: ASYNC110 - a reader of real topics counts
            await asyncio.sleep(_RETRY_S)
        await self._judged(job, feeder, reader, None)
        await self._judged(self._steady, self._feeder, self._reader, number)
        await self._told(job)

    async def _ended(self, name: ProcessorName) -> ProcessorStatus:
        async for status in self._it.client.watch(name):
            if status.state == "FINISHED":
                return status
        raise Wrong("the registry ended")

    async def _stands(self) -> str:
        """What a step that does not end leaves to say."""
        job, number = self._at
        here = f"{self._world.shares()}; {self._troubles()}"
        try:
            async with asyncio.timeout(_ASKED_S):
                source = await there(self._steady, self._it.log)
                found = [await self._status(name) for name in dict.fromkeys((job.name, self._steady.name))]
        except (LogError, TimeoutError, KeyError) as error:
            return f"the broker cannot be asked ({error!r}); {here}"
        due = {i for i in source if not open_still(i, number)} - self._reader.ids.keys()
        said = "; ".join(
            f"{s.name} is {s.state} {s.reason}, {s.commits} commits, generation {s.generation}" for s in found
        )
        return f"{len(due)} ids of {self._steady.name} are not out; {said}; {here}"

    def _troubles(self) -> str:
        cluster = self._world.cluster
        return " ".join([*cluster.troubles(), repr(cluster.failure) if cluster.failure else ""]).strip()

    async def _judged(self, job: Job, feeder: Feeder, reader: Reader, closed: int | None) -> None:
        """What is there now, and what was shown on the way. Files may come a moment after topics, each sink by itself."""
        self._steps.begin(f"reading what has come out of {job.name}", 2 * self._measure.settles_s)
        source = await patiently(lambda: there(job, self._it.log))
        deadline = asyncio.get_running_loop().time() + self._measure.settles_s
        while True:
            outputs = await patiently(lambda: outputs_of(job, self._it.log))
            wrong = judge(job, source, outputs, feeder.late, closed)
            if not wrong or asyncio.get_running_loop().time() > deadline or not all("lost" in each for each in wrong):
                break
            await asyncio.sleep(_RETRY_S)
        wrong += await patiently(reader.stayed)
        if wrong:
            raise Wrong(f"{job.name} ({_shape(job)}): {'; '.join(wrong)}")

    async def _told(self, job: Job) -> None:
        """The control service and the supervisor say what is so."""
        self._steps.begin("asking the control service", SETTLES_S_MAX)
        expected = {job.name: "FINISHED", self._steady.name: "RUNNING"}

        def ask() -> dict[str, str]:
            listed = find(self._world.folder / "data").get("/v1/processors")["processors"]
            return {each["name"]: each["state"] for each in listed}

        found: Any = None
        for _ in range(60):
            with suppress(RemoteFailed, OSError, ValueError):  # it is being started again
                found = await asyncio.to_thread(ask)
            if found is not None and found.items() >= expected.items():
                break
            await asyncio.sleep(_RETRY_S)
        else:
            raise Wrong(f"the control service says {found}, expected {expected}; {self._troubles()}")
        if self._world.cluster.given_up or self._world.cluster.failure:
            raise Wrong(self._troubles())

    async def _audited(self, job: Job) -> None:
        """By the command, as a user would."""
        self._steps.begin(f"the audit of {job.name}", SETTLES_S_MAX)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidemark.services.cli", "audit", job.name, "--data", str(self._world.folder / "data"),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said = await said_by(process)
        # By arrival, records of several partitions are numbered by chance, and no audit can say the same.
        unsaid = process.returncode == _NO_STATEMENT and UNSAID.encode() in said
        if process.returncode != 0 and not unsaid:
            raise Wrong(f"audit of {job.name} ({_shape(job)}): {said.decode(errors='replace')[-2_000:]}")

    async def _status(self, name: ProcessorName) -> ProcessorStatus:
        return (await patiently(self._it.client.statuses))[name]

    async def _finish(self) -> None:
        """The steady job is drained, too, and all that it ever put out judged."""
        job, client = self._steady, self._it.client
        request = StopProcessor(client.unique(), job.name, drain=True)
        self._steps.begin(f"draining {job.name}", self._measure.settles_s)
        await patiently(lambda: client.request(request))
        self._world.kill(self._faults.victim())
        status = await self._ended(job.name)
        await self._judged(job, self._feeder, self._reader, None)
        await self._audited(job)
        self.figures["records"] += self._feeder.sent
        self.figures["generations"] += status.generation


async def said_by(process: asyncio.subprocess.Process) -> bytes:
    """All of its output, once it has ended; it ends with who waits for it."""
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return said


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """An answer, whatever is away meanwhile; a request that is repeated has one id, and is carried out once."""
    while True:
        try:
            return await ask()
        except (LogError, RequestTimeout):
            await asyncio.sleep(_RETRY_S)


def _make_table(job: Job) -> None:
    assert job.table is not None
    with closing(sqlite3.connect(job.table)) as table:
        table.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY, k TEXT, seen INTEGER)")


def _shape(job: Job) -> str:
    places = [name for name, place in (("topic", job.topic), ("files", job.folder), ("table", job.table)) if place]
    known = "known" if job.wholly else "not known"
    return (
        f"{_SHAPES[job.middle]} into {', '.join(places)}; {job.partitions} partitions, tasks {job.tasks}, ids {known}"
    )
