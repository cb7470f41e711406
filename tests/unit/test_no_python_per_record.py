"""The hot path of declared fields works on columns: ten times the records cost no more calls of Python and leave no more objects behind.

From raw records through the source's body (decoding, event time, watermark, a stateless kernel, partial aggregation) to the bytes
of a frame.
"""

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tests.harness.bench.documents import windowed
from tests.harness.bench.events import EVENT_BYTES, Load
from tidemark.services.source.body import SourceTaskBody
from tidemark.services.source.steps import Steps
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.kafka_batches import PartitionAnswer
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import InlineExecutor
from tidemark.shared.language.documents import parse
from tidemark.shared.model.checkpoint import KnownSplit, LineageEntry
from tidemark.shared.model.ids import (
    NO_EPOCH,
    EdgeId,
    Epoch,
    Generation,
    Incarnation,
    JobId,
    Offset,
    ProcessorName,
    SplitId,
    TaskId,
    WorkerIncarnation,
)
from tidemark.shared.model.messages import Assign, EdgeBinding, RunningPlan
from tidemark.shared.model.plan import PhysicalPlan
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.operators.build import build_chain
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.source_front import SourceFront
from tidemark.shared.planning import plan_processor
from tidemark.shared.protocol.task.start import TaskStart, start_task
from tidemark.shared.runtime.body import Fetched
from tidemark.shared.runtime.context import AssignedTask, Outside
from tidemark.shared.runtime.exchange import Exchange, OutEdge
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.frames import encode_frame

SMALL, LARGE = 10_000, 100_000
SPLIT = SplitId("events-0")
FEW = (LARGE - SMALL) // 100
"""Columns are worked on in blocks of many records: so much may grow."""


class _NoSource:
    """A source that is only asked for its splits: the test hands over what it has fetched."""

    async def splits(self) -> Mapping[SplitId, int]:
        return {SPLIT: 0}

    async def check(self, known: Mapping[SplitId, KnownSplit]) -> None:
        del known

    async def found(self, splits: Collection[SplitId], *, first: bool) -> Mapping[SplitId, KnownSplit]:
        del first
        return dict.fromkeys(splits, KnownSplit(0, "", Offset(0)))

    async def ends(self, positions: Mapping[SplitId, Offset]) -> Mapping[SplitId, Offset | None]:
        return dict.fromkeys(positions)

    async def open(self, positions: Mapping[SplitId, Offset]) -> None:
        del positions

    async def fetch(self, max_bytes: int, timeout_ms: int) -> Sequence[RawBatch]:
        raise AssertionError((max_bytes, timeout_ms))

    def status(self) -> Sequence[SplitStatus]:
        return [SplitStatus(SPLIT, Offset(0), at_end=False, finished=False)]

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        del until

    async def close(self) -> None:
        return


class Path:
    """A source's task from raw records to bytes."""

    def __init__(self) -> None:
        tree = json.loads(windowed("events", "results", epoch_ms=100))
        tree["pipeline"].insert(1, {"$match": {"amount": {"$gte": 0}}})
        document = json.dumps(tree)
        processor = parse(tree)
        plan = plan_processor(processor)
        vertex, edge = plan.vertices[0], plan.edges[0]
        binding = EdgeBinding(edge.id, Incarnation("i"), "t", 1, 1)
        running = RunningPlan(1, document, {v.id: 1 for v in plan.vertices}, (binding,))
        lineage = (LineageEntry(Generation(1), NO_EPOCH, 1),)
        assign = Assign(
            WorkerIncarnation("w"),
            ProcessorName("p"),
            JobId("j"),
            Generation(1),
            lineage,
            NO_EPOCH,
            running,
            vertex.id,
            0,
            listed=True,
            splits={SPLIT: KnownSplit(0, "", Offset(0))},
        )
        executor = InlineExecutor()
        outside = Outside(
            MemoryLog(MemoryBroker(SystemClock())),
            MemoryBlobs(executor),
            SystemClock(),
            executor,
            Topics(),
            RuntimeSettings(),
            lambda: "u",
        )
        context = AssignedTask(outside, assign, processor, plan, vertex, lambda _i, _e: None, lambda _e: None)
        operators = TaskContext(processor="p", topic="events")
        front, *behind = vertex.chain
        self.body = SourceTaskBody(
            context,
            _NoSource(),
            SourceFront(front, operators),
            build_chain(tuple(behind), operators),
            None,
            Steps(lambda _t: None, one_by_one=False, rows_too=False, settle_ms=0),
            bounded=False,
        )
        self.exchange = Exchange(JobId("j"), Generation(1), 128, [OutEdge(edge, 1)], outside.blobs, lambda: "u", 2**30)
        self.sender = _sender(plan, binding, lineage)
        self.position = 0

    async def run(self, batch: RawBatch) -> int:
        """Through everything, as a driver does; the bytes of the frames."""
        status = SplitStatus(SPLIT, Offset(self.position), at_end=False, finished=False)
        outs = [*await self.body.take(Fetched([batch], [status]), 0, 0), *await self.body.flush(Epoch(1))]
        size = 0
        for emission in await self.exchange.emissions(outs, Epoch(1)):
            for send in self.sender.data(
                EdgeId(emission.edge), emission.partition, [(emission.bodies, emission.size_bytes)]
            ):
                size += len(encode_frame(send.frame))
        return size


def _sender(plan: PhysicalPlan, binding: EdgeBinding, lineage: Sequence[LineageEntry]) -> Any:
    task = plan.vertices[0].id
    start = TaskStart(
        TaskId(task, 0), 1, JobId("j"), Generation(1), lineage, NO_EPOCH, [], [binding], {}, is_source=True
    )
    return start_task(start).sender


def raw(count: int, position: int) -> RawBatch:
    """So many events of 1,000 keys."""
    load = Load("events", count, 1_000)
    text = load.texts(0, count, *load.drawn())
    ends = np.arange(count + 1, dtype=np.int32) * EVENT_BYTES
    values = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(text)])
    positions = np.arange(position, position + count, dtype=np.int64)
    return RawBatch(SPLIT, 0, positions, np.zeros(count, dtype=np.int64), values, None)


async def counted(path: Path, count: int) -> tuple[int, int]:
    """(calls, blocks that stay allocated) of one batch."""
    batch = raw(count, path.position)
    path.position += count
    calls = 0

    def note(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getallocatedblocks()
    sys.setprofile(note)
    try:
        assert await path.run(batch) > 0
    finally:
        sys.setprofile(None)
    return calls, sys.getallocatedblocks() - before


async def test_ten_times_the_records_take_no_more_python() -> None:
    """Calls and allocated blocks of a batch of 100,000 records are those of one of 10,000, but for the blocks of columns."""
    path = Path()
    await path.body.open({})
    await counted(path, SMALL)  # what is made once, and what is cached
    small, large = await counted(path, SMALL), await counted(path, LARGE)
    assert large[0] - small[0] < FEW, f"calls grew from {small[0]} to {large[0]}"
    assert large[1] - small[1] < FEW, f"allocated blocks grew from {small[1]} to {large[1]}"


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_batches_of_a_log_are_taken_apart_without_python(count: int) -> None:
    """Kafka's batches become columns with the same few calls, whatever they hold."""
    builder = DefaultRecordBatchBuilder(
        2, 0, is_transactional=False, producer_id=-1, producer_epoch=0, base_sequence=0, batch_size=10**9
    )
    for i in range(count):
        builder.append(i, 0, None, b"%060d" % i, [])
    data = bytes(builder.build())
    calls = 0

    def note(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        records, _ = PartitionAnswer(data, 0, 0, (), committed_only=True).take(10**9, with_keys=True)
    finally:
        sys.setprofile(None)
    assert records is not None
    assert len(records.values) == count
    assert calls < 250
