"""Arrays and objects on columns: the items of all arrays are rows of their own, over which an expression is a program on columns again.

Arrays and objects are encoded values (`tidemark.shared.compiled.values`); of what is odd in one row that row alone is in doubt (V3).
So are rows that spend more than a small part of what one evaluation may produce: the interpreter counts them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, values
from tidemark.shared.compiled.columns import Tagged, with_rows
from tidemark.shared.language.expressions.ast import (
    ArrayExpr,
    Call,
    Expr,
    FilterArray,
    Let,
    Literal,
    MapArray,
    ReduceArray,
    Variable,
    walk,
)
from tidemark.shared.language.expressions.environment import LOOP_STEP_UNITS
from tidemark.shared.language.kernels.base import (
    Bools,
    Column,
    ColumnType,
    Path,
    Rows,
    Untyped,
    Unvectorised,
    booleans,
    doubted,
    either,
    nulls_of,
    truth_of,
    without,
)
from tidemark.shared.language.kernels.cells import NULL, encoded, lengths, tagged_column, taken, unknown_of
from tidemark.shared.language.values import encode_value
from tidemark.shared.model.values import Value

Int64s: TypeAlias = npt.NDArray[np.int64]
Of: TypeAlias = Callable[[Expr, Rows], Column]
"""The column of an expression's values."""
_NODE_UNITS: Final = 8
"""The least budget that an operator takes for each item."""
_STEPS_MAX: Final = 256
"""Items that a `$reduce` takes on columns: each is a pass over the rows that have as many."""
_STEPS_OF_FEW: Final = 16
"""So many also where few rows have them: a pass costs a few tenths of a millisecond."""
_FEW: Final = 96
"""A pass over fewer rows costs more than to interpret their items (3 to 5 us each)."""


# --- what a row may spend ---------------------------------------------------------------------------------------------


def of_cells(cells: Tagged, doubt: Bools | None = None) -> Column:
    """As `tagged_column`; Untyped without a cell."""
    if not len(cells):
        raise Untyped
    return tagged_column(cells, doubt)


def bounded(cells: pa.BinaryArray, kind: ColumnType, doubt: Bools | None, rows: Rows) -> Column:
    """Arrays or objects; those that are too large are left to the interpreter."""
    return Column(kind, cells, doubt=either(doubt, _beyond(rows, lengths(cells))))


def _beyond(rows: Rows, units: Int64s) -> Bools:
    """The rows that have fewer units left, shape (n,); from the others they are taken."""
    over = np.asarray(units > rows.left)
    rows.spend(np.where(over, 0, units))
    return over


def counted(column: Column, rows: Rows) -> Column:
    """The result of an operator; inside of a loop the characters of a text are units."""
    if column.type != "string" or not isinstance(rows, Bound):
        return column
    over = either(_beyond(rows, lengths(column.values)))
    return column if over is None else doubted(replace(column, values=without(column.values, over)), over)


def _sizes(column: Column) -> Int64s | None:
    """Bytes of the values of a column in which they differ."""
    if column.cells is not None:
        return np.where(column.cells.tags >= tags.STRING, column.cells.ends - column.cells.begins, 0).astype(np.int64)
    if column.type in ("string", "object", "array") and not pa.types.is_boolean(column.values.type):
        if pa.types.is_struct(column.values.type):
            raise Unvectorised
        return lengths(column.values)
    return None


def constant_of(value: Value, size: int) -> Column:
    """A value of any type in every row."""
    return of_cells(values.read(pa.repeat(pa.scalar(encode_value(value), pa.binary()), size)))


class Bound(Rows):
    """Rows of another's, each as often as it has a place, with variables: columns, or encoded cells. Nobody interprets for them."""

    def __init__(self, above: Rows, places: Int64s | None, variables: Mapping[str, "Column | pa.BinaryArray"]) -> None:
        super().__init__(above.size if places is None else len(places))
        self._above, self._places, self._variables = above, places, variables
        self._times = np.ones(above.size, np.int64) if places is None else np.bincount(places, minlength=above.size)

    @property
    def left(self) -> Int64s:
        """The budget that is left to the rows above, in equal parts."""
        left = self._above.left // np.maximum(self._times, 1)
        return left if self._places is None else left[self._places]

    def spend(self, units: Int64s) -> None:
        """Charge the rows above, each for its items."""
        if self._places is not None:
            units = np.bincount(self._places, weights=units, minlength=self._above.size).astype(np.int64)
        self._above.spend(units)

    def at(self, names: Path) -> Column:
        """The document's column."""
        return self._of_above(self._above.at(names))

    @property
    def before_row(self) -> Callable[[], None] | None:
        """See `Rows.before_row`: that of the rows above."""
        return self._above.before_row

    def meta(self, names: Path) -> Column:
        """The column that `$meta` reads."""
        return self._of_above(self._above.meta(names))

    def now(self) -> Column:
        """`$$NOW`, for each item."""
        return self._of_above(self._above.now())

    def root(self) -> Column:
        """`$$ROOT`, for each item."""
        return self._of_above(self._above.root())

    def variable(self, name: str, names: Path) -> Column:
        """A variable of this form, or of one around it."""
        found = self._variables.get(name)
        if found is None:
            return self._of_above(self._above.variable(name, names))
        if isinstance(found, Column):
            if not names:
                return found
            found, doubt = encoded(found)
            return of_cells(_inside(found, names), doubt)
        return of_cells(_inside(found, names) if names else values.read(found))

    def _of_above(self, column: Column) -> Column:
        if self._places is None:
            return column
        sizes = _sizes(column)
        if sizes is not None:  # what would be there many times
            over = either(_beyond(self._above, sizes * self._times))
            if over is not None:
                column = doubted(replace(column, values=without(column.values, over)), over)
        return taken(column, self._places)


def _inside(cells: pa.BinaryArray, names: Path) -> Tagged:
    found = values.read_inside(cells, names)
    return values.read(values.picked(cells, names)) if bool((found.tags == tags.SPREAD).any()) else found


# --- paths ------------------------------------------------------------------------------------------------------------


def read_path(names: Path, rows: Rows) -> Column:
    """The values at a path; through an array, the array of what its objects have there."""
    column = rows.at(names)
    if len(names) == 1 or column.cells is None:
        return column
    spread = column.cells.tags == tags.SPREAD
    if not spread.any():
        return column
    whole, unsure = encoded(rows.at(names[:1]))
    if unsure is not None:
        spread &= ~unsure
    found = values.picked(whole, names[1:])
    spread &= ~_beyond(rows, np.where(spread, lengths(whole) + lengths(found), 0))
    places = np.flatnonzero(spread)
    cells, sure = values.write(column.cells)
    return of_cells(values.read(with_rows(cells, places, found.take(pa.array(places)))), either(~sure & ~spread))


# --- arrays taken apart -----------------------------------------------------------------------------------------------


def places_of(counts: Int64s, rows: Int64s) -> Int64s:
    """Where each item stands in its row, where rows have so many. rows: of each item its row (`values.rows_of`)."""
    places: Int64s = np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    return places


class Arrays:
    """The arrays that an expression gives, shape (n,): how many items each has, 0 of what is none, and all items."""

    def __init__(self, column: Column, rows: Rows, body: Expr | None = None) -> None:
        cells, unsure = encoded(column)
        counts, self.items = values.items(cells)
        self.are = counts >= 0
        self.counts = np.where(self.are, counts, 0)
        kinds = values.read(cells).tags
        self.odd = ~self.are & (kinds != tags.MISSING) & (kinds != tags.NULL)
        """The rows with neither an array nor null."""
        nodes = [] if body is None else list(walk(body))
        step = LOOP_STEP_UNITS + _NODE_UNITS * len(nodes)
        reads = 1 + sum(isinstance(node, Variable) for node in nodes)
        self.unsure = either(unsure, self.odd, _beyond(rows, self.counts * step + lengths(cells) * reads))
        if self.unsure is not None:  # their items are nobody's
            kept = ~self.unsure
            self.items = self.items.filter(pa.array(np.repeat(kept, self.counts)))
            self.counts = np.where(kept, self.counts, 0)
        self.rows = values.rows_of(self.counts)
        """Of each item its row."""

    def by_row(self, items: Bools | None) -> Bools | None:
        """The rows of some items."""
        if items is None:
            return None
        found = np.zeros(len(self.counts), np.bool_)
        found[self.rows[items]] = True
        return found

    @property
    def begins(self) -> Int64s:
        """Where the items of each row begin, shape (n,)."""
        begins: Int64s = np.cumsum(self.counts) - self.counts
        return begins

    @property
    def places(self) -> Int64s:
        """Where each item stands in its array."""
        return places_of(self.counts, self.rows)

    def item(self, index: Int64s) -> Column:
        """The items at the index of each row, from the end where it is below 0; missing beyond, null of null."""
        places = index + np.where(index >= 0, 0, self.counts)
        there = (places >= 0) & (places < self.counts)
        found = self.items.take(pa.array(self.begins + places, mask=~there))
        found = pc.if_else(pa.array(self.are), found, NULL)
        return of_cells(values.read(found), self.unsure)


def _name(name: str) -> str:
    if name in ("CURRENT", "ROOT", "NOW"):
        raise Unvectorised  # CURRENT moves where paths begin
    return name


def _map(expr: MapArray, rows: Rows, of: Of) -> Column:
    source = Arrays(of(expr.source, rows), rows, expr.body)
    inner = Bound(rows, source.rows, {_name(expr.variable): source.items})
    cells, unsure = encoded(of(expr.body, inner)) if inner.size or not rows.size else (source.items, None)
    made = values.arrays(source.counts, cells, source.are)
    return bounded(made, "array", either(source.unsure, source.by_row(unsure)), rows)


def _filter(expr: FilterArray, rows: Rows, of: Of) -> Column:
    most = _filter_most(expr)
    source = Arrays(of(expr.source, rows), rows, expr.condition)
    inner = Bound(rows, source.rows, {_name(expr.variable): source.items})
    condition = of(expr.condition, inner) if inner.size or not rows.size else booleans(np.zeros(0, np.bool_))
    kept, odd = truth_of(condition)
    if most is not None:
        before = np.concatenate(([0], np.cumsum(kept)))
        kept &= before[:-1] - before[source.begins[source.rows]] < most
    counts = np.bincount(source.rows[kept], minlength=rows.size)
    made = values.arrays(counts, source.items.filter(pa.array(kept)), source.are)
    return bounded(made, "array", either(source.unsure, source.by_row(odd)), rows)


def _filter_most(expr: FilterArray) -> int | None:
    """How many items are kept of each array; None for all."""
    if expr.limit is None:
        return None
    if not isinstance(expr.limit, Literal) or type(expr.limit.value) is not int or expr.limit.value < 1:
        raise Unvectorised
    return expr.limit.value


def _reduce(expr: ReduceArray, rows: Rows, of: Of) -> Column:
    source = Arrays(of(expr.source, rows), rows, expr.body)
    value, unsure = encoded(of(expr.initial, rows))
    doubt = np.zeros(rows.size, np.bool_)
    for mask in (unsure, source.unsure, source.counts > _steps(source.counts)):
        doubt |= False if mask is None else mask
    begins, step = source.begins, 0
    while len(active := np.flatnonzero((source.counts > step) & ~doubt)):
        variables = {"value": value.take(pa.array(active)), "this": source.items.take(pa.array(begins[active] + step))}
        found, unsure = encoded(of(expr.body, Bound(rows, active, variables)))
        value = with_rows(value, active, found)
        spent = np.zeros(rows.size, np.int64)
        spent[active] = lengths(found)
        doubt |= _beyond(rows, spent)
        if unsure is not None:
            doubt[active[unsure]] = True
        step += 1
    value = pc.if_else(pa.array(source.are), value, NULL)
    return of_cells(values.read(value), either(doubt))


def _steps(counts: Int64s) -> int:
    """How many items a `$reduce` takes on columns: rows with more are interpreted. counts: of each row's items, shape (n,)."""
    of_many = int(np.partition(counts, -_FEW)[-_FEW]) if len(counts) >= _FEW else 0
    return min(max(of_many, _STEPS_OF_FEW), _STEPS_MAX)


def _let(expr: Let, rows: Rows, of: Of) -> Column:
    """All variables are computed: where one fails so does the whole, also if nobody reads it."""
    bound = {_name(name): of(item, rows) for name, item in expr.variables}
    found = of(expr.body, Bound(rows, None, bound))
    return doubted(found, *map(unknown_of, bound.values()))


# --- arrays and objects put together ----------------------------------------------------------------------------------


def in_turn(parts: Sequence[pa.BinaryArray], size: int) -> pa.BinaryArray:
    """The cells of some columns of so many rows, row after row."""
    order = np.arange(size * len(parts)).reshape(len(parts), size).T.ravel()
    return pa.concat_arrays([*parts, pa.nulls(0, pa.binary())]).take(pa.array(order))


def _array(expr: ArrayExpr, rows: Rows, of: Of) -> Column:
    parts = [encoded(of(item, rows)) for item in expr.items]
    cells = in_turn([found for found, _ in parts], rows.size)
    made = values.arrays(np.full(rows.size, len(parts)), cells, np.ones(rows.size, np.bool_))
    return bounded(made, "array", either(*(unsure for _, unsure in parts)), rows)


def _split(expr: Call, rows: Rows, of: Of) -> Column:
    text, delimiter = expr.args
    if text is None or not isinstance(delimiter, Literal) or type(delimiter.value) is not str or not delimiter.value:
        raise Unvectorised
    column = of(text, rows)
    if column.type != "string":
        raise Unvectorised
    parts = pc.split_pattern(column.values.fill_null(""), delimiter.value)
    counts = pc.list_value_length(parts).to_numpy(zero_copy_only=False).astype(np.int64)
    there = ~nulls_of(column)
    cells, _ = encoded(Column("string", parts.flatten()))
    if not there.all():
        cells = cells.filter(pa.array(np.repeat(there, counts)))
        counts = np.where(there, counts, 0)
    return bounded(values.arrays(counts, cells, there), "array", column.doubt, rows)


def given(expr: Call, place: int) -> Expr:
    """An operand; Unvectorised without it."""
    arg = expr.args[place]
    if arg is None:
        raise Unvectorised
    return arg


CALLS: Final[Mapping[str, Callable[[Call, Rows, Of], Column]]] = {"$split": _split}
"""Operators that make arrays."""
FORMS: Final[Mapping[type, Callable[[Any, Rows, Of], Column]]] = {
    ArrayExpr: _array,
    FilterArray: _filter,
    Let: _let,
    MapArray: _map,
    ReduceArray: _reduce,
}
"""Forms over arrays that have kernels where their parts have."""
