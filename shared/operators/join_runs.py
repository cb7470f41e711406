"""The rows of a `$join` by time: slots in memory, and runs of rows on a local disk.

Rules:

- JR1 A run is written once and never changed: rows by time, of rows that wait for the watermark, or of rows of one side that have been
  applied. Of one key and side, applied rows lie in the order in which they were applied, and those of an earlier run come first.
- JR2 A run is read from its begin on. Which rows are gone is no part of it: of rows that wait, those below the time up to which their key
  group was taken; of applied rows those that have expired, and of an outer side those that are marked as met.
- JR3 A run lies in the snapshot by key group (`kg:G#N`), written at the first checkpoint that it sees and read by no later one.
- JR4 Rows in memory lie in the snapshot as such runs, too, merged by `run_sizes`: those that wait, and the applied ones of each side, but
  for those of a time that a piece has divided. The part `kg:G` has these, and what has become of the rows in runs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.model.ids import StatePart, key_group_part
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.context import Shelve
from tidemark.shared.operators.keygroups import Words, murmur2_column

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Words16: TypeAlias = npt.NDArray[np.uint16]

_SMALL_ROWS: Final = 4096
"""Runs of fewer rows become one when there are many."""
_RUNS: Final = 256
"""More are merged: each is looked at whenever a time comes."""
_BATCH_ROWS: Final = 16_384
"""Of a batch of a run: what is read, and written, at a time."""
_BATCH_BYTES: Final = 16 << 20
"""Of its documents, but for a larger one: with 32-bit offsets a batch fits into memory as one column."""
NONE: Final = np.empty(0, dtype=np.int64)


# --- in memory ----------------------------------------------------------------------------------------------------------------


class ByTime:
    """Rows by time: slots in runs that are sorted, of one time in the order in which they came; and runs on the disk."""

    __slots__ = ("_number", "_runs", "_runs_max", "cold")

    def __init__(self) -> None:
        self.cold: list[DiskRun] = []
        """Those that are not yet read to their end, in the order of their numbers."""
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
        first_ms = self._runs[0][0] if self._runs else MAX_TIME
        return min(first_ms, *(run.next_ms() for run in self.cold)) if self.cold else first_ms

    def nth_ms(self, count: int, below_ms: int) -> int:
        """A time up to which so many rows come, or all of the first time; `below_ms` where fewer come below that."""
        times = [
            run[2][: min(count + 1, int(np.searchsorted(run[2], below_ms)))] for run in self._runs if run[0] < below_ms
        ]
        times += [run.next_times(count + 1, below_ms) for run in self.cold if run.next_ms() < below_ms]
        if sum(map(len, times)) <= count:
            return below_ms
        return max(self.first_ms() + 1, int(np.partition(np.concatenate(times), count)[count]))

    def take(self, below_ms: int) -> Int64s:
        """The slots of times below this, by time; they are in the queue no more."""
        taken: list[tuple[int, Int64s, Int64s]] = []
        while self._runs and self._runs[0][0] < below_ms:
            _, number, times, slots = self._runs[0]
            end = int(np.searchsorted(times, below_ms))
            taken.append((number, times[:end], slots[:end]))
            self._drop(end)
        return _sorted(taken)[1]

    def take_from(self, from_ms: int) -> Int64s:
        """The slots of times from this one on, by time; they are in the queue no more."""
        taken: list[tuple[int, Int64s, Int64s]] = []
        left = []
        for first_ms, number, times, slots in self._runs:
            at = int(np.searchsorted(times, from_ms))
            if at < len(times):
                taken.append((number, times[at:], slots[at:]))
            if at:
                left.append((first_ms, number, times[:at].copy(), slots[:at].copy()))
        self._runs = left
        heapify(self._runs)
        return _sorted(taken)[1]

    def skip(self, gone: Callable[[Int64s], Bools]) -> int:
        """Forget the first slots, as long as they are gone; the time of the next one."""
        while self._runs:
            mask = gone(self._runs[0][3][:_SMALL_ROWS])
            some = len(mask) if bool(mask.all()) else int(np.argmin(mask))
            if not some:
                return self._runs[0][0]
            self._drop(some)
        return MAX_TIME

    def slots(self) -> Int64s:
        """All of them."""
        return np.concatenate([NONE, *(slots for _, _, _, slots in self._runs)])

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


def _sorted(runs: list[tuple[int, Int64s, Int64s]]) -> tuple[Int64s, Int64s]:
    """Times and slots of runs as one."""
    if len(runs) == 1:
        return runs[0][1:]
    runs.sort(key=lambda run: run[0])
    times, slots = (np.concatenate([NONE, *(run[i] for run in runs)]) for i in (1, 2))
    order = np.argsort(times, kind="stable")
    return times[order], slots[order]


# --- on the disk --------------------------------------------------------------------------------------------------------------

COLD: Final = pa.schema(
    [
        ("time", pa.int64()),
        ("arrival", pa.int64()),
        ("part", pa.int64()),
        ("position", pa.int64()),
        ("side", pa.int64()),
        ("number", pa.int64()),
        ("met", pa.int64()),
        ("group", pa.uint16()),
        ("key", pa.binary()),
        ("document", pa.large_binary()),
    ]
)
"""Of a run. met: whether a row that was applied had found a match when it was written."""
_TIME, _GROUP_AT, _KEY_AT, _DOCUMENT_AT = 0, 7, 8, 9
NUMBERS: Final = COLD.names[:_GROUP_AT]
_INDEX: Final = pa.schema([("hash", pa.uint32()), ("place", pa.int64())])


def together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Rows of the schema COLD as one batch."""
    table = pa.Table.from_batches(batches, schema=COLD).combine_chunks()
    return pa.RecordBatch.from_arrays(
        [column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in table.columns], schema=COLD
    )


def cuts(sizes: Int64s) -> Iterator[slice]:
    """Rows with so many bytes each, batch by batch."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        limit = (int(ends[begin - 1]) if begin else 0) + _BATCH_BYTES
        end = min(begin + _BATCH_ROWS, max(begin + 1, int(np.searchsorted(ends, limit, side="right"))))
        yield slice(begin, end)
        begin = end


@dataclass(slots=True, eq=False)
class DiskRun:
    """Rows on the disk; a row's place is its number in the run."""

    number: int
    """Of its parts in the snapshot."""
    batches: Sequence[pa.RecordBatch]
    """Mapped, of the schema COLD."""
    index: tuple[Words, Int64s] | None = None
    """Mapped: hashes of the keys, ascending, and the rows' places; of applied rows."""
    met: Bools | None = None
    """By place: a match was found, or the row came out alone; of applied rows of an outer side."""
    changed: bool = False
    """`met` was, since the run was written."""
    stored: frozenset[StatePart] = frozenset()
    """Its parts in the snapshot; empty: none yet."""
    at: int = 0
    """Rows before it are gone."""
    groups: frozenset[int] = frozenset()
    size_bytes: int = 0
    _alone: int = 0
    """Rows before it do not come out alone any more."""
    _begins: Int64s = field(default_factory=lambda: NONE)
    _firsts: Int64s = field(default_factory=lambda: NONE)

    def __post_init__(self) -> None:
        self._begins = np.cumsum([0, *(batch.num_rows for batch in self.batches)], dtype=np.int64)
        self._firsts = np.array([batch.column(_TIME)[0].as_py() for batch in self.batches], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._begins[-1])

    def next_ms(self) -> int:
        """The earliest time of a row that is not gone."""
        return self._time(self.at)

    def next_times(self, count: int, below_ms: int) -> Int64s:
        """Times of the next rows, so many at most, below this."""
        end = min(self.at + count, self.place(below_ms))
        return np.concatenate([NONE, *(_numbers(batch, _TIME) for _, batch in self.read(self.at, end))])

    def place(self, below_ms: int) -> int:
        """How many rows have times below this."""
        batch = int(np.searchsorted(self._firsts, below_ms)) - 1
        return int(self._begins[batch] + np.searchsorted(self._times(batch), below_ms)) if batch >= 0 else 0

    def read(self, begin: int, end: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(the first place, rows) of these places, batch by batch."""
        while begin < end:
            batch = int(np.searchsorted(self._begins, begin, side="right")) - 1
            till = min(end, int(self._begins[batch + 1]))
            yield begin, self.batches[batch].slice(begin - int(self._begins[batch]), till - begin)
            begin = till

    def pick(self, places: Int64s) -> list[pa.RecordBatch]:
        """The rows of these places, which ascend."""
        batches = np.unique(np.searchsorted(self._begins, places, side="right") - 1)
        begins = np.searchsorted(places, self._begins[batches]).tolist()
        return [
            self.batches[batch].take(pa.array(places[begin:end] - self._begins[batch]))
            for batch, begin, end in zip(batches.tolist(), begins, [*begins[1:], len(places)], strict=False)
        ]

    def candidates(self, hashes: Words) -> tuple[Int64s, Int64s]:
        """(which of these hashes, place) of each row that has one of them and is not gone."""
        assert self.index is not None
        there, places = self.index
        begins = np.searchsorted(there, hashes, side="left")
        counts = np.searchsorted(there, hashes, side="right") - begins
        which = np.repeat(np.arange(len(hashes)), counts)
        at = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts - begins, counts)
        found = places[at]
        left = found >= self.at
        return which[left], found[left]

    def alone_ms(self) -> int:
        """The earliest time of a row without a match; MAX_TIME for none."""
        assert self.met is not None
        self._alone = max(self._alone, self.at)
        while self._alone < len(self.met):
            some = self.met[self._alone : self._alone + _BATCH_ROWS]
            if not some.all():
                self._alone += int(np.argmin(some))
                return self._time(self._alone)
            self._alone += len(some)
        return MAX_TIME

    def _time(self, place: int) -> int:
        batch = int(np.searchsorted(self._begins, place, side="right")) - 1
        return int(self._times(batch)[place - int(self._begins[batch])])

    def _times(self, batch: int) -> Int64s:
        return _numbers(self.batches[batch], _TIME)


def _numbers(batch: pa.RecordBatch, column: int) -> Int64s:
    found: Int64s = batch.column(column).to_numpy()
    return found


def write_run(number: int, batches: Iterable[pa.RecordBatch], shelve: Shelve, *, applied: bool, outer: bool) -> DiskRun:
    """A run of these rows, by time, of the schema COLD; `shelve` puts them on the disk. ScratchUnavailable where there is no room."""
    hashes: list[Words] = []
    met: list[Int64s] = []
    groups: set[int] = set()
    size = 0

    def passing() -> Iterator[pa.RecordBatch]:
        nonlocal size
        for batch in batches:
            if applied:
                hashes.append(murmur2_column(batch.column(_KEY_AT)))
                met.append(_numbers(batch, NUMBERS.index("met")))
            groups.update(np.unique(batch.column(_GROUP_AT).to_numpy()).tolist())
            size += batch.nbytes
            yield batch

    table = shelve(pa.RecordBatchReader.from_batches(COLD, passing()))
    index = None
    if applied:
        all_hashes = np.concatenate(hashes)
        order = np.argsort(all_hashes, kind="stable")
        columns = [pa.array(all_hashes[order]), pa.array(order)]
        listed = shelve(pa.Table.from_arrays(columns, schema=_INDEX).to_reader()).combine_chunks()
        index = listed.column("hash").chunk(0).to_numpy(), listed.column("place").chunk(0).to_numpy()
    run = DiskRun(number, table.to_batches(), index, np.concatenate(met) != 0 if applied and outer else None)
    run.groups, run.size_bytes = frozenset(groups), size
    return run


# --- in the snapshot ------------------------------------------------------------------------------------------------------------

STORED_ROW: Final = 10
"""Numbers of a row in a snapshot: those of NUMBERS, whether it waits, the place of its key, the bytes of its document."""
_WAITS, _STORED_KEY, _STORED_SIZE = 7, 8, 9


@dataclass(frozen=True, slots=True)
class WrittenRun:
    """A run of the snapshot whose rows are in memory (JR4)."""

    number: int
    slots: Int64s
    """Shape (n,), in the order of the run; those of rows that are gone may have others by now."""
    groups: Words16
    """Shape (n,)."""
    parts: frozenset[StatePart]

    @classmethod
    def left_of(cls, run: DiskRun, slots: Int64s, batch: pa.RecordBatch) -> "WrittenRun":
        """Of the rows that a stored run has left. A part without any goes: nothing would keep its rows from waiting once more."""
        groups = groups_of([batch])
        return cls(run.number, slots, groups, frozenset(part_of(group, run) for group in np.unique(groups).tolist()))


def part_of(group: int, run: DiskRun) -> StatePart:
    """Of a key group of a run (JR3)."""
    return StatePart(f"{key_group_part(group)}#{run.number}")


class RowsSnapshot(msgspec.Struct, array_like=True):
    """Rows of a key group in the snapshot: those in memory, or (JR3) those of one run, without what may change."""

    keys: list[bytes]
    rows: bytes
    """int64, little-endian, shape (n, STORED_ROW)."""
    documents: bytes
    given: bytes = b""
    """int64, little-endian, shape (keys, 2): the time that a key applied last, and the last number given at it."""
    taken_ms: int = MIN_TIME
    """Rows of runs below this wait no more."""
    met: dict[int, bytes] = {}
    """By run: of its rows of this key group, in their order, which have found a match or came out alone; bits."""


def stored_rows(numbers: Sequence[Int64s], waits: Bools, keys: Int64s, sizes: Int64s) -> bytes:
    """RowsSnapshot.rows; numbers: by NUMBERS."""
    rows = np.empty((len(keys), STORED_ROW), dtype="<i8")
    for at, cells in enumerate((*numbers, waits, keys, sizes)):
        rows[:, at] = cells
    return rows.tobytes()


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """Rows of a snapshot, taken apart."""

    numbers: Int64s
    """Shape (n, STORED_ROW)."""
    keys: pa.BinaryArray
    documents: pa.LargeBinaryArray

    @classmethod
    def of(cls, stored: RowsSnapshot) -> "SnapshotRows":
        """ValueError for bytes that are no rows."""
        rows = np.frombuffer(stored.rows, dtype="<i8").reshape(-1, STORED_ROW).astype(np.int64)
        ends = np.cumsum(rows[:, _STORED_SIZE])
        if (int(ends[-1]) if len(ends) else 0) != len(stored.documents):
            raise ValueError(f"{len(rows)} rows with {len(stored.documents)} bytes of documents")
        offsets = pa.py_buffer(np.concatenate(([0], ends)))
        documents = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(rows), [None, offsets, pa.py_buffer(stored.documents)]
        )
        keys = pa.array(stored.keys, pa.binary()).take(pa.array(rows[:, _STORED_KEY]))
        return cls(rows, keys, documents)

    @property
    def waits(self) -> Bools:
        """Which rows wait, shape (n,)."""
        found: Bools = self.numbers[:, _WAITS] != 0
        return found

    def cold(self, group: int) -> pa.RecordBatch:
        """The rows as those of a run."""
        columns = [pa.array(self.numbers[:, at]) for at in range(len(NUMBERS))]
        groups = pa.array(np.full(len(self.keys), group, dtype=np.uint16))
        return pa.RecordBatch.from_arrays([*columns, groups, self.keys, self.documents], schema=COLD)


def _bounds(documents: pa.LargeBinaryArray) -> Int64s:
    """Where each begins and ends, shape (n + 1,)."""
    found = np.frombuffer(documents.buffers()[1], dtype=np.int64)
    return found[documents.offset : documents.offset + len(documents) + 1]


def sizes_of(documents: pa.LargeBinaryArray) -> Int64s:
    """Bytes of each, shape (n,)."""
    found: Int64s = np.diff(_bounds(documents))
    return found


def merged(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of batches by time; of one time in the order of the batches."""
    table = pa.Table.from_batches(batches, schema=COLD).combine_chunks()
    order = np.argsort(table.column(_TIME).to_numpy(), kind="stable")
    sizes = sizes_of(table.column(_DOCUMENT_AT).chunk(0))
    for some in cuts(sizes[order]):
        yield from table.take(pa.array(order[some])).combine_chunks().to_batches()


def parts_of(run: DiskRun, *, waits: bool) -> Iterator[tuple[int, RowsSnapshot]]:
    """Key group and rows of each part of a run."""
    pieces: dict[int, list[pa.RecordBatch]] = {}
    for _, batch in run.read(0, len(run)):
        groups = batch.column(_GROUP_AT).to_numpy()
        order = np.argsort(groups, kind="stable")
        own = batch.take(pa.array(order))
        found, begins = np.unique(groups[order], return_index=True)
        for group, begin, end in zip(found.tolist(), begins, [*begins[1:], len(groups)], strict=True):
            pieces.setdefault(group, []).append(own.slice(begin, end - begin))
    for group in sorted(pieces):
        table = pa.Table.from_batches(pieces.pop(group)).combine_chunks()
        keys = table.column(_KEY_AT).chunk(0).dictionary_encode()
        documents = table.column(_DOCUMENT_AT).chunk(0)
        bounds = _bounds(documents)
        data = documents.buffers()[2]
        numbers = [table.column(at).to_numpy() for at in range(len(NUMBERS))]
        yield (
            group,
            RowsSnapshot(
                keys.dictionary.to_pylist(),
                stored_rows(numbers, np.full(len(bounds) - 1, waits), keys.indices.to_numpy(), np.diff(bounds)),
                b"" if data is None else data[int(bounds[0]) : int(bounds[-1])].to_pybytes(),
            ),
        )


def groups_of(batches: Iterable[pa.RecordBatch]) -> Words16:
    """The key groups of the rows of a run."""
    return np.concatenate([batch.column(_GROUP_AT).to_numpy() for batch in batches])


def met_bits(groups: Words16, met: Bools) -> Iterator[tuple[int, bytes]]:
    """Key group and bits of each part of a run (RowsSnapshot.met), by what is so of its rows."""
    order = np.argsort(groups, kind="stable")
    found, begins = np.unique(groups[order], return_index=True)
    met = met[order]
    for group, begin, end in zip(found.tolist(), begins, [*begins[1:], len(groups)], strict=True):
        yield group, np.packbits(met[begin:end]).tobytes()


def take_met(run: DiskRun, group: int, data: bytes) -> None:
    """Mark rows of a key group as met, by the bits of its part. ValueError for bits of other rows."""
    if run.met is None:
        return
    places = np.flatnonzero(groups_of(run.batches) == group)
    if len(data) != (len(places) + 7) // 8:
        raise ValueError(f"{len(data)} bytes of bits for {len(places)} rows of run {run.number}")
    run.met[places] |= np.unpackbits(np.frombuffer(data, np.uint8), count=len(places)).astype(np.bool_)
    run.changed = True
