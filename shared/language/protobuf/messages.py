"""The messages of a compiled schema, and the places that records name them by (Confluent's message indexes)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import Message

from tidemark.shared.language.protobuf import ProtobufError, ProtobufSchemaError

TIMESTAMP_NAME: Final = "google.protobuf.Timestamp"
DECIMAL_NAME: Final = "confluent.type.Decimal"
WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
"""A value, or none."""


DEPTH_MAX: Final = 64
"""Levels of a message; a record's JSON has one more for each."""
_VARINT_BYTES_MAX: Final = 5
"""Of an index: none has more than 32 bits."""
_INDEXES_MAX: Final = 32
"""Levels of messages inside of messages in a schema: as many as the compiler allows."""


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of one file, by their place in it."""

    file: FileDescriptor
    top: tuple[Descriptor, ...]
    """In the order of the file."""

    def at(self, indexes: Sequence[int]) -> Descriptor:
        """The message at a place: its number in the file, then those of messages inside of it. ProtobufError."""
        there: Sequence[Descriptor] = self.top
        found: Descriptor | None = None
        for index in indexes:
            if not 0 <= index < len(there):
                raise ProtobufError(f"message {list(indexes)} is named, and the schema has {len(there)} there")
            found = there[index]
            there = found.nested_types
        if found is None:
            raise ProtobufError("no message is named")
        return found

    def named(self, name: str) -> tuple[Descriptor, list[int]]:
        """A message by its full name, and its place; the file's first for "". ProtobufSchemaError."""
        there = [(indexes, found) for indexes, found in _all(self.top, []) if not found.GetOptions().map_entry]
        for indexes, found in there:
            if name in ("", found.full_name):
                return found, indexes
        names = ", ".join(found.full_name for _, found in there) or "none"
        raise ProtobufSchemaError(f"the schema has no message {name}; it has {names}")


def _all(there: Sequence[Descriptor], at: list[int]) -> list[tuple[list[int], Descriptor]]:
    found = []
    for index, each in enumerate(there):
        found.append(([*at, index], each))
        found += _all(each.nested_types, [*at, index])
    return found


def messages_of(compiled: bytes) -> Messages:
    """Of a set of compiled files (a `FileDescriptorSet`, each behind those that it imports), the last one's. ProtobufSchemaError."""
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled).file
        for file in files:
            pool.Add(file)
        made = pool.FindFileByName(files[-1].name)
        return Messages(made, tuple(made.message_types_by_name[each.name] for each in files[-1].message_type))
    except Exception as error:
        # The library raises TypeError, KeyError and its own for files that do not fit together.
        raise ProtobufSchemaError(f"no compiled schema: {error}") from error


def message_class(kind: Descriptor) -> type[Message]:
    """The class of a message."""
    return message_factory.GetMessageClass(kind)


def extensions_of(kind: Descriptor) -> dict[str, FieldDescriptor]:
    """The fields that a file, or what it imports, puts into a message of proto2, by the names that Protobuf's own JSON has for them."""
    found = kind.file.pool.FindAllExtensions(kind) if kind.is_extendable else ()
    return {f"[{each.full_name}]": each for each in sorted(found, key=lambda field: field.number)}


def lacking_in(message: Message) -> str:
    """The fields that a schema of proto2 requires and a message lacks; "" if it is whole."""
    return "" if message.IsInitialized() else ", ".join(_lacking(message, ""))


def _lacking(message: Message, at: str) -> list[str]:
    """As the library's own `FindInitializationErrors`, which ends the process where a message has a map of numbers or texts."""
    kind = message.DESCRIPTOR
    found = [f"{at}{each.name}" for each in kind.fields if each.is_required and not message.HasField(each.name)]
    for field, value in message.ListFields():
        inner, name = field.message_type, f"{at}({field.full_name})" if field.is_extension else f"{at}{field.name}"
        if inner is None:
            continue
        if not field.is_repeated:
            found += _lacking(value, f"{name}.")
        elif not inner.GetOptions().map_entry:
            for place, each in enumerate(value):
                found += _lacking(each, f"{name}[{place}].")
        elif inner.fields_by_name["value"].message_type is not None:
            for key in sorted(value):
                text = f'"{key}"' if isinstance(key, str) else str(key).lower()
                found += _lacking(value[key], f"{name}[{text}].")
    return found


def indexes_in(data: bytes, begin: int) -> tuple[list[int], int]:
    """The indexes in front of a message, and where it begins; one zero byte stands for the file's first message. ProtobufError."""
    count, at = _varint(data, begin)
    if count == 0:
        return [0], at
    if not 0 < count <= _INDEXES_MAX:
        raise ProtobufError(
            f"byte {begin}: {count} indexes of a message are announced, at most {_INDEXES_MAX} are allowed"
        )
    found = []
    for _ in range(count):
        index, at = _varint(data, at)
        found.append(index)
    return found, at


def indexes_before(indexes: Sequence[int]) -> bytes:
    """As `indexes_in` reads them."""
    if list(indexes) == [0]:
        return b"\x00"
    return b"".join(_put(each) for each in (len(indexes), *indexes))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        found |= (byte & 127) << (7 * shift)
        if byte < 128:  # noqa: PLR2004 - the last byte has no high bit
            return (found >> 1) ^ -(found & 1), at + shift + 1
    raise ProtobufError(
        f"byte {at}: expected the index of a message, found {data[at : at + _VARINT_BYTES_MAX].hex(' ') or 'the end'}"
    )


def _put(value: int) -> bytes:
    left, out = value << 1, bytearray()
    while left > 127:  # noqa: PLR2004 - seven bits a byte
        out.append((left & 127) | 128)
        left >>= 7
    out.append(left)
    return bytes(out)
