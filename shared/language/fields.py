"""Which fields and paths of documents are read by expressions, queries, schemas and stages; and how a path is read."""

from collections.abc import Iterable
from typing import TypeAlias

from tidemark.shared.language.expressions.ast import Expr, FieldPath, ObjectExpr, Variable, fields_used, walk
from tidemark.shared.language.query.ast import All, AnyOf, ExprTrue, MatchesSchema, Not, OnField, Predicate, SchemaNode
from tidemark.shared.language.query.match import fields_used as query_fields
from tidemark.shared.language.stages import (
    AddFields,
    Branch,
    Computed,
    Count,
    Drop,
    FileEmit,
    Group,
    HoppingWindow,
    HttpsEmit,
    InnerStage,
    KafkaEmit,
    Limit,
    Match,
    Merge,
    PluginEmit,
    Project,
    Redact,
    ReplaceRoot,
    SessionWindow,
    Sort,
    Stage,
    TumblingWindow,
    Unset,
    Unwind,
    Validate,
)

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


def _all(parts: Iterable[Fields]) -> Fields:
    names: frozenset[str] = frozenset()
    for part in parts:
        if part is None:
            return None
        names |= part
    return names


def reads(stage: InnerStage) -> Fields:
    """The top-level fields that a stage looks at to do its work; fields that it passes on untouched are not among them."""
    match stage:
        case Match():
            return query_fields(stage.predicate)
        case Validate():
            return query_fields(stage.validator)
        case AddFields() | Project():
            return _tree(stage.fields)
        case Unset():
            return frozenset(name for name, _ in stage.fields.fields)
        case ReplaceRoot():
            return fields_used(stage.new_root)
        case Unwind():
            return frozenset(stage.names[:1])
        case Sort():
            return frozenset(key.names[0] for key in stage.keys)
        case Group():
            inputs = [field.accumulator for field in stage.fields]
            keys = frozenset(key.names[0] for a in inputs for key in a.sort_by)
            return _all([fields_used(stage.id), keys, *(fields_used(a.input) for a in inputs)])
        case Limit() | Count():
            return frozenset()
        case Redact():
            return None


def _tree(tree: Branch) -> Fields:
    names: list[Fields] = []
    for name, leaf in tree.fields:
        if isinstance(leaf, Computed):
            names.append(fields_used(leaf.expr))
        elif isinstance(leaf, Branch):
            names += [frozenset({name}), _expressions(leaf)]
        else:
            names.append(frozenset({name}))
    return _all(names)


def _expressions(tree: Branch) -> Fields:
    """The fields that the expressions inside a branch read; the branch's own names are inside its field."""
    found: list[Fields] = []
    for _, leaf in tree.fields:
        if isinstance(leaf, Computed):
            found.append(fields_used(leaf.expr))
        elif isinstance(leaf, Branch):
            found.append(_expressions(leaf))
    return _all(found)


def expression_fields(expr: Expr) -> Fields:
    """The top-level fields that an expression reads."""
    return fields_used(expr)


def written(stages: Iterable[Stage | InnerStage]) -> Fields:
    """The top-level fields that may come out of a pipeline, no others; None where its text does not tell."""
    names: Fields = None
    for stage in stages:
        match stage:
            case TumblingWindow() | HoppingWindow() | SessionWindow():
                names = written(stage.pipeline)
            case Group():
                names = frozenset({"_id", *(field.name for field in stage.fields)})
            case Count():
                names = frozenset({stage.field})
            case Project(mode="inclusion"):
                names = frozenset(name for name, leaf in stage.fields.fields if not isinstance(leaf, Drop))
            case AddFields():
                names = None if names is None else names | {name for name, _ in stage.fields.fields}
            case Project() | Unset():
                gone = {name for name, leaf in stage.fields.fields if isinstance(leaf, Drop)}
                names = None if names is None else names - gone
            case ReplaceRoot(new_root=ObjectExpr(fields)):
                names = frozenset(name for name, _ in fields)
            case (
                Match()
                | Sort()
                | Limit()
                | Validate()
                | FileEmit()
                | KafkaEmit()
                | Merge()
                | HttpsEmit()
                | PluginEmit()
            ):
                pass
            case _:
                names = None
    return names
