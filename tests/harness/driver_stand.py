"""A task's driver on a stand: in edges that the test writes, one out edge that it reads, a body that waits where the test says.

Everything lies in memory and runs on virtual time. `Stand.until` lets time pass until something holds; a test never sleeps.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.faults import Faults
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld
from tidemark.shared.model.checkpoint import BlobRef, LineageEntry, TaskHandle, TaskProtocolState
from tidemark.shared.model.frames import BarrierFrame, Body, DataFrame, EndFrame, Frame, Header, Inline, WatermarkFrame
from tidemark.shared.model.ids import (
    TASK_PART,
    EdgeId,
    Epoch,
    Generation,
    Incarnation,
    JobId,
    Offset,
    Seq,
    StatePart,
    TaskId,
    VertexId,
)
from tidemark.shared.model.messages import EdgeBinding
from tidemark.shared.model.plan import OUT, Edge
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import TS, Out
from tidemark.shared.ports.blobs import BlobStore
from tidemark.shared.ports.log import LogRecord, NewRecord, TopicPartition
from tidemark.shared.protocol.task.start import TaskLimits, TaskStart, start_task
from tidemark.shared.runtime.body import Copied, ReceivingBody, TaskBody
from tidemark.shared.runtime.driver import TaskDriver
from tidemark.shared.runtime.exchange import Exchange, OutEdge, load_body
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.site import TaskWiring, Ways
from tidemark.shared.runtime.state import StateBounds, StateStore
from tidemark.shared.wire.arrow import encode_batch
from tidemark.shared.wire.frames import decode_frame, encode_frame

JOB = JobId("0" * 32)
ME, UP, DOWN = VertexId("me"), VertexId("up"), VertexId("down")
IN, OUT_EDGE = EdgeId("up>me"), EdgeId("me>down")
GENERATION = Generation(2)
_STEPS_MAX = 2000


def rows(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({TS: pa.array(values, pa.int64())})


class SlowBlobs:
    """A blob store that takes nothing until it is let go."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.open = asyncio.Event()

    async def put(self, name: str, data: bytes) -> BlobRef:
        await self.open.wait()
        ref: BlobRef = await self._inner.put(name, data)
        return ref

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class StandingBody(TaskBody):
    """Stops in a call that the test has named until it is let go."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self.calls: list[str] = []
        self.seen: list[int] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.state = b"state"
        self.watermark_ms = MIN_TIME

    def hold(self, call: str) -> None:
        self.gates[call] = asyncio.Event()

    def let_go(self, call: str) -> None:
        self.gates.pop(call).set()

    async def _enter(self, call: str) -> None:
        self.calls.append(call)
        gate = self.gates.get(call)
        if gate is not None:
            await gate.wait()

    async def open(self, parts: Mapping[StatePart, bytes]) -> None: ...

    async def fire(self, now_ms: int) -> Sequence[Out]:
        await self._enter("fire")
        return ()

    async def flush(self, epoch: Epoch) -> Sequence[Out]:
        await self._enter("flush")
        return ()

    async def copy(self, epoch: Epoch, committed: Epoch) -> Copied:
        await self._enter("copy")
        return Copied({TASK_PART: self.state}, staged=b"staged")

    def output_watermark(self) -> int:
        return self.watermark_ms

    def next_processing_ms(self) -> int:
        return MAX_TIME

    def counters(self) -> Mapping[str, int]:
        return {}

    async def close(self) -> None: ...


class WaitingBody(StandingBody, ReceivingBody):
    """Passes rows on."""

    async def apply(self, tag: str, bodies: Sequence[Body]) -> Sequence[Out]:
        await self._enter("apply")
        outs = []
        for body in bodies:
            batch = await load_body(self._blobs, body)
            self.seen += batch.column(TS).to_pylist()
            outs.append(Out(OUT, "rows", batch))
        return outs

    async def advance(self, watermark_ms: int) -> Sequence[Out]:
        await self._enter("advance")
        self.watermark_ms = watermark_ms
        return ()


@dataclass
class Peer:
    """A sender of the in edge: numbers its frames, and writes them or what the test makes of them."""

    stand: "Stand"
    index: int = 0
    generation: Generation = GENERATION
    seq: int = 0
    epoch: int = 1
    watermark_ms: int = MIN_TIME

    def _header(self) -> Header:
        header = Header(
            JOB,
            Incarnation("in"),
            self.generation,
            TaskId(UP, self.index),
            Seq(self.seq),
            Epoch(self.epoch),
            self.watermark_ms,
        )
        self.seq += 1
        return header

    async def rows(self, *values: int, timestamp_ms: int | None = None) -> None:
        batch = rows(*values)
        frame = DataFrame(self._header(), (Inline("rows", len(values), encode_batch(batch)),))
        await self.write(frame, timestamp_ms)

    async def watermark(self, watermark_ms: int, *, idle: bool = False) -> None:
        self.watermark_ms = watermark_ms
        await self.write(WatermarkFrame(self._header(), idle))

    async def barrier(self, epoch: int, committed: int = 0) -> None:
        self.epoch = epoch
        await self.write(BarrierFrame(self._header(), Epoch(committed)))
        self.epoch = epoch + 1

    async def end(self) -> None:
        await self.write(EndFrame(self._header()))

    async def write(self, frame: Frame, timestamp_ms: int | None = None) -> None:
        await self.stand.put(encode_frame(frame), timestamp_ms)


@dataclass
class Stand:
    """A driver and its surroundings. `faults` are those of the driver's own connection."""

    world: VirtualWorld
    broker: MemoryBroker
    faults: Faults
    blobs: Any
    body: WaitingBody
    driver: TaskDriver
    acks: list[tuple[Epoch, TaskHandle]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def peer(self, index: int = 0, *, generation: int = GENERATION) -> Peer:
        return Peer(self, index, Generation(generation))

    async def put(self, data: bytes, timestamp_ms: int | None = None) -> Offset:
        writer = await MemoryLog(self.broker).writer("peer")
        offset = await (await writer.send(TopicPartition("in", 0), NewRecord(data, timestamp_ms=timestamp_ms)))
        await writer.close()
        return offset

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let time pass, a little at a time, until it holds."""
        for _ in range(_STEPS_MAX):
            if holds():
                return
            await self.world.clock.sleep_ms(5)
        raise AssertionError(
            f"it never came to hold; calls {self.body.calls}, errors {self.errors}, sent {await self.sent()}"
        )

    async def settle(self) -> None:
        """Let a second pass: whatever can happen has happened."""
        await self.world.clock.sleep_ms(1000)

    async def records(self) -> list[LogRecord]:
        """Everything on the out edge."""
        log = MemoryLog(self.broker)
        end = (await log.end_offsets([TopicPartition("out", 0)]))[TopicPartition("out", 0)]
        reader = await log.reader()
        await reader.assign({TopicPartition("out", 0): Offset(0)})
        found: list[LogRecord] = []
        while reader.position(TopicPartition("out", 0)) < end:
            found += await reader.fetch(1000, 1)
        await reader.close()
        return found

    async def sent(self) -> list[Frame]:
        return [decode_frame(record.value or b"") for record in await self.records()]

    async def sent_rows(self) -> list[int]:
        """The rows on the out edge, repeats left out as a receiver would (F1)."""
        by_seq = {frame.header.seq: frame for frame in await self.sent()}
        bodies = [b for _, f in sorted(by_seq.items()) if isinstance(f, DataFrame) for b in f.bodies]
        return [t for body in bodies for t in (await load_body(self.blobs, body)).column(TS).to_pylist()]


def _ways(acks: list[tuple[Epoch, TaskHandle]], errors: list[BaseException]) -> Ways:
    def unheard(*_: Any) -> None: ...

    return Ways(
        on_ack=lambda epoch, handle: acks.append((epoch, handle)), on_ask=unheard, on_found=unheard, on_ends=unheard,
        on_released=unheard, on_failed=errors.append, on_waits=unheard, on_taken=unheard,
    )  # fmt: skip


@asynccontextmanager
async def standing(
    world: VirtualWorld,
    *,
    senders: int = 1,
    limits: TaskLimits | None = None,
    restored: TaskProtocolState | None = None,
    restored_from: int = 0,
    wrap_blobs: Callable[[Any], Any] = lambda blobs: blobs,
    settings: RuntimeSettings | None = None,
    before: Callable[[MemoryBroker], None] = lambda _: None,
) -> AsyncIterator[Stand]:
    """A started driver of generation 2 with the given senders on its in edge."""
    broker, faults = MemoryBroker(world.clock), Faults()
    broker.create_topic("in", 1)
    broker.create_topic("out", 1)
    before(broker)
    log = MemoryLog(broker, faults)
    inner = MemoryBlobs(world.executor)
    blobs = wrap_blobs(inner)
    given = settings or RuntimeSettings()
    task = TaskId(ME, 0)
    inputs = EdgeBinding(IN, Incarnation("in"), "in", senders, 1)
    outputs = EdgeBinding(OUT_EDGE, Incarnation("out"), "out", 1, 1)
    start = TaskStart(
        task=task,
        tasks=1,
        job=JOB,
        generation=GENERATION,
        lineage=(LineageEntry(Generation(1), Epoch(0), 1), LineageEntry(GENERATION, Epoch(restored_from), 1)),
        restored_from=Epoch(restored_from),
        inputs=((inputs, UP),),
        outputs=(outputs,),
        restored={} if restored is None else {0: restored},
        is_source=False,
        limits=limits or TaskLimits(),
    )
    numbers = iter(range(10**6))
    body = WaitingBody(inner)
    edge = Edge(OUT_EDGE, ME, DOWN)
    acks: list[tuple[Epoch, TaskHandle]] = []
    errors: list[BaseException] = []
    wiring = TaskWiring(
        task=task,
        log=log,
        clock=world.clock,
        executor=world.executor,
        settings=given,
        exchange=Exchange(JOB, GENERATION, 128, [OutEdge(edge, 1)], blobs, lambda: f"u{next(numbers)}", 1 << 16),
        state=StateStore(
            blobs, JOB, ME, GENERATION, lambda: f"s{next(numbers)}",
            StateBounds(
                given.state_inline_bytes_max, given.state_blobs_max, given.state_blob_bytes_max, given.state_parts_max
            ),
        ),
        inputs={IN: inputs},
        tags={IN: ""},
        outputs={OUT_EDGE: outputs},
        ways=_ways(acks, errors),
        passing=lambda _phase, _epoch: None,
    )  # fmt: skip
    driver = TaskDriver(wiring, start_task(start), body)
    stand = Stand(world, broker, faults, blobs, body, driver, acks, errors)
    await driver.open({})
    driver.start()
    try:
        yield stand
    finally:
        await driver.close()
        await inner.close()
