"""Stages on documents: the definition of their results. Documents are never changed in place; results may share parts with them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tidemark.shared.language.accumulators.base import OrderKey
from tidemark.shared.language.accumulators.table import accumulator_input, implementation
from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.environment import DEPTH_MAX, Environment
from tidemark.shared.language.expressions.errors import SIZE, TYPE, VALUE, ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.expressions.sorting import sort_items
from tidemark.shared.language.query.match import matches
from tidemark.shared.language.stages import (
    AddFields,
    Branch,
    Computed,
    Count,
    Drop,
    Group,
    Keep,
    Limit,
    Match,
    Project,
    Redact,
    ReplaceRoot,
    Sort,
    Stateless,
    Unset,
    Unwind,
    Validate,
)
from tidemark.shared.language.values.keys import canonical_key
from tidemark.shared.language.values.types import type_name
from tidemark.shared.model.values import MISSING, Document, Value, long

VALIDATE_REASON: Final = "Input document found to be invalid in $validate stage."
"""The reason that dead letters of `$validate` carry, in Atlas's words."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The documents that go on; none where `$match` or `$unwind` let nothing through."""

    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True)
class Discarded:
    """`$validate` with `discard`: nothing goes on, and nothing goes to the dead letters."""

    path: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The document, as it entered the stage, goes to the dead letters: `errInfo` is {reason, code, path}."""

    reason: str
    code: str
    path: str
    document: Document


@dataclass(frozen=True, slots=True)
class ValidationStop:
    """`$validate` with `error`: the processor stops with this."""

    reason: str
    path: str
    document: Document


Outcome: TypeAlias = Passed | Discarded | Failure | ValidationStop


def evaluate_bounded(expr: Expr, env: Environment) -> Value:
    """The value of an expression, its whole size taken from the environment's budget; ExpressionError beyond it."""
    value = evaluate(expr, env)
    if type(value) is dict or type(value) is list:
        _spend(value, env)
    return value


def _spend(value: Any, env: Environment) -> None:
    """Take every character, item and field, shared parts as often as they stand in the value."""
    stack: list[tuple[Any, int]] = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if depth > DEPTH_MAX:
            raise ExpressionError(f"the result nests more than {DEPTH_MAX} deep", SIZE)
        units = len(item) + 1
        for inner in item.values() if type(item) is dict else item:
            kind = type(inner)
            if kind is dict or kind is list:
                stack.append((inner, depth + 1))
            elif kind is str:
                units += len(inner)
        env.spend(units)


def exclude(tree: Branch, document: Document) -> Document:
    """The document without the dropped fields."""
    actions = dict(tree.fields)
    result: Document = {}
    for name, value in document.items():
        action = actions.get(name)
        if isinstance(action, Drop):
            continue
        result[name] = exclude_value(action, value) if isinstance(action, Branch) else value
    return result


def exclude_value(tree: Branch, value: Value) -> Value:
    """A value without the dropped fields, in documents and in the items of arrays."""
    if type(value) is dict:
        return exclude(tree, value)
    if type(value) is list:
        return [exclude_value(tree, item) for item in value]
    return value


def include(tree: Branch, document: Document, env: Environment) -> Document:
    """The kept fields, in the order of the document, then the computed ones, in the order of the tree."""
    actions = dict(tree.fields)
    result: Document = {}
    for name, value in document.items():
        action = actions.get(name)
        if isinstance(action, Keep):
            result[name] = value
        elif isinstance(action, Branch):
            inner = include_value(action, value, env)
            if inner is not MISSING:
                result[name] = inner
    for name, action in tree.fields:
        if isinstance(action, Computed):
            value = evaluate_bounded(action.expr, env)
            if value is not MISSING:
                result[name] = value
        elif isinstance(action, Branch) and name not in result and computes(action):
            result[name] = _built(action, env)
    return result


def include_value(tree: Branch, value: Value, env: Environment) -> Value:
    """A branch on a value: arrays item by item; scalars are left out, unless fields are computed into them."""
    if type(value) is dict:
        return include(tree, value, env)
    if type(value) is list:
        items = [include_value(tree, item, env) for item in value]
        return [item for item in items if item is not MISSING]
    return _built(tree, env) if computes(tree) else MISSING


def computes(tree: Branch) -> bool:
    """Whether any field of a branch is computed."""
    return any(isinstance(a, Computed) or (isinstance(a, Branch) and computes(a)) for _, a in tree.fields)


def _built(tree: Branch, env: Environment) -> Document:
    """The computed fields of a branch alone."""
    return add_fields(tree, {}, env)


def add_fields(tree: Branch, document: Document, env: Environment) -> Document:
    """The document with the computed fields; expressions see `env`'s document, which is the one that came."""
    result = dict(document)
    for name, action in tree.fields:
        if isinstance(action, Computed):
            value = evaluate_bounded(action.expr, env)
            if value is MISSING:
                result.pop(name, None)
            else:
                result[name] = value
        elif isinstance(action, Branch) and computes(action):
            result[name] = add_to_value(action, result.get(name, MISSING), env)
    return result


def add_to_value(tree: Branch, value: Any, env: Environment) -> Value:
    """Fields added inside a value: to each item of an array; a scalar gives way to a document."""
    if type(value) is dict:
        return add_fields(tree, value, env)
    if type(value) is list:
        return [add_to_value(tree, item, env) for item in value]
    return add_fields(tree, {}, env)


_DESCEND: Final = "descend"
_PRUNE: Final = "prune"
_KEEP: Final = "keep"
_VARIABLES: Final = {"DESCEND": _DESCEND, "PRUNE": _PRUNE, "KEEP": _KEEP}


def redact(stage: Redact, document: Document, env: Environment) -> Document | None:
    """The kept part of a document; None if it is pruned as a whole."""
    kept = _document(stage, document, env.bind(_VARIABLES))
    return None if kept is MISSING else kept


def _document(stage: Redact, document: Document, env: Environment) -> Any:
    answer = evaluate(stage.expr, env.at(document))
    if answer == _KEEP:
        return document
    if answer == _PRUNE:
        return MISSING
    if answer != _DESCEND:
        raise ExpressionError("$redact must give $$DESCEND, $$PRUNE or $$KEEP", VALUE, stage.path)
    result: Document = {}
    for name, value in document.items():
        kept = _value(stage, value, env)
        if kept is not MISSING:
            result[name] = kept
    return result


def _value(stage: Redact, value: Value, env: Environment) -> Value:
    if type(value) is dict:
        return _document(stage, value, env)
    if type(value) is list:
        items = [_value(stage, item, env) for item in value]
        return [item for item in items if item is not MISSING]
    return value


def apply_group(stage: Group, rows: Iterable[tuple[Document, OrderKey]], env: Environment) -> list[Document]:
    """One document a key, in the order of the keys' first rows as they come.

    The key of equal values (1 and 1.0) is that of the least order key. ExpressionError where an expression fails on a row; a caller that
    keeps the other rows filters such rows out before.
    """
    accumulators = [implementation(field.accumulator) for field in stage.fields]
    groups: dict[bytes, tuple[list[Any], list[Any]]] = {}
    for document, order_key in rows:
        here = env.on(document)
        key = evaluate(stage.id, here)
        key = None if key is MISSING else key
        first, states = groups.setdefault(canonical_key(key), ([order_key, key], [a.init() for a in accumulators]))
        if order_key < first[0]:
            first[:] = [order_key, key]
        for i, (accumulator, field) in enumerate(zip(accumulators, stage.fields, strict=True)):
            states[i] = accumulator.add(states[i], accumulator_input(field.accumulator, here), order_key)
    result = []
    for first, states in groups.values():
        document = {"_id": first[1]}
        for accumulator, field, state in zip(accumulators, stage.fields, states, strict=True):
            document[field.name] = accumulator.finish(state)
        result.append(document)
    return result


def apply_sort(stage: Sort, documents: Sequence[Document]) -> list[Document]:
    """The documents in the order of the keys; equal ones as they stood."""
    return sort_items(documents, stage.keys)


def apply_limit(stage: Limit, documents: Sequence[Document]) -> list[Document]:
    """The first ones."""
    return list(documents[: stage.limit])


def apply_count(stage: Count, documents: Sequence[Document]) -> list[Document]:
    """Their number; nothing for none."""
    return [{stage.field: len(documents)}] if documents else []


def apply_stage(stage: Stateless, document: Document, env: Environment) -> Outcome:
    """A stage's outcomes for a document; `env` gives time, metadata and variables, its own document is not looked at."""
    try:
        return _APPLY[type(stage)](stage, document, env.on(document))
    except ExpressionError as e:
        return Failure(e.reason, e.code, e.path or stage.path, document)


def apply_stages(stages: Sequence[Stateless], document: Document, env: Environment) -> Iterator[Outcome]:
    """A chain's outcomes for a document, and failures on the way; in order, one by one."""
    if not stages:
        yield Passed((document,))
        return
    outcome = apply_stage(stages[0], document, env)
    if not isinstance(outcome, Passed):
        yield outcome
        return
    for item in outcome.documents:
        yield from apply_stages(stages[1:], item, env)


def _match(stage: Match, document: Document, env: Environment) -> Outcome:
    return Passed((document,)) if matches(stage.predicate, env) else Passed(())


def _add_fields(stage: AddFields, document: Document, env: Environment) -> Outcome:
    return Passed((add_fields(stage.fields, document, env),))


def _project(stage: Project, document: Document, env: Environment) -> Outcome:
    if stage.mode == "exclusion":
        return Passed((exclude(stage.fields, document),))
    return Passed((include(stage.fields, document, env),))


def _unset(stage: Unset, document: Document, _: Environment) -> Outcome:
    return Passed((exclude(stage.fields, document),))


def _replace_root(stage: ReplaceRoot, _: Document, env: Environment) -> Outcome:
    value = evaluate_bounded(stage.new_root, env)
    if type(value) is not dict:
        raise ExpressionError(f"the new root must be a document, found {type_name(value)}", TYPE, stage.path)
    return Passed((value,))


def _unwind(stage: Unwind, document: Document, _: Environment) -> Outcome:
    value = _plain_path(document, stage.names)
    keep = stage.preserve_null_and_empty_arrays
    if type(value) is list:
        if value:
            return Passed(tuple(_unwound(stage, document, item, long(i)) for i, item in enumerate(value)))
        return Passed((_unwound(stage, document, MISSING, None),) if keep else ())
    if value is None or value is MISSING:
        return Passed((_unwound(stage, document, value, None),) if keep else ())
    return Passed((_unwound(stage, document, value, None),))


def _plain_path(value: Value, names: Sequence[str]) -> Value:
    """The value at a path of documents alone: `$unwind` does not go through arrays."""
    for name in names:
        value = value.get(name, MISSING) if type(value) is dict else MISSING
    return value


def _unwound(stage: Unwind, document: Document, item: Value, index: int | None) -> Document:
    result = set_path(document, stage.names, item)
    if stage.include_array_index is not None:
        result = set_path(result, stage.include_array_index, index)
    return result


def set_path(document: Document, names: Sequence[str], value: Value) -> Document:
    """The document with the value at a path, or without it for MISSING."""
    name, rest = names[0], names[1:]
    if not rest:
        if value is not MISSING:
            return {**document, name: value}
        return {key: item for key, item in document.items() if key != name}
    inner = document.get(name, MISSING)
    if type(inner) is not dict:
        if value is MISSING:
            return document
        inner = {}
    return {**document, name: set_path(inner, rest, value)}


def _redact(stage: Redact, document: Document, env: Environment) -> Outcome:
    kept = redact(stage, document, env)
    return Passed(()) if kept is None else Passed((kept,))


def _validate(stage: Validate, document: Document, env: Environment) -> Outcome:
    if matches(stage.validator, env):
        return Passed((document,))
    if stage.validation_action == "discard":
        return Discarded(stage.path)
    if stage.validation_action == "error":
        return ValidationStop(VALIDATE_REASON, stage.path, document)
    return Failure(VALIDATE_REASON, "DocumentValidationFailure", stage.path, document)


_APPLY: Final[dict[type, Callable[[Any, Document, Environment], Outcome]]] = {
    Match: _match,
    AddFields: _add_fields,
    Project: _project,
    Unset: _unset,
    ReplaceRoot: _replace_root,
    Unwind: _unwind,
    Redact: _redact,
    Validate: _validate,
}
