"""The first operator of a source's task: records to rows with event time, watermark and order key.

Per split, in the order of its records: decode; event time; `maxEventTimeJump`; dedupe by record id; the split's watermark before each
record. All of it is a function of the split's records alone (and of a script's steps): batches, tasks and restarts change nothing.

Rules:

- SF1 A row that a later stage drops has moved the watermark (D4). A dead letter of this operator has not, nor a dropped repeat. Repeats
  that may come in any split are dropped behind the watermarks (`dedupe.py`, DD2): each is a record of the split in which it comes, and
  moves its watermark.
- SF2 A split that comes back from idleness behind the task's watermark, or that is new to a running job, is *away*, and its rows carry
  AWAY, until its own watermark has reached the highest that the receivers reported after reading its return. The input machine
  (`shared/protocol/source`) names the splits that are away, as it names idle splits and the task's watermark (W3).
- SF3 State lies by split (`split:<id>`), and only changes are written; another task can go on with it.
- SF5 A record on the other side of `switchAt` (D16) is counted and dropped before it moves anything. The watermark of a split behind it
  begins there, for nothing earlier can follow: a partition that is silent does not hold up what history closes.
- SF6 Where positions are event times (a schedule), the watermark of a split is what the strategy would make of a record there: it goes on
  without one. So it is a function of positions, which a snapshot holds.
- SF4 No Python object per record for declared fields.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Final

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
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.splits import Noted, Status
from tidemark.shared.model.time import MIN_TIME, minus
from tidemark.shared.operators.base import ARRIVAL, AWAY, GROUP, KEY, PART, POS, RAW, SRCKEY, TS, WM, OperatorError, Out
from tidemark.shared.operators.batches import int64s, select, with_column
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.dead_letters import Cause, Failures, Origin, RowFailure, binaries, dead_letters
from tidemark.shared.operators.decode import Decoded, decode
from tidemark.shared.operators.dedupe import SplitIds, check_size, record_ids
from tidemark.shared.operators.event_time import event_times, no_event_time, rows_of
from tidemark.shared.operators.keygroups import key_groups
from tidemark.shared.operators.record_keys import unfit_keys
from tidemark.shared.operators.specs import FrontSpec
from tidemark.shared.operators.watermarks import SplitClock, accept, advance, held_behind, raise_to, watermark_of

_OPERATOR: Final = "$source"
_RUN: Final = "__run"
"""int32, within the front alone: which of the splits in hand a row is of."""
JUMP: tuple[str, str] = ("The event time is further ahead than maxEventTimeJump.", "EventTimeJump")


class SplitState(msgspec.Struct):
    """The part of a split's snapshot besides its ids."""

    ordinal: int
    clock: SplitClock
    status: Status = "active"
    away: bool = False
    """SF2; see `Noted`."""
    catch_up_ms: int | None = None


_CODEC: Final[Codec[SplitState]] = Codec(SPLIT_STATE, SplitState)


@dataclass(slots=True)
class _Judges:
    """The clock and the ids by which a split's records are judged."""

    ordinal: int
    clock: SplitClock
    ids: SplitIds | None


_COUNTS: Final = (
    "records",
    "undecoded",
    "noEventTime",
    "eventTimeJumps",
    "duplicates",
    "behindWatermark",
    "beyondSwitch",
)


@dataclass(slots=True)
class SourceFront:
    """The front of one source task. Calls come one at a time; `assign` first, after `restore`."""

    spec: FrontSpec
    context: TaskContext = NOWHERE
    _splits: dict[SplitId, _Judges] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    _restored: dict[StatePart, bytes] = field(default_factory=dict)

    # --- splits -------------------------------------------------------------------------------------------------------

    def assign(self, splits: Mapping[SplitId, int]) -> Mapping[SplitId, SplitState]:
        """These splits (with their ordinals) are this task's from now on; the state of those that are new, restored where there is one."""
        return {split: self._open(split, ordinal) for split, ordinal in splits.items() if split not in self._splits}

    def raise_to(self, splits: Collection[SplitId], time_ms: int) -> None:
        """A script raises their watermarks (D2)."""
        for split in splits:
            raise_to(self._held(split).clock, time_ms)

    def stand_at(self, positions: Mapping[SplitId, int]) -> Collection[SplitId]:
        """All below these was taken; the splits whose watermarks have gone on with it (SF6)."""
        source = self.spec.source
        if not source.keeps_time:
            return ()
        for split, position in positions.items():
            clock = self._held(split).clock
            raise_to(clock, minus(position, held_behind(clock, source.watermark)))
        return positions.keys()

    # --- records ------------------------------------------------------------------------------------------------------

    def on_records(self, *gathered: RawBatch, away: Collection[SplitId] = ()) -> list[Out]:
        """Rows on port `out`, dead letters on `dlq`. Records of many splits go together: the cost of a batch is not paid for each split.

        away: splits with rows that carry AWAY (SF2).
        """
        outs: list[Out] = []
        for _, alike in groupby(gathered, lambda raw: (raw.file, raw.file_begin)):
            outs += self._together(list(alike), away)
        return outs

    def _together(self, gathered: Sequence[RawBatch], away: Collection[SplitId]) -> list[Out]:
        """Records of one file, or of none. Steps that depend on earlier records go run by run, a run being a split's."""
        raw = _joined(gathered)
        held = [self._held(split) for split in raw.splits]
        self._counts["records"] += len(raw.positions)
        origin = raw.origin
        decoded = _decoded(raw, self.spec)
        letters = self._undecoded(raw, decoded, origin)
        batch = _with_engine(decoded, raw)
        for narrowed in (self._keyed, self._timed):
            batch, more = narrowed(batch, origin)
            letters += more
        batch = self._own_side(batch)
        for narrowed_by in (self._believed, self._distinct):
            batch, more = narrowed_by(held, batch, origin)
            letters += more
        batch = self._judged(raw.splits, held, batch, away)
        return [*([Out(OUT, "rows", batch)] if batch.num_rows else []), *letters]

    def _judged(
        self, splits: Sequence[SplitId], held: Sequence[_Judges], batch: pa.RecordBatch, away: Collection[SplitId]
    ) -> pa.RecordBatch:
        """With the split's watermark before each row, and a mark on rows of splits that are away."""
        times = batch.column(TS).to_numpy()
        before = np.empty(len(times), dtype=np.int64)
        apart = np.zeros(len(times), dtype=np.bool_)
        for split, each, (begin, end) in zip(splits, held, _runs(batch, len(held)), strict=True):
            try:
                before[begin:end] = advance(each.clock, times[begin:end], self.spec.source.watermark)
            except OperatorError as e:
                raise OperatorError(f"split {split}: {e}") from e
            apart[begin:end] = split in away
        self._counts["behindWatermark"] += int((times < before).sum())
        batch = with_column(batch.drop_columns([_RUN]), WM, pa.array(before, type=pa.int64()))
        return with_column(batch, AWAY, pa.array(apart)) if apart.any() else batch

    def _undecoded(self, raw: "_Joined", decoded: Decoded, origin: Origin | None) -> list[Out]:
        if not len(decoded.bad):
            return []
        self._counts["undecoded"] += len(decoded.bad)
        bad = decoded.bad
        rows = pa.array(bad.rows)
        shown = with_column(_engine(raw, rows), RAW, bad.documents)
        given: pa.BinaryArray | None = None
        if bad.documents.null_count:
            unread = bad.documents.is_null()
            texts = binaries(raw.values.take(rows.filter(unread)).cast(pa.binary()).fill_null(b""))
            given = pc.replace_with_mask(pa.nulls(len(bad), pa.binary()), unread, texts)
        failures = Failures(np.arange(len(bad)), bad.causes, bad.places, given)
        return dead_letters(shown, failures, _OPERATOR, self.context, origin)

    def _keyed(self, batch: pa.RecordBatch, origin: Origin | None) -> tuple[pa.RecordBatch, list[Out]]:
        """Without the records that have a key which is not of `keyFormat`, but for `keyFormatError: passThrough`."""
        source = self.spec.source
        if not isinstance(source, KafkaSource) or source.key_format_error != "dlq" or SRCKEY not in batch.schema.names:
            return batch, []
        failures = unfit_keys(batch.column(SRCKEY), source.key_format)
        if not failures:
            return batch, []
        self._counts["undecoded"] += len(failures)
        letters = dead_letters(batch, failures, _OPERATOR, self.context, origin)
        return select(batch, ~rows_of(failures, batch.num_rows)), letters

    def _timed(self, batch: pa.RecordBatch, origin: Origin | None) -> tuple[pa.RecordBatch, list[Out]]:
        expr = self.spec.source.time_field
        if expr is not None:
            times, failures = event_times(batch, expr, self.context.topic)
        elif isinstance(self.spec.source, KafkaSource):  # others give the time of arrival, or of a file's change
            times = batch.column(TS).to_numpy()
            failures = no_event_time(times)
        else:
            return batch, []
        self._counts["noEventTime"] += len(failures)
        letters = dead_letters(batch, failures, _OPERATOR, self.context, origin)
        batch = with_column(batch, TS, pa.array(times))
        return (select(batch, ~rows_of(failures, batch.num_rows)) if failures else batch), letters

    def _own_side(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        begin_ms, end_ms = self.spec.source.from_ms, self.spec.source.before_ms
        if begin_ms is None and end_ms is None:
            return batch
        times = batch.column(TS).to_numpy()
        own = np.ones(len(times), dtype=np.bool_)
        if begin_ms is not None:
            own &= times >= begin_ms
        if end_ms is not None:
            own &= times < end_ms
        self._counts["beyondSwitch"] += int((~own).sum())
        return batch if own.all() else select(batch, own)

    def _believed(
        self, held: Sequence[_Judges], batch: pa.RecordBatch, origin: Origin | None
    ) -> tuple[pa.RecordBatch, list[Out]]:
        jump_ms = self.spec.source.max_event_time_jump_ms
        if jump_ms is None:
            return batch, []
        times = batch.column(TS).to_numpy()
        taken = np.ones(len(times), dtype=np.bool_)
        for each, (begin, end) in zip(held, _runs(batch, len(held)), strict=True):
            taken[begin:end] = accept(each.clock, times[begin:end], jump_ms)
        if bool(taken.all()):
            return batch, []
        failures = Failures.alike(np.flatnonzero(~taken), Cause(*JUMP, path="maxEventTimeJump"))
        self._counts["eventTimeJumps"] += len(failures)
        return select(batch, taken), dead_letters(batch, failures, _OPERATOR, self.context, origin)

    def _distinct(
        self, held: Sequence[_Judges], batch: pa.RecordBatch, origin: Origin | None
    ) -> tuple[pa.RecordBatch, list[Out]]:
        if self.spec.source.record_id is None:
            return batch, []
        if self.spec.key_groups:
            return self._with_ids(self.spec.source.record_id, batch, origin)
        kept = np.ones(batch.num_rows, dtype=np.bool_)
        failures: list[RowFailure] = []
        for each, (begin, end) in zip(held, _runs(batch, len(held)), strict=True):
            if each.ids is not None and begin < end:
                kept[begin:end], failed = each.ids.told_apart(batch.slice(begin, end - begin))
                failures += [failure._replace(row=begin + failure.row) for failure in failed]
                size_bytes = sum(held.ids.size_bytes for held in self._splits.values() if held.ids is not None)
                check_size(size_bytes, self.context, self.spec.source.path)
        self._counts["duplicates"] += int((~kept).sum())
        letters = dead_letters(batch, failures, _OPERATOR, self.context, origin)
        if failures:
            kept = kept & ~rows_of(failures, batch.num_rows)
        return (batch if kept.all() else select(batch, kept)), letters

    def _with_ids(self, expr: Expr, batch: pa.RecordBatch, origin: Origin | None) -> tuple[pa.RecordBatch, list[Out]]:
        """With KEY and GROUP; rows without an id go to any task."""
        ids, failures = record_ids(expr, batch, self.context.topic)
        letters = dead_letters(batch, failures, _OPERATOR, self.context, origin)
        groups = key_groups(ids, self.spec.key_groups)
        if ids.null_count:
            anywhere = int64s(batch.column(POS)) % self.spec.key_groups
            groups = np.where(ids.is_null().to_numpy(zero_copy_only=False), anywhere, groups).astype(np.uint16)
        batch = with_column(with_column(batch, KEY, ids), GROUP, pa.array(groups))
        return (select(batch, ~rows_of(failures, batch.num_rows)) if failures else batch), letters

    # --- time ---------------------------------------------------------------------------------------------------------

    def watermarks(self, splits: Iterable[SplitId]) -> dict[SplitId, int]:
        """The splits' own, behind all of their records (W2), ms."""
        strategy = self.spec.source.watermark
        return {split: watermark_of(self._held(split).clock, strategy) for split in splits}

    def told_of(self, split: SplitId, held: SplitHeld) -> SplitHeld:
        """Where a split stands, with the report of its strategy."""
        if (judged := self._splits.get(split)) is None:
            return held
        clock = judged.clock
        return msgspec.structs.replace(
            held,
            topic=split.rpartition("-")[0] if isinstance(self.spec.source, KafkaSource) else None,
            lastEvent=None if clock.highest_ms == MIN_TIME else clock.highest_ms,
            delay=held_behind(clock, self.spec.source.watermark),
            keepsTime=self.spec.source.keeps_time,
            seen=clock.seen,
            late=clock.late,
        )

    # --- snapshot -----------------------------------------------------------------------------------------------------

    def snapshot(self, changed: Mapping[SplitId, Noted]) -> Mapping[StatePart, bytes | None]:
        """Parts of these splits, and of ids that changed since the last one."""
        parts: dict[StatePart, bytes | None] = {}
        for split, judged in self._splits.items():
            if (standing := changed.get(split)) is not None:
                state = SplitState(judged.ordinal, judged.clock, standing.status, standing.away, standing.catch_up_ms)
                parts[split_part(split)] = _CODEC.encode(state)
            if judged.ids is not None:
                parts.update(judged.ids.snapshot(split_part(split)))
        return parts

    def restore(self, parts: Mapping[StatePart, bytes]) -> None:
        """Keep the snapshot's state for splits that `assign` will name."""
        self._restored = dict(parts)

    def counters(self) -> Mapping[str, int]:
        """Totals since the task's start."""
        return dict(self._counts)

    def _open(self, split: SplitId, ordinal: int) -> SplitState:
        part = split_part(split)
        stored = self._restored.pop(part, None)
        ids = None
        if self.spec.source.record_id is not None and not self.spec.key_groups:
            horizon = self.spec.source.record_id_horizon or self.spec.horizon
            ids = SplitIds(self.spec.source.record_id, horizon, self.context.topic)
            ids.restore({p: self._restored.pop(p) for p in list(self._restored) if p.startswith(f"{part}#")})
        state = SplitState(ordinal, SplitClock()) if stored is None else _CODEC.decode(stored)
        if self.spec.source.from_ms is not None:
            raise_to(state.clock, self.spec.source.from_ms)
        self._splits[split] = _Judges(state.ordinal, state.clock, ids)
        return state

    def _held(self, split: SplitId) -> _Judges:
        held = self._splits.get(split)
        if held is None:
            raise OperatorError(f"records of split {split}, which this task was not assigned: {sorted(self._splits)}")
        return held


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


def _joined(gathered: Sequence[RawBatch]) -> _Joined:
    """The gathered batches, split by split; the records of a split in their order."""
    by_split: dict[SplitId, list[RawBatch]] = {}
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


def _keys(raw: RawBatch) -> pa.BinaryArray:
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
    """Decode the records. Those that the connector could not read are bad, whatever their bytes."""
    if not raw.unread:
        return decode(raw.values, spec.source.schema, spec.reads)
    unread = np.zeros(len(raw.values), dtype=np.bool_)
    unread[list(raw.unread)] = True
    values = pc.if_else(pa.array(unread), pa.scalar(None, raw.values.type), raw.values)
    decoded = decode(values, spec.source.schema, spec.reads)
    causes = [Cause(f"The record does not decode: {why}.", "DecodeFailure") for why in raw.unread.values()]
    places, bad = decoded.bad.places.copy(), decoded.bad
    places[np.searchsorted(bad.rows, list(raw.unread))] = len(bad.causes) + np.arange(len(causes))
    return replace(decoded, bad=replace(bad, causes=[*bad.causes, *causes], places=places))
