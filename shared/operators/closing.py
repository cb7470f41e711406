"""The output of closed windows: finish the groups, run the stages behind `$group`, set the output time.

Whole windows come in, of any number: rows of one window end stand together, here and in any partition of Spark, so that the
order within a window, and POS, are the same wherever it is closed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import values
from tidemark.shared.language.expressions.ast import SortKey
from tidemark.shared.language.expressions.sorting import sort_items
from tidemark.shared.language.kernels import Unvectorised
from tidemark.shared.language.kernels.arrays import encoded
from tidemark.shared.language.stages import Count, Group, Limit, Sort
from tidemark.shared.language.stages.base import Gathering, Stateless
from tidemark.shared.language.values.ranks import order_of
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators import general_group, typed_group
from tidemark.shared.operators.base import (
    ARRIVAL,
    EVENT,
    NO_SPLIT,
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
from tidemark.shared.operators.batches import batch_of, select, with_column
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import dead_letters
from tidemark.shared.operators.frame import Frame, partial_documents
from tidemark.shared.operators.grouping import Groups, Merge, groups_of, numbers_of
from tidemark.shared.operators.program import through
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
    own = len(plan.after) - plan.spec.stages_behind
    stages = list(plan.after[:own])
    while stages and batch.num_rows:
        stage = stages.pop(0)
        if isinstance(stage, Stateless):
            staged = through([stage], batch, context)
            batch, failed = staged.batch, failed + staged.failed
            outs += staged.letters
        else:
            batch, letters = _windowed(plan, stage, batch, context)
            failed += sum(out.batch.num_rows for out in letters)
            outs += letters
    if plan.spec.stages_behind and batch.num_rows:
        # A row that leaves a window is its result, even if it equals its record.
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
        own = {name: ready.column(name) for name in (REST, PART, POS, SRCKEY)}
        named = {**engine, **own, EVENT: ready.column(TS), _ORDER: _times(plan, ready)}
        return pa.RecordBatch.from_arrays(list(named.values()), names=list(named))
    ready = ready.take(sorted_by(ready, [*plan.window_columns, *plan.key_columns]))
    engine = _engine(plan, ready, processing_ms)
    if plan.typed is None:
        return general_group.batch_of_groups(plan.group, general_group.finish(plan, ready), engine)
    columns = typed_group.finish(plan.typed, ready) + [(pa.field(n, a.type), a) for n, a in engine.items()]
    return pa.RecordBatch.from_arrays([a for _, a in columns], schema=pa.schema([f for f, _ in columns]))


_CHOSEN = "__chosen"
"""Engine column inside this module: the earliest or latest time of the rows behind an output row, null for none (W6)."""
_ORDER = "__order"
"""Engine column inside this module: the first part of the order key of rows that no `$group` has aggregated yet."""
_HASH = "__hash"
"""Engine column inside this module: the hash, of 31 bits, of the key that a row was worked on by, where keys are (`WindowSpec.whole`)."""
_RUN = "__run"
"""Engine column inside this module: the number of the window."""


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
        columns[_HASH] = pa.array((hashes(plan, ready) & np.uint32(_POSITIVE)).astype(np.int64))
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
    names = batch.schema.names
    places = _places({name: batch.column(name) for name in (WSTART, WEND, _HASH) if name in names}, batch.num_rows)
    gone = [n for n in (_CHOSEN, _ORDER, _HASH, EVENT, SRCKEY, SESSION, SESSION_KEY) if n in names]
    batch = batch.drop_columns(gone) if gone else batch
    return with_column(with_column(batch, PART, places[PART]), POS, places[POS])


def _places(columns: Mapping[str, pa.Array], rows: int) -> dict[str, pa.Array]:
    """PART and POS of output, in which rows of one window stand together. PART says that these rows are no records.

    Keys that are worked on apart are told apart by their hashes, so that the order of their rows depends on no number of tasks.
    """
    ends: Int64s = columns[WEND].to_numpy()
    if _HASH not in columns:
        return {PART: _no_split(rows), POS: pa.array(ranks(ends))}
    told: Int64s = columns[_HASH].to_numpy()
    alike = (told, columns[WSTART].to_numpy(), ends)
    order = np.lexsort(alike)
    positions = np.empty(rows, dtype=np.int64)
    positions[order] = ranks(*(column[order] for column in alike))
    return {PART: pa.array((told + NO_SPLIT_LEAST).astype(np.int32)), POS: pa.array(positions)}


def _no_split(rows: int) -> pa.Array:
    return pa.array(np.full(rows, NO_SPLIT, dtype=np.int32))


# --- stages that look at a whole window -------------------------------------------------------------------------------


def _windowed(
    plan: WindowPlan, stage: Gathering, batch: pa.RecordBatch, context: TaskContext
) -> tuple[pa.RecordBatch, list[Out]]:
    """Apply a stage to all windows of a batch, in which the rows of a window stand together."""
    columns = [numbers_of(batch.column(name)) for name in plan.window_columns if name != SESSION]
    columns += [groups_of([batch.column(SESSION)], batch.num_rows).codes] if plan.sessions else []
    places = ranks(*columns)
    starts = np.flatnonzero(places == 0)
    runs = np.cumsum(places == 0) - 1
    match stage:
        case Limit(limit=limit):
            return select(batch, places < limit), []
        case Sort():
            return _placed(batch.take(pa.array(_order(stage, batch, runs))), places), []
        case Count(field=name):
            counts = pa.array(np.diff(starts, append=batch.num_rows).astype(np.int32))
            engine = _gathered(plan, batch, starts, runs, np.arange(len(starts)))
            return batch_of([{name: count} for count in counts.to_pylist()], engine), []
        case _:
            assert isinstance(stage, Group), "there are no others"
            orders = [numbers_of(batch.column(n)) for n in (_ORDER if _ORDER in batch.schema.names else TS, PART, POS)]
            rows = with_column(batch, PART, _no_split(batch.num_rows))  # no row is a record of its own any more
            rows = with_column(rows, _RUN, pa.array(runs))
            windows, columns_of, failures = general_group.regrouped(stage, rows, _RUN, orders, context.topic)
            engine = _gathered(plan, batch, starts, runs, windows)
            letters = dead_letters(batch, failures, stage.name, context)
            return general_group.batch_of_groups(stage, columns_of, engine), letters


def _order(stage: Sort, batch: pa.RecordBatch, runs: Int64s) -> Int64s:
    """The rows, window after window, in the order of a `$sort`; equal ones as they stood."""
    names = frozenset(key.names[0] for key in stage.keys)
    frame = Frame(batch, names)
    frame.prepare(key.names for key in stage.keys)
    found = [_key_of(frame, key) for key in stage.keys]
    if None not in found:
        ranked = [part for each in reversed(found) if each is not None for part in reversed(each)]
        return np.lexsort((*ranked, runs))
    documents = [{**d, _ORDER: i} for i, d in enumerate(partial_documents(batch, names - {_ORDER}))]
    order = np.array([d[_ORDER] for d in sort_items(documents, stage.keys)], dtype=np.int64)
    return order[np.argsort(runs[order], kind="stable")]


def _key_of(frame: Frame, key: SortKey) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Numbers in the order of a sort key, those of the types first; None where only the documents can tell."""
    try:
        cells, unsure = encoded(frame.at(key.names))
    except Unvectorised:
        return None
    found = None if unsure is not None else order_of(values.read(cells))
    return found if found is None or not key.descending else (~found[0], ~found[1])


def _placed(batch: pa.RecordBatch, places: Int64s) -> pa.RecordBatch:
    """Behind a `$sort` its order counts (D15)."""
    n = batch.num_rows
    batch = with_column(batch, _ORDER, pa.array(np.zeros(n, dtype=np.int64)))
    return with_column(with_column(batch, PART, _no_split(n)), POS, pa.array(places))


def _gathered(
    plan: WindowPlan, batch: pa.RecordBatch, starts: Int64s, runs: Int64s, windows: Int64s
) -> dict[str, pa.Array]:
    """Engine columns of new rows of windows: their bounds, and the earliest or latest time of the rows that they had."""
    names = [n for n in (WSTART, WEND, _HASH, SESSION, SESSION_KEY, ARRIVAL) if n in batch.schema.names]
    engine = {name: batch.column(name).take(pa.array(starts[windows])) for name in names}
    times = pc.subtract(engine[WEND], 1)
    if _CHOSEN in batch.schema.names:
        most: Merge = "max" if plan.spec.stage.output_time == "latest" else "min"
        engine[_CHOSEN] = Groups(runs, starts).reduced(batch.column(_CHOSEN), most).take(pa.array(windows))
        times = pc.coalesce(engine[_CHOSEN], times)
    return {**engine, TS: times, PART: _no_split(len(windows)), POS: pa.array(ranks(windows))}
