"""The rows that a `$join` keeps: rows that wait for the watermark, and rows of either side that may still find a match.

Rules, for rows that have no room in memory (J7):

- JC1 Two thirds of the room for rows are taken by rows that wait or by the applied rows of one side. Of these most leave memory: of those
  that wait the latest, of applied rows the earliest. They become a run on the disk (`join_runs`).
- JC2 Rows that wait are taken from their runs as those in memory are: when they are due.
- JC3 An applied row on the disk is copied into memory, in front of its key's list, while rows of its key are applied that it may match, and
  leaves it again with the piece. Whether it has found a match is kept by its run.
- JC4 A piece applies no more rows than those for which some `items_max` rows are copied.
- JC5 A row is in memory that may be in the midst of its time: rows left by a piece, and applied rows of the time that a piece has divided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import joining
from tidemark.shared.compiled.joining import (
    ARRIVAL,
    FOUND,
    KEY,
    MATCHED,
    NUMBER,
    NUMBER_OF_KEY,
    ROWS_OF_KEY,
    SIDE,
    TIME,
    TIME_OF_KEY,
)
from tidemark.shared.model.ids import StatePart, key_group_part
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.context import Shelve
from tidemark.shared.operators.join_runs import (
    NONE,
    NUMBERS,
    Bools,
    ByTime,
    DiskRun,
    Int64s,
    RowsSnapshot,
    SnapshotRows,
    WrittenRun,
    cuts,
    groups_of,
    merged,
    met_bits,
    part_of,
    parts_of,
    sizes_of,
    stored_rows,
    take_met,
    together,
    write_run,
)
from tidemark.shared.operators.join_slots import LEFT, RIGHT, ROW_BYTES, STORED, Side, Slots
from tidemark.shared.operators.keygroups import murmur2_column
from tidemark.shared.operators.run_sizes import runs_kept

_FOUND_ROWS: Final = 4096
"""Room for so many documents at first."""
_STAYING: Final = 8
"""One part in so many of the rows that leave memory stays there."""
_ROOM: Final = np.empty((0, FOUND), dtype=np.int64)
_GROUPS_MAX: Final = 1 << 16
"""Key groups are 16 bits."""


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


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """The rows and pairs that a watermark lets out."""

    rows: Int64s
    """Shape (m, FOUND)."""
    gone: Int64s
    """Slots of the rows that are no longer in memory."""
    keys: Int64s
    """Numbers of the keys with changed rows, in order."""
    reached_ms: int
    """Rows below this have been applied, and those of it in part where a piece has left some."""


@dataclass(frozen=True, slots=True)
class _Copied:
    """Applied rows of a run that are in memory for a piece."""

    run: DiskRun
    side: Side
    places: Int64s
    slots: Int64s


class JoinRows:
    """The rows of a task. reach_ms: by side, how much later than such a row one of the other side may still be its match.

    memory_bytes: of rows in memory; `shelve` puts others on a disk. Without it all stay in memory.
    """

    def __init__(
        self,
        reach_ms: tuple[int, int],
        outer: tuple[bool, bool],
        memory_bytes: int = MAX_TIME,
        shelve: Shelve | None = None,
    ) -> None:
        self.slots = Slots()
        self.waiting_bytes = 0
        """Of the rows that wait, wherever they lie."""
        self.changed: set[int] = set()
        """Key groups, since the last snapshot."""
        self._reach = np.array(reach_ms, dtype=np.int64)
        self._outer = outer
        self._memory_bytes = memory_bytes
        self._cool_above = memory_bytes
        self._shelve = shelve
        self._waiting = ByTime()
        self._due = NONE
        """Rows that wait and that a piece has left, in their order; with them the watermark `_due_below_ms` is reached."""
        self._due_below_ms = MIN_TIME
        self._kept = (ByTime(), ByTime())
        self._queues = (self._waiting, *self._kept)
        self._alone = (ByTime(), ByTime())
        """Of outer sides, the kept ones in memory that may come out alone, and some that may not."""
        self._taken = np.full(_GROUPS_MAX, MIN_TIME, dtype=np.int64)
        """By key group: rows of runs below this wait no more."""
        self._run = 0
        """Number of the next run."""
        self._written: tuple[list[WrittenRun], ...] = ([], [], [])
        """Of the rows that wait, and of either side's applied ones; in the order of their numbers."""
        self._run_of = NONE
        """By slot: the number of the run that it is written in; -1: none."""
        self._stored: set[StatePart] = set()
        """Parts that the snapshot has."""

    @property
    def cold_bytes(self) -> int:
        """Of the rows on the disk."""
        return sum(run.size_bytes for queue in self._queues for run in queue.cold)

    def wait(self, arrived: Arrived, side: Side) -> None:
        """Rows have come."""
        slots = self._laid(arrived.documents)
        numbers = self.slots.numbers_of(arrived.keys, arrived.groups)
        cells = (arrived.times, arrived.arrivals, arrived.parts, arrived.positions, side, 0, 0)
        self._fill(slots, numbers, cells)
        self._waiting.add(arrived.times, slots)
        self.waiting_bytes += self._bytes(slots)
        self.changed.update(np.unique(self.slots.groups[numbers]).tolist())
        self._cool()

    def _laid(self, documents: pa.BinaryArray) -> Int64s:
        """Slots for new rows."""
        slots = self.slots.lay(documents)
        more = len(self.slots.rows) - len(self._run_of)
        self._run_of = np.concatenate((self._run_of, np.full(more, -1, dtype=np.int64))) if more else self._run_of
        self._run_of[slots] = -1
        return slots

    def _fill(self, slots: Int64s, keys: Int64s, cells: Sequence[Int64s | int]) -> None:
        """Numbers of new rows; cells: by NUMBERS."""
        rows = self.slots.rows
        for field, values in zip((*STORED, KEY), (*cells, keys), strict=True):
            rows[slots, field] = values
        np.add.at(self.slots.keys[:, ROWS_OF_KEY], keys, 1)

    def _bytes(self, slots: Int64s) -> int:
        return int(self.slots.sizes(slots).sum()) + ROW_BYTES * len(slots)

    # --- rows are due -------------------------------------------------------------------------------------------------------

    def advance(self, watermark_ms: int, most: int, items_max: int = MAX_TIME) -> JoinedRows | None:
        """Apply the rows waiting below the watermark, drop those that no later row can match; None if that gives more than `most`.

        items_max: of some more rows or documents than these only the first; `JoinedRows.reached_ms` tells to which watermark that goes.
        """
        due = self._due_rows(watermark_ms, items_max)
        copied, some = self._copy(due, items_max)
        rows, keys = self.slots.rows, self.slots.keys
        due, left, found, made, done = due[:some], due[some:], _ROOM, 0, 0
        while done < len(due):
            need = max(2 * (len(due) - done), _FOUND_ROWS, len(found))
            found = np.concatenate((found[:made], np.empty((need, FOUND), dtype=np.int64)))
            done, made = joining.apply(due, done, self._reach, rows, keys, found, made, min(items_max, most + 1))
            if made > most or (done < len(due) and made < items_max and len(found) > most):
                return None
            if made >= items_max:
                break
        self._due = np.concatenate((due[done:], left))
        due = due[:done]
        self.waiting_bytes -= self._bytes(due)
        reached_ms = int(rows[self._due[0], TIME]) if len(self._due) else self._due_below_ms
        gone = [self._give_back(copied)]
        for side in (LEFT, RIGHT):
            own = due[rows[due, SIDE] == side]
            self._kept[side].add(rows[own, TIME], own)
            below_ms = reached_ms - int(self._reach[side])
            dropped = self._kept[side].take(below_ms)
            if self._outer[side]:
                self._alone[side].add(rows[own, TIME], own)
                self._alone[side].take(below_ms)
                found = np.concatenate((found[:made], np.empty((len(dropped), FOUND), dtype=np.int64)))
            made = joining.expire(dropped, self._outer[side], rows, keys, found, made)
            gone.append(dropped)
        found = np.concatenate((found[:made], *(self._expired(side, reached_ms, gone) for side in (LEFT, RIGHT))))
        if len(found) > most:
            return None
        numbers = np.unique(self.slots.rows[np.concatenate((due, *gone)), KEY])
        self.changed.update(np.unique(self.slots.groups[numbers]).tolist())
        return JoinedRows(found, np.concatenate(gone), numbers, reached_ms)

    def _due_rows(self, watermark_ms: int, items_max: int) -> Int64s:
        """The rows to apply next, in their order: those that the last piece has left, or those of some `items_max` rows."""
        if not len(self._due):
            below_ms = watermark_ms
            if items_max < MAX_TIME:
                below_ms = self._waiting.nth_ms(items_max, below_ms)
                for queue, reach in zip(self._kept, self._reach.tolist(), strict=True):
                    below_ms = queue.nth_ms(items_max, below_ms - reach) + reach
            slots = self._waiting.take(below_ms)
            in_runs = self.slots.groups[self.slots.rows[slots[self._run_of[slots] >= 0], KEY]]
            self._run_of[slots] = -1
            if self._waiting.cold:
                slots = np.concatenate((slots, self._taken_up(below_ms)))
                slots = slots[np.argsort(self.slots.rows[slots, TIME], kind="stable")]
            self._took(np.unique(in_runs), below_ms)  # behind `_taken_up`, which asks what was taken before
            self._due, self._due_below_ms = self.slots.in_order(slots), below_ms
        return self._due

    def drop(self, found: JoinedRows) -> None:
        """Forget the rows given out, and the keys that have no row left."""
        self._run_of[found.gone] = -1
        self.slots.forget(found.gone, found.keys)
        self._cool()

    def due_ms(self) -> int:
        """There is something to do once the watermark is above this."""
        kept = [
            queue.first_ms() + int(reach)
            for queue, reach in zip(self._kept, self._reach, strict=True)
            if queue.first_ms() < MAX_TIME
        ]
        left = [int(self.slots.rows[self._due[0], TIME])] if len(self._due) else []
        return min([self._waiting.first_ms(), *left, *kept])

    def hold_ms(self) -> int:
        """The earliest time of a row that may yet come out alone; MAX_TIME for none."""
        hot = [queue.skip(lambda slots: self.slots.rows[slots, MATCHED] != 0) for queue in self._alone]
        cold = [run.alone_ms() for queue in self._kept for run in queue.cold if run.met is not None]
        return min(*hot, *cold)

    # --- rows leave memory, and come back -----------------------------------------------------------------------------------

    def _taken_up(self, below_ms: int) -> Int64s:
        """JC2: the slots of rows on the disk that are due now."""
        slots, groups = [NONE], [NONE]
        for run in self._waiting.cold:
            end = run.place(below_ms)
            for _, batch in run.read(run.at, end):
                groups.append(batch.column("group").to_numpy())
                there = batch.column("time").to_numpy() >= self._taken[groups[-1]]
                slots.append(self._load(batch if there.all() else batch.filter(pa.array(there))))
            run.at = end
        self._waiting.cold = _unread(self._waiting.cold)
        self._took(np.unique(np.concatenate(groups)), below_ms)
        return np.concatenate(slots)

    def _took(self, groups: Int64s, below_ms: int) -> None:
        """The rows of these key groups that lie in runs below this time wait no more (JR2)."""
        self._taken[groups] = np.maximum(self._taken[groups], below_ms)
        self.changed.update(groups.tolist())

    def _load(self, batch: pa.RecordBatch) -> Int64s:
        """Slots for rows of runs."""
        slots = [NONE]
        for some in cuts(sizes_of(batch.column("document"))):
            own = batch.slice(some.start, some.stop - some.start)
            slots.append(self._laid(own.column("document").cast(pa.binary())))
            groups = own.column("group").to_numpy().astype(np.int64)
            numbers = self.slots.numbers_of(own.column("key"), groups)
            self._fill(slots[-1], numbers, [own.column(name).to_numpy() for name in NUMBERS])
        return np.concatenate(slots)

    def _copy(self, due: Int64s, items_max: int) -> tuple[list[_Copied], int]:
        """JC3: rows on the disk that may match those due; and how many of these may be applied with them (JC4)."""
        if not len(due) or not any(queue.cold for queue in self._kept):
            return [], len(due)
        sides, numbers, times = (self.slots.rows[due, field] for field in (SIDE, KEY, TIME))
        asked = []
        for side in (LEFT, RIGHT):
            runs = self._kept[side].cold
            at = np.flatnonzero(sides != side)
            wanted, first = np.unique(numbers[at], return_index=True)
            if not runs or not len(wanted):
                continue
            keys = pa.array([self.slots.names[number] for number in wanted.tolist()], pa.binary())
            hashes = murmur2_column(keys)
            found = [run.candidates(hashes) for run in runs]
            counts = np.bincount(np.concatenate([which for which, _ in found]), minlength=len(wanted))
            bounds = times[at[first]] - self._reach[side]
            asked.append((side, keys, bounds, at[first], counts, list(zip(runs, found, strict=True))))
        begins = np.concatenate([NONE, *(each[3] for each in asked)])
        order = np.argsort(begins, kind="stable")
        counts = np.concatenate([NONE, *(each[4] for each in asked)])[order]
        above = np.flatnonzero((np.cumsum(counts) > items_max) & (np.cumsum(counts) > counts))
        some = int(begins[order[above[0]]]) if len(above) else len(due)
        copied = []
        for side, keys, bounds, firsts, _, there in asked:
            early = [(run, which[firsts[which] < some], places[firsts[which] < some]) for run, (which, places) in there]
            own = self._copies(side, [each for each in early if len(each[1])], keys, bounds)
            joining.prepend(np.concatenate([NONE, *(each.slots for each in own)]), self.slots.rows, self.slots.keys)
            copied += own
        return copied, some

    def _copies(
        self, side: Side, wanted: Sequence[tuple[DiskRun, Int64s, Int64s]], keys: pa.BinaryArray, bounds: Int64s
    ) -> list[_Copied]:
        """Load rows, given as (run, which key, place), that have the key and a time from its bound on."""
        orders = [np.argsort(places, kind="stable") for _, _, places in wanted]
        places = [found[order] for (_, _, found), order in zip(wanted, orders, strict=True)]
        which = np.concatenate([NONE, *(found[order] for (_, found, _), order in zip(wanted, orders, strict=True))])
        batches = [batch for (run, _, _), own in zip(wanted, places, strict=True) for batch in run.pick(own)]
        batch = together(batches)
        right = pc.equal(batch.column("key"), keys.take(pa.array(which))).to_numpy(zero_copy_only=False)
        right &= batch.column("time").to_numpy() >= bounds[which]
        slots = self._load(batch.filter(pa.array(right)))
        copied, begin, at = [], 0, 0
        for (run, _, _), own in zip(wanted, places, strict=True):
            there = own[right[begin : begin + len(own)]]
            copied.append(_Copied(run, side, there, slots[at : at + len(there)]))
            begin, at = begin + len(own), at + len(there)
        return copied

    def _give_back(self, copied: Sequence[_Copied]) -> Int64s:
        """Take copies out of their lists, and note what has found a match: their slots."""
        for each in copied:
            if each.run.met is not None:
                met = self.slots.rows[each.slots, MATCHED] != 0
                each.run.changed |= bool((met > each.run.met[each.places]).any())
                each.run.met[each.places] |= met
            joining.expire(each.slots, False, self.slots.rows, self.slots.keys, _ROOM, 0)
        return np.concatenate([NONE, *(each.slots for each in copied)])

    def _expired(self, side: Side, reached_ms: int, gone: list[Int64s]) -> Int64s:
        """Drop rows on the disk that no later row can match: those of an outer side that come out alone, shape (m, FOUND)."""
        found = [_ROOM]
        for run in self._kept[side].cold:
            end = run.place(reached_ms - int(self._reach[side]))
            if run.met is not None:
                places = run.at + np.flatnonzero(~run.met[run.at : end])
                slots = self._load(together(run.pick(places)))
                rows = self.slots.rows[slots]
                np.subtract.at(self.slots.keys[:, ROWS_OF_KEY], rows[:, KEY], 1)
                out = np.full((len(slots), FOUND), -1, dtype=np.int64)
                out[:, joining.LEFT if side == LEFT else joining.RIGHT] = slots
                for to, field in _ALONE:
                    out[:, to] = rows[:, field]
                found.append(out)
                gone.append(slots)
                run.met[places] = True
                run.changed |= len(places) > 0
            run.at = max(run.at, end)
        self._kept[side].cold = _unread(self._kept[side].cold)
        return np.concatenate(found)

    def _cool(self) -> None:
        """JC1. Where the rows cannot leave (JC5), this is not tried again for each batch."""
        least = self._memory_bytes // _STAYING
        if self.slots.size_bytes <= self._memory_bytes:
            self._cool_above = self._memory_bytes
        while self._shelve is not None and self.slots.size_bytes > self._cool_above:
            queues = self._queues
            sizes = [self._bytes(queue.slots()) for queue in queues]
            which = int(np.argmax(sizes))
            slots = self._leaving(queues[which], sizes[which], waits=which == 0) if sizes[which] > least else NONE
            if not len(slots):
                self._cool_above = self.slots.size_bytes + least
                return
            # What stays of runs that have both is written anew: a row is in one run.
            self._written[which].clear()
            self._run_of[queues[which].slots()] = -1
            self._write(queues[which], slots, waits=which == 0, outer=which > 0 and self._outer[which - 1])
            if which and self._outer[which - 1]:
                self._alone[which - 1].take(int(self.slots.rows[slots[-1], TIME]) + 1)
            self._forget(slots, waits=which == 0)

    def _leaving(self, queue: ByTime, size: int, *, waits: bool) -> Int64s:
        """The slots that leave a queue, by time (JC1, JC5)."""
        slots = queue.slots()
        times = self.slots.rows[slots, TIME]
        order = np.argsort(times, kind="stable")
        if waits:
            order = order[::-1]
        ends = np.cumsum(self.slots.sizes(slots[order]) + ROW_BYTES)
        last_ms = int(times[order[np.searchsorted(ends, size - size // _STAYING)]])
        if waits:
            return queue.take_from(max(last_ms, int(self._taken.max())))
        return queue.take(min(last_ms + 1, self._next_ms()))

    def _next_ms(self) -> int:
        """The time of the next row to apply; all applied rows of earlier times have been applied whole (JC5)."""
        return int(self.slots.rows[self._due[0], TIME]) if len(self._due) else self._waiting.first_ms()

    def _write(self, queue: ByTime, slots: Int64s, *, waits: bool, outer: bool) -> None:
        assert self._shelve is not None
        run = write_run(self._run, self.slots.cold(slots), self._shelve, applied=not waits, outer=outer)
        self._run += 1
        queue.cold.append(run)
        self.changed |= run.groups

    def _forget(self, slots: Int64s, *, waits: bool) -> None:
        numbers = self.slots.rows[slots, KEY]
        if waits:
            np.subtract.at(self.slots.keys[:, ROWS_OF_KEY], numbers, 1)
        else:
            joining.expire(slots, False, self.slots.rows, self.slots.keys, _ROOM, 0)
        self.slots.forget(slots, np.unique(numbers))

    # --- state --------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[StatePart, RowsSnapshot | None]:
        """Parts that changed since the last one, None for one that is gone."""
        parts: dict[StatePart, RowsSnapshot | None] = {}
        for waits, runs in ((True, self._waiting.cold), (False, [run for queue in self._kept for run in queue.cold])):
            for run in runs:
                if not run.stored:
                    made = {part_of(group, run): stored for group, stored in parts_of(run, waits=waits)}
                    run.stored = frozenset(made)
                    parts |= made
        for which in range(len(self._written)):
            parts |= self._write_hot(which)
        parts |= self._hot(sorted(self.changed))
        wanted = {part for queue in self._queues for run in queue.cold for part in run.stored}
        wanted.update(part for written in self._written for run in written for part in run.parts)
        self._stored |= {part for part, stored in parts.items() if stored is not None}
        for part in sorted(part for part in self._stored - wanted if "#" in part):
            parts[part] = None
        parts = {part: stored for part, stored in parts.items() if stored is not None or part in self._stored}
        self._stored -= {part for part, stored in parts.items() if stored is None}
        self.changed.clear()
        return parts

    def _write_hot(self, which: int) -> Mapping[StatePart, RowsSnapshot]:
        """The parts of rows in memory that lie in no run, and of those that become one run with them (JR4)."""
        rows, written = self.slots.rows, self._written[which]
        slots = self._queues[which].slots()
        run_of, times = self._run_of[slots], rows[slots, TIME]
        may = times < self._next_ms() if which else times >= self._taken[self.slots.groups[rows[slots, KEY]]]
        slots, run_of = slots[may | (run_of >= 0)], run_of[may | (run_of >= 0)]
        kept = runs_kept([len(run.slots) for run in written], int((run_of < 0).sum()), len(slots))
        slots = slots[(run_of < 0) | (run_of >= written[kept].number if kept < len(written) else False)]
        del written[kept:]
        if not len(slots):
            return {}
        slots = slots[np.lexsort((rows[slots, NUMBER], rows[slots, TIME]))]
        run = DiskRun(self._run, list(self.slots.cold(slots)))
        self._run += 1
        self._run_of[slots] = run.number
        made = {part_of(group, run): stored for group, stored in parts_of(run, waits=which == 0)}
        written.append(WrittenRun(run.number, slots, groups_of(run.batches), frozenset(made)))
        self.changed.update(np.unique(written[-1].groups).tolist())
        return made

    def _met(self, run: WrittenRun) -> Bools:
        """Of its rows, shape (n,): whether they have found a match or are gone."""
        met: Bools = (self.slots.rows[run.slots, MATCHED] != 0) | (self._run_of[run.slots] != run.number)
        return met

    def _hot(self, groups: Sequence[int]) -> Mapping[StatePart, RowsSnapshot | None]:
        """The parts of these key groups: of rows in memory that lie in no run, and what has become of those in runs."""
        found: dict[StatePart, RowsSnapshot | None] = {key_group_part(group): None for group in groups}
        if not found:
            return found
        met: dict[int, dict[int, bytes]] = {}
        for run in (run for queue in self._kept for run in queue.cold if run.changed):
            assert run.met is not None, "it has changed"
            for group, bits in met_bits(groups_of(run.batches), run.met):
                met.setdefault(group, {})[run.number] = bits
        for written in (run for side in (LEFT, RIGHT) if self._outer[side] for run in self._written[1 + side]):
            for group, bits in met_bits(written.groups, self._met(written)):
                met.setdefault(group, {})[written.number] = bits
        in_runs = [run.groups for run in self._waiting.cold] + [
            np.unique(run.groups).tolist() for run in self._written[0]
        ]
        taken = {group for own in in_runs for group in own if self._taken[group] > MIN_TIME}
        for group in groups:
            if group in taken or group in met:
                taken_ms = int(self._taken[group]) if group in taken else MIN_TIME
                found[key_group_part(group)] = RowsSnapshot([], b"", b"", b"", taken_ms, met.get(group, {}))
        waiting = np.concatenate((self._due, self._waiting.slots()))
        slots = np.concatenate((waiting, *(queue.slots() for queue in self._kept)))
        waits = np.arange(len(slots)) < len(waiting)
        alone = self._run_of[slots] < 0
        slots, waits = slots[alone], waits[alone]
        rows = self.slots.rows[slots]
        of_group = self.slots.groups[rows[:, KEY]]
        order = np.lexsort((rows[:, NUMBER], rows[:, TIME], rows[:, KEY], of_group))
        order = order[np.isin(of_group[order], np.array(groups, dtype=np.int64))]
        begins = np.flatnonzero(np.diff(of_group[order], prepend=-1))
        for some in np.split(order, begins[1:]) if len(order) else ():
            own, sizes = rows[some], self.slots.sizes(slots[some])
            keys, at = np.unique(own[:, KEY], return_inverse=True)
            given = self.slots.keys[keys][:, [TIME_OF_KEY, NUMBER_OF_KEY]]
            part = key_group_part(int(of_group[some[0]]))
            there = found[part] or RowsSnapshot([], b"", b"")
            there.keys = [self.slots.names[number] for number in keys.tolist()]
            there.rows = stored_rows([own[:, field] for field in STORED], waits[some], at, sizes)
            there.documents = self.slots.gathered(slots[some]).tobytes()
            there.given = given.astype("<i8").tobytes()
            found[part] = there
        return found

    def restore_run(self, number: int, parts: Sequence[tuple[int, StatePart, RowsSnapshot]]) -> None:
        """Take in the parts of runs with this number. Numbers ascend from call to call; `restore` comes behind. ValueError as `restore`."""
        shelve = self._shelve or pa.RecordBatchReader.read_all
        found: dict[int, list[tuple[StatePart, pa.RecordBatch]]] = {}
        for group, part, stored in parts:
            rows = SnapshotRows.of(stored)
            which = 0 if rows.waits[0] else 1 + int(rows.numbers[0, NUMBERS.index("side")])
            found.setdefault(which, []).append((part, rows.cold(group)))
        for which, pieces in sorted(found.items()):
            batches = merged([batch for _, batch in pieces])
            outer = which > 0 and self._outer[which - 1]
            run = write_run(number, batches, shelve, applied=which > 0, outer=outer)
            run.stored = frozenset(part for part, _ in pieces)
            self._queues[which].cold.append(run)
            self._stored |= run.stored
        self._run = number + 1

    def restore(self, stored: RowsSnapshot, group: int) -> None:
        """Take in the rows of a key group in memory. ValueError for bytes that are no rows."""
        self._stored.add(key_group_part(group))
        self._taken[group] = stored.taken_ms
        for run in (
            run for queue in self._kept for run in queue.cold if group in run.groups and run.number in stored.met
        ):
            take_met(run, group, stored.met[run.number])
        found = SnapshotRows.of(stored)
        slots = self._laid(found.documents.cast(pa.binary()))
        numbers = self.slots.numbers_of(found.keys, np.full(len(slots), group, dtype=np.int64))
        self._fill(slots, numbers, [found.numbers[:, at] for at in range(len(NUMBERS))])
        rows, times = self.slots.rows, found.numbers[:, 0]
        self._waiting.add(times[found.waits], slots[found.waits])
        self.waiting_bytes += self._bytes(slots[found.waits])
        kept = slots[~found.waits]
        kept = kept[np.lexsort((rows[kept, NUMBER], rows[kept, TIME]))]
        joining.link(kept, self._reach, rows, self.slots.keys)
        if stored.given:
            given = np.frombuffer(stored.given, dtype="<i8").reshape(len(stored.keys), 2)
            own = self.slots.numbers_of(pa.array(stored.keys, pa.binary()), np.full(len(given), group, dtype=np.int64))
            self.slots.keys[own, TIME_OF_KEY], self.slots.keys[own, NUMBER_OF_KEY] = given[:, 0], given[:, 1]
        for side in (LEFT, RIGHT):
            own = kept[rows[kept, SIDE] == side]
            self._kept[side].add(rows[own, TIME], own)
            if self._outer[side]:
                self._alone[side].add(rows[own, TIME], own)
        self._cool()

    def restored(self) -> None:
        """All parts are taken in."""
        for which in range(len(self._written)):
            self._warm(which)
        for run in self._waiting.cold:
            for _, batch in run.read(0, len(run)):
                there = batch.column("time").to_numpy() >= self._taken[batch.column("group").to_numpy()]
                sizes = sizes_of(batch.column("document"))[there]
                self.waiting_bytes += int(sizes.sum()) + ROW_BYTES * len(sizes)

    def _warm(self, which: int) -> None:
        """Rows of the snapshot's runs come into memory as far as it has room for them, those of the latest run first."""
        queue, warm = self._queues[which], list[tuple[DiskRun, Int64s]]()
        while queue.cold and queue.cold[-1].stored:
            run = queue.cold[-1]
            if self.slots.size_bytes + run.size_bytes + ROW_BYTES * len(run) > self._memory_bytes:
                break
            queue.cold.pop()
            batch = together(run.batches)
            if which == 0:
                taken_ms = self._taken[batch.column("group").to_numpy()]
                batch = batch.filter(pa.array(batch.column("time").to_numpy() >= taken_ms))
            slots = self._load(batch)
            self._run_of[slots] = run.number
            if which == 0:
                self.waiting_bytes += self._bytes(slots)
            else:
                if run.met is not None:
                    self.slots.rows[slots, MATCHED] = run.met
                joining.prepend(slots, self.slots.rows, self.slots.keys)
            self._written[which].insert(0, WrittenRun.left_of(run, slots, batch))
            warm.append((run, slots))
        for _, slots in reversed(warm):
            times = self.slots.rows[slots, TIME]
            queue.add(times, slots)
            if which and self._outer[which - 1]:
                self._alone[which - 1].add(times, slots)


_ALONE: Final = (
    (joining.FOUND_TIME, TIME), (joining.FOUND_KEY, KEY), (joining.FOUND_NUMBER, NUMBER), (joining.FOUND_ARRIVAL, ARRIVAL),
)  # fmt: skip


def _unread(runs: list[DiskRun]) -> list[DiskRun]:
    return [run for run in runs if run.at < len(run)]
