"""Query documents (`$match`, `$validate`) from a JSON tree to predicates; errors go to the scope's problems."""

from collections.abc import Callable
from typing import Any, Final

from tidemark.shared.language.expressions.forms import FORMS
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.registry import LEFT_OUT
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import join
from tidemark.shared.language.query.ast import (
    All,
    Always,
    AnyOf,
    ElemMatch,
    Exists,
    ExprTrue,
    MatchesSchema,
    Not,
    OnField,
    Predicate,
    Test,
)
from tidemark.shared.language.query.parse_schema import parse_json_schema
from tidemark.shared.language.query.parse_tests import SIMPLE, comparison, constant, regex_test
from tidemark.shared.language.values.extended_json import SPECIAL
from tidemark.shared.model.values import Regex

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


def parse_predicate(tree: Any, path: str, scope: Scope) -> Predicate | None:
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


def _top(name: str, tree: Any, path: str, scope: Scope) -> Predicate | None:
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


def _is_operators(tree: Any) -> bool:
    return (
        type(tree) is dict
        and bool(tree)
        and next(iter(tree)).startswith("$")
        and not (len(tree) == 1 and next(iter(tree)) in SPECIAL)
    )


def _field(name: str, tree: Any, path: str, scope: Scope) -> list[Predicate]:
    names = tuple(name.split("."))
    if _is_operators(tree):
        return _operators(names, tree, path, scope)
    test = _equality(tree, path, scope)
    return [] if test is None else [OnField(names, test)]


def _equality(tree: Any, path: str, scope: Scope) -> Test | None:
    value, ok = constant(tree, path, scope)
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


def _test(op: str, tree: Any, around: dict[str, Any], path: str, scope: Scope) -> Test | None:
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


def _regex(tree: Any, options: Any, path: str, scope: Scope) -> Test | None:
    value, ok = constant(tree, path, scope)
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


def _elem_match(tree: Any, path: str, scope: Scope) -> Test | None:
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


def _ne(names: tuple[str, ...], tree: Any, path: str, scope: Scope) -> Predicate | None:
    value, ok = constant(tree, path, scope)
    if ok and type(value) is Regex:
        scope.problems.add(path, "$ne does not take a regular expression ($not does)")
        return None
    return Not(OnField(names, comparison("$eq", value))) if ok else None


def _nin(names: tuple[str, ...], tree: Any, path: str, scope: Scope) -> Predicate | None:
    test = SIMPLE["$in"]("$nin", tree, path, scope)
    return None if test is None else Not(OnField(names, test))


def _not(names: tuple[str, ...], tree: Any, path: str, scope: Scope) -> Predicate | None:
    if _is_operators(tree):
        parts = _operators(names, tree, path, scope)
        return Not(All(tuple(parts)))
    value, ok = constant(tree, path, scope)
    if ok and type(value) is Regex:
        test = regex_test(value, path, scope)
        return None if test is None else Not(OnField(names, test))
    scope.problems.add(path, "$not takes an object of operators, or a regular expression")
    return None


def _exists(names: tuple[str, ...], tree: Any, path: str, scope: Scope) -> Predicate | None:
    value, ok = constant(tree, path, scope)
    if not ok:
        return None
    there = OnField(names, Exists())
    return there if value is not None and value != 0 else Not(there)


def _all(names: tuple[str, ...], tree: Any, path: str, scope: Scope) -> Predicate | None:
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
