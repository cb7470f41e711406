"""Documents: fields by name, and putting documents together."""

from typing import Any

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import TYPE, fail
from tidemark.shared.language.expressions.library.arithmetic import is_null
from tidemark.shared.language.expressions.library.logic import Evaluate
from tidemark.shared.language.expressions.library.strings import need_string
from tidemark.shared.language.expressions.registry import named, positional
from tidemark.shared.language.values.types import type_name
from tidemark.shared.model.values import MISSING, Value


@positional("$mergeObjects", 0, None)
def _merge_objects(*values: Value) -> dict[str, Any]:
    """Documents put together; later ones win; null is passed over."""
    items = values[0] if len(values) == 1 and type(values[0]) is list else values
    result: dict[str, Any] = {}
    for value in items:
        if is_null(value):
            continue
        if type(value) is not dict:
            raise fail(f"$mergeObjects takes documents, found {type_name(value)}", TYPE)
        result.update(value)
    return result


@positional("$getField", 2, lazy=True)
def _get_field(args: tuple[Any, ...], env: Environment, evaluate: Evaluate) -> Value:
    """A field by name, which may have dots and dollars."""
    name = need_string("$getField", evaluate(args[0], env), "a field name")
    source = env.current if args[1] is None else evaluate(args[1], env)
    if is_null(source):
        return source
    return source.get(name, MISSING) if type(source) is dict else MISSING


@named("$setField", "field input value")
def _set_field(name: Value, source: Value, value: Value) -> Value:
    """The document with a field set, or taken away by `$$REMOVE`."""
    if is_null(source):
        return None
    if type(source) is not dict:
        raise fail(f"$setField takes a document, found {type_name(source)}", TYPE)
    field = need_string("$setField", name, "a field name")
    if value is MISSING:
        return {key: item for key, item in source.items() if key != field}
    return {**source, field: value}


@named("$unsetField", "field input")
def _unset_field(name: Value, source: Value) -> Value:
    """The document without a field."""
    return _set_field(name, source, MISSING)
