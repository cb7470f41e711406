"""The rows of a `$group` by window and key, on columns: for `general_group`, where no document has to be looked at.

- GC1 It gives what evaluating each document gives, or None: where an expression has no kernel, where an accumulator may refuse a value,
  and where null would have to be told from missing. Then each document is evaluated.
- GC2 The rows of a group come in the order of their order keys, whatever came first; accumulators do not mind (A1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shared.language.accumulators.base import OrderKey
from shared.language.expressions.ast import Expr, FieldPath, Literal, ObjectExpr
from shared.language.stages import Group
from shared.model.values import MISSING, Value
from shared.operators.base import ARRIVAL, PART, POS, TS
from shared.operators.batches import values_of
from shared.operators.stage_columns import evaluated
from shared.operators.window_plan import WindowPlan

Int64s = npt.NDArray[np.int64]
REFUSING: Final = frozenset({"$concatArrays", "$mergeObjects", "$setUnion"})
"""Accumulators that do not take every value."""
_TELLING: Final = frozenset({"$push", "$addToSet", "$approxCountDistinct"})
"""Accumulators to which null is a value and a missing field is none."""


@dataclass(frozen=True, slots=True)
class Column:
    """Values of the language, one a row: as an Arrow column, or one for all rows."""

    array: pa.Array | None
    field: pa.Field | None = None
    constant: Value = None

    def values(self, rows: pa.Array) -> list[Any]:
        """The values of these rows, in that order."""
        if self.array is None or self.field is None:
            return [self.constant] * len(rows)
        return values_of(self.array.take(rows), self.field)


@dataclass(frozen=True, slots=True)
class Members:
    """The rows of each window and key, group after group, in their order."""

    windows: Sequence[tuple[Any, ...]]
    """By group."""
    ids: Sequence[Value]
    """By group: the `_id` of its first row."""
    bounds: Sequence[int]
    """Where groups begin, and, last, where the last one ends."""
    inputs: Sequence[Sequence[Value]]
    """By accumulator: what each row adds."""
    places: Sequence[Int64s]
    """The parts of the rows' order keys."""
    extras: Sequence[Sequence[int | None]]

    def orders(self) -> list[OrderKey]:
        """The rows' order keys."""
        return list(zip(*(column.tolist() for column in self.places), strict=True))

    def first_orders(self) -> list[OrderKey]:
        """By group: the least order key."""
        return list(zip(*(column[list(self.bounds[:-1])].tolist() for column in self.places), strict=True))


def members(plan: WindowPlan, rows: pa.RecordBatch, window: Sequence[str]) -> Members | None:
    """The groups of rows with their windows (columns `window`); None where documents have to be looked at (GC1)."""
    group = plan.group
    key = _key(group.id, rows)
    inputs = _inputs(group, rows) if key is not None else None
    if key is None or inputs is None or not rows.num_rows:
        return None
    codes = codes_of([rows.column(name) for name in window] + [c.array for c in key.values() if c.array is not None])
    places = _places(plan, rows)
    order = np.lexsort((*reversed(places), codes))
    sorted_codes = codes[order]
    starts = np.flatnonzero(np.concatenate(([True], sorted_codes[1:] != sorted_codes[:-1])))
    taken, firsts = pa.array(order), pa.array(order[starts])
    parts = {name: column.values(firsts) for name, column in key.items()}
    return Members(
        list(zip(*(rows.column(name).take(firsts).to_pylist() for name in window), strict=True)),
        parts[""]
        if "" in parts
        else [dict(zip(parts, each, strict=True)) for each in zip(*parts.values(), strict=True)],
        [*starts.tolist(), len(order)],
        [_added([c.values(taken) for c in columns]) for columns in inputs],
        [column[order] for column in places],
        [rows.column(name).take(taken).to_pylist() for name in plan.extras],
    )


def _added(columns: Sequence[Sequence[Value]]) -> Sequence[Value]:
    """As `accumulator_input` gives it: the last column, behind what it is sorted by."""
    *keys, last = columns
    return [[list(k), v] for k, v in zip(zip(*keys, strict=True), last, strict=True)] if keys else last


# --- expressions ------------------------------------------------------------------------------------------------------


def _key(expr: Expr, rows: pa.RecordBatch) -> dict[str, Column] | None:
    """The parts of `_id` by name, "" for one that is all of it."""
    if not isinstance(expr, ObjectExpr):
        whole = _column(expr, rows, nulls=True)
        return None if whole is None or not _exact(whole) else {"": whole}
    found = {}
    for name, item in expr.fields:
        part = _column(item, rows, nulls=False)
        if part is None or not _exact(part):
            return None
        found[name] = part
    return found or None


def _exact(column: Column) -> bool:
    """Whether cells are equal as keys exactly where they are equal in Arrow."""
    return column.array is None or not pa.types.is_floating(column.array.type)


def _inputs(group: Group, rows: pa.RecordBatch) -> list[list[Column]] | None:
    """By accumulator: what it is sorted by, then its input."""
    found = []
    for field in group.fields:
        accumulator = field.accumulator
        nulls = accumulator.op not in _TELLING
        exprs = [FieldPath(key.names) for key in accumulator.sort_by]
        columns = [_column(e, rows, nulls=False) for e in exprs] + [_column(accumulator.input, rows, nulls=nulls)]
        known = [column for column in columns if column is not None]
        if accumulator.op in REFUSING or accumulator.n_of_key is not None or len(known) < len(columns):
            return None
        found.append(known)
    return found


def _column(expr: Expr, rows: pa.RecordBatch, *, nulls: bool) -> Column | None:
    """An expression's values; `nulls`: null and missing may be taken for each other."""
    if isinstance(expr, Literal):
        return None if expr.value is MISSING else Column(None, None, expr.value)
    array = evaluated(expr, rows)
    if array is not None:
        return Column(array, pa.field("", array.type))
    if not nulls or not isinstance(expr, FieldPath) or len(expr.names) != 1:
        return None
    at = rows.schema.get_field_index(expr.names[0])
    if at < 0 or pa.types.is_nested(rows.column(at).type):
        return None
    return Column(rows.column(at), rows.schema.field(at))


# --- rows -------------------------------------------------------------------------------------------------------------


def codes_of(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Int64s:
    """Equal cells in all columns, equal code, from 0 on; null is a value. Shape (n,)."""
    codes: Int64s = np.zeros(len(columns[0]), dtype=np.int64)
    for each in columns:
        column = each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each
        coded = column.dictionary_encode(null_encoding="encode")
        own = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, codes = np.unique(codes * (len(coded.dictionary) + 1) + own, return_inverse=True)
    return codes


def _places(plan: WindowPlan, rows: pa.RecordBatch) -> list[Int64s]:
    """The parts of the order key (D11), shape (n,) each."""
    names = rows.schema.names
    found = [rows.column(ARRIVAL if plan.processing_time else TS)]
    zeros = pa.array(np.zeros(rows.num_rows, dtype=np.int64))
    found.append(rows.column(PART).fill_null(0) if PART in names else zeros)
    found.append(rows.column(POS).fill_null(0) if POS in names else pa.array(np.arange(rows.num_rows, dtype=np.int64)))
    return [column.to_numpy(zero_copy_only=False).astype(np.int64) for column in found]
