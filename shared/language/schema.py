"""Declared fields of a source: `$source.schema`.

A declared field is a typed Arrow column; the other fields travel in one untyped part. `string` must be there and be a string;
`string?` may also be null or missing. A document that breaks this goes to the dead letters.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal, get_args

from tidemark.shared.language.problems import Problems, join
from tidemark.shared.language.values.types import type_name
from tidemark.shared.model.values import INT64_MAX, INT64_MIN, MISSING, Document, Value, long

FieldTypeName = Literal["string", "int", "long", "double", "decimal", "bool", "date"]
FIELD_TYPES: Final[tuple[FieldTypeName, ...]] = get_args(FieldTypeName)


@dataclass(frozen=True, slots=True)
class Field:
    """A declared field: its name, its type, and whether it may be null or missing."""

    name: str
    type: FieldTypeName
    optional: bool

    @property
    def declared(self) -> str:
        """As it is written in the document: `string?`."""
        return f"{self.type}?" if self.optional else self.type


@dataclass(frozen=True, slots=True)
class Schema:
    """The declared fields, in the order of the document."""

    fields: tuple[Field, ...] = ()

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def get(self, name: str) -> Field | None:
        """The field of this name, if it is declared."""
        return next((f for f in self.fields if f.name == name), None)

    @property
    def names(self) -> tuple[str, ...]:
        """The declared names, in order."""
        return tuple(f.name for f in self.fields)


NO_SCHEMA: Final = Schema()


def shared_fields(schemas: Sequence[Schema]) -> Schema:
    """The fields that all of these declare with one type, for rows that flow together; optional where one says so."""
    found = []
    for known in schemas[0]:
        same = [field for field in (other.get(known.name) for other in schemas) if field is not None]
        if len(same) == len(schemas) and all(field.type == known.type for field in same):
            found.append(Field(known.name, known.type, any(field.optional for field in same)))
    return Schema(tuple(found))


@dataclass(frozen=True, slots=True)
class SchemaMismatch:
    """Why a document does not fit its schema."""

    reason: str
    path: str


def fit(document: Document, schema: Schema) -> Document | SchemaMismatch:
    """The document with its declared fields in their declared types, or why that cannot be.

    What loses nothing is converted: an int to a long, int and long to a double or decimal (a double holds whole numbers up to 2⁵³
    exactly; others do not fit), a whole long within 32 bits to an int, a double to the shortest decimal that stands for it.
    Nothing is parsed out of strings.
    """
    changed: Document | None = None
    for field in schema.fields:
        value = document.get(field.name, MISSING)
        if value is MISSING or value is None:
            if not field.optional:
                return misfit(field, "null" if value is None else "missing")
            continue
        fitted = _fit_value(value, field.type)
        if fitted is MISSING:
            return misfit(field, type_name(value))
        if fitted is not value:
            changed = changed if changed is not None else dict(document)
            changed[field.name] = fitted
    return document if changed is None else changed


def misfit(field: Field, found: str) -> SchemaMismatch:
    """The message for a field whose value is of a type that does not fit, or is `null` or `missing`."""
    is_ = " and is" if found in ("null", "missing") else ", found"
    return SchemaMismatch(f"{field.name} is declared as {field.declared}{is_} {found}", field.name)


def _fit_value(value: Value, declared: FieldTypeName) -> Value:
    """The value in the declared type, MISSING if it does not fit."""
    found = type_name(value)
    if found == declared:
        return value
    return _convert(value, found, declared)


def _convert(value: Any, found: str, declared: FieldTypeName) -> Value:
    if declared == "long" and found == "int":
        return long(value)
    if declared == "int" and found == "long" and -(2**31) <= value < 2**31:
        return int(value)
    if (
        declared == "double"
        and found in ("int", "long")
        and INT64_MIN <= value <= INT64_MAX
        and int(float(value)) == value
    ):
        return float(value)
    if declared == "decimal" and found in ("int", "long"):
        return Decimal(int(value))
    if declared == "decimal" and found == "double" and math.isfinite(value):
        return Decimal(repr(value))
    return MISSING


def parse_schema(tree: Any, path: str, problems: Problems) -> Schema:
    """`{field: type, …}`, a trailing `?` for a field that may be null or missing."""
    if type(tree) is not dict:
        problems.add(path, f"expected an object of field: type, found {tree!r}")
        return NO_SCHEMA
    fields = []
    for name, declared in tree.items():
        place = join(path, str(name))
        text = declared if type(declared) is str else ""
        kind = text.removesuffix("?")
        if kind not in FIELD_TYPES:
            problems.add(
                place,
                f"unknown type {declared!r}, a trailing ? allows null and missing",
                accepted=FIELD_TYPES,
                found=kind,
            )
        elif not name or "." in name or name.startswith(("$", "__")):
            problems.add(place, "a declared field is a top-level name, without dots and not starting with $ or __")
        else:
            fields.append(Field(name, kind, text.endswith("?")))
    return Schema(tuple(fields))
