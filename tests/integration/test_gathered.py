# ruff: noqa: N802 -- a test carries its rule's name
"""Rows for sinks are gathered until the barrier: few come in one frame, and every promise about watermarks and ends stays."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.harness.installation import Installed, installed, released
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.frames import BarrierFrame, DataFrame, Frame
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.plan import DLQ, OUT
from tidemark.shared.operators.base import Out
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.outbox import ROWS_MAX, Gathered
from tidemark.shared.wire.frames import decode_frame

APART_MS = 100
TIME_MS = 1_700_000_000_000
INTERVAL_MS = 4_000
KEPT = CoordinatorSettings(adopt_wait_ms=100, cleanup_interval_ms=10_000_000)
"""What was written to edges stays there."""


def frames_of(broker: MemoryBroker) -> list[Frame]:
    """What the source wrote to the sink."""
    (edge,) = [topic for topic in broker.topics() if ".source-1-emit-1." in topic]
    return [decode_frame(r.value or b"") for r in broker.dump(edge)[0]]


def document(folder: Path, middle: list[dict[str, Any]]) -> dict[str, Any]:
    """From a topic to a file."""
    source = {"connectionName": "k", "topic": "t", "timeField": {"$toDate": {"$toLong": "$t"}}}
    return {
        "connections": {"k": {"type": "kafka", "bootstrapServers": "memory:1"}},
        "pipeline": [{"$source": source}, *middle, {"$emit": {"path": str(folder / "out"), "format": "json"}}],
        "options": {"checkpoint": {"interval": {"size": INTERVAL_MS, "unit": "ms"}}},
    }


async def trickle(there: Installed, count: int) -> None:
    """Records one by one."""
    writer = await there.outside.log.writer("feeder")
    for n in range(count):
        record = json.dumps({"n": n, "t": TIME_MS + n}).encode()
        await (await writer.send(TopicPartition("t", 0), NewRecord(record)))
        await there.clock.sleep_ms(APART_MS)
    await writer.close()


def test_few_rows_for_a_sink_come_in_one_frame_before_the_barrier(tmp_path: Path) -> None:
    """Records that trickle through four epochs are a frame an epoch; none is lost at the drain."""

    async def main(world: VirtualWorld) -> list[Frame]:
        async with installed(world.clock, world.executor, coordinator=KEPT) as there:
            there.broker.create_topic("t", 1)
            await there.create(document(tmp_path, [{"$match": {"n": {"$gte": 0}}}]))
            await there.start()
            await trickle(there, 4 * INTERVAL_MS // APART_MS)
            await there.stop(drain=True)
            return frames_of(there.broker)

    frames = run_virtual(main)
    data = [f for f in frames if isinstance(f, DataFrame)]
    assert 4 <= len(data) <= 6
    assert sum(body.rows for f in data for body in f.bodies) == 160
    assert Counter(row["n"] for row in released(tmp_path / "out")) == Counter(range(160))


def test_the_last_rows_of_an_epoch_go_with_its_barrier(tmp_path: Path) -> None:
    """In one request: a second one to the same partition would wait for the answer to the first."""
    requests: list[list[Frame]] = []

    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor, coordinator=KEPT) as there:
            append = there.broker.append

            def noted(at: TopicPartition, records: Sequence[NewRecord]) -> Offset:
                if ".source-1-emit-1." in at.topic:
                    requests.append([decode_frame(record.value or b"") for record in records])
                return append(at, records)

            there.broker.append = noted  # type: ignore[method-assign]
            there.broker.create_topic("t", 1)
            await there.create(document(tmp_path, [{"$match": {"n": {"$gte": 0}}}]))
            await there.start()
            await trickle(there, 2 * INTERVAL_MS // APART_MS)
            await there.committed()

    run_virtual(main)
    with_rows = [frames for frames in requests if any(isinstance(frame, DataFrame) for frame in frames)]
    assert with_rows
    assert all(isinstance(frames[-1], BarrierFrame) for frames in with_rows)


def test_F4_W1_no_watermark_passes_rows_that_wait(tmp_path: Path) -> None:
    """A watermark goes to the sink only behind all rows that came before it, and with the barrier at the latest."""

    async def main(world: VirtualWorld) -> list[Frame]:
        async with installed(world.clock, world.executor, coordinator=KEPT) as there:
            there.broker.create_topic("t", 1)
            await there.create(document(tmp_path, [{"$match": {"n": {"$gte": 0}}}]))
            await there.start()
            await trickle(there, 2 * INTERVAL_MS // APART_MS)
            await there.committed()
            return frames_of(there.broker)

    sent = 0
    barriers = []
    for frame in run_virtual(main):
        if isinstance(frame, DataFrame):
            sent += sum(body.rows for body in frame.bodies)
        assert frame.header.watermark_ms < TIME_MS + max(1, sent)
        if isinstance(frame, BarrierFrame) and sent:
            barriers.append(frame.header.watermark_ms)
    assert barriers[-1] >= TIME_MS + sent - 2


def batch(first: int, count: int, kind: Any = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(first, first + count), kind or pa.int64())})


def test_what_is_alike_goes_as_one_batch_in_its_order() -> None:
    """Batches of one port, content and schema that follow one another are joined; others stay between them."""
    gathered = Gathered()
    text = pa.RecordBatch.from_pydict({"n": pa.array(["x"])})
    gathered.add([Out(OUT, "rows", batch(0, 2)), Out(OUT, "rows", batch(2, 1))])
    gathered.add([Out(DLQ, "rows", batch(9, 1)), Out(OUT, "rows", text), Out(OUT, "rows", batch(3, 1))])
    taken = [out for out in gathered.taken() if isinstance(out, Out)]
    assert [(out.port, out.batch.column(0).to_pylist()) for out in taken] == [
        (OUT, [0, 1, 2]),
        (DLQ, [9]),
        (OUT, ["x"]),
        (OUT, [3]),
    ]
    assert gathered.rows == 0
    assert not gathered.taken()


@pytest.mark.parametrize(("count", "full"), [(ROWS_MAX, False), (ROWS_MAX + 1, True)])
def test_many_rows_do_not_wait(count: int, full: bool) -> None:
    """Beyond the bound they go, so that no more than that waits for a barrier."""
    gathered = Gathered()
    gathered.add([Out(OUT, "rows", batch(0, count))])
    assert gathered.full() is full
