"""A user of an installation: gives orders, looks at what came of them, and orders what the product says where it has FAILED."""

import asyncio
import json
import re
from collections.abc import Callable

from tests.harness.simulation.drawing import NAME, document, waits_ms
from tests.harness.simulation.redriving import redriven
from tests.harness.simulation.world import SimWorld
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.messages import (
    CreateProcessor,
    DropProcessor,
    KeepCheckpoint,
    ModifyProcessor,
    Request,
    SkipRelease,
    StartProcessor,
    StopProcessor,
)

END_MS = 60_000
"""Virtual time from the end of all faults, or from what a user ordered last, to the end of the processor, at the most."""
TRIES = 30
STEP_MS = 500
KEPT = "then"
"""The name of a checkpoint."""
ENDED = ("STOPPED", "FINISHED", "FAILED")


class Unfinished(Exception):
    """The story did not come to its end: says what was waited for."""


class User:
    """Orders that belong together are given by one hand: another's wait for them."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._hand = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()

    def does(self, what: str, choice: int) -> None:
        """Begin an order of the plan; `settled` waits for it."""
        acts: dict[str, Callable[[int], object]] = {
            "rescale": self._rescale,
            "modify": self._modify,
            "stop and start": self._stop_and_start,
            "begin anew": self._begin_anew,
            "drop and create": self._drop_and_create,
            "topic made anew": self._remake_topic,
            "go back": self._go_back,
            "redrive": self._redrive,
        }

        async def act() -> None:
            await acts[what](choice)  # type: ignore[misc]

        task = asyncio.ensure_future(act())
        self._under_way.add(task)

    async def settled(self) -> None:
        """All orders of the plan were given, and what they were for was waited for."""
        while self._under_way:
            done, self._under_way = self._under_way, set()
            await asyncio.gather(*done)

    # --- the life of a processor ------------------------------------------------------------------------------------------

    async def created(self) -> None:
        """It is there. Unfinished."""
        world = self._world
        text, tasks = json.dumps(world.scenario.document), dict(world.scenario.tasks)
        error, unsure = "", bool(world.store.rows)
        for _ in range(TRIES):
            error = await world.ask(lambda request: CreateProcessor(request, NAME, text, tasks))
            if not unsure and "exists" in error:
                world.watcher.breach(f"the first to create it was told: {error} (C8)")
            if not error or "exists" in error:
                return
            unsure = True
            await world.clock.sleep_ms(STEP_MS)
        raise Unfinished(f"never created: {error}")

    async def started(self, *, resume: bool = True) -> None:
        """It is started. Unfinished."""
        world = self._world
        error = ""
        for _ in range(TRIES):
            error = await world.ask(lambda request: StartProcessor(request, NAME, resume))
            if not error or (resume and world.state() == "FINISHED") or "is running: stop it" in error:
                return
            await world.clock.sleep_ms(STEP_MS)
        raise Unfinished(f"never started: {error}")

    async def drained(self) -> None:
        """A stop with drain at the offsets behind what was fed. Unfinished."""
        async with self._hand:
            await self._drained()

    async def _drained(self) -> None:
        world, ends = self._world, self._world.scenario.ends()
        error = ""
        for _ in range(TRIES):
            error = await world.ask(lambda request: StopProcessor(request, NAME, drain=True, until=ends))
            state = world.state()
            if not error or state == "FINISHED":
                return
            if state == "FAILED" and not await self._repaired():
                raise Unfinished(f"FAILED: {world.reason()}")
            if state == "STOPPED":
                await self.started()
            await world.clock.sleep_ms(STEP_MS)
        raise Unfinished(f"the drain was never accepted: {error}; {world.reason()}")

    async def finished(self) -> None:
        """It is drained, and its end is told everywhere. Unfinished where that takes longer than END_MS."""
        world = self._world
        deadline_ms = world.now_ms() + END_MS
        while world.now_ms() < deadline_ms:
            row, state = world.store.rows.get(NAME), world.state()
            if state == "FAILED":
                if not await self._repaired():
                    world.watcher.breach(f"FAILED: {world.reason()}")
                    return
                deadline_ms = world.now_ms() + END_MS
            elif state == "STOPPED":  # another order came before the drain
                await self.started()
                await self.drained()
            elif row is not None and row.desired == "running":  # another life has begun behind the drain
                await self.drained()
            elif state == "FINISHED" and not world.watcher.registry_wrong():
                for split in world.watcher.read_unnoticed():
                    world.watcher.breach(
                        f"{split} was made anew, and the processor has read on there as if it had not (I2)"
                    )
                return
            await world.clock.sleep_ms(200)
        row, said = world.store.rows.get(NAME), world.watcher.registry_wrong()
        found = row and (row.state, row.desired, row.reason, row.generation)
        raise Unfinished(f"{END_MS} ms behind the last fault: {found}; {said}")

    async def dropped(self) -> str:
        """It is gone; "" or why it is not."""
        world = self._world
        error, unsure = "", not world.store.rows
        for _ in range(TRIES):
            error = await world.ask(lambda request: DropProcessor(request, NAME))
            if not unsure and "no processor" in error:
                world.watcher.breach(f"the first to drop it was told: {error} (C8)")
            if not world.store.rows:
                return ""
            unsure = True
            await world.clock.sleep_ms(STEP_MS)
        return error or "accepted"

    async def _repaired(self) -> bool:
        """What the product says that a user may order where it has FAILED; False where it must not have."""
        world, reason = self._world, self._world.reason()
        if world.remade and "not found in the cluster" in reason:  # it was looked for before it was made anew
            await self.started()
            return True
        if world.remade and "made anew" in reason:
            await self.started(resume=False)
            return True
        refused = re.search(r"commit (\d+), record", reason) if world.scenario.refuses else None
        if refused is None:
            return False
        epoch = Epoch(int(refused[1]))
        world.say(f"passes over what is refused of commit {epoch}")
        await world.ask(lambda request: SkipRelease(request, NAME, epoch))
        await self.started()
        return True

    # --- orders of the plan -----------------------------------------------------------------------------------------------

    async def _ask(self, make: Callable[[str], Request]) -> str:
        return await self._world.ask(make)

    async def _rescale(self, choice: int) -> None:
        counts = {"source": 1 + choice % 2, "operator": 1 + choice % 3, "sink": 1 + choice // 3 % 2}
        counts["spark"] = 1 + choice // 2 % 3
        await self._ask(lambda request: ModifyProcessor(request, NAME, None, counts, True))

    async def _modify(self, choice: int) -> None:
        scenario = self._world.scenario
        changed = document(
            scenario.shape,
            scenario.target,
            scenario.letters,
            self._world.targets.url,
            union=scenario.union,
            scope=scenario.scope,
            waits_ms=waits_ms(scenario.seed + choice),
            variant=choice,
        )
        text = json.dumps(changed)
        await self._ask(lambda request: ModifyProcessor(request, NAME, text, None, True))

    async def _stop_and_start(self, _: int) -> None:
        """Without drain; whoever else starts it meanwhile is welcome."""
        async with self._hand:
            if await self._stopped() == "STOPPED":
                await self._ask(lambda request: StartProcessor(request, NAME, resume=True))

    async def _stopped(self) -> str:
        """The state that a stop without drain has led to, if it was heard."""
        world = self._world
        for _ in range(TRIES):
            if world.state() not in ENDED:
                await self._ask(lambda request: StopProcessor(request, NAME, drain=False))
            await world.clock.sleep_ms(300)
            if world.state() in ENDED:
                break
        return world.state()

    async def _begin_anew(self, _: int) -> None:
        """Without state: what is committed is released, then another life begins with the first record."""
        async with self._hand:
            if await self._stopped() in ENDED:
                await self.started(resume=False)

    async def _go_back(self, choice: int) -> None:
        """To a checkpoint that was kept a while before: what has come out since comes out again."""
        for _ in range(TRIES):  # there may be none yet
            if not (error := await self._ask(lambda request: KeepCheckpoint(request, NAME, KEPT))) or KEPT in error:
                break
            await self._world.clock.sleep_ms(STEP_MS)
        await self._world.clock.sleep_ms(choice % 7 * 300)
        async with self._hand:
            if await self._stopped() in ENDED:
                await self._ask(lambda request: StartProcessor(request, NAME, checkpoint=KEPT))

    async def _drop_and_create(self, _: int) -> None:
        """Another processor has the name."""
        async with self._hand:
            if await self._stopped() not in ENDED:
                return
            if not await self.dropped():
                await self.created()
                await self.started()

    async def _redrive(self, _: int) -> None:
        """Perhaps it cannot be done now; the one at the end is."""
        if self._world.scenario.redriven:
            await redriven(self._world, tries=2)

    async def _remake_topic(self, choice: int) -> None:
        """The first source's topic is deleted, made anew, and filled with as much as the old one had, at once or a moment later."""
        world = self._world
        async with world.feeding:
            topic = min(at.topic for at in world.scenario.lanes)
            had = world.lose_topic(topic)
            await world.clock.sleep_ms(choice % 4 * 700)
            world.make_topic_anew(topic, had)
