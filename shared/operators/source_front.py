"""The first operator of a source's task: records to rows with event time, watermark and order key.

Per split, in the order of its records: decode; event time; `maxEventTimeJump`; dedupe by record id; the split's watermark before each
record. All of it is a function of the split's records alone (and of a script's steps): batches, tasks and restarts change nothing.

Rules:

- SF1 What a later stage drops has moved the watermark (D4); what is dead-lettered here, and a repeated record, has not.
- SF2 The task's watermark is the minimum over its splits (W3): idle and finished ones are left out, a split without data holds it at
  MIN_TIME. It never falls: a split that comes back behind it is *away*, its rows carry AWAY, until its own watermark has
  reached the highest that the receivers reported after reading its return (`on_receivers`).
- SF3 State lies by split (`split:<id>`), and only what changed is written; another task can go on with it.
- SF4 No Python object per record for declared fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shared.language.schema import Schema
from shared.language.stages import KafkaSource
from shared.model.held import SplitHeld
from shared.model.ids import SplitId, StatePart, split_part
from shared.model.plan import OUT
from shared.model.time import MIN_TIME
from shared.model.values import Binary
from shared.operators.base import ARRIVAL, AWAY, PART, POS, SRCKEY, TS, WM, Out
from shared.operators.batches import select, with_column
from shared.operators.context import NOWHERE, TaskContext
from shared.operators.dead_letters import Failure, Origin, dead_letters
from shared.operators.decode import Bad, Decoded, decode
from shared.operators.dedupe import Dedupe
from shared.operators.errors import OperatorError
from shared.operators.event_time import event_times, rows_of
from shared.operators.record_keys import unfit_keys
from shared.operators.specs import FrontSpec
from shared.operators.split_clock import SplitClock
from shared.operators.watermarks import accept, advance, held_behind, merged, raise_to, watermark_of

Status = Literal["active", "idle", "finished"]
JUMP: tuple[str, str] = ("The event time is further ahead than maxEventTimeJump.", "EventTimeJump")


class RawRecords(Protocol):
    """Records of one split as fetched, in order (`shared.ports.source.RawBatch` is one)."""

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


@dataclass(slots=True)
class _Split:
    state: SplitState
    ids: Dedupe | None
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

    def on_records(self, raw: RawRecords) -> list[Out]:
        """Rows on port `out`, dead letters on `dlq`."""
        held = self._held(raw.split)
        if held.state.status == "idle":
            self.on_status(raw.split, "active")
        held.dirty = True
        self._counts.records += len(raw.positions)
        origin = Origin(raw.file, raw.file_begin) if raw.file else None
        decoded = _decoded(raw, self.spec.source.schema)
        letters = self._undecoded(raw, decoded, origin)
        batch = _with_engine(decoded, raw)
        batch, more = self._keyed(batch, origin)
        letters += more
        batch, more = self._timed(batch, origin)
        letters += more
        batch, more = self._believed(held, batch, origin)
        letters += more
        batch, more = self._distinct(held, batch, origin)
        letters += more
        times = batch.column(TS).to_numpy()
        strategy = self.spec.source.watermark
        try:
            before = advance(held.state.clock, times, strategy)
        except OperatorError as e:
            raise OperatorError(f"split {raw.split}: {e}") from e
        self._counts.behind += int((times < before).sum())
        batch = with_column(batch, WM, pa.array(before, type=pa.int64()))
        if held.state.away:
            batch = with_column(batch, AWAY, pa.array(np.ones(batch.num_rows, dtype=np.bool_)))
            self._caught_up(held)
        self._derive()
        return [*([Out(OUT, "rows", batch)] if batch.num_rows else []), *letters]

    def _undecoded(self, raw: RawRecords, decoded: Decoded, origin: Origin | None) -> list[Out]:
        if not decoded.bad:
            return []
        self._counts.undecoded += len(decoded.bad)
        rows = pa.array([bad.row for bad in decoded.bad], type=pa.int64())
        shown = _engine(raw, rows)
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

    def _believed(self, held: _Split, batch: pa.RecordBatch, origin: Origin | None) -> tuple[pa.RecordBatch, list[Out]]:
        taken = accept(held.state.clock, batch.column(TS).to_numpy(), self.spec.source.max_event_time_jump_ms)
        if bool(taken.all()):
            return batch, []
        failures = [Failure(int(row), *JUMP, path="maxEventTimeJump") for row in np.flatnonzero(~taken)]
        self._counts.jumps += len(failures)
        return select(batch, taken), dead_letters(batch, failures, self._operator, self.context, origin)

    def _distinct(self, held: _Split, batch: pa.RecordBatch, origin: Origin | None) -> tuple[pa.RecordBatch, list[Out]]:
        if held.ids is None or not batch.num_rows:
            return batch, []
        kept, failures = held.ids.told_apart(batch)
        self._check_ids()
        self._counts.duplicates += int((~kept).sum())
        letters = dead_letters(batch, failures, self._operator, self.context, origin)
        if failures:
            kept = kept & ~rows_of(failures, batch.num_rows)
        return (batch if kept.all() else select(batch, kept)), letters

    def _check_ids(self) -> None:
        most = self.context.ids_bytes_max
        size_bytes = sum(held.ids.size_bytes for held in self._splits.values() if held.ids is not None)
        if size_bytes > most:
            raise OperatorError(
                f"{self.spec.source.path}.recordId: the ids that are remembered take {size_bytes} bytes, and ids_bytes_max allows {most};"
                " shorten recordIdHorizon, run more tasks, or raise ids_bytes_max in TIDEMARK_RUNTIME"
            )

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
                parts[split_part(split)] = msgspec.msgpack.encode(held.state)
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
        if self.spec.source.record_id is not None:
            horizon = self.spec.source.record_id_horizon or self.spec.horizon
            ids = Dedupe(self.spec.source.record_id, horizon, self.context.topic)
            ids.restore({p: self._restored.pop(p) for p in list(self._restored) if p.startswith(f"{part}#")})
        if stored is None:
            return _Split(SplitState(ordinal, SplitClock()), ids)
        return _Split(msgspec.msgpack.decode(stored, type=SplitState), ids, dirty=False)

    def _held(self, split: SplitId) -> _Split:
        held = self._splits.get(split)
        if held is None:
            raise OperatorError(f"records of split {split}, which this task was not assigned: {sorted(self._splits)}")
        return held

    @property
    def _operator(self) -> str:
        return "$source"


def _engine(raw: RawRecords, rows: pa.Array | None) -> pa.RecordBatch:
    """Engine columns of all or some records: TS is the arrival until an event time is known."""
    n = len(raw.positions)
    columns = {
        TS: pa.array(raw.timestamps_ms, type=pa.int64()),
        PART: pa.array(np.full(n, raw.partition, dtype=np.int32)),
        POS: pa.array(raw.positions if raw.orders is None else raw.orders, type=pa.int64()),
        ARRIVAL: pa.array(raw.timestamps_ms, type=pa.int64()),
    }
    if raw.keys is not None:
        columns[SRCKEY] = raw.keys.cast(pa.binary())
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return batch if rows is None else batch.take(rows)


def _with_engine(decoded: Decoded, raw: RawRecords) -> pa.RecordBatch:
    whole = len(decoded.rows) == len(raw.positions)
    engine = _engine(raw, None if whole else pa.array(decoded.rows))
    batch = decoded.batch
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *engine.columns], schema=pa.schema([*batch.schema, *engine.schema])
    )


def _decoded(raw: RawRecords, schema: Schema) -> Decoded:
    """Decode the records; those that the connector could not read are bad whatever their bytes look like."""
    if not raw.unread:
        return decode(raw.values, schema)
    unread = np.zeros(len(raw.values), dtype=np.bool_)
    unread[list(raw.unread)] = True
    decoded = decode(pc.if_else(pa.array(unread), pa.scalar(None, raw.values.type), raw.values), schema)
    why = raw.unread
    bad = tuple(
        Bad(each.row, f"The record does not decode: {why[each.row]}.", "DecodeFailure", "", None)
        if each.row in why
        else each
        for each in decoded.bad
    )
    return replace(decoded, bad=bad)


def _failure(row: int, bad: Bad, values: pa.BinaryArray) -> Failure:
    document = bad.document if bad.document is not None else Binary(values[bad.row].as_py() or b"")
    return Failure(row, bad.reason, bad.code, bad.path, document=document)
