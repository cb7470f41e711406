"""Which fields and paths of documents are read by expressions, queries and schemas."""

from collections.abc import Iterable
from typing import TypeAlias

from tidemark.shared.language.expressions.ast import Expr, FieldPath, Variable, walk
from tidemark.shared.language.query.ast import All, AnyOf, ExprTrue, MatchesSchema, Not, OnField, Predicate, SchemaNode

Path: TypeAlias = tuple[str, ...]
"""Names of fields from the outermost in."""


def expression_paths(expr: Expr) -> set[Path]:
    """The paths of fields that an expression may read as columns."""
    fields = (node for node in walk(expr) if isinstance(node, FieldPath) or _is_root(node))
    return {node.names for node in fields if node.names}  # type: ignore[union-attr]


def predicate_paths(predicate: Predicate) -> set[Path]:
    """The paths of fields that a predicate may look at as columns."""
    match predicate:
        case All(parts) | AnyOf(parts):
            return set().union(*(predicate_paths(part) for part in parts))
        case Not(part):
            return predicate_paths(part)
        case ExprTrue(expr):
            return expression_paths(expr)
        case OnField(names, _):
            return {names}
        case MatchesSchema(schema):
            return schema_paths(schema)
        case _:
            return set()


def predicate_expressions(predicate: Predicate) -> list[Expr]:
    """The expressions in a predicate."""
    match predicate:
        case All(parts) | AnyOf(parts):
            return [expr for part in parts for expr in predicate_expressions(part)]
        case Not(part):
            return predicate_expressions(part)
        case ExprTrue(expr):
            return [expr]
        case _:
            return []


def schema_paths(schema: SchemaNode, path: Path = ()) -> set[Path]:
    """The paths that a schema looks at."""
    found = {(*path, name) for name in schema.required} | {(*path, name) for name, _ in schema.properties}
    same = [*schema.all_of, *schema.any_of, *schema.one_of, *(() if schema.negated is None else (schema.negated,))]
    inner = [(part, path) for part in same] + [(part, (*path, name)) for name, part in schema.properties]
    return found.union(*(schema_paths(part, at) for part, at in inner))


def _is_root(expr: Expr) -> bool:
    return isinstance(expr, Variable) and expr.name == "ROOT"


Fields = frozenset[str] | None
"""Top-level names; None for: any, the whole document."""


def all_of(parts: Iterable[Fields]) -> Fields:
    """The fields of all parts; None where one may read any."""
    names: frozenset[str] = frozenset()
    for part in parts:
        if part is None:
            return None
        names |= part
    return names
