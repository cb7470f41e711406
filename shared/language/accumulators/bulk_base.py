"""What the forms of accumulators in columns share: the values given, encoded cells made and taken apart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import keys, tags, values
from tidemark.shared.compiled.columns import Tagged
from tidemark.shared.compiled.documents import buffers, numeric
from tidemark.shared.compiled.ordered import ordered
from tidemark.shared.language.values.codec import decode_value
from tidemark.shared.language.values.keys import canonical_key
from tidemark.shared.model.values import MISSING, Value

Bools: TypeAlias = npt.NDArray[np.bool_]
Int64s: TypeAlias = npt.NDArray[np.int64]
Sure: TypeAlias = tuple[pa.BinaryArray, Bools | None]
"""Cells of groups, and of which of them a form is sure, shape (m,); None for all."""
NULL: Final = b"\xc0"


@dataclass(frozen=True)
class Given:
    """The values that rows add, group after group, with their order keys."""

    cells: pa.BinaryArray
    """Encoded, null for a missing one."""
    bounds: Int64s
    """Where groups begin, and, last, where the last one ends: group i has the rows from bounds[i] to bounds[i + 1], at least one."""
    places: Sequence[Int64s]
    """The parts of the order keys, shape (n,) each; rows of a group come in their order if the accumulator asks for it."""

    @cached_property
    def tagged(self) -> Tagged:
        """The values as a column."""
        return values.read(self.cells)

    @cached_property
    def groups(self) -> Int64s:
        """The group of each row, shape (n,)."""
        return groups_of(self.bounds)

    def listed(self, begin: int, end: int) -> list[Value]:
        """The values of some rows, MISSING included."""
        return [MISSING if cell is None else decode_value(cell) for cell in self.cells[begin:end].to_pylist()]


@dataclass(frozen=True, slots=True)
class Form:
    """An accumulator in columns; each function gives None where it has no form, `finish` is None where states are always decoded."""

    add: Callable[[Any, Given], Sure | None]
    merge: Callable[[Any, pa.BinaryArray, Int64s], Sure | None]
    finish: Callable[[Any, pa.BinaryArray], Sure | None] | None


def groups_of(bounds: Int64s) -> Int64s:
    """The group of each row, shape (n,)."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


def runs_of(*columns: npt.NDArray[Any]) -> Int64s:
    """Where runs of rows begin that are equal in all columns."""
    change = np.ones(len(columns[0]), np.bool_)
    change[1:] = False
    for column in columns:
        change[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(change)


# --- cells made -------------------------------------------------------------------------------------------------------


def numbered(numbers: Int64s, kind: int = tags.INT) -> pa.BinaryArray:
    """Whole numbers, encoded: ints, and longs beyond 32 bits; of kind LONG always longs, of DOUBLE doubles of these bits."""
    return values.write(numeric(np.full(len(numbers), kind), numbers))[0]


def lists(counts: Int64s, cells: pa.BinaryArray) -> pa.BinaryArray:
    """Arrays of so many of the cells each."""
    return values.arrays(counts, cells, np.ones(len(counts), np.bool_))


def tuples(*parts: pa.BinaryArray) -> pa.BinaryArray:
    """An array a row, of a cell of each part."""
    rows, many = len(parts[0]), len(parts)
    order = np.arange(many * rows).reshape(many, rows).T.ravel()
    return lists(np.full(rows, many), pa.concat_arrays(parts).take(pa.array(order)))


def orders(places: Sequence[Int64s]) -> pa.BinaryArray:
    """The order keys of rows, encoded."""
    return lists(np.full(len(places[0]), 3), numbered(np.column_stack(places).astype(np.int64).ravel()))


# --- cells taken apart ------------------------------------------------------------------------------------------------


def parts_of(cells: pa.BinaryArray, many: int) -> list[pa.BinaryArray]:
    """The parts of `tuples`."""
    found = values.items(cells)[1]
    return [found.take(pa.array(np.arange(part, many * len(cells), many))) for part in range(many)]


def places_of(cells: pa.BinaryArray) -> list[Int64s]:
    """The parts of encoded order keys."""
    numbers = values.read(values.items(cells)[1]).numbers.reshape(-1, 3)
    return [np.ascontiguousarray(part) for part in numbers.T]


def fields(cells: pa.BinaryArray) -> tuple[Int64s, pa.BinaryArray, pa.BinaryArray]:
    """(number of fields of each object, shape (n,), -1 where it is no object; the names of all, one behind the other; their values)."""
    text, bounds = buffers(cells)
    starts = np.minimum(bounds[:-1], max(len(text) - 1, 0))
    codes = np.where(np.diff(bounds) > 0, text[starts], 0) if len(text) else np.zeros(len(cells), np.uint8)
    counts, sizes = np.full(len(cells), -1, np.int64), np.diff(bounds)
    for (least, most), size in _MAPS.items():
        rows = (codes >= least) & (codes <= most)
        if rows.any():
            digits = text[starts[rows][:, None] + np.arange(1, size)].astype(np.int64)
            wide = digits @ (256 ** np.arange(size - 1)[::-1])
            counts[rows] = codes[rows] & 0x0F if size == 1 else wide
            sizes[rows] = size
    heads = np.zeros((len(cells), 5), np.uint8)
    heads[:, 0] = 0xDD  # an array of names and values, one after the other
    heads[:, 1:] = (2 * np.maximum(counts, 0)).astype(">u4").view(np.uint8).reshape(-1, 4)
    head_cells = values.binary_of(np.arange(0, 5 * len(cells) + 1, 5), heads.ravel(), None)
    _, found = values.items(pc.binary_join_element_wise(head_cells, behind(cells, sizes), b""))
    at = np.arange(0, len(found), 2)
    return counts, found.take(pa.array(at)), found.take(pa.array(at + 1))


def behind(cells: pa.BinaryArray, sizes: Int64s) -> pa.BinaryArray:
    """The bytes of each cell behind the first so many."""
    text, bounds = buffers(cells)
    begins, lengths = bounds[:-1] + sizes, np.diff(bounds) - sizes
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return values.binary_of(offsets, text[np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)], None)


_MAPS: Final = {(0x80, 0x8F): 1, (0xDE, 0xDE): 3, (0xDF, 0xDF): 5}
"""First bytes of objects, and how long the header is."""


def alone(counts: Int64s, items: pa.BinaryArray) -> pa.BinaryArray:
    """The first item of each array, null of an empty one."""
    places = pa.array(np.cumsum(counts) - counts, mask=counts == 0)
    return items.take(places).fill_null(NULL)


def told_apart(cells: pa.BinaryArray, *, lasting: bool = False) -> pa.BinaryArray:
    """Bytes that are equal for equal values; `lasting`: those of `canonical_key`."""
    found, sure = keys.canonical(cells) if lasting else ordered(cells.fill_null(NULL))
    if bool(sure.all()):
        return found
    if not lasting:  # values that are not sure may be equal to others
        found, sure = keys.canonical(cells)
    told = cells.filter(pa.array(~sure)).dictionary_encode()
    odd = pa.array([canonical_key(decode_value(cell)) for cell in told.dictionary.to_pylist()], pa.binary())
    return pc.replace_with_mask(found, pa.array(~sure), odd.take(told.indices))
