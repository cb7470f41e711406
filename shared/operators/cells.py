"""Values of the language as columns: of one type where they have one, else tagged."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import keys, tags, values
from tidemark.shared.compiled.columns import with_rows
from tidemark.shared.compiled.documents import numeric
from tidemark.shared.language.kernels.base import ARROW, Bools, Column, ColumnType, nulls_of
from tidemark.shared.language.kernels.cells import TYPES, column_of_values, encoded, tagged
from tidemark.shared.language.values import canonical_key, decode_value, type_name
from tidemark.shared.model.values import MISSING, Value
from tidemark.shared.operators.batches import (
    ARROW_TYPES,
    TAGGED_FIELD,
    Empty,
    column_field,
    empty_of,
    is_narrow,
    is_tagged,
    values_of,
)
from tidemark.shared.operators.batches import column_of as arrow_of

KINDS: Final[Mapping[pa.DataType, ColumnType]] = {kind: name for name, kind in ARROW_TYPES.items() if name != "decimal"}
"""The kind of a typed column's values, by its Arrow type."""


def column_of(values: Sequence[Value]) -> tuple[pa.Field, pa.Array]:
    """The column of values, MISSING included: typed where all have one type that has columns, else tagged; loose (B7)."""
    kinds = set(map(type, values))
    empty = kinds & _EMPTIES
    plain = kinds - empty
    if len(plain) == 1 and len(empty) <= 1:
        found = _typed_column(values, next(iter(plain)), empty)
        if found is not None:
            return found
    return TAGGED_FIELD, tagged(values)


def encoded_cells(column: pa.Array, field: pa.Field) -> pa.BinaryArray:
    """A column whose field says what its null cells are, as a tagged one has it (B6)."""
    if is_tagged(field):
        return column
    kind = KINDS.get(column.type)
    if kind is None:
        return tagged(values_of(column, field))
    absent = empty_of(field) == "missing"
    if not is_narrow(field):
        return encoded(Column(kind, column, missing=absent, absent=absent))[0]
    kinds = np.where(column.is_null().to_numpy(zero_copy_only=False), tags.MISSING if absent else tags.NULL, tags.INT)
    return values.write(numeric(kinds, column.fill_null(0).to_numpy()))[0]


_EMPTIES: Final = {type(None), type(MISSING)}


def _typed_column(values: Sequence[Value], kind: type, empty: set[type]) -> tuple[pa.Field, pa.Array] | None:
    if kind is dict or kind not in TYPES:
        return None
    column = column_of_values(list(values))
    if column.doubt is not None or column.type not in ARROW or column.type == "null":
        return None
    mark: Empty | None = None if not empty else "missing" if column.absent else "null"
    return column_field(column.values.type, empty=mark, loose=True), column.values


def patched(column: Column, unsure: Bools, values: Sequence[Value], *, loose: bool) -> tuple[pa.Field, pa.Array]:
    """A kernel's cells where it is sure, and values where it is not."""
    empty: set[Any] = {MISSING if column.absent else None} if bool((nulls_of(column) & ~unsure).any()) else set()
    empty |= {value for value in values if value is None or value is MISSING}
    same = all(value is None or value is MISSING or type_name(value) == column.type for value in values)
    places = np.flatnonzero(unsure)
    if same and len(empty) <= 1 and column.type in ARROW and column.type != "null":
        plain = [None if value is MISSING else value for value in values]
        kind = column.values.type
        cells = with_rows(column.values, places, arrow_of(plain, kind))
        mark: Empty | None = None if not empty else "missing" if MISSING in empty else "null"
        return column_field(kind, empty=mark, loose=loose), cells
    sure = MISSING if column.absent else None
    whole = [sure if cell is None else cell for cell in values_of(column.values, column_field(column.values.type))]
    for place, value in zip(places.tolist(), values, strict=True):
        whole[place] = value
    return column_of(whole)


def canonical_column(column: pa.Array, field: pa.Field) -> pa.BinaryArray:
    """The canonical bytes (`canonical_key`) of each cell, a null cell as null's; shape (n,), no nulls."""
    return canonical_cells(encoded_cells(column, field))


def canonical_cells(cells: pa.BinaryArray) -> pa.BinaryArray:
    """The canonical bytes of encoded values, a null cell as null's; shape (n,), no nulls."""
    found, sure = keys.canonical(cells)
    if bool(sure.all()):
        return found
    odd = [
        None if cell is None else canonical_key(decode_value(cell))
        for cell in cells.filter(pa.array(~sure)).to_pylist()
    ]
    return pc.replace_with_mask(found, pa.array(~sure), pa.array(odd, pa.binary()))
