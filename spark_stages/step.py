"""One epoch of a window's stage on Spark (protocol, section 8).

    segments of the state + of the epoch ─► where the windows are to close ─► merge by window and key ─► finish ─► segments of output

`SparkStep` holds session and plan, no state. It takes references and gives references; a job runs only when the watermark closes windows
that some segment may hold, or when the segments have become too many. Declared fields merge in Spark's own columns, everything else in
Arrow, inside the executors, by the same functions as `shared.operators.step` uses.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext as SparkTask
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark code gives it
from pyspark.sql.pandas.types import from_arrow_schema

from shared.model.plan import DLQ
from shared.model.time import MAX_TIME, MIN_TIME
from shared.operators.aggregation import merged
from shared.operators.base import TS, WEND, WSTART
from shared.operators.batches import one_batch
from shared.operators.closing import close
from shared.operators.context import NOWHERE, TaskContext
from shared.operators.sessions import INTERVALS, INTERVALS_SCHEMA, assign_sessions
from shared.operators.step import Times
from shared.operators.taking import NO_SESSIONS
from shared.operators.typed_group import ROWS
from shared.operators.window_plan import ROWS_SCHEMA, SESSION, WindowPlan
from spark_stages.manifest import StageState, StateSegment
from spark_stages.segments import STATE, WRITTEN_DDL, write_segment, written_rows

SMALL_ROWS_MAX = 10_000
"""Rows of segments up to which one task merges and finishes them."""
SESSION_KEYS_MAX = 1000
"""Keys of rows that may be late beyond which the open sessions of all keys are looked at."""
SEGMENTS_MAX = 48
"""Segments of the state beyond which they are compacted."""


@dataclass(frozen=True, slots=True)
class OutputSegment:
    """A segment that a step gave out."""

    port: str
    content: str
    name: str
    rows: int
    size_bytes: int
    digest: str
    low_ms: int
    high_ms: int


@dataclass(frozen=True, slots=True)
class SparkResult:
    """What a step leaves and gives."""

    state: StageState
    outs: Sequence[OutputSegment] = ()
    late_partials: int = 0
    """Rows in partials that came too late all the same: dropped, and counted (P3)."""
    failed: int = 0
    output_watermark_ms: int = MIN_TIME
    jobs: int = 0


@dataclass(slots=True)
class SparkStep:
    """A window's step on a session. `root`: where segments lie, a folder or `s3://…`."""

    session: SparkSession
    plan: WindowPlan
    root: str
    context: TaskContext = NOWHERE
    segments_max: int = SEGMENTS_MAX
    _jobs: int = field(default=0)

    def __call__(
        self, state: StageState, added: Sequence[StateSegment], times: Times, prefix: str, *, arrived: bool
    ) -> SparkResult:
        """Take the epoch's segments in, close what the times let close; new segments are named below `prefix`.

        arrived: whether anything came in the epoch, segments or not.
        """
        self._jobs = 0
        before = self.plan.closed_to(max(times.watermark_before_ms, state.forced_ms))
        closed_before = max(state.closed_to_ms, before)
        late = self._late(added, closed_before)
        arrival = max(state.last_arrival_ms, times.processing_ms if arrived else MIN_TIME)
        live = [s for s in (*state.segments, *added) if s.max_end_ms > closed_before]
        state = StageState(tuple(live), closed_before, state.forced_ms, arrival)
        closed_to, forced = self._closable(state, times)
        outs: list[OutputSegment] = []
        failed = 0
        if any(self._first_end(s) <= closed_to for s in state.segments):
            state, outs, failed = self._close(state, closed_to, times.processing_ms, prefix)
        elif len(state.segments) > self.segments_max:
            state = self._compact(state, prefix)
        state = StageState(state.segments, max(closed_to, closed_before), forced, arrival)
        return SparkResult(state, outs, late, failed, self._output_watermark(state, times), self._jobs)

    # --- what may close -------------------------------------------------------------------------------------------------

    def _first_end(self, segment: StateSegment) -> int:
        """No window of the segment that is still open ends before this."""
        return segment.min_start_ms + self.plan.length_ms

    def _closable(self, state: StageState, times: Times) -> tuple[int, int]:
        """As `shared.operators.step.Step._closable`: (windows that end at or below are to close, where idleness puts the watermark)."""
        if times.watermark_ms == MAX_TIME:
            return MAX_TIME, state.forced_ms
        if self.plan.processing_time:
            return times.processing_ms, state.forced_ms
        forced = max(state.forced_ms, self._idle_to(state, times.processing_ms))
        return max(state.closed_to_ms, self.plan.closed_to(times.watermark_ms), forced), forced

    def _idle_to(self, state: StageState, processing_ms: int) -> int:
        timeout = self.plan.idle_timeout_ms
        if timeout is None or MIN_TIME in (processing_ms, state.last_arrival_ms) or not state.segments:
            return MIN_TIME
        if processing_ms < state.last_arrival_ms + timeout:
            return MIN_TIME
        ready = self._read(state.segments).where(
            (F.col(WEND) > state.closed_to_ms) & (F.col(WEND) <= processing_ms - timeout)
        )
        self._jobs += 1
        found = ready.agg(F.max(WEND)).collect()[0][0]
        return MIN_TIME if found is None else int(found)

    def _output_watermark(self, state: StageState, times: Times) -> int:
        """ST5; with an output time inside the window no open window may give one before its start."""
        if times.watermark_ms == MAX_TIME:
            return MAX_TIME
        reached = times.processing_ms if self.plan.processing_time else state.closed_to_ms
        if self.plan.spec.stage.output_time == "end":
            return reached
        return min([reached, *(s.min_start_ms for s in state.segments)])

    def next_processing_time(self, state: StageState) -> int:
        """When processing time next closes something, ms; MAX_TIME for never."""
        ends = [self._first_end(s) for s in state.segments]
        if not ends:
            return MAX_TIME
        if self.plan.processing_time:
            return min(ends)
        timeout = self.plan.idle_timeout_ms
        if timeout is None or state.last_arrival_ms == MIN_TIME:
            return MAX_TIME
        return max(min(ends), state.last_arrival_ms) + timeout

    def open_sessions(
        self, state: StageState, added: Sequence[StateSegment], closed_ms: int, keys: Sequence[bytes]
    ) -> pa.Table:
        """The open sessions of these keys (`shared.operators.sessions.intervals`); a job where there is a segment to look at."""
        segments = [s for s in (*state.segments, *added) if s.max_end_ms > closed_ms]
        if not segments:
            return NO_SESSIONS
        rows = self._read(segments).where(F.col(WEND) > closed_ms)
        if len(keys) <= SESSION_KEYS_MAX:
            rows = rows.where(F.col(SESSION).isin([bytearray(key) for key in keys]))
        return rows.select(*INTERVALS).toArrow().cast(INTERVALS_SCHEMA)

    # --- jobs -----------------------------------------------------------------------------------------------------------

    def _schema(self) -> pa.Schema:
        return ROWS_SCHEMA if self.plan.mode == "rows" else self.plan.partial_schema

    def _read(self, segments: Iterable[StateSegment]) -> DataFrame:
        paths = [f"{self.root}/{s.name}" for s in segments]
        return self.session.read.schema(from_arrow_schema(self._schema())).parquet(*paths)

    def _late(self, added: Sequence[StateSegment], closed_ms: int) -> int:
        suspects = [s for s in added if self._first_end(s) <= closed_ms]
        if not suspects or self.plan.mode == "rows":
            return 0
        self._jobs += 1
        found = self._read(suspects).where(F.col(WEND) <= closed_ms).agg(F.sum(ROWS)).collect()[0][0]
        return int(found or 0)

    def _close(
        self, state: StageState, closed_to: int, processing_ms: int, prefix: str
    ) -> tuple[StageState, list[OutputSegment], int]:
        segments = [s for s in state.segments if self.plan.sessions or self._first_end(s) <= closed_to]
        rows = self._read(segments).where(F.col(WEND) > state.closed_to_ms)
        if not self.plan.sessions:
            rows = rows.where(F.col(WEND) <= closed_to)
        work = _closer(self.plan, closed_to, processing_ms, self.root, prefix, self.context)
        written = self._run(rows, work, small=sum(s.rows for s in segments) <= SMALL_ROWS_MAX)
        outs = [o for o in written if o.port != STATE]
        if self.plan.sessions:
            kept = [_state_segment(o) for o in written if o.port == STATE]
        else:
            kept = [_after(s, closed_to, self.plan.length_ms) for s in state.segments if s.max_end_ms > closed_to]
        failed = sum(o.rows for o in outs if o.port == DLQ)
        return StageState(tuple(kept), closed_to, state.forced_ms, state.last_arrival_ms), outs, failed

    def _compact(self, state: StageState, prefix: str) -> StageState:
        rows = self._read(state.segments).where(F.col(WEND) > state.closed_to_ms)
        small = sum(s.rows for s in state.segments) <= SMALL_ROWS_MAX
        written = self._run(rows, _compactor(self.plan, self.root, prefix), small=small)
        return StageState(
            tuple(map(_state_segment, written)), state.closed_to_ms, state.forced_ms, state.last_arrival_ms
        )

    def _run(
        self, rows: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], *, small: bool
    ) -> list[OutputSegment]:
        self._jobs += 1
        merged_rows = rows.transform(self._merged)
        # What is small goes to one task: no shuffle, and output in the order of its windows (ST6).
        gathered = (
            merged_rows.coalesce(1) if small else merged_rows.repartition(SESSION if self.plan.sessions else WEND)
        )
        found = gathered.mapInArrow(work, WRITTEN_DDL).collect()
        return [
            OutputSegment(r.kind, r.content, r.name, r.rows, r.size_bytes, r.digest, r.low_ms, r.high_ms) for r in found
        ]

    def _merged(self, rows: DataFrame) -> DataFrame:
        """Partials over declared fields become one row for each window and key, by Spark's own aggregates."""
        typed = self.plan.typed
        if typed is None:
            return rows
        how = {c.name: c.how for a in typed.aggregates for c in a.columns} | {ROWS: "sum"} | dict(self.plan.extras)
        merge: dict[str, Callable[[str], Column]] = {"sum": F.sum, "min": F.min, "max": F.max}
        aggregates = [merge[by](name).alias(name) for name, by in how.items()]
        grouped = rows.groupBy(*self.plan.window_columns, *self.plan.key_columns).agg(*aggregates)
        return grouped.select(*self.plan.partial_schema.names)


def _after(segment: StateSegment, closed_to: int, length_ms: int) -> StateSegment:
    """The segment, once windows that end at or below are closed: those still open start after `closed_to - length`."""
    start = (
        segment.min_start_ms
        if closed_to in (MIN_TIME, MAX_TIME)
        else max(segment.min_start_ms, closed_to - length_ms + 1)
    )
    return StateSegment(segment.name, segment.rows, segment.size_bytes, segment.digest, start, segment.max_end_ms)


def _state_segment(out: OutputSegment) -> StateSegment:
    return StateSegment(out.name, out.rows, out.size_bytes, out.digest, out.low_ms, out.high_ms)


# --- inside executors -----------------------------------------------------------------------------------------------------


def _gathered(plan: WindowPlan, batches: Iterator[pa.RecordBatch]) -> pa.Table | None:
    """All rows of this partition, in the plan's own types; partials merged."""
    schema = ROWS_SCHEMA if plan.mode == "rows" else plan.partial_schema
    seen = [b for b in batches if b.num_rows]
    if not seen:
        return None
    table = pa.Table.from_batches(seen).select(schema.names).cast(schema)
    if plan.mode != "rows":
        return merged(plan, table)
    return assign_sessions(table) if plan.sessions else table


class _Writer:
    """Names and writes one task's segments."""

    def __init__(self, root: str, prefix: str) -> None:
        task = SparkTask.get()
        attempt = f"{task.partitionId()}-{task.taskAttemptId()}" if task is not None else "0-0"
        self._root = root
        self._prefix = f"{prefix}-{attempt}"
        self.rows: list[tuple[str, str, str, int, int, str, int, int, int]] = []

    def write(self, kind: str, content: str, data: pa.RecordBatch | pa.Table, low: str, high: str) -> None:
        name = f"{self._prefix}-{len(self.rows)}.parquet"
        size, digest = write_segment(self._root, name, data)
        bounds = (pc.min(data.column(low)).as_py(), pc.max(data.column(high)).as_py())
        self.rows.append((kind, content, name, data.num_rows, size, digest, *bounds, 0))


def _closer(
    plan: WindowPlan, closed_to: int, processing_ms: int, root: str, prefix: str, context: TaskContext
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = _gathered(plan, batches)
        if table is None:
            return
        writer = _Writer(root, prefix)
        ready = table
        if plan.sessions:
            mask = pc.less_equal(table.column(WEND), closed_to)
            ready, left = table.filter(mask), table.filter(pc.invert(mask))
            if left.num_rows:
                writer.write(STATE, "partials", left, WSTART, WEND)
        if ready.num_rows:
            outs, _ = close(plan, one_batch(ready), processing_ms, context)
            for out in outs:
                writer.write(out.port, out.content, out.batch, TS, TS)
        yield from written_rows(writer.rows)

    return work


def _compactor(
    plan: WindowPlan, root: str, prefix: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = _gathered(plan, batches)
        if table is None:
            return
        writer = _Writer(root, prefix)
        writer.write(STATE, "partials", table, WSTART, WEND)
        yield from written_rows(writer.rows)

    return work
