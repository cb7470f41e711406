"""Record batches to Arrow IPC streams and back."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from shared.wire.errors import WireError

BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest decoded batch that is accepted, bytes."""


def encode_batch(batch: pa.RecordBatch) -> bytes:
    """One IPC stream with schema and batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def decode_batch(data: bytes) -> pa.RecordBatch:
    """The one batch of an IPC stream; WireError if there is none, or it does not hold what its schema says (F6)."""
    try:
        with pa.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=False)
    except (pa.ArrowException, StopIteration, OSError) as error:
        message = f"expected an Arrow IPC stream of one batch, found {len(data)} bytes that do not decode: {error!r}"
        raise WireError(message) from error
    if batch.nbytes > BATCH_BYTES_MAX:
        message = f"expected a batch of at most {BATCH_BYTES_MAX} bytes, found {batch.nbytes}"
        raise WireError(message)
    return batch


def split_batch(batch: pa.RecordBatch, bytes_max: int) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Slices of a batch whose encoded form stays within `bytes_max`, in order, each with its bytes (F6: split before sending).

    A single row above the limit is given as it is.
    """
    data = encode_batch(batch)
    if len(data) <= bytes_max or batch.num_rows <= 1:
        yield batch, data
        return
    half = batch.num_rows // 2
    yield from split_batch(batch.slice(0, half), bytes_max)
    yield from split_batch(batch.slice(half), bytes_max)
