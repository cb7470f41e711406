"""Columns of values, and the values of columns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, values
from tidemark.shared.compiled.columns import TAGS, Tagged
from tidemark.shared.compiled.documents import buffers, cells_of, numeric
from tidemark.shared.compiled.ordered import ordered
from tidemark.shared.language.kernels.base import (
    ARROW,
    Bools,
    Column,
    ColumnType,
    Signs,
    Unvectorised,
    compare_columns,
    doubted,
    either,
    filled,
    nulls_of,
    without,
)
from tidemark.shared.language.values import decode_value, encode_docs, parse_json
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, MISSING, Date, Long, Missing, Value, long

Int64s: TypeAlias = npt.NDArray[np.int64]
TYPES: Final[Mapping[type, ColumnType]] = {
    str: "string", int: "int", Long: "long", float: "double", bool: "bool", Date: "date", dict: "object",
}  # fmt: skip
"""The type of a column of values of one class."""
_KINDS: Final[Mapping[int, ColumnType]] = {**{tag: kind for kind, tag in TAGS.items()}, tags.OBJECT: "object"}
NULL: Final = b"\xc0"
"""Null, encoded."""


def tagged_column(cells: Tagged, doubt: Bools | None = None) -> Column:
    """The column of the type that most cells have; of the others there is doubt. doubt: rows of which the cells say nothing."""
    if doubt is not None:
        cells = replace(cells, tags=np.where(doubt, np.uint8(tags.SPREAD), cells.tags))
    counts = cells.counts
    tag = max(_KINDS, key=lambda each: int(counts[each]))
    gone, nulls = int(counts[tags.MISSING]), int(counts[tags.NULL])
    like = Column("null", pa.nulls(len(cells)), missing=gone > 0, absent=gone > 0 and nulls == 0, cells=cells)
    if not counts[tag]:
        return replace(like, doubt=either(~np.isin(cells.tags, (tags.MISSING, tags.NULL))))
    odd = None if cells.all(tag, tags.MISSING, tags.NULL) else ~np.isin(cells.tags, (tag, tags.MISSING, tags.NULL))
    kind = _KINDS[tag]
    if kind == "object":
        there = cells.tags == tag
        found = pa.array(there, pa.bool_(), mask=~there)
    else:
        found = cells.of(kind)  # type: ignore[arg-type]  # neither null nor object
    return replace(like, type=kind, values=found, doubt=odd)


def unknown_of(column: Column) -> Bools | None:
    """The rows of which a column has no value: their expression may fail."""
    return column.doubt if column.cells is None else either(column.cells.tags == tags.SPREAD)


def lengths(cells: pa.BinaryArray) -> Int64s:
    """Bytes of each cell."""
    return np.diff(buffers(cells)[1])


def settled(column: Column) -> Column:
    """A column with its nulls told from its missing fields, if that can be told."""
    if column.told is None or column.cells is not None or not column.missing or column.absent or not column.has_nulls:
        return column
    if column.type in ("object", "array"):
        return column
    cells = _tagged(column)
    return tagged_column(replace(cells, tags=np.where(nulls_of(column), column.told(), cells.tags)), column.doubt)


def encoded(column: Column) -> tuple[pa.BinaryArray, Bools | None]:
    """A column's values as encoded cells, a missing one null, and the rows of which only the interpreter can tell."""
    column = settled(column)
    if column.cells is not None:
        found, sure = values.write(column.cells)
        return found, either(~sure)
    unsure = either(column.doubt, nulls_of(column) if column.missing and not column.absent else None)
    if column.type in ("object", "array"):
        if not pa.types.is_binary(column.values.type):
            raise Unvectorised
        return column.values if column.absent else column.values.fill_null(NULL), unsure
    return values.write(_tagged(column))[0], unsure


def is_nested(column: Column) -> bool:
    """Whether values of a column are arrays or objects."""
    return column.type in ("object", "array") or (
        column.cells is not None and column.cells.has(tags.OBJECT, tags.ARRAY)
    )


def is_mixed(column: Column) -> bool:
    """Whether some cells are of another type than the column, and known."""
    return column.doubt is not None and column.cells is not None


def empties_of(column: Column) -> Bools:
    """Which values are null or missing, shape (n,); those that are not known mean nothing."""
    if column.cells is not None and is_mixed(column):
        return np.isin(column.cells.tags, (tags.MISSING, tags.NULL))
    return nulls_of(column)


def nulled(column: Column) -> Column:
    """The same column with null where a value is missing."""
    if column.cells is None or not (is_mixed(column) or is_nested(column)):
        return replace(column, missing=False, absent=False, cells=None, told=None)
    gone = column.cells.tags == tags.MISSING
    return tagged_column(replace(column.cells, tags=np.where(gone, np.uint8(tags.NULL), column.cells.tags)))


def compared(left: Column, right: Column) -> tuple[Signs, Bools | None]:
    """How values of any types compare, and the rows in doubt."""
    if not any(is_nested(column) or is_mixed(column) for column in (left, right)):
        signs, doubt = compare_columns(left, right)
        return signs, either(doubt, left.doubt, right.doubt)
    (a, unsure_a), (b, unsure_b) = encoded(left), encoded(right)
    (one, sure_one), (other, sure_other) = ordered(a), ordered(b)
    signs = filled(pc.greater(one, other)).astype(np.int8) - filled(pc.less(one, other)).astype(np.int8)
    return signs, either(unsure_a, unsure_b, ~sure_one, ~sure_other)


def items_of(column: Column, arrays: Bools) -> tuple[Bools, Int64s, pa.BinaryArray]:
    """(which of the arrays of some rows are known; how many items each has, -1 for the other rows; the items)."""
    cells, unsure = encoded(column)
    known = arrays if unsure is None else arrays & ~unsure
    return known, *values.items(pc.if_else(pa.array(known), cells, pa.scalar(b"", pa.binary())))


def _tagged(column: Column) -> Tagged:
    """The cells of a column of one type."""
    count, cells = len(column.values), column.values
    empty = tags.MISSING if column.absent else tags.NULL
    if column.type == "null":
        return numeric(np.full(count, empty), np.zeros(count, np.int64))
    kinds = np.where(nulls_of(column), empty, TAGS[column.type]).astype(np.uint8)  # type: ignore[index]  # objects have come before
    if column.type == "string":
        text, bounds = buffers(cells)
        places = bounds.astype(np.int32)
        return cells_of(kinds, np.diff(bounds), places[:-1], places[1:], text, "packed")
    if column.type == "double":
        numbers = cells.fill_null(0.0).to_numpy(zero_copy_only=False).view(np.int64)
    else:
        numbers = cells.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return numeric(kinds, numbers)


def taken(column: Column, places: Int64s) -> Column:
    """The column of the rows at some places."""
    cells = column.cells
    if cells is not None:
        numbers, begins, ends = cells.numbers[places], cells.begins[places], cells.ends[places]
        cells = replace(cells, tags=cells.tags[places], numbers=numbers, begins=begins, ends=ends)
    doubt = None if column.doubt is None else either(column.doubt[places])
    whole = column.told
    told = None if whole is None else lambda: whole()[places]
    return replace(column, values=column.values.take(pa.array(places)), doubt=doubt, cells=cells, told=told)


def column_of_values(cells: list[Any]) -> Column:
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
    return like if kind is type(None) else _of_kind(cells, TYPES[kind], like)


def _commonest(cells: Sequence[object]) -> type:
    """The type that most cells have, of those that columns take, if any."""
    counts: dict[type, int] = {}
    for cell in cells:
        kind = type(cell)
        if kind in TYPES:
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


def tagged(values: Iterable[Value]) -> pa.BinaryArray:
    """The cells of a tagged column (B6)."""
    whole = list(values)
    packed = iter(encode_docs(value for value in whole if value is not MISSING))
    return pa.array([None if value is MISSING else next(packed) for value in whole], pa.binary())


_SAMPLE: Final = 256
"""So many rows tell whether it is worth to look at all."""
_REPEATED_PART: Final = 4
"""Rows are worked on once for each different one where at most one in so many differs from those before it."""


def different(columns: Iterable[Column], count: int) -> tuple[Int64s, Int64s] | None:
    """(the first row of each different cells; of each row the number of its own), shape (m,) and (count,); None where many differ."""
    codes: Int64s = np.zeros(count, np.int64)
    for column in columns:
        cells, unsure = encoded(column)
        if unsure is not None or len(pc.unique(cells.slice(0, _SAMPLE))) * _REPEATED_PART > min(_SAMPLE, count):
            return None
        own = pc.dictionary_encode(cells, null_encoding="encode")
        codes = codes * len(own.dictionary) + own.indices.to_numpy()
        _, codes = np.unique(codes, return_inverse=True)
    _, firsts, codes = np.unique(codes, return_index=True, return_inverse=True)
    return (firsts, codes) if len(firsts) * _REPEATED_PART <= count else None


def values_of(column: Column) -> tuple[list[Value], Bools | None]:
    """A column's values, MISSING included, and the rows of which it does not tell (theirs mean nothing); Unvectorised if it tells none."""
    column = settled(column)
    odd = column.doubt is not None or (column.missing and not column.absent and column.has_nulls)
    if column.cells is not None and odd:
        unsure = column.cells.tags == tags.SPREAD
        known = np.where(unsure, np.uint8(tags.MISSING), column.cells.tags)
        return values_at(replace(column.cells, tags=known)), either(unsure)
    if column.type in ("object", "array"):
        cells, doubt = encoded(column)
        known = cells.filter(pa.array(~doubt)) if doubt is not None else cells
        found = [MISSING if cell is None else decode_value(cell) for cell in known.to_pylist()]
        if doubt is not None:
            each = iter(found)
            found = [MISSING if unknown else next(each) for unknown in doubt.tolist()]
        return found, doubt
    empty = MISSING if column.absent else None
    doubt = either(column.doubt, nulls_of(column) if odd and column.missing and not column.absent else None)
    if column.type == "null":
        return [empty] * len(column.values), doubt
    made = _MADE.get(column.type)
    found = column.values.cast(pa.int64()).to_pylist() if column.type == "date" else column.values.to_pylist()
    if made is None and not column.has_nulls:
        return found, doubt
    return [empty if cell is None else cell if made is None else made(cell) for cell in found], doubt


_MADE: Final[Mapping[str, Callable[[int], Value]]] = {"long": long, "date": Date}


def values_at(cells: Tagged) -> list[Value]:
    """The values of a top-level field as the language has them, MISSING where there is none."""
    if cells.all(tags.INT, tags.MISSING):
        kinds = cells.tags.tolist()
        return [number if kind else MISSING for kind, number in zip(kinds, cells.numbers.tolist(), strict=True)]
    if cells.all(tags.STRING, tags.MISSING):
        return [MISSING if text is None else text for text in cells.of("string").to_pylist()]
    texts = cells.of("string").to_pylist() if cells.has(tags.STRING) else []
    doubles = cells.numbers.view(np.float64).tolist() if cells.has(tags.DOUBLE) else []
    return [
        _value(cells, row, tag, number, texts, doubles)
        for row, (tag, number) in enumerate(zip(cells.tags.tolist(), cells.numbers.tolist(), strict=True))
    ]


def _value(cells: Tagged, row: int, tag: int, number: int, texts: Sequence[object], doubles: Sequence[float]) -> Value:
    match tag:
        case tags.MISSING:
            return MISSING
        case tags.NULL:
            return None
        case tags.BOOL:
            return bool(number)
        case tags.INT:
            return number
        case tags.LONG:
            return long(number)
        case tags.DOUBLE:
            return doubles[row]
        case tags.STRING:
            return texts[row]
        case tags.DATE:
            return Date(number)
        case _:
            piece = cells.piece(row) or b""
            return parse_json(piece) if cells.form == "json" else decode_value(piece)
