"""Records of a schema to extended JSON, canonical: what the reader of JSON records takes in one pass, each value with its type."""

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias

import msgspec

from tidemark.shared.language.avro.schema import (
    DEPTH_MAX,
    ArrayType,
    AvroError,
    AvroSchema,
    EnumType,
    FixedType,
    MapType,
    NamedType,
    PrimitiveType,
    RecordType,
    Type,
    UnionType,
)
from tidemark.shared.language.values.extended_json import binary_json, double_json, long_json
from tidemark.shared.language.values.numbers import DECIMAL
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, UUID_SUBTYPE

_ITEMS_MIN: Final = 10_000
"""A record may have so many items that take no byte."""
_VARINT_BITS: Final = 63
_DAY_MS: Final = 86_400_000
"""The unit of `date`."""
_TICKS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
"""In a millisecond."""
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


class _Cursor:
    """A place in a record, and what is left of its bounds."""

    __slots__ = ("at", "data", "depth", "items")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.depth = 0
        self.items = len(data) + _ITEMS_MIN

    def long(self) -> int:
        """A number of the encoding, zigzag, at most 64 bits. IndexError at the end of the bytes."""
        data, at = self.data, self.at
        byte = data[at]
        at += 1
        if byte < 128:  # noqa: PLR2004 - the last byte has no high bit
            self.at = at
            return (byte >> 1) ^ -(byte & 1)
        found, shift = byte & 127, 7
        while byte & 128:
            byte = data[at]
            at += 1
            found |= (byte & 127) << shift
            shift += 7
            if shift > _VARINT_BITS + 7:
                raise AvroError(f"byte {self.at}: a number of more than 64 bits")
        self.at = at
        if found >> 64:
            raise AvroError(f"byte {at}: a number of more than 64 bits")
        return (found >> 1) ^ -(found & 1)

    def take(self, count: int) -> bytes:
        """Take so many bytes."""
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise AvroError(f"byte {self.at}: {count} bytes are announced, and {len(self.data) - self.at} are left")
        found = self.data[self.at : end]
        self.at = end
        return found

    def block(self) -> int:
        """How many items follow; 0 at the end."""
        count = self.long()
        if count < 0:
            count = -count
            self.long()  # the block's size, for readers that skip
        self.items -= count
        if self.items < 0:
            raise AvroError(f"byte {self.at}: more items are announced than a record of this length may have")
        return count

    def down(self) -> None:
        """Go a level deeper."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise AvroError(f"byte {self.at}: deeper than {DEPTH_MAX} levels")


_Read: TypeAlias = Callable[[_Cursor], Any]


def reader_of(schema: AvroSchema) -> Callable[[bytes], bytes]:
    """From a record's bytes to its JSON. It raises AvroError for bytes that are no record of the schema."""
    readers = _Readers(schema)
    root = readers.of(schema.root)

    def read(data: bytes) -> bytes:
        cursor = _Cursor(data)
        try:
            found = root(cursor)
        except IndexError:
            raise AvroError(f"the record ends within a value, after {len(data)} bytes") from None
        except UnicodeDecodeError as error:
            raise AvroError(f"byte {cursor.at}: a text is no UTF-8: {error.reason}") from None
        if cursor.at != len(data):
            raise AvroError(f"{len(data) - cursor.at} bytes follow the record")
        return msgspec.json.encode(found)

    return read


class _Readers:
    """A function for each type; those of records are found by name, so that a record may be inside of itself."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._named: dict[str, _Read] = {}

    def of(self, kind: Type) -> _Read:
        match kind:
            case PrimitiveType():
                return _primitive(kind)
            case FixedType():
                return _fixed(kind)
            case EnumType():
                return _enumeration(kind)
            case ArrayType():
                return _array(self.of(kind.items))
            case MapType():
                return _map(self.of(kind.values))
            case UnionType():
                return _union(tuple(self.of(branch) for branch in kind.branches))
            case NamedType():
                return self._by_name(kind.name)
            case RecordType():
                return self._record(kind)

    def _by_name(self, name: str) -> _Read:
        kind = self._schema.named[name]
        if not isinstance(kind, RecordType):
            return self.of(kind)
        if name not in self._named:
            self._record(kind)
        return self._named[name]

    def _record(self, kind: RecordType) -> _Read:
        self._named[kind.name] = lambda cursor: read(cursor)  # noqa: PLW0108 - it is not made yet
        made = [(each.name, self.of(each.type)) for each in kind.fields]

        def read(cursor: _Cursor) -> Any:
            cursor.down()
            found = {name: part(cursor) for name, part in made}
            cursor.depth -= 1
            return found

        return read


def _primitive(kind: PrimitiveType) -> _Read:
    match kind:
        case PrimitiveType("bytes", "decimal", _, scale):
            return lambda cursor: _decimal(cursor, cursor.take(cursor.long()), scale)
        case PrimitiveType("long", "ms" | "us" | "ns" as unit):
            ticks = _TICKS[unit]
            return lambda cursor: {"$date": {"$numberLong": str(cursor.long() // ticks)}}
        case PrimitiveType("int", "date"):
            return lambda cursor: {"$date": {"$numberLong": str(_int(cursor) * _DAY_MS)}}
    return _PLAIN[kind.kind]


def _int(cursor: _Cursor) -> int:
    found = cursor.long()
    if not INT32_MIN <= found <= INT32_MAX:
        raise AvroError(f"byte {cursor.at}: an int of more than 32 bits")
    return found


def _long(cursor: _Cursor) -> Any:
    found = cursor.long()
    assert INT64_MIN <= found <= INT64_MAX
    return long_json(found)


def _boolean(cursor: _Cursor) -> bool:
    byte = cursor.data[cursor.at]
    cursor.at += 1
    if byte > 1:
        raise AvroError(f"byte {cursor.at}: a boolean is 0 or 1, found {byte}")
    return byte == 1


def _decimal(cursor: _Cursor, data: bytes, scale: int) -> Any:
    unscaled = int.from_bytes(data, "big", signed=True)
    # The number is asked: to find the digits of a long one takes the square of their count.
    if abs(unscaled) >= 10**DECIMAL.prec:
        raise AvroError(f"byte {cursor.at}: a decimal of more than {DECIMAL.prec} digits")
    return {"$numberDecimal": str(Decimal(unscaled).scaleb(-scale, _EXACT))}


_EXACT: Final = DECIMAL.copy()
_EXACT.prec = 400
"""More digits than a decimal of a schema may have."""

_PLAIN: Final[dict[str, _Read]] = {
    "null": lambda _: None,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": lambda cursor: double_json(_FLOAT.unpack(cursor.take(4))[0]),
    "double": lambda cursor: double_json(_DOUBLE.unpack(cursor.take(8))[0]),
    "bytes": lambda cursor: binary_json(cursor.take(cursor.long())),
    "string": lambda cursor: cursor.take(cursor.long()).decode(),
}


def _fixed(kind: FixedType) -> _Read:
    size = kind.size_bytes
    if kind.logical == "decimal":
        scale = kind.scale
        return lambda cursor: _decimal(cursor, cursor.take(size), scale)
    subtype = UUID_SUBTYPE if kind.logical == "uuid" else 0
    return lambda cursor: binary_json(cursor.take(size), subtype)


def _enumeration(kind: EnumType) -> _Read:
    symbols = kind.symbols

    def read(cursor: _Cursor) -> str:
        index = cursor.long()
        if not 0 <= index < len(symbols):
            raise AvroError(f"byte {cursor.at}: {kind.name} has {len(symbols)} symbols, found number {index}")
        return symbols[index]

    return read


def _union(branches: tuple[_Read, ...]) -> _Read:
    def read(cursor: _Cursor) -> Any:
        index = cursor.long()
        if not 0 <= index < len(branches):
            raise AvroError(f"byte {cursor.at}: a union has {len(branches)} types, found number {index}")
        return branches[index](cursor)

    return read


def _array(item: _Read) -> _Read:
    def read(cursor: _Cursor) -> Any:
        cursor.down()
        found: list[Any] = []
        while count := cursor.block():
            found.extend(item(cursor) for _ in range(count))
        cursor.depth -= 1
        return found

    return read


def _map(value: _Read) -> _Read:
    def read(cursor: _Cursor) -> Any:
        cursor.down()
        found: dict[str, Any] = {}
        while count := cursor.block():
            for _ in range(count):
                key = cursor.take(cursor.long()).decode()
                if key.startswith("$") or key in found:
                    why = "would be taken for a type" if key.startswith("$") else "stands there twice"
                    raise AvroError(f"byte {cursor.at}: a map's key {key!r:.60} {why}")
                found[key] = value(cursor)
        cursor.depth -= 1
        return found

    return read
