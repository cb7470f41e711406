"""Sinks under long random stories: several holders, some of them zombies, checkpoints that fail, targets that break (section 6)."""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.sinks_targets import FilesWorld, KafkaWorld, MemoryWorld, SqlWorld
from tidemark.services.library.release_world import Target, Task, World
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.faults import FaultRates, Faults
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.ports.log import Fenced, LogError
from tidemark.shared.ports.sink import MarkerAhead, ReleaseGap, TargetRefused, TargetUnavailable

ACTIONS = 120
STEPS = ("accept", "accept", "stage", "commit", "commit", "release", "release") * 2 + ("replace",)


class FaultyKafka(KafkaWorld):
    """Every sink object has a connection that breaks now and then; readers have none that does."""

    def __init__(self, seed: int) -> None:
        broker = MemoryBroker(SystemClock())
        super().__init__(MemoryLog(broker))
        self.faults = Faults(random.Random(seed), FaultRates(refused=0.03, lost_answer=0.03))
        self.broker = broker

    def sink(self):  # type: ignore[no-untyped-def] # noqa: ANN201 - as the base class
        quiet, self.log = self.log, MemoryLog(self.broker, self.faults)
        try:
            return super().sink()
        finally:
            self.log = quiet


WORLDS: dict[str, Callable[[Path, int], Target]] = {
    "memory": lambda _, __: MemoryWorld(),
    "files": lambda path, _: FilesWorld(path, "json"),
    "sqlite": lambda path, _: SqlWorld(f"sqlite:///{path}/t.db", when_matched="fail"),
    "kafka": lambda _, seed: FaultyKafka(seed),
}

EXPECTED_OF_A_HOLDER = (TargetUnavailable, LogError)
EXPECTED_OF_A_ZOMBIE = (*EXPECTED_OF_A_HOLDER, TargetRefused, MarkerAhead, ReleaseGap)


class Story:
    """The coordinator's view: one holder at a time counts, the others are zombies that do not know it."""

    def __init__(self, world: World, chooser: random.Random) -> None:
        self.world = world
        self.chooser = chooser
        self.holder: Task | None = None
        self.zombies: list[Task] = []

    async def act(self) -> None:
        if self.holder is None:
            await self.replace()
        elif self.zombies and self.chooser.random() < 0.3:
            await self.haunt(self.chooser.choice(self.zombies))
        else:
            await self.work(self.holder)
        await self.world.check()

    async def replace(self) -> None:
        """A new generation: what was staged and not committed is gone."""
        if self.holder is not None and self.chooser.random() < 0.6:
            self.zombies = [*self.zombies[-2:], self.holder]
        self.holder = None
        task = Task(self.world)
        with contextlib.suppress(*EXPECTED_OF_A_HOLDER):
            await task.start()
            self.holder = task

    async def work(self, task: Task) -> None:
        step = self.chooser.choice(STEPS)
        if step == "replace":
            await self.replace()
            return
        if step == "commit":
            # Only what the holder staged, and only once, in order.
            if task.staged is not None and task.staged[0] > self.world.last:
                await task.commit()
            return
        try:
            await getattr(task, step)()
        except Fenced:
            # A zombie with a connection of its own has taken the identity: the generation fails, another follows.
            await self.replace()
        except EXPECTED_OF_A_HOLDER:
            if step == "accept":
                # Nothing of the batch was taken.
                return

    async def haunt(self, task: Task) -> None:
        with contextlib.suppress(*EXPECTED_OF_A_ZOMBIE):
            await getattr(task, self.chooser.choice(["accept", "stage", "release", "release"]))()

    async def finish(self) -> None:
        """In the end a holder without faults releases all, twice over."""
        for _ in range(50):
            await self.replace()
            if self.holder is not None:
                with contextlib.suppress(*EXPECTED_OF_A_HOLDER):
                    await self.holder.release()
                    await self.world.complete()
                    return
        raise AssertionError("the target never came to rest")


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("name", list(WORLDS))
async def test_committed_output_is_visible_once_in_any_story(name: str, seed: int, tmp_path: Path) -> None:
    """At every moment readers see only committed rows, each once; when all has come to rest, all of them."""
    chooser = random.Random(seed)
    story = Story(World(WORLDS[name](tmp_path, seed)), chooser)
    for _ in range(ACTIONS):
        await story.act()
    await story.finish()
    assert story.world.commits
