"""Many documents to records of one schema at once, by compiled code: the bytes that `writer_of` gives for each."""

from decimal import Decimal
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import avro, avro_writing, numbers, tags
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.compiled.values import binary_of
from tidemark.shared.language.avro.many import PLAIN, TICKS
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
from tidemark.shared.language.avro.writing import Writers, orders_of
from tidemark.shared.model.values import Binary, Date, Long

_GROWTH: Final = 10
"""How many times as long as in the codec the bytes of most values are: a double, and a date in small units."""
_ROW_BYTES: Final = 128
"""The same, of what takes no byte in the codec."""
_KINDS: Final = {
    tags.NULL: type(None), tags.BOOL: bool, tags.INT: int, tags.LONG: Long, tags.DOUBLE: float, tags.STRING: str, tags.DATE: Date,
    tags.OBJECT: dict, tags.ARRAY: list, numbers.DECIMAL: Decimal, numbers.BINARY: Binary,
}  # fmt: skip
_WITH_PARTS: Final = (tags.OBJECT, tags.ARRAY)
_Row = tuple[int, ...]


class ManyAvroWriter:
    """The writer of a schema's records. AvroSchemaError for a wrong default."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema, self._writers = schema, Writers(schema)
        self._nodes: list[_Row] = []
        self._fields: list[_Row] = []
        self._lookup: list[int] = []
        self._unions: list[_Row] = []
        self._branches: list[_Row] = []
        self._symbols: list[_Row] = []
        self._names = bytearray()
        self._records: dict[str, int] = {}
        self._node(schema.root)
        self._tables = (
            np.array(self._nodes, np.int64).reshape(-1, 4), np.array(self._fields, np.int64).reshape(-1, 5),
            np.array(self._lookup, np.int64), np.array(self._unions, np.int64).reshape(-1, 2),
            np.array(self._branches, np.int64).reshape(-1, 2), np.array(self._symbols, np.int64).reshape(-1, 2),
            np.frombuffer(bytes(self._names), np.uint8),
        )  # fmt: skip
        self._slots = max((count for op, _, count, _ in self._nodes if op == avro.RECORD), default=0)

    def write(self, values: pa.BinaryArray) -> tuple[pa.BinaryArray, npt.NDArray[np.bool_]]:
        """The records of encoded values, shape (n,), and which are written; the others are the plain writer's."""
        count = len(values)
        text, bounds = buffers(values.fill_null(b"") if values.null_count else values)
        room = _GROWTH * int(bounds[-1] - bounds[0]) + count * (len(self._names) + _ROW_BYTES) + _ROW_BYTES
        out, offsets, sure = np.empty(room, np.uint8), np.empty(count + 1, np.int64), np.ones(count, np.bool_)
        work = np.empty((5, avro_writing.FRAMES_MAX), np.int64), np.empty(avro.DEPTH_MAX * self._slots, np.int64)
        size = avro_writing.write(text, bounds, *self._tables, out, offsets, sure, *work)
        out.resize(size, refcheck=False)
        return binary_of(offsets, out, None), sure

    def _node(self, kind: Type) -> int:
        """The place of a type's node; those of records are made once, so that a record may be inside of itself."""
        if isinstance(kind, NamedType):
            known = self._records.get(kind.name)
            return self._node(self._schema.named[kind.name]) if known is None else known
        place = len(self._nodes)
        self._nodes.append((0, 0, 0, 0))
        if isinstance(kind, RecordType):
            self._records[kind.name] = place
        self._nodes[place] = self._made(kind)
        return place

    def _made(self, kind: Type) -> _Row:
        match kind:
            case PrimitiveType("bytes", "decimal", digits, scale):
                return avro.DECIMAL, scale, -1, digits
            case PrimitiveType("long", "ms" | "us" | "ns" as unit):
                return avro.INSTANT, TICKS[unit], 0, 0
            case PrimitiveType("int", "date"):
                return avro.DAYS, 0, 0, 0
            case PrimitiveType():
                return PLAIN[kind.kind], 0, -1, 0
            case FixedType() if kind.logical == "decimal":
                return avro.DECIMAL, kind.scale, kind.size_bytes, kind.precision
            case FixedType():
                return avro.BINARY, 0, kind.size_bytes, 0
            case EnumType():
                first = len(self._symbols)
                self._symbols += [self._written(symbol.encode()) for symbol in kind.symbols]
                return avro.ENUM, first, len(kind.symbols), 0
            case ArrayType():
                return avro.ARRAY, self._node(kind.items), 0, 0
            case MapType():
                return avro.MAP, self._node(kind.values), 0, 0
            case UnionType():
                return avro.UNION, self._union(kind), 0, 0
            case RecordType():
                return avro.RECORD, self._record(kind), len(kind.fields), 0
        raise AssertionError(kind)

    def _record(self, kind: RecordType) -> int:
        """The first of a record's fields."""
        rows = []
        for field in kind.fields:
            absent = self._writers.absent(field)
            missing = (-1, -1) if absent is None else self._written(absent)
            rows.append((*self._written(field.name.encode()), self._node(field.type), *missing))
        first = len(self._fields)
        self._fields += rows
        by_name = sorted((field.name.encode(), place) for place, field in enumerate(kind.fields))
        self._lookup += [place for _, place in by_name]
        return first

    def _union(self, kind: UnionType) -> int:
        """The first of a union's rows: the branches that are tried for a value of each type."""
        nodes, orders = [self._node(branch) for branch in kind.branches], orders_of(kind, self._schema)
        rows = []
        for value_kind in range(numbers.KINDS):
            tried = orders[_KINDS[value_kind]] if value_kind in _KINDS else ()
            if value_kind in _WITH_PARTS and len(tried) > 1:
                tried = ()
            rows.append((len(self._branches), len(tried)))
            self._branches += [(branch, nodes[branch]) for branch in tried]
        first = len(self._unions)
        self._unions += rows
        return first

    def _written(self, name: bytes) -> tuple[int, int]:
        self._names += name
        return len(self._names) - len(name), len(self._names)
