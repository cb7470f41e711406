"""The typed form of an aggregation expression: frozen nodes, made by `parse`, given meaning by `interpreter`.

Every node that can fail at run time carries `path`, its place in the user's document.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, TypeAlias

from tidemark.shared.model.values import MISSING, Value


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; `MISSING` for `$$REMOVE`."""

    value: Value


def constant(value: Value) -> str:
    """A constant in a message about one that was hardly meant: a name without its dollar is shown with it."""
    if is_bare_name(value):
        return f"the constant {value!r} (the field is written ${value})"
    if type(value) is str:
        return f"the constant {value[:80]!r}"
    return f"a constant, {json.dumps(value) if value is None or type(value) is bool else str(value)[:80]}"


_NAME: Final = re.compile(r"[A-Za-z_][\w.]*")


def is_bare_name(value: Value) -> bool:
    """Whether a text reads like a field's name without its dollar."""
    return type(value) is str and _NAME.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class FieldPath:
    """`$a.b`: a path from the current document (`$$CURRENT`); no names at all is the document itself."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """`$$name.a.b`: `ROOT`, `NOW`, or a variable bound by an enclosing form, and a path into its value."""

    name: str
    names: tuple[str, ...] = ()


OF_ENGINE: Final = ("source", "window")
"""First names of metadata that the engine tells; a `$setStreamMeta` sets others."""


@dataclass(frozen=True, slots=True)
class Meta:
    """`{$meta: "stream.window.start"}`: a path into the engine's metadata of the document, without the leading `stream`."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CreateUuid(Meta):
    """`$createUUID`: of the document's record, the processor's name and this place in its text; it reads nothing of the document."""

    processor: str
    path: str


@dataclass(frozen=True, slots=True)
class ObjectExpr:
    """`{a: expr, …}`: a document; fields that come out missing are left out."""

    fields: tuple[tuple[str, "Expr"], ...]


@dataclass(frozen=True, slots=True)
class ArrayExpr:
    """`[expr, …]`: an array; items that come out missing become null."""

    items: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Call:
    """An operator on arguments, in the order of its signature; an argument that was not given is None."""

    op: str
    args: tuple["Expr | None", ...]
    path: str


@dataclass(frozen=True, slots=True)
class Let:
    """`$let`: variables, all evaluated outside the form, then the body."""

    variables: tuple[tuple[str, "Expr"], ...]
    body: "Expr"


@dataclass(frozen=True, slots=True)
class Switch:
    """`$switch`: the first branch whose case is true; without one the default; without that an error."""

    branches: tuple[tuple["Expr", "Expr"], ...]
    default: "Expr | None"
    path: str


@dataclass(frozen=True, slots=True)
class MapArray:
    """`$map`: the body for every item, bound to `variable`."""

    source: "Expr"
    variable: str
    body: "Expr"
    path: str


@dataclass(frozen=True, slots=True)
class FilterArray:
    """`$filter`: the items for which the condition is true, the first `limit` of them."""

    source: "Expr"
    variable: str
    condition: "Expr"
    limit: "Expr | None"
    path: str


@dataclass(frozen=True, slots=True)
class ReduceArray:
    """`$reduce`: folds the items into `$$value`, from the left; the item is `$$this`."""

    source: "Expr"
    initial: "Expr"
    body: "Expr"
    path: str


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key of a sort: a field path and its direction."""

    names: tuple[str, ...]
    descending: bool


@dataclass(frozen=True, slots=True)
class SortArray:
    """`$sortArray`: by keys of its documents, or by whole items (one key without names)."""

    source: "Expr"
    keys: tuple[SortKey, ...]
    path: str


Expr: TypeAlias = (
    Literal
    | FieldPath
    | Variable
    | Meta
    | ObjectExpr
    | ArrayExpr
    | Call
    | Let
    | Switch
    | MapArray
    | FilterArray
    | ReduceArray
    | SortArray
)

NULL = Literal(None)
REMOVE = Literal(MISSING)


def children(expr: Expr) -> Iterator[Expr]:
    """The expressions directly inside one, in evaluation order."""
    match expr:
        case Literal() | FieldPath() | Variable() | Meta():
            return
        case ObjectExpr(fields):
            yield from (item for _, item in fields)
        case ArrayExpr(items):
            yield from items
        case Call():
            yield from (arg for arg in expr.args if arg is not None)
        case Let():
            yield from (item for _, item in expr.variables)
            yield expr.body
        case Switch():
            for case, then in expr.branches:
                yield case
                yield then
            if expr.default is not None:
                yield expr.default
        case MapArray():
            yield expr.source
            yield expr.body
        case FilterArray():
            yield expr.source
            yield expr.condition
            if expr.limit is not None:
                yield expr.limit
        case ReduceArray():
            yield expr.source
            yield expr.initial
            yield expr.body
        case SortArray():
            yield expr.source


def walk(expr: Expr) -> Iterator[Expr]:
    """An expression and everything inside it, outermost first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def answers(expr: Expr) -> Iterator[Expr]:
    """What an expression may have the value of: what its conditions choose from, where it is one, else itself."""
    match expr:
        case Call("$cond", (_, *chosen)):
            pass
        case Switch(branches, default):
            chosen = [*(then for _, then in branches), default]
        case _:
            yield expr
            return
    for each in chosen:
        if each is not None:
            yield from answers(each)


def loops(tree: object) -> bool:
    """Whether an expression anywhere in stages goes through items: how long it takes, the bytes of a document do not bound."""
    if isinstance(tree, MapArray | FilterArray | ReduceArray | SortArray):
        return True
    if is_dataclass(tree):
        return any(loops(getattr(tree, each.name)) for each in fields(tree))
    return isinstance(tree, tuple) and any(map(loops, tree))


def fields_used(expr: Expr) -> frozenset[str] | None:
    """The top-level fields of the document that an expression reads; None if it may read any (`$$ROOT`, `$$CURRENT`)."""
    names: set[str] = set()
    for node in walk(expr):
        path: tuple[Any, ...] | None = None
        if isinstance(node, Call) and node.op == "$getField" and node.args[1] is None:
            name = node.args[0]
            path = (name.value,) if isinstance(name, Literal) and type(name.value) is str else ()
        if isinstance(node, FieldPath) or (isinstance(node, Variable) and node.name == "ROOT"):
            path = node.names
        if path is None:
            continue
        if not path:
            return None
        names.add(path[0])
    return frozenset(names)
