"""Many records of one schema at once, by compiled code: the JSON that `reader_of` gives for each."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import avro
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.compiled.rendering import room_to_work
from tidemark.shared.language.avro.schema import (
    ArrayType,
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
from tidemark.shared.language.values import render_json

_GROWTH: Final = 24
"""How many times as long as its bytes the JSON of most values is; records that take more are read one by one."""
_ROW_BYTES: Final = 512
"""The same, of what takes no byte in a record."""
TICKS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
"""In a millisecond."""
PLAIN: Final = {
    "null": avro.NULL, "boolean": avro.BOOLEAN, "int": avro.INT, "long": avro.LONG, "float": avro.FLOAT, "double": avro.DOUBLE,
    "string": avro.STRING, "bytes": avro.BINARY,
}  # fmt: skip


class ManyAvroReader:
    """The reader of a schema's records."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._nodes: list[tuple[int, int, int]] = []
        self._fields: list[tuple[int, int, int]] = []
        self._branches: list[int] = []
        self._symbols: list[tuple[int, int]] = []
        self._names = bytearray()
        self._records: dict[str, int] = {}
        self._node(schema.root)
        self._tables = (
            np.array(self._nodes, np.int64).reshape(-1, 3), np.array(self._fields, np.int64).reshape(-1, 3),
            np.array(self._branches, np.int64), np.array(self._symbols, np.int64).reshape(-1, 2),
            np.frombuffer(bytes(self._names), np.uint8),
        )  # fmt: skip

    def read(self, records: pa.BinaryArray) -> tuple[pa.BinaryArray, npt.NDArray[np.bool_]]:
        """The JSON of records, shape (n,), and which are read; the others are the plain reader's."""
        count = len(records)
        text, bounds = buffers(records.fill_null(b"") if records.null_count else records)
        room = _GROWTH * int(bounds[-1] - bounds[0]) + count * (len(self._names) + _ROW_BYTES) + _ROW_BYTES
        out, offsets, sure = np.empty(room, np.uint8), np.empty(count + 1, np.int64), np.ones(count, np.bool_)
        _, stack, known = room_to_work(0)
        size = avro.read(text, bounds, *self._tables, out, offsets, sure, stack, known)
        out.resize(size, refcheck=False)
        texts = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(out)]
        )
        return texts.cast(pa.binary()), sure

    def _node(self, kind: Type) -> int:
        """The place of a type's node; those of records are made once, so that a record may be inside of itself."""
        if isinstance(kind, NamedType):
            known = self._records.get(kind.name)
            return self._node(self._schema.named[kind.name]) if known is None else known
        place = len(self._nodes)
        self._nodes.append((0, 0, 0))
        if isinstance(kind, RecordType):
            self._records[kind.name] = place
        self._nodes[place] = self._made(kind)
        return place

    def _made(self, kind: Type) -> tuple[int, int, int]:
        match kind:
            case PrimitiveType("bytes", "decimal", _, scale):
                return avro.DECIMAL, scale, -1
            case PrimitiveType("long", "ms" | "us" | "ns" as unit):
                return avro.INSTANT, TICKS[unit], 0
            case PrimitiveType("int", "date"):
                return avro.DAYS, 0, 0
            case PrimitiveType():
                return PLAIN[kind.kind], 0, -1
            case FixedType() if kind.logical == "decimal":
                return avro.DECIMAL, kind.scale, kind.size_bytes
            case FixedType():
                return avro.UUID if kind.logical == "uuid" else avro.BINARY, 0, kind.size_bytes
            case EnumType():
                first = len(self._symbols)
                self._symbols += [self._written(render_json(symbol)) for symbol in kind.symbols]
                return avro.ENUM, first, len(kind.symbols)
            case ArrayType():
                return avro.ARRAY, self._node(kind.items), 0
            case MapType():
                return avro.MAP, self._node(kind.values), 0
            case UnionType():
                branches = [self._node(branch) for branch in kind.branches]
                self._branches += branches
                return avro.UNION, len(self._branches) - len(branches), len(branches)
            case RecordType():
                fields = [(*self._written(render_json(f.name) + b":"), self._node(f.type)) for f in kind.fields]
                self._fields += fields
                return avro.RECORD, len(self._fields) - len(fields), len(fields)
        raise AssertionError(kind)

    def _written(self, name: bytes) -> tuple[int, int]:
        self._names += name
        return len(self._names) - len(name), len(self._names)
