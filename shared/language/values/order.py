"""The total order over all values, and equality: MongoDB's comparison order.

MinKey, missing, null, numbers, strings, documents, arrays, binary, ObjectId, bool, date, timestamp, regex, MaxKey. Numbers of all
types compare by their exact value, NaN below all others and equal to itself. Strings compare by code point, as their UTF-8 does.
Documents compare field by field: type, then name, then value; a shorter one that agrees is less.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from tidemark.shared.model.values import MAX_KEY, Binary, Date, EndKey, Long, Missing, ObjectId, Regex, Timestamp, Value

_DIRECT: Final = frozenset({str, bool, Date})
_NUMBER_RANK: Final = 10
_NAN: Final = (_NUMBER_RANK, 0)


def _number(value: object) -> tuple[Any, ...]:
    if value != value:  # noqa: PLR0124 - NaN
        return _NAN
    return (_NUMBER_RANK, 1, value)


def _document(value: dict[str, Any]) -> tuple[Any, ...]:
    fields = []
    for name, item in value.items():
        key = sort_key(item)
        fields.append((key[0], name, key))
    return (20, tuple(fields))


def _plain(rank: int) -> Callable[[Any], tuple[Any, ...]]:
    return lambda value: (rank, value)


_KEYS: Final[dict[type, Callable[[Any], tuple[Any, ...]]]] = {
    Missing: lambda _: (0,),
    type(None): lambda _: (5,),
    int: lambda value: (_NUMBER_RANK, 1, value),
    Long: lambda value: (_NUMBER_RANK, 1, value),
    float: _number,
    Decimal: _number,
    str: _plain(15),
    dict: _document,
    list: lambda value: (25, tuple(sort_key(item) for item in value)),
    Binary: lambda value: (30, len(value), value.subtype, bytes(value)),
    ObjectId: lambda value: (35, value.data),
    bool: _plain(40),
    Date: lambda value: (45, int(value)),
    Timestamp: lambda value: (47, value.seconds, value.increment),
    Regex: lambda value: (50, value.pattern, value.options),
    EndKey: lambda value: (127,) if value is MAX_KEY else (-1,),
}


def sort_key(value: Value) -> tuple[Any, ...]:
    """A tuple that Python orders as MongoDB orders the values; its first item is the rank of the type."""
    return _KEYS[type(value)](value)


def rank(value: Value) -> int:
    """The place of a value's type in the order: two values must share it to be compared by `$match`'s $gt and the like."""
    return (
        int(sort_key(value)[0])
        if type(value) is not dict and type(value) is not list
        else (20 if type(value) is dict else 25)
    )


def compare(left: Value, right: Value) -> int:
    """-1, 0 or 1: the order of two values."""
    kind = type(left)
    if kind is type(right) and (kind in _DIRECT or kind is int):
        return int(left > right) - int(left < right)
    a, b = sort_key(left), sort_key(right)
    return int(a > b) - int(a < b)


def equal(left: Value, right: Value) -> bool:
    """Whether two values are equal: as numbers whatever their types; null is not missing; documents in field order."""
    kind = type(left)
    if kind is type(right) and (kind in _DIRECT or kind is int):
        return bool(left == right)
    return sort_key(left) == sort_key(right)
