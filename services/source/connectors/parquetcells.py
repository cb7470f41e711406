"""Cells of a Parquet file as values of the language.

Times become dates of milliseconds in every unit and year. Python has none before 1 and after 9999, so such rows are read number by
number. Maps with texts as keys are documents, others arrays of {k, v}, as `$objectToArray` writes them.
Unsigned numbers beyond a long are doubles, as in JSON.
"""

import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidemark.shared.language.kernels.cells import tagged
from tidemark.shared.language.values import render_json
from tidemark.shared.language.values.instants import DAY_MS, ms_of
from tidemark.shared.model.values import INT64_MAX, MISSING, UUID_SUBTYPE, Binary, Date, Document
from tidemark.shared.operators.batches import TAGGED_FIELD, TIMESTAMP, column_field, is_engine
from tidemark.shared.operators.rendered import rendered

_PER_S: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_PLAIN: Final = {
    **{kind: pa.string() for kind in (pa.string(), pa.large_string())},
    pa.bool_(): pa.bool_(),
    **{kind: pa.float64() for kind in (pa.float32(), pa.float64())},
    **{
        kind: pa.int64()
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
    },
}
"""Types that stages have, or that become one of them without loss."""
_WORD: Final = 64
"""Bits."""
_SURE: Final = 2**53
"""Times up to this are multiplied without an overflow."""
_Read = Callable[[Any], Any]


def texts_of(batch: pa.RecordBatch) -> list[bytes]:
    """The JSON of each row's document (`documents_of_batch`): columns of plain types as they are, the cells of others one by one."""
    if any(map(is_engine, batch.schema.names)):
        return [render_json(document) for document in documents_of_batch(batch)]
    columns = [_column(column, field.type) for column, field in zip(batch.columns, batch.schema, strict=True)]
    fields = [field.with_name(name) for (field, _), name in zip(columns, batch.schema.names, strict=True)]
    rows = pa.RecordBatch.from_arrays([column for _, column in columns], schema=pa.schema(fields))
    return list(rendered(rows).to_pylist()) if fields else [b"{}"] * batch.num_rows


def _column(column: pa.Array, kind: pa.DataType) -> tuple[pa.Field, pa.Array]:
    """A column as stages have it; a null cell is a missing field."""
    plain = _PLAIN.get(kind)
    if plain is not None:
        return column_field(plain, empty="missing"), column.cast(plain)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        per, a_ms = (
            (_PER_S[kind.unit], 1_000) if pa.types.is_timestamp(kind) else (1, 1 if kind.bit_width == _WORD else DAY_MS)
        )
        there = column.is_valid().to_numpy(zero_copy_only=False)
        numbers = (
            column.cast(pa.int64() if kind.bit_width == _WORD else pa.int32()).fill_null(0).to_numpy().astype(np.int64)
        )
        if len(numbers) and int(numbers.min()) >= -_SURE and int(numbers.max()) <= _SURE:
            dates = pa.array(numbers * a_ms // per, TIMESTAMP, mask=~there)
            return column_field(TIMESTAMP, empty="missing"), dates
    read = _reader(kind)
    return TAGGED_FIELD, tagged(MISSING if cell is None else read(cell) for cell in _cells(column))


def documents_of_batch(batch: pa.RecordBatch) -> Sequence[Document]:
    """A document a row; null cells are missing fields."""
    readers = [(field.name, _reader(field.type)) for field in batch.schema]
    return [
        {name: read(cell) for (name, read), cell in zip(readers, row, strict=True) if cell is not None}
        for row in zip(*(_cells(column) for column in batch.columns), strict=True)
    ]


def _cells(column: pa.Array) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [_plain(scalar) for scalar in column]


def _plain(scalar: Any) -> Any:
    """The value of `as_py`, with dates where Python has none."""
    if not scalar.is_valid:
        return None
    match scalar:
        case pa.TimestampScalar():
            return Date(scalar.value * _PER_S["ms"] // _PER_S[scalar.type.unit])
        case pa.Date32Scalar():
            return Date(scalar.value * DAY_MS)
        case pa.Date64Scalar():
            return Date(scalar.value)
        case pa.StructScalar():
            return {name: _plain(inner) for name, inner in scalar.items()}
        case pa.MapScalar():
            return [(_plain(pair["key"]), _plain(pair["value"])) for pair in scalar.values]
        case pa.ListScalar():
            return [_plain(inner) for inner in scalar.values]
        case pa.DictionaryScalar():
            return _plain(scalar.value)
        case _:
            return scalar.as_py()


def _reader(kind: pa.DataType) -> _Read:
    """How a Python value of an Arrow type becomes one of the language; never called with None. TypeError for a type without one."""
    if pa.types.is_run_end_encoded(kind):
        return _reader(kind.value_type)
    if pa.types.is_union(kind):
        raise TypeError(f"not a value of the language: {kind}")
    if pa.types.is_map(kind):
        return _map_reader(kind)
    if pa.types.is_struct(kind):
        fields = {field.name: _reader(field.type) for field in kind}
        return lambda cell: {name: fields[name](inner) for name, inner in cell.items() if inner is not None}
    if pa.types.is_nested(kind):
        item = _reader(kind.value_type)
        return lambda cell: [None if inner is None else item(inner) for inner in cell]
    return _scalar


def _map_reader(kind: pa.MapType) -> _Read:
    key, item = _reader(kind.key_type), _reader(kind.item_type)
    if pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type):
        return lambda cell: {name: None if inner is None else item(inner) for name, inner in cell}
    return lambda cell: [{"k": key(name), "v": None if inner is None else item(inner)} for name, inner in cell]


def _scalar(cell: Any) -> Any:
    match cell:
        case dt.date():
            return Date(ms_of(cell))
        case bytes():
            return Binary(cell)
        case uuid.UUID():
            return Binary(cell.bytes, UUID_SUBTYPE)
        case dt.time() | dt.timedelta():
            return str(cell)
        case int() if cell > INT64_MAX:
            return float(cell)
        case _:
            return cell
