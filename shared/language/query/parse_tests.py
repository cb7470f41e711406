"""Query operators that test one value: comparisons, `$in`, `$type`, `$mod`, `$size`, bits."""

from collections.abc import Callable
from typing import Any, Final, cast

from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.patterns import BadPattern, compile_pattern
from tidemark.shared.language.query.ast import (
    Bits,
    BitTest,
    Compare,
    Comparison,
    ModTest,
    OneOf,
    RegexTest,
    SizeIs,
    Test,
    TypeIs,
)
from tidemark.shared.language.values.extended_json import ExtendedJsonError, from_json
from tidemark.shared.language.values.types import TYPE_NUMBERS, is_finite, is_integral, is_number
from tidemark.shared.model.values import INT64_MAX, INT64_MIN, Binary, Regex, Value

_BY_NUMBER: Final = {number: alias for alias, number in TYPE_NUMBERS.items()}
_BITS_MAX: Final = 2**31
"""Places of bits, as the manual has them."""


def constant(tree: Any, path: str, scope: Scope) -> tuple[Value, bool]:
    """The value of a constant, and whether there is one."""
    try:
        return from_json(tree), True
    except ExtendedJsonError as e:
        scope.problems.add(path, str(e))
        return None, False


def comparison(op: Comparison, value: Value) -> Compare:
    """A comparison with a constant."""
    return Compare(op, value)


def regex_test(value: Regex, path: str, scope: Scope) -> RegexTest | None:
    """A test against a regular expression."""
    try:
        return RegexTest(value, compile_pattern(value.pattern, value.options))
    except BadPattern as e:
        scope.problems.add(path, str(e))
        return None


def _compare(op: str, tree: Any, path: str, scope: Scope) -> Test | None:
    value, ok = constant(tree, path, scope)
    if ok and type(value) is Regex and op != "$eq":
        scope.problems.add(path, f"{op} does not take a regular expression")
        return None
    return comparison(cast("Comparison", op), value) if ok else None


def _in(op: str, tree: Any, path: str, scope: Scope) -> Test | None:
    if type(tree) is not list:
        scope.problems.add(path, f"{op} takes a list")
        return None
    values, patterns = [], []
    for i, item in enumerate(tree):
        place = f"{path}[{i}]"
        if type(item) is dict and item and next(iter(item)) in ("$regex", "$gt", "$eq", "$in", "$elemMatch"):
            scope.problems.add(place, f"{op} takes values, not operators")
            continue
        value, ok = constant(item, place, scope)
        if ok and type(value) is Regex:
            pattern = regex_test(value, place, scope)
            patterns.extend([pattern] if pattern is not None else [])
        elif ok:
            values.append(value)
    return OneOf(tuple(values), tuple(patterns))


def _type(op: str, tree: Any, path: str, scope: Scope) -> Test | None:
    aliases = []
    for item in tree if type(tree) is list else [tree]:
        value, _ = constant(item, path, scope)
        alias = _BY_NUMBER.get(int(value)) if is_integral(value) else value
        if alias != "number" and alias not in list(TYPE_NUMBERS):
            accepted = ("number", *TYPE_NUMBERS)
            scope.problems.add(path, f"unknown type {value!r}", accepted=accepted, found=str(value))
            return None
        aliases.append(str(alias))
    if not aliases:
        scope.problems.add(path, f"{op} takes at least one type")
    return TypeIs(tuple(aliases))


def _mod(op: str, tree: Any, path: str, scope: Scope) -> Test | None:
    values = [constant(item, path, scope)[0] for item in tree] if type(tree) is list else []
    if len(values) != 2 or not all(  # noqa: PLR2004
        is_number(v) and is_finite(v) and INT64_MIN <= v <= INT64_MAX for v in values
    ):
        scope.problems.add(path, f"{op} takes [divisor, remainder], both numbers within 64 bits")
        return None
    divisor, remainder = (int(v) for v in values)
    if divisor == 0:
        scope.problems.add(path, "the divisor of $mod must not be 0")
        return None
    return ModTest(divisor, remainder)


def _size(op: str, tree: Any, path: str, scope: Scope) -> Test | None:
    value, ok = constant(tree, path, scope)
    if not ok or not is_integral(value) or value < 0:
        scope.problems.add(path, f"{op} takes a whole number from 0")
        return None
    return SizeIs(int(value))


def _bits(op: str, tree: Any, path: str, scope: Scope) -> Test | None:
    value, ok = constant(tree, path, scope)
    positions: list[int] | None = None
    if type(value) is list and all(is_integral(v) and 0 <= v < _BITS_MAX for v in value):
        positions = [int(v) for v in value]
    elif is_integral(value) and value >= 0:
        positions = [i for i in range(64) if int(value) >> i & 1]
    elif type(value) is Binary:
        positions = [8 * i + bit for i, byte in enumerate(value) for bit in range(8) if byte >> bit & 1]
    if not ok or positions is None:
        scope.problems.add(
            path, f"{op} takes a bit mask (a whole number from 0, or binary data) or a list of bit positions"
        )
        return None
    return Bits(cast("BitTest", op), tuple(positions))


SIMPLE: Final[dict[str, Callable[[str, Any, str, Scope], Test | None]]] = {
    **dict.fromkeys(("$eq", "$gt", "$gte", "$lt", "$lte"), _compare),
    "$in": _in,
    "$type": _type,
    "$mod": _mod,
    "$size": _size,
    **dict.fromkeys(("$bitsAllSet", "$bitsAllClear", "$bitsAnySet", "$bitsAnyClear"), _bits),
}
"""Tests by operator."""
