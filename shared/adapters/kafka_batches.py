"""Kafka's record batches (format 2) to columns with numpy: no object a record.

A record begins with its length, a varint, so that where one begins is known only from the one before. Here all records are found at once: a
zero byte behind what could be a length could be a record's attributes; of those places the ones count whose lengths lead from one to the
next, from a batch's first record to its end. That is checked for every record, so what comes out is right; bytes on which it cannot be
done (a header that ends in a byte above 127, a value that looks like records) give None, and the caller reads them record by record.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

HEADER_BYTES: Final = 61
"""Of a batch, before its first record."""
_LENGTH_BYTES_MAX: Final = 4
"""Of a record's length: batches are far below 2²⁷ bytes."""
_VARINT_BYTES_MAX: Final = 10
"""Kafka's record batch: the longest number."""
_RECORD_BYTES_MIN: Final = 6
"""Attributes, time, offset, length of key, length of value, number of headers."""
_PRUNINGS_MAX: Final = 8
"""Rounds of a search; what is left goes the slow way, with the same result."""
_ZEROS_A_RECORD_MAX: Final = 8
"""Where there are more zero bytes, values are not text, and looking at each zero would take longer than reading one by one."""
_MORE: Final = 0x80
_SEVEN: Final = 0x7F
_BITS: Final = 7
_WORD_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """A batch in a buffer."""

    begin: int
    """Of its first record."""
    end: int
    base_offset: int
    count: int
    """Records that its header names."""
    first_timestamp: int
    append_time: int | None
    """The broker's time, where that is the records'."""


@dataclass(frozen=True, slots=True)
class Records:
    """Columns of length n."""

    offsets: Int64s
    timestamps: Int64s
    keys: pa.BinaryArray | None
    """None: no record has one."""
    values: pa.BinaryArray


def read_batches(data: bytes, batches: Sequence[BatchPlace]) -> Records | None:
    """The records of uncompressed batches (at least one, none empty), in order; None if they must be read one by one."""
    if len(data) >= 2**31:
        return None
    whole = np.frombuffer(data, dtype=np.uint8)
    low, high = batches[0].begin, batches[-1].end
    found = _starts(whole, low, high, batches)
    if found is None:
        return None
    attributes, ends = found
    at = attributes + 1
    times, at = _varints(whole, at)
    deltas, at = _varints(whole, at)
    key_lengths, at = _varints(whole, at)
    keys_at = at
    at = at + np.maximum(key_lengths, 0)
    value_lengths, at = _varints(whole, np.minimum(at, high - 1))
    values_end = at + np.maximum(value_lengths, 0)
    if bool((values_end >= ends).any()):
        return None
    counts = np.array([b.count for b in batches])
    offsets = deltas + np.repeat(np.array([b.base_offset for b in batches], dtype=np.int64), counts)
    timestamps = times + np.repeat(np.array([b.first_timestamp for b in batches], dtype=np.int64), counts)
    if any(b.append_time is not None for b in batches):
        appended = np.array([-1 if b.append_time is None else b.append_time for b in batches], dtype=np.int64)
        timestamps = np.where(np.repeat(appended, counts) < 0, timestamps, np.repeat(appended, counts))
    keys = _column(data, keys_at, key_lengths) if bool((key_lengths >= 0).any()) else None
    return Records(offsets, timestamps, keys, _column(data, at, value_lengths))


def _starts(whole: Bytes, low: int, high: int, batches: Sequence[BatchPlace]) -> tuple[Int64s, Int64s] | None:
    """Where the attributes of each record stand, and where it ends; both of shape (n,)."""
    firsts = np.array([b.begin for b in batches], dtype=np.int64)
    lasts = np.array([b.end for b in batches], dtype=np.int64)
    counts = np.array([b.count for b in batches], dtype=np.int64)
    wanted = int(counts.sum())
    mask = whole[low:high] == 0
    if np.count_nonzero(mask) > _ZEROS_A_RECORD_MAX * (wanted + len(batches) * HEADER_BYTES):
        return None
    zeros = np.flatnonzero(mask) + low
    zeros, floors = _possible(whole, *_inside(zeros, firsts, lasts))
    begins, lengths = _lengths_before(whole, zeros, floors)
    ends = zeros + lengths
    kept = (lengths >= _RECORD_BYTES_MIN) & (ends <= high)
    begins, zeros, ends = begins[kept], zeros[kept], ends[kept]
    for _ in range(_PRUNINGS_MAX):
        if len(begins) <= wanted:
            break
        # What leads to no record, and what no record leads to, is none.
        kept = _marked(low, high, begins, lasts)[ends - low]
        begins, zeros, ends = begins[kept], zeros[kept], ends[kept]
        kept = _marked(low, high, ends, firsts)[begins - low]
        if bool(kept.all()):
            break
        begins, zeros, ends = begins[kept], zeros[kept], ends[kept]
    if len(begins) != wanted:
        return None
    last = np.cumsum(counts) - 1
    following = np.append(begins[1:], -1)
    following[last] = lasts
    first = np.concatenate(([0], last[:-1] + 1))
    right = np.array_equal(ends, following) and np.array_equal(begins[first], firsts)
    return (zeros, ends) if right else None


def _marked(low: int, high: int, *places: Int64s) -> Bools:
    """A mark at each of these places; shape (high - low + 1,)."""
    marks = np.zeros(high - low + 1, dtype=np.bool_)
    for some in places:
        marks[some - low] = True
    return marks


def _inside(zeros: Int64s, firsts: Int64s, lasts: Int64s) -> tuple[Int64s, Int64s]:
    """Places in the records, not in the headers of batches; and where the batch of each begins."""
    lows, highs = np.searchsorted(zeros, firsts + 1), np.searchsorted(zeros, lasts)
    pieces = [zeros[a:b] for a, b in zip(lows.tolist(), highs.tolist(), strict=True)]
    return np.concatenate(pieces), np.repeat(firsts, highs - lows)


def _possible(whole: Bytes, zeros: Int64s, floors: Int64s) -> tuple[Int64s, Int64s]:
    """Those behind what may be a length: a byte alone is even and above the least, of several only the last is below 128."""
    before = whole[zeros - 1]
    several = (whole[zeros - 2] >= _MORE) & (zeros - 2 >= floors)
    alone = (before >= 2 * _RECORD_BYTES_MIN) & (before & 1 == 0)
    kept = (before < _MORE) & (before > 0) & (several | alone)
    return zeros[kept], floors[kept]


def _lengths_before(whole: Bytes, places: Int64s, floors: Int64s) -> tuple[Int64s, Int64s]:
    """The varint that ends before each place: where it begins, and its value; -1 where it is negative."""
    begins = places - 1
    raw = whole[begins].astype(np.int64)
    going = np.ones(len(places), dtype=np.bool_)
    for _ in range(_LENGTH_BYTES_MAX - 1):
        before = whole[begins - 1]
        going &= (before >= _MORE) & (begins > floors)
        if not going.any():
            break
        begins -= going
        raw = (
            (raw << _BITS) | (before & _SEVEN)
            if going.all()
            else np.where(going, raw << _BITS | (before & _SEVEN), raw)
        )
    return begins, np.where(raw & 1 == 1, -1, raw >> 1)


def _varints(whole: Bytes, at: Int64s) -> tuple[Int64s, Int64s]:
    """The zigzag varints that begin at these places: their values, and the places behind them."""
    last = len(whole) - 1
    byte = whole[at]
    raw = (byte & _SEVEN).astype(np.uint64)
    behind = at + 1
    rows = np.flatnonzero(byte >= _MORE)
    shift = _BITS
    while len(rows) and shift < _WORD_BITS:
        byte = whole[np.minimum(behind[rows], last)]
        raw[rows] |= (byte & _SEVEN).astype(np.uint64) << np.uint64(shift)
        behind[rows] += 1
        rows = rows[byte >= _MORE]
        shift += _BITS
    values = (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64)
    return values, behind


def _column(data: bytes, begins: Int64s, lengths: Int64s) -> pa.BinaryArray:
    """A binary column of these pieces of the bytes; null where the length is negative."""
    count = len(begins)
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2] = begins
    bounds[1::2] = begins + np.maximum(lengths, 0)
    # Pieces and what lies between them, without a copy; then every second one.
    pieces = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    indices = np.arange(0, 2 * count, 2, dtype=np.int64)
    null = lengths < 0
    return pieces.take(pa.array(indices, mask=null if bool(null.any()) else None))
