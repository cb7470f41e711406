"""Values of the language as columns: of one type where they have one, else tagged."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import keys, tags, values
from tidemark.shared.compiled.documents import cells_of
from tidemark.shared.language.kernels.arrays import encoded
from tidemark.shared.language.kernels.base import ARROW, Bools, Column, ColumnType, doubted, filled, nulls_of, without
from tidemark.shared.language.values import canonical_key, decode_value, encode_docs, type_name
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, MISSING, Date, Long, Missing, Value
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

_TYPES: Final[Mapping[type, ColumnType]] = {
    str: "string", int: "int", Long: "long", float: "double", bool: "bool", Date: "date", dict: "object",
}  # fmt: skip

KINDS: Final[Mapping[pa.DataType, ColumnType]] = {kind: name for name, kind in ARROW_TYPES.items() if name != "decimal"}
"""The kind of a typed column's values, by its Arrow type."""


def column_of_cells(cells: list[Any]) -> Column:
    """The column of values, MISSING among them: of the type that most have; of others there is doubt."""
    kinds = set(map(type, cells))
    empty = kinds & {type(None), Missing}
    plain = kinds - empty
    kind = _commonest(cells) if plain else type(None)
    doubt: Bools | None = None
    if plain - {kind}:
        odd = [type(cell) is not kind and cell is not None and cell is not MISSING for cell in cells]
        doubt = np.array(odd, dtype=np.bool_)
        cells = [None if o else cell for cell, o in zip(cells, odd, strict=True)]
    like = Column("null", pa.nulls(len(cells)), missing=Missing in empty, absent=empty == {Missing}, doubt=doubt)
    if Missing in empty:
        cells = [None if cell is MISSING else cell for cell in cells]
    return like if kind is type(None) else _of_kind(cells, _TYPES[kind], like)


def _commonest(cells: Sequence[Any]) -> type:
    """The type that most cells have, of those that columns take, if any."""
    counts: dict[type, int] = {}
    for cell in cells:
        kind = type(cell)
        if kind in _TYPES:
            counts[kind] = counts.get(kind, 0) + 1
    return max(counts, key=counts.__getitem__) if counts else type(None)


def _of_kind(cells: list[Any], kind: ColumnType, like: Column) -> Column:
    try:
        if kind == "object":
            array = pa.array([None if cell is None else True for cell in cells], pa.bool_())
        elif kind in ("int", "long"):
            return whole_column(pa.array(cells, pa.int64()), kind, like)
        elif kind == "date":
            array = pa.array(cells, pa.int64()).cast(ARROW["date"])
        else:
            array = pa.array(cells, ARROW[kind])
    except (pa.ArrowInvalid, OverflowError, UnicodeError):
        return Column("null", pa.nulls(len(cells)), doubt=np.ones(len(cells), dtype=np.bool_))
    return replace(like, type=kind, values=array)


def whole_column(values: pa.Array, kind: ColumnType, like: Column) -> Column:
    """Plain ints are ints within 32 bits and longs beyond; of those of the rarer size there is doubt. A `Long` is a long."""
    bounds = pc.min_max(values).as_py()
    if kind == "long":
        return replace(like, type="long", values=values)
    if bounds["min"] is None or (bounds["min"] >= INT32_MIN and bounds["max"] <= INT32_MAX):
        return replace(like, type="int", values=values.cast(pa.int32()))
    beyond = pc.or_(pc.less(values, INT32_MIN), pc.greater(values, INT32_MAX))
    many = 2 * (pc.sum(beyond).as_py() or 0) > len(values) - values.null_count
    odd = filled(pc.invert(beyond) if many else beyond)
    kept = without(values, odd)
    found = replace(like, type="long" if many else "int", values=kept if many else kept.cast(pa.int32()))
    return doubted(found, odd)


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


def tagged(values: Iterable[Value]) -> pa.BinaryArray:
    """The cells of a tagged column (B6)."""
    whole = list(values)
    packed = iter(encode_docs(value for value in whole if value is not MISSING))
    return pa.array([None if value is MISSING else next(packed) for value in whole], pa.binary())


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
    zeros = np.zeros(len(column), np.int32)
    numbers = column.fill_null(0).to_numpy()
    return values.write(cells_of(kinds.astype(np.uint8), numbers, zeros, zeros, zeros.view(np.uint8), "packed"))[0]


_EMPTIES: Final = {type(None), type(MISSING)}


def _typed_column(values: Sequence[Value], kind: type, empty: set[type]) -> tuple[pa.Field, pa.Array] | None:
    if kind is dict or kind not in _TYPES:
        return None
    column = column_of_cells(list(values))
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
        own = arrow_of(plain, kind)
        order = np.arange(len(unsure))
        order[places] = len(unsure) + np.arange(len(places))
        cells = pa.concat_arrays([column.values, own]).take(pa.array(order))
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
