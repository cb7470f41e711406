"""Which fields of its input a stage needs: what a sender may leave out, and what `explain` shows."""

from collections.abc import Iterable

from tidemark.shared.language.expressions.ast import Expr, fields_used
from tidemark.shared.language.query.match import fields_used as query_fields
from tidemark.shared.language.stages import (
    AddFields,
    Branch,
    Computed,
    Count,
    Group,
    InnerStage,
    Limit,
    Match,
    Project,
    Redact,
    ReplaceRoot,
    Sort,
    Unset,
    Unwind,
    Validate,
)

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
    """The top-level fields that a stage looks at to do its work; what it passes on untouched is not among them."""
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
    """What the expressions inside a branch read; the branch's own names are inside its field."""
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
