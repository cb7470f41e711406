"""Columns of records as producer batches: packed by compiled code, handed to the client library in place of its own builder."""

import time
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.adapters.kafka_sending import HEADER, PackedBatch
from tidemark.shared.compiled import kafka_packing
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.ports.log import RecordColumns

Uint8s: TypeAlias = npt.NDArray[np.uint8]
Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class _Pieces(NamedTuple):
    """Pieces of bytes, as the compiled code reads them."""

    text: Uint8s
    bounds: Int64s
    there: Bools

    @staticmethod
    def of(column: pa.Array | None, count: int) -> "_Pieces":
        if column is None or not count:
            return _Pieces(np.empty(0, np.uint8), np.zeros(count + 1, np.int64), np.zeros(count, np.bool_))
        there = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else np.ones(count, np.bool_)
        return _Pieces(*buffers(column), there)


def packed(
    columns: RecordColumns, bytes_max: int, compression: str | None, *, transactional: bool
) -> Iterator[PackedBatch]:
    """The records in batches of at most so many bytes before they are compressed; one record alone may be larger."""
    count = len(columns)
    keys, values = _Pieces.of(columns.keys, count), _Pieces.of(columns.values, count)
    header_bounds, names, contents = _headers(columns.headers, count)
    times = _times(columns.timestamps_ms, count)
    sizes = kafka_packing.RECORD_BYTES_MAX + np.diff(keys.bounds) + np.diff(values.bounds)
    sizes += np.diff((names.bounds + contents.bounds)[header_bounds])
    sizes += kafka_packing.HEADER_BYTES_MAX * np.diff(header_bounds)
    reached = np.concatenate(([0], np.cumsum(sizes)))
    first, told, room = 0, np.zeros(3, np.int64), bytes_max - HEADER.size
    while first < count:
        needed = min(int(reached[-1] - reached[first]), room + int(sizes[first]))
        out = np.empty(needed, np.uint8)
        kafka_packing.pack(
            first, count - first, times, *keys, *values, *names, *contents, header_bounds, out, 0, room, told
        )
        taken = int(told[kafka_packing.ROWS])
        times_ms = int(times[first]), int(told[kafka_packing.LATEST])
        records = out.data[: int(told[kafka_packing.SIZE])]
        yield PackedBatch(records, taken, times_ms, compression, transactional=transactional)
        first += taken


def _times(column: pa.Array | None, count: int) -> Int64s:
    """Ms; now where there is none."""
    now_ms = int(time.time() * 1000)
    if column is None:
        return np.full(count, now_ms, np.int64)
    whole = column.fill_null(now_ms) if column.null_count else column
    numbers: Int64s = whole.to_numpy(zero_copy_only=False)
    return numbers


def _headers(column: pa.ListArray | None, count: int) -> tuple[Int64s, _Pieces, _Pieces]:
    """Which headers are a record's, bounds of shape (n + 1,); their names and contents."""
    if column is None:
        return np.zeros(count + 1, np.int64), _Pieces.of(None, 0), _Pieces.of(None, 0)
    bounds = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    headers = column.values
    pieces = (_Pieces.of(headers.field(place), len(headers)) for place in (0, 1))
    return (bounds, *pieces)
