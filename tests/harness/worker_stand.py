"""A worker on a stand: the test is the coordinator, and brings the bodies of the tasks. On virtual time, over a log in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.harness.driver_stand import WaitingBody
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.faults import Faults
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.language.documents import parse
from tidemark.shared.model.checkpoint import LineageEntry
from tidemark.shared.model.ids import (
    Epoch,
    Generation,
    Incarnation,
    JobId,
    LeaderToken,
    Offset,
    Place,
    ProcessorName,
    WorkerIncarnation,
)
from tidemark.shared.model.messages import Assign, EdgeBinding, RunningPlan
from tidemark.shared.model.plan import PhysicalPlan
from tidemark.shared.planning import plan_processor
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.body import TaskBody
from tidemark.shared.runtime.context import AssignedTask, Outside
from tidemark.shared.runtime.fencing import signed
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.runtime.worker import Worker
from tidemark.shared.wire.limits import WireLimits
from tidemark.shared.wire.messages import decode_positions, decode_report, encode_message

JOB = JobId("0" * 32)
ME = WorkerIncarnation("w1")
DOCUMENT = '{"pipeline": [{"$source": {"documents": [{"a": 1}]}}, {"$match": {"a": 1}}]}'
TOPICS = Topics()
R = TypeVar("R")


def plan_of(document: str) -> PhysicalPlan:
    return plan_processor(parse(document), collects=True)


def running(document: str = DOCUMENT, tasks: int = 1) -> RunningPlan:
    """A plan as the coordinator would bind it; topics are named after their edges."""
    plan = plan_of(document)
    counts = {v.id: tasks for v in plan.vertices}
    edges = tuple(
        EdgeBinding(e.id, Incarnation(f"{e.id}#1"), "".join(c if c.isalnum() else "-" for c in e.id), tasks, tasks)
        for e in plan.edges
    )
    return RunningPlan(1, document, counts, edges, 128, {v.id: v.service for v in plan.vertices})


@dataclass
class StubService:
    """Every task has a body of the test's making."""

    make: Callable[[AssignedTask], TaskBody]
    name: str = "sink"
    built: list[AssignedTask] = field(default_factory=list)

    async def build(self, context: AssignedTask) -> TaskBody:
        self.built.append(context)
        return self.make(context)

    async def close(self) -> None: ...


@dataclass
class WorkerStand:
    """A worker that runs."""

    world: VirtualWorld
    broker: MemoryBroker
    faults: Faults
    worker: Worker
    service: StubService
    outside: Outside
    plan: RunningPlan

    async def tell(self, *commands: Any, leader: int = 0) -> None:
        """As the coordinator says it; `leader`: its token."""
        await self._write(TOPICS.commands, *commands, leader=leader)

    async def flow(self, *positions: Any) -> None:
        await self._write(TOPICS.flow, *positions)

    async def _write(self, topic: str, *messages: Any, leader: int = 0) -> None:
        writer = await MemoryLog(self.broker).writer("test")
        headers = signed(LeaderToken(leader))
        for message in messages:
            await (await writer.send(TopicPartition(topic, 0), NewRecord(encode_message(message), headers=headers)))
        await writer.close()

    def assign(self, generation: int = 1, *, to: str = ME, vertex: str = "collect-1", **options: Any) -> Assign:
        lineage = tuple(LineageEntry(Generation(g), Epoch(0), 1) for g in range(1, generation + 1))
        return Assign(
            to=WorkerIncarnation(to),
            name=ProcessorName("p"),
            job=JOB,
            generation=Generation(generation),
            lineage=lineage,
            plan=self.plan,
            vertex=vertex,  # type: ignore[arg-type]
            **{"last": Epoch(0), "index": 0, **options},
        )

    async def reports(self, kind: type[R]) -> list[R]:
        """What the worker has said so far, of one kind."""
        return [report for report in map(decode_report, await self._told(TOPICS.reports)) if isinstance(report, kind)]

    async def positions(self, incarnation: Incarnation) -> list[Offset]:
        """How far the worker has told senders that an edge is read, in the order of the reports."""
        told = [decode_positions(value, WireLimits()) for value in await self._told(TOPICS.flow)]
        return [p.offset for positions in told for p in positions.positions if p.incarnation == incarnation]

    async def _told(self, topic: str) -> list[bytes]:
        log = MemoryLog(self.broker)
        at = TopicPartition(topic, 0)
        end = (await log.end_offsets([at]))[at]
        reader = await log.reader()
        await reader.assign({at: Offset(0)})
        found: list[bytes] = []
        while reader.position(at) < end:
            found += [record.value or b"" for record in await reader.fetch(1000, 1)]
        await reader.close()
        return found

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(4000):
            if holds():
                return
            await self.world.clock.sleep_ms(5)
        raise AssertionError("it never came to hold")

    async def said(self, kind: type[R], count: int = 1) -> list[R]:
        """Let time pass until the worker has said so many of a kind."""
        for _ in range(4000):
            found = await self.reports(kind)
            if len(found) >= count:
                return found
            await self.world.clock.sleep_ms(5)
        raise AssertionError(f"the worker never said {count} {kind.__name__}")

    async def settle(self, ms: int = 1000) -> None:
        """Let time pass: whatever can happen has happened."""
        await self.world.clock.sleep_ms(ms)


@asynccontextmanager
async def working(
    world: VirtualWorld,
    *,
    make: Callable[[AssignedTask], TaskBody] | None = None,
    settings: RuntimeSettings | None = None,
    plan: RunningPlan | None = None,
    log: Callable[[MemoryBroker, Faults], MemoryLog] = MemoryLog,
) -> AsyncIterator[WorkerStand]:
    """A worker that has registered, if its `log` lets it, and the topics of the plan's edges."""
    broker, faults = MemoryBroker(world.clock), Faults()
    blobs = MemoryBlobs(world.executor)
    numbers = iter(range(10**6))
    outside = Outside(
        log=log(broker, faults),
        blobs=blobs,
        clock=world.clock,
        executor=world.executor,
        topics=TOPICS,
        settings=settings or RuntimeSettings(collects=True, engine="local"),
        unique=lambda: f"u{next(numbers)}",
    )
    bound = plan or running()
    for edge in bound.edges:
        broker.create_topic(edge.topic, edge.receivers)
    service = StubService(make or (lambda _: WaitingBody(blobs)))
    worker = Worker(Place("sink-0"), ME, service, outside)
    errors: list[BaseException] = []
    handle = world.executor.spawn(worker.run(), "worker", errors.append)
    stand = WorkerStand(world, broker, faults, worker, service, outside, bound)
    await stand.settle(300)
    try:
        yield stand
        assert errors == []
    finally:
        worker.stop()
        await handle.join()
        await blobs.close()


def at_work(story: Callable[[WorkerStand], Awaitable[None]], **options: Any) -> None:
    """A story with a worker that runs; options: of `working`."""

    async def main(world: VirtualWorld) -> None:
        async with working(world, **options) as stand:
            await story(stand)

    run_virtual(main)
