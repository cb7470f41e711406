"""Numbers that stand in the order of the values of a column (order)."""

from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, values
from tidemark.shared.compiled.columns import Bools, Int64s, Tagged, Uint8s, with_rows
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.compiled.ordered import ordered
from tidemark.shared.language.values.codec import decode_value
from tidemark.shared.language.values.order import sort_key

_EXACT: Final = 2**53
"""Whole numbers up to this are doubles exactly."""
_LEAST: Final = np.iinfo(np.int64).min
_CLASSES: Final = {
    tags.MISSING: 5, tags.NULL: 5, tags.INT: 10, tags.LONG: 10, tags.DOUBLE: 10, tags.STRING: 15, tags.BOOL: 40, tags.DATE: 45,
}  # fmt: skip


def ranks(cells: Tagged) -> Int64s:
    """Numbers in the order of the values of each type, shape (n,): of zeros -0.0 first, NaN anywhere."""
    found = cells.numbers
    if cells.has(tags.DOUBLE):
        found = np.where(cells.tags == tags.DOUBLE, rank_of_bits(found), found)
    if cells.has(tags.STRING):
        found = np.where(cells.tags == tags.STRING, _places(cells.of("string")), found)
    return found


def _places(cells: pa.Array) -> Int64s:
    """The places of texts, or bytes, among the different ones, shape (n,): one place for equal ones; a null's means nothing."""
    told = cells.dictionary_encode()
    order = pc.array_sort_indices(told.dictionary)
    places = np.zeros(max(len(order), 1), np.int64)
    places[order.to_numpy()] = np.arange(len(order))
    found: Int64s = places[told.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    return found


def rank_of_bits(bits: Int64s) -> Int64s:
    """Numbers in the order of doubles that have these bits."""
    found: Int64s = np.where(bits < 0, bits ^ np.iinfo(np.int64).max, bits)
    return found


def order_of(cells: Tagged) -> tuple[Uint8s, Int64s] | None:
    """(the rank of each cell's type, a number in the order within it), shape (n,) each, as `sort_key`; None where types need more."""
    if not cells.all(*_CLASSES):
        return None
    classes = _classes(cells)
    found = np.where((cells.tags == tags.MISSING) | (cells.tags == tags.NULL), 0, ranks(cells))
    if cells.has(tags.DOUBLE):
        whole, doubles = are_whole(cells), cells.numbers.view(np.float64)
        if _beyond(cells):
            return None
        numbers = np.where(whole, cells.numbers.astype(np.float64), doubles) + 0.0  # both zeros are one
        numbers = np.where(np.isnan(numbers), _LEAST, rank_of_bits(numbers.view(np.int64)))
        found = np.where(classes == _CLASSES[tags.DOUBLE], numbers, found)
    return classes, found


def total_order(cells: pa.BinaryArray, column: Tagged) -> tuple[Uint8s, Int64s]:
    """The same for encoded values of any types, a null cell as null. column: the cells, read.

    Values without bytes in their order, and those of their types, are sorted, each different one once.
    """
    found = order_of(column)
    if found is not None:
        return found
    texts, sure = ordered(cells.fill_null(_NULL))
    text, bounds = buffers(texts)
    classes = np.zeros(len(cells), np.uint8)
    classes[sure] = text[bounds[:-1][sure]]
    if bool(sure.all()):
        return classes, _places(texts)
    told = cells.filter(pa.array(~sure)).dictionary_encode()
    keys = [sort_key(decode_value(cell)) for cell in told.dictionary.to_pylist()]
    # The least class of all stands where missing does, which is null here.
    kinds = np.array([max(key[0], 0) for key in keys], np.uint8)
    classes[~sure] = kinds[told.indices.to_numpy()]
    by_hand, numbers = np.isin(classes, kinds), np.zeros(len(cells), np.int64)
    numbers[~by_hand] = _places(texts.filter(pa.array(~by_hand)))
    numbers[by_hand] = _sorted(cells.filter(pa.array(by_hand)))
    return classes, numbers


def sort_order(cells: pa.BinaryArray, empty: Bools, *, descending: bool) -> tuple[Uint8s, Int64s]:
    """The same for what counts of a sort key, the first in its order least. empty: which are of an empty array, below null."""
    classes, numbers = total_order(cells, values.read(cells))
    classes, numbers = np.where(empty, np.uint8(_BELOW_NULL), classes), np.where(empty, 0, numbers)
    return (~classes, ~numbers) if descending else (classes, numbers)


def are_empty(cells: pa.BinaryArray) -> Bools:
    """Which encoded values are arrays without items, shape (n,)."""
    found: Bools = pc.equal(cells, pa.scalar(b"\x90", pa.binary())).fill_null(False).to_numpy(zero_copy_only=False)
    return found


def counted(cells: pa.BinaryArray, *, greatest: bool) -> pa.BinaryArray:
    """Encoded values, in place of an array the least of its items, or the greatest, of equal ones the first. An empty one stays."""
    counts, items = values.items(cells)
    rows = values.rows_of(counts)
    if not len(rows):
        return cells
    classes, numbers = total_order(items, values.read(items))
    order = np.lexsort((~numbers, ~classes, rows) if greatest else (numbers, classes, rows))
    return with_rows(cells, np.unique(rows), items.take(pa.array(order[np.flatnonzero(np.diff(rows, prepend=-1))])))


_BELOW_NULL: Final = 1
"""The class of an empty array as a sort value, above MinKey's."""
_NULL: Final = b"\xc0"


def _classes(cells: Tagged) -> Uint8s:
    return np.array([_CLASSES.get(tag, 0) for tag in range(tags.COUNT)], np.uint8)[cells.tags]


def are_whole(cells: Tagged) -> Bools:
    """Which values are ints or longs, shape (n,)."""
    found: Bools = (cells.tags == tags.INT) | (cells.tags == tags.LONG)
    return found


def _beyond(cells: Tagged) -> bool:
    """Whether a double does not tell all whole numbers apart."""
    return bool((are_whole(cells) & ((cells.numbers > _EXACT) | (cells.numbers < -_EXACT))).any())


def _sorted(cells: pa.BinaryArray) -> Int64s:
    """The places of values among the different ones, shape (n,): one place for equal ones."""
    told = cells.dictionary_encode()
    keys = [sort_key(decode_value(cell)) for cell in told.dictionary.to_pylist()]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    places = np.zeros(len(keys), np.int64)
    at = 0
    for before, row in pairwise(order):
        at += keys[before] != keys[row]
        places[row] = at
    found: Int64s = places[told.indices.to_numpy()]
    return found
