"""Types of values by name and by number, as `$type` and `$jsonSchema` name them."""

import math
from decimal import Decimal
from typing import Any, Final

from tidemark.shared.model.values import (
    INT32_MAX,
    INT32_MIN,
    MAX_KEY,
    MISSING,
    Binary,
    Date,
    EndKey,
    Long,
    Missing,
    ObjectId,
    Regex,
    Timestamp,
    Value,
)

NUMBER_TYPES: Final = frozenset({int, Long, float, Decimal})
"""Python types of numbers; `bool` and `Date` are none."""

TYPE_NUMBERS: Final = {
    "double": 1, "string": 2, "object": 3, "array": 4, "binData": 5, "undefined": 6, "objectId": 7, "bool": 8, "date": 9,
    "null": 10, "regex": 11, "dbPointer": 12, "javascript": 13, "symbol": 14, "javascriptWithScope": 15, "int": 16,
    "timestamp": 17, "long": 18, "decimal": 19, "minKey": -1, "maxKey": 127,
}  # fmt: skip
"""BSON's type numbers by alias."""

_NAMES: Final[dict[type, str]] = {
    type(None): "null", bool: "bool", Long: "long", float: "double", Decimal: "decimal", str: "string", Date: "date",
    ObjectId: "objectId", Binary: "binData", Regex: "regex", Timestamp: "timestamp", list: "array", dict: "object",
    Missing: "missing",
}  # fmt: skip


def type_name(value: Value) -> str:
    """BSON's name of a value's type; `missing` for MISSING. TypeError if it is no value (V1)."""
    kind = type(value)
    if kind is int:
        return "int" if INT32_MIN <= value <= INT32_MAX else "long"
    name = _NAMES.get(kind)
    if name is not None:
        return name
    if kind is EndKey:
        return "maxKey" if value is MAX_KEY else "minKey"
    raise TypeError(f"not a value of the language: {kind.__name__}")


def is_number(value: Value) -> bool:
    """Whether a value is an int, long, double or decimal."""
    return type(value) in NUMBER_TYPES


def is_nan(value: Any) -> bool:
    """Whether a number is no number. Decimals and doubles alike: what compares with NaN by < and > raises for decimals."""
    return bool(value != value)  # noqa: PLR0124 - NaN alone differs from itself


def is_finite(value: Any) -> bool:
    """Whether a number is neither infinite nor NaN."""
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    return bool(value.is_finite()) if kind is Decimal else True


def is_integral(value: Value) -> bool:
    """Whether a value is a whole number that fits 64 bits, whatever its numeric type."""
    kind = type(value)
    if kind is int or kind is Long:
        return True
    if kind is float:
        return math.isfinite(value) and abs(value) < 2.0**63 and value == int(value)
    if kind is Decimal:
        return bool(value.is_finite() and -(2**63) < value < 2**63 and value == value.to_integral_value())
    return False


def truth(value: Value) -> bool:
    """A value as a condition: false are null, missing, false and zero of any type; everything else is true."""
    if value is None or value is MISSING:
        return False
    kind = type(value)
    if kind is bool or kind in NUMBER_TYPES:
        return bool(value != 0)  # NaN is true
    return True
