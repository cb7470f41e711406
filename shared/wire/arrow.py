"""Record batches to Arrow IPC streams and back."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import pyarrow as pa

from tidemark.shared.wire.limits import DEFAULT, WireError, WireLimits

_SCHEMA_BYTES: Final = 4096
"""Bytes of an encoded batch beside its columns, about."""
_ALIGNED: Final = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
"""Columns are copied where they begin between two places for numbers, as in the middle of a message: compiled code takes no others."""


def encode_batch(batch: pa.RecordBatch) -> bytes:
    """One IPC stream with schema and batch."""
    return bytes(stream_of(batch))


def stream_of(batch: pa.RecordBatch) -> memoryview:
    """As `encode_batch`, where Arrow wrote it: of megabytes a copy costs more than to write them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def decode_batch(data: bytes | memoryview, limits: WireLimits = DEFAULT) -> pa.RecordBatch:
    """The one batch of an IPC stream. WireError if there is none, or if it contradicts its own schema (F6)."""
    try:
        with pa.ipc.open_stream(data, options=_ALIGNED) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=False)
    except (pa.ArrowException, StopIteration, OSError) as error:
        message = f"expected an Arrow IPC stream of one batch, found {len(data)} bytes that do not decode: {error!r}"
        raise WireError(message) from error
    if batch.nbytes > limits.batch_bytes_max:
        message = (
            f"expected a batch of at most {limits.batch_bytes_max} bytes (wire.batch_bytes_max), found {batch.nbytes}"
        )
        raise WireError(message)
    return batch


def split_batch(batch: pa.RecordBatch, bytes_max: int) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Slices of a batch whose encoded form stays within `bytes_max`, in order, each with its bytes (F6: split before sending).

    A single row above the limit is given as it is.
    """
    for part in divide_batch(batch, bytes_max):
        data = encode_batch(part)
        if len(data) <= bytes_max or part.num_rows <= 1:
            yield part, data
        else:
            half = part.num_rows // 2
            yield from split_batch(part.slice(0, half), bytes_max)
            yield from split_batch(part.slice(half), bytes_max)


def divide_batch(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Slices of a batch that take at most so much memory each, in order; a single row above the limit is given as it is."""
    parts = min(batch.num_rows, -(-batch.nbytes // max(1, bytes_max // 2, bytes_max - _SCHEMA_BYTES)))
    if batch.nbytes <= bytes_max or parts <= 1:
        yield batch
        return
    bounds = [batch.num_rows * number // parts for number in range(parts + 1)]
    for begin, end in pairwise(bounds):
        yield from divide_batch(batch.slice(begin, end - begin), bytes_max)
