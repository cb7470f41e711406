"""Arrays as sets: items that are equal count once; results are in the order over all values."""

from typing import Any

from tidemark.shared.language.expressions.library.arithmetic import is_null
from tidemark.shared.language.expressions.library.arrays import need_array
from tidemark.shared.language.expressions.registry import positional
from tidemark.shared.language.values.order import sort_key
from tidemark.shared.language.values.types import truth
from tidemark.shared.model.values import Value

Keyed = dict[tuple[Any, ...], Any]


def _keyed(name: str, value: Value) -> Keyed:
    """Items by their place in the order; the first of equal ones stays."""
    result: Keyed = {}
    for item in need_array(name, value):
        result.setdefault(sort_key(item), item)
    return result


def _in_order(items: Keyed) -> list[Any]:
    return [items[key] for key in sorted(items)]


@positional("$setUnion", 0, None, until_null=True)
def _set_union(*values: Value) -> Value:
    """The items that any array has."""
    result: Keyed = {}
    for value in values:
        if is_null(value):
            return None
        for key, item in _keyed("$setUnion", value).items():
            result.setdefault(key, item)
    return _in_order(result)


@positional("$setIntersection", 0, None, until_null=True)
def _set_intersection(*values: Value) -> Value:
    """The items that all arrays have."""
    result: Keyed | None = None
    for value in values:
        if is_null(value):
            return None
        other = _keyed("$setIntersection", value)
        result = other if result is None else {key: item for key, item in result.items() if key in other}
    return _in_order(result or {})


@positional("$setDifference", 2)
def _set_difference(left: Value, right: Value) -> Value:
    """The items of the first array that the second does not have, in the order of the first."""
    if is_null(left) or is_null(right):
        return None
    without = _keyed("$setDifference", right)
    return [item for key, item in _keyed("$setDifference", left).items() if key not in without]


@positional("$setEquals", 2, None)
def _set_equals(*values: Value) -> bool:
    """Whether arrays have the same items."""
    first, *others = (_keyed("$setEquals", value).keys() for value in values)
    return all(other == first for other in others)


@positional("$setIsSubset", 2)
def _set_is_subset(left: Value, right: Value) -> bool:
    """Whether the second array has all items of the first."""
    return _keyed("$setIsSubset", left).keys() <= _keyed("$setIsSubset", right).keys()


@positional("$anyElementTrue", 1)
def _any_element_true(value: Value) -> bool:
    """Whether an item is true."""
    return any(truth(item) for item in need_array("$anyElementTrue", value))


@positional("$allElementsTrue", 1)
def _all_elements_true(value: Value) -> bool:
    """Whether all items are true."""
    return all(truth(item) for item in need_array("$allElementsTrue", value))
