"""One seed from begin to end: create, start, feed, faults, orders, drain, and what must have come of it."""

import asyncio
import gc
import logging
import random
import sys
import warnings
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import structlog

from tests.harness.simulation.drawing import FOLDER, Scenario, draw
from tests.harness.simulation.faults import CALM, Book, Side, ids_of
from tests.harness.simulation.loop import SimLoop
from tests.harness.simulation.orders import Unfinished, User
from tests.harness.simulation.plan import GUST_MS, RESTARTS_MS, Plan, draw_plan
from tests.harness.simulation.redriving import redriven, wrong_corrections
from tests.harness.simulation.results import expected
from tests.harness.simulation.strife import Strife
from tests.harness.simulation.targets import Targets
from tests.harness.simulation.world import READY_MS, SimWorld
from tests.harness.simulation.writes import WRITES
from tidemark.shared.adapters.virtual import SimulationStuck

LIMIT_MS = 600_000
"""Virtual time of a seed at the most."""
WARM_COMMITS, WARM_MS = 3, 4_000
"""Faults that begin late begin behind so many commits, or so late."""
SETTLE_MS = 5_000
"""Virtual time in which what is not needed is deleted."""
NOBODYS_MS = 20_000
"""Virtual time in which what belongs to no processor is deleted, whoever made it, and however long the maker had stood still."""
GARBAGE_MAX = 60
"""Blobs that may lie about behind the end, of attempts that came to nothing: the next commit would take them."""


@dataclass(slots=True)
class Verdict:
    """What came of a seed."""

    seed: int
    breaches: list[str]
    struck: list[str]
    trace: list[str]
    digest: str
    writes: Counter[str]
    """How often each durable write was made."""
    crashed: Counter[tuple[str, Side]]
    """Of those: where processes died."""
    commits: int = 0
    in_flight: int = 0
    """Commits with frames in flight (C13)."""
    virtual_ms: int = 0
    turns: int = 0
    summary: str = ""


@contextmanager
def quiet() -> Iterator[None]:
    """For many seeds in one process: one thread, no logs, and what is there before them is not looked at each time one is collected."""
    threads, configured = pa.cpu_count(), structlog.get_config()
    pa.set_cpu_count(1)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        structlog.configure(**configured)
        pa.set_cpu_count(threads)


def run(seed: int, *, faults: bool = True, left_out: Container[str] = ()) -> Verdict:
    """Run a seed. `left_out`: ids of faults that do not strike."""
    targets = Targets(seed)
    scenario = draw(seed, targets.url)
    targets.open(refuses=scenario.refuses)
    if scenario.target == "table":
        targets.table_at(FOLDER)
    said, sys.unraisablehook = sys.unraisablehook, lambda _: None
    gc.disable()  # a seed is short: what it leaves is collected once
    try:
        return _run(scenario, targets, faults=faults, left_out=left_out)
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # coroutines that were to begin when all ended
            gc.collect()
            gc.collect()  # what the first one ended had held the world, and with it connections to the database
        targets.close()
        gc.enable()
        sys.unraisablehook = said


def _run(scenario: Scenario, targets: Targets, *, faults: bool, left_out: Container[str]) -> Verdict:
    seed = scenario.seed
    book = Book(seed, left_out)
    worlds: list[SimWorld] = []

    async def main() -> None:
        world = SimWorld(scenario, book, targets, CALM)
        worlds.append(world)
        book.say, book.now_ms = world.say, world.now_ms
        await Story(world, faults=faults).tell()

    broken = ""
    loop = SimLoop(random.Random(f"{seed}/order"), limit_ms=LIMIT_MS)
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        loop.run_until_complete(main())
    except (SimulationStuck, Unfinished) as error:
        broken = f"{type(error).__name__}: {error}"
    finally:
        _abandon(loop)
    world = worlds.pop()
    book.say, book.lull, book.now_ms = (
        lambda _: None,
        lambda: False,
        lambda: 0,
    )  # nothing keeps the world: it is collected before the next seed
    if broken:
        world.watcher.breaches.append(broken)
    return Verdict(
        seed=seed,
        breaches=world.watcher.breaches,
        struck=ids_of(book.struck),
        trace=world.trace,
        digest=world.watcher.digest.hexdigest(),
        writes=book.writes,
        crashed=book.crashed,
        commits=world.watcher.commits(),
        in_flight=world.watcher.in_flight,
        virtual_ms=round(loop.time() * 1000),
        turns=loop.turns,
        summary=scenario.summary,
    )


def _abandon(loop: SimLoop) -> None:
    """Let go of a loop as of a machine that is switched off. Collecting what stands still in it runs its `finally`, which reach nothing."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()


class Story:
    """What happens in a world."""

    def __init__(self, world: SimWorld, *, faults: bool) -> None:
        self._world = world
        self._faults = faults

    async def tell(self) -> None:
        """From begin to end. Unfinished."""
        world = self._world
        user = User(world)
        plan = draw_plan(world.scenario, world.places(), WRITES)
        if self._faults:
            self._disturb(plan)
        world.prepare()
        await world.client.ready(READY_MS)
        await user.created()
        await user.started()
        strife = asyncio.ensure_future(self._strive(user, plan)) if self._faults else None
        world.beside(self._look())
        await world.feed()
        if strife is not None and not plan.early:
            await strife
        await user.drained()
        if strife is not None:
            await strife
        await user.settled()
        await user.finished()
        await self._redriven()
        await self._settled(user)
        for difference in expected(world.scenario).differences(world.outcome(), lives=world.watcher.lives()):
            world.watcher.breach(difference)

    def _disturb(self, plan: Plan) -> None:
        """What goes on from the begin."""
        world = self._world
        chooser = random.Random(f"{world.book.seed}/restarts")
        world.weather = plan.weather
        if any(event.kind == "store falls back" for event in plan.events):
            world.beside(world.copies.keep())
        world.book.strikes, world.book.asleep = list(plan.strikes), plan.late
        if plan.gusts:
            world.book.lull = lambda: world.now_ms() // GUST_MS % 2 == 1
        world.restart_ms = lambda: chooser.choice(RESTARTS_MS)
        if plan.skewed:
            world.skew_ms = lambda: chooser.choice((0, 0, -3_600_000, -5_000, 5_000))

    async def _strive(self, user: User, plan: Plan) -> None:
        world = self._world
        deadline_ms = world.now_ms() + WARM_MS
        while plan.late and world.watcher.commits() < WARM_COMMITS and world.now_ms() < deadline_ms:
            await world.clock.sleep_ms(50)
        world.book.asleep = False
        await Strife(world, user, plan).go_on()

    async def _look(self) -> None:
        """At what only time shows."""
        world = self._world
        while True:
            await world.clock.sleep_ms(500)
            leaders = [world.processes[p] for p in world.places() if p.startswith("coordinator")]
            undisturbed = any(not p.dead and not p.life.frozen and not p.disturbed() for p in leaders)
            world.watcher.registry(undisturbed=undisturbed)

    async def _redriven(self) -> None:
        """All late records go through the windows that they missed, whoever redrove some of them before."""
        world = self._world
        if world.scenario.redriven and world.watcher.lives() == 1:
            if error := await redriven(world):
                world.watcher.breach(f"never redriven: {error}")
            for wrong in wrong_corrections(world):
                world.watcher.breach(wrong)

    async def _settled(self, user: User) -> None:
        """Garbage is bounded; of a processor that is dropped nothing is left."""
        world = self._world
        deadline_ms = world.now_ms() + SETTLE_MS
        while len(left := world.watcher.garbage()) > GARBAGE_MAX and world.now_ms() < deadline_ms:
            await world.clock.sleep_ms(200)
        if len(left) > GARBAGE_MAX:
            world.watcher.breach(f"{len(left)} blobs lie about that no commit lists, such as {left[0]}")
        if world.book.seed % 3 == 0 and world.state() == "FINISHED":
            error = await user.dropped()
            await world.clock.sleep_ms(SETTLE_MS)
            if error or world.store.rows:
                world.watcher.breach(f"dropped ({error}): {len(world.store.rows)} rows are left")
        deadline_ms = world.now_ms() + NOBODYS_MS
        while (left := world.stands_still() or world.watcher.nobodys()) and world.now_ms() < deadline_ms:
            await world.clock.sleep_ms(200)
        if left:
            world.watcher.breach(f"nobody's, and left: {left[:3]}")
