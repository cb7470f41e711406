"""The typed form of `$jsonSchema`, MongoDB's flavour of draft 4: frozen nodes."""

from dataclasses import dataclass
from typing import Any

from tidemark.shared.model.values import Value


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """The keywords of one schema object; None or empty for those that are not there. All must hold."""

    types: tuple[str, ...] | None = None
    """BSON aliases, from `bsonType` or `type`."""
    enum: tuple[Value, ...] | None = None
    minimum: Any = None
    maximum: Any = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    multiple_of: Any = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: Any = None
    required: tuple[str, ...] = ()
    properties: tuple[tuple[str, "SchemaNode"], ...] = ()
    pattern_properties: tuple[tuple[Any, "SchemaNode"], ...] = ()
    additional_properties: "bool | SchemaNode" = True
    min_properties: int | None = None
    max_properties: int | None = None
    dependencies: tuple[tuple[str, "tuple[str, ...] | SchemaNode"], ...] = ()
    items: "SchemaNode | tuple[SchemaNode, ...] | None" = None
    additional_items: "bool | SchemaNode" = True
    min_items: int | None = None
    max_items: int | None = None
    unique_items: bool = False
    all_of: tuple["SchemaNode", ...] = ()
    any_of: tuple["SchemaNode", ...] = ()
    one_of: tuple["SchemaNode", ...] = ()
    negated: "SchemaNode | None" = None
