"""Columns of kernels, and the ways in which there is no kernel.

- V1 A kernel gives, value for value, what the interpreter gives, or raises `Unvectorised`: for these types there is none.
- V3 Where a kernel cannot tell for a row (an overflow that changes the type, an error, a null that might be a missing field) that row is in
  the column's `doubt`, and its cell means nothing: the interpreter gives it. Doubt of what a row does not need (the branch of a `$cond`
  that was not taken) is forgotten.
- V4 Where there is none, or a row is in doubt, an operator is called on the values of its arguments (`calls`), so the document itself is
  read again only for rows that fail, and for forms whose parts cannot be computed for all rows (a lazy operator, `$$CURRENT`).
- V2 A null cell is null, or, in a column with `missing`, null or missing: the two are told apart (`told`) only where it matters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.columns import Tagged
from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.environment import RESULT_UNITS_MAX
from tidemark.shared.language.schema import Schema
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, MISSING, Date, Long

TIMESTAMP: Final = pa.timestamp("ms", "UTC")
ColumnType: TypeAlias = Literal["int", "long", "double", "bool", "string", "date", "null", "object", "array"]
"""`object`: documents, of which a column may tell no more than whether they are there; `array`: encoded (`arrays.py`)."""
Bools: TypeAlias = npt.NDArray[np.bool_]
Kinds: TypeAlias = npt.NDArray[np.uint8]
"""Of each row a tag of `tidemark.shared.compiled.tags`."""
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
    "array": 25,
    "bool": 40,
    "date": 45,
}
WHOLE: Final = ("int", "long")
NUMERIC: Final = ("int", "long", "double")
EXACT_DOUBLE: Final = 2**53
"""Whole numbers up to this are doubles exactly."""


class Unvectorised(Exception):
    """There is no kernel for this expression on these types."""


class Untyped(Unvectorised):
    """Without rows nobody can say of which type its values are."""


@dataclass(frozen=True, slots=True)
class Column:
    """Values of one type, one a row. `missing`: its nulls may be missing fields; `absent`: they are."""

    type: ColumnType
    values: pa.Array
    missing: bool = False
    absent: bool = False
    doubt: Bools | None = None
    """Rows of which only the interpreter can tell, shape (n,) (V3); None for none."""
    cells: Tagged | None = None
    """Of a path: what stands there, of any types, in all rows but those that are SPREAD."""
    told: Callable[[], Kinds] | None = None
    """Tells the null cells apart, where they may be missing fields: MISSING, NULL or, where it cannot, SPREAD; shape (n,)."""

    @property
    def has_nulls(self) -> bool:
        """Whether any cell is null."""
        return bool(self.values.null_count)


UNITS_MAX: Final = RESULT_UNITS_MAX // 4
"""Units that kernels of arrays may spend on a row. The rest is for what they do not count: results outside of loops, each of few units."""


class Rows:
    """The input of kernels: `size` rows. This one has no columns, only its size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._units: npt.NDArray[np.int64] | None = None

    @property
    def left(self) -> npt.NDArray[np.int64]:
        """The units that kernels may spend on each row, before only the interpreter can tell; shape (n,)."""
        if self._units is None:
            self._units = np.full(self.size, UNITS_MAX)
        return self._units

    def spend(self, units: npt.NDArray[np.int64]) -> None:
        """Take so many units from each row, shape (n,)."""
        self._units = self.left - units

    @property
    def before_row(self) -> Callable[[], None] | None:
        """Called before a row is worked on by itself, may end all of the work; None where no row is worked on by itself."""
        return None

    def at(self, names: Path) -> Column:
        """The column at a path; Unvectorised where there can be none."""
        raise Unvectorised

    def picked(self, names: Path) -> Column:
        """The same, for queries, to which a number may be an index."""
        return self.at(names)

    def item(self, names: Path, index: int) -> Column:
        """The items at an index of the arrays at a path; Unvectorised where no column can say."""
        raise Unvectorised

    def meta(self, names: Path) -> Column:
        """The column that `$meta` reads there; Unvectorised where there can be none."""
        raise Unvectorised

    def now(self) -> Column:
        """`$$NOW`; Unvectorised where no column can say."""
        raise Unvectorised

    def root(self) -> Column:
        """`$$ROOT`, the rows' documents; Unvectorised where there can be no column of them."""
        raise Unvectorised

    def of_documents(self, cells: pa.BinaryArray) -> "Rows":
        """Rows that are encoded documents; Unvectorised where nobody reads them."""
        raise Unvectorised

    def variable(self, name: str, names: Path) -> Column:
        """The column of a variable, bound by an expression, at a path; Unvectorised for a variable that it does not bind."""
        raise Unvectorised

    def interpreted(self, expr: Expr) -> Column:
        """The values of an expression without a kernel; Unvectorised where nobody interprets it."""
        raise Unvectorised


class DeclaredRows(Rows):
    """The declared fields of a batch, in the types of its schema; a null cell is null or missing."""

    def __init__(self, columns: Mapping[str, pa.Array], schema: Schema, size: int) -> None:
        super().__init__(size)
        self._columns = columns
        self._schema = schema

    def at(self, names: Path) -> Column:
        """The column of a declared field."""
        declared = self._schema.get(names[0]) if len(names) == 1 else None
        values = self._columns.get(names[0]) if declared is not None else None
        if declared is None or values is None or declared.type == "decimal":
            raise Unvectorised
        return Column(declared.type, values, missing=bool(values.null_count))


def no_rows(schema: Schema) -> DeclaredRows:
    """Empty columns: enough to tell whether there is a kernel."""
    fields = [f for f in schema if f.type in ARROW]
    return DeclaredRows({f.name: pa.array([], ARROW[f.type]) for f in fields}, schema, 0)


def constant(value: Any, size: int) -> Column:
    """A value in every row; Unvectorised for types without kernels."""
    if value is MISSING:
        return Column("null", pa.nulls(size), missing=True, absent=True)
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


def gone_from(column: Column) -> Callable[[], Kinds] | None:
    """Tells the null cells of a column apart; None where nobody can."""
    if column.missing and not column.absent and column.has_nulls:
        return column.told
    empty = np.uint8(tags.MISSING if column.absent else tags.NULL)
    return lambda: np.full(len(column.values), empty)


def truth_of(column: Column) -> tuple[Bools, Bools | None]:
    """The cells as conditions, and those of which only the interpreter can tell."""
    if column.cells is not None and column.doubt is not None:
        kinds = column.cells.tags
        found = ~np.isin(kinds, (tags.MISSING, tags.NULL))
        found[np.isin(kinds, (tags.BOOL, tags.INT, tags.LONG)) & (column.cells.numbers == 0)] = False
        found[(kinds == tags.DOUBLE) & (column.cells.numbers.view(np.float64) == 0)] = False
        return found, either(np.isin(kinds, (tags.OTHER, tags.SPREAD)))  # a decimal may be zero
    return _typed_truth(column), column.doubt


def _typed_truth(column: Column) -> Bools:
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


def inexact(column: Column) -> Bools | None:
    """Which numbers have no double of the same value; None for none."""
    if column.type != "long" or not len(column.values):
        return None
    bounds = pc.min_max(column.values).as_py()
    if bounds["min"] is None or (bounds["min"] >= -EXACT_DOUBLE and bounds["max"] <= EXACT_DOUBLE):
        return None
    return filled(pc.or_(pc.less(column.values, -EXACT_DOUBLE), pc.greater(column.values, EXACT_DOUBLE)))


def filled(values: pa.Array) -> Bools:
    """Conditions, a null as false; shape (n,)."""
    return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def either(*masks: Bools | None) -> Bools | None:
    """Where any of some masks is true; None for nowhere."""
    known = [mask for mask in masks if mask is not None and bool(mask.any())]
    return np.logical_or.reduce(known) if known else None


def doubted(column: Column, *masks: Bools | None) -> Column:
    """The column with doubt in further rows."""
    doubt = either(*masks)
    if doubt is None:
        return column
    cells = column.cells
    if cells is not None:
        cells = replace(cells, tags=np.where(doubt, np.uint8(tags.SPREAD), cells.tags))
    return replace(column, doubt=either(column.doubt, doubt), cells=cells)


def without(values: pa.Array, mask: Bools | None) -> pa.Array:
    """The cells, null where the mask is true, and of no bytes there: with a scalar Arrow may leave those that were."""
    return values if mask is None else pc.if_else(pa.array(mask), pa.nulls(len(values), values.type), values)


Signs = npt.NDArray[np.int8]
"""-1, 0 or 1 a row."""


def compare_columns(left: Column, right: Column) -> tuple[Signs, Bools | None]:
    """How the cells compare, and where there is doubt: as where it hangs on a null being a missing field."""
    null_left, null_right = nulls_of(left), nulls_of(right)
    both = null_left & null_right
    doubt = either(both) if left.missing or right.missing else None
    signs: Signs = np.zeros(len(left.values), dtype=np.int8)
    valid = ~(null_left | null_right)
    if RANKS[left.type] != RANKS[right.type]:
        signs[valid] = -1 if RANKS[left.type] < RANKS[right.type] else 1
    elif left.type != "null":
        found, more = _same_rank(left, right)
        signs[valid], doubt = found[valid], either(doubt, more)
    signs[null_left & ~null_right] = -1
    signs[~null_left & null_right] = 1
    return signs, doubt


def _same_rank(left: Column, right: Column) -> tuple[Signs, Bools | None]:
    a, b, doubt = comparable(left, right)
    less, greater = filled(pc.less(a, b)), filled(pc.greater(a, b))
    return greater.astype(np.int8) - less.astype(np.int8), doubt


def comparable(left: Column, right: Column) -> tuple[pa.Array, pa.Array, Bools | None]:
    """Two arrays of one type whose cells compare as the values do, but where there is doubt."""
    if left.type in ("object", "array"):
        raise Unvectorised
    if left.type == "bool":
        return left.values.cast(pa.uint8()), right.values.cast(pa.uint8()), None
    if left.type in WHOLE and right.type in WHOLE:
        return left.values.cast(pa.int64()), right.values.cast(pa.int64()), None
    if left.type in NUMERIC:
        a, b = as_doubles(left), as_doubles(right)
        nans = [filled(pc.is_nan(column)) for column in (a, b)]
        return a, b, either(inexact(left), inexact(right), *nans)
    return left.values, right.values, None


HOLDS: Final[dict[str, Callable[[Any], Any]]] = {
    "$eq": lambda signs: signs == 0,
    "$ne": lambda signs: signs != 0,
    "$gt": lambda signs: signs > 0,
    "$gte": lambda signs: signs >= 0,
    "$lt": lambda signs: signs < 0,
    "$lte": lambda signs: signs <= 0,
}
"""Which signs make a comparison true."""
