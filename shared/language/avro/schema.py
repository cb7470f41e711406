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


class AvroSchemaError(ValueError):
    """A schema that is none; gives the place and the expectation."""


@dataclass(frozen=True, slots=True)
class PrimitiveType:
    """A type without parts. `ms`, `us` and `ns` are instants, in units since 1970."""

    kind: Literal["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
    logical: Logical = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class FixedType:
    """A type of so many bytes."""

    name: str
    size_bytes: int
    logical: Logical = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class EnumType:
    """One of some words."""

    name: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ArrayType:
    """Items of one type."""

    items: "Type"


@dataclass(frozen=True, slots=True)
class MapType:
    """Texts to values of one type."""

    values: "Type"


@dataclass(frozen=True, slots=True)
class UnionType:
    """One of several types."""

    branches: tuple["Type", ...]


@dataclass(frozen=True, slots=True)
class NamedType:
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
class RecordType:
    """Fields, in their order."""

    name: str
    fields: tuple[RecordField, ...]


Type: TypeAlias = PrimitiveType | FixedType | EnumType | ArrayType | MapType | UnionType | NamedType | RecordType


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A type, and the named types in it."""

    root: Type
    named: Mapping[str, RecordType | FixedType | EnumType]

    def resolved(self, kind: Type) -> Type:
        """The type that a name stands for."""
        return self.named[kind.name] if isinstance(kind, NamedType) else kind

    @property
    def name(self) -> str:
        """The full name of the root; a primitive's kind, "" for others."""
        return getattr(self.root, "name", getattr(self.root, "kind", ""))


_PRIMITIVES: Final = {
    kind: PrimitiveType(kind) for kind in ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
}
_INSTANTS: Final[dict[str, Logical]] = {
    "timestamp-millis": "ms",
    "timestamp-micros": "us",
    "timestamp-nanos": "ns",
    "local-timestamp-millis": "ms",
    "local-timestamp-micros": "us",
    "local-timestamp-nanos": "ns",
}
_OPENING: Final = ("{", "[", '"')
"""What the JSON text of a schema begins with, and no name does."""
_COMPLEX: Final = ("record", "error", "enum", "array", "map", "fixed")


@dataclass(slots=True)
class _TypesRead:
    """Types met so far."""

    named: dict[str, RecordType | FixedType | EnumType] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    count: int = 0

    def read(self, tree: Any, at: str, space: str, depth: int) -> Type:
        self.count += 1
        if depth > DEPTH_MAX or self.count > TYPES_MAX:
            raise AvroSchemaError(f"{at}: a schema has at most {DEPTH_MAX} levels and {TYPES_MAX} types")
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
        raise AvroSchemaError(
            f"{at}: expected a type's name, an object with type, or a list of types, found {tree!r:.60}"
        )

    def _known(self, name: str, at: str, space: str) -> Type:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        for full in (name,) if "." in name or not space else (f"{space}.{name}", name):
            if full in self.begun:
                return NamedType(full)
        if name.lstrip()[:1] in _OPENING:
            raise AvroSchemaError(
                f"{at}: expected an object, a list or a type's name, found the text of a schema: {name!r:.80}"
            )
        raise AvroSchemaError(f"{at}: unknown type {name!r:.80}")

    def _union(self, tree: list[Any], at: str, space: str, depth: int) -> UnionType:
        branches = tuple(self.read(item, f"{at}[{i}]", space, depth + 1) for i, item in enumerate(tree))
        told = [getattr(b, "name", getattr(b, "kind", type(b).__name__)) for b in branches]
        if not branches or len(set(told)) < len(told) or any(isinstance(b, UnionType) for b in branches):
            raise AvroSchemaError(f"{at}: a union has different types, and no union among them")
        return UnionType(branches)

    def _complex(self, kind: str, tree: dict[str, Any], at: str, space: str, depth: int) -> Type:
        if kind == "array":
            return ArrayType(self.read(_part(tree, "items", at), f"{at}.items", space, depth + 1))
        if kind == "map":
            return MapType(self.read(_part(tree, "values", at), f"{at}.values", space, depth + 1))
        full, inner = _names(tree, at, space)
        if full in self.begun or full in _PRIMITIVES:
            raise AvroSchemaError(f"{at}: the name {full} is taken")
        self.begun.add(full)
        found = self._named(kind, full, tree, at, inner, depth)
        self.named[full] = found
        return found

    def _named(
        self, kind: str, full: str, tree: dict[str, Any], at: str, space: str, depth: int
    ) -> RecordType | FixedType | EnumType:
        if kind == "fixed":
            size = _part(tree, "size", at)
            if type(size) is not int or not 0 <= size < 2**31:
                raise AvroSchemaError(f"{at}.size: expected a number of bytes, found {size!r:.60}")
            made: FixedType = _logical(FixedType(full, size), tree, at)
            return made
        if kind == "enum":
            symbols = _part(tree, "symbols", at)
            if type(symbols) is not list or not all(type(s) is str and _NAME.fullmatch(s) for s in symbols):
                raise AvroSchemaError(f"{at}.symbols: expected a list of names")
            if len(set(symbols)) < len(symbols):
                raise AvroSchemaError(f"{at}.symbols: one stands there twice")
            return EnumType(full, tuple(symbols))
        fields = _part(tree, "fields", at)
        if type(fields) is not list:
            raise AvroSchemaError(f"{at}.fields: expected a list")
        read = tuple(self._field(item, f"{at}.fields[{i}]", space, depth) for i, item in enumerate(fields))
        if len({each.name for each in read}) < len(read):
            raise AvroSchemaError(f"{at}.fields: one stands there twice")
        return RecordType(full, read)

    def _field(self, tree: Any, at: str, space: str, depth: int) -> RecordField:
        if type(tree) is not dict or type(tree.get("name")) is not str or not _NAME.fullmatch(tree["name"]):
            raise AvroSchemaError(f"{at}: expected an object with a name of letters, digits and _")
        kind = self.read(_part(tree, "type", at), f"{at}.type", space, depth + 1)
        return RecordField(tree["name"], kind, "default" in tree, tree.get("default"))


def parse_schema(tree: Any, *, known: tuple[AvroSchema, ...] = ()) -> AvroSchema:
    """A schema from its JSON, already loaded. known: schemas that it refers to by name. AvroSchemaError."""
    reading = _TypesRead()
    for other in known:
        reading.named |= other.named
    reading.begun |= reading.named.keys()
    root = reading.read(tree, "schema", "", 0)
    return AvroSchema(root, reading.named)


def parse_text(text: str, others: Iterable[str] = ()) -> AvroSchema:
    """A schema from its text; `others`: those that it refers to, each behind those that it refers to itself. AvroSchemaError."""
    known: tuple[AvroSchema, ...] = ()
    for other in dict.fromkeys(others):  # one may be there under the names of several of its types
        known += (parse_schema(_tree(other), known=known),)
    return parse_schema(_tree(text), known=known)


def _tree(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AvroSchemaError(f"a schema of Avro is JSON: {error}: {text[:60]!r}") from error


def parse_alone(tree: Any, names: Iterable[str]) -> AvroSchema:
    """A schema whose types of these names are not known yet: they are records without fields here. AvroSchemaError."""
    named = {name: RecordType(name, ()) for name in names}
    return parse_schema(tree, known=(AvroSchema(PrimitiveType("null"), named),))


def _part(tree: dict[str, Any], name: str, at: str) -> Any:
    if name not in tree:
        raise AvroSchemaError(f"{at}: {tree.get('type', 'a field')} needs {name}")
    return tree[name]


def _names(tree: dict[str, Any], at: str, space: str) -> tuple[str, str]:
    """The full name, and the namespace of what is inside."""
    name, own = _part(tree, "name", at), tree.get("namespace", space)
    if type(name) is not str or type(own) is not str:
        raise AvroSchemaError(f"{at}: name and namespace are texts")
    full = name if "." in name or not own else f"{own}.{name}"
    if not _FULL_NAME.fullmatch(full):
        raise AvroSchemaError(f"{at}.name: expected letters, digits and _, found {full!r:.80}")
    return full, full.rpartition(".")[0]


def _logical(kind: Any, tree: dict[str, Any], at: str) -> Any:
    """The type with its logical type, if that is known and fits."""
    word, base = tree.get("logicalType"), getattr(kind, "kind", "fixed")
    given: Logical = ""
    if word == "decimal" and base in ("bytes", "fixed"):
        precision, scale = tree.get("precision"), tree.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
            raise AvroSchemaError(f"{at}: a decimal has a precision, and a scale that is not above it")
        if not 1 <= precision <= _DIGITS_MAX * 2:
            raise AvroSchemaError(f"{at}.precision: expected 1 to {_DIGITS_MAX * 2}, found {precision}")
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
    return FixedType(kind.name, kind.size_bytes, given) if base == "fixed" else PrimitiveType(kind.kind, given)
