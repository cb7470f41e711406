"""Samples of an edge: the newest rows of the tasks that run, bounded, whatever else lies in the log."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any

import msgspec
import pyarrow as pa

from tests.harness.worker_stand import JOB, TOPICS, WorkerStand, working
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.frames import Body, DataFrame, Frame, Header, Inline, Segment, WatermarkFrame
from tidemark.shared.model.ids import EdgeId, Epoch, Generation, Incarnation, Offset, Seq, TaskId, VertexId
from tidemark.shared.model.messages import Sample, Sampled, TaskRestored
from tidemark.shared.operators.base import TS
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.exchange import parquet_bytes
from tidemark.shared.runtime.sampling import BYTES_MAX, FRAMES_BACK, Edgewise, sample_edge
from tidemark.shared.runtime.worker import SAMPLES_MAX
from tidemark.shared.wire.arrow import encode_batch
from tidemark.shared.wire.frames import encode_frame
from tidemark.shared.wire.messages import decode_sample

SENDER = TaskId(VertexId("source-1"), 0)
GENERATION = Generation(3)


class Written:
    """The first edge of a stand's plan, and what a sender writes to it."""

    def __init__(self, stand: WorkerStand) -> None:
        self.stand = stand
        self.edge = stand.plan.edges[0]

    async def frames(self, *frames: Frame) -> None:
        await self.records(*map(encode_frame, frames))

    async def records(self, *values: bytes) -> None:
        writer = await MemoryLog(self.stand.broker).writer("test")
        for value in values:
            await (await writer.send(TopicPartition(self.edge.topic, 0), NewRecord(value)))
        await writer.close()

    def header(self, generation: int = GENERATION, edge: str = "") -> Header:
        incarnation = Incarnation(edge) if edge else self.edge.incarnation
        return Header(JOB, incarnation, Generation(generation), SENDER, Seq(0), Epoch(7), 1_000)

    def data(self, *bodies: Body, **header: Any) -> DataFrame:
        return DataFrame(self.header(**header), bodies)

    async def sampled(self, limit: int) -> Edgewise:
        return await sample_edge(self.stand.outside, self.edge, 0, GENERATION, limit)


def rows(*numbers: int, text: str = "") -> pa.RecordBatch:
    documents = [{"n": n, **({"text": text} if text else {})} for n in numbers]
    batch = batch_of(documents)
    return batch.append_column(TS, pa.array([1_000 + n for n in numbers], pa.int64()))


def inline(*numbers: int, text: str = "") -> Inline:
    return Inline("rows", len(numbers), encode_batch(rows(*numbers, text=text)))


async def segment(stand: WorkerStand, name: str, *numbers: int) -> Segment:
    data = parquet_bytes(rows(*numbers))
    ref = await stand.outside.blobs.put(name, data)
    assert ref.digest == sha256(data).hexdigest()
    return Segment("rows", ref.name, len(numbers), ref.size_bytes, ref.digest, 0, 0)


def numbers(found: Edgewise) -> list[int]:
    return [msgspec.json.decode(row)["document"]["n"] for row in found.rows]


def at_edge(story: Callable[[Written], Awaitable[None]]) -> None:
    async def main(world: VirtualWorld) -> None:
        async with working(world) as stand:
            await story(Written(stand))

    run_virtual(main)


def test_the_newest_rows_come_last_and_no_more_than_asked() -> None:
    """From as many frames as it takes, with what their frames say of them."""

    async def story(edge: Written) -> None:
        await edge.frames(*(edge.data(inline(n, n + 1), inline(n + 2)) for n in range(0, 30, 3)))
        assert numbers(await edge.sampled(4)) == [26, 27, 28, 29]
        assert numbers(await edge.sampled(100)) == list(range(30))
        (row,) = (await edge.sampled(1)).rows
        assert msgspec.json.decode(row) == {
            "sender": "source-1/0",
            "partition": 0,
            "epoch": 7,
            "eventTime": 1_029,
            "partial": False,
            "document": {"n": 29},
        }

    at_edge(story)


def test_frames_of_tasks_that_are_gone_are_not_shown() -> None:
    """An earlier generation may have been rolled back; another incarnation's frames are of another edge."""

    async def story(edge: Written) -> None:
        await edge.frames(
            edge.data(inline(1)), edge.data(inline(2), generation=2), edge.data(inline(3), edge="another")
        )
        assert numbers(await edge.sampled(5)) == [1]

    at_edge(story)


def test_it_looks_no_further_back_than_its_bound() -> None:
    """Marks of time without rows are frames, too; where none of the last frames has rows, it waits for new ones, and says so."""

    async def story(edge: Written) -> None:
        await edge.frames(edge.data(inline(1)), *[WatermarkFrame(edge.header(), idle=False)] * FRAMES_BACK)
        assert await edge.sampled(5) == Edgewise((), "no rows came within 5 s")
        sampled, _ = await asyncio.gather(edge.sampled(5), later(edge))
        assert numbers(sampled) == [2]

    async def later(edge: Written) -> None:
        await edge.stand.world.clock.sleep_ms(700)
        await edge.frames(edge.data(inline(2)))

    at_edge(story)


def test_rows_by_reference_are_read_and_those_that_are_gone_counted() -> None:
    """What every receiver has read and a checkpoint covers is deleted, in log and store, one after the other."""

    async def story(edge: Written) -> None:
        there = await segment(edge.stand, "there", 1, 2, 3)
        gone = await segment(edge.stand, "gone", 4, 5)
        await edge.stand.outside.blobs.delete(["gone"])
        await edge.frames(edge.data(there), edge.data(gone), edge.data(inline(6)))
        found = await edge.sampled(6)
        assert (numbers(found), found.trouble) == ([1, 2, 3, 6], "2 rows by reference have been read and deleted")
        await edge.stand.outside.log.delete_records({TopicPartition(edge.edge.topic, 0): Offset(2)})
        assert numbers(await edge.sampled(6)) == [6]

    at_edge(story)


def test_an_answer_has_a_bound_in_bytes() -> None:
    """The newest rows that fit; it says that others were left out."""

    async def story(edge: Written) -> None:
        await edge.frames(*(edge.data(inline(n, text="x" * (BYTES_MAX // 3))) for n in range(5)))
        found = await edge.sampled(5)
        assert (numbers(found), found.trouble) == ([3, 4], f"rows beyond {BYTES_MAX} bytes are left out")

    at_edge(story)


async def told(stand: WorkerStand, count: int) -> Sequence[Sampled]:
    at = TopicPartition(TOPICS.samples, 0)
    for _ in range(400):
        reader = await MemoryLog(stand.broker).reader()
        await reader.assign({at: Offset(0)})
        found = [decode_sample(record.value or b"") for record in await reader.fetch(100, 1)]
        await reader.close()
        if len(found) >= count:
            return found
        await stand.world.clock.sleep_ms(20)
    raise AssertionError("too few answers")


def test_a_worker_answers_for_the_tasks_that_receive_the_edge() -> None:
    """A record that is no frame is the sample's trouble alone; more at a time than the bound are told to ask again."""

    async def story(edge: Written) -> None:
        stand, name = edge.stand, edge.edge.edge
        # It stands and takes nothing itself: a record that is no frame would end it.
        await stand.tell(stand.assign(3, vertex=name.rpartition(">")[2], release_only=True))
        await stand.said(TaskRestored)
        await stand.tell(*(Sample(JOB, GENERATION, f"many {n}", 5, name) for n in range(SAMPLES_MAX + 1)))
        found = {each.request: each.trouble for each in await told(stand, SAMPLES_MAX + 1)}
        assert "other samples" in found.pop(f"many {SAMPLES_MAX}")
        assert set(found.values()) == {"no rows came within 5 s"}
        await edge.frames(edge.data(inline(1)))
        await stand.tell(Sample(JOB, GENERATION, "none", 5, EdgeId("a>b")), Sample(JOB, GENERATION, "one", 5, name))
        sampled = (await told(stand, SAMPLES_MAX + 2))[-1]
        assert (sampled.request, sampled.edge, sampled.index, len(sampled.documents)) == ("one", name, 0, 1)
        await edge.records(b"no frame")
        await stand.tell(Sample(JOB, GENERATION, "broken", 5, name))
        assert "expected a frame" in (await told(stand, SAMPLES_MAX + 3))[-1].trouble

    at_edge(story)
