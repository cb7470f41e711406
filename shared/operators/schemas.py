"""Declared fields behind a stage, which the planner tells the next operator.

A field stays declared while the stages cannot change its type; a computed field has a declared type only where it is another
declared field under a new name. To forget a field is always right: it then travels untyped.
"""

from collections.abc import Iterable, Sequence

from tidemark.shared.language.expressions.ast import Expr, FieldPath
from tidemark.shared.language.schema import NO_SCHEMA, Field, Schema
from tidemark.shared.language.stages import (
    AddFields,
    Branch,
    Computed,
    Keep,
    Match,
    Project,
    Stateless,
    Unset,
    Unwind,
    Validate,
)


def after(schema: Schema, stages: Iterable[Stateless]) -> Schema:
    """The declared fields of documents with this schema behind these stages."""
    for stage in stages:
        schema = _behind(schema, stage)
    return schema


def shared_fields(schemas: Sequence[Schema]) -> Schema:
    """The fields that all of these declare with one type, for rows that flow together; optional where one says so."""
    found = []
    for known in schemas[0]:
        same = [field for field in (other.get(known.name) for other in schemas) if field is not None]
        if len(same) == len(schemas) and all(field.type == known.type for field in same):
            found.append(Field(known.name, known.type, any(field.optional for field in same)))
    return Schema(tuple(found))


def _behind(schema: Schema, stage: Stateless) -> Schema:
    match stage:
        case Match() | Validate():
            return schema
        case AddFields(fields=tree) | Unset(fields=tree):
            return _changed(schema, tree)
        case Project(mode="exclusion", fields=tree):
            return _changed(schema, tree)
        case Project(fields=tree):
            return Schema(tuple(f for f in _named(schema, tree) if f is not None))
        case Unwind(names=names, include_array_index=index):
            gone = {names[0], *(index or ())[:1]}
            return Schema(tuple(f for f in schema if f.name not in gone))
        case _:
            return NO_SCHEMA


def _changed(schema: Schema, tree: Branch) -> Schema:
    touched = {name for name, _ in tree.fields}
    kept = [f for f in schema if f.name not in touched]
    return Schema((*kept, *(f for f in _named(schema, tree) if f is not None)))


def _named(schema: Schema, tree: Branch) -> Iterable[Field | None]:
    for name, leaf in tree.fields:
        if isinstance(leaf, Keep):
            yield schema.get(name)
        elif isinstance(leaf, Computed):
            yield _copy(schema, name, leaf.expr)


def _copy(schema: Schema, name: str, expr: Expr) -> Field | None:
    if not isinstance(expr, FieldPath) or len(expr.names) != 1:
        return None
    field = schema.get(expr.names[0])
    return None if field is None else Field(name, field.type, field.optional)
