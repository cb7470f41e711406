"""Rows to groups by columns, and columns of groups from those of rows: the one way in which anything is grouped here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import grouping
from tidemark.shared.compiled.documents import buffers

Int64s: TypeAlias = npt.NDArray[np.int64]
Array: TypeAlias = pa.Array | pa.ChunkedArray
Merge: TypeAlias = Literal["sum", "min", "max"]
_ALL: Final = np.empty(0, dtype=np.bool_)
_NOTHING: Final = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of n rows, numbered as they come first."""

    codes: Int64s
    """Shape (n,): of each row."""
    firsts: Int64s
    """Shape (m,): the first row of each."""

    def counts(self) -> pa.Array:
        """How many rows each has."""
        return pa.array(np.bincount(self.codes, minlength=len(self.firsts)))

    def reduced(self, column: Array, how: Merge) -> pa.Array:
        """By group, the sum of a column of int64 without nulls, or the least or greatest of its cells, null where all are null."""
        cells = one_array(column)
        if how == "sum":
            totals = np.zeros(len(self.firsts), dtype=np.int64)
            np.add.at(totals, self.codes, numbers_of(cells))
            return pa.array(totals)
        if pa.types.is_string(cells.type):
            coded = cells.dictionary_encode()
            sorted_ = coded.dictionary.sort()
            ranks = pc.index_in(coded.dictionary, sorted_).take(coded.indices)
            best = self.reduced(ranks.cast(pa.int64()), how)
            return sorted_.take(best)
        there = _there(cells)
        codes, numbers = self.codes, numbers_of(cells)
        if len(there):
            codes, numbers = codes[there], numbers[there]
        bound = np.iinfo(np.int64)
        best_of = np.full(len(self.firsts), bound.max if how == "min" else bound.min, dtype=np.int64)
        (np.minimum if how == "min" else np.maximum).at(best_of, codes, numbers)
        empty = None
        if len(there):
            empty = np.ones(len(self.firsts), dtype=np.bool_)
            empty[codes] = False
            best_of[empty] = 0
        return pa.array(best_of, mask=empty).cast(cells.type)


def groups_of(columns: Sequence[Array], rows: int) -> Groups:
    """The groups of rows with equal cells in all columns; null is a value. Doubles are told apart by their bits."""
    codes, firsts = _NOTHING, np.zeros(min(rows, 1), dtype=np.int64)
    table = np.empty(1 << max(4, (2 * rows - 1).bit_length()), dtype=np.int32)
    for column in columns:
        cells = one_array(column)
        found, first_rows = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
        if pa.types.is_string(cells.type) or pa.types.is_binary(cells.type):
            table.fill(-1)
            text, bounds = buffers(cells)
            count = grouping.by_texts(codes, text, bounds, _there(cells), table, found, first_rows)
        else:
            numbers, there = numbers_of(cells), _there(cells)
            if not len(there) and bool((numbers == numbers[:1]).all()):  # as the window is, most often
                continue
            table.fill(-1)
            count = grouping.by_numbers(codes, numbers, there, table, found, first_rows)
        codes, firsts = found, first_rows[:count]
    return Groups(codes if len(codes) else np.zeros(rows, dtype=np.int64), firsts)


def together(groups: Groups, order: Int64s) -> tuple[Int64s, Int64s]:
    """(rows of `order`, group after group; where groups begin and, last, where the last ends)."""
    bounds, out = np.zeros(len(groups.firsts) + 1, dtype=np.int64), np.empty(len(order), dtype=np.int64)
    grouping.gathered(groups.codes, order, bounds, out)
    return out, bounds


def one_array(column: Array) -> pa.Array:
    """A column in one piece."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def numbers_of(cells: pa.Array) -> Int64s:
    """Cells that are numbers, truths, bits of doubles, or ms; 0 for a null. Shape (n,)."""
    if pa.types.is_null(cells.type):
        return np.zeros(len(cells), dtype=np.int64)
    if pa.types.is_floating(cells.type):
        bits: npt.NDArray[Any] = cells.fill_null(0.0).to_numpy(zero_copy_only=False)
        return bits.view(np.int64)
    if not pa.types.is_int64(cells.type):
        cells = cells.cast(pa.int8() if pa.types.is_boolean(cells.type) else pa.int64()).cast(pa.int64())
    if cells.null_count:
        cells = cells.fill_null(0)
    numbers: Int64s = cells.to_numpy(zero_copy_only=False)
    return numbers


def _there(cells: pa.Array) -> npt.NDArray[np.bool_]:
    """Which cells are no nulls; nothing where none is."""
    return cells.is_valid().to_numpy(zero_copy_only=False) if cells.null_count else _ALL
