"""The rows of a keyed computation, in columns: as they come in, while they wait for the watermark, and those that it has reached.

- CR1 Rows wait in chunks, each in the order of time. So a watermark takes the beginning of each, whatever the number of keys.
- CR2 Rows that are reached lie key by key; within a key by time, order key and document. `ARRIVED` tells only equal ones apart, so their
  order does not depend on which came first.

A computation's child loads this file: nothing here takes machine code.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.model.time import MAX_TIME

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
OrderKey: TypeAlias = tuple[int, int]
"""(ordinal of the split or sender's sequence, position): how records of one key and time follow one another."""
Made: TypeAlias = Callable[[Sequence[bytes], Sequence[int]], pa.RecordBatch]
"""Columns of encoded documents and their times, ms."""

KEY, VALUE, PACKED, TIME, ORDINAL, POSITION, BELOW, ARRIVED = (
    "key", "value", "packed", "time", "ordinal", "position", "below", "arrived",
)  # fmt: skip
"""Columns: canonical bytes of the key; its value, encoded; the document, encoded; its time, ms; the order key; the time below
which it is late, ms; a number that grows with the rows that came."""
ROWS: Final = pa.schema([
    (KEY, pa.binary()), (VALUE, pa.binary()), (PACKED, pa.large_binary()), (TIME, pa.int64()), (ORDINAL, pa.int64()),
    (POSITION, pa.int64()), (BELOW, pa.int64()),
])  # fmt: skip
"""Rows as they come in."""
STORED: Final = pa.schema([
    (KEY, pa.binary()), (TIME, pa.int64()), (ORDINAL, pa.int64()), (POSITION, pa.int64()), (PACKED, pa.large_binary()),
])  # fmt: skip
"""Those of a snapshot."""
_WAITING: Final = STORED.append(pa.field(ARRIVED, pa.int64()))
_CHUNKS: Final = 8
"""So many chunks may have any size; with more, each is to be twice as large as the one behind it."""
_WORTH_COPYING: Final = 4_096
"""Rows of a chunk that have been taken, from which on they are given back."""


class _Chunk:
    """Rows in the order of time, of which the first `begin` have been taken."""

    __slots__ = ("batch", "begin", "latest", "times")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.begin = 0
        self.times = numbers(batch, TIME)
        self.latest = int(numbers(batch, ARRIVED).max())

    def __len__(self) -> int:
        return int(self.batch.num_rows) - self.begin

    def rest(self) -> pa.RecordBatch:
        return self.batch.slice(self.begin)

    def take(self, below_ms: int) -> pa.RecordBatch:
        end = self.begin + int(np.searchsorted(self.times[self.begin :], below_ms))
        taken = self.batch.slice(self.begin, end - self.begin)
        self.begin = end
        return taken


class WaitingRows:
    """The rows of all keys that wait."""

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._keys: dict[bytes, int] = {}
        """How many rows of each key wait."""
        self.arrived = 0
        """How many rows have come: the number of the next one."""

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def of_key(self, key: bytes) -> int:
        """How many rows of a key wait."""
        return self._keys.get(key, 0)

    def add(self, rows: pa.RecordBatch) -> list[tuple[bytes, int]]:
        """Rows with the columns of `STORED` and any others, in any order; their keys, each with the place of a row."""
        count = rows.num_rows
        arrived = np.arange(self.arrived, self.arrived + count, dtype=np.int64)
        self.arrived += count
        columns = [pa.array(arrived) if field.name == ARRIVED else rows.column(field.name) for field in _WAITING]
        self._keep(pa.RecordBatch.from_arrays(columns, schema=_WAITING))
        return self._counted(rows.column(KEY))

    def since(self, number: int) -> pa.RecordBatch:
        """Those of the rows from this number on that wait."""
        found = []
        for chunk in self._chunks:
            if chunk.latest >= number:
                rest = chunk.rest()
                found.append(rest.filter(pa.array(numbers(rest, ARRIVED) >= number)))
        return pa.concat_batches([pa.RecordBatch.from_pylist([], _WAITING), *found])

    def first_ms(self) -> int:
        """The earliest time; MAX_TIME where no row waits."""
        return min((int(chunk.times[chunk.begin]) for chunk in self._chunks), default=MAX_TIME)

    def nth_ms(self, n: int) -> int:
        """The time of the row behind the `n` earliest; MAX_TIME where there are no more."""
        if n >= len(self):
            return MAX_TIME
        earliest = np.concatenate([chunk.times[chunk.begin : chunk.begin + n + 1] for chunk in self._chunks])
        return int(np.partition(earliest, n)[n])

    def take(self, below_ms: int) -> "ReachedRows":
        """The rows below this time. Each key's wait on, for `of_key`, until they are `applied` or `put_back`."""
        taken = [chunk.take(below_ms) for chunk in self._chunks]
        self._chunks = [
            chunk if chunk.begin < _WORTH_COPYING else _copied(chunk) for chunk in self._chunks if len(chunk)
        ]
        return ReachedRows([rows for rows in taken if rows.num_rows] or [pa.RecordBatch.from_pylist([], _WAITING)])

    def put_back(self, rows: "KeyRows") -> None:
        """Taken rows wait on."""
        self._keep(rows.batch())

    def applied(self, rows: "KeyRows") -> None:
        """Taken rows wait no more."""
        left = self._keys[rows.key] - len(rows)
        if left:
            self._keys[rows.key] = left
        else:
            del self._keys[rows.key]

    def _counted(self, keys: pa.BinaryArray) -> list[tuple[bytes, int]]:
        coded = keys.dictionary_encode()
        codes = coded.indices.to_numpy()
        there, found = self._keys, coded.dictionary.to_pylist()
        for key, count in zip(found, np.bincount(codes).tolist(), strict=True):
            there[key] = there.get(key, 0) + count
        firsts = np.empty(len(found), dtype=np.int64)
        firsts[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # of several the last one stays, which is the first row
        return list(zip(found, firsts.tolist(), strict=True))

    def _keep(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._chunks.append(_by_time([batch]))
        while len(self._chunks) > _CHUNKS and len(self._chunks[-2]) <= 2 * len(self._chunks[-1]):
            self._chunks[-2:] = [_by_time([chunk.rest() for chunk in self._chunks[-2:]])]


class KeyRows:
    """The reached rows of one key, in their order. A caller takes them from the front."""

    __slots__ = ("_begin", "_end", "at", "key", "next_ms", "of")

    def __init__(self, key: bytes, begin: int, end: int, of: "ReachedRows") -> None:
        self.key = key
        self.at = begin
        """The place of the next row among all."""
        self.next_ms: int | None = of.times[begin]
        """The time of the next row; None behind the last."""
        self._begin, self._end, self.of = begin, end, of

    def __len__(self) -> int:
        """All of them, taken or not."""
        return self._end - self._begin

    def take(self) -> int:
        """The next row: its place."""
        at = self.at
        self._reach(at + 1)
        return at

    def _reach(self, at: int) -> None:
        self.at = at
        self.next_ms = self.of.times[at] if at < self._end else None

    def pass_below(self, below_ms: int) -> tuple[int, int]:
        """Take the next rows, which have times below this: how many, and the time of the last one."""
        begin, times = self.at, self.of.times
        end = bisect_left(times, below_ms, begin, self._end)
        self._reach(end)
        return end - begin, times[end - 1]

    def last(self, count: int) -> range:
        """The places of the last rows that were taken."""
        return range(self.at - count, self.at)

    def last_of(self, count: int, columns: Made) -> pa.RecordBatch:
        """Columns of the last rows that were taken; `columns` makes them, once, of all rows of all keys."""
        return self.of.columns(columns).slice(self.at - count, count)

    def batch(self) -> pa.RecordBatch:
        """All of them, as they waited."""
        return self.of.batch(self._begin, self._end)


class RowsToApply:
    """Rows to be applied, by their places from 0 on."""

    def __init__(self, times: list[int], packed: list[bytes], ordinals: Int64s, positions: Int64s) -> None:
        self.times = times
        """In ms."""
        self.packed = packed
        """Encoded documents."""
        self._ordinals, self._positions = ordinals, positions

    def order(self, at: int) -> OrderKey:
        """The order key of a row: few are asked for it."""
        return int(self._ordinals[at]), int(self._positions[at])


def arrived(rows: pa.RecordBatch) -> RowsToApply:
    """Rows as they came in, columns as in `ROWS`."""
    times, packed = rows.column(TIME).to_pylist(), rows.column(PACKED).to_pylist()
    return RowsToApply(times, packed, numbers(rows, ORDINAL), numbers(rows, POSITION))


class ReachedRows(RowsToApply):
    """Rows of some chunks, key by key (CR2)."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        joined = _joined(batches)
        coded = joined.column(KEY).dictionary_encode()
        codes = coded.indices.to_numpy()
        times, ordinals, positions, arrived = (numbers(joined, name) for name in (TIME, ORDINAL, POSITION, ARRIVED))
        order = np.lexsort((arrived, positions, ordinals, times, codes))
        equal = np.logical_and.reduce([
            np.diff(column[order]) == 0 for column in (positions, ordinals, times, codes)
        ])  # fmt: skip
        if bool(equal.any()):
            order = _by_document(order, equal, joined.column(PACKED).to_pylist())
        self._bounds = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1)).tolist()
        self._keys: list[bytes] = coded.dictionary.to_pylist()
        self._order, self._joined = order, joined
        packed = joined.column(PACKED).take(pa.array(order)).to_pylist()
        super().__init__(times[order].tolist(), packed, ordinals[order], positions[order])
        self._columns: pa.RecordBatch | Exception | None = None

    def by_key(self) -> Iterator[KeyRows]:
        """The rows of each key."""
        for key, begin, end in zip(self._keys, self._bounds, self._bounds[1:], strict=False):
            yield KeyRows(key, begin, end, self)

    def columns(self, made: Made) -> pa.RecordBatch:
        """All rows in the columns that `made` gives, made once; its error each time."""
        if self._columns is None:
            try:
                self._columns = made(self.packed, self.times)
            except Exception as e:
                self._columns = e
                raise
        elif isinstance(self._columns, Exception):
            raise self._columns
        return self._columns

    def batch(self, begin: int, end: int) -> pa.RecordBatch:
        """Some rows, as they waited."""
        return self._joined.take(pa.array(self._order[begin:end]))


def numbers(batch: pa.RecordBatch, name: str) -> Int64s:
    """A column of whole numbers without nulls, shape (n,)."""
    found: Int64s = batch.column(name).to_numpy()
    return found


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _by_time(batches: Sequence[pa.RecordBatch]) -> _Chunk:
    rows = _joined(batches)
    times = numbers(rows, TIME)
    if bool((times[1:] < times[:-1]).any()):
        rows = rows.take(pa.array(np.argsort(times, kind="stable")))
    return _Chunk(rows)


def _copied(chunk: _Chunk) -> _Chunk:
    """The chunk without what was taken of it, if that is most of it."""
    if 2 * chunk.begin < chunk.batch.num_rows:
        return chunk
    return _Chunk(chunk.rest().take(pa.array(np.arange(len(chunk)))))


def _by_document(order: Int64s, equal: npt.NDArray[np.bool_], packed: Sequence[bytes]) -> Int64s:
    """The order with rows that equal their neighbours in all but the document sorted by that."""
    found = order.tolist()
    places = np.flatnonzero(equal)
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
        begin, end = int(run[0]), int(run[-1]) + 2
        found[begin:end] = sorted(found[begin:end], key=packed.__getitem__)
    return np.array(found, dtype=np.int64)
