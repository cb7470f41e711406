"""Rows of an edge for people, read from the end of a partition. The task that receives them is not asked: the log has what it reads.

A row is JSON: `sender` (vertex/index), `partition`, `epoch`, `eventTime` (ms; of a partial aggregate the start of its window; null:
it has none), `partial` (an aggregate of a window, of which `document` has the columns), and `document`, extended JSON.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.shared.language.values import to_json
from tidemark.shared.language.values.codec import CodecError, decode_value
from tidemark.shared.model.checkpoint import BlobRef
from tidemark.shared.model.frames import Body, DataFrame, Header, Inline
from tidemark.shared.model.ids import Generation, Offset
from tidemark.shared.model.messages import EdgeBinding
from tidemark.shared.model.values import Binary
from tidemark.shared.operators.base import TS, WSTART
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.ports.blobs import BlobError
from tidemark.shared.ports.log import OffsetOutOfRange, TopicPartition
from tidemark.shared.runtime.context import Outside
from tidemark.shared.runtime.reading import reading
from tidemark.shared.wire.arrow import decode_batch
from tidemark.shared.wire.frames import decode_frame

FRAMES_BACK: Final = 200
"""How far behind the end of a partition the first frame lies. Most are watermarks, some twenty a second and sender."""
_FRAMES_AT_ONCE: Final = 50
"""In memory beside the rows that are kept; a frame has at most `inline_bytes_max`."""
WAIT_MS: Final = 5_000
"""For the first rows, where the log has none any more: what is read and committed is deleted. Whoever asks waits with it."""
BYTES_MAX: Final = 256 * 1024
"""Of one answer, which is a record."""


@dataclass(frozen=True, slots=True)
class Edgewise:
    """Rows of one partition, the newest last, and why there are none, or not all."""

    rows: Sequence[bytes]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class _Sample:
    header: Header
    body: Body


async def sample_edge(
    outside: Outside, binding: EdgeBinding, partition: int, generation: Generation, limit: int
) -> Edgewise:
    """The newest rows of a partition of an edge, at most so many, of the tasks that run now. LogError; WireError for what is no frame."""
    found = await _newest(outside, binding, partition, generation, limit)
    if not found:
        return Edgewise((), f"no rows came within {WAIT_MS / 1000:g} s")
    rows: list[bytes] = []
    gone = 0
    for each in reversed(found):  # The newest first, until there are enough.
        if len(rows) >= limit:
            break
        try:
            batch = await _batch(outside, each.body, limit - len(rows))
        except BlobError:
            gone += each.body.rows
            continue
        shown = await outside.executor.blocking(_shown, each, batch, partition)
        rows += reversed(shown)
    kept = _within(rows)
    trouble = f"{gone:,} rows by reference have been read and deleted" if gone else ""
    if len(kept) < len(rows):
        trouble = f"rows beyond {BYTES_MAX} bytes are left out"
    return Edgewise(kept[::-1], trouble)


async def _newest(
    outside: Outside, binding: EdgeBinding, partition: int, generation: Generation, limit: int
) -> Sequence[_Sample]:
    """The last bodies that have so many rows together, undecoded."""
    at = TopicPartition(binding.topic, partition)
    begin, end = (await outside.log.begin_offsets([at]))[at], (await outside.log.end_offsets([at]))[at]
    found: deque[_Sample] = deque()  # As few bodies as have `limit` rows.
    count = 0
    until_ms = outside.clock.monotonic_ms() + WAIT_MS
    async with reading(outside.log) as reader:
        await reader.assign({at: Offset(max(begin, end - FRAMES_BACK))})
        while outside.clock.monotonic_ms() < until_ms and not (found and reader.position(at) >= end):
            try:
                records = await reader.fetch(_FRAMES_AT_ONCE, outside.settings.tick_interval_ms)
            except OffsetOutOfRange:  # Deleted meanwhile, as far as it was committed.
                await reader.assign({at: (await outside.log.begin_offsets([at]))[at]})
                continue
            for record in records:
                frame = decode_frame(record.value or b"", outside.settings.wire)
                header = frame.header
                if (
                    not isinstance(frame, DataFrame)
                    or header.edge != binding.incarnation
                    or header.generation != generation
                ):
                    continue  # Of tasks that are gone: it may have been rolled back.
                found += (_Sample(header, body) for body in frame.bodies)
                count += sum(body.rows for body in frame.bodies)
                while count - found[0].body.rows >= limit:
                    count -= found.popleft().body.rows
    return found


async def _batch(outside: Outside, body: Body, limit: int) -> pa.RecordBatch:
    """Its last rows, at most so many; of a segment its first, because it is read no further. BlobError."""
    if isinstance(body, Inline):
        batch = decode_batch(body.ipc, outside.settings.wire)
        return batch.slice(max(0, batch.num_rows - limit))
    data = await outside.blobs.get(BlobRef(body.name, body.size_bytes, body.digest))
    return await outside.executor.blocking(_first, data, limit)


def _first(data: bytes, limit: int) -> pa.RecordBatch:
    file = pq.ParquetFile(pa.BufferReader(data))
    return next(file.iter_batches(batch_size=limit, use_threads=False), pa.RecordBatch.from_pylist([]))


def _shown(found: _Sample, batch: pa.RecordBatch, partition: int) -> list[bytes]:
    partial = found.body.content == "partials"
    time = WSTART if partial else TS
    times = batch.column(time).to_pylist() if time in batch.schema.names else [None] * batch.num_rows
    documents = [_columns(row) for row in batch.to_pylist()] if partial else documents_of(batch)
    return [
        msgspec.json.encode(
            {
                "sender": f"{found.header.sender.vertex}/{found.header.sender.index}",
                "partition": partition,
                "epoch": found.header.epoch,
                "eventTime": at,
                "partial": partial,
                "document": to_json(document, canonical=False),
            }
        )
        for at, document in zip(times, documents, strict=True)
    ]


def _columns(row: dict[str, Any]) -> dict[str, Any]:
    """A partial aggregate's columns; those that are encoded values are decoded, states of accumulators stay bytes."""
    return {name: _decoded(value) if isinstance(value, bytes) else value for name, value in row.items()}


def _decoded(value: bytes) -> Any:
    try:
        return decode_value(value)
    except CodecError:
        return Binary(value)


def _within(rows: Sequence[bytes]) -> list[bytes]:
    """As many, from the first, as an answer may have."""
    kept, size = [], 0
    for row in rows:
        size += len(row)
        if size > BYTES_MAX:
            break
        kept.append(row)
    return kept
