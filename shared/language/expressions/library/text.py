"""Values as text: as `$toString` shows them, and as `$toUpper`, `$substrCP` and their kin take them."""

import math
from decimal import Decimal
from typing import Any, Final

from tidemark.shared.language.expressions.errors import CONVERSION, TYPE, fail
from tidemark.shared.language.values.instants import DAY_MS, date_of
from tidemark.shared.language.values.types import type_name
from tidemark.shared.model.values import MISSING, Date, Long, Timestamp, Value

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_YEAR_MAX: Final = 9999
"""The last year that ISO 8601 writes with four digits."""


def double_text(value: float) -> str:
    """The shortest text that reads back as the same double; whole ones without a point."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    text = repr(value)
    return text.removesuffix(".0")


def decimal_text(value: Decimal) -> str:
    """A decimal as MongoDB shows it."""
    return "NaN" if value.is_nan() else str(value)


def date_text(value: Date) -> str:
    """`2024-03-05T12:00:00.000Z`; ExpressionError for years without four digits."""
    days, rest = divmod(int(value), DAY_MS)
    year, month, day = date_of(days)
    if not 0 <= year <= _YEAR_MAX:
        raise fail(f"the year {year} has no text: it has not four digits", CONVERSION)
    seconds, milli = divmod(rest, 1000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{milli:03d}"
    return f"{year:04d}-{month:02d}-{day:02d}T{clock}Z"


def scalar_text(value: Any) -> str | None:
    """The text of a string, number or date; None for other types."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is int or kind is Long:
        return str(int(value))
    if kind is float:
        return double_text(value)
    if kind is Decimal:
        return decimal_text(value)
    if kind is Date:
        return date_text(value)
    return None


def _timestamp_text(value: Timestamp) -> str:
    """`Jul 20 18:40:00:1`: the counter stands behind the second."""
    days, rest = divmod(value.seconds, DAY_MS // 1000)
    _, month, day = date_of(days)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{_MONTHS[month - 1]} {day:2d} {clock}:{value.increment}"


def text_of(name: str, value: Value) -> str:
    """A value as the text that string operators work on: null and missing are empty, doubles have six digits."""
    if value is None or value is MISSING:
        return ""
    if type(value) is float:
        return f"{value:g}"
    if type(value) is Timestamp:
        return _timestamp_text(value)
    text = scalar_text(value)
    if text is None:
        raise fail(f"{name} takes strings, numbers, dates and timestamps, found {type_name(value)}", TYPE)
    return text
