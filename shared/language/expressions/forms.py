"""Expressions that are not plain calls: those that bind variables, quote, or hold something besides expressions."""

import re
from collections.abc import Callable
from typing import Any, Final

from tidemark.shared.language.expressions.ast import (
    NULL,
    Call,
    CreateUuid,
    Expr,
    FilterArray,
    Let,
    Literal,
    MapArray,
    Meta,
    ReduceArray,
    SortArray,
    SortKey,
    Switch,
    Variable,
)
from tidemark.shared.language.expressions.scope import Scope, read_value
from tidemark.shared.language.problems import join
from tidemark.shared.language.values.extended_json import from_json, value_if_any
from tidemark.shared.language.values.types import is_number

Parse = Callable[[Any, str, Scope], Expr]
_VARIABLE: Final = re.compile(r"[a-z\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*")

META_NAMES: Final = (
    "stream",
    "stream.source",
    "stream.source.type",
    "stream.source.topic",
    "stream.source.partition",
    "stream.source.offset",
    "stream.source.key",
    "stream.source.headers",
    "stream.source.ts",
    "stream.window",
    "stream.window.start",
    "stream.window.end",
    "stream.window.partition",
)
"""The names that `{$meta: …}` accepts."""


_OF_CHANGES: Final = frozenset({"stream.source.operationType", "stream.source.db", "stream.source.coll"})


def has_arguments(
    name: str, tree: Any, path: str, scope: Scope, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> bool:
    """Whether a tree is an object with these arguments; errors are noted."""
    if type(tree) is not dict:
        scope.problems.add(path, f"{name} takes an object of named arguments: {', '.join(required + optional)}")
        return False
    for key in tree:
        if key not in required and key not in optional:
            scope.problems.add(
                join(path, key), f"unknown argument {key} of {name}", accepted=required + optional, found=key
            )
    lacking = [key for key in required if key not in tree]
    for key in lacking:
        scope.problems.add(path, f"{name} needs the argument {key}", accepted=required + optional)
    return not lacking


def _variable(name: Any, path: str, scope: Scope) -> str:
    if type(name) is not str or not (_VARIABLE.fullmatch(name) or name == "CURRENT"):
        scope.problems.add(
            path, f"{name!r} is no name for a variable: it starts with a small letter, then letters, digits, _"
        )
        return "this"
    return name


def _literal(tree: Any, path: str, scope: Scope, _: Parse) -> Expr:
    """`$literal`: the value as it is written, dollars and all."""
    return Literal(read_value(tree, path, scope)[0])


def _let(tree: Any, path: str, scope: Scope, parse: Parse) -> Expr:
    """`$let`: binds variables for an expression."""
    if not has_arguments("$let", tree, path, scope, ("vars", "in")):
        return NULL
    place = join(path, "vars")
    if type(tree["vars"]) is not dict:
        scope.problems.add(place, "vars takes an object of variable: expression")
        return NULL
    bound = tuple(
        (_variable(name, join(place, name), scope), parse(item, join(place, name), scope))
        for name, item in tree["vars"].items()
    )
    return Let(bound, parse(tree["in"], join(path, "in"), scope.bind(*(name for name, _ in bound))))


def _cond(tree: Any, path: str, scope: Scope, parse: Parse) -> Expr:
    """`$cond`: the second if the first is true, else the third."""
    if type(tree) is list:
        if len(tree) != 3:  # noqa: PLR2004 - if, then, else
            scope.problems.add(path, f"$cond takes 3 arguments (if, then, else), found {len(tree)}")
            return NULL
        return Call("$cond", tuple(parse(item, f"{path}[{i}]", scope) for i, item in enumerate(tree)), path)
    names = ("if", "then", "else")
    if not has_arguments("$cond", tree, path, scope, names):
        return NULL
    return Call("$cond", tuple(parse(tree[name], join(path, name), scope) for name in names), path)


def _switch(tree: Any, path: str, scope: Scope, parse: Parse) -> Expr:
    """`$switch`: the first branch whose case is true, else the default."""
    if not has_arguments("$switch", tree, path, scope, ("branches",), ("default",)):
        return NULL
    place = join(path, "branches")
    branches = tree["branches"]
    if type(branches) is not list or not branches:
        scope.problems.add(place, "branches takes a list of at least one {case, then}")
        return NULL
    parsed = []
    for i, branch in enumerate(branches):
        at = f"{place}[{i}]"
        if has_arguments("a branch", branch, at, scope, ("case", "then")):
            parsed.append(
                (parse(branch["case"], join(at, "case"), scope), parse(branch["then"], join(at, "then"), scope))
            )
    default = parse(tree["default"], join(path, "default"), scope) if "default" in tree else None
    return Switch(tuple(parsed), default, path)


def _map(tree: Any, path: str, scope: Scope, parse: Parse) -> Expr:
    """`$map`: an expression for every item of an array."""
    if not has_arguments("$map", tree, path, scope, ("input", "in"), ("as",)):
        return NULL
    name = _variable(tree.get("as", "this"), join(path, "as"), scope)
    source = parse(tree["input"], join(path, "input"), scope)
    return MapArray(source, name, parse(tree["in"], join(path, "in"), scope.bind(name)), path)


def _filter(tree: Any, path: str, scope: Scope, parse: Parse) -> Expr:
    """`$filter`: the items of an array for which a condition is true."""
    if not has_arguments("$filter", tree, path, scope, ("input", "cond"), ("as", "limit")):
        return NULL
    name = _variable(tree.get("as", "this"), join(path, "as"), scope)
    source = parse(tree["input"], join(path, "input"), scope)
    condition = parse(tree["cond"], join(path, "cond"), scope.bind(name))
    limit = parse(tree["limit"], join(path, "limit"), scope) if "limit" in tree else None
    return FilterArray(source, name, condition, limit, path)


def _reduce(tree: Any, path: str, scope: Scope, parse: Parse) -> Expr:
    """`$reduce`: folds the items of an array into one value."""
    if not has_arguments("$reduce", tree, path, scope, ("input", "initialValue", "in")):
        return NULL
    source = parse(tree["input"], join(path, "input"), scope)
    initial = parse(tree["initialValue"], join(path, "initialValue"), scope)
    return ReduceArray(source, initial, parse(tree["in"], join(path, "in"), scope.bind("value", "this")), path)


def _is_direction(tree: Any) -> bool:
    """1 or -1, as a number of any type."""
    value = value_if_any(tree)
    return is_number(value) and value in (1, -1)


def parse_sort_keys(tree: Any, path: str, scope: Scope) -> tuple[SortKey, ...]:
    """`{field: 1 or -1, …}`: at least one key, at most 32."""
    if type(tree) is not dict or not 1 <= len(tree) <= 32:  # noqa: PLR2004 - MongoDB's bound
        scope.problems.add(
            path, f"expected an object of 1 to 32 fields with 1 (ascending) or -1 (descending), found {tree!r}"
        )
        return ()
    keys = []
    for name, direction in tree.items():
        names = tuple(name.split("."))
        if not all(names) or any(part.startswith("$") for part in names):
            scope.problems.add(
                join(path, name), f"{name!r} is no field path: its names must not be empty nor start with $"
            )
        elif not _is_direction(direction):
            scope.problems.add(
                join(path, name), f"a sort direction is 1 or -1, found {direction!r}", accepted=("1", "-1")
            )
        elif scope.allows(names, join(path, name)):
            keys.append(SortKey(names, from_json(direction) == -1))
    return tuple(keys)


def _sort_array(tree: Any, path: str, scope: Scope, parse: Parse) -> Expr:
    """`$sortArray`: an array in the order of its items or of their fields."""
    if not has_arguments("$sortArray", tree, path, scope, ("input", "sortBy")):
        return NULL
    source = parse(tree["input"], join(path, "input"), scope)
    order = tree["sortBy"]
    if type(order) is dict and not _is_direction(order):
        return SortArray(source, parse_sort_keys(order, join(path, "sortBy"), scope), path)
    if not _is_direction(order):
        scope.problems.add(join(path, "sortBy"), f"sortBy takes 1, -1 or an object of fields, found {order!r}")
        return NULL
    return SortArray(source, (SortKey((), from_json(order) == -1),), path)


def _expr(tree: Any, path: str, scope: Scope, parse: Parse) -> Expr:
    """`$expr`: the expression itself, as queries have it."""
    return parse(tree, path, scope)


def _current_date(tree: Any, path: str, scope: Scope, _: Parse) -> Expr:
    """`$currentDate`: when the record arrived, as `$$NOW`, so that a record that is read again gives the same."""
    if tree not in ({}, []):
        scope.problems.add(path, f"$currentDate takes no arguments: {{}}, found {tree!r}")
    return Variable("NOW", ())


def _is_set(text: str, scope: Scope) -> bool:
    """Whether a `$setStreamMeta` has set what a text reads, or an object on the way."""
    first, *names = text.split(".")
    return first == "stream" and names != [] and all(names) and names[0] in scope.told.metadata


def _meta(tree: Any, path: str, scope: Scope, _: Parse) -> Expr:
    """`$meta`: the engine's metadata of a document, such as its window."""
    if type(tree) is str and tree in _OF_CHANGES:
        scope.problems.add(path, f"{tree} is a field of change events: use $operationType, $ns.db and $ns.coll")
    elif type(tree) is not str or (tree not in META_NAMES and not _is_set(tree, scope)):
        known = (*META_NAMES, *(f"stream.{name}" for name in sorted(scope.told.metadata)))
        scope.problems.add(
            path,
            f"unknown metadata {tree!r}: no $setStreamMeta sets it in front of this stage, or a window, $join or $compute stands between",
            accepted=known,
            found=str(tree),
        )
        return NULL
    return Meta(tuple(tree.split(".")[1:]))


def _create_uuid(tree: Any, path: str, scope: Scope, _: Parse) -> Expr:
    """`$createUUID` (D18): a record that is read again gives the same one."""
    if tree != {}:
        scope.problems.add(path, f"$createUUID takes no arguments: {{}}, found {tree!r}")
    if not scope.told.records:
        scope.problems.add(
            path,
            "$createUUID makes the id of a record, and here is none: compute a field in a $addFields or $project in front of any "
            "window, $join or $compute; behind them make an id of _id and the window's bounds",
        )
    return CreateUuid((), scope.processor, path)


def _field_name(tree: Any, path: str, scope: Scope, parse: Parse) -> Expr:
    """A field's name: a string is taken as it is written, dollars and all."""
    return Literal(tree) if type(tree) is str and not tree.startswith("$") else parse(tree, path, scope)


def _get_field(tree: Any, path: str, scope: Scope, parse: Parse) -> Expr:
    """`$getField`: a field by name, which may have dots and dollars."""
    if type(tree) is not dict or any(key.startswith("$") for key in tree):
        return Call("$getField", (_field_name(tree, path, scope, parse), None), path)
    if not has_arguments("$getField", tree, path, scope, ("field",), ("input",)):
        return NULL
    source = parse(tree["input"], join(path, "input"), scope) if "input" in tree else None
    return Call("$getField", (_field_name(tree["field"], join(path, "field"), scope, parse), source), path)


FORMS: Final[dict[str, Callable[[Any, str, Scope, Parse], Expr]]] = {
    "$literal": _literal,
    "$const": _literal,
    "$let": _let,
    "$cond": _cond,
    "$switch": _switch,
    "$map": _map,
    "$filter": _filter,
    "$reduce": _reduce,
    "$sortArray": _sort_array,
    "$meta": _meta,
    "$expr": _expr,
    "$currentDate": _current_date,
    "$createUUID": _create_uuid,
    "$getField": _get_field,
}
