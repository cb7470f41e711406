"""From operators' rows to emissions of the task machine and back: routing, encoding, segments.

Rules: P2 (a segment is durable before the frame that names it), F6 (a batch above the limit is split), C12 (names of blobs).

If a document names no queue for dead letters, they are counted and logged, so that none goes without a trace.

The first one is logged, the second, the fourth and so on. So the log shows an example and the number, and stays small.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from tidemark.shared.model.checkpoint import BlobRef
from tidemark.shared.model.frames import Body, Content, Inline, Segment
from tidemark.shared.model.ids import EdgeId, Epoch, Generation, JobId
from tidemark.shared.model.plan import DLQ, Edge
from tidemark.shared.operators.base import GROUP, TS, WEND, WSTART, Out
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.ports.blobs import BlobStore
from tidemark.shared.protocol.task.events import Emission
from tidemark.shared.runtime.body import Announced, Given
from tidemark.shared.wire.arrow import decode_batch, divide_batch, split_batch
from tidemark.shared.wire.limits import DEFAULT, WireLimits

_log = structlog.get_logger()


class Unkept:
    """Counts the dead letters of one task that no queue keeps, and logs some of them."""

    def __init__(self, job: JobId) -> None:
        self._job = job
        self._count = 0
        self._tell_at = 1

    def note(self, out: Given) -> None:
        """Count the letters; tell of the first of them where it is time to."""
        rows = out.batch.num_rows if isinstance(out, Out) else out.segment.rows
        self._count += rows
        if not rows or self._count < self._tell_at:
            return
        while self._tell_at <= self._count:
            self._tell_at *= 2
        told = documents_of(out.batch.slice(0, 1))[0] if isinstance(out, Out) else {}
        source = told.get("_stream_meta", {}).get("source", {})
        _log.warning(
            "dead_letter.not_kept",
            job=self._job,
            so_far=self._count,
            stage=told.get("operatorName"),
            reason=told.get("errInfo", {}).get("reason"),
            source={
                name: value if isinstance(value, str) else int(value) for name, value in source.items() if name != "key"
            },
            remedy="options.dlq names a place where they are kept",
        )


@dataclass(frozen=True, slots=True)
class OutEdge:
    """An out edge as it runs."""

    edge: Edge
    receivers: int


def blob_name(job: JobId, owner: str, generation: Generation, epoch: Epoch, unique: str) -> str:
    """C12: job / vertex or edge / generation / epoch of the frame or manifest that first lists it / attempt-unique name."""
    return f"{job}/{owner}/{generation}/{epoch}/{unique}"


def parquet_bytes(batch: pa.RecordBatch | pa.Table) -> bytes:
    """The batch as one Parquet file. Snappy: some pages that pyarrow writes with LZ4 Spark's reader refuses."""
    sink = pa.BufferOutputStream()
    table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    pq.write_table(table, sink, compression="snappy")
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def event_range(batch: pa.RecordBatch, content: Content) -> tuple[int, int]:
    """The least and greatest event time of rows, or window bounds of partials, ms; (0, 0) where there is none."""
    low, high = (WSTART, WEND) if content == "partials" else (TS, TS)
    if batch.num_rows == 0 or low not in batch.schema.names:
        return 0, 0
    return int(np.min(batch.column(low).to_numpy())), int(np.max(batch.column(high).to_numpy()))


class Exchange:
    """One task's way out."""

    def __init__(
        self,
        job: JobId,
        generation: Generation,
        key_groups: int,
        outputs: Sequence[OutEdge],
        blobs: BlobStore,
        unique: Callable[[], str],
        inline_bytes_max: int,
        wire: WireLimits = DEFAULT,
    ) -> None:
        self._job = job
        self._unkept = None if any(o.edge.port == DLQ for o in outputs) else Unkept(job)
        self._generation = generation
        self._key_groups = key_groups
        self._outputs = outputs
        self._blobs = blobs
        self._unique = unique
        self._inline_bytes_max = inline_bytes_max
        self._wire = wire
        self._turn: dict[EdgeId, int] = {}

    async def emissions(self, outs: Sequence[Given], epoch: Epoch) -> tuple[Emission, ...]:
        """Route and encode; segments are durable on return."""
        made: list[Emission] = []
        for out in outs:
            if out.port == DLQ and self._unkept is not None:
                self._unkept.note(out)
            if isinstance(out, Announced):
                made += self._announced(out)
                continue
            if out.batch.num_rows == 0:
                continue
            for output in self._outputs:
                if output.edge.port == out.port:
                    for partition, batch in self._route(output, out.batch):
                        made += await self._encode(output.edge, partition, out.content, batch, epoch)
        return tuple(made)

    def _announced(self, out: Announced) -> Iterator[Emission]:
        """A segment goes to one receiver, or to all where each keeps its own rows."""
        for output in self._outputs:
            if output.edge.port == out.port:
                for partition in self._takers(output):
                    yield Emission(output.edge.id, partition, (out.segment,), out.segment.size_bytes)

    def _takers(self, output: OutEdge) -> Sequence[int]:
        match output.edge.partitioning:
            case "copy":
                return range(output.receivers)
            case "single":
                return (0,)
            case _:
                return (self._next(output),)

    def _next(self, output: OutEdge) -> int:
        turn = self._turn.get(output.edge.id, 0)
        self._turn[output.edge.id] = turn + 1
        return turn % output.receivers

    def _route(self, output: OutEdge, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        edge, receivers = output.edge, output.receivers
        if receivers == 1 or edge.partitioning == "single":
            yield 0, batch
        elif edge.partitioning == "copy":
            for partition in range(receivers):
                yield partition, batch
        elif edge.partitioning == "spread":
            yield self._next(output), batch
        else:
            owners = batch.column(GROUP).to_numpy().astype(np.int64) * receivers // self._key_groups
            for owner in np.unique(owners):
                yield int(owner), batch.take(pa.array(np.flatnonzero(owners == owner)))

    async def _encode(
        self, edge: Edge, partition: int, content: Content, batch: pa.RecordBatch, epoch: Epoch
    ) -> list[Emission]:
        made: list[Emission] = []
        if edge.by_reference and batch.nbytes > self._inline_bytes_max:
            for part in divide_batch(batch, self._wire.batch_bytes_max):
                segment = await self._segment(edge, content, part, epoch)
                made.append(Emission(edge.id, partition, (segment,), segment.size_bytes))
            return made
        for part, data in split_batch(batch, self._inline_bytes_max):
            if len(data) > self._inline_bytes_max:
                # One row that cannot be split, and that may not fit into a frame: by reference, on every edge.
                segment = await self._segment(edge, content, part, epoch)
                made.append(Emission(edge.id, partition, (segment,), segment.size_bytes))
            else:
                made.append(Emission(edge.id, partition, (Inline(content, part.num_rows, data),), len(data)))
        return made

    async def _segment(self, edge: Edge, content: Content, batch: pa.RecordBatch, epoch: Epoch) -> Segment:
        owner = "".join(c if c.isalnum() or c in "._-" else "_" for c in edge.id)
        name = blob_name(self._job, owner, self._generation, epoch, f"{self._unique()}.parquet")
        ref = await self._blobs.put(name, parquet_bytes(batch))
        low, high = event_range(batch, content)
        return Segment(content, ref.name, batch.num_rows, ref.size_bytes, ref.digest, low, high)


async def load_body(blobs: BlobStore, body: Body, wire: WireLimits = DEFAULT) -> pa.RecordBatch:
    """The rows of a body; those of a segment are checked against its digest (BlobError)."""
    match body:
        case Inline(_, _, ipc):
            return decode_batch(ipc, wire)
        case Segment(_, name, _, size_bytes, digest, _, _):
            data = await blobs.get(BlobRef(name, size_bytes, digest))
            table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).combine_chunks()
            batches = table.to_batches()
            return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def digest_of(data: bytes) -> str:
    """The SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
