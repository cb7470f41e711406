# ruff: noqa: N802 -- a test carries its rule's name
"""What is nobody's goes, whoever made it and when; nothing goes that a row speaks of, or that another installation may own (C12)."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.contract.commit_support import NOW_MS, lead, row_of
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_commit_store import MemoryCommitState, MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import EdgeId, Incarnation, JobId, LeaderToken, ProcessorName
from tidemark.shared.model.messages import EdgeBinding, RunningPlan
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.ports.commits import StoreLost
from tidemark.shared.protocol.coordinator.record import Decisions, OldJob, encode_kept, encode_plan
from tidemark.shared.runtime.context import Outside
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.sweeping import Sweeper, mark_of
from tidemark.shared.runtime.topics import Topics

OTHERS = "f" * 32
INTERVAL_MS = 1_000
DEAD, LIVING, OLD, EDGE, GONE_EDGE, UNWANTED = range(6)


class Installation:
    """A leader's outside, with things of several jobs and edges."""

    def __init__(self, world: VirtualWorld) -> None:
        self.broker = MemoryBroker(world.clock)
        self.state = MemoryCommitState()
        self.store = MemoryCommitStore(self.state)
        settings = RuntimeSettings(garbage_interval_ms=INTERVAL_MS)
        log, blobs = MemoryLog(self.broker), MemoryBlobs(world.executor)
        self.outside = Outside(log, blobs, world.clock, world.executor, Topics(), settings, lambda: "u")
        self.token = LeaderToken(0)
        self.mark = ""
        self.left: set[str] = set()
        """Behind the look."""

    async def furnished(self) -> None:
        """The processor has a job, an old one, an edge, and a topic that is to go; beside them lies what is nobody's."""
        self.broker.create_topic(Topics().registry, 1)
        self.mark = await mark_of(self.outside)
        self.token = await lead(self.store)
        await self.store.create(self.row("orders", LIVING))
        for job in (self.id(DEAD), self.id(LIVING), self.id(OLD), OTHERS, "notes"):
            await self.outside.blobs.put(f"{job}/v/1/2/x", b"")
            self.broker.create_topic(Topics().commits(JobId(job)), 1)
            self.broker.create_topic(f"{Topics().markers(JobId(job))}emit.0", 1)
        for incarnation in (EDGE, GONE_EDGE, UNWANTED):
            self.broker.create_topic(self.edge(incarnation), 1)

    def id(self, number: int) -> str:
        """One that this installation gave."""
        return f"{self.mark}{number:016x}"

    def edge(self, number: int) -> str:
        """The topic of an edge."""
        return f"tidemark.orders.read-emit.{self.id(number)}"

    def row(self, name: str, job: int) -> ProcessorRow:
        """Of a processor."""
        edge = EdgeBinding(EdgeId("read-emit"), Incarnation(self.id(EDGE)), self.edge(EDGE), 1, 1)
        kept = Decisions(old_jobs=(OldJob(JobId(self.id(OLD)), ()),), unwanted_topics=(self.edge(UNWANTED),))
        return row_of(
            self.token,
            name=ProcessorName(name),
            job=JobId(self.id(job)),
            plan=encode_plan(RunningPlan(1, "{}", {}, (edge,))),
            extra=encode_kept(kept),
        )

    async def there(self) -> set[str]:
        """Topics, and folders of blobs."""
        return {*self.broker.topics(), *(name.partition("/")[0] for name in await self.outside.blobs.list(""))}


def _swept(act: Callable[[Installation], Awaitable[None]] | None = None, *, leads: bool = True) -> tuple[set[str], Any]:
    """What a look has taken away. `act`: what happens before it."""

    async def story(world: VirtualWorld) -> tuple[set[str], Any]:
        there = Installation(world)
        await there.furnished()
        if act is not None:
            await act(there)
        before = await there.there()
        sweeper = Sweeper(there.outside, there.store, lease_ms=10 * NOW_MS)
        broken: list[BaseException] = []
        handle = world.executor.spawn(sweeper.run(lambda: there.token if leads else None), "sweep", broken.append)
        await world.clock.sleep_ms(INTERVAL_MS + 500)
        handle.cancel()
        there.left = await there.there()
        return before - there.left, (there, broken)

    return run_virtual(story)


def test_C12_what_no_row_speaks_of_goes_and_nothing_else() -> None:
    """A dead job's blobs, mirror, markers, a dead edge's topic; not what a row names in any way, nor what has another's id, or none."""
    gone, (there, broken) = _swept()
    job = there.id(DEAD)
    assert gone == {job, f"tidemark.{job}.commits", f"tidemark.markers.{job}.emit.0", there.edge(GONE_EDGE)}
    assert not broken


def test_C12_rows_are_read_behind_the_names() -> None:
    """A processor that comes between the two looks keeps what it makes at once."""

    async def comes(there: Installation) -> None:
        blobs, find = there.outside.blobs, there.outside.blobs.folders

        async def folders() -> list[str]:
            blobs.folders = find  # type: ignore[method-assign]
            await there.store.create(there.row("late", 9))
            await blobs.put(f"{there.id(9)}/v/1/2/x", b"")
            return await find()

        blobs.folders = folders  # type: ignore[method-assign]

    gone, (there, _) = _swept(comes)
    assert there.id(DEAD) in gone
    assert there.id(9) in there.left
    assert [row.name for row in there.state.rows.values()] == ["orders", "late"]


def test_C12_a_store_that_has_lost_rows_lets_nothing_go() -> None:
    """An older copy took its place as the rows were read: what it does not know is not dead, and the leader ends with the sentence."""

    async def falls_back(there: Installation) -> None:
        read = there.store.processors

        async def processors() -> list[ProcessorRow]:
            there.state.rows.clear()
            there.state.changes -= 1
            return await read()

        there.store.processors = processors  # type: ignore[method-assign]

    gone, (_, broken) = _swept(falls_back)
    assert not gone
    assert [type(error) for error in broken] == [StoreLost]


@pytest.mark.parametrize("how", ["deposed", "stands by"])
def test_C12_who_does_not_lead_sweeps_nothing(how: str) -> None:
    """Another leader may have given what this one does not know."""

    async def deposed(there: Installation) -> None:
        there.state.holder = ""
        await lead(there.store, "b")

    gone, _ = _swept(deposed) if how == "deposed" else _swept(leads=False)
    assert not gone


def test_C12_without_ids_of_topics_nothing_is_known_to_be_its_own() -> None:
    """A cluster that gives topics none: ids have no mark, and nothing is looked for."""

    async def nameless(there: Installation) -> None:
        there.broker.delete_topic(Topics().registry)

    gone, (there, broken) = _swept(nameless)
    assert not gone
    assert not broken
    assert there.mark
