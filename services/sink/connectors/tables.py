"""Documents as Arrow tables, for formats with columns.

A declared field is a typed column already. What was not declared becomes a column whose type its values agree on; values that agree
on none (and those without a counterpart in Arrow) are written as relaxed extended JSON text, so that nothing is lost or guessed.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from tidemark.shared.language.values import render_json
from tidemark.shared.model.values import MISSING, Binary, Date, Document, Long, ObjectId
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.batches import declared_columns, documents_of, user_columns

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
    others = [
        {name: value for name, value in document.items() if name not in declared} for document in documents_of(batch)
    ]
    undeclared = table_of_documents(others)
    if not declared:
        return undeclared
    for name in undeclared.column_names:
        table = table.append_column(name, undeclared.column(name))
    return table


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
    # Types whose text would look like a string's, and mixtures, keep their own type in the text.
    if agreed is None or (agreed == pa.string() and len(kinds) > 1):
        return pa.array([None if value is None else render_json(value).decode() for value in values], pa.string())
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


def _plain(value: Any) -> Any:
    match value:
        case Date() | Long():
            return int(value)
        case Decimal() | ObjectId():
            return str(value)
        case Binary():
            return bytes(value)
        case _:
            return value
