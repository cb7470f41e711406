"""`$jsonSchema`: MongoDB's flavour of JSON Schema draft 4, from a JSON tree to the typed form.

As there: `bsonType` beside `type`, no `$ref`, `format`, `default`, `definitions` and `id`, and `type: integer` is an error (`bsonType:
int`). An unknown keyword is an error.
"""

from collections.abc import Callable
from typing import Any, Final

from tidemark.shared.language.expressions.scope import Scope, read_value
from tidemark.shared.language.patterns import BadPattern, compile_pattern
from tidemark.shared.language.problems import join
from tidemark.shared.language.query.ast import SchemaNode
from tidemark.shared.language.values.order import sort_key
from tidemark.shared.language.values.types import TYPE_NUMBERS, is_finite, is_integral, is_number

_TYPES: Final = {
    "object": "object",
    "array": "array",
    "number": "number",
    "boolean": "bool",
    "string": "string",
    "null": "null",
}
_DEPTH_MAX: Final = 100
"""How deep `$jsonSchema` nests: part of the language."""


def parse_json_schema(tree: object, path: str, scope: Scope) -> SchemaNode | None:
    """The typed form of a schema object; None after noting errors."""
    if type(tree) is not dict:
        scope.problems.add(path, "a schema is an object")
        return None
    if scope.depth > _DEPTH_MAX:
        scope.problems.add(path, f"schemas nest at most {_DEPTH_MAX} deep")
        return None
    before = len(scope.problems.errors)
    found: dict[str, Any] = {}
    for keyword, item in tree.items():
        reader = _KEYWORDS.get(keyword)
        if reader is None:
            scope.problems.add(
                join(path, keyword), f"unknown keyword {keyword} of $jsonSchema", accepted=_KEYWORDS, found=keyword
            )
        else:
            value = reader[1](item, join(path, keyword), scope.deeper())
            found.update({reader[0]: value} if reader[0] else {})
    if "type" in tree and "bsonType" in tree:
        scope.problems.add(path, "type and bsonType do not stand together")
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in tree and bound not in tree:
            scope.problems.add(path, f"{exclusive} needs {bound}")
    return None if len(scope.problems.errors) > before else SchemaNode(**found)


def _wrong(path: str, scope: Scope, expected: str, found: object) -> None:
    scope.problems.add(path, f"expected {expected}, found {str(found)[:60]!r}")


def _type_names(tree: object, path: str, scope: Scope) -> list[Any]:
    names = tree if type(tree) is list else [tree]
    if not names or any(name in names[:i] for i, name in enumerate(names)):
        _wrong(path, scope, "a type, or a list of different ones", tree)
    return names


def _bson_types(tree: object, path: str, scope: Scope) -> tuple[str, ...]:
    names = _type_names(tree, path, scope)
    for name in names:
        if name != "number" and name not in list(TYPE_NUMBERS):
            scope.problems.add(path, f"unknown type {name!r}", accepted=("number", *TYPE_NUMBERS), found=str(name))
    return tuple(map(str, names))


def _json_types(tree: object, path: str, scope: Scope) -> tuple[str, ...]:
    names = _type_names(tree, path, scope)
    for name in names:
        if name not in list(_TYPES):
            hint = "; use bsonType: int or long" if name == "integer" else ""
            scope.problems.add(path, f"unknown type {name!r}{hint}", accepted=_TYPES, found=str(name))
    return tuple(_TYPES.get(str(name), "null") for name in names)


def _number(tree: object, path: str, scope: Scope) -> Any:
    value, _ = read_value(tree, path, scope)
    if not is_number(value):
        _wrong(path, scope, "a number", tree)
    return value


def _positive(tree: object, path: str, scope: Scope) -> Any:
    value = _number(tree, path, scope)
    if is_number(value) and (not is_finite(value) or value <= 0):
        _wrong(path, scope, "a number above 0", tree)
    return value


def _count(tree: object, path: str, scope: Scope) -> int | None:
    value, _ = read_value(tree, path, scope)
    if not is_integral(value) or value < 0:
        _wrong(path, scope, "a whole number from 0", tree)
        return None
    return int(value)


def _boolean(tree: object, path: str, scope: Scope) -> bool:
    if type(tree) is not bool:
        _wrong(path, scope, "true or false", tree)
    return tree is True


def _enum(tree: object, path: str, scope: Scope) -> tuple[Any, ...]:
    if type(tree) is not list or not tree:
        _wrong(path, scope, "a list of at least one value", tree)
        return ()
    values = tuple(read_value(item, f"{path}[{i}]", scope)[0] for i, item in enumerate(tree))
    if len({sort_key(value) for value in values}) < len(values):
        _wrong(path, scope, "different values", tree)
    return values


def _names(tree: object, path: str, scope: Scope) -> tuple[str, ...]:
    if type(tree) is not list or not tree or not all(type(name) is str for name in tree) or len(set(tree)) < len(tree):
        _wrong(path, scope, "a list of at least one field name, all different", tree)
        return ()
    return tuple(tree)


def _pattern(tree: object, path: str, scope: Scope) -> Any:
    if type(tree) is not str:
        _wrong(path, scope, "a regular expression", tree)
        return None
    try:
        return compile_pattern(tree)
    except BadPattern as e:
        scope.problems.add(path, str(e))
        return None


def _schema(tree: object, path: str, scope: Scope) -> SchemaNode:
    return parse_json_schema(tree, path, scope) or SchemaNode()


def _by_name(read: Callable[[Any, str, Scope], object]) -> Callable[[Any, str, Scope], tuple[tuple[str, Any], ...]]:
    def reader(tree: object, path: str, scope: Scope) -> tuple[tuple[str, Any], ...]:
        if type(tree) is not dict:
            _wrong(path, scope, "an object", tree)
            return ()
        return tuple((name, read(item, join(path, name), scope)) for name, item in tree.items())

    return reader


def _pattern_properties(tree: object, path: str, scope: Scope) -> tuple[tuple[Any, SchemaNode], ...]:
    return tuple((_pattern(name, join(path, name), scope), node) for name, node in _by_name(_schema)(tree, path, scope))


def _schemas(tree: object, path: str, scope: Scope) -> tuple[SchemaNode, ...]:
    if type(tree) is not list or not tree:
        _wrong(path, scope, "a list of at least one schema", tree)
        return ()
    return tuple(_schema(item, f"{path}[{i}]", scope) for i, item in enumerate(tree))


def _boolean_or_schema(tree: object, path: str, scope: Scope) -> bool | SchemaNode:
    return tree if type(tree) is bool else _schema(tree, path, scope)


def _items(tree: object, path: str, scope: Scope) -> SchemaNode | tuple[SchemaNode, ...]:
    return _schemas(tree, path, scope) if type(tree) is list else _schema(tree, path, scope)


def _dependency(tree: object, path: str, scope: Scope) -> tuple[str, ...] | SchemaNode:
    return _names(tree, path, scope) if type(tree) is list else _schema(tree, path, scope)


def _ignored(tree: object, path: str, scope: Scope) -> None:
    if type(tree) is not str:
        _wrong(path, scope, "a string", tree)


_KEYWORDS: Final[dict[str, tuple[str, Callable[[Any, str, Scope], Any]]]] = {
    "bsonType": ("types", _bson_types),
    "type": ("types", _json_types),
    "enum": ("enum", _enum),
    "minimum": ("minimum", _number),
    "maximum": ("maximum", _number),
    "exclusiveMinimum": ("exclusive_minimum", _boolean),
    "exclusiveMaximum": ("exclusive_maximum", _boolean),
    "multipleOf": ("multiple_of", _positive),
    "minLength": ("min_length", _count),
    "maxLength": ("max_length", _count),
    "pattern": ("pattern", _pattern),
    "required": ("required", _names),
    "properties": ("properties", _by_name(_schema)),
    "patternProperties": ("pattern_properties", _pattern_properties),
    "additionalProperties": ("additional_properties", _boolean_or_schema),
    "minProperties": ("min_properties", _count),
    "maxProperties": ("max_properties", _count),
    "dependencies": ("dependencies", _by_name(_dependency)),
    "items": ("items", _items),
    "additionalItems": ("additional_items", _boolean_or_schema),
    "minItems": ("min_items", _count),
    "maxItems": ("max_items", _count),
    "uniqueItems": ("unique_items", _boolean),
    "allOf": ("all_of", _schemas),
    "anyOf": ("any_of", _schemas),
    "oneOf": ("one_of", _schemas),
    "not": ("negated", _schema),
    "title": ("", _ignored),
    "description": ("", _ignored),
}
