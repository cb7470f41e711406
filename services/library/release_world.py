"""A world for sinks: a coordinator that commits, tasks that stage and release, and crashes between them.

Input is the numbers 0, 1, 2, …; each is one row. A task takes the next ones from where the last commit ended, so that after a crash the
same numbers come again. `World.check` says what readers may see at any moment: what was committed, each once.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import pyarrow as pa

from tidemark.shared.adapters.executor import Spawner
from tidemark.shared.model.checkpoint import MirrorRow, ReleaseHandle
from tidemark.shared.model.ids import Epoch, Generation, JobId, VertexId
from tidemark.shared.operators.base import TS
from tidemark.shared.ports.clock import T
from tidemark.shared.ports.log import Fenced, LogError
from tidemark.shared.ports.sink import Identity, SinkPort, TargetRefused, TargetUnavailable

JOB = JobId("0" * 31 + "1")
IDENTITY = Identity(JOB, VertexId("emit"), 0)
ROWS_AN_EPOCH = 3
"""Enough for an epoch to be divided."""


class Target(Protocol):
    """The outside of a sink: makes sink objects on it, and reads it as anybody would."""

    def sink(self) -> SinkPort:
        """A new sink object on the target."""
        ...

    async def visible(self) -> list[int]:
        """The numbers that a reader sees."""
        ...


class InlineSpawner(Spawner):
    """An executor that runs blocking work at once."""

    def blocking(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        """See `Executor.blocking`."""

        async def at_once() -> T:
            return work(*args)

        return at_once()


def batch_of(numbers: Sequence[int]) -> pa.RecordBatch:
    """Rows of the user's columns `id`, `name` and `even`, and the engine's event time."""
    return pa.RecordBatch.from_pydict(
        {
            TS: pa.array([1000 * n for n in numbers], pa.int64()),
            "id": pa.array(list(numbers), pa.int64()),
            "name": pa.array([f"n{n}" for n in numbers], pa.string()),
            "even": pa.array([n % 2 == 0 for n in numbers], pa.bool_()),
        }
    )


def row_of(
    epoch: int, predecessor: int, staged: bytes, *, final: bool = False, identity: Identity = IDENTITY
) -> MirrorRow:
    """A commit with one sink task."""
    handle = ReleaseHandle(identity.vertex, identity.index, staged, "")
    return MirrorRow(identity.job, Epoch(epoch), Epoch(predecessor), Generation(1), (handle,), final)


@dataclass
class World:
    """The truth: what is committed."""

    target: Target
    commits: list[tuple[MirrorRow, bytes]] = field(default_factory=list)
    committed_rows: int = 0
    identity: Identity = IDENTITY
    given: int = 0
    """Checkpoint numbers given out: never twice (C1)."""

    @property
    def last(self) -> Epoch:
        """The last commit."""
        return self.commits[-1][0].epoch if self.commits else Epoch(0)

    def next_epoch(self) -> Epoch:
        """The number of a checkpoint that begins."""
        self.given += 1
        return Epoch(self.given)

    def commit(self, epoch: Epoch, staged: bytes, rows: int, *, final: bool = False) -> None:
        """Commit a checkpoint that has been staged; `rows`: of the input up to it."""
        self.commits.append((row_of(epoch, self.last, staged, final=final, identity=self.identity), staged))
        self.committed_rows = rows

    async def check(self) -> None:
        """Readers see committed rows only, each once (must hold at every moment)."""
        seen = await self.target.visible()
        assert len(seen) == len(set(seen)), f"a row is released twice: {sorted(seen)}"
        assert set(seen) <= set(range(self.committed_rows)), (
            f"not committed: {sorted(set(seen) - set(range(self.committed_rows)))}"
        )

    async def complete(self) -> None:
        """Readers see all that is committed."""
        assert sorted(await self.target.visible()) == list(range(self.committed_rows))


class Task:
    """One attempt of a sink's task."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sink = world.target.sink()
        self.marker = Epoch(0)
        self.taken = world.committed_rows
        self.committed = world.last
        self.staged: tuple[Epoch, bytes, int] | None = None

    async def start(self) -> None:
        """Open, and release what was committed before (S1)."""
        self.marker = await self.sink.open(self.world.identity, self.committed)
        await self.release()

    async def accept(self) -> None:
        """The next rows of the input."""
        numbers = range(self.taken, self.taken + ROWS_AN_EPOCH)
        assert not await self.sink.accept(batch_of(numbers))
        self.taken += ROWS_AN_EPOCH

    async def stage(self) -> None:
        """End the epoch."""
        epoch = self.world.next_epoch()
        self.staged = (epoch, await self.sink.stage(epoch, self.committed), self.taken)

    async def commit(self) -> None:
        """The last staged epoch is committed."""
        assert self.staged is not None
        self.world.commit(*self.staged)
        self.committed = self.world.last

    async def release(self) -> None:
        """All that is committed and above the marker, in order."""
        for row, staged in self.world.commits:
            if row.epoch > self.marker:
                await self.sink.release(row, staged)
                self.marker = row.epoch

    async def epoch(self) -> None:
        """A whole epoch without a fault."""
        for step in (self.accept, self.stage, self.commit, self.release):
            await step()
            await self.world.check()


PHASES: Final = ("accept", "stage", "commit", "release")
"""Of an epoch."""


async def crash_after(task: Task, phase: str) -> None:
    """Run an epoch up to and with a phase; what follows never happens."""
    for step in PHASES[: PHASES.index(phase) + 1]:
        await getattr(task, step)()
        await task.world.check()


async def haunt(task: Task) -> None:
    """A zombie's attempts: to release the commits that it knows of, and to go on with its epoch. Either may be refused."""
    for step in (task.release, task.accept, task.stage, task.release):
        with contextlib.suppress(Fenced, LogError, TargetUnavailable, TargetRefused):
            await step()
        await task.world.check()


async def story_of_two_crashes(target: Target, first: str, second: str, *, zombies: bool) -> None:
    """Two crashes, each behind a phase, with or without the old objects going on: all that is committed is visible once."""
    world = World(target)
    old = Task(world)
    await old.start()
    await old.epoch()
    await crash_after(old, first)
    middle = Task(world)
    if zombies:
        await old.accept()
    await middle.start()
    await world.check()
    if zombies:
        await haunt(old)
    await crash_after(middle, second)
    if zombies:
        await haunt(old)
    new = Task(world)
    await new.start()
    await world.check()
    await world.complete()
    if zombies:
        await haunt(middle)
        await haunt(old)
    # A zombie that was given a writer of its own may have fenced the newest, which is then replaced.
    newest = Task(world)
    await newest.start()
    await newest.epoch()
    await newest.epoch()
    await world.complete()
