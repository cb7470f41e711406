"""Partial aggregation of rows in their windows, and the merge of partials: typed or general, as the plan says.

Rows that reach a step as rows: judge those that come without a window, put them into windows, aggregate where possible.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.stages import Branch, HoppingWindow, Keep, Project, Unwind
from tidemark.shared.operators import general_group, typed_group
from tidemark.shared.operators.base import RAW, REST, WEND, WM, WSTART, Out
from tidemark.shared.operators.batches import ARROW_TYPES, engine_columns, is_engine, one_batch, select, with_column
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.dead_letters import dead_letters
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.operators.frame import Frame
from tidemark.shared.operators.program import through
from tidemark.shared.operators.sessions import assign_sessions, intervals, sessions_of
from tidemark.shared.operators.window_plan import WindowPlan, in_form
from tidemark.shared.operators.windows import alone, enter, in_windows, pieces, split_limits, times_of


def partials_of(plan: WindowPlan, rows: pa.RecordBatch, context: TaskContext) -> tuple[pa.Table, list[Out], int]:
    """Rows with WSTART and WEND, of windows or panes, to partials; dead letters of rows on which an expression failed; their number.

    Sessions reach as far as all their rows do, those included that stages inside the window drop or fail on (`general_group.extents`).
    """
    staged = through(plan.before, rows, context)
    if plan.typed is not None:
        left = _declared(plan, plan.typed.inputs, staged.batch)
        return typed_group.partials(plan.typed, left, plan.extras), staged.letters, staged.failed
    table, failures = general_group.partials(plan, staged.batch, context.topic)
    if plan.sessions and (failures or _thins(plan, rows, staged.batch)):
        table = pa.concat_tables([table, general_group.extents(plan, rows)])
    letters = [*staged.letters, *dead_letters(staged.batch, failures, plan.group.name, context)]
    return table, letters, sum(out.batch.num_rows for out in letters)


def merged(plan: WindowPlan, table: pa.Table) -> pa.Table:
    """Partials of one window and key become one row; overlapping sessions of one key become one."""
    if plan.sessions:
        table = assign_sessions(table)
    if plan.typed is not None:
        return typed_group.merge(plan.typed, table, plan.extras)
    return general_group.merge(plan, table)


def spread(plan: WindowPlan, panes: pa.Table) -> pa.Table:
    """Partials of panes, as `partials_of` gives them, as those of their windows.

    What is to be in the next 2 n windows is put into the next n ones, merged, and this into the n behind: so a window is merged of a few
    partials, however many panes it has.
    """
    stage = plan.spec.stage
    assert isinstance(stage, HoppingWindow), "other windows have no panes"
    size, hop = stage.interval_ms, stage.hop_size_ms
    starts = panes.column(WSTART).to_numpy()
    counts = (panes.column(WEND).to_numpy() - size - starts) // hop + 1
    found: list[pa.Table] = []
    for count in np.unique(counts).tolist():
        some = np.flatnonzero(counts == count)
        doubled, windows, behind = _at(panes.take(pa.array(some)), starts[some], size), 1, 0
        while True:
            if count & windows:
                found.append(_later(doubled, behind * hop, size))
                behind += windows
            if behind == count:
                break
            doubled, windows = (
                merged(plan, pa.concat_tables([doubled, _later(doubled, windows * hop, size)])),
                2 * windows,
            )
    return pa.concat_tables(found) if found else panes


def _later(table: pa.Table, by_ms: int, size_ms: int) -> pa.Table:
    return _at(table, table.column(WSTART).to_numpy() + by_ms, size_ms)


def _at(table: pa.Table, starts_ms: npt.NDArray[np.int64], size_ms: int) -> pa.Table:
    """The same in windows with these starts."""
    for name, times in ((WSTART, starts_ms), (WEND, starts_ms + size_ms)):
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), pa.array(times))
    return table


def _declared(plan: WindowPlan, names: AbstractSet[str], rows: pa.RecordBatch) -> pa.RecordBatch:
    """Columns of declared fields in their types, and of the rows' windows."""
    frame = Frame(rows)
    frame.prepare((name,) for name in names)
    columns = {name: rows.column(name) for name in (WSTART, WEND, *plan.extras)}
    for field in plan.schema:
        if field.name in names:
            column = frame.at((field.name,))
            assert column.doubt is None, "documents fit their schema"
            columns[field.name] = column.values.cast(ARROW_TYPES[field.type])
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _thins(plan: WindowPlan, rows: pa.RecordBatch, left: pa.RecordBatch) -> bool:
    """Whether stages before the group may have dropped rows: `$unwind` gives several for one, so that numbers tell nothing."""
    return left.num_rows != rows.num_rows or any(isinstance(stage, Unwind) for stage in plan.before)


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows taken in."""

    table: pa.Table
    """Partials, or, where the plan's mode is `rows`, rows with windows."""
    letters: Sequence[Out]
    late: int
    in_gaps: int
    failed: int


def travelling(plan: WindowPlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as they travel: whole documents, and the engine's columns."""
    n = batch.num_rows
    engine = {**engine_columns(batch), REST: encoded(batch)}
    if WSTART in engine or not plan.judged_at_source:
        engine.pop(WM, None)
    arrays = [
        engine[field.name] if field.name in engine else pa.nulls(n, type=field.type) for field in plan.rows_schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=plan.rows_schema)


def narrowed(plan: WindowPlan, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the fields alone that the window's pipeline looks at (`WindowPlan.looked_at`)."""
    names = plan.looked_at
    if names is None:
        return rows
    if not names:
        return rows.select([name for name in rows.schema.names if is_engine(name) and name not in (RAW, REST)])
    kept = tuple((name, Keep()) for name in sorted(names))
    only = Project(path=plan.spec.stage.path, mode="inclusion", fields=Branch(kept))
    return through([only], rows, NOWHERE).batch


def at_once(plan: WindowPlan, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """An epoch's rows of sessions: those that were in time in one batch, and behind it those that are to be judged.

    So it does not matter in which order they came: a row is judged beside all sessions that it may join. Rows of other windows are
    judged one by one anyway.
    """
    if not plan.sessions or not batches:
        return batches
    whole = pa.concat_tables([in_form(pa.Table.from_batches([b]), plan.rows_schema) for b in batches])
    loose = whole.column(WSTART).is_null()
    parts = (whole.filter(pc.invert(loose)), whole.filter(loose))
    return [
        each for part in parts for each in part.combine_chunks().to_batches() if each.num_rows
    ]  # some, from 2 GiB on


def take_rows(
    plan: WindowPlan, batch: pa.RecordBatch, limit_ms: int, context: TaskContext, open_: pa.Table | None = None
) -> Taken:
    """Take rows in; those without a window are late for windows that end at or below `limit_ms`.

    open_: the sessions that are open (`sessions.intervals`), where the window is one: a row is late only if the session that it would
    belong to, after merging, has closed (D6).
    """
    taken = [_taken(plan, piece, limit_ms, context, open_) for piece in pieces(plan, batch) or [batch]]
    if len(taken) == 1:
        return taken[0]
    return Taken(
        pa.concat_tables([each.table for each in taken]),
        [letter for each in taken for letter in each.letters],
        sum(each.late for each in taken),
        sum(each.in_gaps for each in taken),
        sum(each.failed for each in taken),
    )


def _taken(
    plan: WindowPlan, batch: pa.RecordBatch, limit_ms: int, context: TaskContext, open_: pa.Table | None
) -> Taken:
    windowed, in_gaps, letters = in_their_windows(plan, batch, limit_ms, context, open_)
    late = sum(out.batch.num_rows for out in letters)
    if plan.mode == "rows":
        return Taken(pa.Table.from_batches([travelling(plan, narrowed(plan, windowed))]), letters, late, in_gaps, 0)
    table, failures, failed = partials_of(plan, windowed, context)
    return Taken(spread(plan, table) if plan.by_panes else table, [*letters, *failures], late, in_gaps, failed)


def in_their_windows(
    plan: WindowPlan, batch: pa.RecordBatch, limit_ms: int, context: TaskContext, open_: pa.Table | None = None
) -> tuple[pa.RecordBatch, int, list[Out]]:
    """Rows with WSTART and WEND, how many were in gaps, and dead letters of the late ones."""
    if WSTART not in batch.schema.names:
        return _judged(plan, batch, limit_ms, context, open_)
    there = batch.column(WSTART).is_valid().to_numpy(zero_copy_only=False)
    if bool(there.all()):
        return batch, 0, []
    # A letter takes rows that have windows for rows of windows.
    loose = select(batch, ~there).drop_columns([WSTART, WEND])
    judged, in_gaps, letters = _judged(plan, loose, limit_ms, context, open_)
    if not there.any():
        return judged, in_gaps, letters
    both = pa.Table.from_batches([travelling(plan, select(batch, there)), travelling(plan, judged)])
    return one_batch(both), in_gaps, letters


def _judged(
    plan: WindowPlan, batch: pa.RecordBatch, limit_ms: int, context: TaskContext, open_: pa.Table | None
) -> tuple[pa.RecordBatch, int, list[Out]]:
    if plan.sessions:
        return _in_sessions(plan, batch, limit_ms, context, open_)
    own = plan.limits_travel and WM in batch.schema.names
    limits = np.maximum(split_limits(plan, batch), limit_ms) if own else limit_ms
    entered = enter(plan, batch, limits)
    windowed = in_windows(plan, batch, entered, entered.in_time, limits)
    stage = plan.spec.stage
    letters = dead_letters(batch, entered.failures(stage.path), stage.name, context)
    return windowed, int((~entered.there).sum()), letters


def _in_sessions(
    plan: WindowPlan, batch: pa.RecordBatch, limit_ms: int, context: TaskContext, open_: pa.Table | None
) -> tuple[pa.RecordBatch, int, list[Out]]:
    """Rows widened to the session that they join, so that nobody takes them for late again."""
    stage, times = plan.spec.stage, times_of(plan, batch)
    starts, ends = sessions_of(batch, times, plan.length_ms, intervals(()) if open_ is None else open_)
    kept = np.asarray(ends > limit_ms)
    entered = alone(starts, kept, plan.length_ms)
    windowed = in_windows(plan, batch, entered, kept, limit_ms)
    windowed = with_column(windowed, WEND, pa.array(ends[kept]))
    return windowed, 0, dead_letters(batch, entered.failures(stage.path), stage.name, context)
