"""Documents and batches: how documents lie in Arrow columns, and back.

Rules:

- B1 A declared field (`shared.language.schema`) is a typed column, a null cell a missing or null field; every other field of a document
  lies in REST, and so does the explicit null of a declared one: where a cell is null, REST decides between null and missing.
- B2 Straight from the source, RAW (the record's JSON) stands where REST would: a row is parsed only where a stage looks at all of it.
  A typed column decides the value of its field, not RAW or REST, but for null (B1).
- B3 An untyped batch (`batch_of`) has REST and engine columns only. Typed columns stay typed as long as a stage is vectorised.
- B4 A long column whose field has the metadata `NARROW` holds whole numbers whose size alone says int or long, as sums do.
- B6 A tagged column has values of any types: each cell is an encoded value, which tells its type; a null cell is a missing field. A column
  with the mark `missing` or `null` decides the meaning of its null cells; RAW and REST are not read.
- B7 A loose column has a type that its batch's values happen to have: nothing outside of the batch may hang on it, as a file's schema.
- B5 Columns that begin with two underscores are the engine's: no document has them, and they stay with their rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.language.schema import FieldTypeName
from tidemark.shared.language.values import decode_doc, decode_value, encode_doc, encode_docs, parse_json
from tidemark.shared.model.values import MISSING, Binary, Date, Document, long
from tidemark.shared.operators.base import ENGINE_PREFIX, RAW, REST, OperatorError

TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")
NO_FIELDS: Final = encode_doc({})
NARROW: Final = {b"number": b"narrow"}
"""Metadata of an int64 field: see B4."""

_TAGGED: Final = b"tagged"
_EMPTY: Final = b"empty"
_LOOSE: Final = b"loose"
TAGGED_FIELD: Final = pa.field("", pa.binary(), metadata={_TAGGED: b"1", _LOOSE: b"1"})
"""A tagged column, without its name (B6)."""
Empty: TypeAlias = Literal["missing", "null"]


def column_field(kind: pa.DataType, *, empty: Empty | None = None, loose: bool = False) -> pa.Field:
    """A typed column, without its name; `empty`: the meaning of its null cells, None where REST decides (B6, B7)."""
    marks = {**({_EMPTY: empty.encode()} if empty else {}), **({_LOOSE: b"1"} if loose else {})}
    return pa.field("", kind, metadata=marks or None)


def _marked(field: pa.Field, mark: bytes) -> bool:
    return field.metadata is not None and mark in field.metadata


def is_tagged(field: pa.Field) -> bool:
    """Whether a column's cells are encoded values (B6)."""
    return _marked(field, _TAGGED)


def is_loose(field: pa.Field) -> bool:
    """Whether a column's type is its batch's alone (B7)."""
    return _marked(field, _LOOSE)


def is_narrow(field: pa.Field) -> bool:
    """Whether size alone tells ints from longs (B4)."""
    return field.metadata is not None and NARROW.items() <= field.metadata.items()


def empty_of(field: pa.Field) -> Empty | None:
    """The meaning of a typed column's null cells; None where REST decides."""
    found = field.metadata.get(_EMPTY) if field.metadata is not None else None
    return None if found is None else "null" if found == b"null" else "missing"


ARROW_TYPES: Final[Mapping[FieldTypeName, pa.DataType]] = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "date": TIMESTAMP,
}
"""Types with columns of their own. A declared decimal is checked by its schema, and travels in REST."""


def is_engine(name: str) -> bool:
    """Whether a column is the engine's (B5)."""
    return name.startswith(ENGINE_PREFIX)


def user_columns(batch: pa.RecordBatch | pa.Table) -> list[str]:
    """The typed columns of the user's document, in order."""
    return [name for name in batch.schema.names if not is_engine(name)]


def declared_columns(batch: pa.RecordBatch | pa.Table) -> list[str]:
    """The typed columns with types that outlast their batch (B7), in order."""
    return [name for name in user_columns(batch) if not is_loose(batch.schema.field(name))]


def is_untyped(batch: pa.RecordBatch) -> bool:
    """Whether REST is all that its documents have (B3)."""
    return REST in batch.schema.names and not user_columns(batch)


def engine_columns(batch: pa.RecordBatch, without: Iterable[str] = ()) -> dict[str, pa.Array]:
    """The engine's columns of a batch by name, but for some."""
    left_out = set(without)
    return {n: batch.column(n) for n in batch.schema.names if is_engine(n) and n not in left_out}


# --- columns to documents ---------------------------------------------------------------------------------------------


def documents_of(batch: pa.RecordBatch) -> list[Document]:
    """One document a row: RAW or REST, where typed columns overrule their own fields (B1, B2)."""
    names = user_columns(batch)
    documents = _untyped(batch)
    for name in names:
        field = batch.schema.field(name)
        values = values_of(batch.column(name), field)
        if is_tagged(field) or empty_of(field) is not None:
            _write(documents, name, values)
        else:
            _put(documents, name, values)
    return documents


def values_of(column: pa.Array, field: pa.Field) -> list[Any]:
    """The values of a column as the language has them; None for null cells, or MISSING where they say that they are (B6)."""
    if is_tagged(field):
        return [MISSING if cell is None else decode_value(cell) for cell in column.to_pylist()]
    values = _typed_values(column, field)
    return [MISSING if v is None else v for v in values] if empty_of(field) == "missing" else values


def _typed_values(column: pa.Array, field: pa.Field) -> list[Any]:
    read = _reader(field)
    cells = (
        column.to_pylist()
        if not pa.types.is_timestamp(column.type)
        else column.cast(TIMESTAMP).cast(pa.int64()).to_pylist()
    )
    return cells if read is None else [None if cell is None else read(cell) for cell in cells]


def _put(documents: list[Document], name: str, values: list[Any]) -> None:
    for document, value in zip(documents, values, strict=True):
        if value is not None:
            document[name] = value
        elif document.get(name) is not None:
            del document[name]


def _write(documents: list[Document], name: str, values: list[Any]) -> None:
    for document, value in zip(documents, values, strict=True):
        if value is not MISSING:
            document[name] = value
        else:
            document.pop(name, None)


def _untyped(batch: pa.RecordBatch) -> list[Document]:
    schema = batch.schema
    if schema.get_field_index(RAW) >= 0:
        return [_parse(text) for text in batch.column(RAW).to_pylist()]
    if schema.get_field_index(REST) >= 0:
        return [{} if data is None else decode_doc(data) for data in batch.column(REST).to_pylist()]
    return [{} for _ in range(batch.num_rows)]


def _parse(text: bytes | None) -> Document:
    if text is None:
        return {}
    value = parse_json(text)
    assert type(value) is dict, "the front passes on documents only"
    return value


def _reader(field: pa.Field) -> Callable[[Any], Any] | None:
    kind = field.type
    if pa.types.is_int64(kind):
        return None if is_narrow(field) else long
    if pa.types.is_timestamp(kind):
        return Date
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return Binary
    if pa.types.is_list(kind):
        item = _reader(kind.value_field)
        return None if item is None else lambda cells: [None if c is None else item(c) for c in cells]
    if pa.types.is_struct(kind):
        return _struct_reader(kind)
    return None


def _struct_reader(kind: pa.StructType) -> Callable[[Any], Any]:
    readers = {kind.field(i).name: _reader(kind.field(i)) for i in range(kind.num_fields)}

    def read(cell: Mapping[str, object]) -> Document:
        out: Document = {}
        for name, value in cell.items():
            if value is not None:
                item = readers[name]
                out[name] = value if item is None else item(value)
        return out

    return read


# --- documents to columns ---------------------------------------------------------------------------------------------


def batch_of(documents: Sequence[Document], engine: Mapping[str, pa.Array] | None = None) -> pa.RecordBatch:
    """An untyped batch (B3): the documents in REST, and the engine's columns given, of equal length."""
    return batch_of_encoded(encode_docs(documents), engine)


def batch_of_encoded(documents: Iterable[bytes], engine: Mapping[str, pa.Array] | None = None) -> pa.RecordBatch:
    """The same of encoded documents."""
    columns: dict[str, pa.Array] = {REST: _rest_of(documents)}
    columns.update({n: c for n, c in (engine or {}).items() if n not in (REST, RAW)})
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def rest_of(documents: Sequence[Document]) -> pa.Array:
    """The REST column of whole documents; null for an empty one."""
    return _rest_of(encode_docs(documents))


def _rest_of(documents: Iterable[bytes]) -> pa.Array:
    return pa.array([data if data != NO_FIELDS else None for data in documents], type=pa.binary())


def column_of(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A typed column of the language's values, None for null cells."""
    if pa.types.is_timestamp(kind):
        return pa.array([None if c is None else int(c) for c in cells], type=pa.int64()).cast(kind)
    return pa.array(cells, type=kind)


# --- rows -------------------------------------------------------------------------------------------------------------


def int64s(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """A column of int64 without nulls as numpy; shape (n,)."""
    out: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return out


def select(batch: pa.RecordBatch, mask: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The rows for which the mask, shape (n,), is true; the batch itself if that is all of them."""
    if bool(mask.all()):
        return batch
    return batch.filter(pa.array(mask))


def with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """The batch with a column added or replaced."""
    at = batch.schema.get_field_index(name)
    if at < 0:
        return batch.append_column(name, column)
    return batch.set_column(at, name, column)


def concat(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """One table of batches whose columns may differ: a column that a batch lacks is null in its rows."""
    return pa.concat_tables([pa.Table.from_batches([b]) for b in batches], promote_options="default")


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """A table as a single batch (also of no rows). OperatorError where one column's values would be 2 GiB or more, Arrow's bound."""
    batches = table.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    if batches:
        message = (
            f"{table.num_rows} rows are to be worked on at once, and a column of theirs has 2 GiB or more, {table.nbytes} bytes in all:"
            " make windows, or checkpoint.interval, shorter, or documents smaller in front of the window"
        )
        raise OperatorError(message)
    return pa.RecordBatch.from_arrays([pa.array([], type=f.type) for f in table.schema], schema=table.schema)
