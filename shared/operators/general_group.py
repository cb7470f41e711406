"""`$group` of any expressions: partial rows hold the encoded states of the language's accumulators.

A partial row is one (window, key): KEY, the `_id` of its row with the least order key (equal keys of different types show that one), the
rows in it, and a state for each accumulator. Merge and finish are the accumulators' own, so any split and any order gives the same. Of
sessions there are partials without rows, too, where stages inside the window dropped rows: these are no group, but extend the session.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.accumulators.base import AnyImplementation, TooManyValues
from tidemark.shared.language.accumulators.bulk import finished, merged, states
from tidemark.shared.language.accumulators.table import implementation
from tidemark.shared.language.stages import Group
from tidemark.shared.operators.base import KEY, WEND, WSTART, OperatorError
from tidemark.shared.operators.batches import TAGGED_FIELD, batch_of, is_engine, one_batch, select, values_of
from tidemark.shared.operators.cells import canonical_cells
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.dead_letters import RowFailure
from tidemark.shared.operators.general_columns import NULL, Int64s, Members, first_rows, members, places_of
from tidemark.shared.operators.grouping import Groups, Merge, groups_of, one_array, together
from tidemark.shared.operators.sessions import assign_sessions
from tidemark.shared.operators.typed_group import ROWS
from tidemark.shared.operators.window_plan import ID, ORDER, SESSION, SESSION_KEY, WindowPlan, state_column


def partials(plan: WindowPlan, rows: pa.RecordBatch, topic: Topics = None) -> tuple[pa.Table, list[RowFailure]]:
    """Rows with their windows aggregated by window and key.

    Rows on which an expression fails, or that an accumulator refuses, are left out of all accumulators and handed back.
    """
    if not rows.num_rows:
        return plan.partial_schema.empty_table(), []
    if plan.sessions:  # rows of one session need not be partials of their own
        rows = one_batch(assign_sessions(pa.Table.from_batches([rows])))
    groups, found, failures = _grouped(
        plan.group, rows, _window_columns(plan), places_of(plan, rows), plan.extras, topic
    )
    return _table(
        plan,
        groups.windows,
        canonical_cells(groups.ids),
        groups.ids,
        groups.counts,
        groups.first_orders,
        found,
        groups.extras,
    ), failures


def _grouped(
    group: Group, rows: pa.RecordBatch, window: Sequence[str], places: Sequence[Int64s], extras: Mapping[str, Merge], topic: Topics
) -> tuple[Members, list[pa.BinaryArray], list[RowFailure]]:  # fmt: skip
    """The groups, their states by accumulator, and the rows that are in none."""
    accumulators = _accumulators(group)
    groups, failures = members(group, rows, window, places, extras, topic, accumulators)
    try:
        return groups, [states(a, given) for a, given in zip(accumulators, groups.inputs, strict=True)], failures
    except TooManyValues as e:
        raise _too_large(group, e) from e


def regrouped(
    group: Group, rows: pa.RecordBatch, window: str, places: Sequence[Int64s], topic: Topics
) -> tuple[Int64s, list[pa.BinaryArray], list[RowFailure]]:
    """A `$group` of all rows of some windows, which a column numbers: (the window of each row, its columns, the failures).

    Rows come in the order of the first row of each group; the columns are those of `finish`.
    """
    groups, found, failures = _grouped(group, rows, [window], places, {}, topic)
    if failures:  # which may have been the first of their groups
        kept = np.ones(rows.num_rows, dtype=np.bool_)
        kept[[failure.row for failure in failures]] = False
        groups, found, _ = _grouped(group, select(rows, kept), [window], [p[kept] for p in places], {}, topic)
    equal = groups_of([groups.windows[0], canonical_cells(groups.ids)], len(groups.ids))
    accumulators = _accumulators(group)
    if len(equal.firsts) < len(groups.ids):
        found = _states_merged(group, found, equal)
    shown = groups.ids.take(pa.array(first_rows(equal, groups.first_orders)))
    columns = [shown, *(finished(a, column) for a, column in zip(accumulators, found, strict=True))]
    return groups.windows[0].to_numpy()[equal.firsts], columns, failures


EXTENT: Final = b""
"""KEY of partials that hold no rows; no value's key is empty."""


def extents(plan: WindowPlan, rows: pa.RecordBatch) -> pa.Table:
    """The sessions of all rows as partials without rows: they merge as all do, and `without_extents` leaves them out at the end."""
    sessions = one_batch(assign_sessions(pa.Table.from_batches([rows])))
    columns = [sessions.column(name) for name in _window_columns(plan)]
    firsts = pa.array(groups_of(columns, sessions.num_rows).firsts)
    count, zeros = len(firsts), np.zeros(len(firsts), np.int64)
    return _table(
        plan, [column.take(firsts) for column in columns], _same(EXTENT, count), _same(NULL, count), zeros, [zeros] * len(ORDER),
        [_same(a.encode(a.init()), count) for a in _accumulators(plan.group)],
        [pa.nulls(count, pa.int64()) for _ in plan.extras],
    )  # fmt: skip


def _same(cell: bytes, count: int) -> pa.BinaryArray:
    return pa.repeat(pa.scalar(cell, pa.binary()), count)


def without_extents(whole: pa.RecordBatch) -> pa.RecordBatch:
    """The partials that are groups."""
    groups = pc.not_equal(whole.column(KEY), pa.scalar(EXTENT, pa.binary()))
    return whole if pc.all(groups).as_py() else whole.filter(groups)


def merge(plan: WindowPlan, table: pa.Table) -> pa.Table:
    """Partial rows of one window and key become one, where the first of them stood; a row that is alone is not looked into."""
    table = table.select(plan.partial_schema.names).combine_chunks()
    groups = groups_of([table.column(name) for name in (*_window_columns(plan), KEY)], table.num_rows)
    together = np.bincount(groups.codes, minlength=1)[groups.codes] > 1
    if not together.any():
        return table
    mask = pa.array(together)
    both = pa.concat_tables([table.filter(pc.invert(mask)), _merged(plan, table.filter(mask))])
    firsts = groups.firsts[together[groups.firsts]]
    return both.take(pa.array(np.argsort(np.concatenate((np.flatnonzero(~together), firsts)), kind="stable")))


def _merged(plan: WindowPlan, table: pa.Table) -> pa.Table:
    columns = {name: one_array(table.column(name)) for name in table.column_names}
    keys = [columns[name] for name in _window_columns(plan)]
    groups = groups_of([*keys, columns[KEY]], table.num_rows)
    orders = [columns[name].to_numpy() for name in ORDER]
    firsts, shown = pa.array(groups.firsts), first_rows(groups, orders)
    found = _states_merged(plan.group, [columns[state_column(i)] for i in range(len(plan.group.fields))], groups)
    return _table(
        plan, [column.take(firsts) for column in keys], columns[KEY].take(firsts), columns[ID].take(pa.array(shown)),
        groups.reduced(columns[ROWS], "sum").to_numpy(), [order[shown] for order in orders], found,
        [groups.reduced(columns[name], how) for name, how in plan.extras.items()],
    )  # fmt: skip


def _states_merged(group: Group, found: Sequence[pa.BinaryArray], groups: Groups) -> list[pa.BinaryArray]:
    """The states of rows, by accumulator, merged by group; those of a group in the order of the rows."""
    order, bounds = together(groups, np.arange(len(groups.codes)))
    taken = pa.array(order)
    try:
        return [merged(a, c.take(taken), bounds) for a, c in zip(_accumulators(group), found, strict=True)]
    except TooManyValues as e:
        raise _too_large(group, e) from e


def finish(plan: WindowPlan, whole: pa.RecordBatch) -> list[pa.BinaryArray]:
    """The values of `_id`, then those of each field, encoded."""
    accumulators = _accumulators(plan.group)
    found = [finished(a, whole.column(state_column(i))) for i, a in enumerate(accumulators)]
    return [whole.column(ID), *found]


def batch_of_groups(group: Group, columns: Sequence[pa.BinaryArray], engine: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Rows of `_id` and the fields, a column of encoded values each, and the engine's."""
    names = ["_id", *(field.name for field in group.fields)]
    if any(map(is_engine, names)):  # only documents can have such fields (B5)
        rows = zip(*(values_of(column, TAGGED_FIELD) for column in columns), strict=True)
        return batch_of([dict(zip(names, row, strict=True)) for row in rows], engine)
    fields = [TAGGED_FIELD.with_name(name) for name in names]
    fields += [pa.field(name, array.type) for name, array in engine.items()]
    return pa.RecordBatch.from_arrays([*columns, *engine.values()], schema=pa.schema(fields))


# --- inside -----------------------------------------------------------------------------------------------------------


def _too_large(group: Group, error: TooManyValues) -> OperatorError:
    return OperatorError(f"{group.path}: {error.reason}; or make groups smaller")


def _accumulators(group: Group) -> list[AnyImplementation]:
    return [implementation(field.accumulator) for field in group.fields]


def _window_columns(plan: WindowPlan) -> list[str]:
    return [WSTART, WEND, SESSION, SESSION_KEY] if plan.sessions else [WSTART, WEND]


def _table(
    plan: WindowPlan, windows: Sequence[pa.Array], keys: pa.BinaryArray, ids: pa.BinaryArray, rows: Int64s, orders: Sequence[Int64s],
    found: Sequence[pa.BinaryArray], extras: Sequence[pa.Array],
) -> pa.Table:  # fmt: skip
    """Partials; found: states by accumulator; extras: by extra column."""
    columns: dict[str, pa.Array] = dict(zip(_window_columns(plan), windows, strict=True))
    columns |= {KEY: keys, ID: ids, ROWS: pa.array(rows)}
    columns |= {name: pa.array(order) for name, order in zip(ORDER, orders, strict=True)}
    columns |= {state_column(i): column for i, column in enumerate(found)}
    columns |= dict(zip(plan.extras, extras, strict=True))
    return pa.table({name: columns[name] for name in plan.partial_schema.names}, schema=plan.partial_schema)
