"""The rows that a `$join` has in memory: encoded documents, and numbers in slots of arrays (`shared.compiled.joining`)."""

from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import joining
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.compiled.joining import (
    ARRIVAL,
    BEGIN,
    END,
    FOUND_KEY,
    FOUND_NUMBER,
    FOUND_TIME,
    KEY,
    KEYS,
    MATCHED,
    NUMBER,
    PART,
    POSITION,
    ROW,
    ROWS_OF_KEY,
    SIDE,
    TIME,
    TIME_OF_KEY,
)
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators.join_runs import COLD, cuts

Int64s: TypeAlias = npt.NDArray[np.int64]
Side = Literal[0, 1]
LEFT: Final[Side] = 0
RIGHT: Final[Side] = 1
STORED: Final = (TIME, ARRIVAL, PART, POSITION, SIDE, NUMBER, MATCHED)
"""As NUMBERS names them."""
ROW_BYTES: Final = 256
"""Memory of a row besides its document."""
_FEW_ROWS: Final = 64
"""Rows of one time are sorted by compiled code up to so many."""
_SPAN_MAX: Final = 2**62
"""Numbers below it do not overflow."""
_GIVEN_BYTES: Final = 1 << 28
"""Of documents in one batch that is given out."""


class Slots:
    """Rows and their keys."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.rows = np.empty((0, ROW), dtype=np.int64)
        self.keys = np.empty((0, KEYS), dtype=np.int64)
        self.groups = np.empty(0, dtype=np.int64)
        """By key's number."""
        self.names: list[bytes] = []
        """By key's number; a free number keeps its last name."""
        self._free = _Free()
        self._arena = np.empty(0, dtype=np.uint8)
        self._arena_end = 0
        self._numbers: dict[bytes, int] = {}
        self._free_keys: list[int] = []

    def __len__(self) -> int:
        """Keys."""
        return len(self._numbers)

    def lay(self, documents: pa.BinaryArray) -> Int64s:
        """The slots of new rows, with their documents in the arena."""
        data, bounds = buffers(documents)
        size = int(bounds[-1] - bounds[0])
        self.size_bytes += size + ROW_BYTES * len(documents)
        if self._arena_end + size > len(self._arena):
            self._compact(size)
        slots = self._free.take(len(documents))
        if self._free.size > len(self.rows):
            self.rows = np.concatenate((self.rows, np.zeros((self._free.size - len(self.rows), ROW), np.int64)))
        base = self._arena_end - bounds[0]
        self._arena[self._arena_end : self._arena_end + size] = data[bounds[0] : bounds[-1]]
        self._arena_end += size
        self.rows[slots, BEGIN], self.rows[slots, END] = bounds[:-1] + base, bounds[1:] + base
        return slots

    def _compact(self, more: int) -> None:
        """Room for more bytes: documents of rows that are gone leave."""
        slots = self._free.others()
        live = int(self.sizes(slots).sum())
        arena = np.empty(2 * (live + more), dtype=np.uint8)
        self._arena_end = joining.gather(self._arena, slots, self.rows, arena, 0, True)
        self._arena = arena

    def sizes(self, slots: Int64s) -> Int64s:
        """Bytes of the documents, shape (n,)."""
        found: Int64s = self.rows[slots, END] - self.rows[slots, BEGIN]
        return found

    def gathered(self, slots: Int64s) -> npt.NDArray[np.uint8]:
        """The documents of rows, one behind the other."""
        data = np.empty(int(self.sizes(slots).sum()), dtype=np.uint8)
        joining.gather(self._arena, slots, self.rows, data, 0, False)
        return data

    def cold(self, slots: Int64s) -> Iterator[pa.RecordBatch]:
        """Rows as those of a run, of the schema COLD."""
        for batch in cuts(self.sizes(slots)):
            own = slots[batch]
            rows = self.rows[own]
            bounds = np.concatenate(([0], np.cumsum(self.sizes(own))))
            data = [None, pa.py_buffer(bounds), pa.py_buffer(self.gathered(own))]
            yield pa.RecordBatch.from_arrays(
                [
                    *(pa.array(rows[:, field]) for field in STORED),
                    pa.array(self.groups[rows[:, KEY]].astype(np.uint16)),
                    pa.array([self.names[number] for number in rows[:, KEY].tolist()], pa.binary()),
                    pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(own), data),
                ],
                schema=COLD,
            )

    def forget(self, slots: Int64s, keys: Int64s) -> None:
        """These rows are gone; and those of these keys that have no row left."""
        self.size_bytes -= int(self.sizes(slots).sum()) + ROW_BYTES * len(slots)
        self._free.give(slots)
        for number in keys[self.keys[keys, ROWS_OF_KEY] == 0].tolist():
            del self._numbers[self.names[number]]
            self._free_keys.append(number)

    def numbers_of(self, keys: pa.BinaryArray, groups: Int64s) -> Int64s:
        """The keys' numbers; a new key gets one."""
        coded = keys.dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False)
        firsts = np.empty(len(coded.dictionary), dtype=np.int64)
        firsts[codes[::-1]] = np.arange(len(codes))[::-1]
        names = coded.dictionary.to_pylist()
        numbers = [self._numbers.get(name, -1) for name in names]
        new = [place for place, number in enumerate(numbers) if number < 0]
        if new:
            for place in new:
                numbers[place] = self._number(names[place])
            if len(self.names) > len(self.keys):
                size = max(2 * len(self.keys), len(self.names))
                self.keys = np.concatenate((self.keys, np.empty((size - len(self.keys), KEYS), np.int64)))
                self.groups = np.concatenate((self.groups, np.empty(size - len(self.groups), np.int64)))
            made = np.array([numbers[place] for place in new])
            self.keys[made] = -1
            self.keys[made, TIME_OF_KEY], self.keys[made, ROWS_OF_KEY] = MIN_TIME, 0
            self.groups[made] = groups[firsts[new]]
        found: Int64s = np.array(numbers, dtype=np.int64)[codes]
        return found

    def _number(self, name: bytes) -> int:
        if self._free_keys:
            number = self._free_keys.pop()
            self.names[number] = name
        else:
            number = len(self.names)
            self.names.append(name)
        self._numbers[name] = number
        return number

    def in_order(self, slots: Int64s) -> Int64s:
        """Rows in the order in which they are applied: time, side, partition, position, bytes, arrival."""
        joining.sort_runs(slots, self.rows, _FEW_ROWS)
        columns = [self.rows[slots, field] for field in (TIME, SIDE, PART, POSITION, KEY)]
        times = columns[0]
        begins = np.flatnonzero(np.diff(times, prepend=MIN_TIME))
        sizes = np.diff(begins, append=len(slots))
        for many in np.flatnonzero(sizes > _FEW_ROWS).tolist():
            some = slice(begins[many], begins[many] + sizes[many])
            slots[some] = slots[some][np.lexsort([column[some] for column in columns[:0:-1]])]
            for column, field in zip(columns[1:], (SIDE, PART, POSITION, KEY), strict=True):
                column[some] = self.rows[slots[some], field]
        same = np.ones(max(0, len(slots) - 1), dtype=np.bool_)
        for column in columns:
            same &= np.diff(column) == 0
        for place in np.flatnonzero(same & ~np.concatenate(([False], same[:-1]))).tolist() if same.any() else ():
            end = place + 1
            while end <= len(same) and same[end - 1]:
                end += 1
            slots[place:end] = sorted(
                slots[place:end].tolist(), key=lambda slot: (self._document(slot), self.rows[slot, ARRIVAL])
            )
        return slots

    def _document(self, slot: int) -> bytes:
        return self._arena[self.rows[slot, BEGIN] : self.rows[slot, END]].tobytes()

    # --- documents out -----------------------------------------------------------------------------------------------------

    def ordered(self, rows: Int64s, numbers: Int64s) -> tuple[Int64s, pa.BinaryArray]:
        """Found rows by (time, key, number), shape (m, FOUND), and the keys, shape (m,); numbers: those of the keys, in order."""
        names = [self.names[number] for number in numbers.tolist()]
        rank = np.empty(len(names), dtype=np.int64)
        rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        ranks = rank[np.searchsorted(numbers, rows[:, FOUND_KEY])]
        times, given = rows[:, FOUND_TIME], rows[:, FOUND_NUMBER]
        if len(rows) and (int(times.max()) - int(times.min()) + 1) * len(names) < _SPAN_MAX:
            ranks_in_time = (times - times.min()) * len(names) + ranks
        else:
            ranks_in_time = np.unique(times, return_inverse=True)[1] * len(names) + ranks
        order = np.argsort(ranks_in_time, kind="stable")  # the output of pairs is in the order of their numbers
        if ((np.diff(ranks_in_time[order]) == 0) & (np.diff(given[order]) < 0)).any():
            order = np.lexsort((given, ranks_in_time))
        return rows[order], pa.array(sorted(names), pa.binary()).take(pa.array(ranks[order]))

    def documents(self, ordered: Int64s, name: bytes) -> Iterable[tuple[slice, pa.BinaryArray]]:
        """Documents of the output, in batches that Arrow holds; name: encoded."""
        lengths = np.append(self.rows[:, END] - self.rows[:, BEGIN], 0)
        sizes = lengths[ordered[:, joining.LEFT]] + lengths[ordered[:, joining.RIGHT]] + len(name) + 6  # headers
        ends = np.cumsum(sizes)
        begin = 0
        while begin < len(ordered):
            limit = (int(ends[begin - 1]) if begin else 0) + _GIVEN_BYTES
            end = max(begin + 1, int(np.searchsorted(ends, limit, side="right")))
            part = ordered[begin:end]
            lefts, rights = np.ascontiguousarray(part[:, joining.LEFT]), np.ascontiguousarray(part[:, joining.RIGHT])
            out, offsets = np.empty(int(sizes[begin:end].sum()), np.uint8), np.empty(end - begin + 1, np.int64)
            joining.documents(self._arena, lefts, rights, self.rows, np.frombuffer(name, np.uint8), out, offsets)
            out.resize(int(offsets[-1]), refcheck=False)
            bounds = pa.py_buffer(offsets.astype(np.int32))
            yield (
                slice(begin, end),
                pa.BinaryArray.from_buffers(pa.binary(), end - begin, [None, bounds, pa.py_buffer(out)]),
            )
            begin = end


class _Free:
    """Slots that are free."""

    __slots__ = ("_slots", "_top", "size")

    def __init__(self) -> None:
        self.size = 0
        """Slots that there are."""
        self._slots = np.empty(0, dtype=np.int64)
        self._top = 0

    def take(self, count: int) -> Int64s:
        """So many of them; there are more slots then, if need be."""
        if count > self._top:
            more = max(self.size, count)
            self._slots = np.concatenate(
                (
                    np.arange(self.size, self.size + more),
                    self._slots[: self._top],
                    np.empty(self.size - self._top, np.int64),
                )
            )
            self.size, self._top = self.size + more, self._top + more
        self._top -= count
        return self._slots[self._top : self._top + count].copy()

    def give(self, slots: Int64s) -> None:
        """These are free again."""
        self._slots[self._top : self._top + len(slots)] = slots
        self._top += len(slots)

    def others(self) -> Int64s:
        """Slots that are not free."""
        taken = np.ones(self.size, dtype=np.bool_)
        taken[self._slots[: self._top]] = False
        return np.flatnonzero(taken)
