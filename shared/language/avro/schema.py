"""Avro's schemas: from their JSON to types, with names resolved and logical types that are understood.

A logical type that is unknown, or does not fit the type below it, is ignored, as the specification wants.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

DEPTH_MAX: Final = 64
"""Of types inside of types in a schema, and of values inside of values in a record."""
TYPES_MAX: Final = 10_000
"""Of types in one schema."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FULL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_DIGITS_MAX: Final = 38
"""Of a decimal in a schema; the language's have 34, which each value is checked for."""

Logical = Literal["", "decimal", "ms", "us", "ns", "date", "uuid"]


class AvroError(ValueError):
    """Bytes that are no record of the schema, or a document that does not fit it; gives the place and the expectation."""


class SchemaError(ValueError):
    """A schema that is none; gives the place and the expectation."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts. `ms`, `us` and `ns` are instants, in units since 1970."""

    kind: Literal["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
    logical: Logical = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Fixed:
    """So many bytes."""

    name: str
    size_bytes: int
    logical: Logical = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Enumeration:
    """One of some words."""

    name: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """Items of one type."""

    items: "Type"


@dataclass(frozen=True, slots=True)
class Map:
    """Texts to values of one type."""

    values: "Type"


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types."""

    branches: tuple["Type", ...]


@dataclass(frozen=True, slots=True)
class Named:
    """A type by its full name: a record that may be on the way already."""

    name: str


@dataclass(frozen=True, slots=True)
class RecordField:
    """A field; `default` is the schema's JSON."""

    name: str
    type: "Type"
    has_default: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True)
class Record:
    """Fields, in their order."""

    name: str
    fields: tuple[RecordField, ...]


Type: TypeAlias = Primitive | Fixed | Enumeration | Array | Map | Union | Named | Record


@dataclass(frozen=True, slots=True)
class Schema:
    """A type, and the named types in it."""

    root: Type
    named: Mapping[str, Record | Fixed | Enumeration]

    def resolved(self, kind: Type) -> Type:
        """The type that a name stands for."""
        return self.named[kind.name] if isinstance(kind, Named) else kind

    @property
    def name(self) -> str:
        """The full name of the root; a primitive's kind, "" for others."""
        return getattr(self.root, "name", getattr(self.root, "kind", ""))


_PRIMITIVES: Final = {
    kind: Primitive(kind) for kind in ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
}
_INSTANTS: Final[dict[str, Logical]] = {
    "timestamp-millis": "ms",
    "timestamp-micros": "us",
    "timestamp-nanos": "ns",
    "local-timestamp-millis": "ms",
    "local-timestamp-micros": "us",
    "local-timestamp-nanos": "ns",
}
_COMPLEX: Final = ("record", "error", "enum", "array", "map", "fixed")


@dataclass(slots=True)
class _Reading:
    """Types met so far."""

    named: dict[str, Record | Fixed | Enumeration] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    count: int = 0

    def read(self, tree: Any, at: str, space: str, depth: int) -> Type:
        self.count += 1
        if depth > DEPTH_MAX or self.count > TYPES_MAX:
            raise SchemaError(f"{at}: a schema has at most {DEPTH_MAX} levels and {TYPES_MAX} types")
        match tree:
            case str():
                return self._known(tree, at, space)
            case list():
                return self._union(tree, at, space, depth)
            case {"type": str() as kind} if kind in _PRIMITIVES:
                made: Type = _logical(_PRIMITIVES[kind], tree, at)
                return made
            case {"type": str() as kind} if kind in _COMPLEX:
                return self._complex(kind, tree, at, space, depth)
            case {"type": (dict() | list() | str()) as inner}:
                return self.read(inner, f"{at}.type", space, depth + 1)
        raise SchemaError(f"{at}: expected a type's name, an object with type, or a list of types, found {tree!r:.60}")

    def _known(self, name: str, at: str, space: str) -> Type:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        for full in (name,) if "." in name or not space else (f"{space}.{name}", name):
            if full in self.begun:
                return Named(full)
        raise SchemaError(f"{at}: unknown type {name!r:.80}")

    def _union(self, tree: list[Any], at: str, space: str, depth: int) -> Union:
        branches = tuple(self.read(item, f"{at}[{i}]", space, depth + 1) for i, item in enumerate(tree))
        told = [getattr(b, "name", getattr(b, "kind", type(b).__name__)) for b in branches]
        if not branches or len(set(told)) < len(told) or any(isinstance(b, Union) for b in branches):
            raise SchemaError(f"{at}: a union has different types, and no union among them")
        return Union(branches)

    def _complex(self, kind: str, tree: dict[str, Any], at: str, space: str, depth: int) -> Type:
        if kind == "array":
            return Array(self.read(_part(tree, "items", at), f"{at}.items", space, depth + 1))
        if kind == "map":
            return Map(self.read(_part(tree, "values", at), f"{at}.values", space, depth + 1))
        full, inner = _names(tree, at, space)
        if full in self.begun or full in _PRIMITIVES:
            raise SchemaError(f"{at}: the name {full} is taken")
        self.begun.add(full)
        found = self._named(kind, full, tree, at, inner, depth)
        self.named[full] = found
        return found

    def _named(
        self, kind: str, full: str, tree: dict[str, Any], at: str, space: str, depth: int
    ) -> Record | Fixed | Enumeration:
        if kind == "fixed":
            size = _part(tree, "size", at)
            if type(size) is not int or not 0 <= size < 2**31:
                raise SchemaError(f"{at}.size: expected a number of bytes, found {size!r:.60}")
            made: Fixed = _logical(Fixed(full, size), tree, at)
            return made
        if kind == "enum":
            symbols = _part(tree, "symbols", at)
            if type(symbols) is not list or not all(type(s) is str and _NAME.fullmatch(s) for s in symbols):
                raise SchemaError(f"{at}.symbols: expected a list of names")
            if len(set(symbols)) < len(symbols):
                raise SchemaError(f"{at}.symbols: one stands there twice")
            return Enumeration(full, tuple(symbols))
        fields = _part(tree, "fields", at)
        if type(fields) is not list:
            raise SchemaError(f"{at}.fields: expected a list")
        read = tuple(self._field(item, f"{at}.fields[{i}]", space, depth) for i, item in enumerate(fields))
        if len({each.name for each in read}) < len(read):
            raise SchemaError(f"{at}.fields: one stands there twice")
        return Record(full, read)

    def _field(self, tree: Any, at: str, space: str, depth: int) -> RecordField:
        if type(tree) is not dict or type(tree.get("name")) is not str or not _NAME.fullmatch(tree["name"]):
            raise SchemaError(f"{at}: expected an object with a name of letters, digits and _")
        kind = self.read(_part(tree, "type", at), f"{at}.type", space, depth + 1)
        return RecordField(tree["name"], kind, "default" in tree, tree.get("default"))


def parse_schema(tree: Any, *, known: tuple[Schema, ...] = ()) -> Schema:
    """A schema from its JSON, already loaded. known: schemas that it refers to by name. SchemaError."""
    reading = _Reading()
    for other in known:
        reading.named |= other.named
    reading.begun |= reading.named.keys()
    root = reading.read(tree, "schema", "", 0)
    return Schema(root, reading.named)


def parse_text(text: str, others: Iterable[str] = ()) -> Schema:
    """A schema from its text; `others`: those that it refers to, each behind those that it refers to itself. SchemaError."""
    known: tuple[Schema, ...] = ()
    for other in dict.fromkeys(others):  # one may be there under the names of several of its types
        known += (parse_schema(_tree(other), known=known),)
    return parse_schema(_tree(text), known=known)


def _tree(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"a schema of Avro is JSON: {error}: {text[:60]!r}") from error


def parse_alone(tree: Any, names: Iterable[str]) -> Schema:
    """A schema whose types of these names are not known yet: they are records without fields here. SchemaError."""
    named = {name: Record(name, ()) for name in names}
    return parse_schema(tree, known=(Schema(Primitive("null"), named),))


def _part(tree: dict[str, Any], name: str, at: str) -> Any:
    if name not in tree:
        raise SchemaError(f"{at}: {tree.get('type', 'a field')} needs {name}")
    return tree[name]


def _names(tree: dict[str, Any], at: str, space: str) -> tuple[str, str]:
    """The full name, and the namespace of what is inside."""
    name, own = _part(tree, "name", at), tree.get("namespace", space)
    if type(name) is not str or type(own) is not str:
        raise SchemaError(f"{at}: name and namespace are texts")
    full = name if "." in name or not own else f"{own}.{name}"
    if not _FULL_NAME.fullmatch(full):
        raise SchemaError(f"{at}.name: expected letters, digits and _, found {full!r:.80}")
    return full, full.rpartition(".")[0]


def _logical(kind: Any, tree: dict[str, Any], at: str) -> Any:
    """The type with its logical type, if that is known and fits."""
    word, base = tree.get("logicalType"), getattr(kind, "kind", "fixed")
    given: Logical = ""
    if word == "decimal" and base in ("bytes", "fixed"):
        precision, scale = tree.get("precision"), tree.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
            raise SchemaError(f"{at}: a decimal has a precision, and a scale that is not above it")
        if not 1 <= precision <= _DIGITS_MAX * 2:
            raise SchemaError(f"{at}.precision: expected 1 to {_DIGITS_MAX * 2}, found {precision}")
        made = (kind.name, kind.size_bytes) if base == "fixed" else (kind.kind,)
        return type(kind)(*made, "decimal", precision, scale)
    if base == "long" and type(word) is str:
        given = _INSTANTS.get(word, "")
    elif base == "int" and word == "date":
        given = "date"
    elif word == "uuid" and (base == "string" or (base == "fixed" and kind.size_bytes == 16)):  # noqa: PLR2004
        given = "uuid"
    if not given:
        return kind
    return Fixed(kind.name, kind.size_bytes, given) if base == "fixed" else Primitive(kind.kind, given)
