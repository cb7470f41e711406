"""Documents to messages of a schema (PB2): each value is exactly one of its field's type, or the document is refused with the place."""

from collections.abc import Callable
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tidemark.shared.language.problems import join
from tidemark.shared.language.protobuf import ProtobufError
from tidemark.shared.language.protobuf.messages import (
    DECIMAL_NAME,
    DEPTH_MAX,
    TIMESTAMP_NAME,
    WRAPPERS,
    Messages,
    extensions_of,
    indexes_before,
    lacking_in,
    message_class,
)
from tidemark.shared.language.values.fitting import double_of, whole_of
from tidemark.shared.language.values.types import type_name
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, MISSING, Binary, Date, Long, Value

_UINT32_MAX, _UINT64_MAX = (1 << 32) - 1, (1 << 64) - 1
_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (INT32_MIN, INT32_MAX),
    FieldDescriptor.CPPTYPE_UINT32: (0, _UINT32_MAX),
    FieldDescriptor.CPPTYPE_INT64: (INT64_MIN, INT64_MAX),
    FieldDescriptor.CPPTYPE_UINT64: (0, _UINT64_MAX),
}
_FLOAT_MAX: Final = 3.4028235677973366e38
"""From here on a double is rounded to infinity."""
_Cell: TypeAlias = Callable[[Value, str, int], Any]
"""Makes the library's form of a value, given its place and the number of levels above it."""
_Fill: TypeAlias = Callable[[Any, Value, str, int], None]
"""Puts a value into a message of the library."""


def writer_of(messages: Messages, name: str) -> Callable[[Value], bytes]:
    """From a document to a record behind its schema's number. It raises ProtobufError for a misfit. ProtobufSchemaError for a name.

    name: the message's full name; "": the file's first.
    """
    kind, indexes = messages.named(name)
    made, before, fill = message_class(kind), indexes_before(indexes), _Writers().message(kind)

    def write(value: Value) -> bytes:
        message = made()
        fill(message, value, "", 1)
        if lacking := lacking_in(message):
            raise ProtobufError(f"the document lacks what {kind.full_name} requires: {lacking}")
        return before + message.SerializeToString(deterministic=True)

    return write


def _wrong(at: str, expected: str, value: Value) -> ProtobufError:
    found = "nothing" if value is MISSING else f"a value of type {type_name(value)}"
    return ProtobufError(f"{at or 'the document'}: expected {expected}, found {found}")


class _Writers:
    """A function for each message, found by name, so that a message may be inside of itself."""

    def __init__(self) -> None:
        self._named: dict[str, _Fill] = {}

    def message(self, kind: Descriptor) -> _Fill:
        """The function of a message."""
        name = kind.full_name
        if name not in self._named:
            self._named[name] = lambda *given: self._named[name](*given)  # noqa: PLW0108 - it is not made yet
            self._named[name] = self._made(kind)
        return self._named[name]

    def _made(self, kind: Descriptor) -> _Fill:
        if kind.full_name == TIMESTAMP_NAME:
            return _timestamp
        if kind.full_name == DECIMAL_NAME:
            return _decimal
        if kind.full_name in WRAPPERS:
            cell = _cell(kind.fields_by_name["value"])

            def wrap(message: Any, value: Value, at: str, depth: int) -> None:
                message.value = cell(value, at, depth)

            return wrap
        fields = {each.name: each for each in kind.fields} | extensions_of(kind)
        parts = {name: self._field(each) for name, each in fields.items()}

        def write(message: Any, value: Value, at: str, depth: int) -> None:
            if type(value) is not dict:
                raise _wrong(at, f"an object, for {kind.full_name}", value)
            if depth > DEPTH_MAX:
                raise ProtobufError(f"{at}: deeper than {DEPTH_MAX} levels")
            for name, item in value.items():
                part = parts.get(name)
                if part is None:
                    where = join(at, name)
                    raise ProtobufError(
                        f"{where}: {kind.full_name} has no such field; project it away, or add it to the schema"
                    )
                if item is not None:
                    part(message, item, join(at, name), depth)

        return write

    def _field(self, field: FieldDescriptor) -> _Fill:
        name, kind = field.name, field.message_type
        if field.is_repeated and kind is not None and kind.GetOptions().map_entry:
            return self._map(field, kind)
        of: Callable[[Any], Any] = (lambda m: m.Extensions[field]) if field.is_extension else attrgetter(name)
        if kind is not None:
            inner = self.message(kind)
            if field.is_repeated:
                return _each(lambda values, item, at, depth: inner(values.add(), item, at, depth + 1), of)

            def fill(message: Any, value: Value, at: str, depth: int) -> None:
                below = of(message)
                below.SetInParent()
                inner(below, value, at, depth + 1)

            return fill
        cell = _cell(field)
        if field.is_repeated:
            return _each(lambda values, item, at, depth: values.append(cell(item, at, depth)), of)
        if field.is_extension:
            return lambda message, value, at, depth: message.Extensions.__setitem__(field, cell(value, at, depth))
        return lambda message, value, at, depth: setattr(message, name, cell(value, at, depth))

    def _map(self, field: FieldDescriptor, kind: Descriptor) -> _Fill:
        name, key_of, value_kind = field.name, _key_of(kind.fields_by_name["key"]), kind.fields_by_name["value"]
        inner = self.message(value_kind.message_type) if value_kind.message_type is not None else None
        cell = _cell(value_kind) if inner is None else None

        def fill(message: Any, value: Value, at: str, depth: int) -> None:
            if type(value) is not dict:
                raise _wrong(at, "an object, for a map", value)
            entries = getattr(message, name)
            for text, item in value.items():
                where = join(at, text)
                key = key_of(text, where)
                if inner is not None:
                    inner(entries[key], item, where, depth + 1)
                else:
                    assert cell is not None
                    entries[key] = cell(item, where, depth)

        return fill


def _each(put: Callable[[Any, Value, str, int], None], of: Callable[[Any], object]) -> _Fill:
    def fill(message: Any, value: Value, at: str, depth: int) -> None:
        if type(value) is not list:
            raise _wrong(at, "an array", value)
        values = of(message)
        for number, item in enumerate(value):
            put(values, item, f"{at}[{number}]", depth)

    return fill


def _timestamp(message: Any, value: Value, at: str, _depth: int) -> None:
    if type(value) is not Date:
        raise _wrong(at, "a date", value)
    message.seconds, ms = divmod(int(value), 1000)
    message.nanos = ms * 1_000_000


def _decimal(message: Any, value: Value, at: str, _depth: int) -> None:
    found = Decimal(int(value)) if type(value) in (int, Long) else value
    if type(found) is float:
        found = Decimal(repr(found))  # the shortest decimal of a double
    if type(found) is not Decimal or not found.is_finite():
        raise _wrong(at, "a finite number (decimal)", value)
    sign, digits, exponent = found.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    if exponent > 0:
        unscaled, exponent = unscaled * 10**exponent, 0
    message.value = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    message.precision, message.scale = len(str(abs(unscaled))), -exponent


def _cell(field: FieldDescriptor) -> _Cell:
    """Of a field of one plain value."""
    match field.type:
        case FieldDescriptor.TYPE_ENUM:
            return _enumeration(field)
        case FieldDescriptor.TYPE_BYTES:
            return _bytes
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return _boolean
        case FieldDescriptor.CPPTYPE_STRING:
            return _string
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return _floating(_FLOAT_MAX if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT else None)
    low, high = _RANGES[field.cpp_type]

    def number(value: Value, at: str, _depth: int) -> int:
        whole = whole_of(value)
        if whole is None or not low <= whole <= high:
            raise _wrong(at, f"a whole number from {low} to {high}", value)
        return whole

    return number


def _enumeration(field: FieldDescriptor) -> _Cell:
    kind = field.enum_type
    assert kind is not None
    numbers = {name: each.number for name, each in kind.values_by_name.items()}
    is_open = not kind.is_closed

    def write(value: Value, at: str, _depth: int) -> int:
        whole = whole_of(value)
        if type(value) is str and value in numbers:
            return numbers[value]
        if whole is not None and (whole in numbers.values() or (is_open and INT32_MIN <= whole <= INT32_MAX)):
            return whole
        raise _wrong(at, f"a name of {kind.full_name}", value)

    return write


def _key_of(field: FieldDescriptor) -> Callable[[str, str], Any]:
    """The key of a map from the name that an object has for it."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return lambda text, _at: text
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:

        def boolean(text: str, at: str) -> bool:
            if text not in ("true", "false"):
                raise ProtobufError(f"{at}: expected the key true or false")
            return text == "true"

        return boolean
    low, high = _RANGES[field.cpp_type]

    def number(text: str, at: str) -> int:
        if (
            not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= len(str(INT64_MIN)))
            or not low <= int(text) <= high
        ):
            raise ProtobufError(f"{at}: expected a key that is a whole number from {low} to {high}")
        return int(text)

    return number


def _boolean(value: Value, at: str, _depth: int) -> bool:
    if type(value) is not bool:
        raise _wrong(at, "true or false", value)
    return value


def _string(value: Value, at: str, _depth: int) -> str:
    if type(value) is not str:
        raise _wrong(at, "a string", value)
    return value


def _bytes(value: Value, at: str, _depth: int) -> bytes:
    if type(value) is not Binary:
        raise _wrong(at, "binary", value)
    return bytes(value)


def _floating(most: float | None) -> _Cell:
    def write(value: Value, at: str, _depth: int) -> float:
        found = value if type(value) is float else double_of(value)
        if found is None or (most is not None and most <= abs(found) < float("inf")):
            raise _wrong(at, "a number that a double has exactly" if most is None else "a number within a float", value)
        return found

    return write
