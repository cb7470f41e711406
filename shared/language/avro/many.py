"""Many records of one schema at once, by compiled code: the JSON that `reader_of` gives for each."""

from abc import ABC, abstractmethod
from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.shared.compiled import avro
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
from tidemark.shared.language.many import Bools, Made, Names, Row, table
from tidemark.shared.language.values import render_json

_GROWTH: Final = 24
"""How many times as long as its bytes the JSON of most values is; records that take more are read one by one."""
_ROW_BYTES: Final = 512
"""The same, of what takes no byte in a record."""
_TICKS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
"""In a millisecond."""
_PLAIN: Final = {
    "null": avro.NULL, "boolean": avro.BOOLEAN, "int": avro.INT, "long": avro.LONG, "float": avro.FLOAT, "double": avro.DOUBLE,
    "string": avro.STRING, "bytes": avro.BINARY,
}  # fmt: skip


class AvroNodes(ABC):
    """A schema's types as rows of numbers: an operation, and two numbers more by which it goes on."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._nodes: list[Row] = []
        self._fields: list[Row] = []
        self._symbols: list[Row] = []
        self._names = Names()
        self._records: dict[str, int] = {}
        self._node(schema.root)

    def _node(self, kind: Type) -> int:
        """The place of a type's node; those of records are made once, so that a record may be inside of itself."""
        if isinstance(kind, NamedType):
            known = self._records.get(kind.name)
            return self._node(self._schema.named[kind.name]) if known is None else known
        place = len(self._nodes)
        self._nodes.append(())
        if isinstance(kind, RecordType):
            self._records[kind.name] = place
        self._nodes[place] = self._made(kind)
        return place

    def _made(self, kind: Type) -> Row:
        match kind:
            case PrimitiveType("bytes", "decimal", _, scale):
                return avro.DECIMAL, scale, -1
            case PrimitiveType("long", "ms" | "us" | "ns" as unit):
                return avro.INSTANT, _TICKS[unit], 0
            case PrimitiveType("int", "date"):
                return avro.DAYS, 0, 0
            case PrimitiveType():
                return _PLAIN[kind.kind], 0, -1
            case FixedType() if kind.logical == "decimal":
                return avro.DECIMAL, kind.scale, kind.size_bytes
            case FixedType():
                return avro.BINARY, 0, kind.size_bytes
            case EnumType():
                first = len(self._symbols)
                self._symbols += [self._names.put(self._symbol(symbol)) for symbol in kind.symbols]
                return avro.ENUM, first, len(kind.symbols)
            case ArrayType():
                return avro.ARRAY, self._node(kind.items), 0
            case MapType():
                return avro.MAP, self._node(kind.values), 0
            case UnionType():
                return avro.UNION, *self._union(kind)
            case RecordType():
                return avro.RECORD, self._record(kind), len(kind.fields)
        raise AssertionError(kind)

    @abstractmethod
    def _symbol(self, symbol: str) -> bytes:
        """A word of an enumeration, as compiled code writes or finds it."""

    @abstractmethod
    def _union(self, kind: UnionType) -> tuple[int, int]:
        """By which two numbers a union's branches are found."""

    @abstractmethod
    def _record(self, kind: RecordType) -> int:
        """The first of a record's fields."""


class ManyAvroReader(AvroNodes):
    """The reader of a schema's records."""

    def __init__(self, schema: AvroSchema) -> None:
        self._branches: list[int] = []
        super().__init__(schema)
        tables = (
            table(self._nodes, 3), table(self._fields, 3), np.array(self._branches, np.int64), table(self._symbols, 2),
            self._names.array(),
        )  # fmt: skip
        self._column = Made(
            avro.read, tables, lambda longest: room_to_work(0, longest)[1:], _GROWTH, len(self._names) + _ROW_BYTES
        )

    def read(self, records: pa.BinaryArray) -> tuple[pa.BinaryArray, Bools]:
        """The JSON of records, shape (n,), and which are read; the others are the plain reader's."""
        return self._column.of(records)

    def _made(self, kind: Type) -> Row:
        if isinstance(kind, FixedType) and kind.logical == "uuid":
            return avro.UUID, 0, kind.size_bytes
        return super()._made(kind)

    def _symbol(self, symbol: str) -> bytes:
        return render_json(symbol)

    def _union(self, kind: UnionType) -> tuple[int, int]:
        branches = [self._node(branch) for branch in kind.branches]
        self._branches += branches
        return len(self._branches) - len(branches), len(branches)

    def _record(self, kind: RecordType) -> int:
        fields = [(*self._names.put(render_json(f.name) + b":"), self._node(f.type)) for f in kind.fields]
        self._fields += fields
        return len(self._fields) - len(fields)
