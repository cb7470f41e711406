"""Documents as Arrow tables, for formats with columns.

A declared field is a typed column already. An undeclared field becomes a column of the type that its values agree on. Values that agree
on none (and those without a counterpart in Arrow) are written as relaxed extended JSON text, so that nothing is lost or guessed.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.columns import TAGS, CellType, Tagged
from tidemark.shared.compiled.documents import read_packed
from tidemark.shared.language.kernels.cells import values_at
from tidemark.shared.language.values import decode_doc, render_json
from tidemark.shared.model.values import MISSING, Binary, Date, Document, Long, ObjectId
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.batches import declared_columns, user_columns
from tidemark.shared.operators.encoded import encoded, field_counts

_SCALARS: Final[dict[type, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    Long: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    Date: pa.timestamp("ms", tz="UTC"),
    Binary: pa.binary(),
    ObjectId: pa.string(),
    Decimal: pa.string(),
}


_ALONE: Final[Sequence[CellType]] = ("string", "bool", "date")
_EXACT: Final = 2**53
"""Whole numbers up to this are doubles without loss."""


def table_of(batch: pa.RecordBatch) -> pa.Table:
    """The user's columns of a batch: as they are where all fields are declared, else with the types their values agree on."""
    declared = declared_columns(batch)
    # Metadata of fields is the engine's, and would keep tables apart.
    table = pa.Table.from_batches([batch.select(declared)])
    table = table.cast(pa.schema([pa.field(field.name, field.type) for field in table.schema]))
    rest = batch.column(REST) if REST in batch.schema.names else None
    plain = len(declared) == len(user_columns(batch))
    if plain and RAW not in batch.schema.names and (rest is None or rest.null_count == len(rest)):
        return table
    others = encoded(batch, declared)
    names = _names(others)
    cells = read_packed(others, [(name,) for name in names]) if names else {}
    columns = {name: _cells_column(cells[name,]) for name in names}
    if not declared:
        return pa.table(columns)
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def _names(documents: pa.BinaryArray) -> list[str]:
    """The fields that encoded documents have, in the order in which they first appear.

    Decoded are only documents with a field that none had before, and after each look twice as many of these.
    """
    names: dict[str, None] = {}
    counts = field_counts(documents)
    left, some = np.flatnonzero(counts), 1
    while len(left):
        for document in documents.take(pa.array(left[:some])).to_pylist():
            names.update(dict.fromkeys(decode_doc(document)))
        left = left[some:]
        cells = read_packed(documents.take(pa.array(left)), [(name,) for name in names])
        found = sum((cell.tags != tags.MISSING).astype(np.int64) for cell in cells.values())
        left, some = left[counts[left] != found], 2 * some
    return list(names)


def _cells_column(cells: Tagged) -> pa.Array:
    """A field's values: at once where they have one type or are numbers, else as `_column` makes them, which defines the result."""
    whole, doubles = np.isin(cells.tags, (tags.INT, tags.LONG)), cells.tags == tags.DOUBLE
    for kind in _ALONE:
        if cells.has(TAGS[kind]) and cells.all(TAGS[kind], tags.MISSING, tags.NULL):
            return cells.of(kind)
    if cells.has(tags.INT, tags.LONG) and cells.all(tags.INT, tags.LONG, tags.MISSING, tags.NULL):
        return pa.array(cells.numbers, pa.int64(), mask=~whole)
    numbers = cells.all(tags.INT, tags.LONG, tags.DOUBLE, tags.MISSING, tags.NULL) and cells.has(tags.DOUBLE)
    small = (cells.numbers >= -_EXACT) & (cells.numbers <= _EXACT)
    if numbers and bool(small[whole].all()):
        values = np.where(doubles, cells.numbers.view(np.float64), cells.numbers.astype(np.float64))
        return pa.array(values, pa.float64(), mask=~(whole | doubles))
    return _column([None if value is MISSING else value for value in values_at(cells)])


def table_of_documents(documents: Sequence[Document]) -> pa.Table:
    """One column a field, in the order in which fields first appear; a missing field is null."""
    fields = dict.fromkeys(name for document in documents for name in document)
    columns = {name: _column([document.get(name) for document in documents]) for name in fields}
    return pa.table(columns)


def _column(values: list[Any]) -> pa.Array:
    present = [value for value in values if value is not None and value is not MISSING]
    kinds = {type(value) for value in present}
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {list}:
        return _lists(values)
    if kinds == {dict}:
        return _structs(values, present)
    types = {_SCALARS.get(kind) for kind in kinds}
    if types == {pa.int64(), pa.float64()} and all(
        abs(value) <= _EXACT for value in present if type(value) is not float
    ):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    agreed = types.pop() if len(types) == 1 else None
    if agreed is None or agreed == pa.string():
        return pa.array([as_text(value) for value in values], pa.string())
    return pa.array([_plain(value) for value in values], agreed)


def _lists(values: list[Any]) -> pa.Array:
    offsets = [0]
    flat: list[Any] = []
    for value in values:
        flat += value or []
        offsets.append(len(flat))
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), _column(flat), mask=pa.array([value is None for value in values])
    )


def _structs(values: list[Any], present: list[Document]) -> pa.Array:
    fields = list(dict.fromkeys(name for value in present for name in value))
    if not fields:
        # Parquet has no struct without fields.
        return pa.array([None if value is None else "{}" for value in values], pa.string())
    columns = [_column([None if value is None else value.get(name) for value in values]) for name in fields]
    return pa.StructArray.from_arrays(columns, fields, mask=pa.array([value is None for value in values]))


def as_text(value: object) -> str | None:
    """A value in a column of text, whatever the other rows have: texts are as they are; None for null and missing."""
    if value is None or value is MISSING:
        return None
    return str(value) if isinstance(value, str | Decimal | ObjectId) else render_json(value).decode()


def _plain(value: object) -> Any:
    match value:
        case Date() | Long():
            return int(value)
        case Binary():
            return bytes(value)
        case _:
            return value
