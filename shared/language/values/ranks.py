"""Numbers that stand in the order of the values of a column (order)."""

from typing import Final

import numpy as np
import pyarrow.compute as pc

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.columns import Int64s, Tagged, Uint8s

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
        texts = cells.of("string").dictionary_encode()
        order = pc.array_sort_indices(texts.dictionary)
        places = np.empty(len(order), np.int64)
        places[order.to_numpy()] = np.arange(len(order))
        codes = texts.indices.fill_null(0).to_numpy(zero_copy_only=False)
        found = np.where(cells.tags == tags.STRING, places[codes], found)
    return found


def rank_of_bits(bits: Int64s) -> Int64s:
    """Numbers in the order of doubles that have these bits."""
    found: Int64s = np.where(bits < 0, bits ^ np.iinfo(np.int64).max, bits)
    return found


def order_of(cells: Tagged) -> tuple[Uint8s, Int64s] | None:
    """(the rank of each cell's type, a number in the order within it), shape (n,) each, as `sort_key`; None where types need more."""
    if not cells.all(*_CLASSES):
        return None
    classes = np.array([_CLASSES.get(tag, 0) for tag in range(tags.COUNT)], np.uint8)[cells.tags]
    found = np.where((cells.tags == tags.MISSING) | (cells.tags == tags.NULL), 0, ranks(cells))
    if cells.has(tags.DOUBLE):
        whole, doubles = (cells.tags == tags.INT) | (cells.tags == tags.LONG), cells.numbers.view(np.float64)
        if bool((whole & ((cells.numbers > _EXACT) | (cells.numbers < -_EXACT))).any()):
            return None
        numbers = np.where(whole, cells.numbers.astype(np.float64), doubles) + 0.0  # both zeros are one
        numbers = np.where(np.isnan(numbers), _LEAST, rank_of_bits(numbers.view(np.int64)))
        found = np.where(classes == _CLASSES[tags.DOUBLE], numbers, found)
    return classes, found
