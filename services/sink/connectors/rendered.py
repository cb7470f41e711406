"""Rows as relaxed extended JSON, by compiled code: byte for byte what `render_json` gives for each document."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shared.compiled import rendering, tags
from shared.compiled.documents import buffers
from shared.language.values import encode_value, render_json
from shared.model.values import MISSING
from shared.operators.base import RAW, REST
from shared.operators.batches import TIMESTAMP, documents_of, empty_of, is_tagged, user_columns, values_of

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int64s: TypeAlias = npt.NDArray[np.int64]
_GROWTH: Final = 8
"""How many times as long as in the codec, or in another JSON, a value's JSON may be: of control characters, and of dates as numbers."""
_CELL_BYTES: Final = 64
"""A number, a date, or a bracket, a comma and a colon."""
_NULLS: Final = {"missing": tags.MISSING, "null": tags.NULL, None: rendering.ASK}


@dataclass(frozen=True, slots=True)
class _Cells:
    """What a column says, shape (n,) each; the places are those in the column's own bytes."""

    kinds: Bytes
    numbers: Int64s
    begins: Int64s
    ends: Int64s
    data: Bytes


def rendered(batch: pa.RecordBatch) -> pa.BinaryArray:
    """The JSON of each row's document, shape (n,)."""
    names, count = user_columns(batch), batch.num_rows
    columns = [_cells(batch.column(name), batch.schema.field(name)) for name in names]
    written = [msgspec.json.encode(name) + b":" for name in names]
    text, bounds = _documents(batch)
    bases = np.cumsum([0, *(len(column.data) for column in columns)])
    begins, ends = (
        _stacked([places + base for places, base in zip(every, bases[:-1], strict=True)], count)
        for every in ([c.begins for c in columns], [c.ends for c in columns])
    )
    data = (
        columns[0].data if len(columns) == 1 else np.concatenate([c.data for c in columns] or [np.empty(0, np.uint8)])
    )
    room = _GROWTH * (int(bounds[-1] - bounds[0]) + len(data)) + count * (
        _CELL_BYTES + sum(len(w) + _CELL_BYTES for w in written)
    )
    out, offsets, sure = np.empty(room + _CELL_BYTES, np.uint8), np.empty(count + 1, np.int64), np.ones(count, np.bool_)
    size = rendering.render(
        text, bounds, REST in batch.schema.names, np.frombuffer(b"".join(written), np.uint8),
        np.cumsum([len(w) for w in written], dtype=np.int64), _stacked([c.kinds for c in columns], count, np.uint8),
        _stacked([c.numbers for c in columns], count), begins, ends, data, out, offsets, sure,
    )  # fmt: skip
    out.resize(size, refcheck=False)
    found = pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(out)])
    return _with_others(found, sure, batch)


def _with_others(found: pa.Array, sure: npt.NDArray[np.bool_], batch: pa.RecordBatch) -> pa.BinaryArray:
    """With the rows that the interpreter has to render."""
    if bool(sure.all()):
        return found.cast(pa.binary())
    rows = np.flatnonzero(~sure)
    texts = [render_json(document) for document in documents_of(batch.take(pa.array(rows)))]
    order = np.arange(len(sure), dtype=np.int64)
    order[rows] = len(sure) + np.arange(len(rows))
    return pa.concat_arrays([found, pa.array(texts, pa.large_binary())]).take(pa.array(order)).cast(pa.binary())


def _documents(batch: pa.RecordBatch) -> tuple[Bytes, Int64s]:
    """The bytes of the rows' documents, and where each lies; without documents each is an empty one."""
    if REST in batch.schema.names:
        rest = batch.column(REST)
        return buffers(rest.fill_null(b"") if rest.null_count else rest)
    if RAW in batch.schema.names:
        return buffers(batch.column(RAW))
    return np.frombuffer(b"{}" * batch.num_rows, dtype=np.uint8), 2 * np.arange(batch.num_rows + 1, dtype=np.int64)


def _stacked(rows: Sequence[npt.NDArray[np.generic]], count: int, kind: type = np.int64) -> npt.NDArray[np.generic]:
    return np.ascontiguousarray(rows, dtype=kind) if rows else np.empty((0, count), dtype=kind)


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
        return _Cells(_kinds(column, tags.LONG, empty), _whole(column), zeros, zeros, nothing)
    if pa.types.is_float64(kind):
        bits = column.fill_null(0.0).to_numpy(zero_copy_only=False).view(np.int64)
        return _Cells(_kinds(column, tags.DOUBLE, empty), bits, zeros, zeros, nothing)
    if pa.types.is_timestamp(kind):
        return _Cells(_kinds(column, tags.DATE, empty), _whole(column.cast(TIMESTAMP)), zeros, zeros, nothing)
    encoded = [None if v is None or v is MISSING else encode_value(v) for v in values_of(column, field)]
    cells = pa.array(encoded, pa.binary())
    data, bounds = buffers(cells)
    return _Cells(_kinds(cells, rendering.ENCODED, empty), zeros, bounds[:-1], bounds[1:], data)


def _kinds(column: pa.Array, there: int, empty: int) -> Bytes:
    if not column.null_count:
        return np.full(len(column), there, dtype=np.uint8)
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), there, empty).astype(np.uint8)


def _whole(column: pa.Array) -> Int64s:
    numbers: Int64s = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return numbers
