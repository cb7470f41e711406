"""`$group` over declared fields as plain columns: aggregated by the sender beforehand, merged anywhere, on Spark too.

A `TypedGroup` says which columns a partial row has beside WSTART and WEND, how two rows of one window and key merge (sum, min, max),
and how the merged columns become the user's. Its rules:

- TG1 It gives the values of the accumulators in `tidemark.shared.language.accumulators`, exactly. Where it cannot (a sum of doubles, which
  would depend on the order; a field that may be null inside a compound `_id`), the whole `$group` goes the general way.
- TG2 Which way a `$group` goes depends on the spec alone, so that both halves of a window agree.
- TG3 A value that has no type of its own in a row (the null of a minimum of nothing, a sum beyond 64 bits) lies in REST (batches, B1).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.expressions.ast import Expr, FieldPath, ObjectExpr
from tidemark.shared.language.expressions.ast import Literal as Constant
from tidemark.shared.language.schema import Field, FieldTypeName, Schema
from tidemark.shared.language.stages import Group, GroupField
from tidemark.shared.operators.base import REST, WEND, WSTART
from tidemark.shared.operators.batches import ARROW_TYPES, NARROW, rest_of
from tidemark.shared.operators.grouping import Merge, groups_of, one_array

ROWS: Final = "__n"
"""int64: how many rows a partial stands for."""
_CONSTANT_MAX: Final = 2**31
"""Constants with sums over a batch that stay within 64 bits."""
_EXACT_MAX: Final = 2**53
"""Below this a double tells whole numbers apart."""
_LOW_BITS: Final = 32
_LOW_MASK: Final = 2**32 - 1
_KEYS: Final[frozenset[FieldTypeName]] = frozenset({"string", "int", "long", "bool", "date"})
_ORDERED: Final[frozenset[FieldTypeName]] = frozenset({"string", "int", "long", "date"})


@dataclass(frozen=True, slots=True)
class PartialColumn:
    """A column of partials: made from a batch (n rows) and merged by `how`."""

    name: str
    type: pa.DataType
    how: Merge
    input: str
    """The declared field that it is made of."""
    source: Callable[[pa.RecordBatch], pa.Array]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One output field: the columns it needs, and the function that makes it of them."""

    name: str
    columns: tuple[PartialColumn, ...]
    kind: Literal["rows", "sum", "wide_sum", "average", "extreme"]
    factor: int = 1
    """Of `rows`: `$sum` of a constant."""


@dataclass(frozen=True, slots=True)
class KeyPart:
    """A typed part of `_id`: `name` is empty where it is all of it."""

    column: str
    field: Field
    name: str

    @property
    def type(self) -> pa.DataType:
        """Of its column."""
        return ARROW_TYPES[self.field.type]


@dataclass(frozen=True, slots=True)
class TypedGroup:
    """A `$group` that goes by columns."""

    keys: tuple[KeyPart, ...]
    """None for a constant null `_id`."""
    aggregates: tuple[Aggregate, ...]

    @property
    def key_columns(self) -> list[str]:
        """Names of the key columns of partials."""
        return [k.column for k in self.keys]

    @property
    def inputs(self) -> set[str]:
        """The declared fields that are read."""
        return {k.field.name for k in self.keys} | {c.input for a in self.aggregates for c in a.columns}

    @property
    def merges(self) -> dict[str, Merge]:
        """How each value column of a partial merges, ROWS included."""
        found: dict[str, Merge] = {ROWS: "sum"}
        for aggregate in self.aggregates:
            found.update({c.name: c.how for c in aggregate.columns})
        return found


def plan(group: Group, schema: Schema) -> TypedGroup | None:
    """The typed form of a `$group` on documents with these declared fields, or None if it has none (TG1)."""
    keys = _keys(group.id, schema)
    aggregates = [_aggregate(i, field, schema) for i, field in enumerate(group.fields)]
    if keys is None or any(a is None for a in aggregates):
        return None
    return TypedGroup(keys, tuple(a for a in aggregates if a is not None))


# --- planning ---------------------------------------------------------------------------------------------------------


def _declared(expr: Expr, schema: Schema, types: frozenset[FieldTypeName]) -> Field | None:
    if isinstance(expr, FieldPath) and len(expr.names) == 1:
        field = schema.get(expr.names[0])
        if field is not None and field.type in types:
            return field
    return None


def _keys(expr: Expr, schema: Schema) -> tuple[KeyPart, ...] | None:
    if isinstance(expr, Constant):
        return () if expr.value is None else None
    whole = _declared(expr, schema, _KEYS)
    if whole is not None:
        return (KeyPart("__id0", whole, ""),)
    if not isinstance(expr, ObjectExpr) or not expr.fields:
        return None
    parts = []
    for i, (name, item) in enumerate(expr.fields):
        field = _declared(item, schema, _KEYS)
        if field is None or field.optional:
            return None
        parts.append(KeyPart(f"__id{i}", field, name))
    return tuple(parts)


def _aggregate(index: int, field: GroupField, schema: Schema) -> Aggregate | None:
    acc = field.accumulator
    if acc.op == "$count":
        return Aggregate(field.name, (), "rows")
    if acc.op == "$sum" and isinstance(acc.input, Constant):
        value = acc.input.value
        plain = type(value) is int and abs(value) < _CONSTANT_MAX
        return Aggregate(field.name, (), "rows", factor=value) if plain else None
    if acc.op in ("$sum", "$avg"):
        return _numeric(index, field.name, acc.op, acc.input, schema)
    if acc.op in ("$min", "$max"):
        source = _declared(acc.input, schema, _ORDERED)
        if source is None:
            return None
        how: Merge = "min" if acc.op == "$min" else "max"
        kind = ARROW_TYPES[source.type]
        column = PartialColumn(f"__a{index}", kind, how, source.name, _cells(source.name))
        return Aggregate(field.name, (column,), "extreme")
    return None


def _numeric(index: int, name: str, op: str, expr: Expr, schema: Schema) -> Aggregate | None:
    source = _declared(expr, schema, frozenset({"int", "long"}))
    if source is None:
        return None
    if source.type == "int":
        total = PartialColumn(f"__a{index}", pa.int64(), "sum", source.name, _widened(source.name))
        if op == "$sum":
            return Aggregate(name, (total,), "sum")
        count = PartialColumn(f"__a{index}n", pa.int64(), "sum", source.name, _counted(source.name))
        return Aggregate(name, (total, count), "average")
    if op == "$avg" or source.optional:
        return None
    high = PartialColumn(f"__a{index}h", pa.int64(), "sum", source.name, _high(source.name))
    low = PartialColumn(f"__a{index}l", pa.int64(), "sum", source.name, _low(source.name))
    return Aggregate(name, (high, low), "wide_sum")


def _cells(name: str) -> Callable[[pa.RecordBatch], pa.Array]:
    return lambda batch: batch.column(name)


def _widened(name: str) -> Callable[[pa.RecordBatch], pa.Array]:
    return lambda batch: batch.column(name).cast(pa.int64()).fill_null(0)


def _counted(name: str) -> Callable[[pa.RecordBatch], pa.Array]:
    return lambda batch: batch.column(name).is_valid().cast(pa.int64())


def _high(name: str) -> Callable[[pa.RecordBatch], pa.Array]:
    """The upper half: sums of halves cannot overflow, and together they are exact."""
    return lambda batch: pc.shift_right(batch.column(name), _LOW_BITS)


def _low(name: str) -> Callable[[pa.RecordBatch], pa.Array]:
    return lambda batch: pc.bit_wise_and(batch.column(name), _LOW_MASK)


# --- aggregating ------------------------------------------------------------------------------------------------------


def partials(group: TypedGroup, batch: pa.RecordBatch, extra: Mapping[str, Merge]) -> pa.Table:
    """Rows, with WSTART and WEND, aggregated by window and key; `extra`: further columns of the rows and how they merge."""
    columns: dict[str, pa.Array] = {name: batch.column(name) for name in (WSTART, WEND)}
    for key in group.keys:
        columns[key.column] = batch.column(key.field.name)
    hows: dict[str, Merge] = {}
    for aggregate in group.aggregates:
        for column in aggregate.columns:
            columns[column.name] = column.source(batch)
            hows[column.name] = column.how
    columns.update({name: batch.column(name) for name in extra})
    return _reduced(group, pa.table(columns), {**hows, **extra})


def merge(group: TypedGroup, table: pa.Table, extra: Mapping[str, Merge]) -> pa.Table:
    """Partial rows of one window and key become one; `table` has the columns of `partials`."""
    return _reduced(group, table, {**group.merges, **extra})


def _reduced(group: TypedGroup, table: pa.Table, hows: Mapping[str, Merge]) -> pa.Table:
    """A row for each window, or pane, and key; windows of one start have one end, panes may not."""
    lengths = pc.min_max(pc.subtract(table.column(WEND), table.column(WSTART))).as_py()
    bounds = (WSTART,) if lengths["min"] == lengths["max"] else (WSTART, WEND)
    groups = groups_of([table.column(name) for name in (*bounds, *group.key_columns)], table.num_rows)
    columns = {}
    firsts = pa.array(groups.firsts)
    for name in (WSTART, WEND, *group.key_columns):
        columns[name] = one_array(table.column(name)).take(firsts)
    columns[ROWS] = groups.counts()
    columns.update({name: groups.reduced(table.column(name), how) for name, how in hows.items()})
    return pa.table(columns)


# --- finishing --------------------------------------------------------------------------------------------------------


def finish(group: TypedGroup, merged: pa.RecordBatch) -> list[tuple[pa.Field, pa.Array]]:
    """The user's columns of merged rows: `_id` first, then the fields, then REST if a row needs it (TG3)."""
    found: list[tuple[pa.Field, pa.Array]] = []
    loose: dict[int, dict[str, Any]] = {}
    _finish_key(group, merged, found, loose)
    for aggregate in group.aggregates:
        array, exceptions = _finish_one(aggregate, merged)
        metadata = NARROW if aggregate.kind in ("rows", "sum") else None
        found.append((pa.field(aggregate.name, array.type, metadata=metadata), array))
        for row, value in exceptions.items():
            loose.setdefault(row, {})[aggregate.name] = value
    if loose:
        found.append((pa.field(REST, pa.binary()), rest_of([loose.get(row, {}) for row in range(merged.num_rows)])))
    return found


def _finish_key(
    group: TypedGroup,
    merged: pa.RecordBatch,
    found: list[tuple[pa.Field, pa.Array]],
    loose: dict[int, dict[str, Any]],
) -> None:
    columns = [one_array(merged.column(k.column)) for k in group.keys]
    if len(group.keys) > 1 or (group.keys and group.keys[0].name):
        fields = [pa.field(k.name, k.type) for k in group.keys]
        whole = pa.StructArray.from_arrays(columns, fields=fields)
        found.append((pa.field("_id", whole.type), whole))
        return
    if columns:
        found.append((pa.field("_id", columns[0].type), columns[0]))
    empty = columns[0].is_null().to_numpy(zero_copy_only=False) if columns else np.ones(merged.num_rows, dtype=np.bool_)
    for row in np.flatnonzero(empty).tolist():
        loose[row] = {"_id": None}


def _finish_one(aggregate: Aggregate, merged: pa.RecordBatch) -> tuple[pa.Array, dict[int, Any]]:
    cells = [one_array(merged.column(c.name)) for c in aggregate.columns]
    match aggregate.kind:
        case "rows":
            return pc.multiply(one_array(merged.column(ROWS)), aggregate.factor), {}
        case "sum":
            return cells[0], {}
        case "wide_sum":
            return _wide(cells[0].to_numpy(), cells[1].to_numpy())
        case "average":
            return _average(cells[0].to_numpy(), cells[1].to_numpy())
        case "extreme":
            return cells[0], dict.fromkeys(np.flatnonzero(cells[0].is_null().to_numpy(zero_copy_only=False)).tolist())


def _wide(high: npt.NDArray[np.int64], low: npt.NDArray[np.int64]) -> tuple[pa.Array, dict[int, Any]]:
    carried = high + (low >> _LOW_BITS)
    beyond = (carried < -(2**31)) | (carried >= 2**31)
    totals = (carried << _LOW_BITS) + (low & _LOW_MASK)
    rows = np.flatnonzero(beyond).tolist()
    exact = {row: float(int(high[row]) * 2**_LOW_BITS + int(low[row])) for row in rows}
    return pa.array(totals, mask=beyond if rows else None), exact


def _average(totals: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> tuple[pa.Array, dict[int, Any]]:
    empty = counts == 0
    cells = totals / np.where(empty, 1, counts)
    for row in np.flatnonzero(np.abs(totals) >= _EXACT_MAX).tolist():  # a double may not hold the total
        cells[row] = int(totals[row]) / int(counts[row])
    return pa.array(cells, mask=empty), dict.fromkeys(np.flatnonzero(empty).tolist())
