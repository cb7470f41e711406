"""What closed windows give: finish the groups, run what stands behind `$group`, set the output time.

Whole windows come in, of any number: rows of one window end stand together, here and in whatever partition of Spark, so that the
order within a window, and POS, are the same wherever it is closed.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.accumulators.base import OrderKey, TooManyValues
from tidemark.shared.language.apply import apply_count, apply_group, apply_limit, apply_sort
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.stages import Count, Group, InnerStage, Limit, Sort, Stateless
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators import general_group, typed_group
from tidemark.shared.operators.base import (
    ARRIVAL,
    EVENT,
    NO_SPLIT,
    NO_SPLIT_LEAST,
    PART,
    POS,
    SRCKEY,
    TS,
    WEND,
    WSTART,
    OperatorError,
    Out,
)
from tidemark.shared.operators.batches import batch_of, concat, documents_of, one_batch, with_column
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import Failure, dead_letters
from tidemark.shared.operators.grouping import groups_of, numbers_of
from tidemark.shared.operators.keygroups import murmur2_column
from tidemark.shared.operators.program import through
from tidemark.shared.operators.rows import environments
from tidemark.shared.operators.window_plan import FIRST, LAST, SESSION, SESSION_KEY, WindowPlan

Int64s = npt.NDArray[np.int64]
_POSITIVE = 0x7FFFFFFF
_SPAN_MAX = 2**62
"""Numbers below it do not overflow."""
_Rows = list[tuple[Document, OrderKey]]


def close(
    plan: WindowPlan, ready: pa.RecordBatch, processing_ms: int, context: TaskContext, floor_ms: int = MIN_TIME
) -> tuple[list[Out], int]:
    """The output of closed windows (merged partials, or rows with their windows), and how many documents failed.

    floor_ms: what comes out has no time before it (W1).
    """
    if plan.sessions and plan.mode == "general":
        ready = general_group.without_extents(ready)
    outs: list[Out] = []
    failed = 0
    if not ready.num_rows:
        return outs, failed
    batch = _finished(plan, ready, processing_ms)
    own = len(plan.after) - plan.spec.stages_behind
    stages = list(plan.after[:own])
    while stages and batch.num_rows:
        run: list[Stateless] = []
        while stages and not isinstance(stages[0], Group | Sort | Limit | Count):
            run.append(stages.pop(0))  # type: ignore[arg-type]
        if run:
            staged = through(run, batch, context)
            batch, failed = staged.batch, failed + staged.failed
            outs += staged.letters
        elif batch.num_rows:
            batch, letters = _windowed(plan, stages.pop(0), batch, context)
            failed += sum(out.batch.num_rows for out in letters)
            outs += letters
    if plan.spec.stages_behind and batch.num_rows:
        # What leaves a window is its result, also a row that is as its record was.
        result = with_column(batch, PART, _no_split(batch.num_rows))
        staged = through(plan.after[own:], result, context)  # type: ignore[arg-type]
        batch, failed = staged.batch, failed + staged.failed
        outs += staged.letters
    if batch.num_rows:
        if floor_ms > MIN_TIME:
            batch = with_column(batch, TS, pc.max_element_wise(batch.column(TS), pa.scalar(floor_ms, pa.int64())))
        outs.insert(0, Out(OUT, "rows", _numbered(batch)))
    return outs, failed


# --- groups to rows ---------------------------------------------------------------------------------------------------


def _finished(plan: WindowPlan, ready: pa.RecordBatch, processing_ms: int) -> pa.RecordBatch:
    if plan.mode == "rows":
        order = sorted_by(ready, [*plan.window_columns, *([ARRIVAL] if plan.processing_time else [TS]), PART, POS])
        ready = ready.take(order)
        engine = {n: a for n, a in _engine(plan, ready, processing_ms).items() if n != POS}
        own = {name: ready.column(name) for name in (PART, POS, SRCKEY)}
        return batch_of(documents_of(ready), {**engine, **own, EVENT: ready.column(TS), _ORDER: _times(plan, ready)})
    ready = ready.take(sorted_by(ready, [*plan.window_columns, *plan.key_columns]))
    engine = _engine(plan, ready, processing_ms)
    if plan.typed is None:
        return batch_of(general_group.finish(plan, ready), engine)
    columns = typed_group.finish(plan.typed, ready) + [(pa.field(n, a.type), a) for n, a in engine.items()]
    return pa.RecordBatch.from_arrays([a for _, a in columns], schema=pa.schema([f for f, _ in columns]))


_CHOSEN = "__chosen"
"""Engine column inside this module: the earliest or latest time of what a row was made of, null for none (W6)."""
_ORDER = "__order"
"""Engine column inside this module: the first part of the order key of rows that no `$group` has aggregated yet."""


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
    columns = {
        TS: pa.array(output_times(plan, ready)),
        **_places(ready),
        WSTART: ready.column(WSTART),
        WEND: ready.column(WEND),
    }
    chosen = chosen_by(plan)
    if chosen is not None:
        columns[_CHOSEN] = ready.column(chosen)
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


def ranks(*columns: Int64s) -> Int64s:
    """0, 1, 2, … within runs of rows that are equal in all columns, shape (n,)."""
    n = len(columns[0])
    index = np.arange(n, dtype=np.int64)
    differs = np.any([c[1:] != c[:-1] for c in columns], axis=0)
    starts = np.concatenate(([True], differs))[:n]
    return index - np.maximum.accumulate(np.where(starts, index, 0))


def _numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """POS anew, by the order of the output; without the columns of this module."""
    places = _places(batch)
    gone = [n for n in (_CHOSEN, _ORDER, EVENT, SRCKEY, SESSION, SESSION_KEY) if n in batch.schema.names]
    batch = batch.drop_columns(gone) if gone else batch
    return with_column(with_column(batch, PART, places[PART]), POS, places[POS])


def _places(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """PART and POS of output, whose rows of one window stand together; it is no record, and PART says so.

    Sessions of several keys that end together may be closed apart from each other: what tells them apart is the hash of the key.
    """
    ends: Int64s = batch.column(WEND).to_numpy()
    if SESSION not in batch.schema.names:
        return {PART: _no_split(len(ends)), POS: pa.array(ranks(ends))}
    hashes = (murmur2_column(batch.column(SESSION)) & np.uint32(_POSITIVE)).astype(np.int64)
    codes = batch.column(SESSION).dictionary_encode().indices.to_numpy(zero_copy_only=False)
    parts = pa.array((hashes + NO_SPLIT_LEAST).astype(np.int32))
    return {PART: parts, POS: pa.array(ranks(ends, batch.column(WSTART).to_numpy(), codes))}


def _no_split(rows: int) -> pa.Array:
    return pa.array(np.full(rows, NO_SPLIT, dtype=np.int32))


# --- stages that look at a whole window -------------------------------------------------------------------------------


def _windowed(
    plan: WindowPlan, stage: InnerStage, batch: pa.RecordBatch, context: TaskContext
) -> tuple[pa.RecordBatch, list[Out]]:
    columns = [batch.column(name).to_pylist() for name in plan.window_columns]
    windows = list(zip(*columns, strict=True))
    starts = [i for i in range(len(windows)) if i == 0 or windows[i] != windows[i - 1]]
    parts, letters = [], []
    for begin, end in zip(starts, [*starts[1:], len(windows)], strict=True):
        part, more = _one_window(plan, stage, batch.slice(begin, end - begin), context)
        letters += more
        if part.num_rows:
            parts.append(part)
    return (one_batch(concat(parts)) if parts else batch.slice(0, 0)), letters


def _one_window(
    plan: WindowPlan, stage: InnerStage, window: pa.RecordBatch, context: TaskContext
) -> tuple[pa.RecordBatch, list[Out]]:
    documents = documents_of(window)
    if isinstance(stage, Limit):
        return window.slice(0, len(apply_limit(stage, documents))), []
    if isinstance(stage, Sort):
        numbered = [{**d, _ORDER: i} for i, d in enumerate(documents)]
        order = [d[_ORDER] for d in apply_sort(stage, numbered)]
        return _placed(window.take(pa.array(order, type=pa.int64()))), []
    if isinstance(stage, Count):
        return _gathered(plan, window, apply_count(stage, documents)), []
    assert isinstance(stage, Group)
    # One environment stands for all rows, so it names the place of none.
    env = environments(with_column(window, PART, _no_split(len(documents))), documents, context.topic)[0]
    rows: _Rows = list(zip(documents, _orders(window), strict=True))
    found, failures = _grouped(stage, rows, env)
    return _gathered(plan, window, found), dead_letters(window, failures, stage.name, context)


def _placed(window: pa.RecordBatch) -> pa.RecordBatch:
    """Behind a `$sort` its order is what counts (D15)."""
    n = window.num_rows
    window = with_column(window, _ORDER, pa.array(np.zeros(n, dtype=np.int64)))
    window = with_column(window, PART, _no_split(n))
    return with_column(window, POS, pa.array(np.arange(n, dtype=np.int64)))


def _orders(window: pa.RecordBatch) -> list[OrderKey]:
    names = [_ORDER if _ORDER in window.schema.names else TS, PART, POS]
    return list(zip(*(window.column(n).to_pylist() for n in names), strict=True))


def _grouped(stage: Group, rows: _Rows, env: Environment) -> tuple[list[Document], list[Failure]]:
    """`$group` without the rows on which it fails."""
    try:
        return apply_group(stage, rows, env), []
    except ExpressionError:
        kept, failures = [], []
        for i, row in enumerate(rows):
            error = _error(lambda row=row: apply_group(stage, [row], env))  # type: ignore[misc]
            if error is None:
                kept.append(row)
            else:
                failures.append(Failure(i, error.reason, error.code, error.path or stage.path))
        try:
            return apply_group(stage, kept, env), failures
        except TooManyValues as e:
            raise OperatorError(f"{stage.path}: {e.reason}; or make groups smaller") from e


def _error(call: Callable[[], Any]) -> ExpressionError | None:
    try:
        call()
    except ExpressionError as e:
        return e
    return None


def _gathered(plan: WindowPlan, window: pa.RecordBatch, documents: Sequence[Document]) -> pa.RecordBatch:
    """New documents of a whole window: the window's bounds, and the earliest or latest time of its rows."""
    n = len(documents)
    first = window.slice(0, 1).take(pa.array([0] * n, type=pa.int64()))
    engine = {
        name: first.column(name) for name in (WSTART, WEND, SESSION, SESSION_KEY, ARRIVAL) if name in first.schema.names
    }
    time = window.column(WEND)[0].as_py() - 1
    if _CHOSEN in window.schema.names:
        most = pc.max if plan.spec.stage.output_time == "latest" else pc.min
        chosen = most(window.column(_CHOSEN)).as_py()
        engine[_CHOSEN] = pa.array([chosen] * n, type=pa.int64())
        time = time if chosen is None else chosen
    engine[TS] = pa.array([time] * n, type=pa.int64())
    engine[PART] = _no_split(n)
    engine[POS] = pa.array(np.arange(n, dtype=np.int64))
    return batch_of(documents, engine)
