"""Whether a value conforms to a `$jsonSchema`: MongoDB's draft 4. A keyword says nothing about values of other types than its own."""

from decimal import Context
from typing import Any, Final

from tidemark.shared.language.query.ast import SchemaNode
from tidemark.shared.language.values.numbers import decimal_of
from tidemark.shared.language.values.order import equal, sort_key
from tidemark.shared.language.values.types import is_finite, is_nan, is_number, type_name
from tidemark.shared.model.values import MISSING, Value

_EXACT: Final = Context(prec=7000, Emin=-999_999, Emax=999_999)


def conforms(schema: SchemaNode, value: Value) -> bool:
    """Whether a value, not missing, meets all keywords of a schema."""
    if schema.types is not None and not _has_type(value, schema.types):
        return False
    if schema.enum is not None and not any(equal(value, item) for item in schema.enum):
        return False
    kind = type(value)
    if kind is str:
        good = _string(schema, value)
    elif kind is dict:
        good = _document(schema, value)
    elif kind is list:
        good = _array(schema, value)
    elif is_number(value):
        good = _number(schema, value)
    else:
        good = True
    return good and _combined(schema, value)


def _has_type(value: Value, types: tuple[str, ...]) -> bool:
    return type_name(value) in types or ("number" in types and is_number(value))


def _number(schema: SchemaNode, value: object) -> bool:
    low, high = schema.minimum, schema.maximum
    if is_nan(value) or any(bound is not None and is_nan(bound) for bound in (low, high)):
        return low is None and high is None and schema.multiple_of is None
    if low is not None and not (value > low if schema.exclusive_minimum else value >= low):
        return False
    if high is not None and not (value < high if schema.exclusive_maximum else value <= high):
        return False
    if schema.multiple_of is None:
        return True
    if not is_finite(value):
        return False
    return bool(_EXACT.remainder(decimal_of(value), decimal_of(schema.multiple_of)) == 0)


def _string(schema: SchemaNode, value: str) -> bool:
    if schema.min_length is not None and len(value) < schema.min_length:
        return False
    if schema.max_length is not None and len(value) > schema.max_length:
        return False
    return schema.pattern is None or schema.pattern.search(value) is not None


def _document(schema: SchemaNode, value: dict[str, Any]) -> bool:
    if any(name not in value for name in schema.required):
        return False
    if schema.min_properties is not None and len(value) < schema.min_properties:
        return False
    if schema.max_properties is not None and len(value) > schema.max_properties:
        return False
    for name, inner in schema.properties:
        item = value.get(name, MISSING)
        if item is not MISSING and not conforms(inner, item):
            return False
    return _further_properties(schema, value) and _dependencies(schema, value)


def _further_properties(schema: SchemaNode, value: dict[str, Any]) -> bool:
    named = {name for name, _ in schema.properties}
    for name, item in value.items():
        matched = name in named
        for pattern, inner in schema.pattern_properties:
            if pattern.search(name) is not None:
                matched = True
                if not conforms(inner, item):
                    return False
        if matched:
            continue
        further = schema.additional_properties
        if further is False or (isinstance(further, SchemaNode) and not conforms(further, item)):
            return False
    return True


def _dependencies(schema: SchemaNode, value: dict[str, Any]) -> bool:
    for name, needs in schema.dependencies:
        if name not in value:
            continue
        if isinstance(needs, SchemaNode):
            if not conforms(needs, value):
                return False
        elif any(other not in value for other in needs):
            return False
    return True


def _array(schema: SchemaNode, value: list[Any]) -> bool:
    if schema.min_items is not None and len(value) < schema.min_items:
        return False
    if schema.max_items is not None and len(value) > schema.max_items:
        return False
    if schema.unique_items and len({sort_key(item) for item in value}) < len(value):
        return False
    if isinstance(schema.items, SchemaNode):
        return all(conforms(schema.items, item) for item in value)
    if schema.items is None:
        return True
    if not all(conforms(inner, item) for inner, item in zip(schema.items, value, strict=False)):
        return False
    further = schema.additional_items
    rest = value[len(schema.items) :]
    if isinstance(further, SchemaNode):
        return all(conforms(further, item) for item in rest)
    return further or not rest


def _combined(schema: SchemaNode, value: Value) -> bool:
    if not all(conforms(inner, value) for inner in schema.all_of):
        return False
    if schema.any_of and not any(conforms(inner, value) for inner in schema.any_of):
        return False
    if schema.one_of and sum(conforms(inner, value) for inner in schema.one_of) != 1:
        return False
    return schema.negated is None or not conforms(schema.negated, value)
