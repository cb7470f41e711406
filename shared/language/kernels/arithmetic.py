"""Arithmetic on columns. Nulls give nulls; of what would change the type of a row, or fail on it, there is doubt."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.documents import numeric
from tidemark.shared.language.kernels.base import (
    NUMERIC,
    TIMESTAMP,
    WHOLE,
    Bools,
    Column,
    ColumnType,
    Unvectorised,
    as_doubles,
    either,
    filled,
    inexact,
    without,
)
from tidemark.shared.language.kernels.cells import tagged_column
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, INT64_MIN

Doubles = npt.NDArray[np.float64]
_CHECKED: Final[dict[str, Callable[[pa.Array, pa.Array], pa.Array]]] = {
    "$add": pc.add_checked,
    "$subtract": pc.subtract_checked,
    "$multiply": pc.multiply_checked,
}
_PLAIN: Final[dict[str, Callable[[pa.Array, pa.Array], pa.Array]]] = {
    "$add": pc.add,
    "$subtract": pc.subtract,
    "$multiply": pc.multiply,
}


def nulls(size: int) -> Column:
    """Nothing but nulls."""
    return Column("null", pa.nulls(size))


_NEARLY_ALL: Final = 2.0**62
"""Whole results whose double is below it fit 64 bits."""


def _checked(op: str, left: pa.Array, right: pa.Array) -> tuple[pa.Array, Bools | None]:
    """Whole results, and the rows whose may not fit 64 bits: they are null."""
    try:
        return _CHECKED[op](left, right), None
    except pa.ArrowInvalid:
        near = _PLAIN[op](left.cast(pa.float64(), safe=False), right.cast(pa.float64(), safe=False))
        beyond = filled(pc.greater(pc.abs(near), _NEARLY_ALL))
        return _CHECKED[op](without(left, beyond), without(right, beyond)), beyond


def whole(values: pa.Array, kind: ColumnType, doubt: Bools | None = None) -> Column:
    """64-bit results as a column of their type; those of ints that need more than 32 bits are longs."""
    if kind == "long":
        return Column("long", values, doubt=doubt)
    bounds = pc.min_max(values).as_py()
    if bounds["min"] is None or (bounds["min"] >= INT32_MIN and bounds["max"] <= INT32_MAX):
        return Column("int", values.cast(pa.int32()), doubt=doubt)
    numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    kinds = np.where((numbers < INT32_MIN) | (numbers > INT32_MAX), tags.LONG, tags.INT)
    kinds = np.where(values.is_valid().to_numpy(zero_copy_only=False), kinds, tags.NULL)
    return tagged_column(numeric(kinds, numbers), doubt)


def combine(op: str, args: Sequence[Column]) -> Column:
    """`$add`, `$subtract` or `$multiply` of columns."""
    if any(arg.type == "date" for arg in args):
        return _with_dates(op, args)
    if any(arg.type not in (*NUMERIC, "null") for arg in args) or not args:
        raise Unvectorised
    if any(arg.type == "null" for arg in args):
        return nulls(len(args[0].values))
    if all(arg.type in WHOLE for arg in args):
        total, doubt = args[0].values.cast(pa.int64()), None
        for arg in args[1:]:
            total, more = _checked(op, total, arg.values.cast(pa.int64()))
            doubt = either(doubt, more)
        return whole(total, "long" if any(arg.type == "long" for arg in args) else "int", doubt)
    if len(args) == 1:
        return Column("double", args[0].values)
    if op == "$add" and len(args) > 2:  # noqa: PLR2004 - two have no intermediate result
        return _added(args)
    if all(arg.type in WHOLE for arg in args[:2]):
        raise Unvectorised  # their product is a whole number
    total = as_doubles(args[0])
    for arg in args[1:]:
        total = _PLAIN[op](total, as_doubles(arg))
    return Column("double", total)


def _added(args: Sequence[Column]) -> Column:
    """Three doubles and more, rounded once: the sum of all that their sums lose is exact, or there is doubt."""
    first, *others = (pc.fill_null(as_doubles(arg), 1.0).to_numpy(zero_copy_only=False) for arg in args)
    nulls = np.logical_or.reduce([arg.values.is_null().to_numpy(zero_copy_only=False) for arg in args])
    with np.errstate(all="ignore"):
        total, lost = _two_sum(first, others[0])
        unsure = np.zeros(len(total), np.bool_)
        for other in others[1:]:
            total, more = _two_sum(total, other)
            lost, rest = _two_sum(lost, more)
            unsure |= rest != 0
        total = total + lost
        unsure |= ~np.isfinite(total) | (total == 0)
    return Column("double", pa.array(total, pa.float64(), mask=nulls), doubt=either(unsure & ~nulls))


def _two_sum(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """(the double nearest to a sum, its difference from the sum) (D. E. Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def total_of(args: Sequence[Column]) -> Column:
    """`$sum` of several operands that are numbers in every row: as `$add`, but that no long is rounded before."""
    if len(args) < 2 or any(arg.type not in NUMERIC for arg in args):  # noqa: PLR2004 - one may be an array
        raise Unvectorised
    if len(args) == 2 and any(arg.type == "double" for arg in args):  # noqa: PLR2004
        found = _added([*args, Column("double", pa.array(np.zeros(len(args[0].values)), pa.float64()))])
    else:
        found = combine("$add", args)
    nulls = [filled(arg.values.is_null()) for arg in args]
    return Column(found.type, found.values, doubt=either(found.doubt, *nulls, *map(inexact, args)))


def _with_dates(op: str, args: Sequence[Column]) -> Column:
    """A date and numbers of ms, or one date less another."""
    if op == "$subtract" and args[0].type == args[1].type == "date":
        apart, doubt = _checked(op, _ms(args[0])[0], _ms(args[1])[0])
        return Column("long", apart, doubt=doubt)
    dates, numbers = ([arg for arg in args if (arg.type == "date") is wanted] for wanted in (True, False))
    if op == "$multiply" or len(dates) != 1 or (op == "$subtract" and args[0].type != "date"):
        raise Unvectorised
    if not numbers:
        return Column("date", dates[0].values)
    total = numbers[0] if len(numbers) == 1 else combine("$add", numbers)
    if total.type not in NUMERIC:
        raise Unvectorised
    amount, beyond = _ms(total)
    moved, doubt = _checked(op, _ms(dates[0])[0], amount)
    return Column("date", moved.cast(TIMESTAMP), doubt=either(total.doubt, doubt, beyond))


def _ms(column: Column) -> tuple[pa.Array, Bools | None]:
    """Dates and numbers as whole ms, halves away from zero, and where there is doubt; there they are null."""
    if column.type == "double":
        beyond = either(~filled(pc.less(pc.abs(column.values), _NEARLY_ALL)) & ~filled(column.values.is_null()))
        rounded = pc.round(without(column.values, beyond), round_mode="half_towards_infinity")
        return rounded.cast(pa.int64()), beyond
    found = column.values.cast(pa.int64())
    least = either(filled(pc.equal(found, INT64_MIN))) if column.type == "long" else None
    return without(found, least), least


def _zeros(values: pa.Array) -> Bools | None:
    """Where a divisor is zero: that is an error."""
    zero = pc.equal(values, pa.scalar(0, values.type))
    return filled(zero) if pc.any(zero).as_py() else None


def divide(args: Sequence[Column]) -> Column:
    """`$divide` on columns."""
    left, right = _two_numbers(args)
    if "null" in (left.type, right.type):
        return nulls(len(left.values))
    return Column("double", pc.divide(as_doubles(left), as_doubles(right)), doubt=_zeros(right.values))


def _two_numbers(args: Sequence[Column]) -> tuple[Column, Column]:
    left, right = args
    if any(arg.type not in (*NUMERIC, "null") for arg in args):
        raise Unvectorised
    return left, right


def modulo(args: Sequence[Column]) -> Column:
    """`$mod`; the remainder of doubles is exact."""
    left, right = _two_numbers(args)
    if "null" in (left.type, right.type):
        return nulls(len(left.values))
    zero = _zeros(right.values)
    if left.type not in WHOLE or right.type not in WHOLE:
        over, by = (column.to_numpy(zero_copy_only=False) for column in map(as_doubles, (left, right)))
        with np.errstate(all="ignore"):
            found = pa.array(np.where(np.isinf(over), np.nan, np.fmod(over, by)), pa.float64())
        valid = pc.and_(left.values.is_valid(), right.values.is_valid())
        return Column("double", pc.if_else(valid, found, pa.scalar(None, pa.float64())), doubt=zero)
    a = pc.fill_null(left.values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    b = pc.fill_null(without(right.values, zero).cast(pa.int64()), 1).to_numpy(zero_copy_only=False)
    mask = pc.or_(left.values.is_null(), right.values.is_null()).to_numpy(zero_copy_only=False)
    b = np.where(b == -1, 1, b)  # the least long has no quotient by -1, and the rest is 0 by either
    result = pa.array(np.fmod(a, b), pa.int64(), mask=mask)
    return whole(result, "long" if "long" in (left.type, right.type) else "int", zero)


def absolute(arg: Column) -> Column:
    """`$abs` on a column."""
    if arg.type in WHOLE:
        cells = arg.values.cast(pa.int64())
        least = filled(pc.equal(cells, INT64_MIN))
        return whole(pc.abs_checked(without(cells, either(least))), arg.type, either(least))
    return Column("double", pc.abs(arg.values))


def root(arg: Column) -> Column:
    """`$sqrt`; a number below 0 fails."""
    cells = as_doubles(arg)
    return Column("double", pc.sqrt(cells), doubt=either(filled(pc.less(cells, 0.0))))


def rounded(function: Any, arg: Column) -> Column:
    """`$floor` and `$ceil`; a zero keeps the sign of what it was made of."""
    return Column(arg.type, arg.values if arg.type in WHOLE else function(arg.values))


_PLACES_MAX: Final = 15
"""Places behind the point of which a double can be sure."""
_EXACT_MAX: Final = 2.0**51
"""Below it a double tells halves apart; beyond, the interpreter rounds."""
_SPLIT: Final = 2.0**27 + 1


def at_place(arg: Column, place: object, *, rounds: bool) -> Column:
    """`$round` and `$trunc` at a constant decimal place: of the exact value of a double, a half to the even neighbour."""
    if type(place) is not int or not 0 <= place <= _PLACES_MAX:
        raise Unvectorised
    if arg.type in WHOLE:
        return Column(arg.type, arg.values)
    cells = pc.fill_null(arg.values, 0.0).to_numpy(zero_copy_only=False)
    power = float(10**place)
    with np.errstate(all="ignore"):
        near = cells * power
        unsure = ~(np.abs(near) < _EXACT_MAX) | ((cells != 0) & (np.abs(cells) < _TINY))
        near = np.where(unsure, 0.0, near)
        more = _product_error(np.where(unsure, 0.0, cells), power, near)
        whole_part = _rounded(near, more) if rounds else _cut(near, more)
        found = np.copysign(np.abs(whole_part) / power, cells)
    # A number without a fraction at this place is itself, however large; so are infinities and NaN.
    huge = ~(np.abs(cells) < _EXACT_MAX * 4)
    found = np.where(huge, cells, found)
    values = pa.array(found, pa.float64(), mask=arg.values.is_null().to_numpy(zero_copy_only=False))
    return Column("double", values, doubt=either(unsure & ~huge))


_TINY: Final = 1e-250
"""Below it the error of a product may be lost."""


def _product_error(cells: Doubles, power: float, product: Doubles) -> Doubles:
    """The difference of an exact product from its double (T. J. Dekker)."""
    high = _SPLIT * cells
    high = high - (high - cells)
    low = cells - high
    power_high = _SPLIT * power
    power_high = power_high - (power_high - power)
    power_low = power - power_high
    return ((high * power_high - product) + high * power_low + low * power_high) + low * power_low


def _rounded(near: Doubles, more: Doubles) -> Doubles:
    """The nearest whole numbers of near + more, a half to the even one."""
    floor = np.floor(near)
    beyond = near - floor - 0.5
    even = np.where(np.mod(floor, 2) == 0, floor, floor + 1)
    half = np.where(more > 0, floor + 1, np.where(more < 0, floor, even))
    return np.where(beyond == 0, half, np.where(beyond > 0, floor + 1, floor))


def _cut(near: Doubles, more: Doubles) -> Doubles:
    """Whole numbers of near + more, cut towards zero."""
    cut = np.trunc(near)
    short = (cut == near) & (np.sign(more) * np.sign(near) < 0)
    return np.where(short, cut - np.sign(near), cut)
