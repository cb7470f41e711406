"""A broker's answer for one partition, as columns: compiled code takes the batches apart, this puts the columns together.

Batches that are compressed are unpacked here, those that unpack to very much in parts (kafka_unpacking.py). A message of a format that
brokers no longer write is a batch of one, or of those that are compressed in it (kafka_messages.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from tidemark.shared.adapters.kafka_messages import MessageParts, is_intact, within
from tidemark.shared.adapters.kafka_unpacking import UNPACK, UNPACKED_BYTES_MAX, Unpacking, unpacked
from tidemark.shared.compiled import kafka
from tidemark.shared.compiled.columns import bitmap

Int64s: TypeAlias = npt.NDArray[np.int64]
_SMALL_BYTES: Final = 1024
"""The CRC of a batch up to this takes less than to call for it."""
_RECORD_BYTES_MIN: Final = 7
"""Length, attributes, time, offset, length of key, length of value, number of headers."""
_MESSAGE, _MESSAGE_PACKED = -1, -2
"""Beside the compressions of batches, kinds of what is taken apart together."""
_COLUMN_BYTES_MAX: Final = 2**31 - 1
"""Of a column's values: Arrow's offsets have 32 bits."""


class BrokenBatch(Exception):
    """A batch that cannot be read: its base offset, and why. `whole`: its bytes are those that were written, so it never can."""

    def __init__(self, base_offset: int, reason: str, *, whole: bool = True) -> None:
        super().__init__(reason)
        self.base_offset = base_offset
        self.reason = reason
        self.whole = whole


@dataclass(frozen=True, slots=True)
class BatchRecords:
    """Columns of length n."""

    offsets: Int64s
    timestamps: Int64s
    keys: pa.BinaryArray | None
    """None: no record has one, or they were not asked for."""
    values: pa.BinaryArray
    unread: Mapping[int, str] = field(default_factory=dict)
    """Why a record has no value here, by its offset."""


class PartitionAnswer:
    """The batches of one answer, given out from the first to the last."""

    def __init__(
        self, data: bytes, begin: int, position: int, aborted: Iterable[tuple[int, int]], *, committed_only: bool
    ) -> None:
        """Batches lie in the data from `begin` on; `position` is the first offset that is wanted. aborted: (producer, first offset)."""
        self.next_fetch_offset = position
        """The offset behind the batches that were given out."""
        self._data, self._bytes = data, np.frombuffer(data, dtype=np.uint8)
        count = kafka.walk(self._bytes, begin, np.empty((0, kafka.FIELDS), dtype=np.int64))
        self._table = np.empty((count, kafka.FIELDS), dtype=np.int64)
        kafka.walk(self._bytes, begin, self._table)
        self._next = 0
        begun = sorted(aborted, key=lambda one: one[1])
        self._producers, self._firsts = (np.array([one[i] for one in begun], dtype=np.int64) for i in (0, 1))
        self._active, self._state = np.zeros(len(begun), dtype=np.int64), np.zeros(2, dtype=np.int64)
        self._committed_only = committed_only
        self._unpacking: Unpacking | MessageParts | None = None
        """The next batch, which goes out in parts."""
        self._unpacked_bytes = 0
        """Of the records that were taken apart last."""

    @property
    def more(self) -> bool:
        """Whether batches are left."""
        return self._next < len(self._table)

    def take(self, max_bytes: int, *, with_keys: bool) -> tuple[BatchRecords | None, int]:
        """The records of the next batches, None if a reader is shown none, and the bytes of those batches, unpacked where that is more.

        As many batches as bring them to `max_bytes`, one at least. Batches before a broken one are given out; it is then the first of the
        next call.

        Raises:
            BrokenBatch: the first batch's CRC is not that of its bytes, or it cannot be unpacked or taken apart.
        """
        if self._unpacking is not None:
            return self._part(self._unpacking, with_keys=with_keys)
        rest = self._table[self._next :]
        reached = np.cumsum(rest[:, kafka.END] - rest[:, kafka.BEGIN])
        table = rest[: int(np.searchsorted(reached, max_bytes)) + 1]
        table = table[: self._intact(table)]
        state = self._active.copy(), self._state.copy()
        try:
            pieces = self._pieces(table, with_keys=with_keys)
        except _Broken as broken:
            self._active, self._state = state
            if broken.large and broken.place == 0:
                self._shown(table[:1])
                self._unpacking = self._in_parts(table[0])
                return self._part(self._unpacking, with_keys=with_keys)
            if broken.place == 0:
                raise BrokenBatch(int(table[0, kafka.BASE]), broken.reason) from broken
            table = table[: broken.place]
            pieces = self._pieces(table, with_keys=with_keys)
        self._next += len(table)
        wanted, self.next_fetch_offset = self.next_fetch_offset, int(table[-1, kafka.NEXT])
        size_bytes = max(int(reached[len(table) - 1]), self._unpacked_bytes)
        return _joined([_from(piece, wanted) for piece in pieces]), size_bytes

    def _in_parts(self, row: Int64s) -> Unpacking | MessageParts:
        if row[kafka.MAGIC] < kafka.FORMAT:
            return MessageParts(self._data, row)
        packed = self._data[row[kafka.BEGIN] + kafka.HEADER_BYTES : row[kafka.END]]
        codec, count = int(row[kafka.ATTRIBUTES] & kafka.CODEC_MASK), int(row[kafka.COUNT])
        return Unpacking(packed, codec, count, UNPACKED_BYTES_MAX)

    def _part(self, unpacking: Unpacking | MessageParts, *, with_keys: bool) -> tuple[BatchRecords | None, int]:
        """Some records of a batch that unpacks to very much; behind the last the position moves behind the batch."""
        row = self._table[self._next]
        try:
            records, size_bytes = _next_of(unpacking, row, with_keys=with_keys)
        except Exception as error:
            raise BrokenBatch(int(row[kafka.BASE]), str(error)) from error
        wanted = self.next_fetch_offset
        self.next_fetch_offset = max(wanted, int(records.offsets[-1]) + 1)
        if not unpacking.more:
            self._unpacking, self.next_fetch_offset = None, int(row[kafka.NEXT])
            self._next += 1
        kept = _from(records, wanted)
        return (kept, size_bytes) if len(kept.offsets) else (None, 0)

    def _intact(self, table: Int64s) -> int:
        """How many batches, from the first, have the CRCs that they name; BrokenBatch if none."""
        found = np.empty(len(table), dtype=np.uint8)
        kafka.intact(self._bytes, table, _SMALL_BYTES, found)
        for place in np.flatnonzero(found != 1).tolist():
            intact = bool(found[place]) and self._is_intact(table[place])
            if not intact and place == 0:
                raise BrokenBatch(int(table[0, kafka.BASE]), "does not have the CRC that it names", whole=False)
            if not intact:
                return place
        return len(table)

    def _is_intact(self, row: Int64s) -> bool:
        """Whether a batch has the CRC that it names, by the processor's own instruction."""
        if row[kafka.MAGIC] < 0:
            return False
        if row[kafka.MAGIC] < kafka.FORMAT:
            return is_intact(self._data, row)
        begin, end = int(row[kafka.BEGIN]), int(row[kafka.END])
        named = int.from_bytes(self._data[begin + kafka.CRC_AT : begin + kafka.CHECKED_FROM], "big")
        return bool(crc32c(memoryview(self._data)[begin + kafka.CHECKED_FROM : end]) == named)

    def _pieces(self, table: Int64s, *, with_keys: bool) -> list[BatchRecords]:
        """The records of intact batches that readers are shown, in order; _Broken names the first batch that cannot be read."""
        self._unpacked_bytes = 0
        rows = np.flatnonzero(self._shown(table))
        codecs = table[rows, kafka.ATTRIBUTES] & kafka.CODEC_MASK
        kinds = np.where(
            table[rows, kafka.MAGIC] < kafka.FORMAT, np.where(codecs > 0, _MESSAGE_PACKED, _MESSAGE), codecs
        )
        pieces: list[BatchRecords] = []
        for run in np.split(rows, np.flatnonzero(kinds[1:] != kinds[:-1]) + 1):
            if not len(run):
                continue
            kind = int(kinds[np.searchsorted(rows, run[0])])
            try:
                if kind == _MESSAGE_PACKED:
                    pieces += [self._within(place, row, with_keys=with_keys) for place, row in enumerate(table[run])]
                elif kind == _MESSAGE:
                    pieces.append(_taken_apart(self._bytes, table[run], with_keys=with_keys))
                else:
                    pieces.append(self._run(table[run], kind, with_keys=with_keys))
            except _Broken as broken:
                raise _Broken(int(run[broken.place]), broken.reason, large=broken.large) from broken
        return pieces

    def _shown(self, table: Int64s) -> npt.NDArray[np.bool_]:
        """Which of the next batches readers are shown; follows which producers' transactions are aborted."""
        shown = np.empty(len(table), dtype=np.bool_)
        kafka.visible(
            self._bytes, table, self._producers, self._firsts, self._active, self._state, self._committed_only, shown
        )
        return shown

    def _within(self, place: int, row: Int64s, *, with_keys: bool) -> BatchRecords:
        """The records of a message that has others in it."""
        try:
            found = within(self._data, row)
        except Exception as error:
            raise _Broken(place, f"cannot be unpacked ({type(error).__name__}: {error})") from error
        begun = self._unpacked_bytes
        if found is None or (begun and begun + len(found[0]) > UNPACKED_BYTES_MAX):
            raise _Broken(place, "unpacks to very much", large=True)
        data, table = found
        self._unpacked_bytes += len(data)
        try:
            return _taken_apart(np.frombuffer(data, dtype=np.uint8), table, with_keys=with_keys)
        except _Broken as broken:
            raise _Broken(place, broken.reason) from broken

    def _run(self, table: Int64s, codec: int, *, with_keys: bool) -> BatchRecords:
        """The records of batches that are compressed alike."""
        table[:, kafka.BEGIN] += kafka.HEADER_BYTES
        data = self._bytes
        if codec:
            data = _unpacked(self._data, table, codec, UNPACKED_BYTES_MAX - self._unpacked_bytes)
            self._unpacked_bytes += len(data)
        return _taken_apart(data, table, with_keys=with_keys)


def _next_of(unpacking: Unpacking | MessageParts, row: Int64s, *, with_keys: bool) -> tuple[BatchRecords, int]:
    """The next records of a batch that goes out in parts, and their bytes."""
    if isinstance(unpacking, MessageParts):
        data, table = unpacking.next()
        return _taken_apart(np.frombuffer(data, dtype=np.uint8), table, with_keys=with_keys), len(data)
    part = unpacking.next()
    if part.large is not None:
        return _passed(row, *part.large), 0
    table = row[np.newaxis].copy()
    table[0, [kafka.BEGIN, kafka.END, kafka.COUNT]] = 0, len(part.data), part.count
    return _taken_apart(np.frombuffer(part.data, dtype=np.uint8), table, with_keys=with_keys), len(part.data)


def _taken_apart(data: npt.NDArray[np.uint8], table: Int64s, *, with_keys: bool) -> BatchRecords:
    """The records that lie where the table says."""
    sizes = table[:, kafka.END] - table[:, kafka.BEGIN]
    lies = np.flatnonzero((table[:, kafka.COUNT] < 0) | (table[:, kafka.COUNT] * _RECORD_BYTES_MIN > sizes))
    if len(lies):
        raise _Broken(int(lies[0]), "names another number of records than it has")
    columns = np.empty((6, int(table[:, kafka.COUNT].sum())), dtype=np.int64)
    old = len(table) > 0 and table[0, kafka.MAGIC] < kafka.FORMAT
    broken = (kafka.messages if old else kafka.records)(data, table, columns)
    if broken >= 0:
        raise _Broken(broken, "has records that do not end where their lengths say")
    offsets, timestamps, keys, key_bytes, values, value_bytes = columns
    keyed = with_keys and bool((key_bytes >= 0).any())
    return BatchRecords(
        offsets,
        timestamps,
        _gathered(data, keys, key_bytes) if keyed else None,
        _gathered(data, values, value_bytes),
    )


class _Broken(Exception):
    """Which batch of those that were looked at cannot be read, and why."""

    def __init__(self, place: int, reason: str, *, large: bool = False) -> None:
        super().__init__(reason)
        self.place, self.reason, self.large = place, reason, large


def _unpacked(data: bytes, table: Int64s, codec: int, room: int) -> npt.NDArray[np.uint8]:
    """The records of compressed batches, one behind the other; the table gets their places. _Broken for a batch above `room`."""
    if codec not in UNPACK:
        raise _Broken(0, f"is compressed in a way that is not known ({codec})")
    found: list[bytes] = []
    at = 0
    for place, row in enumerate(table):
        try:
            records = unpacked(data[row[kafka.BEGIN] : row[kafka.END]], codec)
        except Exception as error:
            raise _Broken(place, f"cannot be unpacked ({type(error).__name__}: {error})") from error
        begun = at > 0 or room < UNPACKED_BYTES_MAX
        if records is None or (begun and at + len(records) > room):
            raise _Broken(place, "unpacks to very much", large=True)
        found.append(records)
        row[kafka.BEGIN], row[kafka.END] = at, at + len(found[-1])
        at += len(found[-1])
    return np.frombuffer(found[0] if len(found) == 1 else b"".join(found), dtype=np.uint8)


def _gathered(data: npt.NDArray[np.uint8], begins: Int64s, lengths: Int64s) -> pa.BinaryArray:
    """A binary column of these pieces; null where the length is negative."""
    count = len(begins)
    ends = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.maximum(lengths, 0), out=ends[1:])
    if ends[-1] > _COLUMN_BYTES_MAX:
        raise _Broken(0, f"has {ends[-1]} bytes of values with those beside it, more than a column can hold")
    offsets, out = ends.astype(np.int32), np.empty(int(ends[-1]), dtype=np.uint8)
    kafka.gather(data, begins, lengths, offsets, out)
    there = lengths >= 0
    nulls = count - int(np.count_nonzero(there))
    valid = bitmap(there) if nulls else None
    return pa.BinaryArray.from_buffers(pa.binary(), count, [valid, pa.py_buffer(offsets), pa.py_buffer(out)], nulls)


def _passed(row: Int64s, delta: int, size_bytes: int) -> BatchRecords:
    """In the place of a record that is too large: no value, and why."""
    offset = int(row[kafka.BASE]) + delta
    time_ms = int(row[kafka.MAX_TIME] if row[kafka.ATTRIBUTES] & kafka.APPEND_TIME else row[kafka.FIRST_TIME])
    reason = f"the record has {size_bytes} bytes unpacked; at most {UNPACKED_BYTES_MAX} are read"
    places = np.array([offset], dtype=np.int64), np.array([time_ms], dtype=np.int64)
    return BatchRecords(*places, None, pa.array([b""], pa.binary()), {offset: reason})


def _from(piece: BatchRecords, position: int) -> BatchRecords:
    """Without the records before the position, which a broker sends with the batch that contains it."""
    skip = int(np.searchsorted(piece.offsets, position))
    if not skip:
        return piece
    keys = None if piece.keys is None else piece.keys.slice(skip)
    return BatchRecords(piece.offsets[skip:], piece.timestamps[skip:], keys, piece.values.slice(skip))


def _joined(pieces: Sequence[BatchRecords]) -> BatchRecords | None:
    """One piece after the other; None if there are no records."""
    some = [piece for piece in pieces if len(piece.offsets)]
    if len(some) <= 1:
        return some[0] if some else None
    keys = [pa.nulls(len(piece.offsets), pa.binary()) if piece.keys is None else piece.keys for piece in some]
    return BatchRecords(
        np.concatenate([piece.offsets for piece in some]),
        np.concatenate([piece.timestamps for piece in some]),
        pa.concat_arrays(keys) if any(piece.keys is not None for piece in some) else None,
        pa.concat_arrays([piece.values for piece in some]),
    )
