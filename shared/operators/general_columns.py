"""The rows of a `$group` by window and key, column by column: for `general_group`.

- GC1 The result is that of evaluating each document. A row on which the key or an input fails, or which an accumulator refuses, is in no
  group, and handed back.
- GC2 The rows of a group come in the order of their order keys where an accumulator asks for it; the others do not mind (A1).
- GC3 Groups whose keys are equal, but not the same (1 and 1.0), may come apart: partials of one key merge.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import tags, values
from tidemark.shared.compiled.columns import with_rows
from tidemark.shared.language.accumulators.base import Accumulator, AnyImplementation, TooManyValues
from tidemark.shared.language.accumulators.bulk_base import Given, tuples
from tidemark.shared.language.accumulators.bulk_kept import refusable
from tidemark.shared.language.accumulators.extremes import sort_values
from tidemark.shared.language.accumulators.table import accumulator_input
from tidemark.shared.language.expressions.ast import Expr, Literal, ObjectExpr, SortKey
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.fields import expression_paths
from tidemark.shared.language.kernels.cells import tagged
from tidemark.shared.language.stages import Group
from tidemark.shared.language.values import encode_value
from tidemark.shared.language.values.ranks import counted
from tidemark.shared.model.values import MISSING, Value
from tidemark.shared.operators.base import ARRIVAL, PART, POS, TS
from tidemark.shared.operators.batches import TAGGED_FIELD, values_of
from tidemark.shared.operators.cells import encoded_cells
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.dead_letters import RowFailure
from tidemark.shared.operators.frame import Cells, Frame
from tidemark.shared.operators.grouping import Groups, Merge, groups_of, together
from tidemark.shared.operators.window_plan import WindowPlan

Int64s = npt.NDArray[np.int64]
_REFUSING: Final = frozenset({"$concatArrays", "$mergeObjects", "$setUnion"})
"""Accumulators that do not take every value."""
NULL: Final = encode_value(None)


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """Values of the language, one a row: as a column, or one for all rows."""

    cells: Cells | None = None
    constant: Value = None

    def values(self, rows: Int64s) -> Sequence[Any]:
        """The values of these rows, in that order, MISSING included."""
        if self.cells is None:
            return [self.constant] * len(rows)
        return values_of(self.cells.array.take(pa.array(rows)), self.cells.field)

    def encoded(self, rows: Int64s) -> pa.BinaryArray:
        """The same as encoded cells, null for a missing one."""
        if self.cells is None:
            cell = None if self.constant is MISSING else encode_value(self.constant)
            return pa.repeat(pa.scalar(cell, pa.binary()), len(rows))
        return encoded_cells(self.cells.array.take(pa.array(rows)), self.cells.field)


@dataclass(frozen=True, slots=True)
class Members:
    """The rows of each window and key, group after group, in their order."""

    windows: Sequence[pa.Array]
    """By column of the window, a cell a group."""
    ids: pa.BinaryArray
    """By group: the `_id` of its first row, encoded."""
    inputs: Sequence[Given]
    """By accumulator: the values that rows add."""
    counts: Int64s
    """By group: its rows."""
    first_orders: Sequence[Int64s]
    """The parts of the least order key of each group."""
    extras: Sequence[pa.Array]
    """By extra column, a cell a group."""


def members(
    group: Group,
    rows: pa.RecordBatch,
    window: Sequence[str],
    places: Sequence[Int64s],
    extras: Mapping[str, Merge],
    topic: Topics,
    accumulators: Sequence[AnyImplementation],
) -> tuple[Members, list[RowFailure]]:
    """The groups of rows with their windows (columns `window`), and the rows that are in none (GC1).

    places: the parts of the rows' order keys, shape (n,) each. extras: further columns, and how they merge.
    """
    ordered = any(accumulator.ordered for accumulator in accumulators)
    frame = Frame(rows, group.reads(), topic)
    sorting = (key.names for field in group.fields for key in field.accumulator.sort_by)
    frame.prepare(set(sorting).union(*(expression_paths(expr) for expr in _exprs(group))))
    errors: dict[int, ExpressionError] = {}
    key = _key(group, frame, errors)
    inputs = [_input(field.accumulator, frame, errors) for field in group.fields]
    for at, (accumulator, field) in enumerate(zip(accumulators, group.fields, strict=True)):
        if field.accumulator.op in _REFUSING:
            inputs[at] = _refused(accumulator, inputs[at], places, errors)
    failures = [RowFailure(row, e.reason, e.code, e.path or group.path) for row, e in sorted(errors.items())]
    groups = groups_of([rows.column(name) for name in window] + _coded(key.values(), rows.num_rows), rows.num_rows)
    order = np.lexsort(places[::-1]) if ordered else np.arange(rows.num_rows)
    if errors:
        kept = np.ones(rows.num_rows, dtype=np.bool_)
        kept[list(errors)] = False
        order = order[kept[order]]
    order, bounds = together(groups, order)
    starts = bounds[:-1][np.diff(bounds) > 0]  # a group may have lost all its rows
    bounds = np.append(starts, len(order))
    codes = np.repeat(np.arange(len(starts)), np.diff(bounds))
    inside, of_order = Groups(codes, starts), [place[order] for place in places]
    firsts = order[starts if ordered else first_rows(inside, of_order)]
    found = Members(
        [rows.column(name).take(pa.array(firsts)) for name in window],
        _ids({name: column.encoded(firsts) for name, column in key.items()}),
        [Given(column.encoded(order), bounds, of_order) for column in inputs],
        np.diff(bounds),
        [place[firsts] for place in places],
        [inside.reduced(rows.column(name).take(pa.array(order)), how) for name, how in extras.items()],
    )
    return found, failures


def first_rows(groups: Groups, places: Sequence[Int64s]) -> Int64s:
    """The row of the least order key of each group, shape (m,); of equal ones the first."""
    times, codes = places[0], groups.codes
    least = np.full(len(groups.firsts), np.iinfo(np.int64).max)
    np.minimum.at(least, codes, times)
    best = np.flatnonzero(times == least[codes])
    best = best[np.lexsort((places[2][best], places[1][best], codes[best]))]
    found: Int64s = best[np.flatnonzero(np.diff(codes[best], prepend=-1))]
    return found


def _ids(parts: Mapping[str, pa.BinaryArray]) -> pa.BinaryArray:
    """The keys of groups: the only part, "", or objects of the parts that are not missing."""
    if "" in parts:
        return parts[""].fill_null(NULL)
    count = len(next(iter(parts.values())))
    return values.objects(values.no_fields(count), list(parts), list(parts.values()))


# --- expressions ------------------------------------------------------------------------------------------------------


def _exprs(group: Group) -> Iterable[Expr]:
    yield group.id
    yield from (field.accumulator.input for field in group.fields)


def _key(group: Group, frame: Frame, errors: dict[int, ExpressionError]) -> dict[str, ValueColumn]:
    """The parts of `_id` by name, "" for one that is all of it."""
    expr = group.id
    root = None if group.keeps_fields else expr
    if isinstance(expr, ObjectExpr) and expr.fields and len(dict(expr.fields)) == len(expr.fields):
        return {name: _column(item, frame, errors, root) for name, item in expr.fields}
    return {"": _column(expr, frame, errors)}


def _column(expr: Expr, frame: Frame, errors: dict[int, ExpressionError], root: Expr | None = None) -> ValueColumn:
    return _constant(expr) or _noted(frame.computed(expr, root), errors)


def _constant(expr: Expr) -> ValueColumn | None:
    """One value for all rows; None where it may be no result, or is none."""
    if isinstance(expr, Literal) and type(expr.value) is not list and type(expr.value) is not dict:
        return ValueColumn(constant=expr.value)
    return None


def _noted(cells: Cells, errors: dict[int, ExpressionError]) -> ValueColumn:
    _note(cells.errors, errors)
    return ValueColumn(cells)


def _note(found: Mapping[int, ExpressionError], errors: dict[int, ExpressionError]) -> None:
    for row, error in found.items():
        errors.setdefault(row, error)


def _input(accumulator: Accumulator, frame: Frame, errors: dict[int, ExpressionError]) -> ValueColumn:
    """The values that an accumulator adds, row by row (`accumulator_input`)."""
    if accumulator.n_of_key is not None:
        return _noted(frame.each(lambda env: accumulator_input(accumulator, env)), errors)
    last = _constant(accumulator.input) or _noted(frame.computed(accumulator.input), errors)
    if not accumulator.sort_by:
        return last
    rows = np.arange(frame.size)
    return ValueColumn(
        Cells(TAGGED_FIELD, tuples(_sort_values(accumulator.sort_by, frame), last.encoded(rows).fill_null(NULL)))
    )


def _sort_values(keys: tuple[SortKey, ...], frame: Frame) -> pa.BinaryArray:
    """The sort values of each row. Of an array at a key one of its items counts: within documents, these tell which."""
    parts = [frame.field(*key.names) for key in keys]
    cells = [encoded_cells(part.array, part.field).fill_null(NULL) for part in parts]
    asked = np.zeros(frame.size, np.bool_)
    for at, key in enumerate(keys):
        if len(key.names) == 1:
            cells[at] = counted(cells[at], greatest=key.descending)
        else:  # where an array is on the way, a missing field counts, too
            asked |= values.read(cells[at]).tags == tags.ARRAY
    asked[[row for part in parts for row in part.errors]] = True
    rows = np.flatnonzero(asked)
    if not len(rows):
        return tuples(*cells)
    told = tagged([sort_values(env.root, keys) for env in frame.environments(rows)])
    return with_rows(tuples(*cells), rows, told)


def _refused(
    accumulator: AnyImplementation, column: ValueColumn, places: Sequence[Int64s], errors: dict[int, ExpressionError]
) -> ValueColumn:
    """The column, encoded. Note the rows with a value that an accumulator refuses, whatever its other values."""
    cells = column.encoded(np.arange(len(places[0])))
    suspects = refusable(accumulator, cells)
    found = ValueColumn(Cells(TAGGED_FIELD, cells))
    orders = zip(*(place[suspects].tolist() for place in places), strict=True)
    for row, value, order in zip(suspects.tolist(), found.values(suspects), orders, strict=True):
        try:
            accumulator.add(accumulator.init(), value, order)
        except TooManyValues as e:
            errors.setdefault(row, ExpressionError(e.reason, e.code, e.path))
        except ExpressionError as e:
            errors.setdefault(row, e)
    return found


# --- rows -------------------------------------------------------------------------------------------------------------


def _coded(columns: Iterable[ValueColumn], size: int) -> list[pa.Array]:
    """Columns that tell keys apart: the same cells are the same key; other ones may be equal, too (GC3)."""
    found = []
    for column in columns:
        if column.cells is not None and pa.types.is_nested(column.cells.array.type):
            found.append(tagged(column.values(np.arange(size))))
        elif column.cells is not None:
            found.append(column.cells.array)
    return found


def places_of(plan: WindowPlan, rows: pa.RecordBatch) -> list[Int64s]:
    """The parts of the order key (D11), shape (n,) each."""
    names = rows.schema.names
    found = [rows.column(ARRIVAL if plan.processing_time else TS)]
    zeros = pa.array(np.zeros(rows.num_rows, dtype=np.int64))
    found.append(rows.column(PART).fill_null(0) if PART in names else zeros)
    found.append(rows.column(POS).fill_null(0) if POS in names else pa.array(np.arange(rows.num_rows, dtype=np.int64)))
    return [column.to_numpy(zero_copy_only=False).astype(np.int64) for column in found]
