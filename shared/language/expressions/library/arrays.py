"""Arrays, arrays as sets (items that are equal count once; results are in the order over all values), and documents."""

from typing import Any

from tidemark.shared.language.expressions.environment import RESULT_UNITS_MAX, Environment
from tidemark.shared.language.expressions.errors import SIZE, TYPE, VALUE, fail
from tidemark.shared.language.expressions.library.arithmetic import is_null
from tidemark.shared.language.expressions.library.logic import Evaluate
from tidemark.shared.language.expressions.library.strings import need_string, need_whole
from tidemark.shared.language.expressions.registry import ABSENT, named, positional
from tidemark.shared.language.values.order import equal, sort_key
from tidemark.shared.language.values.types import is_integral, truth, type_name
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, MISSING, Value

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


@positional("$setDifference", 2, null=2)
def _set_difference(left: Value, right: Value) -> Value:
    """The items of the first array that the second does not have, in the order of the first."""
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


@positional("$mergeObjects", 0, None)
def _merge_objects(*values: Value) -> dict[str, Any]:
    """Documents put together; later ones win; null is passed over."""
    items = values[0] if len(values) == 1 and type(values[0]) is list else values
    result: dict[str, Any] = {}
    for value in items:
        if is_null(value):
            continue
        if type(value) is not dict:
            raise fail(f"$mergeObjects takes documents, found {type_name(value)}", TYPE)
        result.update(value)
    return result


@positional("$getField", 2, lazy=True)
def _get_field(args: tuple[object, ...], env: Environment, evaluate: Evaluate) -> Value:
    """A field by name, which may have dots and dollars."""
    name = need_string("$getField", evaluate(args[0], env), "a field name")
    source = env.current if args[1] is None else evaluate(args[1], env)
    if is_null(source):
        return source
    return source.get(name, MISSING) if type(source) is dict else MISSING


@named("$setField", "field input value")
def _set_field(name: Value, source: Value, value: Value) -> Value:
    """The document with a field set, or taken away by `$$REMOVE`."""
    if is_null(source):
        return None
    if type(source) is not dict:
        raise fail(f"$setField takes a document, found {type_name(source)}", TYPE)
    field = need_string("$setField", name, "a field name")
    if value is MISSING:
        return {key: item for key, item in source.items() if key != field}
    return {**source, field: value}


@named("$unsetField", "field input")
def _unset_field(name: Value, source: Value) -> Value:
    """The document without a field."""
    return _set_field(name, source, MISSING)


def need_array(name: str, value: Value) -> list[Any]:
    """An array, or a failure that names the operator."""
    if type(value) is not list:
        raise fail(f"{name} takes an array, found {type_name(value)}", TYPE)
    return value


@positional("$isArray", 1, glances=True)
def _is_array(value: Value) -> bool:
    """Whether a value is an array."""
    return type(value) is list


@positional("$size", 1, glances=True)
def _size(value: Value) -> int:
    """The number of items."""
    return len(need_array("$size", value))


@positional("$arrayElemAt", 2, null=2, glances=True)
def _array_elem_at(value: Value, index: Value) -> Value:
    """The item at an index, from the end if it is negative; missing beyond."""
    items, at = need_array("$arrayElemAt", value), need_whole("$arrayElemAt", "index", index)
    return items[at] if -len(items) <= at < len(items) else MISSING


@positional("$first", 1, null=1, glances=True)
def _first(value: Value) -> Value:
    """The first item of an array."""
    return _array_elem_at(value, 0)


@positional("$last", 1, null=1, glances=True)
def _last(value: Value) -> Value:
    """The last item of an array."""
    return _array_elem_at(value, -1)


def _count(name: str, n: Value) -> int:
    if not is_integral(n) or n < 1:
        raise fail(f"n of {name} is a whole number of at least 1", VALUE)
    return int(n)


@named("$firstN", "n input")
def _first_n(n: Value, value: Value) -> list[Any]:
    """The first n items."""
    return need_array("$firstN", value)[: _count("$firstN", n)]


@named("$lastN", "n input")
def _last_n(n: Value, value: Value) -> list[Any]:
    """The last n items."""
    return need_array("$lastN", value)[-_count("$lastN", n) :]


@named("$minN", "n input")
def _min_n(n: Value, value: Value) -> list[Any]:
    """The n least items, ascending; null does not count."""
    items = [item for item in need_array("$minN", value) if item is not None]
    return sorted(items, key=sort_key)[: _count("$minN", n)]


@named("$maxN", "n input")
def _max_n(n: Value, value: Value) -> list[Any]:
    """The n greatest items, descending; null does not count."""
    items = [item for item in need_array("$maxN", value) if item is not None]
    return sorted(items, key=sort_key, reverse=True)[: _count("$maxN", n)]


@positional("$concatArrays", 0, None, until_null=True)
def _concat_arrays(*values: Value) -> Value:
    """Joins arrays; null if one is null."""
    result: list[Any] = []
    for value in values:
        if is_null(value):
            return None
        result.extend(need_array("$concatArrays", value))
    return result


@positional("$reverseArray", 1, null=1)
def _reverse_array(value: Value) -> Value:
    """The items from the last to the first."""
    return need_array("$reverseArray", value)[::-1]


@positional("$in", 2)
def _in(value: Value, items: Value) -> bool:
    """Whether an array has an item equal to a value."""
    return any(equal(value, item) for item in need_array("$in", items))


@positional("$indexOfArray", 2, 4, null=1)
def _index_of_array(value: Value, wanted: Value, start: Value = ABSENT, end: Value = ABSENT) -> Value:
    """The index of the first item equal to a value; -1 for none."""
    items = need_array("$indexOfArray", value)
    first = 0 if start is ABSENT else need_whole("$indexOfArray", "start", start)
    last = len(items) if end is ABSENT else need_whole("$indexOfArray", "end", end)
    if first < 0 or last < 0:
        raise fail("start and end of $indexOfArray are not negative", VALUE)
    for i in range(first, min(last, len(items))):
        if equal(items[i], wanted):
            return i
    return -1


@positional("$range", 2, 3)
def _range(start: Value, end: Value, step: Value = ABSENT) -> list[int]:
    """Whole numbers from a start up to, but not, an end."""
    first, last = need_whole("$range", "start", start), need_whole("$range", "end", end)
    by = 1 if step is ABSENT else need_whole("$range", "step", step)
    if by == 0:
        raise fail("the step of $range is not 0", VALUE)
    if not all(INT32_MIN <= n <= INT32_MAX for n in (first, last, by)):
        raise fail("$range takes numbers of 32 bits", VALUE)
    if len(range(first, last, by)) > RESULT_UNITS_MAX:
        raise fail(f"$range gives at most {RESULT_UNITS_MAX} items", SIZE)
    return list(range(first, last, by))


@positional("$slice", 2, 3, null=3, glances=True)
def _slice(value: Value, position: Value, count: Value = ABSENT) -> Value:
    """A part of an array: the first n, the last n (negative), or n from a position."""
    items, at = need_array("$slice", value), need_whole("$slice", "position", position)
    if count is ABSENT:
        return items[:at] if at >= 0 else items[at:]
    n = need_whole("$slice", "n", count)
    if n <= 0:
        raise fail("n of $slice is above 0 where a position stands before it", VALUE)
    first = at if at >= 0 else max(0, len(items) + at)
    return items[first : first + n]


@named("$zip", "inputs", "useLongestLength defaults")
def _zip(inputs: Value, longest: Value, defaults: Value) -> Value:
    """Pairs up the items of arrays: the first ones, the second ones and so on."""
    arrays = need_array("$zip", inputs)
    if longest is not ABSENT and type(longest) is not bool:
        raise fail("useLongestLength of $zip is true or false", TYPE)
    if defaults is not ABSENT and (longest is not True or len(need_array("$zip", defaults)) != len(arrays)):
        raise fail("defaults of $zip need useLongestLength, and as many as there are inputs", VALUE)
    if not arrays:
        raise fail("$zip takes at least one array", VALUE)
    if any(is_null(item) for item in arrays):
        return None
    lengths = [len(need_array("$zip", item)) for item in arrays]
    size = max(lengths) if longest is True else min(lengths)
    if size * len(arrays) > RESULT_UNITS_MAX:
        raise fail(f"$zip gives at most {RESULT_UNITS_MAX} items", SIZE)
    fill = [None] * len(arrays) if defaults is ABSENT else defaults
    return [[items[i] if i < len(items) else fill[k] for k, items in enumerate(arrays)] for i in range(size)]


@positional("$objectToArray", 1, null=1)
def _object_to_array(value: Value) -> Value:
    """A document as an array of {k, v}."""
    if type(value) is not dict:
        raise fail(f"$objectToArray takes a document, found {type_name(value)}", TYPE)
    return [{"k": name, "v": item} for name, item in value.items()]


@positional("$arrayToObject", 1, null=1)
def _array_to_object(value: Value) -> Value:
    """An array of {k, v} or [k, v] as a document; the last of equal names counts."""
    result: dict[str, Any] = {}
    if len({type(item) for item in need_array("$arrayToObject", value)}) > 1:
        raise fail("$arrayToObject takes an array of {k, v} or of [k, v], not of both", TYPE)
    for item in value:
        if type(item) is dict and set(item) == {"k", "v"}:
            name, content = item["k"], item["v"]
        elif type(item) is list and len(item) == 2:  # noqa: PLR2004 - a pair
            name, content = item
        else:
            raise fail("$arrayToObject takes an array of {k, v} or of [k, v]", TYPE)
        if "\0" in need_string("$arrayToObject", name, "names as strings"):
            raise fail("a field name must not contain a null byte", VALUE)
        result[name] = content
    return result
