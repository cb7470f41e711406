"""Record ids of one split: a record whose id was seen within the horizon is a repeat (language.md, `recordId`).

Rules:

- DD1 A function of the split's records alone: batches may be cut anywhere. Time is cut into buckets (ten minutes of event time, or
  `POSITIONS_A_BUCKET` positions); an id is remembered in the bucket of its first record, and a bucket counts until it lies wholly
  beyond the horizon behind the highest time (position) before the record that is being judged.
- DD2 Exact: Bloom filters and hashes only say for which ids one need not look; what they let through is compared by its bytes.
- DD3 The snapshot writes what changed: how far the split has come (`split:<id>#head`); few ids in one part, many by bucket
  (`split:<id>#<bucket>`).
- DD4 A record without an id (null or missing) is never a repeat; one on which the expression fails is a dead letter, and no repeat.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.expressions.ast import Expr, FieldPath
from tidemark.shared.language.stages import PositionHorizon, TimeHorizon
from tidemark.shared.language.values import canonical_key
from tidemark.shared.model.formats import RECORD_IDS, Codec
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.model.values import MISSING
from tidemark.shared.operators.base import POS, TS
from tidemark.shared.operators.batches import is_tagged
from tidemark.shared.operators.bloom import Bloom, Hashes
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.dead_letters import Failure
from tidemark.shared.operators.frame import evaluated
from tidemark.shared.operators.keygroups import murmur2_column
from tidemark.shared.operators.keys import canonical_column

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
RUNS_MAX: Final = 16
"""Sorted runs of hashes of one bucket beyond which they become one."""

BUCKET_MS: Final = 600_000
"""Width of a bucket of ids: part of the snapshot's form."""
POSITIONS_A_BUCKET: Final = 65_536
ONE_PART_BYTES_MAX: Final = 48 * 1024
"""Up to here all ids of a split lie in one part of the snapshot."""
_ALL: Final = "all"
_HEAD: Final = "head"


class StoredIds(msgspec.Struct, frozen=True):
    """Ids of one bucket: their lengths (int32, little endian) and their bytes, one after another."""

    bucket: int
    lengths: bytes
    data: bytes


class StoredPart(msgspec.Struct, frozen=True):
    """A part of the snapshot: some buckets, or how far the split has come."""

    highest: int = MIN_TIME
    buckets: tuple[StoredIds, ...] = ()


_CODEC: Final[Codec[StoredPart]] = Codec(RECORD_IDS, StoredPart)


@dataclass(slots=True)
class _Bucket:
    ids: list[pa.BinaryArray] = field(default_factory=list)
    hashes: list[Hashes] = field(default_factory=list)
    """Of the ids, each run sorted."""
    bloom: Bloom | None = None
    size_bytes: int = 0
    dirty: bool = True

    def whole(self) -> pa.BinaryArray:
        if len(self.ids) > 1:
            self.ids = [pa.concat_arrays(self.ids)]
        return self.ids[0]

    def add(self, ids: pa.BinaryArray, hashes: Hashes) -> None:
        self.ids.append(ids)
        self.hashes.append(np.sort(hashes))
        if len(self.hashes) > RUNS_MAX:
            self.hashes = [np.sort(np.concatenate(self.hashes))]
        self.size_bytes += _size(ids)
        self.dirty = True
        if self.bloom is not None:
            self.bloom.add(hashes)

    def maybe(self, hashes: Hashes) -> Bools:
        """Whose ids may be here, shape (n,): by the filter, then by the hashes, which nearly never err."""
        if self.bloom is None:  # most buckets are never asked
            self.bloom = Bloom()
            self.bloom.add(np.concatenate(self.hashes))
        found = self.bloom.hits(hashes)
        rows = np.flatnonzero(found)
        wanted = hashes[rows]
        there: Bools = np.zeros(len(rows), dtype=np.bool_)
        for run in self.hashes:
            there |= run[np.minimum(np.searchsorted(run, wanted), len(run) - 1)] == wanted
        found[rows] = there
        return found


@dataclass(slots=True)
class Dedupe:
    """The ids of one split."""

    record_id: Expr
    horizon: TimeHorizon | PositionHorizon
    topic: Topics = None
    _buckets: dict[int, _Bucket] = field(default_factory=dict)
    _over_all: Bloom = field(default_factory=Bloom)
    _dropped: int = 0
    """Ids in `_over_all` that have expired since it was built."""
    _highest: int = MIN_TIME
    size_bytes: int = 0
    """Of the ids, as a snapshot has them."""
    _written: set[str] = field(default_factory=set)
    _written_highest: int = MIN_TIME

    # --- judging ------------------------------------------------------------------------------------------------------

    def told_apart(self, batch: pa.RecordBatch) -> tuple[Bools, list[Failure]]:
        """Which rows are no repeats, shape (n,), whose ids are remembered; and those on which the expression fails (DD4)."""
        ids, failures = self._ids(batch)
        rows = np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False))
        out: Bools = np.ones(batch.num_rows, dtype=np.bool_)
        at = batch.column(TS if isinstance(self.horizon, TimeHorizon) else POS).to_numpy()
        seen = np.maximum.accumulate(np.concatenate(([self._highest], at)))
        if len(rows):
            known = ids if len(rows) == len(ids) else ids.drop_null()
            out[rows] = self._judge(
                known, murmur2_column(known), at[rows] // self._width, self._oldest(seen[:-1])[rows]
            )
        self._highest = int(seen[-1])
        self._expire(int(self._oldest(seen[-1:])[0]))
        return out, failures

    def _judge(self, ids: pa.BinaryArray, hashes: Hashes, buckets: Int64s, oldest: Int64s) -> Bools:
        """All at once where no expiry falls between an id and its repeat; else run by run of equal `oldest`."""
        codes = ids.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        home = self._home(ids, hashes, int(oldest[0]))
        between = home.max(initial=MIN_TIME) != MIN_TIME and bool(((home >= oldest[0]) & (home < oldest[-1])).any())
        between = between or (int(codes.max()) + 1 < len(codes) and bool((buckets < oldest[-1]).any()))
        if between and oldest[0] != oldest[-1]:
            cuts = np.flatnonzero(np.diff(oldest)) + 1
            parts = np.split(np.arange(len(oldest)), cuts)
            return np.concatenate([self._judge(ids.take(pa.array(p)), hashes[p], buckets[p], oldest[p]) for p in parts])
        fresh: Bools = (home == MIN_TIME) & ~_repeated(codes, buckets >= oldest)
        self._remember(ids, hashes, buckets, fresh & (buckets >= oldest))
        return fresh

    def _home(self, ids: pa.BinaryArray, hashes: Hashes, oldest: int) -> Int64s:
        """The bucket that has each id, shape (n,); MIN_TIME for none at or above `oldest`."""
        home = np.full(len(ids), MIN_TIME, dtype=np.int64)
        open_rows = np.flatnonzero(self._over_all.hits(hashes))
        for number in sorted(self._buckets, reverse=True):
            if not len(open_rows):
                break
            if number < oldest:
                continue
            bucket = self._buckets[number]
            maybe = open_rows[bucket.maybe(hashes[open_rows])]
            if len(maybe):
                there = pc.is_in(ids.take(pa.array(maybe)), value_set=bucket.whole()).to_numpy(zero_copy_only=False)
                home[maybe[there]] = number
                open_rows = np.setdiff1d(open_rows, maybe[there], assume_unique=True)
        return home

    def _remember(self, ids: pa.BinaryArray, hashes: Hashes, buckets: Int64s, mask: Bools) -> None:
        rows = np.flatnonzero(mask)
        if not len(rows):
            return
        rows = rows[np.argsort(buckets[rows], kind="stable")]
        ordered = ids.take(pa.array(rows))
        numbers, starts = np.unique(buckets[rows], return_index=True)
        ends = [*starts[1:].tolist(), len(rows)]
        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
            bucket = self._buckets.setdefault(number, _Bucket())
            before = bucket.size_bytes
            bucket.add(ordered.slice(start, end - start), hashes[rows[start:end]])
            self.size_bytes += bucket.size_bytes - before
        self._over_all.add(hashes[rows])

    def _ids(self, batch: pa.RecordBatch) -> tuple[pa.BinaryArray, list[Failure]]:
        """Canonical bytes of each row's id, null where it has none or fails (DD4)."""
        expr = self.record_id
        at = batch.schema.get_field_index(expr.names[0]) if isinstance(expr, FieldPath) and len(expr.names) == 1 else -1
        if at >= 0 and not batch.column(at).null_count:
            return canonical_column(batch.column(at), batch.schema.field(at)), []
        found = evaluated(expr, batch, self.topic)
        if not found.array.null_count and not found.errors and not is_tagged(found.field):
            return canonical_column(found.array, found.field), []
        keys = [None if v is None or v is MISSING else canonical_key(v) for v in found.values()]
        for row in found.errors:
            keys[row] = None
        return pa.array(keys, type=pa.binary()), found.failures("")

    # --- expiry -------------------------------------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        return BUCKET_MS if isinstance(self.horizon, TimeHorizon) else POSITIONS_A_BUCKET

    def _oldest(self, highest: Int64s) -> Int64s:
        """The first bucket that counts, by the highest time or position so far (DD1)."""
        span = self.horizon.duration_ms if isinstance(self.horizon, TimeHorizon) else self.horizon.positions
        return np.where(highest == MIN_TIME, MIN_TIME, (highest - span) // self._width)

    def _expire(self, oldest: int) -> None:
        for number in [n for n in self._buckets if n < oldest]:
            gone = self._buckets.pop(number)
            self._dropped += sum(len(a) for a in gone.ids)
            self.size_bytes -= gone.size_bytes
        if self._dropped > self._over_all.added // 2:
            self._over_all, self._dropped = Bloom(), 0
            for bucket in self._buckets.values():
                self._over_all.add(np.concatenate(bucket.hashes))

    # --- snapshot -----------------------------------------------------------------------------------------------------

    def snapshot(self, part: StatePart) -> dict[StatePart, bytes | None]:
        """Parts that changed (DD3); names begin with `<part>#`."""
        small = sum(b.size_bytes for b in self._buckets.values()) <= ONE_PART_BYTES_MAX
        dirty = {n for n, b in self._buckets.items() if b.dirty}
        wanted = {_ALL} if small else {str(n) for n in self._buckets}
        gone = self._written - wanted
        out: dict[StatePart, bytes | None] = {StatePart(f"{part}#{name}"): None for name in sorted(gone)}
        if small and (dirty or gone or _ALL not in self._written):
            out[StatePart(f"{part}#{_ALL}")] = self._encode(sorted(self._buckets))
        elif not small:
            for number in sorted(self._buckets):
                if number in dirty or str(number) not in self._written:
                    out[StatePart(f"{part}#{number}")] = self._encode([number])
        if self._highest != self._written_highest:
            out[StatePart(f"{part}#{_HEAD}")] = _CODEC.encode(StoredPart(self._highest))
            self._written_highest = self._highest
        self._written = wanted
        for number in dirty:
            self._buckets[number].dirty = False
        return out

    def _encode(self, numbers: list[int]) -> bytes:
        stored = tuple(_stored(n, self._buckets[n].whole()) for n in numbers)
        return _CODEC.encode(StoredPart(buckets=stored))

    def restore(self, parts: Mapping[StatePart, bytes]) -> None:
        """Remember what the parts of one split say."""
        for name, data in parts.items():
            stored = _CODEC.decode(data)
            kind = name.rpartition("#")[2]
            if kind == _HEAD:
                self._highest = self._written_highest = stored.highest
                continue
            self._written.add(kind)
            for bucket in stored.buckets:
                ids = _restored(bucket)
                hashes = murmur2_column(ids)
                self._buckets[bucket.bucket] = _Bucket([ids], [np.sort(hashes)], None, _size(ids), dirty=False)
                self._over_all.add(hashes)
                self.size_bytes += _size(ids)


def _repeated(codes: npt.NDArray[np.int32], remembered: Bools) -> Bools:
    """Which rows have an earlier one of the same code that is remembered, shape (n,)."""
    first = np.full(int(codes.max()) + 1, len(codes), dtype=np.int64)
    rows = np.flatnonzero(remembered)[::-1]
    first[codes[rows]] = rows
    repeated: Bools = first[codes] < np.arange(len(codes))
    return repeated


def _size(ids: pa.BinaryArray) -> int:
    return int(pc.sum(pc.binary_length(ids)).as_py() or 0) + 4 * len(ids)


def _stored(number: int, ids: pa.BinaryArray) -> StoredIds:
    lengths = pc.binary_length(ids).to_numpy(zero_copy_only=False).astype("<i4")
    return StoredIds(number, lengths.tobytes(), b"".join(ids.to_pylist()))


def _restored(stored: StoredIds) -> pa.BinaryArray:
    lengths = np.frombuffer(stored.lengths, dtype="<i4").astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(stored.data)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)
