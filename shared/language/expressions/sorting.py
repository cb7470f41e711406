"""Sorting documents by keys as `$sort` does, and items as `$sortArray` does.

Null and missing are equal. For `$sort` an array counts by its least item in ascending order and by its greatest in descending order; an
empty one is below null. For `$sortArray` an array is a value like any other, and paths do not look into it but by index.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tidemark.shared.language.expressions.ast import SortKey
from tidemark.shared.language.expressions.paths import index_of
from tidemark.shared.language.values.order import sort_key
from tidemark.shared.model.values import MISSING, Value

_EMPTY_ARRAY = (0,)
_NULL = (5,)


def values_at(value: Value, names: Sequence[str]) -> list[Any]:
    """All values that a sort key sees at a path: through arrays, of which names of digits pick an item."""
    if not names:
        return value if type(value) is list else [value]
    if type(value) is dict:
        return values_at(value.get(names[0], MISSING), names[1:])
    if type(value) is list:
        found: list[Any] = []
        index = index_of(names[0], value)
        if index is not None:
            found.extend(values_at(value[index], names[1:]))
        for item in value:
            if type(item) is dict:
                found.extend(values_at(item, names))
        return found or [MISSING]
    return [MISSING]


def key_of(value: Value, key: SortKey) -> tuple[Any, ...]:
    """The orderable form of a document's sort key, ascending; the greatest of an array for a descending key."""
    if not key.names:
        return _NULL if value is MISSING else sort_key(value)
    keys = [_NULL if item is MISSING else sort_key(item) for item in values_at(value, key.names)]
    if not keys:
        return _EMPTY_ARRAY
    return max(keys) if key.descending else min(keys)


def sort_items(items: Sequence[object], keys: Sequence[SortKey]) -> list[Any]:
    """Documents in the order of the keys; equal ones stay as they stood."""
    return _sorted(items, keys, key_of)


def sort_array(items: Sequence[object], keys: Sequence[SortKey]) -> list[Any]:
    """The items of an array in the order of the keys; equal ones stay as they stood."""
    return _sorted(items, keys, _plain_key)


def _plain_key(value: Value, key: SortKey) -> tuple[Any, ...]:
    """The orderable form of the value at a path that goes through no array."""
    for name in key.names:
        if type(value) is dict:
            value = value.get(name, MISSING)
        else:
            at = index_of(name, value) if type(value) is list else None
            value = MISSING if at is None else value[at]
    return _NULL if value is MISSING else sort_key(value)


def _sorted(
    items: Sequence[object], keys: Sequence[SortKey], read: Callable[[Value, SortKey], tuple[object, ...]]
) -> list[Any]:
    ordered = list(items)
    for key in reversed(keys):
        ordered.sort(key=lambda item, key=key: read(item, key), reverse=key.descending)  # type: ignore[misc]
    return ordered
