"""Many documents to records of one schema at once, by compiled code: the bytes that `writer_of` gives for each."""

from decimal import Decimal
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import avro, avro_writing, numbers, tags
from tidemark.shared.language.avro.many import AvroNodes
from tidemark.shared.language.avro.schema import (
    AvroSchema,
    FixedType,
    PrimitiveType,
    RecordType,
    Type,
    UnionType,
)
from tidemark.shared.language.avro.writing import Writers, orders_of
from tidemark.shared.language.many import Bools, Made, Row, table
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


class ManyAvroWriter(AvroNodes):
    """The writer of a schema's records. AvroSchemaError for a wrong default."""

    def __init__(self, schema: AvroSchema) -> None:
        self._writers = Writers(schema)
        self._lookup: list[int] = []
        self._unions: list[Row] = []
        self._branches: list[Row] = []
        super().__init__(schema)
        tables = (
            table(self._nodes, 4), table(self._fields, 5), np.array(self._lookup, np.int64), table(self._unions, 2),
            table(self._branches, 2), table(self._symbols, 2), self._names.array(),
        )  # fmt: skip
        self._column = Made(avro_writing.write, tables, self._work, _GROWTH, len(self._names) + _ROW_BYTES)

    def write(self, values: pa.BinaryArray) -> tuple[pa.BinaryArray, Bools]:
        """The records of encoded values, shape (n,), and which are written; the others are the plain writer's."""
        return self._column.of(values)

    def _work(self, _longest: int) -> tuple[npt.NDArray[np.int64], ...]:
        slots = max((count for op, _, count, _ in self._nodes if op == avro.RECORD), default=0)
        return np.empty((5, avro_writing.FRAMES_MAX), np.int64), np.empty(avro.DEPTH_MAX * slots, np.int64)

    def _made(self, kind: Type) -> Row:
        """As of the reader, and of a decimal how many digits it has."""
        digits = kind.precision if isinstance(kind, PrimitiveType | FixedType) and kind.logical == "decimal" else 0
        return *super()._made(kind), digits

    def _symbol(self, symbol: str) -> bytes:
        return symbol.encode()

    def _record(self, kind: RecordType) -> int:
        """The first of a record's fields."""
        rows = []
        for field in kind.fields:
            absent = self._writers.absent(field)
            missing = (-1, -1) if absent is None else self._names.put(absent)
            rows.append((*self._names.put(field.name.encode()), self._node(field.type), *missing))
        first = len(self._fields)
        self._fields += rows
        by_name = sorted((field.name.encode(), place) for place, field in enumerate(kind.fields))
        self._lookup += [place for _, place in by_name]
        return first

    def _union(self, kind: UnionType) -> tuple[int, int]:
        """The first of a union's rows, which are the branches that are tried for a value of each type."""
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
        return first, 0
