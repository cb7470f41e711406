"""The output of closed windows: finish the groups, run the stages behind `$group`, set the output time.

Whole windows come in, of any number: rows of one window end stand together, here and in any partition of Spark, so that the
order within a window, and POS, are the same wherever it is closed.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.stages import Count, Group
from tidemark.shared.language.stages.base import Stateless
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators import general_group, typed_group
from tidemark.shared.operators.base import (
    AGAIN,
    ARRIVAL,
    EVENT,
    META,
    NO_SPLIT_LEAST,
    PART,
    POS,
    REST,
    SRCKEY,
    TS,
    WEND,
    WSTART,
    Out,
)
from tidemark.shared.operators.batches import with_column
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.depth import without_deep
from tidemark.shared.operators.grouping import groups_of, numbers_of
from tidemark.shared.operators.program import through
from tidemark.shared.operators.stages import GATHERING
from tidemark.shared.operators.whole_windows import CHOSEN, HASH, ORDER, Windows, no_split, ranks
from tidemark.shared.operators.window_keys import hashes
from tidemark.shared.operators.window_plan import FIRST, LAST, SESSION, SESSION_KEY, WindowPlan

Int64s = npt.NDArray[np.int64]
_POSITIVE = 0x7FFFFFFF
_SPAN_MAX = 2**62
"""Numbers below it do not overflow."""


def close(
    plan: WindowPlan, ready: pa.RecordBatch, processing_ms: int, context: TaskContext, floor_ms: int = MIN_TIME
) -> tuple[list[Out], int]:
    """The output of closed windows (merged partials, or rows with their windows), and how many documents failed.

    floor_ms: no output row has a time before it (W1).
    """
    if plan.sessions and plan.mode == "general":
        ready = general_group.without_extents(ready)
    outs: list[Out] = []
    failed = 0
    if not ready.num_rows:
        return outs, failed
    batch = _finished(plan, ready, processing_ms)
    if plan.mode == "general":
        batch, outs = without_deep(batch, plan.group.path, plan.group.name, context)
        failed += sum(out.batch.num_rows for out in outs)
    own = len(plan.after) - plan.spec.stages_behind
    stages = list(plan.after[:own])
    while stages and batch.num_rows:
        stage = stages.pop(0)
        if isinstance(stage, Stateless):
            staged = through([stage], batch, context)
            batch, failed = staged.batch, failed + staged.failed
            outs += staged.letters
        else:
            batch, letters = GATHERING[type(stage)](stage, Windows.of(plan, batch, context))
            batch = _untold(batch, processing_ms) if isinstance(stage, Group | Count) else batch
            failed += sum(out.batch.num_rows for out in letters)
            outs += letters
    if plan.spec.stages_behind and batch.num_rows:
        # A row that leaves a window is its result, even if it equals its record.
        result = with_column(_untold(batch, processing_ms), PART, no_split(batch.num_rows))
        staged = through(plan.after[own:], result, context)  # type: ignore[arg-type]
        batch, failed = staged.batch, failed + staged.failed
        outs += staged.letters
    else:
        batch = _untold(batch, processing_ms)
    if batch.num_rows:
        if floor_ms > MIN_TIME:
            batch = with_column(batch, TS, pc.max_element_wise(batch.column(TS), pa.scalar(floor_ms, pa.int64())))
        outs.insert(0, Out(OUT, "rows", _numbered(batch)))
    return outs, failed


def _untold(batch: pa.RecordBatch, processing_ms: int) -> pa.RecordBatch:
    """Results, of which nothing is told that was set in front of the window, nor when a record arrived."""
    told = (META, AGAIN, ARRIVAL) if processing_ms == MIN_TIME else (META, AGAIN)
    gone = [name for name in told if name in batch.schema.names]
    return batch.drop_columns(gone) if gone else batch


# --- groups to rows ---------------------------------------------------------------------------------------------------


def _finished(plan: WindowPlan, ready: pa.RecordBatch, processing_ms: int) -> pa.RecordBatch:
    if plan.mode == "rows":
        ready = ready.take(sorted_by(ready, plan.standing))
        engine = {n: a for n, a in _engine(plan, ready, processing_ms).items() if n != POS}
        kept = (REST, PART, POS, SRCKEY, META, AGAIN, *(() if ARRIVAL in engine else (ARRIVAL,)))
        own = {name: ready.column(name) for name in kept if name in ready.schema.names}
        named = {**engine, **own, EVENT: ready.column(TS), ORDER: _times(plan, ready)}
        return pa.RecordBatch.from_arrays(list(named.values()), names=list(named))
    ready = ready.take(sorted_by(ready, [*plan.window_columns, *plan.key_columns]))
    engine = _engine(plan, ready, processing_ms)
    if plan.typed is None:
        return general_group.batch_of_groups(plan.group, general_group.finish(plan, ready), engine)
    columns = typed_group.finish(plan.typed, ready) + [(pa.field(n, a.type), a) for n, a in engine.items()]
    return pa.RecordBatch.from_arrays([a for _, a in columns], schema=pa.schema([f for f, _ in columns]))


def _times(plan: WindowPlan, ready: pa.RecordBatch) -> pa.Array:
    return ready.column(ARRIVAL if plan.processing_time else TS)


def sorted_by(ready: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """Indices in the order of these columns, ascending, nulls first, as Spark sorts."""
    ranked = [numbers for name in columns for numbers in _ranked(ready.column(name))]
    told = [(column, int(column.min()), int(column.max())) for column in ranked]
    told = [each for each in told if each[1] < each[2]]
    if math.prod(most - least + 1 for _, least, most in told) >= _SPAN_MAX:
        return pa.array(np.lexsort([column for column, _, _ in reversed(told)]))
    whole = np.zeros(ready.num_rows, dtype=np.int64)  # one number for all columns: they are sorted once
    for column, least, most in told:
        whole = whole * (most - least + 1) + (column - least)
    return pa.array(np.argsort(whole, kind="stable"))


def _ranked(column: pa.Array) -> tuple[Int64s, ...]:
    """Numbers that, one behind the other, stand in the order of the cells, equal ones for equal cells; shape (n,) each."""
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        numbers = numbers_of(column)
        if not column.null_count:
            return (numbers,)
        return column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64), numbers
    groups = groups_of([column], len(column))
    order = pc.array_sort_indices(column.take(pa.array(groups.firsts)), null_placement="at_start")
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order.to_numpy()] = np.arange(len(order))
    return (ranks[groups.codes],)


def _engine(plan: WindowPlan, ready: pa.RecordBatch, processing_ms: int) -> dict[str, pa.Array]:
    """Engine columns of the output, a row each: output time, order key, arrival, window."""
    n = ready.num_rows
    columns = {TS: pa.array(output_times(plan, ready)), WSTART: ready.column(WSTART), WEND: ready.column(WEND)}
    columns |= _places(columns, n)
    if plan.sessions or not plan.spec.whole:
        columns[HASH] = pa.array((hashes(plan, ready) & np.uint32(_POSITIVE)).astype(np.int64))
    chosen = chosen_by(plan)
    if chosen is not None:
        columns[CHOSEN] = ready.column(chosen)
    if plan.sessions:
        columns[SESSION], columns[SESSION_KEY] = ready.column(SESSION), ready.column(SESSION_KEY)
    if processing_ms != MIN_TIME:
        columns[ARRIVAL] = pa.array(np.full(n, processing_ms, dtype=np.int64))
    return columns


def output_times(plan: WindowPlan, ready: pa.RecordBatch) -> Int64s:
    """W6: the last instant inside, or the earliest or latest element that was on time; ms, shape (n,)."""
    ends: Int64s = ready.column(WEND).to_numpy()
    name = chosen_by(plan)
    if name is None:
        return ends - 1
    found = pc.coalesce(ready.column(name), pa.array(ends - 1))
    times: Int64s = found.to_numpy(zero_copy_only=False)
    return times


def chosen_by(plan: WindowPlan) -> str | None:
    """The column that has the time of `outputTime`, null where the end takes its place; None where it always does."""
    return {"earliest": FIRST, "latest": LAST}.get(plan.spec.stage.output_time)


def _numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """POS anew, by the order of the output; without the columns of this module."""
    names = batch.schema.names
    places = _places({name: batch.column(name) for name in (WSTART, WEND, HASH) if name in names}, batch.num_rows)
    gone = [n for n in (CHOSEN, ORDER, HASH, EVENT, SRCKEY, SESSION) if n in names]
    batch = batch.drop_columns(gone) if gone else batch
    return with_column(with_column(batch, PART, places[PART]), POS, places[POS])


def _places(columns: Mapping[str, pa.Array], rows: int) -> dict[str, pa.Array]:
    """PART and POS of output, in which rows of one window stand together. PART says that these rows are no records.

    Keys that are worked on apart are told apart by their hashes, so that the order of their rows depends on no number of tasks.
    """
    ends: Int64s = columns[WEND].to_numpy()
    if HASH not in columns:
        return {PART: no_split(rows), POS: pa.array(ranks(ends))}
    told: Int64s = columns[HASH].to_numpy()
    alike = (told, columns[WSTART].to_numpy(), ends)
    order = np.lexsort(alike)
    positions = np.empty(rows, dtype=np.int64)
    positions[order] = ranks(*(column[order] for column in alike))
    return {PART: pa.array((told + NO_SPLIT_LEAST).astype(np.int32)), POS: pa.array(positions)}
