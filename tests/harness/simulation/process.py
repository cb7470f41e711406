"""A simulated process: a service's own code on a clock, an executor and ports of its own; it freezes, lags, loses its ways out and dies."""

import asyncio
import random
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa

from tests.harness.installation import MemoryConnections, MemorySources
from tests.harness.sealing import sealed
from tests.harness.simulation.faults import LINKS, Book, Link, LinkFaults, Weather
from tests.harness.simulation.loop import LIFE, Life, SimLoop
from tests.harness.simulation.ports import SimBlobs, SimLog, SimStore
from tests.harness.simulation.targets import Died, SimSinks
from tidemark.services.coordinator.planning import plan_for_coordinator
from tidemark.services.operator.service import OperatorService
from tidemark.services.sink.service import SinkService
from tidemark.services.source.service import SourceService
from tidemark.shared.adapters.executor import Spawner
from tidemark.shared.adapters.virtual import VirtualClock
from tidemark.shared.model.ids import Place, WorkerIncarnation
from tidemark.shared.operators.base import ScratchUnavailable
from tidemark.shared.process.allowed import OWNER
from tidemark.shared.process.connections import Connections
from tidemark.shared.protocol.coordinator.events import PlannedPipeline
from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine
from tidemark.shared.runtime.context import Moment, Outside, Service
from tidemark.shared.runtime.coordinator import CoordinatorDriver
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.runtime.worker import Worker

if TYPE_CHECKING:
    from tests.harness.simulation.world import SimWorld

T = TypeVar("T")
Kind = Literal["coordinator", "source", "operator", "spark", "sink"]


class ProcessClock:
    """A machine's clock: its wall time is off, and jumps."""

    def __init__(self, inner: VirtualClock, skew_ms: int) -> None:
        self._inner = inner
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return self._inner.now_ms() + self.skew_ms

    def monotonic_ms(self) -> int:
        """See `Clock.monotonic_ms`."""
        return self._inner.monotonic_ms()

    async def sleep_ms(self, duration_ms: int) -> None:
        """See `Clock.sleep_ms`."""
        await self._inner.sleep_ms(duration_ms)


class ProcessExecutor(Spawner):
    """Activities on the loop; blocking work on the loop too, later, and sometimes much later."""

    def __init__(self, process: "SimProcess") -> None:
        super().__init__()
        self._process = process

    def blocking(self, work: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        """See `Executor.blocking`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        process, faults = self._process, self._process.links["blobs"]
        process.awaited()

        def act() -> None:
            if process.dead or future.cancelled():
                return  # what has not begun is not begun any more
            try:
                result = work(*args)
            except Died:
                return
            except Exception as error:  # noqa: BLE001 - handed on: the awaitable raises it
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        rate = faults.weather.blocking_slow
        if process.book.by_chance(f"{process.place} work slow", rate):
            wait_s = process.rng.randint(1, max(1, faults.weather.slow_ms_max)) / 1000
            loop.call_later(wait_s, partial(loop.call_soon, act))
        else:
            loop.call_soon(act)
        return future


class SimProcess:
    """One incarnation at a place."""

    def __init__(self, world: "SimWorld", place: str, number: int, weather: Weather, skew_ms: int) -> None:
        self.world = world
        self.place = place
        self.number = number
        self.book: Book = world.book
        self.rng = random.Random(f"{world.book.seed}/{place}/{number}")
        self.life = Life(place)
        self.clock = ProcessClock(world.clock, skew_ms)
        self.links: dict[Link, LinkFaults] = {link: LinkFaults(self.book, self.life, link, weather) for link in LINKS}
        for faults in self.links.values():
            faults.awaits = self.awaited
        self.executor = ProcessExecutor(self)
        self.logs = tuple(SimLog(self, world.broker, self.links[link], world.watcher) for link in ("log", "target"))
        self.sinks: SimSinks | None = None
        self.part: CoordinatorDriver | Worker | None = None
        self.task: asyncio.Task[None] | None = None
        self.awaits_left: int | None = None
        """Dies at so many awaits from now; None: at none."""

    @property
    def service(self) -> Kind:
        """Which kind of process it is."""
        return _kind(self.place)

    @property
    def dead(self) -> bool:
        """It has ended, by itself or not."""
        return self.life.dead

    def start(self, ended: Callable[["SimProcess", BaseException | None], None]) -> None:
        """Begin; `ended` is told if it ends by itself."""
        context = copy_context()
        context.run(LIFE.set, self.life)

        async def run() -> None:
            await self._made().run()

        def done(task: "asyncio.Task[None]") -> None:
            if not self.dead and not task.cancelled():
                self.life.dead = True
                ended(self, task.exception())

        self.task = asyncio.get_running_loop().create_task(run(), name=f"run {self.place}", context=context)
        self.task.add_done_callback(done)

    def _made(self) -> CoordinatorDriver | Worker:
        world = self.world
        blobs = SimBlobs(self, world.objects, self.links["blobs"], world.watcher, f"{world.book.seed}-{self.number}")
        unique = world.unique
        log = sealed(self.logs[0])
        outside = Outside(
            log,
            blobs,
            self.clock,
            self.executor,
            Topics(),
            world.scenario.runtime,
            unique,
            self._passing,
            log.unreadable,
        )
        if self.service == "coordinator":
            machine = CoordinatorMachine(world.scenario.coordinator, unique)
            store = SimStore(self, world.store, self.links["store"], world.watcher)
            self.part = CoordinatorDriver(self.place, outside, store, self._plan, machine)
        else:
            self.part = Worker(Place(self.place), WorkerIncarnation(unique()), self._service(blobs), outside)
        return self.part

    def _plan(self, *given: Any, **named: Any) -> PlannedPipeline:
        scenario = self.world.scenario
        planned = plan_for_coordinator(scenario.runtime.engine, *given, allowed=OWNER, **named)
        return replace(planned, key_groups=scenario.key_groups)

    def _service(self, blobs: SimBlobs) -> Service:
        if self.service == "spark":
            # Only here, for seeds without Spark need not wait until its client is imported.
            from tests.harness.simulation.spark import SimSpark

            return SimSpark(blobs)
        connections = MemoryConnections(self.place, self.logs[1])
        match self.service:
            case "source":
                return SourceService(MemorySources(connections))
            case "operator":
                return OperatorService(Connections(self.place), shelve=self._shelve)
            case _:
                self.sinks = SimSinks(self, connections, self.world.targets, self.links["target"], self.world.watcher)
                return SinkService(self.sinks)

    def _shelve(self, rows: pa.RecordBatchReader) -> pa.Table:
        """Rows that have no room in memory: a disk, which may be full."""
        # Runs are few beside calls of a link.
        if self.book.by_chance(f"{self.place} scratch ENOSPC", min(0.5, 20 * self.links["blobs"].weather.refused)):
            raise ScratchUnavailable("state beyond memory: no space left on device")
        return rows.read_all()

    def _passing(self, moment: Moment) -> None:
        self.world.watcher.passing(self, moment.phase, moment.epoch)

    # --- faults -----------------------------------------------------------------------------------------------------------

    def awaited(self) -> None:
        """One more await at the outside: it may be the last."""
        if self.awaits_left is not None and not self.dead:
            self.awaits_left -= 1
            if self.awaits_left <= 0:
                self.awaits_left = None
                self.die("at an await", arrives=self.rng.random() < 0.5)

    def die(self, how: str, *, arrives: bool) -> None:
        """End at once. `arrives`: a part of what was under way still takes effect."""
        if self.dead:
            return
        reachable = arrives and not self.links["log"].away
        for log in self.logs:
            log.perish(arrives=reachable)
        self.life.die()
        if self.sinks is not None:
            self.sinks.perish()
        self.world.died(self, how)

    def freeze(self) -> None:
        """Stand still."""
        self.life.freeze()

    def thaw(self) -> None:
        """Go on."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.life.thaw(loop)

    def disturbed(self) -> bool:
        """Some of its ways out are cut."""
        return any(faults.away or faults.deaf for faults in self.links.values())

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self.awaits_left = None
        for faults in self.links.values():
            faults.calm()


def _kind(place: str) -> Kind:
    match place.partition("-")[0]:
        case "coordinator":
            return "coordinator"
        case "source":
            return "source"
        case "operator":
            return "operator"
        case "spark":
            return "spark"
        case _:
            return "sink"
