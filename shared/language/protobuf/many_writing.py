"""Many documents to messages of one schema at once, by compiled code: the bytes that `writer_of` gives for each."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tidemark.shared.compiled import protobuf, protobuf_values, protobuf_writing
from tidemark.shared.language.many import Bools, Made, Names, Row, table
from tidemark.shared.language.protobuf.many import (
    NUMBER_BITS,
    WITH_LENGTH,
    expected_op,
    how_of,
    sets_of,
    wrapped_by,
)
from tidemark.shared.language.protobuf.messages import Messages, indexes_before

_GROWTH: Final = 12
"""How many times as long as in the codec the bytes of most values are: a small number as a double, with its tag."""
_ROW_BYTES: Final = 256
"""The same, of what takes no byte in the codec."""
_ENTRY_BYTES_MIN: Final = 2
"""Of a map, in the codec."""
_ODD: Final = (protobuf_values.ODD, 0, 0, 0)


class ManyProtobufWriter:
    """The writer of a message's records. ProtobufSchemaError for a name."""

    def __init__(self, messages: Messages, name: str) -> None:
        kind, indexes = messages.named(name)
        self._nodes: list[Row] = []
        self._fields: list[Row] = []
        self._lookup: list[int] = []
        self._symbols: list[Row] = []
        self._names = Names()
        self._known: dict[str, int] = {}
        """The nodes of messages, so that one may be inside of itself."""
        self._message(kind)
        self._is_object = self._nodes[0][0] == protobuf_values.MESSAGE
        tables = (
            np.frombuffer(indexes_before(indexes), np.uint8), table(self._nodes, 4), table(self._fields, 7),
            np.array(self._lookup, np.int64), table(self._symbols, 3), self._names.array(),
        )  # fmt: skip
        self._slots = max((node[2] + node[3] for node in self._nodes if node[0] == protobuf_values.MESSAGE), default=0)
        self._has_maps = any(field[3] == protobuf.MAP for field in self._fields)
        self._column = Made(protobuf_writing.write, tables, self._work, _GROWTH, _ROW_BYTES)

    def write(self, values: pa.BinaryArray) -> tuple[pa.BinaryArray, Bools]:
        """The records of encoded documents, shape (n,), and which are written; the others are the plain writer's."""
        if not self._is_object:
            return pa.array([b""] * len(values), pa.binary()), np.zeros(len(values), np.bool_)
        return self._column.of(values)

    def _work(self, longest: int) -> tuple[npt.NDArray[np.int64], ...]:
        entries = longest // _ENTRY_BYTES_MIN + 1 if self._has_maps else 0
        return (
            np.empty((protobuf_writing.FRAMES, protobuf_writing.FRAMES_MAX), np.int64),
            np.empty(protobuf.DEPTH_MAX * self._slots, np.int64),
            np.empty((entries, 4), np.int64),
        )

    def _message(self, kind: Descriptor) -> int:
        name = kind.full_name
        if name not in self._known:
            place = self._known[name] = self._place()
            op = expected_op(kind)
            if op is not None:
                self._nodes[place] = (op, self._value(wrapped_by(kind)) if op == protobuf_values.WRAPPER else 0, 0, 0)
            else:
                self._nodes[place] = self._fields_of(kind)
        return self._known[name]

    def _place(self) -> int:
        self._nodes.append(_ODD)
        return len(self._nodes) - 1

    def _fields_of(self, kind: Descriptor) -> Row:
        sets = sets_of(kind)
        by_number = sorted(kind.fields, key=lambda each: each.number)
        rows = [self._field(each, sets) for each in by_number]
        first = len(self._fields)
        self._fields += rows
        self._lookup += [
            place for _, place in sorted((each.name.encode(), place) for place, each in enumerate(by_number))
        ]
        return (protobuf_values.MESSAGE, first, len(rows), len(sets))

    def _field(self, field: FieldDescriptor, sets: dict[str, int]) -> Row:
        how, value, key = how_of(field)
        node = self._value(value)
        op = protobuf_values.MESSAGE if value.type == FieldDescriptor.TYPE_MESSAGE else self._nodes[node][0]
        wire = int(protobuf_values.WIRES[op])
        if how == protobuf.LIST and field.is_packed:
            how, wire = protobuf_writing.PACKED, WITH_LENGTH
        elif how == protobuf.MAP:
            wire = WITH_LENGTH
        one_of = field.containing_oneof
        return (
            *self._names.put(field.name.encode()), node, how, sets.get(one_of.full_name, -1) if one_of is not None else -1,
            field.number << NUMBER_BITS | wire, key,
        )  # fmt: skip

    def _value(self, field: FieldDescriptor) -> int:
        """The node of a field's values."""
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            assert field.message_type is not None
            return self._message(field.message_type)
        place = self._place()
        if field.type == FieldDescriptor.TYPE_ENUM:
            kind, first = field.enum_type, len(self._symbols)
            assert kind is not None
            self._symbols += [
                (*self._names.put(name.encode()), each.number) for name, each in kind.values_by_name.items()
            ]
            self._nodes[place] = (field.type, first, len(kind.values_by_name), not kind.is_closed)
        elif field.type != FieldDescriptor.TYPE_GROUP:
            self._nodes[place] = (field.type, 0, 0, 0)
        return place
