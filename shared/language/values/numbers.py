"""Arithmetic on mixed numeric types, as MongoDB defines it.

The result's type is the widest of the operands': int, long, double, decimal. An int that overflows becomes a long, a long that
overflows a double; decimals round to 34 digits, half to even. All functions take numbers (not null) and return one.
"""

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation, Overflow
from typing import Any, Final

from tidemark.shared.model.values import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, Long, long

DECIMAL: Final = Context(
    prec=34, rounding=ROUND_HALF_EVEN, Emin=-6143, Emax=6144, capitals=1, clamp=1, traps=[InvalidOperation]
)
"""IEEE 754 decimal128."""
QUIET: Final = Context(prec=34, rounding=ROUND_HALF_EVEN, Emin=-6143, Emax=6144, capitals=1, clamp=1, traps=[])
"""The same without traps: undefined results are NaN."""
_NAN: Final = Decimal("NaN")
_DOUBLE_DIGITS: Final = Context(prec=15, rounding=ROUND_HALF_EVEN, Emin=-6143, Emax=6144)

INT: Final = 0
LONG: Final = 1
DOUBLE: Final = 2
DEC: Final = 3
_WIDTH: Final[dict[type, int]] = {Long: LONG, float: DOUBLE, Decimal: DEC}


def width(value: Any) -> int:
    """INT, LONG, DOUBLE or DEC: how wide a number's type is."""
    kind = type(value)
    if kind is int:
        return INT if INT32_MIN <= value <= INT32_MAX else LONG
    return _WIDTH[kind]


def decimal_of(value: Any) -> Decimal:
    """A number as a decimal: ints exactly, doubles to 15 significant digits, zeros included (as MongoDB converts them), decimals to 34."""
    if type(value) is Decimal:
        return _NAN if value.is_nan() else QUIET.create_decimal(value)
    if type(value) is float:
        if not math.isfinite(value):
            return Decimal(value)
        near = _DOUBLE_DIGITS.create_decimal_from_float(value)
        return near.quantize(Decimal((0, (1,), near.adjusted() - 14)), context=_DOUBLE_DIGITS) if near else near
    return Decimal(int(value))


def double_of(value: Any) -> float:
    """A number as a double, infinite where it is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def whole(value: int, wide: int) -> Any:
    """A whole result whose operands were at most `wide`: an int, else a long, else a double, infinite where it is too large."""
    if wide == INT and INT32_MIN <= value <= INT32_MAX:
        return value
    if INT64_MIN <= value <= INT64_MAX:
        return long(value)
    return double_of(value)


def add(left: Any, right: Any) -> Any:
    """Left + right."""
    wide = max(width(left), width(right))
    if wide <= LONG:
        return whole(int(left) + int(right), wide)
    if wide == DOUBLE:
        return double_of(left) + double_of(right)
    return QUIET.add(decimal_of(left), decimal_of(right))


def subtract(left: Any, right: Any) -> Any:
    """Left − right."""
    wide = max(width(left), width(right))
    if wide <= LONG:
        return whole(int(left) - int(right), wide)
    if wide == DOUBLE:
        return double_of(left) - double_of(right)
    return QUIET.subtract(decimal_of(left), decimal_of(right))


def multiply(left: Any, right: Any) -> Any:
    """Left × right."""
    wide = max(width(left), width(right))
    if wide <= LONG:
        return whole(int(left) * int(right), wide)
    if wide == DOUBLE:
        return double_of(left) * double_of(right)
    return QUIET.multiply(decimal_of(left), decimal_of(right))


def divide(left: Any, right: Any) -> Any:
    """Left / right: a double, or a decimal if one of them is. ZeroDivisionError for a zero divisor."""
    if right == 0:
        raise ZeroDivisionError
    if DEC in (width(left), width(right)):
        return QUIET.divide(decimal_of(left), decimal_of(right))
    return double_of(left) / double_of(right)


def modulo(left: Any, right: Any) -> Any:
    """The remainder of the division cut towards zero: its sign is the dividend's. ZeroDivisionError for a zero divisor."""
    wide = max(width(left), width(right))
    if right == 0:
        raise ZeroDivisionError
    if wide <= LONG:
        remainder = abs(int(left)) % abs(int(right))
        return whole(-remainder if left < 0 else remainder, wide)
    if wide == DOUBLE:
        a, b = double_of(left), double_of(right)
        return math.nan if math.isinf(a) else math.fmod(a, b)
    return _remainder(decimal_of(left), decimal_of(right))


def _remainder(left: Decimal, right: Decimal) -> Decimal:
    if not left.is_finite() or right.is_nan():
        return Decimal("NaN")
    if right.is_infinite():
        return left
    wide = Context(prec=13000, Emin=-6176, Emax=20000, traps=[Overflow])
    return QUIET.plus(wide.remainder(left, right))
