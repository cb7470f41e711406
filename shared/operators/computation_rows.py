"""The rows of a keyed computation, in columns: as they come in, while they wait for the watermark, and those that it has reached.

- CR1 Rows wait in chunks, each in the order of time. So a watermark takes the beginning of each, whatever the number of keys.
- CR2 Rows that are reached lie key by key; within a key by time, order key and document. `ARRIVED` tells only equal ones apart, so their
  order does not depend on which came first.

A computation's child loads this file: nothing here takes machine code.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.model.time import MAX_TIME

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
OrderKey: TypeAlias = tuple[int, int]
"""(ordinal of the split or sender's sequence, position): how records of one key and time follow one another."""
Stored: TypeAlias = tuple[int, OrderKey, bytes]
"""A waiting row of a key: time in ms, order key, encoded document."""

KEY, VALUE, PACKED, TIME, ORDINAL, POSITION, BELOW, ARRIVED = (
    "key", "value", "packed", "time", "ordinal", "position", "below", "arrived",
)  # fmt: skip
"""Columns: canonical bytes of the key; its value, encoded; the document, encoded; its time, ms; the order key; the time below
which it is late, ms; a number that grows with the rows that came."""
ROWS: Final = pa.schema([
    (KEY, pa.binary()), (VALUE, pa.binary()), (PACKED, pa.binary()), (TIME, pa.int64()), (ORDINAL, pa.int64()), (POSITION, pa.int64()),
    (BELOW, pa.int64()),
])  # fmt: skip
"""Rows as they come in."""
_WAITING: Final = pa.schema(
    [
        (KEY, pa.binary()),
        *((name, pa.int64()) for name in (TIME, ORDINAL, POSITION, ARRIVED)),
        (PACKED, pa.large_binary()),
    ]
)
_CHUNKS: Final = 8
"""So many chunks may have any size; with more, each is to be twice as large as the one behind it."""
_WORTH_COPYING: Final = 4_096
"""Rows of a chunk that have been taken, from which on they are given back."""


class _Chunk:
    """Rows in the order of time, of which the first `begin` have been taken."""

    __slots__ = ("batch", "begin", "times")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.begin = 0
        self.times = numbers(batch, TIME)

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
        self._arrived = 0

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def of_key(self, key: bytes) -> int:
        """How many rows of a key wait."""
        return self._keys.get(key, 0)

    def add(self, rows: pa.RecordBatch) -> list[tuple[bytes, int]]:
        """Rows with the columns of `ROWS`, in any order; the keys that they have, each with the place of a row."""
        count = rows.num_rows
        arrived = np.arange(self._arrived, self._arrived + count, dtype=np.int64)
        self._arrived += count
        columns = [
            pa.array(arrived) if field.name == ARRIVED else rows.column(field.name).cast(field.type)
            for field in _WAITING
        ]
        self._keep(pa.RecordBatch.from_arrays(columns, schema=_WAITING))
        return self._counted(rows.column(KEY))

    def restore(self, stored: Iterable[tuple[bytes, Sequence[Stored]]]) -> None:
        """Rows of a snapshot, by key."""
        every = ((key, row) for key, rows in stored for row in rows)
        rows = [(key, time, *order, n, packed) for n, (key, (time, order, packed)) in enumerate(every, self._arrived)]
        if rows:
            columns = [
                pa.array(cells, field.type) for cells, field in zip(zip(*rows, strict=True), _WAITING, strict=True)
            ]
            self._arrived += len(rows)
            self._keep(pa.RecordBatch.from_arrays(columns, schema=_WAITING))
            self._counted(columns[0])

    def stored(self, wanted: Callable[[pa.BinaryArray], Bools]) -> Mapping[bytes, list[Stored]]:
        """The rows of the wanted ones among n keys, shape (n,), by key, in their order."""
        found: dict[bytes, list[Stored]] = {}
        for chunk in self._chunks:
            rest = chunk.rest()
            for rows in ReachedRows([rest.filter(pa.array(wanted(rest.column(KEY))))]).by_key():
                found.setdefault(rows.key, []).extend(rows.stored())
        for stored in found.values():
            stored.sort()
        return found

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
        reached = ReachedRows([chunk.take(below_ms) for chunk in self._chunks])
        self._chunks = [
            chunk if chunk.begin < _WORTH_COPYING else _copied(chunk) for chunk in self._chunks if len(chunk)
        ]
        return reached

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
        firsts = np.unique(codes, return_index=True)[1].tolist()
        found = list(zip(coded.dictionary.to_pylist(), firsts, strict=True))
        for (key, _), count in zip(found, np.bincount(codes).tolist(), strict=True):
            self._keys[key] = self._keys.get(key, 0) + count
        return found

    def _keep(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._chunks.append(_by_time([batch]))
        while len(self._chunks) > _CHUNKS and len(self._chunks[-2]) <= 2 * len(self._chunks[-1]):
            self._chunks[-2:] = [_by_time([chunk.rest() for chunk in self._chunks[-2:]])]


class KeyRows:
    """The reached rows of one key, in their order. A caller takes them from the front."""

    __slots__ = ("_begin", "_end", "_of", "at", "key")

    def __init__(self, key: bytes, begin: int, end: int, of: "ReachedRows") -> None:
        self.key = key
        self.at = begin
        """The place of the next row among all."""
        self._begin, self._end, self._of = begin, end, of

    def __len__(self) -> int:
        """All of them, taken or not."""
        return self._end - self._begin

    @property
    def first_ms(self) -> int:
        """The time of the first one."""
        return self._of.times[self._begin]

    def next_ms(self) -> int | None:
        """The time of the next row; None behind the last."""
        return self._of.times[self.at] if self.at < self._end else None

    def take(self) -> Stored:
        """The next row."""
        at = self.at
        self.at = at + 1
        return self._of.stored(at)

    def take_below(self, below_ms: int) -> list[Stored]:
        """The next rows with times below this."""
        begin, times = self.at, self._of.times
        while self.at < self._end and times[self.at] < below_ms:
            self.at += 1
        return [self._of.stored(at) for at in range(begin, self.at)]

    def last_of(self, count: int, columns: Callable[[Sequence[Stored]], pa.RecordBatch]) -> pa.RecordBatch:
        """Columns of the last rows that were taken; `columns` makes them, once, of all rows of all keys."""
        return self._of.columns(columns).slice(self.at - count, count)

    def stored(self) -> list[Stored]:
        """All of them."""
        return [self._of.stored(at) for at in range(self._begin, self._end)]

    def batch(self) -> pa.RecordBatch:
        """All of them, as they waited."""
        return self._of.batch.slice(self._begin, self._end - self._begin)


class ReachedRows:
    """Rows of some chunks, key by key (CR2)."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        joined = pa.Table.from_batches(batches, _WAITING).combine_chunks()
        coded = joined.column(KEY).combine_chunks().dictionary_encode()
        codes = coded.indices.to_numpy()
        columns = [joined.column(name).to_numpy() for name in (ARRIVED, POSITION, ORDINAL, TIME)]
        order = np.lexsort((*columns, codes))
        equal = np.logical_and.reduce([np.diff(column[order]) == 0 for column in (*columns[1:], codes)])
        if bool(equal.any()):
            order = _by_document(order, equal, joined.column(PACKED).to_pylist())
        table = joined.take(pa.array(order)).combine_chunks()
        self.batch = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], _WAITING)
        self._bounds = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1)).tolist()
        self._keys: list[bytes] = coded.dictionary.to_pylist()
        self.times: list[int] = self.batch.column(TIME).to_pylist()
        self._ordinals: list[int] = self.batch.column(ORDINAL).to_pylist()
        self._positions: list[int] = self.batch.column(POSITION).to_pylist()
        self._packed: list[bytes] = self.batch.column(PACKED).to_pylist()
        self._columns: pa.RecordBatch | Exception | None = None

    def by_key(self) -> Iterator[KeyRows]:
        """The rows of each key."""
        for key, begin, end in zip(self._keys, self._bounds, self._bounds[1:], strict=False):
            yield KeyRows(key, begin, end, self)

    def columns(self, made: Callable[[Sequence[Stored]], pa.RecordBatch]) -> pa.RecordBatch:
        """All rows in the columns that `made` gives, made once; its error each time."""
        if self._columns is None:
            try:
                self._columns = made([self.stored(at) for at in range(len(self.times))])
            except Exception as e:
                self._columns = e
                raise
        elif isinstance(self._columns, Exception):
            raise self._columns
        return self._columns

    def stored(self, at: int) -> Stored:
        """A row."""
        return self.times[at], (self._ordinals[at], self._positions[at]), self._packed[at]


def numbers(batch: pa.RecordBatch, name: str) -> Int64s:
    """A column of whole numbers without nulls, shape (n,)."""
    found: Int64s = batch.column(name).to_numpy()
    return found


def _by_time(batches: Sequence[pa.RecordBatch]) -> _Chunk:
    table = pa.Table.from_batches(batches)
    times = table.column(TIME).to_numpy()
    if len(batches) > 1 or bool((np.diff(times) < 0).any()):
        table = table.take(pa.array(np.argsort(times, kind="stable")))
    return _Chunk(table.combine_chunks().to_batches()[0])


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
