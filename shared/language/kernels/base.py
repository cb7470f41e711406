"""Columns of kernels, and the two ways in which there is no kernel.

- V1 A kernel gives, value for value, what the interpreter gives, or raises: `Unvectorised` where it never could for these types,
  `Fallback` where it cannot for this data (an overflow that changes the type, an error on a row, a null that might be a missing field).
- V2 A null cell is null, or, in a column with `missing`, null or missing: the two are told apart only where it does not matter.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shared.language.schema import Schema
from shared.model.values import INT32_MAX, INT32_MIN, Date, Long

TIMESTAMP: Final = pa.timestamp("ms", "UTC")
ColumnType: TypeAlias = Literal["int", "long", "double", "bool", "string", "date", "null", "object"]
"""`object`: documents, of which a column tells no more than whether they are there."""
Path: TypeAlias = tuple[str, ...]
"""Names from a document inwards."""
ARROW: Final[dict[str, pa.DataType]] = {
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "date": TIMESTAMP,
    "null": pa.null(),
}
"""The Arrow type of each declared type that has kernels."""
RANKS: Final[dict[str, int]] = {
    "null": 5,
    "int": 10,
    "long": 10,
    "double": 10,
    "string": 15,
    "object": 20,
    "bool": 40,
    "date": 45,
}
WHOLE: Final = ("int", "long")
NUMERIC: Final = ("int", "long", "double")
EXACT_DOUBLE: Final = 2**53
"""Whole numbers up to this are doubles exactly."""


class Unvectorised(Exception):
    """There is no kernel for this expression on these types."""


class Fallback(Exception):
    """There is a kernel, but not for this data."""


class Doubtful(Fallback):
    """The kernel cannot tell for some rows, `rows`, shape (n,); it could for the others."""

    def __init__(self, rows: npt.NDArray[np.bool_]) -> None:
        super().__init__()
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Column:
    """Values of one type, one a row. `missing`: its nulls may be missing fields; `absent`: they are."""

    type: ColumnType
    values: pa.Array
    missing: bool = False
    absent: bool = False

    @property
    def has_nulls(self) -> bool:
        """Whether any cell is null."""
        return bool(self.values.null_count)


@dataclass(frozen=True, slots=True)
class Rows:
    """What kernels read: the declared columns, and how many rows there are."""

    columns: dict[str, pa.Array]
    schema: Schema
    size: int
    paths: Mapping[Path, Column] = dataclasses.field(default_factory=dict)
    """Columns of undeclared fields, top-level and nested ones: no array is on the way, nor at the end."""
    items: Mapping[tuple[Path, int], Column] = dataclasses.field(default_factory=dict)
    """Columns of an array's items, by the array's path and the index; arrays of other paths are in no column."""

    def at(self, names: Path) -> Column:
        """What stands at a path; Unvectorised where no column says."""
        found = self.paths.get(names)
        if found is not None:
            return found
        declared = self.schema.get(names[0]) if len(names) == 1 else None
        values = self.columns.get(names[0]) if declared is not None else None
        if declared is None or values is None or declared.type == "decimal":
            raise Unvectorised
        return Column(declared.type, values, missing=bool(values.null_count))

    def picked(self, names: Path) -> Column:
        """The same, for queries, to which a number may be an index."""
        *inner, last = names
        found = self.items.get((tuple(inner), int(last))) if last.isdecimal() and last == str(int(last)) else None
        return self.at(names) if found is None else found


def rows_of(
    batch: pa.RecordBatch,
    schema: Schema,
    paths: Mapping[Path, Column] | None = None,
    items: Mapping[tuple[Path, int], Column] | None = None,
) -> Rows:
    """The declared columns of a batch, in the types of the schema, and columns of other paths."""
    columns = {}
    for field in schema:
        if field.name in batch.schema.names and field.type in ARROW:
            column = batch.column(field.name)
            if column.type == ARROW[field.type] and not batch.schema.field(field.name).metadata:
                columns[field.name] = column
    return Rows(columns, schema, batch.num_rows, paths or {}, items or {})


def no_rows(schema: Schema) -> Rows:
    """Empty columns: enough to tell whether there is a kernel."""
    fields = [f for f in schema if f.type in ARROW]
    return Rows({f.name: pa.array([], ARROW[f.type]) for f in fields}, schema, 0)


def constant(value: Any, size: int) -> Column:
    """A value in every row; Unvectorised for types without kernels."""
    kind = _type_of(value)
    if kind == "null":
        return Column("null", pa.nulls(size))
    return Column(kind, pa.repeat(pa.scalar(int(value) if kind == "date" else value, ARROW[kind]), size))


def _type_of(value: Any) -> ColumnType:
    kind = type(value)
    if kind is int:
        return "int" if INT32_MIN <= value <= INT32_MAX else "long"
    found: ColumnType | None = _CONSTANTS.get(kind)
    if found is None:
        raise Unvectorised
    return found


_CONSTANTS: Final[dict[type, ColumnType]] = {
    type(None): "null",
    Long: "long",
    float: "double",
    bool: "bool",
    str: "string",
    Date: "date",
}


def nulls_of(column: Column) -> npt.NDArray[np.bool_]:
    """Which cells are null."""
    return np.asarray(column.values.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)


def truth_of(column: Column) -> npt.NDArray[np.bool_]:
    """The cells as conditions."""
    if column.type == "null":
        return np.zeros(len(column.values), dtype=np.bool_)
    if column.type == "bool":
        found = pc.fill_null(column.values, False)
    elif column.type in NUMERIC:
        found = pc.fill_null(pc.not_equal(column.values, pa.scalar(0, column.values.type)), False)
    else:
        found = column.values.is_valid()
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def booleans(values: npt.NDArray[np.bool_]) -> Column:
    """A column of conditions."""
    return Column("bool", pa.array(values, pa.bool_()))


def as_doubles(column: Column) -> pa.Array:
    """Numbers as doubles, whole ones rounded to the nearest."""
    return pc.cast(column.values, pa.float64(), safe=False)


def exact_doubles(column: Column) -> pa.Array:
    """Numbers as doubles of the same value; Fallback where a whole one has none."""
    if column.type == "long" and len(column.values):
        bounds = pc.min_max(column.values).as_py()
        if bounds["min"] is not None and (bounds["min"] < -EXACT_DOUBLE or bounds["max"] > EXACT_DOUBLE):
            raise Fallback
    return as_doubles(column)
