"""Stateless stages on a document. Documents are never changed in place; what goes out may share parts with what came in."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tidemark.shared.language.apply.project import add_fields, exclude, include
from tidemark.shared.language.apply.redact import redact
from tidemark.shared.language.apply.results import VALIDATE_REASON, Discarded, Failure, Outcome, Passed, ValidationStop
from tidemark.shared.language.apply.size import evaluate_bounded
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import TYPE, ExpressionError
from tidemark.shared.language.query.match import matches
from tidemark.shared.language.stages.stateless import (
    AddFields,
    Match,
    Project,
    Redact,
    ReplaceRoot,
    Stateless,
    Unset,
    Unwind,
    Validate,
)
from tidemark.shared.language.values.types import type_name
from tidemark.shared.model.values import MISSING, Document, Value, long


def apply_stage(stage: Stateless, document: Document, env: Environment) -> Outcome:
    """What a stage makes of a document; `env` gives time, metadata and variables, its own document is not looked at."""
    try:
        return _APPLY[type(stage)](stage, document, env.on(document))
    except ExpressionError as e:
        return Failure(e.reason, e.code, e.path or stage.path, document)


def apply_stages(stages: Sequence[Stateless], document: Document, env: Environment) -> Iterator[Outcome]:
    """What a chain makes of a document: the outcomes at its end, and failures on the way; in order, one by one."""
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
