"""Rows as whole documents in the compact codec, by compiled code; and the values of a batch's columns, in the form of compiled writers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import rendering, tags
from tidemark.shared.compiled.columns import with_rows
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.compiled.name_tables import NameTable, name_table
from tidemark.shared.language.values import encode_docs, encode_value
from tidemark.shared.model.values import MISSING
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.batches import (
    NO_FIELDS,
    TIMESTAMP,
    documents_of,
    empty_of,
    is_narrow,
    is_tagged,
    is_untyped,
    user_columns,
    values_of,
)

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int64s: TypeAlias = npt.NDArray[np.int64]
_GROWTH: Final = 3
"""How many times as long as its JSON a value may be: a double has nine bytes."""
_CELL_BYTES: Final = 16
"""A number, a date, or a header."""
_MAP_4, _MAP_16 = 0x80, 0xDE
"""First bytes of a map in the codec: with its number of fields, up to 15, in them, and in the two bytes that follow."""
_NULLS: Final = {"missing": tags.MISSING, "null": tags.NULL, None: rendering.ASK}


@dataclass(frozen=True, slots=True)
class _Cells:
    """The values of a column, shape (n,) each; the places are those in the column's own bytes."""

    kinds: Bytes
    numbers: Int64s
    begins: Int64s
    ends: Int64s
    data: Bytes


@dataclass(frozen=True, slots=True)
class Overlay:
    """The documents of n rows, and k columns for some of their fields: the input of `rendering.render` and `rendering.encode`."""

    text: Bytes
    bounds: Int64s
    encoded: bool
    names: NameTable
    """As they are written."""
    kinds: Bytes
    """Shape (k, n), as the three that follow."""
    numbers: Int64s
    begins: Int64s
    ends: Int64s
    data: Bytes

    @classmethod
    def of(cls, batch: pa.RecordBatch, written: Callable[[str], bytes], without: Sequence[str] = ()) -> "Overlay":
        """Of a batch, but for the fields `without`; `written`: a name as the writer has it."""
        count = batch.num_rows
        columns = {
            name: _cells(batch.column(name), batch.schema.field(name))
            for name in user_columns(batch)
            if name not in without
        }
        columns.update(dict.fromkeys(without, _nothing(count)))
        bases = np.cumsum([0, *(len(column.data) for column in columns.values())])[:-1]
        begins, ends = (
            _stacked([places + base for places, base in zip(every, bases, strict=True)], count)
            for every in ([c.begins for c in columns.values()], [c.ends for c in columns.values()])
        )
        data = [column.data for column in columns.values()] or [np.empty(0, np.uint8)]
        text, bounds = _documents(batch)
        return cls(
            text, bounds, REST in batch.schema.names, name_table(tuple(map(written, columns))),
            _stacked([c.kinds for c in columns.values()], count, np.uint8),
            _stacked([c.numbers for c in columns.values()], count), begins, ends,
            data[0] if len(data) == 1 else np.concatenate(data),
        )  # fmt: skip

    def room(self, growth: int, cell_bytes: int) -> int:
        """Bytes that hold the rows written, where a value takes so many times the bytes that it has, or those of a cell."""
        rows = len(self.bounds) - 1
        names = len(self.names[0]) + len(self.kinds) * cell_bytes
        return growth * (int(self.bounds[-1] - self.bounds[0]) + len(self.data)) + rows * (cell_bytes + names)

    def room_to_work(self) -> tuple[npt.NDArray[Any], ...]:
        """The writers' working memory."""
        return rendering.room_to_work(len(self.kinds), int(np.diff(self.bounds).max(initial=0)))


def encoded(batch: pa.RecordBatch, without: Sequence[str] = ()) -> pa.BinaryArray:
    """The document of each row, encoded, but for the fields `without`; shape (n,), no nulls."""
    if not without and is_untyped(batch):
        return batch.column(REST).fill_null(NO_FIELDS)
    overlay, count = Overlay.of(batch, encode_value, without), batch.num_rows
    out = np.empty(overlay.room(_GROWTH, _CELL_BYTES) + _CELL_BYTES, np.uint8)
    offsets, sure = np.empty(count + 1, np.int64), np.ones(count, np.bool_)
    size = rendering.encode(
        rendering.CODEC, overlay.text, overlay.bounds, overlay.encoded, *overlay.names, overlay.kinds, overlay.numbers,
        overlay.begins, overlay.ends, overlay.data, out, offsets, sure, *overlay.room_to_work(),
    )  # fmt: skip
    out.resize(size, refcheck=False)

    def others(rows: pa.RecordBatch) -> list[bytes]:
        documents = documents_of(rows)
        return encode_docs({n: v for n, v in d.items() if n not in without} for d in documents)

    return with_others(offsets, out, sure, batch, others)


def field_counts(documents: pa.BinaryArray) -> Int64s:
    """How many fields encoded documents have, shape (n,); -1 for more than a map's header of two bytes tells."""
    text, bounds = buffers(documents)
    padded = np.concatenate((text, np.zeros(3, dtype=np.uint8))).astype(np.int64)
    begins = bounds[:-1]
    first = padded[begins]
    several = padded[begins + 1] << 8 | padded[begins + 2]
    found: Int64s = np.where(first == _MAP_16, several, np.where((first & 0xF0) == _MAP_4, first & 0x0F, -1))
    return found


def with_others(
    offsets: Int64s,
    out: Bytes,
    sure: npt.NDArray[np.bool_],
    batch: pa.RecordBatch,
    others: Callable[[pa.RecordBatch], list[bytes]],
) -> pa.BinaryArray:
    """The output of a compiled writer, with that of `others` for the rows of which the writer was not sure."""
    count = len(sure)
    found = pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(out)])
    if bool(sure.all()):
        return found.cast(pa.binary())
    rows = np.flatnonzero(~sure)
    texts = others(batch.take(pa.array(rows)))
    return with_rows(found, rows, pa.array(texts, pa.large_binary())).cast(pa.binary())


def _documents(batch: pa.RecordBatch) -> tuple[Bytes, Int64s]:
    """The bytes of the rows' documents, and where each lies; without documents each is an empty one."""
    if REST in batch.schema.names:
        rest = batch.column(REST)
        return buffers(rest.fill_null(b"") if rest.null_count else rest)
    if RAW in batch.schema.names:
        return buffers(batch.column(RAW))
    return np.frombuffer(b"{}" * batch.num_rows, dtype=np.uint8), 2 * np.arange(batch.num_rows + 1, dtype=np.int64)


def _stacked(rows: Sequence[npt.NDArray[Any]], count: int, kind: type = np.int64) -> npt.NDArray[Any]:
    return np.ascontiguousarray(rows, dtype=kind) if rows else np.empty((0, count), dtype=kind)


def _nothing(count: int) -> _Cells:
    zeros = np.zeros(count, dtype=np.int64)
    return _Cells(np.full(count, tags.MISSING, dtype=np.uint8), zeros, zeros, zeros, np.empty(0, dtype=np.uint8))


def _cells(column: pa.Array, field: pa.Field) -> _Cells:
    """A column as the compiled code reads it; types that it does not know are encoded value by value."""
    kind, count = column.type, len(column)
    zeros, nothing = np.zeros(count, dtype=np.int64), np.empty(0, dtype=np.uint8)
    if is_tagged(field):
        data, bounds = buffers(column)
        return _Cells(_kinds(column, rendering.ENCODED, tags.MISSING), zeros, bounds[:-1], bounds[1:], data)
    empty = _NULLS[empty_of(field)]
    if pa.types.is_string(kind):
        data, bounds = buffers(column)
        return _Cells(_kinds(column, tags.STRING, empty), zeros, bounds[:-1], bounds[1:], data)
    if pa.types.is_boolean(kind):
        return _Cells(_kinds(column, tags.BOOL, empty), _whole(column.cast(pa.int8())), zeros, zeros, nothing)
    if pa.types.is_signed_integer(kind):
        tag = tags.LONG if pa.types.is_int64(kind) and not is_narrow(field) else tags.INT
        return _Cells(_kinds(column, tag, empty), _whole(column), zeros, zeros, nothing)
    if pa.types.is_float64(kind):
        bits = column.fill_null(0.0).to_numpy(zero_copy_only=False).view(np.int64)
        return _Cells(_kinds(column, tags.DOUBLE, empty), bits, zeros, zeros, nothing)
    if pa.types.is_timestamp(kind):
        return _Cells(_kinds(column, tags.DATE, empty), _whole(column.cast(TIMESTAMP)), zeros, zeros, nothing)
    encoded_values = [None if v is None or v is MISSING else encode_value(v) for v in values_of(column, field)]
    cells = pa.array(encoded_values, pa.binary())
    data, bounds = buffers(cells)
    return _Cells(_kinds(cells, rendering.ENCODED, empty), zeros, bounds[:-1], bounds[1:], data)


def _kinds(column: pa.Array, there: int, empty: int) -> Bytes:
    if not column.null_count:
        return np.full(len(column), there, dtype=np.uint8)
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), there, empty).astype(np.uint8)


def _whole(column: pa.Array) -> Int64s:
    cells = column.cast(pa.int64())
    numbers: Int64s = (cells.fill_null(0) if cells.null_count else cells).to_numpy(zero_copy_only=False)
    return numbers
