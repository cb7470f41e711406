"""`$group` of any expressions: partial rows hold the encoded states of the language's accumulators.

A partial row is one (window, key): KEY, the `_id` of its row with the least order key (equal keys of different types show that one), the
rows in it, and a state for each accumulator. Merge and finish are the accumulators' own, so any split and any order gives the same. Of
sessions there are partials without rows, too, where stages inside the window dropped rows: these are no group, but extend the session.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.accumulators.base import AnyImplementation, OrderKey, TooManyValues
from tidemark.shared.language.accumulators.bulk import adder
from tidemark.shared.language.accumulators.table import implementation
from tidemark.shared.language.stages import Group
from tidemark.shared.language.values import canonical_key, decode_value, encode_docs
from tidemark.shared.model.values import Value
from tidemark.shared.operators.base import KEY, WEND, WSTART, OperatorError
from tidemark.shared.operators.batches import batch_of, is_engine, one_batch, select
from tidemark.shared.operators.cells import column_of
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.dead_letters import Failure
from tidemark.shared.operators.general_columns import Int64s, Members, members, places_of
from tidemark.shared.operators.grouping import Merge, groups_of
from tidemark.shared.operators.sessions import assign_sessions
from tidemark.shared.operators.typed_group import ROWS
from tidemark.shared.operators.window_plan import ID, ORDER, SESSION, SESSION_KEY, WindowPlan, state_column

_Window = tuple[Any, ...]


@dataclass(slots=True)
class _Entry:
    window: _Window
    key: bytes
    value: Value
    order: OrderKey
    rows: int
    states: list[Any]
    extras: list[int | None]


def partials(plan: WindowPlan, rows: pa.RecordBatch, topic: Topics = None) -> tuple[pa.Table, list[Failure]]:
    """Rows with their windows aggregated by window and key.

    Rows on which an expression fails, or that an accumulator refuses, are left out of all accumulators and handed back.
    """
    if not rows.num_rows:
        return _table(plan, _accumulators(plan.group), ()), []
    if plan.sessions:  # rows of one session need not be partials of their own
        rows = one_batch(assign_sessions(pa.Table.from_batches([rows])))
    places = places_of(plan, rows)
    groups, states, failures = _grouped(plan.group, rows, _window_columns(plan), places, plan.extras, topic)
    keys, counts = list(map(canonical_key, groups.ids)), np.diff(groups.bounds).tolist()
    table = _of_columns(
        plan, groups.windows, keys, groups.ids, groups.first_orders, counts,
        [list(map(a.encode, column)) for a, column in zip(_accumulators(plan.group), states, strict=True)], groups.extras,
    )  # fmt: skip
    return table, failures


def _grouped(
    group: Group, rows: pa.RecordBatch, window: Sequence[str], places: Sequence[Int64s], extras: Mapping[str, Merge], topic: Topics
) -> tuple[Members, list[list[Any]], list[Failure]]:  # fmt: skip
    """The groups, their states by accumulator, and the rows that are in none."""
    accumulators = _accumulators(group)
    groups, failures = members(group, rows, window, places, extras, topic, accumulators)
    given = zip(accumulators, groups.inputs, strict=True)
    adders = [adder(a, values, groups.bounds, groups.orders) for a, values in given]
    numbers = range(len(groups.ids))
    try:
        states = [[add(a.init(), n) for n in numbers] for a, add in zip(accumulators, adders, strict=True)]
    except TooManyValues as e:
        raise _too_large(group, e) from e
    return groups, states, failures


def regrouped(
    group: Group, rows: pa.RecordBatch, window: str, places: Sequence[Int64s], topic: Topics
) -> tuple[list[int], list[list[Value]], list[Failure]]:
    """A `$group` of all rows of some windows, which a column numbers: (the window of each row, its columns, the failures).

    Rows come in the order of the first row of each group; the columns are those of `finish`.
    """
    groups, states, failures = _grouped(group, rows, [window], places, {}, topic)
    if failures:  # which may have been the first of their groups
        kept = np.ones(rows.num_rows, dtype=np.bool_)
        kept[[failure.row for failure in failures]] = False
        groups, states, _ = _grouped(group, select(rows, kept), [window], [p[kept] for p in places], {}, topic)
    accumulators, found = _accumulators(group), dict[tuple[int, bytes], int]()
    ids, orders = list(groups.ids), list(groups.first_orders)
    for number, (of_window, value) in enumerate(zip(groups.windows, groups.ids, strict=True)):
        known = found.setdefault((of_window[0], canonical_key(value)), number)
        if known == number:
            continue
        if orders[number] < orders[known]:
            ids[known], orders[known] = ids[number], orders[number]
        try:
            for a, column in zip(accumulators, states, strict=True):
                column[known] = a.merge(column[known], column[number])
        except TooManyValues as e:
            raise _too_large(group, e) from e
    columns = [[a.finish(column[n]) for n in found.values()] for a, column in zip(accumulators, states, strict=True)]
    return [of_window for of_window, _ in found], [[ids[n] for n in found.values()], *columns], failures


EXTENT: Final = b""
"""KEY of partials that hold no rows; no value's key is empty."""


def extents(plan: WindowPlan, rows: pa.RecordBatch) -> pa.Table:
    """The sessions of all rows as partials without rows: they merge as all do, and `without_extents` leaves them out at the end."""
    sessions = assign_sessions(pa.Table.from_batches([rows]))
    accumulators = _accumulators(plan.group)
    extras: list[int | None] = [None] * len(plan.extras)
    windows = dict.fromkeys(_windows(plan, sessions))
    entries = [_Entry(w, EXTENT, None, (0, 0, 0), 0, [a.init() for a in accumulators], extras) for w in windows]
    return _table(plan, accumulators, entries)


def without_extents(merged: pa.RecordBatch) -> pa.RecordBatch:
    """The partials that are groups."""
    groups = pc.not_equal(merged.column(KEY), pa.scalar(EXTENT, pa.binary()))
    return merged if pc.all(groups).as_py() else merged.filter(groups)


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
    accumulators = _accumulators(plan.group)
    entries: dict[tuple[_Window, bytes], _Entry] = {}
    for entry in _entries(plan, accumulators, table):
        known = entries.setdefault((entry.window, entry.key), entry)
        if known is entry:
            continue
        if entry.order < known.order:
            known.value, known.order = entry.value, entry.order
        known.rows += entry.rows
        try:
            known.states = [
                a.merge(left, right) for a, left, right in zip(accumulators, known.states, entry.states, strict=True)
            ]
        except TooManyValues as e:
            raise _too_large(plan.group, e) from e
        _extend(plan, known, entry.extras)
    return _table(plan, accumulators, entries.values())


def finish(plan: WindowPlan, merged: pa.RecordBatch) -> list[list[Value]]:
    """The values of `_id`, then those of each field."""
    accumulators = _accumulators(plan.group)
    states = [merged.column(state_column(i)).to_pylist() for i in range(len(accumulators))]
    columns = [[a.finish(a.decode(state)) for state in column] for a, column in zip(accumulators, states, strict=True)]
    return [list(map(decode_value, merged.column(ID).to_pylist())), *columns]


def batch_of_groups(group: Group, columns: Sequence[Sequence[Value]], engine: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Rows of `_id` and the fields, a column each, and the engine's."""
    names = ["_id", *(field.name for field in group.fields)]
    if any(map(is_engine, names)):  # only documents can have such fields (B5)
        return batch_of([dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)], engine)
    made = [column_of(values) for values in columns]
    fields = [named.with_name(name) for name, (named, _) in zip(names, made, strict=True)]
    fields += [pa.field(name, array.type) for name, array in engine.items()]
    return pa.RecordBatch.from_arrays([*(array for _, array in made), *engine.values()], schema=pa.schema(fields))


# --- inside -----------------------------------------------------------------------------------------------------------


def _too_large(group: Group, error: TooManyValues) -> OperatorError:
    return OperatorError(f"{group.path}: {error.reason}; or make groups smaller")


def _accumulators(group: Group) -> list[AnyImplementation]:
    return [implementation(field.accumulator) for field in group.fields]


def _extend(plan: WindowPlan, entry: _Entry, more: Sequence[int | None]) -> None:
    for i, (how, cell) in enumerate(zip(plan.extras.values(), more, strict=True)):
        known = entry.extras[i]
        if known is None or cell is None:
            entry.extras[i] = cell if known is None else known
        else:
            entry.extras[i] = min(known, cell) if how == "min" else max(known, cell)


def _window_columns(plan: WindowPlan) -> list[str]:
    return [WSTART, WEND, SESSION, SESSION_KEY] if plan.sessions else [WSTART, WEND]


def _windows(plan: WindowPlan, rows: pa.RecordBatch | pa.Table) -> list[_Window]:
    return list(zip(*(rows.column(name).to_pylist() for name in _window_columns(plan)), strict=True))


def _entries(plan: WindowPlan, accumulators: Sequence[AnyImplementation], table: pa.Table) -> Iterable[_Entry]:
    keys, ids = table.column(KEY).to_pylist(), table.column(ID).to_pylist()
    orders = list(zip(*(table.column(name).to_pylist() for name in ORDER), strict=True))
    counts = table.column(ROWS).to_pylist()
    states = [table.column(state_column(i)).to_pylist() for i in range(len(accumulators))]
    extras = [table.column(name).to_pylist() for name in plan.extras]
    for row, window in enumerate(_windows(plan, table)):
        decoded = [a.decode(column[row]) for a, column in zip(accumulators, states, strict=True)]
        yield _Entry(
            window, keys[row], decode_value(ids[row]), orders[row], counts[row], decoded, [c[row] for c in extras]
        )


def _table(plan: WindowPlan, accumulators: Sequence[AnyImplementation], entries: Iterable[_Entry]) -> pa.Table:
    found = list(entries)
    return _of_columns(
        plan, [e.window for e in found], [e.key for e in found], [e.value for e in found], [e.order for e in found],
        [e.rows for e in found], [[a.encode(e.states[i]) for e in found] for i, a in enumerate(accumulators)],
        [[e.extras[i] for e in found] for i in range(len(plan.extras))],
    )  # fmt: skip


def _of_columns(
    plan: WindowPlan, windows: Sequence[_Window], keys: Sequence[bytes], ids: Sequence[Value], orders: Sequence[OrderKey],
    rows: Sequence[int], states: Sequence[Sequence[bytes]], extras: Sequence[Sequence[int | None]],
) -> pa.Table:  # fmt: skip
    """Partials; states: by accumulator, encoded; extras: by extra column."""
    columns: dict[str, Any] = {name: [w[i] for w in windows] for i, name in enumerate(_window_columns(plan))}
    columns |= {KEY: keys, ID: encode_docs(ids), ROWS: rows}
    columns |= {name: [order[i] for order in orders] for i, name in enumerate(ORDER)}
    columns |= {state_column(i): column for i, column in enumerate(states)}
    columns |= dict(zip(plan.extras, extras, strict=True))
    return pa.table({name: columns[name] for name in plan.partial_schema.names}, schema=plan.partial_schema)
