# ruff: noqa: N802 -- a test carries its rule's name
"""A task's way out: what a frame names is durable first (P2), what is too large is split (F6), names say whose they are (C12)."""

import asyncio
import hashlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemark.shared.runtime.exchange
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.virtual import InlineExecutor, VirtualWorld, run_virtual
from tidemark.shared.model.checkpoint import BlobRef
from tidemark.shared.model.frames import Inline, Segment
from tidemark.shared.model.ids import EdgeId, Epoch, Generation, JobId, VertexId
from tidemark.shared.model.plan import DLQ, OUT, Edge
from tidemark.shared.operators.base import PART, POS, TS, Out
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.operators.context import NOWHERE
from tidemark.shared.operators.dead_letters import Origin, RowFailure, dead_letters
from tidemark.shared.ports.blobs import BlobError, BlobStore, BlobUnavailable
from tidemark.shared.protocol.coordinator.retention import parse_blob_name
from tidemark.shared.protocol.task.events import Emission
from tidemark.shared.runtime.exchange import Exchange, OutEdge, load_body
from tidemark.spark_stages.segments import write_segment

JOB = JobId("0" * 32)


def batch(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({TS: pa.array(range(rows), pa.int64()), "v": pa.array(["x" * 20] * rows)})


def exchange(blobs: BlobStore, *, inline_max: int = 200, generation: int = 3) -> Exchange:
    edge = Edge(EdgeId("read>count"), VertexId("read"), VertexId("count"), by_reference=True)
    numbers = itertools.count()
    return Exchange(
        JOB, Generation(generation), 128, [OutEdge(edge, 1)], blobs, lambda: f"u{next(numbers)}", inline_max
    )


class Slow:
    """A store that answers when the test says so, or never."""

    def __init__(self, inner: BlobStore, *, away: bool = False) -> None:
        self.inner, self.away = inner, away
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def put(self, name: str, data: bytes) -> BlobRef:
        self.asked.set()
        await self.may.wait()
        if self.away:
            raise BlobUnavailable("blobs: away")
        return await self.inner.put(name, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_P2_a_segment_is_durable_before_there_is_a_frame_that_names_it() -> None:
    """While the store has not answered there is no emission; then the store has what the emission names, to the byte."""

    async def main(world: VirtualWorld) -> None:
        blobs = MemoryBlobs(InlineExecutor())
        slow: Any = Slow(blobs)
        made: list[Sequence[Emission]] = []

        async def emit() -> None:
            made.append(await exchange(slow).emissions([Out(OUT, "rows", batch(500))], Epoch(7)))

        handle = world.executor.spawn(emit(), "emit", made.append)  # type: ignore[arg-type]
        await slow.asked.wait()
        assert made == []
        assert await blobs.list(JOB) == []
        slow.may.set()
        await handle.join()
        (emission,) = made[0]
        (segment,) = emission.bodies
        assert isinstance(segment, Segment)
        data = await blobs.get(BlobRef(segment.name, segment.size_bytes, segment.digest))
        assert hashlib.sha256(data).hexdigest() == segment.digest
        assert (await load_body(blobs, segment)).num_rows == 500
        await blobs.close()

    run_virtual(main)


def test_P2_a_segment_that_could_not_be_written_is_never_named() -> None:
    """An upload that fails is an error of the task, and no emission."""

    async def main(_: VirtualWorld) -> None:
        slow: Any = Slow(MemoryBlobs(InlineExecutor()), away=True)
        slow.may.set()
        with pytest.raises(BlobUnavailable):
            await exchange(slow).emissions([Out(OUT, "rows", batch(500))], Epoch(7))

    run_virtual(main)


def test_P2_what_a_frame_names_counts_by_its_digest() -> None:
    """Rows of a segment whose bytes are not those that were announced are not taken."""

    async def main(_: VirtualWorld) -> None:
        blobs = MemoryBlobs(InlineExecutor())
        (emission,) = await exchange(blobs).emissions([Out(OUT, "rows", batch(500))], Epoch(7))
        (segment,) = emission.bodies
        assert isinstance(segment, Segment)
        await blobs.delete([segment.name])
        await blobs.put(segment.name, b"x" * segment.size_bytes)
        with pytest.raises(BlobError, match=r"digest|sha256|SHA"):
            await load_body(blobs, segment)
        await blobs.close()

    run_virtual(main)


def test_C12_a_segments_name_says_job_edge_generation_and_the_epoch_of_its_frame() -> None:
    """So the coordinator can tell, without reading it, whether it may go; and two attempts never meet in a name."""

    async def main(_: VirtualWorld) -> None:
        blobs = MemoryBlobs(InlineExecutor())
        (one,) = await exchange(blobs).emissions([Out(OUT, "rows", batch(500))], Epoch(7))
        (two,) = await exchange(blobs, generation=4).emissions([Out(OUT, "rows", batch(500))], Epoch(7))
        names = [segment.name for e in (one, two) for segment in e.bodies if isinstance(segment, Segment)]
        assert len(set(names)) == 2
        assert [name.split("/")[:4] for name in names] == [
            [JOB, "read_count", "3", "7"],
            [JOB, "read_count", "4", "7"],
        ]
        parsed = [parse_blob_name(name) for name in names]
        assert all(p is not None and (p.job, p.epoch) == (JOB, 7) for p in parsed)
        await blobs.close()

    run_virtual(main)


def test_F6_a_batch_above_the_limit_is_split() -> None:
    """No inline body is above the limit, and together they are the batch, in order."""

    async def main(_: VirtualWorld) -> None:
        edge = Edge(EdgeId("a>b"), VertexId("a"), VertexId("b"))
        made = Exchange(JOB, Generation(1), 128, [OutEdge(edge, 1)], MemoryBlobs(InlineExecutor()), str, 2000)
        emissions = await made.emissions([Out(OUT, "rows", batch(500))], Epoch(1))
        assert len(emissions) > 1
        assert all(emission.size_bytes <= 2000 for emission in emissions)
        bodies = [body for emission in emissions for body in emission.bodies]
        assert all(isinstance(body, Inline) for body in bodies)
        blobs = MemoryBlobs(InlineExecutor())
        rows = [t for body in bodies for t in (await load_body(blobs, body)).column(TS).to_pylist()]
        assert rows == list(range(500))

    run_virtual(main)


def test_P2_an_executors_segment_survives_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File, folder, and every folder above it that may be new are forced to disk before the segment is told of; no name is taken twice."""
    forced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        forced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    size, digest = write_segment(str(tmp_path), "job/count/1/5/a-0.parquet", batch(3))
    at = tmp_path / "job/count/1/5/a-0.parquet"
    assert {str(at), *(str(folder) for folder in at.parents if folder.is_relative_to(tmp_path))} <= set(forced)
    assert (size, digest) == (at.stat().st_size, hashlib.sha256(at.read_bytes()).hexdigest())
    assert pq.read_table(at).num_rows == 3
    with pytest.raises(FileExistsError):
        write_segment(str(tmp_path), "job/count/1/5/a-0.parquet", batch(4))
    assert pq.read_table(at).num_rows == 3


async def test_dead_letters_without_a_queue_leave_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a document without `options.dlq` the log tells reason and place of some, and how many there were; with one, none."""
    failures = [RowFailure(0, "The event time is a date, found null.", "NoEventTime")]
    rows = batch_of([{"v": 1}], {TS: pa.array([7]), PART: pa.array([2], pa.int32()), POS: pa.array([40])})
    letters = dead_letters(rows, failures, "$source", NOWHERE, Origin("/in/a.csv", 30))
    queue = OutEdge(Edge(EdgeId("read>dlq"), VertexId("read"), VertexId("dlq"), port=DLQ), 1)
    without, kept = (
        Exchange(JOB, Generation(1), 128, edges, MemoryBlobs(InlineExecutor()), str, 2000) for edges in ([], [queue])
    )
    logs: list[dict[str, Any]] = []
    monkeypatch.setattr(
        tidemark.shared.runtime.exchange, "_log", SimpleNamespace(warning=lambda _event, **told: logs.append(told))
    )
    for _ in range(100):
        assert await without.emissions(letters, Epoch(1)) == ()
    assert len(await kept.emissions(letters, Epoch(1))) == 1
    assert [line["so_far"] for line in logs] == [1, 2, 4, 8, 16, 32, 64]
    assert {name: logs[0][name] for name in ("job", "so_far", "stage", "reason", "source")} == {
        "job": JOB,
        "so_far": 1,
        "stage": "$source",
        "reason": "The event time is a date, found null.",
        "source": {"partition": 2, "offset": 40, "file": "/in/a.csv", "position": 10},
    }
