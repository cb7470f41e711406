"""The step of a window: `step(state, epoch's input, times before and after) -> (state', output, late)`, pure, on Arrow.

It serves `engine: local`, tests and the simulation; `spark_stages` does the same on Spark and must agree row for row. Rules:

- ST1 Order within a step: judge lateness by the time before; merge; close by the time after (protocol, section 8).
- ST2 A window closes when `watermark − allowedLateness ≥ end`, emits once, and is forgotten; on processing time when that reaches its
  end; at the end of input always.
- ST3 A partial is never late (partial.py, PA2, PA4); one that is all the same is counted and dropped, never silently. On processing time
  nothing is late: a row of a window that has closed (it arrived before the window's end, and was read, or given out, behind it) comes out
  at once, as one more result of that window, at the output watermark given so far.
- ST4 `idleTimeout`: from the later of a window's end and the last arrival; then it closes whatever its lateness, and the stage's
  watermark goes to its end (D8). An arrival in the same step wins.
- ST5 The output watermark is that which closes windows, held back by the earliest output time that an open window may still have (W1, W6).
- ST6 Output rows come in the order of (window's end, start, key), with TS the output time; so a replay gives the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.aggregation import at_once, merged, take_rows
from tidemark.shared.operators.base import WEND, Out
from tidemark.shared.operators.batches import one_batch, select
from tidemark.shared.operators.closing import chosen_by, close
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.sessions import assign_sessions, intervals
from tidemark.shared.operators.typed_group import ROWS
from tidemark.shared.operators.window_plan import WindowPlan, in_form


@dataclass(frozen=True, slots=True)
class Times:
    """Input watermark and processing time when the epoch began and when it ended, ms."""

    watermark_before_ms: int
    watermark_ms: int
    processing_before_ms: int = MIN_TIME
    processing_ms: int = MIN_TIME


@dataclass(frozen=True, slots=True)
class EpochInput:
    """The input of one epoch."""

    partials: Sequence[pa.RecordBatch] = ()
    rows: Sequence[pa.RecordBatch] = ()


@dataclass(frozen=True, slots=True)
class StepState:
    """Open windows."""

    partials: pa.Table | None = None
    rows: pa.Table | None = None
    """Rows with WSTART and WEND, where the plan's mode is `rows`."""
    closed_to_ms: int = MIN_TIME
    """Windows that end at or below are closed."""
    forced_ms: int = MIN_TIME
    """To where `idleTimeout` has put the watermark."""
    last_arrival_ms: int = MIN_TIME


@dataclass(frozen=True, slots=True)
class Counts:
    """The rows that a step did not take."""

    late: int = 0
    late_partials: int = 0
    """Rows in partials that came too late all the same (ST3)."""
    in_gaps: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """The new state and the output of a step."""

    state: StepState
    outs: Sequence[Out] = ()
    counts: Counts = Counts()
    output_watermark_ms: int = MIN_TIME


@dataclass(slots=True)
class Step:
    """A window's step. Holds the plan, no state."""

    plan: WindowPlan
    context: TaskContext = NOWHERE

    def __call__(self, state: StepState, given: EpochInput, times: Times) -> StepResult:
        """One epoch (ST1)."""
        outs: list[Out] = []
        state = self._began(state, times)
        floor = self._said(state)
        state, counts, letters = self._take(state, given, times)
        outs += letters
        forced = self._forced(state, times)
        closed_to = self.plan.closable(times.watermark_ms, times.processing_ms, state.closed_to_ms, forced)
        state, more, failed = self._close(state, closed_to, times, floor)
        outs += more
        counts = replace(counts, failed=counts.failed + failed)
        state = replace(state, forced_ms=forced)
        return StepResult(state, outs, counts, self._output_watermark(state, times))

    # --- taking in ----------------------------------------------------------------------------------------------------

    def _began(self, state: StepState, times: Times) -> StepState:
        """Where the time before the epoch leaves lateness."""
        before = self.plan.closed_to(max(times.watermark_before_ms, state.forced_ms))
        return replace(state, closed_to_ms=max(state.closed_to_ms, before))

    def _take(self, state: StepState, given: EpochInput, times: Times) -> tuple[StepState, Counts, list[Out]]:
        outs: list[Out] = []
        counts = Counts()
        tables = [] if state.partials is None else [state.partials]
        rows = [] if state.rows is None else [state.rows]
        for batch in given.partials:
            fine, late = self._on_time(batch, state.closed_to_ms)
            counts = replace(counts, late_partials=counts.late_partials + late)
            tables.append(pa.Table.from_batches([fine]))
        for batch in at_once(self.plan, given.rows):
            open_ = intervals([*tables, *rows]) if self.plan.sessions else None
            taken = take_rows(self.plan, batch, state.closed_to_ms, self.context, open_)
            outs += taken.letters
            counts = replace(
                counts,
                late=counts.late + taken.late,
                in_gaps=counts.in_gaps + taken.in_gaps,
                failed=counts.failed + taken.failed,
            )
            (rows if self.plan.mode == "rows" else tables).append(taken.table)
        partials = pa.concat_tables(tables) if tables else None
        if len(tables) > 1 or given.rows:  # partials of one sender, and open ones, are merged
            partials = None if partials is None else merged(self.plan, partials)
        kept = pa.concat_tables([in_form(table, self.plan.rows_schema) for table in rows]) if rows else None
        if kept is not None and self.plan.sessions:
            kept = assign_sessions(kept)
        arrived = times.processing_ms if given.partials or given.rows else MIN_TIME
        arrival = max(state.last_arrival_ms, arrived)
        return replace(state, partials=partials, rows=kept, last_arrival_ms=arrival), counts, outs

    def _on_time(self, batch: pa.RecordBatch, closed_to_ms: int) -> tuple[pa.RecordBatch, int]:
        if self.plan.processing_time:
            return batch, 0
        fine = batch.column(WEND).to_numpy() > closed_to_ms
        if bool(fine.all()):
            return batch, 0
        late = select(batch, ~fine)
        return select(batch, fine), int(pc.sum(late.column(ROWS)).as_py())

    # --- closing ------------------------------------------------------------------------------------------------------

    def _forced(self, state: StepState, times: Times) -> int:
        """Where `idleTimeout` puts the watermark: the end of the last window with an idle timer that has run out (ST4), ms."""
        idle_to = self.plan.idle_to(times.watermark_ms, times.processing_ms, state.last_arrival_ms)
        if idle_to == MIN_TIME:
            return state.forced_ms
        ends = [int(e) for t in _open(state) for e in np.unique(t.column(WEND).to_numpy())]
        return max([state.forced_ms, *(e for e in ends if e <= idle_to)])

    def _said(self, state: StepState) -> int:
        """On processing time: the output watermark before the step, which nothing may be behind (ST3)."""
        if not self.plan.processing_time:
            return MIN_TIME
        return min([state.closed_to_ms, *(_hold(table, chosen_by(self.plan)) for table in _open(state))])

    def _close(
        self, state: StepState, closed_to_ms: int, times: Times, floor_ms: int
    ) -> tuple[StepState, list[Out], int]:
        done, left = [], []
        for table in (state.partials, state.rows):
            mask = None if table is None else pc.less_equal(table.column(WEND), closed_to_ms)
            done.append(None if table is None else table.filter(mask))
            left.append(None if table is None else table.filter(pc.invert(mask)))
        ready = done[0] if self.plan.mode != "rows" else done[1]
        outs: list[Out] = []
        failed = 0
        if ready is not None and ready.num_rows:
            outs, failed = close(self.plan, one_batch(ready), times.processing_ms, self.context, floor_ms)
        partials, rows = (t if t is not None and t.num_rows else None for t in left)
        return replace(state, partials=partials, rows=rows, closed_to_ms=closed_to_ms), outs, failed

    def _output_watermark(self, state: StepState, times: Times) -> int:
        """ST5."""
        if times.watermark_ms == MAX_TIME:
            return MAX_TIME
        holds = [_hold(table, chosen_by(self.plan)) for table in _open(state)]
        reached = times.processing_ms if self.plan.processing_time else state.closed_to_ms
        return min([reached, *holds])

    def next_processing_time(self, state: StepState) -> int:
        """When processing time next closes something, ms; MAX_TIME for never."""
        ends = [int(pc.min(table.column(WEND)).as_py()) for table in _open(state)]
        return self.plan.next_processing_time(ends, state.last_arrival_ms)


def _open(state: StepState) -> list[pa.Table]:
    return [t for t in (state.partials, state.rows) if t is not None and t.num_rows]


def _hold(table: pa.Table, chosen: str | None) -> int:
    """The least time that `outputTime` may give to an open window; MAX_TIME where that is the window's end."""
    found = None if chosen is None else pc.min(table.column(chosen)).as_py()
    return MAX_TIME if found is None else int(found)
