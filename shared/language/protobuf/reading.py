"""Messages to extended JSON, canonical: what the reader of JSON records takes in one pass, each value with its type."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tidemark.shared.language.protobuf import ProtobufError
from tidemark.shared.language.protobuf.messages import (
    DECIMAL_NAME,
    DEPTH_MAX,
    TIMESTAMP_NAME,
    WRAPPERS,
    Messages,
    extensions_of,
    indexes_in,
    lacking_in,
    message_class,
)
from tidemark.shared.language.values.extended_json import binary_json, double_json, long_json
from tidemark.shared.language.values.numbers import DECIMAL
from tidemark.shared.model.values import INT64_MAX

Cell: TypeAlias = Callable[[Any, int], Any]
"""Extended JSON of a value that the library gives, and how many levels are above it."""


def reader_of(messages: Messages) -> Callable[[bytes], bytes]:
    """From a record behind its schema's number to its JSON. It raises ProtobufError for bytes that are no record of the schema."""
    readers = Readers()
    roots: dict[tuple[int, ...], tuple[type[Message], Cell]] = {}

    def read(data: bytes) -> bytes:
        indexes, begin = indexes_in(data, 0)
        place = tuple(indexes)
        if place not in roots:
            kind = messages.at(indexes)
            roots[place] = message_class(kind), readers.message(kind)
        made, cell = roots[place]
        try:
            message = made.FromString(data[begin:])
        except DecodeError as error:
            raise ProtobufError(f"no message {made.DESCRIPTOR.full_name}: {error}") from error
        if lacking := lacking_in(message):
            raise ProtobufError(f"message {made.DESCRIPTOR.full_name} lacks what is required: {lacking}")
        try:
            found = cell(message, 1)
        except UnicodeDecodeError as error:  # of proto2 the library gives a map, and raises at such a value of it
            raise _no_text(error.object) from error
        return msgspec.json.encode(found)

    return read


class Readers:
    """A function for each message, found by name, so that a message may be inside of itself."""

    def __init__(self) -> None:
        self._named: dict[str, Cell] = {}

    def message(self, kind: Descriptor) -> Cell:
        """The function of a message."""
        name = kind.full_name
        if name not in self._named:
            self._named[name] = lambda value, depth: self._named[name](value, depth)  # noqa: PLW0108 - it is not made yet
            self._named[name] = self._made(kind)
        return self._named[name]

    def _made(self, kind: Descriptor) -> Cell:
        if kind.full_name == TIMESTAMP_NAME:
            return lambda value, _: {"$date": {"$numberLong": str(value.seconds * 1000 + value.nanos // 1_000_000)}}
        if kind.full_name == DECIMAL_NAME:
            return lambda value, _: _decimal(value)
        if kind.full_name in WRAPPERS:
            inner = self.cell(kind.fields_by_name["value"])
            return lambda value, depth: inner(value.value, depth)
        parts = [(each.name, each.has_presence, self._field(each)) for each in kind.fields]
        extensions = [(name, each, self._field(each)) for name, each in extensions_of(kind).items()]

        def read(value: Any, depth: int) -> Any:
            if depth > DEPTH_MAX:
                raise ProtobufError(f"deeper than {DEPTH_MAX} levels")
            if unknown := UnknownFieldSet(value):
                raise ProtobufError(
                    f"message {kind.full_name} has field {unknown[0].field_number}, and its schema has not"
                )
            found = {
                name: part(getattr(value, name), depth)
                for name, optional, part in parts
                if not optional or value.HasField(name)
            }
            for name, each, part in extensions:
                if len(value.Extensions[each]) if each.is_repeated else value.HasExtension(each):
                    found[name] = part(value.Extensions[each], depth)
            return found

        return read

    def _field(self, field: FieldDescriptor) -> Cell:
        if not field.is_repeated:
            return self.cell(field)
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            return self._map(field, self.cell(kind.fields_by_name["value"]))
        item = self.cell(field)
        return lambda values, depth: [item(each, depth + 1) for each in values]

    def _map(self, field: FieldDescriptor, item: Cell) -> Cell:
        def read(values: Any, depth: int) -> Any:
            found = {}
            for key in values:
                name = key if isinstance(key, str) else str(key).lower() if isinstance(key, bool) else str(key)
                if name.startswith("$"):
                    raise ProtobufError(f"{field.full_name}: a map's key {name!r:.60} would be taken for a type")
                found[name] = item(values[key], depth + 1)
            return dict(sorted(found.items()))  # the library keeps no order, and replays give the same

        return read

    def cell(self, field: FieldDescriptor) -> Cell:
        """The function of a value of a field, or of one of its items."""
        match field.type:
            case FieldDescriptor.TYPE_MESSAGE | FieldDescriptor.TYPE_GROUP:
                assert field.message_type is not None
                inner = self.message(field.message_type)
                return lambda value, depth: inner(value, depth + 1)
            case FieldDescriptor.TYPE_ENUM:
                assert field.enum_type is not None
                names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
                return lambda value, _: names.get(value, value)  # an open enumeration may have others
        return _PLAIN[field.cpp_type] if field.type != FieldDescriptor.TYPE_BYTES else _binary


def _long(value: int, _depth: int) -> Any:
    if value > INT64_MAX:
        raise ProtobufError(f"{value} is more than a long holds")
    return long_json(value)


def _double(value: float, _depth: int) -> Any:
    return double_json(value)


def _same(value: Any, _depth: int) -> Any:
    return value


def _text(value: Any, _depth: int) -> Any:
    if type(value) is bytes:  # of proto2 the library gives what it cannot decode
        raise _no_text(value)
    return value


def _no_text(value: bytes) -> ProtobufError:
    return ProtobufError(f"a string that is no UTF-8: {value[:_SHOWN_BYTES].hex(' ')}")


def _binary(value: bytes, _depth: int) -> Any:
    return binary_json(value)


def _decimal(value: Any) -> Any:
    """Confluent's decimal: the unscaled number, big-endian, and the digits behind the point."""
    unscaled = int.from_bytes(value.value, "big", signed=True)
    if abs(unscaled) >= 10**DECIMAL.prec or abs(value.scale) > _SCALE_MAX:
        raise ProtobufError(f"a decimal of more than {DECIMAL.prec} digits")
    return {"$numberDecimal": str(Decimal(unscaled).scaleb(-value.scale, DECIMAL))}


_SHOWN_BYTES: Final = 20
"""Of a string in a message."""
_SCALE_MAX: Final = 6_000
"""Of a decimal of 128 bits, about."""
_PLAIN: Final[dict[int, Cell]] = {
    FieldDescriptor.CPPTYPE_INT32: _same,
    FieldDescriptor.CPPTYPE_UINT32: _long,
    FieldDescriptor.CPPTYPE_INT64: _long,
    FieldDescriptor.CPPTYPE_UINT64: _long,
    FieldDescriptor.CPPTYPE_DOUBLE: _double,
    FieldDescriptor.CPPTYPE_FLOAT: _double,
    FieldDescriptor.CPPTYPE_BOOL: _same,
    FieldDescriptor.CPPTYPE_STRING: _text,
}
