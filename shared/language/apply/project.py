"""Field trees on documents: `$project` (inclusion, exclusion), `$addFields`, `$unset`. They go through arrays."""

from typing import Any

from tidemark.shared.language.apply.size import evaluate_bounded
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.stages.stateless import Branch, Computed, Drop, Keep
from tidemark.shared.model.values import MISSING, Document, Value


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
