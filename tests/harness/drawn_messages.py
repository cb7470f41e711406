"""Schemas of Protocol Buffers, and bytes that are mostly messages of them, drawn from a seed."""

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from tidemark.shared.language.protobuf.messages import Messages, messages_of

F = FieldDescriptorProto
VARINTS = (F.TYPE_INT64, F.TYPE_UINT64, F.TYPE_INT32, F.TYPE_BOOL, F.TYPE_UINT32, F.TYPE_SINT32, F.TYPE_SINT64)
FIXED_4 = (F.TYPE_FIXED32, F.TYPE_SFIXED32, F.TYPE_FLOAT)
FIXED_8 = (F.TYPE_FIXED64, F.TYPE_SFIXED64, F.TYPE_DOUBLE)
PLAIN = (*VARINTS, *FIXED_4, *FIXED_8, F.TYPE_STRING, F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_ENUM)
KEYS = (*VARINTS, F.TYPE_FIXED32, F.TYPE_SFIXED32, F.TYPE_FIXED64, F.TYPE_SFIXED64, F.TYPE_STRING, F.TYPE_STRING)
KNOWN = (
    ".google.protobuf.Timestamp", ".confluent.type.Decimal", ".google.protobuf.StringValue", ".google.protobuf.Int64Value",
    ".google.protobuf.DoubleValue", ".google.protobuf.BoolValue", ".google.protobuf.BytesValue", ".google.protobuf.UInt64Value",
    ".google.protobuf.Int32Value", ".google.protobuf.UInt32Value", ".google.protobuf.FloatValue",
)  # fmt: skip
TEXTS = (
    "",
    "a",
    "b",
    "ab",
    "$x",
    'q"\\',
    "äß",
    "\u20ac\U0001f600",
    "line\nfeed\x01",
    "a much longer text than the others",
)
NUMBERS = (
    0,
    1,
    2,
    5,
    10,
    12,
    100,
    127,
    128,
    300,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64 - 7,
)
MESSAGES_MAX = 40
"""Of a record, about."""
DOUBLES = (0.0, -0.0, 1.0, -1.5, 0.1, 1e300, 5e-324, float("inf"), float("-inf"), float("nan"), 1e16, 123456.789)


@dataclass(frozen=True)
class Schema:
    """A file that was drawn."""

    file: FileDescriptorProto
    messages: Messages
    plain: bool
    """Whether it has no groups."""


def drawn_schema(seed: int) -> Schema:
    """A file with some messages, of proto2 or proto3."""
    chance = random.Random(seed)
    file = FileDescriptorProto(name="drawn.proto", package="drawn", syntax=chance.choice(["proto2", "proto3"]))
    file.dependency.extend(
        ["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto", "confluent/type/decimal.proto"]
    )
    numbers = [0, *chance.sample([1, 2, 3, -1, 5, 300, 2**31 - 1, -(2**31)], chance.randint(0, 4))]
    file.enum_type.append(EnumDescriptorProto(name="Kind"))
    for number in numbers:
        file.enum_type[0].value.add(name=f"K{number}".replace("-", "M"), number=number)
    count = chance.randint(1, 3)
    for place in range(count):
        file.message_type.append(_message(chance, f"M{place}", count, file.syntax == "proto3"))
    compiled = descriptor_pb2.FileDescriptorSet()
    for known in (timestamp_pb2, wrappers_pb2):
        compiled.file.add().ParseFromString(known.DESCRIPTOR.serialized_pb)
    compiled.file.append(_decimal())
    compiled.file.append(file)
    groups = any(f.type == F.TYPE_GROUP for m in file.message_type for f in m.field)
    return Schema(file, messages_of(compiled.SerializeToString()), not groups)


def _decimal() -> FileDescriptorProto:
    file = FileDescriptorProto(name="confluent/type/decimal.proto", package="confluent.type", syntax="proto3")
    kind = file.message_type.add(name="Decimal")
    for number, (name, kind_of) in enumerate(
        (("value", F.TYPE_BYTES), ("precision", F.TYPE_UINT32), ("scale", F.TYPE_INT32)), 1
    ):
        kind.field.add(name=name, number=number, type=kind_of, label=F.LABEL_OPTIONAL)
    return file


def _message(chance: random.Random, name: str, count: int, proto3: bool) -> DescriptorProto:
    """A message with some fields, each of a kind that is drawn."""
    made = DescriptorProto(name=name)
    fields = chance.choice([0, 1, 3, 8, 8, 20])
    numbers = chance.sample([*range(1, 2 * fields + 2), 100, 5000, 536870911], fields) if fields else []
    if chance.random() < 0.6:
        numbers.sort()
    one_of = chance.random() < 0.5
    if one_of:
        made.oneof_decl.add(name="one")
    for place, number in enumerate(numbers):
        field = made.field.add(name=f"f{place}", number=number, label=F.LABEL_OPTIONAL)
        kind = chance.choice(
            ["plain", "plain", "plain", "list", "list", "map", "message", "known", "group", "required", "optional"]
        )
        if kind == "map":
            _map(chance, made, field, count)
            continue
        _typed(chance, field, count)
        if kind == "group" and not proto3 and chance.random() < 0.2:
            made.nested_type.add(name=f"G{place}").field.add(
                name="g", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL
            )
            field.type, field.type_name, field.name = F.TYPE_GROUP, f".drawn.{name}.G{place}", f"g{place}"
        elif kind in ("message", "known"):
            field.type = F.TYPE_MESSAGE
            field.type_name = chance.choice(KNOWN) if kind == "known" else f".drawn.M{chance.randrange(count)}"
        if kind == "list" or chance.random() < 0.2:
            _repeated(chance, field)
        elif kind == "required" and not proto3:
            field.label = F.LABEL_REQUIRED
        elif one_of and chance.random() < 0.4:
            field.oneof_index = 0
        elif kind == "optional" and proto3 and field.type != F.TYPE_MESSAGE:
            field.proto3_optional = True
    if one_of and not any(each.HasField("oneof_index") for each in made.field):
        del made.oneof_decl[:]
    for each in made.field:
        if each.proto3_optional:
            each.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{each.name}")
    return made


def _repeated(chance: random.Random, field: FieldDescriptorProto) -> None:
    field.label = F.LABEL_REPEATED
    if field.type not in (F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE, F.TYPE_GROUP) and chance.random() < 0.5:
        field.options.packed = chance.random() < 0.5


def _typed(chance: random.Random, field: FieldDescriptorProto, count: int) -> None:
    field.type = chance.choice([*PLAIN, F.TYPE_MESSAGE])
    if field.type == F.TYPE_ENUM:
        field.type_name = ".drawn.Kind"
    elif field.type == F.TYPE_MESSAGE:
        field.type_name = chance.choice([*KNOWN[:3], f".drawn.M{chance.randrange(count)}"])


def _map(chance: random.Random, made: DescriptorProto, field: FieldDescriptorProto, count: int) -> None:
    entry = made.nested_type.add(name=f"{field.name.capitalize()}Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=chance.choice(KEYS), label=F.LABEL_OPTIONAL)
    _typed(chance, entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL), count)
    field.label, field.type, field.type_name = F.LABEL_REPEATED, F.TYPE_MESSAGE, f".drawn.{made.name}.{entry.name}"


# --- bytes ------------------------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """A number without a sign."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


class Records:
    """Records of a schema. `odd`: how often something is not as a serializer would have it."""

    def __init__(self, schema: Schema, seed: int, odd: float) -> None:
        self._schema = schema
        self._chance = random.Random(seed)
        self._odd, self._left = odd, 0
        self._kinds = {f".drawn.{each.name}": each for each in schema.file.message_type}
        for each in schema.file.message_type:
            self._kinds |= {f".drawn.{each.name}.{inner.name}": inner for inner in each.nested_type}

    def record(self) -> bytes:
        """A message of the file, behind its place."""
        place = self._chance.randrange(len(self._schema.file.message_type))
        before = b"\x00" if place == 0 and self._chance.random() < 0.8 else bytes([2, 2 * place])
        self._left = MESSAGES_MAX
        data = before + self.message(self._schema.file.message_type[place], self._chance.choice([1, 3, 3, 6]))
        while self._is_odd():
            data = self._damaged(data)
        return data

    def _is_odd(self) -> bool:
        return self._chance.random() < self._odd

    def message(self, kind: DescriptorProto, depth: int) -> bytes:
        """The fields of a message, some of them, by number or as it happens."""
        fields = [each for each in kind.field if self._chance.random() < 0.7 or each.label == F.LABEL_REQUIRED]
        pieces = [self._field(each, depth) for each in sorted(fields, key=lambda each: each.number)]
        if self._is_odd():
            self._chance.shuffle(pieces)
        if self._is_odd():
            pieces.append(
                self._chance.choice(
                    [b"\xc2\x3e\x01a", b"\x90\x0a\x05", b"\x00\x01", b"\x0c", b"\xa3\x06\xa4\x06", *pieces, b""]
                )
            )
        return b"".join(pieces)

    def _field(self, field: FieldDescriptorProto, depth: int) -> bytes:
        if field.label != F.LABEL_REPEATED:
            return self._one(field, depth)
        is_map = field.type == F.TYPE_MESSAGE and self._kinds.get(field.type_name, DescriptorProto()).options.map_entry
        if is_map:
            return b"".join(self._one(field, depth) for _ in range(self._chance.choice([0, 1, 2, 6])))
        if _wire(field.type) in (0, 1, 5) and self._chance.random() < 0.5:
            content = b"".join(self._value(field, depth) for _ in range(self._chance.choice([0, 1, 2, 5])))
            return varint(field.number << 3 | 2) + self._sized(content)
        return b"".join(self._one(field, depth) for _ in range(self._chance.choice([0, 1, 2, 5])))

    def _one(self, field: FieldDescriptorProto, depth: int) -> bytes:
        wire = _wire(field.type) if not self._is_odd() else self._chance.randrange(8)
        value = self._value(field, depth)
        if field.type == F.TYPE_GROUP:
            return varint(field.number << 3 | 3) + value + varint(field.number << 3 | 4)
        return self._varint(field.number << 3 | wire) + value

    def _varint(self, number: int) -> bytes:
        found = varint(number)
        if self._is_odd():  # longer than it need be
            found = (
                found[:-1]
                + bytes([found[-1] | 128])
                + b"\x80" * self._chance.randrange(9)
                + self._chance.choice([b"\x00", b"\x01"])
            )
        return found

    def _sized(self, content: bytes) -> bytes:
        size = (
            len(content)
            if not self._is_odd()
            else self._chance.choice([0, len(content) + 1, max(0, len(content) - 1), 2**31, 2**63])
        )
        return self._varint(size) + content

    def _value(self, field: FieldDescriptorProto, depth: int) -> bytes:
        chance = self._chance
        match field.type:
            case F.TYPE_DOUBLE:
                return struct.pack("<d", chance.choice(DOUBLES)) if chance.random() < 0.8 else chance.randbytes(8)
            case F.TYPE_FLOAT:
                return struct.pack("<f", chance.choice(DOUBLES[:5])) if chance.random() < 0.5 else chance.randbytes(4)
            case F.TYPE_STRING:
                return self._sized(b"\xed\xa0\x80" if self._is_odd() else chance.choice(TEXTS).encode())
            case F.TYPE_BYTES:
                return self._sized(chance.randbytes(chance.randrange(5)))
            case F.TYPE_BOOL:
                return self._varint(chance.choice(NUMBERS) if self._is_odd() else chance.randrange(2))
            case F.TYPE_ENUM:
                known = [each.number for each in self._schema.file.enum_type[0].value]
                return self._varint((chance.randrange(8) if self._is_odd() else chance.choice(known)) % 2**64)
            case F.TYPE_MESSAGE | F.TYPE_GROUP:
                content = self._content(field.type_name, depth - 1)
                return content if field.type == F.TYPE_GROUP else self._sized(content)
        if field.type in (*FIXED_4, *FIXED_8):
            width = 4 if field.type in FIXED_4 else 8
            return int(chance.choice(NUMBERS) % 2 ** (8 * width)).to_bytes(width, "little")
        narrow = field.type in (F.TYPE_UINT32, F.TYPE_SINT32) and not self._is_odd()
        number = chance.choice(NUMBERS)
        if field.type == F.TYPE_UINT64 and not self._is_odd():
            number %= 2**63
        return self._varint(number % 2**32 if narrow else number)

    def _content(self, name: str, depth: int) -> bytes:
        chance = self._chance
        if name in self._kinds:
            kind = self._kinds[name]
            self._left -= 1
            return self.message(kind, depth) if (depth > 0 and self._left > 0) or kind.options.map_entry else b""
        if name == KNOWN[0]:
            seconds, nanos = (
                chance.choice([0, 1, -5, 1_700_000_000, 2**63 - 1]),
                chance.choice([0, 999_999_999, -1, 5_000_000]),
            )
            found = b"\x08" + self._varint(seconds % 2**64) + b"\x10" + self._varint(nanos % 2**64)
        elif name == KNOWN[1]:
            number = chance.choice(
                [b"", b"\x00", b"\xff", b"\x01\x2c", b"\x80", b"\xff\x00\x00\x00\x00\x00\x00\x00", chance.randbytes(10)]
            )
            found = (
                b"\x0a"
                + self._sized(number)
                + b"\x10\x05\x18"
                + self._varint(chance.choice([0, 2, 4, 30, 200, 2**64 - 3]))
            )
        else:
            kind_of = {
                "String": 9,
                "Int64": 3,
                "Double": 1,
                "Bool": 8,
                "Bytes": 12,
                "UInt64": 4,
                "Int32": 5,
                "UInt32": 13,
                "Float": 2,
            }
            inner = F(number=1, type=kind_of[name.removeprefix(".google.protobuf.").removesuffix("Value")])  # type: ignore[arg-type]
            found = self._one(inner, depth)
        return (
            chance.choice([found, b"", found])
            if not self._is_odd()
            else found + chance.choice([found, b"\x20\x01", b"\x08"])
        )

    def _damaged(self, data: bytes) -> bytes:
        at = self._chance.randrange(len(data) + 1)
        match self._chance.randrange(6):
            case 0:
                return data[:at]
            case 1:
                return data[:at] + self._chance.randbytes(1) + data[at + 1 :]
            case 2:
                return data[:at] + self._chance.randbytes(self._chance.randrange(1, 4)) + data[at:]
            case 3:
                return data + data[1:]
            case 4:
                return data[at:]
        return data[:at] + data[at + 1 :]


def _wire(kind: Any) -> int:
    return {
        **dict.fromkeys(FIXED_8, 1),
        **dict.fromkeys(FIXED_4, 5),
        F.TYPE_STRING: 2,
        F.TYPE_BYTES: 2,
        F.TYPE_MESSAGE: 2,
    }.get(kind, 0)


def drawn_records(schema: Schema, seed: int, count: int, odd: float) -> Sequence[bytes]:
    """So many records; `odd`: how often something in them is not as a serializer has it."""
    records = Records(schema, seed, odd)
    return [records.record() for _ in range(count)]
