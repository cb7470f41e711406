"""Rows that reach a step as rows: judge those that come without a window, put them into windows, aggregate what can be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.shared.operators.aggregation import partials_of
from tidemark.shared.operators.base import REST, WEND, WSTART, Out
from tidemark.shared.operators.batches import engine_columns, one_batch, select, with_column
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import dead_letters
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.operators.lateness import Entered, enter, in_windows, times_of
from tidemark.shared.operators.sessions import intervals, sessions_of
from tidemark.shared.operators.window_plan import ROWS_SCHEMA, WindowPlan
from tidemark.shared.operators.windows import Assignment

NO_SESSIONS: Final = intervals(())


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows taken in."""

    table: pa.Table
    """Partials, or, where the plan's mode is `rows`, rows with windows."""
    letters: Sequence[Out]
    late: int
    in_gaps: int
    failed: int


def travelling(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as they travel: whole documents, and the columns of ROWS_SCHEMA."""
    n = batch.num_rows
    engine = {**engine_columns(batch), REST: encoded(batch)}
    arrays = [engine[field.name] if field.name in engine else pa.nulls(n, type=field.type) for field in ROWS_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA)


def take_rows(
    plan: WindowPlan, batch: pa.RecordBatch, limit_ms: int, context: TaskContext, open_: pa.Table = NO_SESSIONS
) -> Taken:
    """Take rows in; those without a window are late for windows that end at or below `limit_ms`.

    open_: the sessions that are open (`sessions.intervals`), where the window is one: a row is late only if the session that it would
    belong to, after merging, has closed (D6).
    """
    windowed, in_gaps, letters = in_their_windows(plan, batch, limit_ms, context, open_)
    late = sum(out.batch.num_rows for out in letters)
    if plan.mode == "rows":
        return Taken(pa.Table.from_batches([travelling(windowed)]), letters, late, in_gaps, 0)
    table, failures, failed = partials_of(plan, windowed, context)
    return Taken(table, [*letters, *failures], late, in_gaps, failed)


def in_their_windows(
    plan: WindowPlan, batch: pa.RecordBatch, limit_ms: int, context: TaskContext, open_: pa.Table = NO_SESSIONS
) -> tuple[pa.RecordBatch, int, list[Out]]:
    """Rows with WSTART and WEND, how many were in gaps, and dead letters of what was late."""
    if WSTART not in batch.schema.names:
        return _judged(plan, batch, limit_ms, context, open_)
    there = batch.column(WSTART).is_valid().to_numpy(zero_copy_only=False)
    if bool(there.all()):
        return batch, 0, []
    judged, in_gaps, letters = _judged(plan, select(batch, ~there), limit_ms, context, open_)
    if not there.any():
        return judged, in_gaps, letters
    both = pa.Table.from_batches([travelling(select(batch, there)), travelling(judged)])
    return one_batch(both), in_gaps, letters


def _judged(
    plan: WindowPlan, batch: pa.RecordBatch, limit_ms: int, context: TaskContext, open_: pa.Table
) -> tuple[pa.RecordBatch, int, list[Out]]:
    if plan.sessions:
        return _in_sessions(plan, batch, limit_ms, context, open_)
    entered = enter(plan, batch, limit_ms)
    windowed = in_windows(plan, batch, entered, np.asarray(entered.open), limit_ms)
    stage = plan.spec.stage
    failures = entered.failures(stage.path)
    return windowed, entered.windows.in_gaps, dead_letters(batch, failures, stage.name, context)


def _in_sessions(
    plan: WindowPlan, batch: pa.RecordBatch, limit_ms: int, context: TaskContext, open_: pa.Table
) -> tuple[pa.RecordBatch, int, list[Out]]:
    """Rows widened to the session that they join, so that nobody takes them for late again."""
    stage, times = plan.spec.stage, times_of(plan, batch)
    starts, ends = sessions_of(batch, times, plan.length_ms, open_)
    alone = Assignment(np.arange(len(times), dtype=np.int64), starts, plan.length_ms, 0)
    entered = Entered(alone, np.asarray(ends > limit_ms))
    kept = np.asarray(entered.open)
    windowed = in_windows(plan, batch, entered, kept, limit_ms)
    windowed = with_column(windowed, WEND, pa.array(ends[kept]))
    return windowed, 0, dead_letters(batch, entered.failures(stage.path), stage.name, context)
