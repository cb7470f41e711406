"""The rows that a `$join` keeps: rows that wait for the watermark, and rows of either side that may still find a match.

Rows are encoded documents from input to output. They lie in slots of arrays (`shared.compiled.joining`). All rows that a watermark
reaches are handled at once.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import joining
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.compiled.joining import (
    ARRIVAL,
    BEGIN,
    END,
    FOUND,
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
from tidemark.shared.model.time import MAX_TIME, MIN_TIME

Int64s: TypeAlias = npt.NDArray[np.int64]
Side = Literal[0, 1]
LEFT: Final[Side] = 0
RIGHT: Final[Side] = 1
ROW_BYTES: Final = 256
"""Memory of a row besides its document."""
_SMALL_ROWS: Final = 4096
"""Runs of fewer rows become one when there are many."""
_RUNS: Final = 256
"""More are merged: each is looked at whenever a time comes."""
_FEW_ROWS: Final = 64
"""Rows of one time are sorted by compiled code up to so many."""
_SPAN_MAX: Final = 2**62
"""Numbers below it do not overflow."""
_GIVEN_BYTES: Final = 1 << 28
"""Of documents in one batch that is given out."""
_STORED: Final = (TIME, ARRIVAL, PART, POSITION, SIDE, NUMBER, MATCHED)
_WAITS: Final = len(_STORED)
_KEY_AT: Final = _WAITS + 1
_SIZE_AT: Final = _WAITS + 2
_STORED_ROW: Final = _WAITS + 3
"""Numbers of a row in a snapshot: those of its slot, whether it waits, the place of its key, the bytes of its document."""


class RowsSnapshot(msgspec.Struct, array_like=True):
    """Rows in the snapshot."""

    keys: list[bytes]
    rows: bytes
    """int64, little-endian, shape (n, _STORED_ROW)."""
    documents: bytes


class ByTime:
    """Slots of rows by time, in runs that are sorted; of one time in the order in which they came."""

    __slots__ = ("_number", "_runs", "_runs_max")

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, Int64s, Int64s]] = []
        """A heap of (first time, number, times, slots)."""
        self._number = 0
        self._runs_max = _RUNS

    def add(self, times: Int64s, slots: Int64s) -> None:
        """More rows, in any order."""
        if not len(times):
            return
        if (np.diff(times) < 0).any():
            order = np.argsort(times, kind="stable")
            times, slots = times[order], slots[order]
        self._number += 1
        heappush(self._runs, (int(times[0]), self._number, times, slots))
        if len(self._runs) > self._runs_max:
            self._merge()
            self._runs_max = 2 * len(self._runs) + _RUNS

    def first_ms(self) -> int:
        """The earliest time; MAX_TIME where there is no row."""
        return self._runs[0][0] if self._runs else MAX_TIME

    def nth_ms(self, count: int, below_ms: int) -> int:
        """A time up to which so many rows come, or all of the first time; `below_ms` where fewer come below that."""
        times = [
            run[2][: min(count + 1, int(np.searchsorted(run[2], below_ms)))] for run in self._runs if run[0] < below_ms
        ]
        if sum(map(len, times)) <= count:
            return below_ms
        return max(self.first_ms() + 1, int(np.partition(np.concatenate(times), count)[count]))

    def take(self, below_ms: int) -> Int64s:
        """The rows of times below this, by time; they are in the queue no more."""
        taken: list[tuple[int, Int64s, Int64s]] = []
        while self._runs and self._runs[0][0] < below_ms:
            _, number, times, slots = self._runs[0]
            end = int(np.searchsorted(times, below_ms))
            taken.append((number, times[:end], slots[:end]))
            self._drop(end)
        return _sorted(taken)[1]

    def skip(self, gone: Callable[[Int64s], npt.NDArray[np.bool_]]) -> None:
        """Forget the first rows, as long as they are gone."""
        while self._runs:
            mask = gone(self._runs[0][3][:_SMALL_ROWS])
            some = len(mask) if bool(mask.all()) else int(np.argmin(mask))
            if not some:
                return
            self._drop(some)

    def slots(self) -> Int64s:
        """All of them."""
        return np.concatenate([_NONE, *(slots for _, _, _, slots in self._runs)])

    def _drop(self, count: int) -> None:
        """Forget the first rows of the first run."""
        _, number, times, slots = self._runs[0]
        if count == len(times):
            heappop(self._runs)
        else:
            heapreplace(self._runs, (int(times[count]), number, times[count:], slots[count:]))

    def _merge(self) -> None:
        small = [run for run in self._runs if len(run[2]) < _SMALL_ROWS]
        large = [run for run in self._runs if len(run[2]) >= _SMALL_ROWS]
        times, slots = _sorted([(number, times, slots) for _, number, times, slots in small])
        self._runs = [*large, (int(times[0]), max(run[1] for run in small), times, slots)] if small else large
        heapify(self._runs)


_NONE: Final = np.empty(0, dtype=np.int64)
_ROOM: Final = np.empty((0, FOUND), dtype=np.int64)


def _sorted(runs: list[tuple[int, Int64s, Int64s]]) -> tuple[Int64s, Int64s]:
    """Times and slots of runs as one."""
    if len(runs) == 1:
        return runs[0][1:]
    runs.sort(key=lambda run: run[0])
    times, slots = (np.concatenate([_NONE, *(run[i] for run in runs)]) for i in (1, 2))
    order = np.argsort(times, kind="stable")
    return times[order], slots[order]


@dataclass(frozen=True, slots=True)
class Arrived:
    """Rows of one side, shape (n,) each."""

    times: Int64s
    arrivals: Int64s
    parts: Int64s
    positions: Int64s
    keys: pa.BinaryArray
    groups: Int64s
    documents: pa.BinaryArray


class JoinRows:
    """The rows of a task. reach_ms: by side, how much later than such a row one of the other side may still be its match."""

    def __init__(self, reach_ms: tuple[int, int], outer: tuple[bool, bool]) -> None:
        self.size_bytes = 0
        self._reach = np.array(reach_ms, dtype=np.int64)
        self._outer = outer
        self._rows = np.empty((0, ROW), dtype=np.int64)
        self._free = _Free()
        self._arena = np.empty(0, dtype=np.uint8)
        self._arena_end = 0
        self._keys = np.empty((0, KEYS), dtype=np.int64)
        self._groups = np.empty(0, dtype=np.int64)
        self._names: list[bytes] = []
        """By key's number; a free number keeps its last name."""
        self._numbers: dict[bytes, int] = {}
        self._free_keys: list[int] = []
        self._waiting = ByTime()
        self._due = _NONE
        """Rows that wait and that a piece has left, in their order; with them the watermark `_due_below_ms` is reached."""
        self._due_below_ms = MIN_TIME
        self._kept = (ByTime(), ByTime())
        self._alone = (ByTime(), ByTime())
        """Of outer sides, the kept ones that may come out alone, and some that may not."""

    def __len__(self) -> int:
        """Keys."""
        return len(self._numbers)

    def wait(self, arrived: Arrived, side: Side) -> Int64s:
        """Rows have come: their key groups."""
        slots = self._laid(arrived.documents)
        rows = self._rows
        numbers = self._numbers_of(arrived.keys, arrived.groups)
        for field, cells in (
            (TIME, arrived.times), (ARRIVAL, arrived.arrivals), (PART, arrived.parts), (POSITION, arrived.positions),
            (KEY, numbers), (SIDE, side), (MATCHED, 0),
        ):  # fmt: skip
            rows[slots, field] = cells
        np.add.at(self._keys[:, ROWS_OF_KEY], numbers, 1)
        self._waiting.add(arrived.times, slots)
        return np.unique(self._groups[numbers])

    def advance(self, watermark_ms: int, most: int, items_max: int = MAX_TIME) -> "Found | None":
        """Apply the rows waiting below the watermark, drop those that no later row can match; None if that gives more than `most`.

        items_max: of some more rows or documents than these only the first; `Found.reached_ms` tells to which watermark that goes.
        """
        due, found, made, done = self._due_rows(watermark_ms, items_max), _ROOM, 0, 0
        while done < len(due):
            need = max(2 * (len(due) - done), _SMALL_ROWS, len(found))
            found = np.concatenate((found[:made], np.empty((need, FOUND), dtype=np.int64)))
            done, made = joining.apply(
                due, done, self._reach, self._rows, self._keys, found, made, min(items_max, most + 1)
            )
            if made > most or (done < len(due) and made < items_max and len(found) > most):
                return None
            if made >= items_max:
                break
        self._due = due[done:]
        due = due[:done]
        reached_ms = int(self._rows[self._due[0], TIME]) if len(self._due) else self._due_below_ms
        gone = []
        for side in (LEFT, RIGHT):
            own = due[self._rows[due, SIDE] == side]
            self._kept[side].add(self._rows[own, TIME], own)
            below_ms = reached_ms - int(self._reach[side])
            dropped = self._kept[side].take(below_ms)
            if self._outer[side]:
                self._alone[side].add(self._rows[own, TIME], own)
                self._alone[side].take(below_ms)
                found = np.concatenate((found[:made], np.empty((len(dropped), FOUND), dtype=np.int64)))
            made = joining.expire(dropped, self._outer[side], self._rows, self._keys, found, made)
            gone.append(dropped)
        if made > most:
            return None
        touched = np.concatenate((due, *gone))
        numbers = np.unique(self._rows[touched, KEY])
        return Found(found[:made], np.concatenate(gone), numbers, np.unique(self._groups[numbers]), reached_ms)

    def _due_rows(self, watermark_ms: int, items_max: int) -> Int64s:
        """The rows to apply next, in their order: those that the last piece has left, or those of some `items_max` rows."""
        if not len(self._due):
            below_ms = watermark_ms
            if items_max < MAX_TIME:
                below_ms = self._waiting.nth_ms(items_max, below_ms)
                for queue, reach in zip(self._kept, self._reach.tolist(), strict=True):
                    below_ms = queue.nth_ms(items_max, below_ms - reach) + reach
            self._due, self._due_below_ms = self._in_order(self._waiting.take(below_ms)), below_ms
        return self._due

    def drop(self, found: "Found") -> None:
        """Forget the rows given out, and the keys that have no row left."""
        rows = self._rows[found.gone]
        self.size_bytes -= int((rows[:, END] - rows[:, BEGIN]).sum()) + ROW_BYTES * len(rows)
        self._free.give(found.gone)
        for number in found.keys[self._keys[found.keys, ROWS_OF_KEY] == 0].tolist():
            del self._numbers[self._names[number]]
            self._free_keys.append(number)

    def due_ms(self) -> int:
        """There is something to do once the watermark is above this."""
        kept = [
            queue.first_ms() + int(reach)
            for queue, reach in zip(self._kept, self._reach, strict=True)
            if queue.first_ms() < MAX_TIME
        ]
        left = [int(self._rows[self._due[0], TIME])] if len(self._due) else []
        return min([self._waiting.first_ms(), *left, *kept])

    def hold_ms(self) -> int:
        """The earliest time of a row that may yet come out alone; MAX_TIME for none."""
        for queue in self._alone:
            queue.skip(lambda slots: self._rows[slots, MATCHED] != 0)
        return min(queue.first_ms() for queue in self._alone)

    # --- documents out ------------------------------------------------------------------------------------------------------

    def ordered(self, found: "Found") -> tuple[Int64s, pa.BinaryArray]:
        """The output by (time, key, number), shape (m, FOUND), and the keys, shape (m,)."""
        rows = found.rows
        names = [self._names[number] for number in found.keys.tolist()]
        rank = np.empty(len(names), dtype=np.int64)
        rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        ranks = rank[np.searchsorted(found.keys, rows[:, FOUND_KEY])]
        times, numbers = rows[:, FOUND_TIME], rows[:, FOUND_NUMBER]
        if len(rows) and (int(times.max()) - int(times.min()) + 1) * len(names) < _SPAN_MAX:
            ranks_in_time = (times - times.min()) * len(names) + ranks
        else:
            ranks_in_time = np.unique(times, return_inverse=True)[1] * len(names) + ranks
        order = np.argsort(ranks_in_time, kind="stable")  # the output of pairs is in the order of their numbers
        if ((np.diff(ranks_in_time[order]) == 0) & (np.diff(numbers[order]) < 0)).any():
            order = np.lexsort((numbers, ranks_in_time))
        return rows[order], pa.array(sorted(names), pa.binary()).take(pa.array(ranks[order]))

    def documents(self, ordered: Int64s, name: bytes) -> Iterable[tuple[slice, pa.BinaryArray]]:
        """Documents of the output, in batches that Arrow holds; name: encoded."""
        lengths = np.append(self._rows[:, END] - self._rows[:, BEGIN], 0)
        sizes = lengths[ordered[:, joining.LEFT]] + lengths[ordered[:, joining.RIGHT]] + len(name) + 6  # headers
        ends = np.cumsum(sizes)
        begin = 0
        while begin < len(ordered):
            limit = (int(ends[begin - 1]) if begin else 0) + _GIVEN_BYTES
            end = max(begin + 1, int(np.searchsorted(ends, limit, side="right")))
            part = ordered[begin:end]
            lefts, rights = np.ascontiguousarray(part[:, joining.LEFT]), np.ascontiguousarray(part[:, joining.RIGHT])
            out, offsets = np.empty(int(sizes[begin:end].sum()), np.uint8), np.empty(end - begin + 1, np.int64)
            joining.documents(self._arena, lefts, rights, self._rows, np.frombuffer(name, np.uint8), out, offsets)
            out.resize(int(offsets[-1]), refcheck=False)
            bounds = pa.py_buffer(offsets.astype(np.int32))
            yield (
                slice(begin, end),
                pa.BinaryArray.from_buffers(pa.binary(), end - begin, [None, bounds, pa.py_buffer(out)]),
            )
            begin = end

    # --- rows and keys ------------------------------------------------------------------------------------------------------

    def _laid(self, documents: pa.BinaryArray) -> Int64s:
        """The slots of new rows, with their documents in the arena."""
        data, bounds = buffers(documents)
        size = int(bounds[-1] - bounds[0])
        self.size_bytes += size + ROW_BYTES * len(documents)
        slots = self._free.take(len(documents))
        if self._free.size > len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros((self._free.size - len(self._rows), ROW), np.int64)))
        if self._arena_end + size > len(self._arena):
            self._compact(size)
        base = self._arena_end - bounds[0]
        self._arena[self._arena_end : self._arena_end + size] = data[bounds[0] : bounds[-1]]
        self._arena_end += size
        self._rows[slots, BEGIN], self._rows[slots, END] = bounds[:-1] + base, bounds[1:] + base
        return slots

    def _compact(self, more: int) -> None:
        """Room for more bytes: documents of rows that are gone leave."""
        slots = self._slots()
        live = int((self._rows[slots, END] - self._rows[slots, BEGIN]).sum())
        arena = np.empty(2 * (live + more), dtype=np.uint8)
        self._arena_end = joining.gather(self._arena, slots, self._rows, arena, 0, True)
        self._arena = arena

    def _slots(self) -> Int64s:
        return np.concatenate([self._due, *(queue.slots() for queue in (self._waiting, *self._kept))])

    def _numbers_of(self, keys: pa.BinaryArray, groups: Int64s) -> Int64s:
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
            if len(self._names) > len(self._keys):
                size = max(2 * len(self._keys), len(self._names))
                self._keys = np.concatenate((self._keys, np.empty((size - len(self._keys), KEYS), np.int64)))
                self._groups = np.concatenate((self._groups, np.empty(size - len(self._groups), np.int64)))
            made = np.array([numbers[place] for place in new])
            self._keys[made] = -1
            self._keys[made, TIME_OF_KEY], self._keys[made, ROWS_OF_KEY] = MIN_TIME, 0
            self._groups[made] = groups[firsts[new]]
        found: Int64s = np.array(numbers, dtype=np.int64)[codes]
        return found

    def _number(self, name: bytes) -> int:
        if self._free_keys:
            number = self._free_keys.pop()
            self._names[number] = name
        else:
            number = len(self._names)
            self._names.append(name)
        self._numbers[name] = number
        return number

    def _in_order(self, slots: Int64s) -> Int64s:
        """Rows in the order in which they are applied: time, side, partition, position, bytes, arrival."""
        joining.sort_runs(slots, self._rows, _FEW_ROWS)
        columns = [self._rows[slots, field] for field in (TIME, SIDE, PART, POSITION, KEY)]
        times = columns[0]
        begins = np.flatnonzero(np.diff(times, prepend=MIN_TIME))
        sizes = np.diff(begins, append=len(slots))
        for many in np.flatnonzero(sizes > _FEW_ROWS).tolist():
            some = slice(begins[many], begins[many] + sizes[many])
            slots[some] = slots[some][np.lexsort([column[some] for column in columns[:0:-1]])]
            for column, field in zip(columns[1:], (SIDE, PART, POSITION, KEY), strict=True):
                column[some] = self._rows[slots[some], field]
        same = np.ones(max(0, len(slots) - 1), dtype=np.bool_)
        for column in columns:
            same &= np.diff(column) == 0
        for place in np.flatnonzero(same & ~np.concatenate(([False], same[:-1]))).tolist() if same.any() else ():
            end = place + 1
            while end <= len(same) and same[end - 1]:
                end += 1
            slots[place:end] = sorted(
                slots[place:end].tolist(), key=lambda slot: (self._document(slot), self._rows[slot, ARRIVAL])
            )
        return slots

    def _document(self, slot: int) -> bytes:
        return self._arena[self._rows[slot, BEGIN] : self._rows[slot, END]].tobytes()

    # --- state --------------------------------------------------------------------------------------------------------------

    def snapshot(self, groups: Sequence[int]) -> dict[int, RowsSnapshot]:
        """The rows of these key groups; no entry for a group without rows."""
        waiting = np.concatenate((self._due, self._waiting.slots()))
        kept = np.concatenate([queue.slots() for queue in self._kept])
        slots = np.concatenate((waiting, kept))
        of_group = self._groups[self._rows[slots, KEY]]
        waits = np.arange(len(slots)) < len(waiting)
        order = np.lexsort((self._rows[slots, NUMBER], self._rows[slots, TIME], self._rows[slots, KEY], of_group))
        order = order[np.isin(of_group[order], np.array(groups, dtype=np.int64))]
        begins = np.flatnonzero(np.diff(of_group[order], prepend=-1))
        found = {}
        for some in np.split(order, begins[1:]) if len(order) else ():
            own = slots[some]
            rows = self._rows[own]
            keys, at = np.unique(rows[:, KEY], return_inverse=True)
            sizes = rows[:, END] - rows[:, BEGIN]
            stored = np.column_stack([*(rows[:, field] for field in _STORED), waits[some], at, sizes])
            data = np.empty(int(sizes.sum()), dtype=np.uint8)
            joining.gather(self._arena, own, self._rows, data, 0, False)
            names = [self._names[number] for number in keys.tolist()]
            found[int(of_group[some[0]])] = RowsSnapshot(names, stored.astype("<i8").tobytes(), data.tobytes())
        return found

    def restore(self, stored: RowsSnapshot, group: int) -> None:
        """Take in rows of a key group. ValueError for bytes that are no rows."""
        rows = np.frombuffer(stored.rows, dtype="<i8").reshape(-1, _STORED_ROW).astype(np.int64)
        ends = np.cumsum(rows[:, _SIZE_AT])
        offsets = np.concatenate(([0], ends)).astype(np.int32)
        if not len(rows) or int(offsets[-1]) != len(stored.documents):
            raise ValueError(f"{len(rows)} rows with {len(stored.documents)} bytes of documents")
        slots = self._laid(
            pa.BinaryArray.from_buffers(
                pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(stored.documents)]
            )
        )
        names = pa.array(stored.keys, pa.binary()).take(pa.array(rows[:, _KEY_AT]))
        numbers = self._numbers_of(names, np.full(len(rows), group, dtype=np.int64))
        for at, field in enumerate(_STORED):
            self._rows[slots, field] = rows[:, at]
        self._rows[slots, KEY] = numbers
        np.add.at(self._keys[:, ROWS_OF_KEY], numbers, 1)
        waits = rows[:, _WAITS] != 0
        self._waiting.add(rows[waits, 0], slots[waits])
        kept = slots[~waits][np.lexsort((self._rows[slots[~waits], NUMBER], rows[~waits, 0]))]
        joining.link(kept, self._reach, self._rows, self._keys)
        for side in (LEFT, RIGHT):
            own = kept[self._rows[kept, SIDE] == side]
            self._kept[side].add(self._rows[own, TIME], own)
            if self._outer[side]:
                self._alone[side].add(self._rows[own, TIME], own)


@dataclass(frozen=True, slots=True)
class Found:
    """The rows and pairs that a watermark lets out."""

    rows: Int64s
    """Shape (m, FOUND)."""
    gone: Int64s
    """Slots of the rows that are no longer kept."""
    keys: Int64s
    """Numbers of the keys with changed rows, in order."""
    groups: Int64s
    """Their key groups."""
    reached_ms: int
    """Rows below this have been applied, and those of it in part where a piece has left some."""


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
