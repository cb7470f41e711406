"""Many records of one schema at once, by compiled code: the JSON that `reader_of` gives for each."""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tidemark.shared.compiled import protobuf, protobuf_values
from tidemark.shared.language.many import Bools, Made, Names, Row, table
from tidemark.shared.language.protobuf.messages import (
    DECIMAL_NAME,
    TIMESTAMP_NAME,
    WRAPPERS,
    Messages,
    indexes_before,
    message_class,
)
from tidemark.shared.language.protobuf.reading import Readers

_GROWTH: Final = 24
"""How many times as long as its bytes the JSON of most values is; records that take more are read one by one."""
_ROW_BYTES: Final = 512
"""The same, of what takes no byte in a record."""
NUMBER_BITS: Final = 3
"""A tag is a field's number, and behind it so many bits that say how the value is written."""
WITH_LENGTH: Final = 2
"""How messages and texts are written."""
_ENTRY_BYTES_MIN: Final = 2
"""Of a map."""
_KNOWN: Final = {
    TIMESTAMP_NAME: (
        protobuf_values.TIMESTAMP,
        {"seconds": (1, FieldDescriptor.TYPE_INT64), "nanos": (2, FieldDescriptor.TYPE_INT32)},
    ),
    DECIMAL_NAME: (
        protobuf_values.DECIMAL,
        {
            "value": (1, FieldDescriptor.TYPE_BYTES),
            "precision": (2, FieldDescriptor.TYPE_UINT32),
            "scale": (3, FieldDescriptor.TYPE_INT32),
        },
    ),
}
"""Messages that are one value: what the compiled reader calls them, and the fields that it expects."""


def expected_op(kind: Descriptor) -> int | None:
    """The operation of a message that is one value, ODD if its fields are not those that it should have; None of others."""
    if kind.full_name in _KNOWN:
        op, fields = _KNOWN[kind.full_name]
        found = {each.name: (each.number, each.type) for each in kind.fields if not each.is_repeated}
        return op if found == fields else protobuf_values.ODD
    if kind.full_name not in WRAPPERS:
        return None
    value = kind.fields[0] if len(kind.fields) == 1 else None
    if (
        value is None
        or value.number != 1
        or value.name != "value"
        or value.is_repeated
        or value.message_type is not None
    ):
        return int(protobuf_values.ODD)
    return int(protobuf_values.WRAPPER)


def wrapped_by(kind: Descriptor) -> FieldDescriptor:
    """The field of a wrapper."""
    return kind.fields_by_name["value"]


def sets_of(kind: Descriptor) -> dict[str, int]:
    """The sets of alternatives of a message, numbered; those of one field are the compiler's own."""
    return {each.full_name: number for number, each in enumerate(o for o in kind.oneofs if len(o.fields) > 1)}


def how_of(field: FieldDescriptor) -> tuple[int, FieldDescriptor, int]:
    """(how a field stands in its message, the field of its values, the type of a map's keys)."""
    entry = field.message_type
    if field.is_repeated and entry is not None and entry.GetOptions().map_entry:
        return protobuf.MAP, entry.fields_by_name["value"], entry.fields_by_name["key"].type
    if field.is_repeated:
        return protobuf.LIST, field, 0
    if field.has_presence:
        return (protobuf.REQUIRED if field.is_required else protobuf.OPTIONAL), field, 0
    return protobuf.DEFAULT, field, 0


class ManyProtobufReader:
    """The reader of a schema's records."""

    def __init__(self, messages: Messages) -> None:
        self._readers = Readers()
        self._nodes: list[Row] = []
        self._fields: list[Row] = []
        self._lookup: list[Row] = []
        self._symbols: list[Row] = []
        self._names = Names()
        self._known: dict[str, int] = {}
        """The nodes of messages and enumerations, so that a message may be inside of itself."""
        roots = self._roots(messages.top, [])
        tables = (
            table(roots, 3), table(self._nodes, 6), table(self._fields, 8), table(self._lookup, 2), table(self._symbols, 3),
            self._names.array(),
        )  # fmt: skip
        self._slots = max(
            (count + more for op, _, count, more, *_ in self._nodes if op == protobuf_values.MESSAGE), default=0
        )
        self._has_maps = any(how == protobuf.MAP for _, how, *_ in self._fields)
        self._column = Made(protobuf.read, tables, self._work, _GROWTH, len(self._names) + _ROW_BYTES)

    def read(self, records: pa.BinaryArray) -> tuple[pa.BinaryArray, Bools]:
        """The JSON of records, shape (n,), and which are read; the others are the plain reader's."""
        return self._column.of(records)

    def _work(self, longest: int) -> tuple[npt.NDArray[np.int64], ...]:
        depths = protobuf.DEPTH_MAX + 2
        entries = longest // _ENTRY_BYTES_MIN + 1 if self._has_maps else 0
        return (
            np.empty((protobuf.FRAMES, depths), np.int64),
            np.empty(depths * self._slots, np.int64),
            np.empty((entries, 4), np.int64),
        )

    def _roots(self, kinds: list[Descriptor] | tuple[Descriptor, ...], above: list[int]) -> list[Row]:
        """(begin and end of the place that records begin with, node) of the messages that records may be."""
        found: list[Row] = []
        for index, kind in enumerate(kinds):
            place = [*above, index]
            node = self._message(kind)
            if self._nodes[node][0] == protobuf_values.MESSAGE:
                found.append((*self._names.put(indexes_before(place)), node))
                if place == [0]:
                    found.append((*self._names.put(b"\x02\x00"), node))  # one index, which is 0
            found += self._roots(list(kind.nested_types), place)
        return found

    def _message(self, kind: Descriptor) -> int:
        name = kind.full_name
        if name in self._known:
            return self._known[name]
        place = self._known[name] = self._place()
        self._nodes[place] = self._one_value(kind) or self._fields_of(kind)
        return place

    def _place(self) -> int:
        self._nodes.append((protobuf_values.ODD, 0, 0, 0, 0, 0))
        return len(self._nodes) - 1

    def _one_value(self, kind: Descriptor) -> Row | None:
        """The node of a message that is read as one value; None of others."""
        op = expected_op(kind)
        if op is None:
            return None
        if op == protobuf_values.WRAPPER:
            inner = self._value(wrapped_by(kind))
            return (op, inner, 0, 0, *self._nodes[inner][4:])
        default: Row = (0, 0)
        if op != protobuf_values.ODD:
            default = self._default(self._readers.message(kind)(message_class(kind)(), 1))
        return (op, 0, 0, 0, *default)

    def _fields_of(self, kind: Descriptor) -> Row:
        """The node of a message that is read as an object."""
        sets = sets_of(kind)
        rows = [self._field(each, sets) for each in kind.fields]
        first = len(self._fields)
        self._fields += rows
        self._lookup += sorted((row[0], number) for number, row in enumerate(rows))
        return (protobuf_values.MESSAGE, first, len(rows), len(sets), 0, 0)

    def _field(self, field: FieldDescriptor, sets: dict[str, int]) -> Row:
        how, value, key = how_of(field)
        node = self._value(value)
        one_of = field.containing_oneof
        wire = WITH_LENGTH if how == protobuf.MAP else int(protobuf_values.WIRES[self._op(value, node)])
        return (
            field.number,
            how,
            node,
            sets.get(one_of.full_name, -1) if one_of is not None else -1,
            field.number << NUMBER_BITS | wire,
            *self._names.put(msgspec.json.encode(field.name) + b":"),
            key,
        )

    def _op(self, field: FieldDescriptor, node: int) -> int:
        """The operation of a field's node, which may not be made yet."""
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            return int(protobuf_values.MESSAGE)
        return self._nodes[node][0]

    def _value(self, field: FieldDescriptor) -> int:
        """The node of a field's values."""
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            assert field.message_type is not None
            return self._message(field.message_type)
        place = self._place()
        if field.type == FieldDescriptor.TYPE_GROUP:
            return place
        default: Row = (0, 0)
        if not field.is_repeated:
            default = self._default(self._readers.cell(field)(field.default_value, 1))
        if field.type == FieldDescriptor.TYPE_ENUM:
            first, count, is_open = self._enumeration(field)
            self._nodes[place] = (field.type, first, count, is_open, *default)
        else:
            self._nodes[place] = (field.type, 0, 0, 0, *default)
        return place

    def _enumeration(self, field: FieldDescriptor) -> tuple[int, int, bool]:
        kind, first = field.enum_type, len(self._symbols)
        assert kind is not None
        names = sorted((number, each.name) for number, each in kind.values_by_number.items())
        self._symbols += [(number, *self._names.put(msgspec.json.encode(name))) for number, name in names]
        return first, len(names), not kind.is_closed

    def _default(self, value: object) -> Row:
        return self._names.put(msgspec.json.encode(value))
