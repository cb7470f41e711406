# ruff: noqa: N802 -- a test carries its rule's name
"""A task is cancelled while a step of its sink runs on a thread: the step goes on, and what comes after it loses and repeats nothing."""

import asyncio
import random
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

import pytest

from tests.contract.sinks_targets import (
    AvroWorld,
    FilesWorld,
    KafkaWorld,
    MongoWorld,
    ObjectsWorld,
    PluginWorld,
    SqlWorld,
)
from tests.harness.mongodb.servers import Servers
from tidemark.services.library.release_world import InlineSpawner, Task, World
from tidemark.shared.adapters.executor import AsyncExecutor, Spawner

T = TypeVar("T")

TARGETS: Final[dict[str, Callable[[Path], Any]]] = {
    "parquet": lambda path: FilesWorld(path, "parquet"),
    "iceberg": lambda path: FilesWorld(path, "iceberg"),
    "json": lambda path: FilesWorld(path, "json"),
    "objects": lambda _: ObjectsWorld(),
    "kafka": lambda _: KafkaWorld(),
    "kafka-avro": lambda _: AvroWorld(),
    "plugin": PluginWorld,
    "sqlite": lambda path: SqlWorld(f"sqlite:///{path}/t.db", when_matched="fail"),
}
SERVED: Final = [
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mongodb", marks=pytest.mark.mongodb),
]
PHASES: Final = ("start", "accept", "stage", "release")
STORIES: Final = 6
_ENDS_S: Final = 0.05
"""A cancelled task that does not wait for its step has ended by then; if it has not, the test sees less, and does not fail."""


@pytest.fixture(params=[*TARGETS, *SERVED])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "mongodb":
        servers: Servers = request.getfixturevalue("mongodb_servers")
        collection = MongoWorld(servers.replicas, when_matched="fail")
        yield collection
        collection.close()
    elif request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        world = SqlWorld(url.replace("postgresql://", "postgresql+psycopg://"), when_matched="fail")
        yield world
        world.engine.dispose()
    else:
        yield TARGETS[request.param](tmp_path)


class Changing(Spawner):
    """The executor that is named last."""

    def __init__(self) -> None:
        super().__init__()
        self.now: Any = InlineSpawner()

    def blocking(self, work: Callable[..., T], *args: Any) -> Awaitable[T]:
        """See `Executor.blocking`."""
        return self.now.blocking(work, *args)  # type: ignore[no-any-return]


class Stopping:
    """An executor on threads, one of whose steps stops at one of its calls of a function until it may go on."""

    def __init__(self, step: int, call: int) -> None:
        self.inner = AsyncExecutor()
        self.stopped, self.go_on = threading.Event(), threading.Event()
        self._steps, self._call = step, call

    def blocking(self, work: Callable[..., T], *args: Any) -> Awaitable[T]:
        """See `Executor.blocking`."""
        self._steps -= 1
        return self.inner.blocking(work, *args) if self._steps else self.inner.blocking(self._run, work, *args)

    def _run(self, work: Callable[..., T], *args: Any) -> T:
        left = self._call

        def count(_: FrameType, event: str, __: Any) -> None:
            nonlocal left
            left -= event == "call"
            if left == 0:
                sys.setprofile(None)
                self.stopped.set()
                self.go_on.wait()

        sys.setprofile(count)
        try:
            return work(*args)
        finally:
            sys.setprofile(None)
            self.stopped.set()


async def cancelled(phase: Awaitable[None], executor: Stopping) -> None:
    """The phase, cancelled in the middle of a step; returns when both have ended."""
    task = asyncio.ensure_future(phase)
    stopped = asyncio.create_task(asyncio.to_thread(executor.stopped.wait))
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    executor.stopped.set()
    task.cancel()
    await asyncio.wait({task}, timeout=_ENDS_S)
    executor.go_on.set()
    await asyncio.wait({task, stopped})
    await executor.inner.close()


@pytest.mark.parametrize("seed", range(3))
async def test_S5_a_cancelled_step_neither_loses_nor_repeats_rows(target: Any, seed: int) -> None:
    """Whatever the phase and the moment: the next object opens, releases what is committed, and goes on."""
    chooser = random.Random(seed)
    world = World(target)
    await Task(world).start()
    for _ in range(STORIES):
        target.executor = executor = Changing()
        old, phase = Task(world), chooser.choice(PHASES)
        before: dict[str, tuple[Any, ...]] = {"accept": (old.start,), "stage": (old.start, old.accept)}
        before["release"] = (*before["stage"], old.stage, old.commit)
        for step in before.get(phase, ()):
            await step()
        executor.now = stopping = Stopping(chooser.choice([1, 1, 2, 3, 4]), int(10 ** chooser.uniform(0, 3.5)))
        await cancelled(getattr(old, phase)(), stopping)
        target.executor = InlineSpawner()
        await world.check()
        new = Task(world)
        await new.start()
        await world.complete()
        await new.epoch()
        await world.complete()
