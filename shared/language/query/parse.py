"""Query documents (`$match`, `$validate`) from a JSON tree to predicates; errors go to the scope's problems."""

from collections.abc import Callable
from typing import Any, Final, cast

from tidemark.shared.language.expressions.forms import FORMS
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.registry import LEFT_OUT
from tidemark.shared.language.expressions.scope import Scope, read_value
from tidemark.shared.language.patterns import BadPattern, compile_pattern
from tidemark.shared.language.problems import join
from tidemark.shared.language.query.ast import (
    All,
    Always,
    AnyOf,
    Bits,
    BitTest,
    Compare,
    Comparison,
    ElemMatch,
    Exists,
    ExprTrue,
    MatchesSchema,
    ModTest,
    Not,
    OneOf,
    OnField,
    Predicate,
    RegexTest,
    SizeIs,
    Test,
    TypeIs,
)
from tidemark.shared.language.query.parse_schema import parse_json_schema
from tidemark.shared.language.values.extended_json import SPECIAL
from tidemark.shared.language.values.types import TYPE_NUMBERS, is_finite, is_integral, is_number
from tidemark.shared.model.values import INT64_MAX, INT64_MIN, Binary, Regex, Value

_BY_NUMBER: Final = {number: alias for alias, number in TYPE_NUMBERS.items()}
_BITS_MAX: Final = 2**31
"""Places of bits, as the manual has them."""


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


def _compare(op: str, tree: object, path: str, scope: Scope) -> Test | None:
    value, ok = read_value(tree, path, scope)
    if ok and type(value) is Regex and op != "$eq":
        scope.problems.add(path, f"{op} does not take a regular expression")
        return None
    return comparison(cast("Comparison", op), value) if ok else None


def _in(op: str, tree: object, path: str, scope: Scope) -> Test | None:
    if type(tree) is not list:
        scope.problems.add(path, f"{op} takes a list")
        return None
    values, patterns = [], []
    for i, item in enumerate(tree):
        place = f"{path}[{i}]"
        if type(item) is dict and item and next(iter(item)) in ("$regex", "$gt", "$eq", "$in", "$elemMatch"):
            scope.problems.add(place, f"{op} takes values, not operators")
            continue
        value, ok = read_value(item, place, scope)
        if ok and type(value) is Regex:
            pattern = regex_test(value, place, scope)
            patterns.extend([pattern] if pattern is not None else [])
        elif ok:
            values.append(value)
    return OneOf(tuple(values), tuple(patterns))


def _type(op: str, tree: object, path: str, scope: Scope) -> Test | None:
    aliases = []
    for item in tree if type(tree) is list else [tree]:
        value, _ = read_value(item, path, scope)
        alias = _BY_NUMBER.get(int(value)) if is_integral(value) else value
        if alias != "number" and alias not in list(TYPE_NUMBERS):
            accepted = ("number", *TYPE_NUMBERS)
            scope.problems.add(path, f"unknown type {value!r}", accepted=accepted, found=str(value))
            return None
        aliases.append(str(alias))
    if not aliases:
        scope.problems.add(path, f"{op} takes at least one type")
    return TypeIs(tuple(aliases))


def _mod(op: str, tree: object, path: str, scope: Scope) -> Test | None:
    values = [read_value(item, path, scope)[0] for item in tree] if type(tree) is list else []
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


def _size(op: str, tree: object, path: str, scope: Scope) -> Test | None:
    value, ok = read_value(tree, path, scope)
    if not ok or not is_integral(value) or value < 0:
        scope.problems.add(path, f"{op} takes a whole number from 0")
        return None
    return SizeIs(int(value))


def _bits(op: str, tree: object, path: str, scope: Scope) -> Test | None:
    value, ok = read_value(tree, path, scope)
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


DEPTH_MAX: Final = 100
"""How deep queries nest: part of the language."""
_TOP: Final = ("$and", "$or", "$nor", "$expr", "$jsonSchema", "$comment")
_REFUSED: Final = {
    **LEFT_OUT,
    "$text": "it needs an index",
    "$near": "it needs an index",
    "$nearSphere": "it needs an index",
    "$geoWithin": "geometry is not part of the language",
    "$geoIntersects": "geometry is not part of the language",
}
ALL_TRUE: Final = Always(answer=True)
NONE_TRUE: Final = Always(answer=False)


def parse_predicate(tree: object, path: str, scope: Scope) -> Predicate | None:
    """The predicate of a query document; None after noting errors."""
    if type(tree) is not dict:
        scope.problems.add(path, f"a query is an object, found {str(tree)[:60]!r}")
        return None
    if scope.depth > DEPTH_MAX:
        scope.problems.add(path, f"queries nest at most {DEPTH_MAX} deep")
        return None
    parts: list[Predicate] = []
    before = len(scope.problems.errors)
    for name, item in tree.items():
        place = join(path, name)
        if name.startswith("$"):
            part = _top(name, item, place, scope.deeper())
            parts.extend([part] if part is not None else [])
        else:
            parts.extend(_field(name, item, place, scope.deeper()))
    if len(scope.problems.errors) > before:
        return None
    return parts[0] if len(parts) == 1 else All(tuple(parts)) if parts else ALL_TRUE


def _top(name: str, tree: object, path: str, scope: Scope) -> Predicate | None:
    if name in ("$and", "$or", "$nor"):
        if type(tree) is not list or not tree:
            scope.problems.add(path, f"{name} takes a list of at least one query")
            return None
        parts = tuple(
            part for i, item in enumerate(tree) if (part := parse_predicate(item, f"{path}[{i}]", scope)) is not None
        )
        return All(parts) if name == "$and" else AnyOf(parts) if name == "$or" else Not(AnyOf(parts))
    if name == "$expr":
        return ExprTrue(parse_expression(tree, path, scope))
    if name == "$jsonSchema":
        schema = parse_json_schema(tree, path, scope)
        return None if schema is None else MatchesSchema(schema)
    if name == "$comment":
        return ALL_TRUE
    if name in _REFUSED:
        scope.problems.add(path, f"{name} is not supported: {_REFUSED[name]}")
    elif name in OPERATORS or name in FORMS:
        scope.problems.add(path, f"{name} is no query but an expression: wrap it in $expr, {{$expr: {{{name}: …}}}}")
    else:
        scope.problems.add(path, f"unknown query operator {name} at the top of a query", accepted=_TOP, found=name)
    return None


def _is_operators(tree: object) -> bool:
    return (
        type(tree) is dict
        and bool(tree)
        and next(iter(tree)).startswith("$")
        and not (len(tree) == 1 and next(iter(tree)) in SPECIAL)
    )


def _field(name: str, tree: Any, path: str, scope: Scope) -> list[Predicate]:
    names = tuple(name.split("."))
    if not scope.allows(names, path):
        return []
    if _is_operators(tree):
        return _operators(names, tree, path, scope)
    test = _equality(tree, path, scope)
    return [] if test is None else [OnField(names, test)]


def _equality(tree: object, path: str, scope: Scope) -> Test | None:
    value, ok = read_value(tree, path, scope)
    if not ok:
        return None
    return regex_test(value, path, scope) if type(value) is Regex else comparison("$eq", value)


def _operators(names: tuple[str, ...], tree: dict[str, Any], path: str, scope: Scope) -> list[Predicate]:
    """The predicates of `{$gt: …, $lt: …}` on one field."""
    parts: list[Predicate] = []
    for op, item in tree.items():
        place = join(path, op)
        build = _ON_FIELD.get(op)
        if build is not None:
            part = build(names, item, place, scope)
            parts.extend([part] if part is not None else [])
        elif op == "$options":
            if "$regex" not in tree:
                scope.problems.add(place, "$options stands beside $regex only")
        elif op != "$comment":
            test = _test(op, item, tree, place, scope)
            parts.extend([OnField(names, test)] if test is not None else [])
    return parts


def _test(op: str, tree: object, around: dict[str, Any], path: str, scope: Scope) -> Test | None:
    """A test that is no negation."""
    if op == "$regex":
        return _regex(tree, around.get("$options", ""), path, scope)
    if op == "$elemMatch":
        return _elem_match(tree, path, scope)
    simple = SIMPLE.get(op)
    if simple is not None:
        return simple(op, tree, path, scope)
    if op in _REFUSED:
        scope.problems.add(path, f"{op} is not supported: {_REFUSED[op]}")
    else:
        accepted = sorted({*SIMPLE, *_ON_FIELD, "$regex", "$elemMatch"})
        scope.problems.add(path, f"unknown query operator {op}", accepted=accepted, found=op)
    return None


def _regex(tree: object, options: object, path: str, scope: Scope) -> Test | None:
    value, ok = read_value(tree, path, scope)
    if not ok:
        return None
    if type(value) is str:
        value = Regex(value)
    if type(value) is not Regex or type(options) is not str:
        scope.problems.add(path, "$regex takes a string, and $options a string")
        return None
    if options:
        if value.options:
            scope.problems.add(path, "options stand in the regular expression or in $options, not in both")
            return None
        value = Regex(value.pattern, "".join(sorted(options)))
    return regex_test(value, path, scope)


def _elem_match(tree: object, path: str, scope: Scope) -> Test | None:
    if type(tree) is not dict:
        scope.problems.add(path, "$elemMatch takes an object of operators, or a query")
        return None
    first = next(iter(tree), "")
    if "$expr" in tree:
        scope.problems.add(path, "$expr looks at the whole document: it does not stand in $elemMatch")
        return None
    if not _is_operators(tree) or first in ("$and", "$or", "$nor", "$expr", "$jsonSchema"):
        predicate = parse_predicate(tree, path, scope)
        return None if predicate is None else ElemMatch(predicate, ())
    tests = _value_tests(tree, path, scope)
    return None if tests is None else ElemMatch(None, tests)


def _value_tests(tree: dict[str, Any], path: str, scope: Scope) -> tuple[Test, ...] | None:
    """Tests of one item, where there is no field to hang a negation on."""
    before = len(scope.problems.errors)
    tests = [_as_test(part) for part in _operators((), tree, path, scope)]
    return None if len(scope.problems.errors) > before else tuple(tests)


def _as_test(part: Predicate) -> Test:
    match part:
        case OnField():
            return part.test
        case Not():
            return Not(_as_test(part.part))  # type: ignore[arg-type]
        case All():
            return All(tuple(_as_test(p) for p in part.parts))  # type: ignore[misc]
        case AnyOf():
            return AnyOf(tuple(_as_test(p) for p in part.parts))  # type: ignore[misc]
        case Always():
            return AnyOf(()) if not part.answer else All(())
        case _:
            return part  # type: ignore[return-value]


def _ne(names: tuple[str, ...], tree: object, path: str, scope: Scope) -> Predicate | None:
    value, ok = read_value(tree, path, scope)
    if ok and type(value) is Regex:
        scope.problems.add(path, "$ne does not take a regular expression ($not does)")
        return None
    return Not(OnField(names, comparison("$eq", value))) if ok else None


def _nin(names: tuple[str, ...], tree: object, path: str, scope: Scope) -> Predicate | None:
    test = SIMPLE["$in"]("$nin", tree, path, scope)
    return None if test is None else Not(OnField(names, test))


def _not(names: tuple[str, ...], tree: Any, path: str, scope: Scope) -> Predicate | None:
    if _is_operators(tree):
        parts = _operators(names, tree, path, scope)
        return Not(All(tuple(parts)))
    value, ok = read_value(tree, path, scope)
    if ok and type(value) is Regex:
        test = regex_test(value, path, scope)
        return None if test is None else Not(OnField(names, test))
    scope.problems.add(path, "$not takes an object of operators, or a regular expression")
    return None


def _exists(names: tuple[str, ...], tree: object, path: str, scope: Scope) -> Predicate | None:
    value, ok = read_value(tree, path, scope)
    if not ok:
        return None
    there = OnField(names, Exists())
    return there if value is not None and value != 0 else Not(there)


def _all(names: tuple[str, ...], tree: object, path: str, scope: Scope) -> Predicate | None:
    if type(tree) is not list:
        scope.problems.add(path, "$all takes a list")
        return None
    tests = []
    matching = [type(item) is dict and list(item) == ["$elemMatch"] for item in tree]
    if any(matching) and not all(matching):
        scope.problems.add(path, "$all takes values, or $elemMatch in each of its items: they do not mix")
    for i, item in enumerate(tree):
        place = f"{path}[{i}]"
        if type(item) is dict and list(item) == ["$elemMatch"]:
            tests.append(_elem_match(item["$elemMatch"], place, scope))
        else:
            tests.append(_equality(item, place, scope))
    return All(tuple(OnField(names, test) for test in tests if test is not None)) if tests else NONE_TRUE


_ON_FIELD: Final[dict[str, Callable[[tuple[str, ...], Any, str, Scope], Predicate | None]]] = {
    "$ne": _ne,
    "$nin": _nin,
    "$not": _not,
    "$exists": _exists,
    "$all": _all,
}
QUERY_OPERATORS: Final = tuple(sorted({*SIMPLE, *_ON_FIELD, *_TOP, "$regex", "$options", "$elemMatch"}))
"""All query operators."""
