"""One epoch of a window's stage on Spark (protocol, section 8).

    segments of the state + of the epoch ─► where the windows are to close ─► merge by window and key ─► finish ─► segments of output

`SparkStep` holds session and plan, no state. It takes references and gives references; a job runs only when the watermark closes windows
that some segment may hold, or when the segments have become too many. Without a shuffle where that can be (executing.py). In either case
executors merge, in Arrow, by the same functions as `shared.operators.step` uses.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from msgspec import structs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark code gives it
from pyspark.sql.pandas.types import from_arrow_schema

from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import WEND
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.sessions import INTERVALS, INTERVALS_SCHEMA, intervals
from tidemark.shared.operators.step import Times
from tidemark.shared.operators.typed_group import ROWS
from tidemark.shared.operators.window_plan import SESSION, WindowPlan
from tidemark.spark_stages.executing import (
    BUCKET,
    DIFFERING_DDL,
    WORK_PROPERTY,
    Order,
    SegmentDiffers,
    carry_out,
    carry_out_on,
    carry_out_told,
    differing,
    packed,
    read_shares,
    told,
)
from tidemark.spark_stages.manifest import DEFAULTS, StageState, StateSegment
from tidemark.spark_stages.segments import STATE, WRITTEN_DDL

_PARTS_MIN: Final = 2
"""Of a shuffle."""


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
    failed: int = 0
    """Documents that failed in the task that wrote it; told with its first segment."""


@dataclass(frozen=True, slots=True)
class SparkResult:
    """A step's new state and its output."""

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
    key_groups: int = 0
    """By which the stage is divided among tasks: a segment may count for some of them (`StateSegment.only`)."""
    segments_max: int = DEFAULTS.segments_max
    gathered_rows_max: int = DEFAULTS.gathered_rows_max
    task_rows: int = DEFAULTS.task_rows
    tasks_planned: int = DEFAULTS.tasks_planned
    large_task_rows: int = DEFAULTS.large_task_rows
    session_keys_max: int = DEFAULTS.session_keys_max
    _jobs: int = field(default=0)
    _packed: bytes = field(init=False)
    _gathering: dict[int, DataFrame] = field(default_factory=dict)
    """Jobs without a shuffle by their number of tasks, up to self.tasks_planned, each planned once."""

    def __post_init__(self) -> None:
        self._packed = packed(self.plan.spec, self.context)

    def __call__(
        self, state: StageState, added: Sequence[StateSegment], times: Times, prefix: str, *, arrived: bool
    ) -> SparkResult:
        """Take the epoch's segments in, close the windows that the times let close; new segments are named below `prefix`.

        arrived: whether anything came in the epoch, segments or not.
        """
        self._jobs = 0
        before = self.plan.closed_to(max(times.watermark_before_ms, state.forced_ms))
        closed_before = max(state.closed_to_ms, before)
        late = self._late(added, closed_before)
        arrival = max(state.last_arrival_ms, times.processing_ms if arrived else MIN_TIME)
        floor = self._said(state, closed_before)
        outs, failed = self._behind(added, closed_before, times.processing_ms, prefix, floor)
        whole = self.plan.sessions and self.plan.processing_time  # a late row may join a session that is open
        live = [s for s in (*state.segments, *added) if whole or s.max_end_ms > closed_before]
        state = StageState(tuple(live), closed_before, state.forced_ms, arrival)
        forced = self._forced(state, times)
        closed_to = self.plan.closable(times.watermark_ms, times.processing_ms, state.closed_to_ms, forced)
        if any(self._first_end(s) <= closed_to for s in state.segments):
            state, more, more_failed = self._close(state, closed_to, times.processing_ms, prefix, floor)
            outs, failed = [*outs, *more], failed + more_failed
        elif len(state.segments) > self.segments_max:
            state = self._compact(state, prefix)
        state = StageState(state.segments, max(closed_to, closed_before), forced, arrival)
        return SparkResult(state, outs, late, failed, self._output_watermark(state, times), self._jobs)

    def check(self, segments: Sequence[StateSegment]) -> None:
        """SegmentDiffers names a segment that is gone or differs from the manifest (P2), or says that another build's form is unread.

        Executors read them, each its share.
        """
        if not segments:
            return
        tasks = min(self.tasks_planned, len(segments))
        work = functools.partial(differing, self._packed, self.root, tuple(segments), tasks)
        found = self.session.range(0, tasks, 1, tasks).mapInArrow(work, DIFFERING_DDL).collect()
        if found:
            raise SegmentDiffers(found[0][0])

    # --- closing --------------------------------------------------------------------------------------------------------

    def _first_end(self, segment: StateSegment) -> int:
        """No window of the segment that is still open ends before this."""
        return segment.min_start_ms + self.plan.length_ms

    def _forced(self, state: StageState, times: Times) -> int:
        """Where `idleTimeout` puts the watermark, ms. See `shared.operators.step.Step._forced`."""
        idle_to = self.plan.idle_to(times.watermark_ms, times.processing_ms, state.last_arrival_ms)
        if idle_to == MIN_TIME or not state.segments:
            return state.forced_ms
        self._jobs += 1
        found = self._rows(state.segments, state.closed_to_ms, idle_to).agg(F.max(WEND)).collect()[0][0]
        return state.forced_ms if found is None else max(state.forced_ms, int(found))

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
        return self.plan.next_processing_time(ends, state.last_arrival_ms)

    def open_sessions(
        self, state: StageState, added: Sequence[StateSegment], closed_ms: int, keys: Sequence[bytes]
    ) -> pa.Table:
        """The open sessions of these keys (`tidemark.shared.operators.sessions.intervals`); a job where there is a segment to look at."""
        segments = [s for s in (*state.segments, *added) if s.max_end_ms > closed_ms]
        if not segments:
            return intervals(())
        rows = self._rows(segments, closed_ms, MAX_TIME)
        if len(keys) <= self.session_keys_max:
            rows = rows.where(F.col(SESSION).isin([bytearray(key) for key in keys]))
        return rows.select(*INTERVALS).toArrow().cast(INTERVALS_SCHEMA)

    # --- jobs -----------------------------------------------------------------------------------------------------------

    def _rows(self, segments: Iterable[StateSegment], above_ms: int, up_to_ms: int) -> DataFrame:
        """Rows of windows that end in (above, up to], as columns of Spark.

        Executors read them as they read all segments: Spark's own reader would need another client of the store.
        """
        return self._shared(self._order("", above_ms, up_to_ms, None, MIN_TIME), tuple(segments))

    def _shared(self, order: Order, segments: Sequence[StateSegment]) -> DataFrame:
        tasks = min(self.tasks_planned, len(segments))
        schema = self.plan.segment_schema.append(pa.field(BUCKET, pa.int64()))
        work = functools.partial(read_shares, order, tuple(segments), tasks)
        return self.session.range(0, tasks, 1, tasks).mapInArrow(work, from_arrow_schema(schema))

    def _said(self, state: StageState, closed_ms: int) -> int:
        """On processing time: the output watermark before the step, which nothing may be behind (ST3)."""
        if not self.plan.processing_time:
            return MIN_TIME
        inside = self.plan.spec.stage.output_time != "end"
        return min([closed_ms, *(s.min_start_ms for s in state.segments if inside)])

    def _behind(
        self, added: Sequence[StateSegment], closed_ms: int, processing_ms: int, prefix: str, floor_ms: int
    ) -> tuple[list[OutputSegment], int]:
        """ST3: on processing time rows for closed windows come out at once, as one more result of each."""
        suspects = [s for s in added if self._first_end(s) <= closed_ms]
        if not self.plan.processing_time or self.plan.sessions or not suspects:
            return [], 0
        order = self._order(f"{prefix}-behind", MIN_TIME, closed_ms, closed_ms, processing_ms, floor_ms)
        written = self._run(order, suspects)
        outs = [o for o in written if o.port != STATE]
        return outs, sum(o.failed for o in outs)

    def _late(self, added: Sequence[StateSegment], closed_ms: int) -> int:
        suspects = [s for s in added if self._first_end(s) <= closed_ms]
        if not suspects or self.plan.mode == "rows" or self.plan.processing_time:
            return 0
        self._jobs += 1
        found = self._rows(suspects, MIN_TIME, closed_ms).agg(F.sum(ROWS)).collect()[0][0]
        return int(found or 0)

    def _close(
        self, state: StageState, closed_to: int, processing_ms: int, prefix: str, floor_ms: int
    ) -> tuple[StageState, list[OutputSegment], int]:
        sessions = self.plan.sessions
        segments = [s for s in state.segments if sessions or self._first_end(s) <= closed_to]
        up_to = MAX_TIME if sessions else closed_to
        above = MIN_TIME if sessions and self.plan.processing_time else state.closed_to_ms
        written = self._run(self._order(prefix, above, up_to, closed_to, processing_ms, floor_ms), segments)
        outs = [o for o in written if o.port != STATE]
        if sessions:
            kept = [_state_segment(o) for o in written if o.port == STATE]
        else:
            kept = [_after(s, closed_to, self.plan.length_ms) for s in state.segments if s.max_end_ms > closed_to]
        failed = sum(o.failed for o in outs)
        return StageState(tuple(kept), closed_to, state.forced_ms, state.last_arrival_ms), outs, failed

    def _compact(self, state: StageState, prefix: str) -> StageState:
        written = self._run(self._order(prefix, state.closed_to_ms, MAX_TIME, None, MIN_TIME), state.segments)
        return StageState(
            tuple(map(_state_segment, written)), state.closed_to_ms, state.forced_ms, state.last_arrival_ms
        )

    def _order(
        self,
        prefix: str,
        above_ms: int,
        up_to_ms: int,
        closed_to_ms: int | None,
        processing_ms: int,
        floor_ms: int = MIN_TIME,
    ) -> Order:
        most, groups = self.gathered_rows_max, self.key_groups
        return Order(
            self._packed, self.root, prefix, above_ms, up_to_ms, closed_to_ms, processing_ms, most, floor_ms, groups
        )

    def _run(self, order: Order, segments: Sequence[StateSegment]) -> list[OutputSegment]:
        """One job. Without a shuffle output comes in the order of its windows (ST6)."""
        self._jobs += 1
        ranges = self._ranges(order, segments)
        if all(_rows_between(segments, *ends) <= self.gathered_rows_max for ends in ranges):
            return self._gather(order, segments, ranges)
        parts = -(-sum(s.rows for s in segments) // self.gathered_rows_max) if self.gathered_rows_max else 1
        rows = self._shared(order, segments).repartition(max(_PARTS_MIN, parts), BUCKET)
        return [
            OutputSegment(*row) for row in rows.mapInArrow(functools.partial(carry_out, order), WRITTEN_DDL).collect()
        ]

    def _gather(
        self, order: Order, segments: Sequence[StateSegment], ranges: tuple[tuple[int, int], ...]
    ) -> list[OutputSegment]:
        """A job without a shuffle, a task for each range."""
        tasks = len(ranges)
        session: object = self.session
        if not isinstance(session, SparkSession):  # of Spark Connect, where jobs have no properties
            work = functools.partial(carry_out_on, order, tuple(segments), ranges)
            written = self.session.range(0, tasks, 1, tasks).mapInArrow(work, WRITTEN_DDL)
            return [OutputSegment(*row) for row in written.collect()]
        job = self._gathering.get(tasks)
        if job is None:
            job = self.session.range(0, tasks, 1, tasks).mapInArrow(carry_out_told, WRITTEN_DDL)
            if tasks <= self.tasks_planned:
                self._gathering[tasks] = job
        context = session.sparkContext
        context.setLocalProperty(WORK_PROPERTY, told(order, segments, ranges))
        try:
            return [OutputSegment(*row) for row in job.collect()]
        finally:
            context.setLocalProperty(WORK_PROPERTY, None)  # type: ignore[arg-type]  # so it is taken away

    def _ranges(self, order: Order, segments: Sequence[StateSegment]) -> tuple[tuple[int, int], ...]:
        """Ranges of window ends (above, up to], in order, one a task; a session's end is not known before, so sessions have one."""
        if self.plan.sessions:
            return ((order.above_ms, order.up_to_ms),)
        low = max(order.above_ms, min(s.min_start_ms for s in segments))
        high = min(order.up_to_ms, max(s.max_end_ms for s in segments))
        windows = -(-(high - low) // self.plan.length_ms)
        tasks = max(1, min(self.tasks_planned, windows, -(-sum(s.rows for s in segments) // self.task_rows)))
        cuts = [low, *(low + (high - low) * number // tasks for number in range(1, tasks)), high]
        halved = [end for ends in itertools.pairwise(cuts) for end in self._halves(segments, *ends)]
        return tuple(itertools.pairwise([order.above_ms, *halved[:-1], order.up_to_ms]))

    def _halves(self, segments: Sequence[StateSegment], above_ms: int, up_to_ms: int) -> list[int]:
        """Upper ends of the ranges that this one is cut into, so that none is large that has more than one window."""
        within = [s for s in segments if s.max_end_ms > above_ms and s.min_start_ms < up_to_ms]
        if (
            up_to_ms - above_ms <= self.plan.length_ms
            or _rows_between(within, above_ms, up_to_ms) <= self.large_task_rows
        ):
            return [up_to_ms]
        middle = (above_ms + up_to_ms) // 2
        return [*self._halves(within, above_ms, middle), *self._halves(within, middle, up_to_ms)]


def _rows_between(segments: Iterable[StateSegment], above_ms: int, up_to_ms: int) -> int:
    """Rows of windows that end in (above, up to], as many as there are if each segment's lie evenly between its bounds."""
    rows = 0.0
    for segment in segments:
        common = min(up_to_ms, segment.max_end_ms) - max(above_ms, segment.min_start_ms)
        rows += segment.rows * max(0, common) / (segment.max_end_ms - segment.min_start_ms)
    return round(rows)


def _after(segment: StateSegment, closed_to: int, length_ms: int) -> StateSegment:
    """The segment, once windows that end at or below are closed: those still open start after `closed_to - length`."""
    start = (
        segment.min_start_ms
        if closed_to in (MIN_TIME, MAX_TIME)
        else max(segment.min_start_ms, closed_to - length_ms + 1)
    )
    return structs.replace(segment, min_start_ms=start)


def _state_segment(out: OutputSegment) -> StateSegment:
    return StateSegment(out.name, out.rows, out.size_bytes, out.digest, out.low_ms, out.high_ms)
