"""Columns of records as producer batches: packed by compiled code, handed to the client library in place of its own builder."""

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from crc32c import crc32c

from tidemark.shared.compiled import kafka, kafka_packing
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.ports.log import RecordColumns

Uint8s: TypeAlias = npt.NDArray[np.uint8]
Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""Of a batch: base offset, length, leader's epoch, format, CRC, attributes, last place, times, producer, its epoch, number, count."""
_CODECS: Final[Mapping[str, tuple[int, Callable[[bytes], bytes]]]] = {
    "gzip": (1, gzip_encode), "snappy": (2, snappy_encode), "lz4": (3, lz4_encode), "zstd": (4, zstd_encode),
}  # fmt: skip


class PackedBatch:
    """A full batch, with the methods of the library's `BatchBuilder` that its sender calls."""

    def __init__(self, records: bytes, count: int, first_ms: int, latest_ms: int, attributes: int) -> None:
        self._records = records
        self._count = count
        self._times = first_ms, latest_ms
        self._attributes = attributes
        self._producer = -1, -1, -1
        self._built: bytes | None = None

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._producer = producer_id, producer_epoch, base_sequence

    def _build(self) -> bytes:
        if self._built is None:
            length = _HEADER.size - kafka.LOG_OVERHEAD_BYTES + len(self._records)
            behind = self._attributes, self._count - 1, *self._times, *self._producer, self._count
            header = _HEADER.pack(0, length, -1, kafka.FORMAT, 0, *behind)
            check = crc32c(self._records, crc32c(header[kafka.CHECKED_FROM :]))
            built = bytearray(header)
            struct.pack_into(">I", built, kafka.CRC_AT, check)
            self._built, self._records = b"".join((built, self._records)), b""
        return self._built

    def size(self) -> int:
        """The batch's size, bytes."""
        return len(self._built) if self._built is not None else _HEADER.size + len(self._records)

    def record_count(self) -> int:
        """How many records it has."""
        return self._count

    def closed(self) -> bool:
        """It takes no more records."""
        return True

    def close(self) -> None:
        """Nothing to do: a packed batch takes no more records."""


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
    first, told, room = 0, np.zeros(3, np.int64), bytes_max - _HEADER.size
    while first < count:
        needed = min(int(reached[-1] - reached[first]), room + int(sizes[first]))
        out = np.empty(needed, np.uint8)
        kafka_packing.pack(
            first, count - first, times, *keys, *values, *names, *contents, header_bounds, out, 0, room, told
        )
        taken = int(told[kafka_packing.ROWS])
        records, codec = _compressed(out[: told[kafka_packing.SIZE]].tobytes(), compression)
        attributes = codec | (kafka.TRANSACTIONAL if transactional else 0)
        yield PackedBatch(records, taken, int(times[first]), int(told[kafka_packing.LATEST]), attributes)
        first += taken


def _compressed(records: bytes, compression: str | None) -> tuple[bytes, int]:
    """The records as they are sent, and the codec's number; 0 where compressing does not make them smaller."""
    if compression is None:
        return records, 0
    codec, encode = _CODECS[compression]
    smaller = encode(records)
    return (smaller, codec) if len(smaller) < len(records) else (records, 0)


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
