"""JSON records to typed columns: vectorised for declared fields, record by record where that could be wrong.

Rules:

- The plain path defines the result: `parse_json`, then `fit` to the schema. The fast path (arro3, all records at once) must agree,
  whatever stands beside a record; what it might not agree on is read the plain way: what `decode_screen` finds, a number beyond 2⁵³, a
  fraction in an int, a required field that is not there, and whatever makes the reader fail, found by halving.
- One record is one row: records that are not strictly one JSON object each do not get to the fast reader.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import arro3.core
import arro3.io
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shared.language.schema import NO_SCHEMA, Field, Schema, SchemaMismatch, fit
from shared.language.values import ExtendedJsonError, encode_doc, parse_json
from shared.language.values.instants import parse_iso
from shared.model.values import Document
from shared.operators.base import RAW, REST
from shared.operators.batches import ARROW_TYPES, TIMESTAMP, column_of, typed, typed_fields
from shared.operators.decode_screen import beyond, joined, strict, strict_each, whole_objects

EXACT_MAX: Final = 2.0**53
"""Below this, a double tells whole numbers apart."""
HALVE_DOWN_TO: Final = 32
"""A buffer of so few records that the reader refuses is read record by record."""
READER_ROWS: Final = 8192
"""Rows of one batch of the reader: more at once are slower."""
_DATE: Final = pa.struct([pa.field("$date", pa.string())])
_READ_AS: Final = {"int": pa.float64(), "long": pa.float64(), "double": pa.float64(), "date": _DATE}

Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that is no document of the schema."""

    row: int
    reason: str
    code: str
    path: str
    document: Document | None
    """None: it is no JSON object at all."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows that decoded, and those that did not, both in the order of the records."""

    rows: npt.NDArray[np.int64]
    """Shape (n,): the record of each row of `batch`."""
    batch: pa.RecordBatch
    """Typed columns and RAW, or, where all went the plain way, REST."""
    bad: tuple[Bad, ...]


def decode(values: pa.BinaryArray, schema: Schema) -> Decoded:
    """Decode records; nothing raised for what is wrong with one of them."""
    if not schema:
        return _decode_whole(values)
    if any(f.type not in ARROW_TYPES for f in schema):
        return _decode_plain(values, schema)
    plain = ~whole_objects(values)
    parts: list[tuple[npt.NDArray[np.int64], pa.Table]] = []
    stream = np.flatnonzero(~plain)
    _read(values, stream, schema, parts, plain)
    rows, batch = _assemble(parts, values, schema)
    if not plain.any():
        return Decoded(rows, batch, ())
    return _with_plain(values, np.flatnonzero(plain), schema, rows, batch)


# --- fast path --------------------------------------------------------------------------------------------------------


def _read(
    values: pa.BinaryArray,
    rows: npt.NDArray[np.int64],
    schema: Schema,
    parts: list[tuple[npt.NDArray[np.int64], pa.Table]],
    plain: Bools,
) -> None:
    """Read these records at once; where the reader refuses, each half by itself, and few records the plain way."""
    if not len(rows):
        return
    chosen = values if len(rows) == len(values) else values.take(pa.array(rows))
    table = _read_stream(chosen, schema)
    if table is not None:
        doubt = _doubtful(table, chosen, schema)
        plain[rows[doubt]] = True
        parts.append((rows[~doubt], table.filter(pa.array(~doubt)) if doubt.any() else table))
    elif len(rows) <= HALVE_DOWN_TO:
        plain[rows] = True
    else:
        middle = len(rows) // 2
        _read(values, rows[:middle], schema, parts, plain)
        _read(values, rows[middle:], schema, parts, plain)


def _read_stream(values: pa.BinaryArray, schema: Schema) -> pa.Table | None:
    """All records as one table with columns as `_READ_AS` says, or None if they are not all strict JSON, or the reader refuses."""
    lines = joined(values)
    if not strict(lines, len(values), schema):
        return None
    fields = [pa.field(f.name, _READ_AS.get(f.type, ARROW_TYPES[f.type])) for f in schema]
    asked = arro3.core.Schema.from_arrow(pa.schema(fields))
    try:
        table = pa.table(arro3.io.read_json(pa.BufferReader(lines), asked, batch_size=READER_ROWS))
    except (pa.ArrowInvalid, pa.ArrowException, ValueError, OSError):
        return None
    return table if table.num_rows == len(values) else None


def _doubtful(table: pa.Table, values: pa.BinaryArray, schema: Schema) -> Bools:
    """Rows whose columns may not be what the plain path gives; shape (n,)."""
    doubt: Bools = np.zeros(table.num_rows, dtype=np.bool_)
    dates = np.zeros(table.num_rows, dtype=np.int64)
    for field in schema:
        column = table.column(field.name)
        if not field.optional and column.null_count:
            doubt |= column.is_null().to_numpy()
        if field.type in ("int", "long", "double"):
            doubt |= _doubtful_number(column, field)
        elif field.type == "date":
            there = _date_text(column).is_valid().to_numpy(zero_copy_only=False)
            doubt |= column.is_valid().to_numpy() & _iso(_date_text(column)).is_null().to_numpy(zero_copy_only=False)
            dates += there
    return doubt | beyond(values, dates)


def _doubtful_number(column: pa.ChunkedArray, field: Field) -> Bools:
    cells = column.to_numpy()
    there = ~np.isnan(cells) if column.null_count else np.ones(len(cells), dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        doubt: Bools = there & ~(np.abs(cells) < EXACT_MAX)
        if field.type != "double":
            doubt |= there & (np.trunc(cells) != cells)
        if field.type == "int":
            doubt |= there & ~((cells >= -(2.0**31)) & (cells < 2.0**31))
    return doubt


# --- columns ----------------------------------------------------------------------------------------------------------


def _date_text(column: pa.ChunkedArray) -> pa.Array:
    return pc.struct_field(column.combine_chunks(), "$date")


def _iso(texts: pa.Array) -> pa.Array:
    """Instants of ISO 8601 texts, timestamp[ms, UTC]; null where it is none (or null)."""
    lengths = pc.binary_length(texts)
    usual = pc.and_(pc.or_(pc.equal(lengths, 20), pc.equal(lengths, 24)), pc.ends_with(texts, "Z"))
    if pc.all(pc.fill_null(usual, fill_value=True)).as_py() is not False:
        with suppress(pa.ArrowInvalid):  # a text of the usual form that is no instant: all are read one by one
            return texts.cast(TIMESTAMP)
    found = [None if t is None else parse_iso(t) for t in texts.to_pylist()]
    return pa.array(found, type=pa.int64()).cast(TIMESTAMP)


def instants(texts: pa.Array) -> pa.Array:
    """As `parse_iso`, vectorised where the texts are `YYYY-MM-DDTHH:MM:SS[.mmm]Z`: timestamp[ms, UTC], null for what is none."""
    return _iso(texts)


def _assemble(
    parts: list[tuple[npt.NDArray[np.int64], pa.Table]], values: pa.BinaryArray, schema: Schema
) -> tuple[npt.NDArray[np.int64], pa.RecordBatch]:
    """The typed batch, with RAW, of what the reader read; and which record each row is."""
    if not parts:
        empty = {f.name: pa.array([], type=f.type) for f in typed_fields(schema)}
        return np.empty(0, dtype=np.int64), _batch({**empty, RAW: pa.array([], type=pa.binary())})
    rows = np.concatenate([r for r, _ in parts])
    table = parts[0][1] if len(parts) == 1 else pa.concat_tables([t for _, t in parts])
    columns = {f.name: _column(table.column(f.name), f) for f in schema.fields}
    columns[RAW] = values if len(rows) == len(values) else values.take(pa.array(rows))
    return rows, _batch(columns)


def _column(column: pa.ChunkedArray, field: Field) -> pa.Array:
    if field.type == "date":
        return _iso(_date_text(column))
    one = column.combine_chunks()
    return one if one.type == ARROW_TYPES[field.type] else one.cast(ARROW_TYPES[field.type])


def _batch(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


# --- plain path -------------------------------------------------------------------------------------------------------


def _one(row: int, text: bytes | None, schema: Schema) -> Document | Bad:
    if text is None:
        return Bad(row, "The record has no value.", "NoValue", "", None)
    try:
        value = parse_json(text)
    except ExtendedJsonError as e:
        return Bad(row, f"The record does not decode: {e}", "DecodeFailure", "", None)
    if type(value) is not dict:
        return Bad(row, f"The record is no document but {type(value).__name__}.", "DecodeFailure", "", None)
    fitted = fit(_whole(value, schema), schema)
    if isinstance(fitted, SchemaMismatch):
        return Bad(row, fitted.reason, "SchemaMismatch", fitted.path, value)
    return fitted


def _whole(document: Document, schema: Schema) -> Document:
    """JSON does not tell 5 from 5.0: a whole number with a point is an int where an int or a long is declared."""
    changed = {
        f.name: int(v)
        for f in schema.fields
        if f.type in ("int", "long") and type(v := document.get(f.name)) is float and abs(v) < EXACT_MAX and v == int(v)
    }
    return {**document, **changed} if changed else document


def _decode_whole(values: pa.BinaryArray) -> Decoded:
    """Records of which nothing is declared: strict JSON objects stay as they came, the others go the plain way."""
    plain = ~whole_objects(values)
    if not plain.all():
        plain |= beyond(values, np.zeros(len(values), dtype=np.int64))
    chosen = np.flatnonzero(~plain)
    plain[chosen[~strict_each(values.take(pa.array(chosen)))]] = True
    found = {row: _one(row, values[row].as_py(), NO_SCHEMA) for row in np.flatnonzero(plain).tolist()}
    bad = tuple(item for item in found.values() if isinstance(item, Bad))
    if not bad:
        return Decoded(np.arange(len(values), dtype=np.int64), _batch({RAW: values}), ())
    plain[:] = False
    plain[[item.row for item in bad]] = True
    rows = np.flatnonzero(~plain)
    return Decoded(rows, _batch({RAW: values.take(pa.array(rows))}), bad)


def _decode_plain(values: pa.BinaryArray, schema: Schema) -> Decoded:
    """All records the plain way: a decimal is declared, which only the parsed document has."""
    found = [_one(row, text, schema) for row, text in enumerate(values.to_pylist())]
    good = [(row, item) for row, item in enumerate(found) if not isinstance(item, Bad)]
    rest = pa.array([encode_doc(d) for _, d in good], type=pa.binary())
    rows = np.array([row for row, _ in good], dtype=np.int64)
    batch = typed(_batch({REST: rest}), schema) if typed_fields(schema) else _batch({REST: rest})
    return Decoded(rows, batch, tuple(item for item in found if isinstance(item, Bad)))


def _with_plain(
    values: pa.BinaryArray,
    doubtful: npt.NDArray[np.int64],
    schema: Schema,
    rows: npt.NDArray[np.int64],
    batch: pa.RecordBatch,
) -> Decoded:
    """Add the records that go the plain way, and put all back in order."""
    found = [_one(row, values[row].as_py(), schema) for row in doubtful.tolist()]
    good = [(row, item) for row, item in zip(doubtful.tolist(), found, strict=True) if not isinstance(item, Bad)]
    columns: dict[str, Any] = {
        f.name: column_of([d.get(f.name) for _, d in good], f.type) for f in typed_fields(schema)
    }
    more = np.array([row for row, _ in good], dtype=np.int64)
    columns[RAW] = values.take(pa.array(more))
    columns = {name: columns[name] for name in batch.schema.names}
    both = pa.concat_tables([pa.Table.from_batches([batch]), pa.Table.from_batches([_batch(columns)])])
    all_rows = np.concatenate([rows, more])
    order = np.argsort(all_rows, kind="stable")
    ordered = both.take(pa.array(order)).combine_chunks()
    whole = ordered.to_batches()[0] if ordered.num_rows else batch.slice(0, 0)
    return Decoded(all_rows[order], whole, tuple(item for item in found if isinstance(item, Bad)))
