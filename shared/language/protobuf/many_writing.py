"""Many documents to messages of one schema at once, by compiled code: the bytes that `writer_of` gives for each."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tidemark.shared.compiled import protobuf, protobuf_values, protobuf_writing
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.compiled.values import binary_of
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
_Row = tuple[int, ...]


class ManyProtobufWriter:
    """The writer of a message's records. ProtobufSchemaError for a name."""

    def __init__(self, messages: Messages, name: str) -> None:
        kind, indexes = messages.named(name)
        self._nodes: list[_Row] = []
        self._fields: list[_Row] = []
        self._lookup: list[int] = []
        self._symbols: list[_Row] = []
        self._names = bytearray()
        self._known: dict[str, int] = {}
        """The nodes of messages, so that one may be inside of itself."""
        self._message(kind)
        self._is_object = self._nodes[0][0] == protobuf_values.MESSAGE
        self._tables = (
            np.frombuffer(indexes_before(indexes), np.uint8), np.array(self._nodes, np.int64).reshape(-1, 4),
            np.array(self._fields, np.int64).reshape(-1, 7), np.array(self._lookup, np.int64),
            np.array(self._symbols, np.int64).reshape(-1, 3), np.frombuffer(bytes(self._names), np.uint8),
        )  # fmt: skip
        self._slots = max((node[2] + node[3] for node in self._nodes if node[0] == protobuf_values.MESSAGE), default=0)
        self._has_maps = any(field[3] == protobuf.MAP for field in self._fields)

    def write(self, values: pa.BinaryArray) -> tuple[pa.BinaryArray, npt.NDArray[np.bool_]]:
        """The records of encoded documents, shape (n,), and which are written; the others are the plain writer's."""
        count = len(values)
        if not self._is_object:
            return pa.array([b""] * count, pa.binary()), np.zeros(count, np.bool_)
        text, bounds = buffers(values.fill_null(b"") if values.null_count else values)
        room = _GROWTH * int(bounds[-1] - bounds[0]) + count * _ROW_BYTES + _ROW_BYTES
        out, offsets, sure = np.empty(room, np.uint8), np.empty(count + 1, np.int64), np.ones(count, np.bool_)
        entries = int(np.diff(bounds).max(initial=0)) // _ENTRY_BYTES_MIN + 1 if self._has_maps else 0
        work = (
            np.empty((protobuf_writing.FRAMES, protobuf_writing.FRAMES_MAX), np.int64),
            np.empty(protobuf.DEPTH_MAX * self._slots, np.int64),
            np.empty((entries, 4), np.int64),
        )
        size = protobuf_writing.write(text, bounds, *self._tables, out, offsets, sure, *work)
        out.resize(size, refcheck=False)
        return binary_of(offsets, out, None), sure

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

    def _fields_of(self, kind: Descriptor) -> _Row:
        sets = sets_of(kind)
        by_number = sorted(kind.fields, key=lambda each: each.number)
        rows = [self._field(each, sets) for each in by_number]
        first = len(self._fields)
        self._fields += rows
        self._lookup += [
            place for _, place in sorted((each.name.encode(), place) for place, each in enumerate(by_number))
        ]
        return (protobuf_values.MESSAGE, first, len(rows), len(sets))

    def _field(self, field: FieldDescriptor, sets: dict[str, int]) -> _Row:
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
            *self._written(field.name), node, how, sets.get(one_of.full_name, -1) if one_of is not None else -1,
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
            self._symbols += [(*self._written(name), each.number) for name, each in kind.values_by_name.items()]
            self._nodes[place] = (field.type, first, len(kind.values_by_name), not kind.is_closed)
        elif field.type != FieldDescriptor.TYPE_GROUP:
            self._nodes[place] = (field.type, 0, 0, 0)
        return place

    def _written(self, name: str) -> tuple[int, int]:
        found = name.encode()
        self._names += found
        return len(self._names) - len(found), len(self._names)
