"""Ids that are remembered, each in a bucket of time (or positions), until the bucket has expired.

Rules:

- RI1 Exact: a filter and hashes say where to look, and the ids found there are compared by their bytes.
- RI2 A run of ids is never changed. New ids at a checkpoint are a run of their own; `RUNS_ALIKE` of one level become one of the next: so a
  snapshot writes the new ids, and an id again as often as its run is merged, a handful of times in all.
- RI3 A run lies in the snapshot by key group, so that another number of tasks can go on with it.
- RI4 Where ids take more than `memory_bytes`, the largest runs lie on a disk, mapped (`shelve`); callers see no difference.
"""

from collections import Counter
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.model.formats import RECORD_IDS, Codec
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators.base import OperatorError
from tidemark.shared.operators.context import Shelve
from tidemark.shared.operators.keygroups import groups_of, murmur2_column

_BITS_AN_ID: Final = 16
_PROBES: Final = 4
_START_BITS: Final = 1 << 13
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)

Hashes = npt.NDArray[np.uint32]


class Bloom:
    """Which hashes may have been added: those that were are hits, of others fewer than one in a hundred while there is room."""

    __slots__ = ("_bits", "added", "room")

    def __init__(self, ids: int = 0) -> None:
        """With room for at least so many hashes."""
        size = _START_BITS
        while size < ids * _BITS_AN_ID:
            size *= 2
        self._bits = np.zeros(size // 8, dtype=np.uint8)
        self.room = size // _BITS_AN_ID
        self.added = 0

    def add(self, hashes: Hashes) -> None:
        """Add hashes, shape (n,)."""
        self.added += len(hashes)
        for places in self._places(hashes):
            np.bitwise_or.at(self._bits, places >> 3, np.left_shift(1, places & 7).astype(np.uint8))

    def hits(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Which may have been added, shape (n,)."""
        hit: npt.NDArray[np.bool_] = np.ones(len(hashes), dtype=np.bool_)
        if not self.added:
            return ~hit
        for places in self._places(hashes):
            hit &= (self._bits[places >> 3] >> (places & 7).astype(np.uint8) & 1).astype(np.bool_)
        return hit

    def _places(self, hashes: Hashes) -> list[npt.NDArray[np.int64]]:
        """Double hashing: probes h, h + g, h + 2g, … of a 64-bit mix."""
        mixed = (hashes.astype(np.uint64) + np.uint64(1)) * _STEP
        mixed ^= mixed >> np.uint64(29)
        step = (mixed * _STEP >> np.uint64(32)) | np.uint64(1)
        mask = np.uint64(8 * len(self._bits) - 1)
        return [((mixed + step * np.uint64(i)) & mask).astype(np.int64) for i in range(_PROBES)]


Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.uint64]

RUNS_ALIKE: Final = 4
"""Runs of one level that become one of the next."""
RESTORED_LEVEL: Final = 40
"""Of the first run that a snapshot gives, each with one of its own: nothing merges with it, and it goes as its buckets do."""
RESTORED_BYTES: Final = 64 << 20
"""Bytes of a snapshot that become one run, so that a restore needs little memory beside the ids."""
_COLUMNS: Final = ("places", "ids", "buckets")
PARTS_A_GROUP_MAX: Final = 24
"""A run that a snapshot had in more parts is written anew."""
ONE_RUN_BYTES_MAX: Final = 48 * 1024
"""Up to here all ids are one run."""
RUN_BYTES_MAX: Final = 256 << 20
"""Runs that would be more together stay apart: merging takes memory, and Arrow counts the bytes of a column in 32 bits."""
_HASH_BITS: Final = np.uint64(32)


class StoredIds(msgspec.Struct, frozen=True):
    """Ids of one bucket: their lengths (int32, little endian) and their bytes, one after another."""

    bucket: int
    lengths: bytes
    data: bytes


class StoredPart(msgspec.Struct, frozen=True):
    """A part of the snapshot: a run's ids of one key group, or how far a split has come."""

    highest: int = MIN_TIME
    buckets: tuple[StoredIds, ...] = ()


CODEC: Final[Codec[StoredPart]] = Codec(RECORD_IDS, StoredPart)


@dataclass(slots=True)
class _RowRun:
    places: Places
    """Shape (n,), ascending: key group · 2³² + hash."""
    ids: pa.BinaryArray
    buckets: Int64s
    level: int = 0
    shelved: bool = False
    parts: frozenset[StatePart] = frozenset()
    """Where the snapshot has it; empty: nowhere yet."""
    size_bytes: int = 0

    def __post_init__(self) -> None:
        self.size_bytes = _size(self.ids)

    def rows(self, wanted: npt.NDArray[np.intp], level: int) -> "_RowRun":
        return _RowRun(self.places[wanted], self.ids.take(pa.array(wanted)), self.buckets[wanted], level)


@dataclass(slots=True)
class Remembered:
    """The ids of one split, or of one task."""

    groups: int = 1
    """Key groups by which a snapshot is divided."""
    memory_bytes: int = 1 << 30
    shelve: Shelve | None = None
    """Beyond so many bytes of ids; None: all of them lie in memory."""
    size_bytes: int = 0
    """Of the ids, as they lie in memory or on the disk."""
    _stored: list[_RowRun] = field(default_factory=list)
    _fresh: list[_RowRun] = field(default_factory=list)
    """Those since the last snapshot."""
    _filter: Bloom = field(default_factory=Bloom)
    _oldest: int = MIN_TIME
    _number: int = 0
    """Of the next run in the snapshot."""
    _written: set[StatePart] = field(default_factory=set)

    # --- judging ------------------------------------------------------------------------------------------------------

    def told_apart(self, ids: pa.BinaryArray, hashes: Hashes, buckets: Int64s, oldest: Int64s) -> Bools:
        """Which of n ids are new, shape (n,), in their order; those are remembered from here on.

        ids: without nulls. hashes: theirs (`keygroups.murmur2_column`). oldest: the first bucket that counts for each.
        """
        codes = ids.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        first = np.unique(codes, return_index=True)[1]
        oldest = np.maximum(oldest, MIN_TIME + 1)
        before = self._home(ids if len(first) == len(ids) else ids.take(pa.array(first)), hashes[first])
        new = before < oldest[first]
        known = np.where(new, np.maximum(before, buckets[first]), before)
        fresh: Bools = known[codes] < oldest
        again = fresh.copy()
        again[first] = False
        fresh[first] = new
        if again.any():  # an id has expired between two of its rows: they are judged one by one
            stands = dict(zip(codes[again].tolist(), before[codes[again]].tolist(), strict=True))
            for row in np.flatnonzero(np.isin(codes, list(stands))).tolist():
                code = int(codes[row])
                fresh[row] = stands[code] < oldest[row]
                if fresh[row]:
                    stands[code] = max(stands[code], int(buckets[row]))
        self._remember(ids, hashes, buckets, np.flatnonzero(fresh))
        return fresh

    def _home(self, ids: pa.BinaryArray, hashes: Hashes) -> Int64s:
        """The highest bucket that has each id, shape (n,); MIN_TIME for none."""
        home = np.full(len(ids), MIN_TIME, dtype=np.int64)
        rows = np.flatnonzero(self._filter.hits(hashes))
        if not len(rows):
            return home
        places = self._places(hashes[rows])
        order = np.argsort(places)
        rows, places = rows[order], places[order]
        wanted = ids.take(pa.array(rows))
        for run in (*self._stored, *self._fresh):
            at = np.searchsorted(run.places, places)
            left = np.arange(len(rows))
            while len(left := _still(run.places, places, at, left)):
                same = pc.equal(run.ids.take(pa.array(at[left])), wanted.take(pa.array(left)))
                hit = left[same.to_numpy(zero_copy_only=False)]
                home[rows[hit]] = np.maximum(home[rows[hit]], run.buckets[at[hit]])
                at[left] += 1
        return home

    def _places(self, hashes: Hashes) -> Places:
        return (groups_of(hashes, self.groups).astype(np.uint64) << _HASH_BITS) | hashes

    def _remember(self, ids: pa.BinaryArray, hashes: Hashes, buckets: Int64s, rows: npt.NDArray[np.intp]) -> None:
        if not len(rows):
            return
        places = self._places(hashes[rows])
        order = np.argsort(places, kind="stable")
        run = _RowRun(places[order], ids.take(pa.array(rows[order])), buckets[rows[order]])
        self._fresh.append(run)
        self.size_bytes += run.size_bytes
        self._noted(hashes[rows])
        _merge_alike(self._fresh)

    def _noted(self, hashes: Hashes) -> None:
        if self._filter.added + len(hashes) <= self._filter.room:
            self._filter.add(hashes)
            return
        runs = [*self._stored, *self._fresh]
        self._filter = Bloom(2 * sum(len(run.places) for run in runs))
        for run in runs:
            self._filter.add(run.places.astype(np.uint32))

    # --- expiry -------------------------------------------------------------------------------------------------------

    def expire(self, oldest: int) -> None:
        """Buckets below this will never be asked for again."""
        if oldest <= self._oldest:
            return
        self._oldest = oldest
        for runs in (self._stored, self._fresh):
            runs[:] = [left for run in runs if (left := _unexpired(run, oldest)) is not None]
        self.size_bytes = sum(run.size_bytes for run in (*self._stored, *self._fresh))

    # --- snapshot -----------------------------------------------------------------------------------------------------

    def snapshot(self, name: Callable[[int], StatePart]) -> dict[StatePart, bytes | None]:
        """Parts that changed (RI2). `name`: of the part of a key group; a number is put behind it."""
        if self._fresh:
            self._stored.append(_merged(self._fresh, 0))
            self._fresh = []
        if len(self._stored) > 1 and self.size_bytes <= ONE_RUN_BYTES_MAX:
            self._stored = [_merged(self._stored, 0)]
        _merge_alike(self._stored)
        self._shelve()
        out: dict[StatePart, bytes | None] = {}
        for run in self._stored:
            if not run.parts:
                written = {StatePart(f"{name(group)}#{self._number}"): data for group, data in _encoded(run)}
                run.parts = frozenset(written)
                out |= written
                self._number += 1
        wanted = {part for run in self._stored for part in run.parts}
        out |= dict.fromkeys(sorted(self._written - wanted))
        self._written = wanted
        return out

    def _shelve(self) -> None:
        """RI4, the largest first."""
        here = sorted((run for run in self._stored if not run.shelved), key=lambda run: run.size_bytes)
        left = sum(run.size_bytes for run in here)
        while self.shelve is not None and left > self.memory_bytes:
            run = here.pop()
            left -= run.size_bytes
            table = pa.table([pa.array(run.places), run.ids, pa.array(run.buckets)], list(_COLUMNS))
            table = self.shelve(table.to_reader()).combine_chunks()
            places, ids, buckets = (table.column(name).chunk(0) for name in _COLUMNS)
            run.places, run.ids, run.buckets, run.shelved = places.to_numpy(), ids, buckets.to_numpy(), True

    def restore(self, parts: MutableMapping[StatePart, bytes]) -> None:
        """Remember the ids of these parts, whatever numbers of tasks wrote them. OperatorError for bytes that are no state."""
        names = [part.rpartition("#") for part in parts]
        most = max(Counter(group for group, _, _ in names).values(), default=0)
        self._written = set(parts)
        self._number = 1 + max((int(number) for _, _, number in names if number.lstrip("-").isdigit()), default=-1)
        while parts:
            kept, found, size = set[StatePart](), list[tuple[pa.BinaryArray, Int64s]](), 0
            while parts and size <= RESTORED_BYTES:
                part, data = parts.popitem()
                kept.add(part)
                found.append(_decoded(part, data))
                size += len(data)
            ids = pa.concat_arrays([run for run, _ in found])
            hashes = murmur2_column(ids)
            places = self._places(hashes)
            order = np.argsort(places, kind="stable")
            buckets = np.concatenate([buckets for _, buckets in found])[order]
            run = _RowRun(places[order], ids.take(pa.array(order)), buckets, RESTORED_LEVEL + len(self._stored))
            run.parts = frozenset(kept) if most <= PARTS_A_GROUP_MAX else frozenset()
            self._stored.append(run)
            self.size_bytes += run.size_bytes
            self._noted(hashes)
            self._shelve()


def _still(there: Places, wanted: Places, at: npt.NDArray[np.intp], left: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """The rows left that want the place at their position in the run."""
    left = left[at[left] < len(there)]
    still: npt.NDArray[np.intp] = left[there[at[left]] == wanted[left]]
    return still


def _merge_alike(runs: list[_RowRun]) -> None:
    """RI2, from the newest run on."""
    while len(runs) >= RUNS_ALIKE and runs[-1].level == runs[-RUNS_ALIKE].level:
        alike = runs[-RUNS_ALIKE:]
        if sum(run.size_bytes for run in alike) > RUN_BYTES_MAX:
            return
        runs[-RUNS_ALIKE:] = [_merged(alike, alike[0].level + 1)]


def _merged(runs: list[_RowRun], level: int) -> _RowRun:
    if len(runs) == 1:
        runs[0].level = level
        return runs[0]
    places = np.concatenate([run.places for run in runs])
    order = np.argsort(places, kind="stable")
    ids = pa.concat_arrays([run.ids for run in runs]).take(pa.array(order))
    return _RowRun(places[order], ids, np.concatenate([run.buckets for run in runs])[order], level)


def _unexpired(run: _RowRun, oldest: int) -> _RowRun | None:
    """The run as it is while most of its ids count; else without the expired ones."""
    rows = np.flatnonzero(run.buckets >= oldest)
    if not len(rows):
        return None
    return run if 2 * len(rows) > len(run.buckets) else run.rows(rows, run.level)


def _size(ids: pa.BinaryArray) -> int:
    return int(pc.sum(pc.binary_length(ids)).as_py() or 0) + 20 * len(ids)


def _encoded(run: _RowRun) -> Iterable[tuple[int, bytes]]:
    groups = run.places >> _HASH_BITS
    found, begins = np.unique(groups, return_index=True)
    ends = [*begins[1:].tolist(), len(groups)]
    for group, begin, end in zip(found.tolist(), begins.tolist(), ends, strict=True):
        ids, buckets = run.ids.slice(begin, end - begin), run.buckets[begin:end]
        stored = tuple(
            _stored(bucket, ids.filter(pa.array(buckets == bucket))) for bucket in np.unique(buckets).tolist()
        )
        yield group, CODEC.encode(StoredPart(buckets=stored))


def _stored(bucket: int, ids: pa.BinaryArray) -> StoredIds:
    lengths = pc.binary_length(ids).to_numpy(zero_copy_only=False).astype("<i4")
    return StoredIds(bucket, lengths.tobytes(), b"".join(ids.to_pylist()))


def _decoded(part: StatePart, data: bytes) -> tuple[pa.BinaryArray, Int64s]:
    try:
        stored = CODEC.decode(data)
        lengths = [np.frombuffer(each.lengths, dtype="<i4").astype(np.int64) for each in stored.buckets]
    except ValueError as error:
        raise OperatorError(f"{part}: {error}") from error
    octets = b"".join(each.data for each in stored.buckets)
    ends = np.cumsum(np.concatenate((np.zeros(1, dtype=np.int64), *lengths)))
    if int(ends[-1]) != len(octets):
        raise OperatorError(
            f"{part}: {RECORD_IDS.name} cannot be: {len(octets)} bytes of ids, and lengths of {ends[-1]}"
        )
    buffers = [None, pa.py_buffer(ends.astype(np.int32).tobytes()), pa.py_buffer(octets)]
    buckets = np.repeat(np.array([each.bucket for each in stored.buckets], dtype=np.int64), list(map(len, lengths)))
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers), buckets
