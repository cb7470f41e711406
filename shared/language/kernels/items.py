"""Operators on the items of arrays: which of them, in which order, what they come to, and what is asked about them.

The items of all arrays of a batch are rows of one column (`arrays.Arrays`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, totals, values
from tidemark.shared.language.expressions.ast import ArrayExpr, Call, Expr, Literal, SortArray
from tidemark.shared.language.kernels.arrays import Arrays, Int64s, Of, bounded, given, in_turn, of_cells, places_of
from tidemark.shared.language.kernels.base import (
    WHOLE,
    Bools,
    Column,
    Path,
    Rows,
    Unvectorised,
    booleans,
    doubted,
    either,
    filled,
    nulls_of,
    truth_of,
)
from tidemark.shared.language.kernels.cells import NULL, compared, encoded, taken, unknown_of
from tidemark.shared.language.values.ranks import total_order
from tidemark.shared.model.values import INT32_MAX, INT32_MIN

_MADE_MAX: Final = 1 << 22
"""Items that `$range`, and a `$zip` of short and long arrays, make of a batch on columns: more than those that came in."""


# --- items of some arrays, chosen and put into order ------------------------------------------------------------------


class Items:
    """The items of some arrays of each row: of which row and array they are, and where they stand in it, shape (k,)."""

    def __init__(self, args: Sequence[Expr], rows: Rows, of: Of) -> None:
        self.arrays = [Arrays(of(arg, rows), rows) for arg in args]
        self.size = rows.size
        self.are = np.logical_and.reduce([array.are for array in self.arrays])
        self.unsure = either(*(array.unsure for array in self.arrays))
        self.items = pa.concat_arrays([array.items for array in self.arrays])
        self.rows = np.concatenate([array.rows for array in self.arrays])
        self.array = np.repeat(np.arange(len(args)), [len(array.rows) for array in self.arrays])
        self.places = np.concatenate([array.places for array in self.arrays])

    def order(self, path: Path = ()) -> tuple[Int64s, Int64s]:
        """Numbers that stand in the order of the items, or of their values at a path; Unvectorised where documents must be asked."""
        return _order(self.items, path)

    def made(self, chosen: Int64s, rows: Rows) -> Column:
        """Arrays of these items, which stand row after row."""
        chosen = chosen[self.are[self.rows[chosen]]]
        counts = np.bincount(self.rows[chosen], minlength=self.size)
        return bounded(values.arrays(counts, self.items.take(pa.array(chosen)), self.are), "array", self.unsure, rows)


def _order(items: pa.BinaryArray, path: Path = ()) -> tuple[Int64s, Int64s]:
    column = values.read(items)
    if path:
        column = values.read_inside(items, path)
        items, sure = values.write(column)
        if not sure.all():
            raise Unvectorised
    classes, numbers = total_order(items, column)
    return classes.astype(np.int64), numbers


Choose: TypeAlias = Callable[[Items], Int64s]


def _of_items(choose: Choose) -> Callable[[Call, Rows, Of], Column]:
    """An operator whose result are items of its arrays; null where one of them is null."""

    def apply(expr: Call, rows: Rows, of: Of) -> Column:
        args = [arg for arg in expr.args if arg is not None]
        if not args:
            raise Unvectorised
        found = Items(args, rows, of)
        return found.made(choose(found), rows)

    return apply


def _numbers(expr: Expr, rows: Rows, of: Of) -> tuple[Int64s, Bools]:
    """Whole numbers of 32 bits, and the rows with anything else or nothing, shape (n,) both."""
    column = of(expr, rows)
    if column.type not in WHOLE:
        raise Unvectorised
    cells = column.values.cast(pa.int64())
    odd = either(column.doubt, filled(pc.or_(pc.less(cells, INT32_MIN), pc.greater(cells, INT32_MAX))))
    numbers: Int64s = cells.fill_null(0).to_numpy(zero_copy_only=False)
    return numbers, nulls_of(column) if odd is None else odd | nulls_of(column)


def _sliced(expr: Call, rows: Rows, of: Of) -> Column:
    """`$slice`: the first, the last, or some from a place."""
    found = Items([given(expr, 0)], rows, of)
    at, odd = _numbers(given(expr, 1), rows, of)
    counts, place = found.arrays[0].counts, found.places
    first = np.where(at >= 0, 0, counts + at)
    behind = np.where(at >= 0, at, counts)
    if expr.args[2:]:
        many, more = _numbers(given(expr, 2), rows, of)
        odd = odd | more | (many < 1)
        first = np.where(at >= 0, at, np.maximum(counts + at, 0))
        behind = first + many
    chosen = np.flatnonzero((place >= first[found.rows]) & (place < behind[found.rows]))
    return doubted(found.made(chosen, rows), odd)


def _different(found: Items) -> tuple[Int64s, Int64s, Int64s]:
    """(items row after row, in the order over all values; where those begin that are equal; of how many arrays these are)."""
    classes, numbers = found.order()
    order = np.lexsort((found.places, found.array, numbers, classes, found.rows))
    keys = np.stack((found.rows[order], classes[order], numbers[order]))
    new = np.ones(len(order), np.bool_)
    new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    starts = np.flatnonzero(new)
    changes = new.copy()
    changes[1:] |= found.array[order][1:] != found.array[order][:-1]
    return order, starts, np.add.reduceat(changes.astype(np.int64), starts) if len(starts) else starts


def _union(found: Items) -> Int64s:
    order, starts, _counts = _different(found)
    return order[starts]


def _intersection(found: Items) -> Int64s:
    order, starts, counts = _different(found)
    chosen: Int64s = order[starts[counts == len(found.arrays)]]
    return chosen


def _difference(found: Items) -> Int64s:
    order, starts, counts = _different(found)
    alone: Int64s = order[starts[(counts == 1) & (found.array[order[starts]] == 0)]]
    chosen: Int64s = alone[np.lexsort((found.places[alone], found.rows[alone]))]
    return chosen


def sorted_array(expr: SortArray, rows: Rows, of: Of) -> Column:
    """The items in the order of values in them."""
    found = Items([expr.source], rows, of)
    parts: list[Int64s] = []
    for key in reversed(expr.keys):
        classes, numbers = found.order(path=tuple(key.names))
        parts += [~numbers, ~classes] if key.descending else [numbers, classes]
    return found.made(np.lexsort((*parts, found.rows)), rows)


def _n_of(choose: Callable[[Items, Int64s], Int64s]) -> Callable[[Call, Rows, Of], Column]:
    """An operator whose result are `n` items of what must be an array."""

    def apply(expr: Call, rows: Rows, of: Of) -> Column:
        n, odd = _numbers(given(expr, 0), rows, of)
        found = Items([given(expr, 1)], rows, of)
        return doubted(found.made(choose(found, n), rows), odd, n < 1, ~found.are)

    return apply


def _first_n(found: Items, n: Int64s) -> Int64s:
    return np.flatnonzero(found.places < n[found.rows])


def _last_n(found: Items, n: Int64s) -> Int64s:
    return np.flatnonzero(found.places >= (found.arrays[0].counts - n)[found.rows])


def _greatest_n(found: Items, n: Int64s) -> Int64s:
    return _extreme_of(found.items, found.rows, found.places, n, greatest=True)


def _least_n(found: Items, n: Int64s) -> Int64s:
    return _extreme_of(found.items, found.rows, found.places, n, greatest=False)


def _extreme_of(items: pa.BinaryArray, rows: Int64s, places: Int64s, n: Int64s, *, greatest: bool) -> Int64s:
    """The first `n` items of each row in their order; of equal ones the earlier first; null does not count. n: by row."""
    classes, numbers = _order(items)
    keys = (~numbers, ~classes) if greatest else (numbers, classes)
    order = np.lexsort((places, *keys, rows))
    order = order[(values.read(items).tags != tags.NULL)[order]]
    of_row = rows[order]
    chosen: Int64s = order[np.arange(len(order)) - np.searchsorted(of_row, of_row) < n[of_row]]
    return chosen


def _zipped(expr: Call, rows: Rows, of: Of) -> Column:
    """Arrays of the items that stand at one place; null where one array is null."""
    inputs, longest, defaults = expr.args
    if not isinstance(inputs, ArrayExpr) or not inputs.items or defaults is not None:
        raise Unvectorised
    if longest is not None and not (isinstance(longest, Literal) and type(longest.value) is bool):
        raise Unvectorised
    found = Items(inputs.items, rows, of)
    lengths = np.stack([array.counts for array in found.arrays])
    most = lengths.max(axis=0) if longest is not None and longest.value is True else lengths.min(axis=0)
    counts = np.where(found.are, most, 0)
    if int(counts.sum()) * len(found.arrays) > max(_MADE_MAX, 2 * len(found.items)):
        raise Unvectorised
    row = values.rows_of(counts)
    place = places_of(counts, row)
    flat = np.empty((len(row), len(found.arrays)), np.int64)
    there = np.empty(flat.shape, np.bool_)
    begin = 0
    for number, array in enumerate(found.arrays):
        flat[:, number] = begin + array.begins[row] + place
        there[:, number] = place < array.counts[row]
        begin += len(array.items)
    cells = found.items.take(pa.array(flat.ravel(), mask=~there.ravel()))
    tuples = values.arrays(np.full(len(row), len(found.arrays)), cells, np.ones(len(row), np.bool_))
    return bounded(values.arrays(counts, tuples, found.are), "array", found.unsure, rows)


# --- what the items of one array, or some operands, come to --------------------------------------------------------------


def _operands(expr: Call, rows: Rows, of: Of) -> Arrays:
    """The operands of each row as an array: the one that is an array as it is."""
    parts = [encoded(of(arg, rows)) for arg in expr.args if arg is not None]
    if not parts:
        raise Unvectorised
    cells = parts[0][0]
    alone = np.ones(rows.size, np.bool_) if len(parts) > 1 else values.items(cells)[0] < 0
    several = in_turn([found.filter(pa.array(alone)) for found, _ in parts], int(np.count_nonzero(alone)))
    made = values.arrays(np.where(alone, len(parts), 0), several, alone)
    unsure = either(*(doubt for _, doubt in parts))
    return Arrays(Column("array", pc.if_else(pa.array(alone), made, cells), doubt=unsure), rows)


def _total(expr: Call, rows: Rows, of: Of) -> Column:
    """`$sum`, `$avg` and the deviations."""
    operands = _operands(expr, rows, of)
    bounds = np.concatenate(([0], np.cumsum(operands.counts)))
    deviation = expr.op in ("$stdDevPop", "$stdDevSamp")
    states, sure = totals.add(values.read(operands.items), bounds, deviation=deviation)
    if not sure.all():
        states = pc.if_else(pa.array(sure), states, _nothing(deviation=deviation))
    if deviation:
        found, known = totals.deviations(states, sample=expr.op == "$stdDevSamp")
    else:
        found, known = totals.finish(states, average=expr.op == "$avg")
    return of_cells(found, either(operands.unsure, ~sure, ~known))


def _nothing(*, deviation: bool) -> pa.Scalar:
    """The total of no numbers."""
    return totals.add(values.read(pa.nulls(0, pa.binary())), np.zeros(2, np.int64), deviation=deviation)[0][0]


def extreme(expr: Call, rows: Rows, of: Of) -> Column:
    """`$max` and `$min`; null does not count."""
    operands = _operands(expr, rows, of)
    one = np.ones(rows.size, np.int64)
    chosen = _extreme_of(operands.items, operands.rows, operands.places, one, greatest=expr.op == "$max")
    found = np.full(rows.size, -1)
    found[operands.rows[chosen]] = chosen
    cells = operands.items.take(pa.array(found, mask=found < 0)).fill_null(NULL)
    return of_cells(values.read(cells), operands.unsure)


# --- what arrays are asked --------------------------------------------------------------------------------------------


def _size(expr: Call, rows: Rows, of: Of) -> Column:
    source = Arrays(of(given(expr, 0), rows), rows)
    return Column("int", pa.array(source.counts, pa.int32()), doubt=either(source.unsure, ~source.are))


def _is_array(expr: Call, rows: Rows, of: Of) -> Column:
    cells, unsure = encoded(of(given(expr, 0), rows))
    return replace(booleans(values.read(cells).tags == tags.ARRAY), doubt=unsure)


def _kinds(expr: Call, rows: Rows, of: Of) -> tuple[npt.NDArray[np.uint8], Bools | None]:
    """The tags of an operand's values, and the rows of which only the interpreter knows the type."""
    cells, unsure = encoded(of(given(expr, 0), rows))
    kinds = values.read(cells).tags
    return kinds, either(unsure, kinds == tags.OTHER)


_NAMES: Final = ("missing", "null", "bool", "int", "long", "double", "string", "date", "object", "array", None)
"""The types by their tags."""


def _type(expr: Call, rows: Rows, of: Of) -> Column:
    kinds, unsure = _kinds(expr, rows, of)
    return Column("string", pa.array(_NAMES).take(pa.array(kinds)), doubt=unsure)


def _is_number(expr: Call, rows: Rows, of: Of) -> Column:
    kinds, unsure = _kinds(expr, rows, of)
    return replace(booleans(np.isin(kinds, (tags.INT, tags.LONG, tags.DOUBLE))), doubt=unsure)


def _to_bool(expr: Call, rows: Rows, of: Of) -> Column:
    column = of(given(expr, 0), rows)
    truth, unsure = truth_of(column)
    cells, unwritten = encoded(column)
    kinds = values.read(cells).tags
    nulls = (kinds == tags.NULL) | (kinds == tags.MISSING)
    return Column("bool", pa.array(truth, pa.bool_(), mask=nulls), doubt=either(unsure, unwritten))


def _element(index: int | None) -> Callable[[Call, Rows, Of], Column]:
    """An item at an index; None: the one of each row."""

    def apply(expr: Call, rows: Rows, of: Of) -> Column:
        wanted, odd = (np.full(rows.size, index), None) if index is not None else _numbers(given(expr, 1), rows, of)
        return doubted(Arrays(of(given(expr, 0), rows), rows).item(wanted), odd)

    return apply


def _range(expr: Call, rows: Rows, of: Of) -> Column:
    """Whole numbers in steps. So many that the batch has no room for them are left to the interpreter, which has one row's in memory."""
    first, odd = _numbers(given(expr, 0), rows, of)
    last, more = _numbers(given(expr, 1), rows, of)
    step, odd = np.ones(rows.size, np.int64), odd | more
    if expr.args[2:]:
        step, more = _numbers(given(expr, 2), rows, of)
        odd |= more | (step == 0)
    step = np.where(odd, 1, step)
    counts = np.where(odd, 0, np.maximum((last - first + step - np.sign(step)) // step, 0))
    odd |= (np.cumsum(counts) > _MADE_MAX) | (counts > rows.left)
    counts[odd] = 0
    row = values.rows_of(counts)
    numbers = first[row] + step[row] * places_of(counts, row)
    cells, _ = encoded(Column("int", pa.array(numbers, pa.int32())))
    return bounded(values.arrays(counts, cells, np.ones(rows.size, np.bool_)), "array", either(odd), rows)


def _contains(expr: Call, rows: Rows, of: Of) -> Column:
    """`$in` an array that is no constant."""
    wanted, source = of(given(expr, 0), rows), Arrays(of(given(expr, 1), rows), rows)
    same, doubt = _equal(source, wanted)
    found = np.zeros(rows.size, np.bool_)
    found[source.rows[same]] = True
    return replace(booleans(found), doubt=either(doubt, ~source.are))


def _equal(source: Arrays, wanted: Column) -> tuple[Int64s, Bools | None]:
    """(the items that equal their row's value; the rows in doubt, shape (n,))."""
    if not len(source.items):
        return np.zeros(0, np.int64), either(unknown_of(wanted), source.unsure)
    signs, doubt = compared(taken(wanted, source.rows), of_cells(values.read(source.items)))
    return np.flatnonzero(signs == 0), either(unknown_of(wanted), source.unsure, source.by_row(doubt))


def _index_of(expr: Call, rows: Rows, of: Of) -> Column:
    """The place of the first item that equals a value."""
    if any(arg is not None for arg in expr.args[2:]):
        raise Unvectorised
    source, wanted = Arrays(of(given(expr, 0), rows), rows), of(given(expr, 1), rows)
    same, doubt = _equal(source, wanted)
    found = np.full(rows.size, -1)
    found[source.rows[same[::-1]]] = source.places[same[::-1]]  # of several the first is written last
    return doubted(Column("int", pa.array(found, pa.int32(), mask=~source.are)), doubt)


def _true_of(*, every: bool) -> Callable[[Call, Rows, Of], Column]:
    """Whether every item is true, or one."""

    def apply(expr: Call, rows: Rows, of: Of) -> Column:
        source = Arrays(of(given(expr, 0), rows), rows)
        found, doubt = np.zeros(rows.size, np.bool_), None
        if len(source.items):
            truth, unsure = truth_of(of_cells(values.read(source.items)))
            found[source.rows[~truth if every else truth]] = True
            doubt = source.by_row(unsure)
        return replace(booleans(~found if every else found), doubt=either(source.unsure, ~source.are, doubt))

    return apply


def _compared(expr: Call, rows: Rows, of: Of) -> Column:
    """Whether arrays have the same items, or the second all of the first."""
    found = Items([arg for arg in expr.args if arg is not None], rows, of)
    order, starts, counts = _different(found)
    firsts = order[starts]
    alone = counts < len(found.arrays)
    if expr.op == "$setIsSubset":
        alone &= found.array[firsts] == 0
    odd = np.zeros(rows.size, np.bool_)
    odd[found.rows[firsts[alone]]] = True
    return replace(booleans(~odd), doubt=either(found.unsure, ~found.are))


CALLS: Final[Mapping[str, Callable[[Call, Rows, Of], Column]]] = {
    "$allElementsTrue": _true_of(every=True),
    "$anyElementTrue": _true_of(every=False),
    "$arrayElemAt": _element(None),
    "$avg": _total,
    "$concatArrays": _of_items(lambda found: np.argsort(found.rows, kind="stable")),
    "$first": _element(0),
    "$firstN": _n_of(_first_n),
    "$in": _contains,
    "$indexOfArray": _index_of,
    "$isArray": _is_array,
    "$isNumber": _is_number,
    "$last": _element(-1),
    "$lastN": _n_of(_last_n),
    "$maxN": _n_of(_greatest_n),
    "$minN": _n_of(_least_n),
    "$range": _range,
    "$reverseArray": _of_items(lambda found: np.lexsort((-found.places, found.rows))),
    "$setDifference": _of_items(_difference),
    "$setEquals": _compared,
    "$setIntersection": _of_items(_intersection),
    "$setIsSubset": _compared,
    "$setUnion": _of_items(_union),
    "$size": _size,
    "$slice": _sliced,
    "$stdDevPop": _total,
    "$stdDevSamp": _total,
    "$sum": _total,
    "$toBool": _to_bool,
    "$type": _type,
    "$zip": _zipped,
}
"""Operators on the items of arrays that have kernels."""
