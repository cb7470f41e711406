"""The first operator of a source's task: records to rows with event time, watermark and order key.

Per split, in the order of its records: decode; event time; `maxEventTimeJump`; dedupe by record id; the split's watermark before each
record. All of it is a function of the split's records alone (and of a script's steps): batches, tasks and restarts change nothing.

Rules:

- SF1 What a later stage drops has moved the watermark (D4); what is dead-lettered here has not, nor a repeat that is dropped here. Repeats
  that may come in any split are dropped behind the watermarks (`dedupe.py`, DD2): each is a record of the split in which it comes, and
  moves its watermark.
- SF2 The task's watermark is the minimum over its splits (W3): idle and finished ones are left out, a split without data holds it at
  MIN_TIME. It never falls: a split that comes back behind it is *away*, its rows carry AWAY, until its own watermark has
  reached the highest that the receivers reported after reading its return (`on_receivers`).
- SF3 State lies by split (`split:<id>`), and only what changed is written; another task can go on with it.
- SF4 No Python object per record for declared fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Final, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.stages import KafkaSource
from tidemark.shared.model.formats import SPLIT_STATE, Codec
from tidemark.shared.model.held import SplitHeld
from tidemark.shared.model.ids import SplitId, StatePart, split_part
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.model.values import Binary
from tidemark.shared.operators.base import ARRIVAL, AWAY, GROUP, KEY, PART, POS, RAW, SRCKEY, TS, WM, OperatorError, Out
from tidemark.shared.operators.batches import int64s, select, with_column
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.dead_letters import Failure, Origin, dead_letters
from tidemark.shared.operators.decode import Bad, Decoded, decode
from tidemark.shared.operators.dedupe import SplitIds, check_size, record_ids
from tidemark.shared.operators.event_time import event_times, rows_of
from tidemark.shared.operators.keygroups import key_groups
from tidemark.shared.operators.record_keys import unfit_keys
from tidemark.shared.operators.specs import FrontSpec
from tidemark.shared.operators.watermarks import (
    SplitClock,
    accept,
    advance,
    held_behind,
    merged,
    raise_to,
    watermark_of,
)

Status = Literal["active", "idle", "finished"]
_RUN: Final = "__run"
"""int32, within the front alone: which of the splits in hand a row is of."""
JUMP: tuple[str, str] = ("The event time is further ahead than maxEventTimeJump.", "EventTimeJump")


class RawRecords(Protocol):
    """Records of one split as fetched, in order (`tidemark.shared.ports.source.RawBatch` is one)."""

    @property
    def split(self) -> SplitId:
        """The split."""

    @property
    def partition(self) -> int:
        """Its ordinal."""

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """Shape (n,)."""

    @property
    def timestamps_ms(self) -> npt.NDArray[np.int64]:
        """Shape (n,): arrival."""

    @property
    def values(self) -> pa.BinaryArray:
        """Shape (n,)."""

    @property
    def keys(self) -> pa.BinaryArray | None:
        """Shape (n,), if the source has keys."""

    @property
    def unread(self) -> Mapping[int, str]:
        """Why a value is no record but the bytes of one that could not be read, by row."""

    @property
    def file(self) -> str:
        """The file that they are of, or nothing."""

    @property
    def file_begin(self) -> int:
        """Where it begins among the orders."""

    @property
    def orders(self) -> npt.NDArray[np.int64] | None:
        """Shape (n,): what orders them among those of the split, if it is not the positions."""


class SplitState(msgspec.Struct):
    """What a split has in the snapshot, besides its ids."""

    ordinal: int
    clock: SplitClock
    status: Status = "active"
    away: bool = False
    """It came back from idleness behind the task's watermark (SF2)."""
    catch_up_ms: int | None = None
    """What its watermark has to reach to be away no longer; None until the receivers have reported."""


_CODEC: Final[Codec[SplitState]] = Codec(SPLIT_STATE, SplitState)


@dataclass(slots=True)
class _Split:
    state: SplitState
    ids: SplitIds | None
    dirty: bool = True
    returns: int = 0
    """How often it has come back from idleness since the task's start."""


@dataclass(slots=True)
class Counts:
    """Totals since the task's start."""

    records: int = 0
    undecoded: int = 0
    no_time: int = 0
    jumps: int = 0
    duplicates: int = 0
    behind: int = 0

    def by_name(self) -> dict[str, int]:
        """For `stats`."""
        return {
            "records": self.records, "undecoded": self.undecoded, "noEventTime": self.no_time,
            "eventTimeJumps": self.jumps, "duplicates": self.duplicates, "behindWatermark": self.behind,
        }  # fmt: skip


@dataclass(slots=True)
class SourceFront:
    """The front of one source task. Calls come one at a time; `assign` first, after `restore`."""

    spec: FrontSpec
    context: TaskContext = NOWHERE
    _splits: dict[SplitId, _Split] = field(default_factory=dict)
    _watermark: int = MIN_TIME
    _counts: Counts = field(default_factory=Counts)
    _restored: dict[StatePart, bytes] = field(default_factory=dict)

    # --- splits -------------------------------------------------------------------------------------------------------

    def assign(self, splits: Mapping[SplitId, int]) -> None:
        """These splits (with their ordinals) are this task's from now on; a new one holds the watermark back, never lowers it (W2)."""
        for split, ordinal in splits.items():
            if split not in self._splits:
                self._splits[split] = self._open(split, ordinal)

    def on_status(self, split: SplitId, status: Status) -> None:
        """The driver says that a split has become idle (W4), is active again, or is read to its end (E1)."""
        held = self._held(split)
        if held.state.status == status:
            return
        if status == "active" and held.state.status == "idle":
            self._back(held)
        held.state.status = status
        held.dirty = True
        self._derive()

    def on_receivers(self, split: SplitId, highest_ms: int) -> None:
        """The highest watermark that a receiver reported after it had read the split's return (SF2)."""
        held = self._held(split)
        if held.state.away:
            held.state.catch_up_ms = highest_ms
            held.dirty = True
            self._caught_up(held)

    def raise_watermark(self, split: SplitId | None, time_ms: int) -> None:
        """A script raises the watermark of one split, or of all (D2); that ends its idleness (D3)."""
        for each in list(self._splits) if split is None else [split]:
            held = self._held(each)
            self.on_status(each, "active")
            raise_to(held.state.clock, time_ms)
            held.dirty = True
            self._caught_up(held)
        self._derive()

    def returned(self) -> Mapping[SplitId, int]:
        """Splits that are away, for whom the driver has to watch the receivers, each with the number of its return."""
        return {s: h.returns for s, h in self._splits.items() if h.state.away and h.state.catch_up_ms is None}

    def away(self) -> tuple[SplitId, ...]:
        """Splits that are away: their rows travel as such."""
        return tuple(s for s, held in self._splits.items() if held.state.away)

    # --- records ------------------------------------------------------------------------------------------------------

    def on_records(self, *gathered: RawRecords) -> list[Out]:
        """Rows on port `out`, dead letters on `dlq`. Records of many splits go together: what a batch costs is not paid for each split."""
        outs: list[Out] = []
        for _, alike in groupby(gathered, lambda raw: (raw.file, raw.file_begin)):
            outs += self._together(list(alike))
        self._derive()
        return outs

    def _together(self, gathered: Sequence[RawRecords]) -> list[Out]:
        """Records of one file, or of none: what looks at the records before is done run by run, a run being a split's."""
        raw = _joined(gathered)
        held = [self._held(split) for split in raw.splits]
        for split, each in zip(raw.splits, held, strict=True):
            if each.state.status == "idle":
                self.on_status(split, "active")
            each.dirty = True
        self._counts.records += len(raw.positions)
        origin = raw.origin
        decoded = _decoded(raw, self.spec)
        letters = self._undecoded(raw, decoded, origin)
        batch = _with_engine(decoded, raw)
        for narrowed in (self._keyed, self._timed):
            batch, more = narrowed(batch, origin)
            letters += more
        for narrowed_by in (self._believed, self._distinct):
            batch, more = narrowed_by(held, batch, origin)
            letters += more
        batch = self._judged(raw.splits, held, batch)
        return [*([Out(OUT, "rows", batch)] if batch.num_rows else []), *letters]

    def _judged(self, splits: Sequence[SplitId], held: Sequence[_Split], batch: pa.RecordBatch) -> pa.RecordBatch:
        """With the split's watermark before each row, and a mark on rows of splits that are away."""
        times = batch.column(TS).to_numpy()
        before = np.empty(len(times), dtype=np.int64)
        away = np.zeros(len(times), dtype=np.bool_)
        for split, each, (begin, end) in zip(splits, held, _runs(batch, len(held)), strict=True):
            try:
                before[begin:end] = advance(each.state.clock, times[begin:end], self.spec.source.watermark)
            except OperatorError as e:
                raise OperatorError(f"split {split}: {e}") from e
            if each.state.away:
                away[begin:end] = True
                self._caught_up(each)
        self._counts.behind += int((times < before).sum())
        batch = with_column(batch.drop_columns([_RUN]), WM, pa.array(before, type=pa.int64()))
        return with_column(batch, AWAY, pa.array(away)) if away.any() else batch

    def _undecoded(self, raw: "_Joined", decoded: Decoded, origin: Origin | None) -> list[Out]:
        if not decoded.bad:
            return []
        self._counts.undecoded += len(decoded.bad)
        rows = pa.array([bad.row for bad in decoded.bad], type=pa.int64())
        shown = with_column(_engine(raw, rows), RAW, pa.array([bad.document for bad in decoded.bad], pa.binary()))
        failures = [_failure(i, bad, raw.values) for i, bad in enumerate(decoded.bad)]
        return dead_letters(shown, failures, self._operator, self.context, origin)

    def _keyed(self, batch: pa.RecordBatch, origin: Origin | None) -> tuple[pa.RecordBatch, list[Out]]:
        """Without the records whose key is none of `keyFormat`, but for `keyFormatError: passThrough`."""
        source = self.spec.source
        if not isinstance(source, KafkaSource) or source.key_format_error != "dlq" or SRCKEY not in batch.schema.names:
            return batch, []
        failures = unfit_keys(batch.column(SRCKEY), source.key_format)
        if not failures:
            return batch, []
        self._counts.undecoded += len(failures)
        letters = dead_letters(batch, failures, self._operator, self.context, origin)
        return select(batch, ~rows_of(failures, batch.num_rows)), letters

    def _timed(self, batch: pa.RecordBatch, origin: Origin | None) -> tuple[pa.RecordBatch, list[Out]]:
        expr = self.spec.source.time_field
        if expr is None:
            return batch, []
        times, failures = event_times(batch, expr, self.context.topic)
        self._counts.no_time += len(failures)
        letters = dead_letters(batch, failures, self._operator, self.context, origin)
        batch = with_column(batch, TS, pa.array(times))
        return (select(batch, ~rows_of(failures, batch.num_rows)) if failures else batch), letters

    def _believed(
        self, held: Sequence[_Split], batch: pa.RecordBatch, origin: Origin | None
    ) -> tuple[pa.RecordBatch, list[Out]]:
        jump_ms = self.spec.source.max_event_time_jump_ms
        if jump_ms is None:
            return batch, []
        times = batch.column(TS).to_numpy()
        taken = np.ones(len(times), dtype=np.bool_)
        for each, (begin, end) in zip(held, _runs(batch, len(held)), strict=True):
            taken[begin:end] = accept(each.state.clock, times[begin:end], jump_ms)
        if bool(taken.all()):
            return batch, []
        failures = [Failure(int(row), *JUMP, path="maxEventTimeJump") for row in np.flatnonzero(~taken)]
        self._counts.jumps += len(failures)
        return select(batch, taken), dead_letters(batch, failures, self._operator, self.context, origin)

    def _distinct(
        self, held: Sequence[_Split], batch: pa.RecordBatch, origin: Origin | None
    ) -> tuple[pa.RecordBatch, list[Out]]:
        if self.spec.source.record_id is None:
            return batch, []
        if self.spec.key_groups:
            return self._with_ids(self.spec.source.record_id, batch, origin)
        kept = np.ones(batch.num_rows, dtype=np.bool_)
        failures: list[Failure] = []
        for each, (begin, end) in zip(held, _runs(batch, len(held)), strict=True):
            if each.ids is not None and begin < end:
                kept[begin:end], failed = each.ids.told_apart(batch.slice(begin, end - begin))
                failures += [replace(failure, row=begin + failure.row) for failure in failed]
                size_bytes = sum(held.ids.size_bytes for held in self._splits.values() if held.ids is not None)
                check_size(size_bytes, self.context, self.spec.source.path)
        self._counts.duplicates += int((~kept).sum())
        letters = dead_letters(batch, failures, self._operator, self.context, origin)
        if failures:
            kept = kept & ~rows_of(failures, batch.num_rows)
        return (batch if kept.all() else select(batch, kept)), letters

    def _with_ids(self, expr: Expr, batch: pa.RecordBatch, origin: Origin | None) -> tuple[pa.RecordBatch, list[Out]]:
        """With KEY and GROUP; rows without an id go to any task."""
        ids, failures = record_ids(expr, batch, self.context.topic)
        letters = dead_letters(batch, failures, self._operator, self.context, origin)
        groups = key_groups(ids, self.spec.key_groups)
        if ids.null_count:
            anywhere = int64s(batch.column(POS)) % self.spec.key_groups
            groups = np.where(ids.is_null().to_numpy(zero_copy_only=False), anywhere, groups).astype(np.uint16)
        batch = with_column(with_column(batch, KEY, ids), GROUP, pa.array(groups))
        return (select(batch, ~rows_of(failures, batch.num_rows)) if failures else batch), letters

    # --- time ---------------------------------------------------------------------------------------------------------

    def output_watermark(self) -> int:
        """The minimum over the task's splits (SF2), ms."""
        return self._watermark

    def idle(self) -> bool:
        """Whether all splits that have not ended are idle (W3); true without splits."""
        return all(held.state.status != "active" for held in self._splits.values()) and not self.ended()

    def ended(self) -> bool:
        """Whether all splits, at least one, are read to their ends (E1)."""
        return bool(self._splits) and all(held.state.status == "finished" for held in self._splits.values())

    def split_watermarks(self) -> dict[SplitId, tuple[int, Status, bool]]:
        """By split: its own watermark (ms), its status, and whether it is away: for `explain-watermark`."""
        strategy = self.spec.source.watermark
        return {
            s: (watermark_of(h.state.clock, strategy), h.state.status, h.state.away) for s, h in self._splits.items()
        }

    def told_of(self, split: SplitId) -> SplitHeld:
        """Where a split stands: its watermark, and what a strategy reports. Its position is the driver's to add."""
        held, strategy = self._held(split), self.spec.source.watermark
        clock = held.state.clock
        return SplitHeld(
            position=-1,
            watermark=watermark_of(clock, strategy),
            status=held.state.status,
            topic=split.rpartition("-")[0] if isinstance(self.spec.source, KafkaSource) else None,
            away=held.state.away,
            lastEvent=None if clock.highest_ms == MIN_TIME else clock.highest_ms,
            delay=held_behind(clock, strategy),
            seen=clock.seen,
            late=clock.late,
        )

    def _derive(self) -> None:
        found = merged([(w, s == "idle", s == "finished") for w, s, _ in self.split_watermarks().values()])
        self._watermark = max(self._watermark, found)

    @staticmethod
    def _back(held: _Split) -> None:
        """Active again: the receivers may have gone ahead of it, by other splits or other tasks (SF2)."""
        held.state.away = True
        held.state.catch_up_ms = None
        held.returns += 1

    def _caught_up(self, held: _Split) -> None:
        state = held.state
        if state.away and state.catch_up_ms is not None:
            own = watermark_of(state.clock, self.spec.source.watermark)
            if own >= max(state.catch_up_ms, self._watermark):
                state.away, state.catch_up_ms = False, None

    # --- snapshot -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Mapping[StatePart, bytes | None]:
        """Parts of the splits that changed since the last one."""
        parts: dict[StatePart, bytes | None] = {}
        for split, held in self._splits.items():
            if held.dirty:
                parts[split_part(split)] = _CODEC.encode(held.state)
                held.dirty = False
            if held.ids is not None:
                parts.update(held.ids.snapshot(split_part(split)))
        return parts

    def restore(self, parts: Mapping[StatePart, bytes], watermark_ms: int = MIN_TIME) -> None:
        """Keep what the snapshot has for splits that `assign` will name; `watermark_ms`: the highest sent before (C6)."""
        self._restored = dict(parts)
        self._watermark = watermark_ms

    def counters(self) -> Mapping[str, int]:
        """Totals since the task's start."""
        return self._counts.by_name()

    def _open(self, split: SplitId, ordinal: int) -> _Split:
        part = split_part(split)
        stored = self._restored.pop(part, None)
        ids = None
        if self.spec.source.record_id is not None and not self.spec.key_groups:
            horizon = self.spec.source.record_id_horizon or self.spec.horizon
            ids = SplitIds(self.spec.source.record_id, horizon, self.context.topic)
            ids.restore({p: self._restored.pop(p) for p in list(self._restored) if p.startswith(f"{part}#")})
        if stored is None:
            return _Split(SplitState(ordinal, SplitClock()), ids)
        return _Split(_CODEC.decode(stored), ids, dirty=False)

    def _held(self, split: SplitId) -> _Split:
        held = self._splits.get(split)
        if held is None:
            raise OperatorError(f"records of split {split}, which this task was not assigned: {sorted(self._splits)}")
        return held

    @property
    def _operator(self) -> str:
        return "$source"


@dataclass(frozen=True, slots=True)
class _Joined:
    """Records of several splits, one behind the other; columns of equal length n."""

    splits: tuple[SplitId, ...]
    runs: npt.NDArray[np.int32]
    """Shape (n,), ascending: the place in `splits` of each record's."""
    parts: npt.NDArray[np.int32]
    """Shape (n,): the ordinals of the splits."""
    positions: npt.NDArray[np.int64]
    orders: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64]
    values: pa.BinaryArray
    keys: pa.BinaryArray | None
    unread: Mapping[int, str]
    origin: Origin | None


def _joined(gathered: Sequence[RawRecords]) -> _Joined:
    """What was gathered, split by split; the records of a split in their order."""
    by_split: dict[SplitId, list[RawRecords]] = {}
    for raw in gathered:
        by_split.setdefault(raw.split, []).append(raw)
    pieces = [(run, raw) for run, raws in enumerate(by_split.values()) for raw in raws]
    counts = np.array([len(raw.positions) for _, raw in pieces])
    begins = np.cumsum(counts) - counts
    first = gathered[0]
    keys = [_keys(raw) for _, raw in pieces] if any(raw.keys is not None for _, raw in pieces) else []
    return _Joined(
        splits=tuple(by_split),
        runs=np.repeat(np.array([run for run, _ in pieces], dtype=np.int32), counts),
        parts=np.repeat(np.array([raw.partition for _, raw in pieces], dtype=np.int32), counts),
        positions=_whole([raw.positions for _, raw in pieces]),
        orders=_whole([raw.positions if raw.orders is None else raw.orders for _, raw in pieces]),
        timestamps_ms=_whole([raw.timestamps_ms for _, raw in pieces]),
        values=pieces[0][1].values if len(pieces) == 1 else pa.concat_arrays([raw.values for _, raw in pieces]),
        keys=pa.concat_arrays(keys) if keys else None,
        unread={
            int(begin) + row: why
            for begin, (_, raw) in zip(begins, pieces, strict=True)
            for row, why in raw.unread.items()
        },
        origin=Origin(first.file, first.file_begin) if first.file else None,
    )


def _whole(pieces: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _keys(raw: RawRecords) -> pa.BinaryArray:
    return raw.keys.cast(pa.binary()) if raw.keys is not None else pa.nulls(len(raw.positions), pa.binary())


def _runs(batch: pa.RecordBatch, count: int) -> list[tuple[int, int]]:
    """Where each split's rows begin and end."""
    bounds = np.searchsorted(batch.column(_RUN).to_numpy(), np.arange(count + 1, dtype=np.int32)).tolist()
    return list(pairwise(bounds))


def _engine(raw: _Joined, rows: pa.Array | None) -> pa.RecordBatch:
    """Engine columns of all or some records: TS is the arrival until an event time is known."""
    columns = {
        TS: pa.array(raw.timestamps_ms, type=pa.int64()),
        PART: pa.array(raw.parts),
        POS: pa.array(raw.orders, type=pa.int64()),
        ARRIVAL: pa.array(raw.timestamps_ms, type=pa.int64()),
        _RUN: pa.array(raw.runs),
    }
    if raw.keys is not None:
        columns[SRCKEY] = raw.keys
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return batch if rows is None else batch.take(rows)


def _with_engine(decoded: Decoded, raw: _Joined) -> pa.RecordBatch:
    whole = len(decoded.rows) == len(raw.positions)
    engine = _engine(raw, None if whole else pa.array(decoded.rows))
    batch = decoded.batch
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *engine.columns], schema=pa.schema([*batch.schema, *engine.schema])
    )


def _decoded(raw: _Joined, spec: FrontSpec) -> Decoded:
    """Decode the records; those that the connector could not read are bad whatever their bytes look like."""
    if not raw.unread:
        return decode(raw.values, spec.source.schema, spec.reads)
    unread = np.zeros(len(raw.values), dtype=np.bool_)
    unread[list(raw.unread)] = True
    values = pc.if_else(pa.array(unread), pa.scalar(None, raw.values.type), raw.values)
    decoded = decode(values, spec.source.schema, spec.reads)
    why = raw.unread
    bad = tuple(
        Bad(each.row, f"The record does not decode: {why[each.row]}.", "DecodeFailure", "", None)
        if each.row in why
        else each
        for each in decoded.bad
    )
    return replace(decoded, bad=bad)


def _failure(row: int, bad: Bad, values: pa.BinaryArray) -> Failure:
    document = None if bad.document is not None else Binary(values[bad.row].as_py() or b"")
    return Failure(row, bad.reason, bad.code, bad.path, document=document)
