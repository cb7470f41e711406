"""Arithmetic: null or missing among the operands gives null; other types than numbers (and dates, where said) fail."""

import math
from collections.abc import Callable
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from typing import Any, Final, TypeVar

from tidemark.shared.language.expressions.errors import DIVISION, OVERFLOW, TYPE, VALUE, fail
from tidemark.shared.language.expressions.registry import ABSENT, ALL, named, positional
from tidemark.shared.language.values.numbers import (
    DEC,
    DECIMAL,
    DOUBLE,
    LONG,
    QUIET,
    add,
    decimal_of,
    divide,
    double_of,
    modulo,
    multiply,
    subtract,
    whole,
    width,
)
from tidemark.shared.language.values.order import sort_key
from tidemark.shared.language.values.totals import Deviation, Total, quantile
from tidemark.shared.language.values.types import is_finite, is_integral, is_nan, is_number, type_name
from tidemark.shared.model.values import INT64_MAX, INT64_MIN, MISSING, Date, Value, long

Gathering = TypeVar("Gathering", Total, Deviation)


def _operands(values: tuple[Value, ...]) -> tuple[Value, ...] | list[Any]:
    """One operand that is an array stands for its items; among several, arrays stand for themselves."""
    return values[0] if len(values) == 1 and type(values[0]) is list else values


def _gathered(name: str, doc: str, begin: type[Gathering], finish: Callable[[Gathering], Value]) -> None:
    def apply(*values: Value) -> Value:
        gathered = begin()
        for value in _operands(values):
            gathered.add(value)
        return finish(gathered)

    positional(name, 0, None, doc=doc)(apply)


_gathered("$sum", "The sum of the numbers; what is no number is passed over.", Total, Total.sum)
_gathered("$avg", "The average of the numbers; null without any.", Total, Total.average)
_gathered("$stdDevPop", "The standard deviation of a population.", Deviation, Deviation.population)
_gathered("$stdDevSamp", "The standard deviation of a sample.", Deviation, Deviation.sample)


def _extreme(name: str, doc: str, best: Callable[..., Value]) -> None:
    def apply(*values: Value) -> Value:
        items = [value for value in _operands(values) if value is not None and value is not MISSING]
        return best(items, key=sort_key) if items else None

    positional(name, 0, None, doc=doc)(apply)


_extreme("$max", "The greatest operand; null and missing do not count.", max)
_extreme("$min", "The least operand; null and missing do not count.", min)


def _numbers(value: Value) -> list[float]:
    items = value if type(value) is list else [value]
    return sorted(float(item) for item in items if is_number(item) and not is_nan(item))


def check_method(name: str, method: Value) -> None:
    """ExpressionError for a method other than the one there is."""
    if method != "approximate":
        raise fail(f"the method of {name} is approximate", VALUE)


def check_points(points: Value) -> None:
    """ExpressionError if it is no array of fractions."""
    if type(points) is not list or not points or not all(is_number(p) and is_finite(p) and 0 <= p <= 1 for p in points):
        raise fail("p of $percentile is an array of numbers from 0 to 1", TYPE)


@named("$median", "input method")
def _median(value: Value, method: Value) -> Value:
    """The median of the numbers of an array."""
    check_method("$median", method)
    return quantile(_numbers(value), 0.5)


@named("$percentile", "input p method")
def _percentile(value: Value, points: Value, method: Value) -> list[Any]:
    """Percentiles of the numbers of an array."""
    check_method("$percentile", method)
    check_points(points)
    ordered = _numbers(value)
    return [quantile(ordered, float(p)) for p in points]


_WIDE: Final = Context(prec=7000, Emin=-999999, Emax=999999)


def is_null(value: Value) -> bool:
    """Null and missing."""
    return value is None or value is MISSING


def number(name: str, value: Value) -> Any:
    """A number, or a failure that names the operator."""
    if not is_number(value):
        raise fail(f"{name} takes numbers, found {type_name(value)}", TYPE)
    return value


def shifted(date: Date, ms: int) -> Date:
    """A date some ms later; fails beyond 64 bits."""
    moved = int(date) + ms
    if not INT64_MIN <= moved <= INT64_MAX:
        raise fail("the date is out of range", OVERFLOW)
    return Date(moved)


def _ms(value: Any) -> int:
    """A number as whole milliseconds: halves of doubles go away from zero, those of decimals to the even neighbour."""
    if not is_finite(value) or not -INT64_MAX <= value <= INT64_MAX:
        raise fail("the number of milliseconds is out of range", OVERFLOW)
    if type(value) is float:
        away = ROUND_HALF_UP  # in Python's words: towards the greater magnitude
        return int(Decimal(value).quantize(Decimal(1), rounding=away, context=_WIDE))
    return int(value.to_integral_value(rounding=ROUND_HALF_EVEN)) if type(value) is Decimal else int(value)


@positional("$add", 0, None, until_null=True)
def _add(*values: Value) -> Value:
    """Adds numbers, or numbers (of milliseconds) to one date."""
    date: Date | None = None
    numbers = []
    for value in values:
        if is_null(value):
            return None
        if type(value) is Date:
            if date is not None:
                raise fail("$add takes one date at most", TYPE)
            date = value
        else:
            numbers.append(number("$add", value))
    total = sum_of(numbers)
    return total if date is None else shifted(date, _ms(total))


def sum_of(numbers: list[Any]) -> Any:
    """The sum of numbers: whole ones exactly, three doubles and more without intermediate rounding."""
    wide = max(map(width, numbers), default=0)
    if wide <= LONG:
        return whole(sum(map(int, numbers)), wide)
    if wide == DOUBLE and len(numbers) > 2:  # noqa: PLR2004 - two have no intermediate result
        doubles = [double_of(n) for n in numbers]
        try:
            return math.fsum(doubles)
        except (OverflowError, ValueError):
            return sum(doubles)
    total = numbers[0]
    for item in numbers[1:]:
        total = add(total, item)
    return total


@positional("$multiply", 0, None, until_null=True)
def _multiply(*values: Value) -> Value:
    """Multiplies numbers."""
    numbers = []
    for value in values:
        if is_null(value):
            return None
        numbers.append(number("$multiply", value))
    wide = max(map(width, numbers), default=0)
    if wide <= LONG:
        return whole(math.prod(map(int, numbers)), wide)
    total = numbers[0]
    for item in numbers[1:]:
        total = multiply(total, item)
    return total


@positional("$subtract", 2, null=2)
def _subtract(left: Value, right: Value) -> Value:
    """Subtracts a number from a number, milliseconds from a date, or a date from a date (giving milliseconds)."""
    if type(left) is Date:
        if type(right) is Date:
            return whole(int(left) - int(right), LONG)
        return shifted(left, -_ms(number("$subtract", right)))
    if type(right) is Date:
        raise fail("$subtract does not take a date from a number", TYPE)
    return subtract(number("$subtract", left), number("$subtract", right))


@positional("$divide", 2, null=2)
def _divide(left: Value, right: Value) -> Value:
    """Divides; the result is a double, or a decimal if one of them is."""
    try:
        return divide(number("$divide", left), number("$divide", right))
    except ZeroDivisionError:
        raise fail("$divide by zero", DIVISION) from None


@positional("$mod", 2, null=2)
def _mod(left: Value, right: Value) -> Value:
    """The remainder; its sign is the dividend's."""
    try:
        return modulo(number("$mod", left), number("$mod", right))
    except ZeroDivisionError:
        raise fail("$mod by zero", DIVISION) from None


@positional("$abs", 1, null=1)
def _abs(value: Value) -> Value:
    """The absolute value."""
    wide = width(number("$abs", value))
    if wide <= LONG:
        if value == INT64_MIN:
            raise fail("$abs of the least long is no long", OVERFLOW)
        return whole(abs(int(value)), wide)
    return abs(value) if wide == DOUBLE else value.copy_abs()


def _rounder(name: str, doc: str, on_double: Callable[[float], float], mode: str) -> None:
    def apply(value: Value) -> Value:
        wide = width(number(name, value))
        if wide <= LONG:
            return value
        if wide == DOUBLE:
            return on_double(value) if math.isfinite(value) else value
        # A number without a place for its ones among 34 digits is no integer, as MongoDB has it.
        fits = value.is_finite() and value.adjusted() < DECIMAL.prec
        return value.to_integral_value(rounding=mode) if fits else Decimal("NaN")

    positional(name, 1, null=1, doc=doc)(apply)


_rounder(
    "$ceil", "The least whole number that is not below.", lambda x: math.copysign(math.ceil(x), x), "ROUND_CEILING"
)
_rounder(
    "$floor", "The greatest whole number that is not above.", lambda x: math.copysign(math.floor(x), x), "ROUND_FLOOR"
)

_PLACES: Final = (-20, 100)


def _at_place(name: str, value: Value, place: Value, mode: str) -> Value:
    wide = width(number(name, value))
    if is_null(place):
        return None
    if place is ABSENT:
        place = 0
    if not is_integral(place) or not _PLACES[0] <= place <= _PLACES[1]:
        raise fail(f"the place of {name} is a whole number from {_PLACES[0]} to {_PLACES[1]}, found {place!r}", VALUE)
    if not is_finite(value):
        return value
    if wide <= LONG and place >= 0:
        return value
    exact = value if wide == DEC else Decimal(value)
    rounded = exact.quantize(Decimal(1).scaleb(-int(place)), rounding=mode, context=_WIDE)
    if wide <= LONG:
        if not INT64_MIN <= rounded <= INT64_MAX:
            raise fail(f"{name} of {value} at the place {place} is out of the range of long", OVERFLOW)
        return whole(int(rounded), wide)
    return float(rounded) if wide == DOUBLE else decimal_of(rounded)


@positional("$round", 1, 2, null=1)
def _round(value: Value, place: Value = ABSENT) -> Value:
    """Rounds at a decimal place, a half to the even neighbour."""
    return _at_place("$round", value, place, ROUND_HALF_EVEN)


@positional("$trunc", 1, 2, null=1)
def _trunc(value: Value, place: Value = ABSENT) -> Value:
    """Cuts towards zero at a decimal place."""
    return _at_place("$trunc", value, place, ROUND_DOWN)


@positional("$pow", 2, null=2)
def _pow(base: Value, exponent: Value) -> Value:
    """A power."""
    wide = max(width(number("$pow", base)), width(number("$pow", exponent)))
    if is_nan(base) or is_nan(exponent):
        return Decimal("NaN") if wide == DEC else math.nan
    if base == 0 and exponent < 0:
        raise fail("$pow of 0 with a negative exponent", VALUE)
    if wide == DEC:
        return QUIET.power(decimal_of(base), decimal_of(exponent))
    if wide <= LONG and (exponent >= 0 or abs(base) == 1):
        if abs(base) <= 1:
            return whole(int(base) ** (int(exponent) % 2 if base else min(int(exponent), 1)) if base != 1 else 1, wide)
        if exponent <= 64:  # noqa: PLR2004 - beyond, no base above 1 fits 64 bits
            return whole(int(base) ** int(exponent), wide)
    try:
        return math.pow(double_of(base), double_of(exponent))
    except OverflowError:
        return math.inf if base > 0 or exponent % 2 == 0 else -math.inf
    except ValueError:
        return math.nan


def _real(name: str, doc: str, on_double: Callable[[float], float], on_decimal: Callable[[Decimal], Decimal] | None,
          good: Callable[[Any], bool] | None = None, need: str = "") -> None:  # fmt: skip
    def apply(value: Value) -> Value:
        wide = width(number(name, value))
        if is_nan(value):
            return value
        if good is not None and not good(value):
            raise fail(f"{name} takes {need}, found {value}", VALUE)
        try:
            if wide == DEC:
                return on_decimal(value) if on_decimal is not None else decimal_of(on_double(float(value)))
            return on_double(double_of(value))
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    def of_double(value: float) -> float:
        try:
            return on_double(value)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    positional(name, 1, null=1, doc=doc)(apply)
    REALS[name] = of_double, good or _any


REALS: Final[dict[str, tuple[Callable[[float], float], Callable[[float], bool]]]] = {}
"""Operators of one number: (what they are of a double, the doubles that they take)."""


def _any(_: float) -> bool:
    return True


def _positive(value: Any) -> bool:
    return bool(value > 0)


def _within_one(value: Any) -> bool:
    return bool(-1 <= value <= 1)


_real("$exp", "e to a power.", math.exp, QUIET.exp)
_real("$ln", "The natural logarithm.", math.log, QUIET.ln, _positive, "a number above 0")
_real("$log10", "The logarithm to base 10.", math.log10, QUIET.log10, _positive, "a number above 0")
_real("$sqrt", "The square root.", math.sqrt, QUIET.sqrt, lambda v: bool(v >= 0), "a number from 0")
_real("$sin", "The sine of radians.", math.sin, None, is_finite, "a finite number")
_real("$cos", "The cosine of radians.", math.cos, None, is_finite, "a finite number")
_real("$tan", "The tangent of radians.", math.tan, None, is_finite, "a finite number")
_real("$asin", "The arc sine, in radians.", math.asin, None, _within_one, "a number from -1 to 1")
_real("$acos", "The arc cosine, in radians.", math.acos, None, _within_one, "a number from -1 to 1")
_real("$atan", "The arc tangent, in radians.", math.atan, None)
_real("$sinh", "The hyperbolic sine.", math.sinh, None)
_real("$cosh", "The hyperbolic cosine.", math.cosh, None)
_real("$tanh", "The hyperbolic tangent.", math.tanh, None)
_real("$asinh", "The inverse hyperbolic sine.", math.asinh, None)
_real("$acosh", "The inverse hyperbolic cosine.", math.acosh, None, lambda v: bool(v >= 1), "a number from 1")
_real("$atanh", "The inverse hyperbolic tangent.", lambda x: math.copysign(math.inf, x) if abs(x) == 1 else math.atanh(x), None,
      _within_one, "a number from -1 to 1")  # fmt: skip
_real("$degreesToRadians", "Degrees as radians.", math.radians, None)
_real("$radiansToDegrees", "Radians as degrees.", math.degrees, None)
_real(
    "$sigmoid",
    "1 / (1 + e to −x).",
    lambda x: 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x)),
    lambda x: QUIET.divide(Decimal(1), QUIET.add(Decimal(1), QUIET.exp(QUIET.minus(x)))),
)


@positional("$atan2", 2, null=2)
def _atan2(y: Value, x: Value) -> Value:
    """The arc tangent of y / x in its quadrant, in radians."""
    angle = math.atan2(double_of(number("$atan2", y)), double_of(number("$atan2", x)))
    return decimal_of(angle) if DEC in (width(y), width(x)) else angle


@positional("$log", 2, null=2)
def _log(value: Value, base: Value) -> Value:
    """The logarithm to a base."""
    operands = number("$log", value), number("$log", base)
    if any(is_nan(operand) for operand in operands):
        return Decimal("NaN") if DEC in (width(value), width(base)) else math.nan
    if not operands[0] > 0 or not operands[1] > 0 or base == 1:
        raise fail(f"$log takes a number above 0 and a base above 0 other than 1, found {value} and {base}", VALUE)
    if DEC in (width(value), width(base)):
        return QUIET.divide(QUIET.ln(decimal_of(value)), QUIET.ln(decimal_of(base)))
    return math.log(double_of(value)) / math.log(double_of(base))


def _bitwise(name: str, doc: str, start: int, combine: Callable[[int, int], int]) -> None:
    def apply(*values: Value) -> Value:
        result = start
        wide = 0
        for value in values:
            if not is_number(value) or width(value) > LONG:
                raise fail(f"{name} takes ints and longs, found {type_name(value)}", TYPE)
            wide = max(wide, width(value))
            result = combine(result, int(value))
        return long(result) if wide == LONG else result

    positional(name, 0, None, null=ALL, doc=doc)(apply)


_bitwise("$bitAnd", "The bits that all have.", -1, lambda a, b: a & b)
_bitwise("$bitOr", "The bits that any has.", 0, lambda a, b: a | b)
_bitwise("$bitXor", "The bits that an odd number has.", 0, lambda a, b: a ^ b)


@positional("$bitNot", 1, null=1)
def _bit_not(value: Value) -> Value:
    """All bits the other way round."""
    if not is_number(value) or width(value) > LONG:
        raise fail(f"$bitNot takes an int or a long, found {type_name(value)}", TYPE)
    return whole(~int(value), width(value))
