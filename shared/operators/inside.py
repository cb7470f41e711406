"""Encoded values changed inside: fields left out or written at a path, and arrays unwound; each with the result of `language.stages`."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, values
from tidemark.shared.compiled.values import at, objects_of, through_arrays
from tidemark.shared.language.stages import Branch

Int64s: TypeAlias = npt.NDArray[np.int64]
_NULL = b"\xc0"
"""Encoded."""


def without(tree: Branch, cells: pa.BinaryArray) -> pa.BinaryArray:
    """Values without the dropped fields, in documents and in the items of arrays (`exclude_value`)."""

    def change(inside: pa.BinaryArray, _: Int64s | None) -> pa.BinaryArray:
        base, objects = objects_of(inside)
        if not objects.true_count:
            return inside
        parts: dict[str, pa.BinaryArray] = {}
        for name, leaf in tree.fields:
            parts[name] = without(leaf, at(base, name)) if isinstance(leaf, Branch) else _nothing(inside)
        return pc.if_else(objects, values.objects(base, list(parts), list(parts.values())), inside)

    return through_arrays(cells, change)


def put(cells: pa.BinaryArray, names: Sequence[str], new: pa.BinaryArray) -> pa.BinaryArray:
    """Values with another one at a path of documents, or without it where it is null (`set_path`)."""
    if not names:
        return new
    base, objects = objects_of(cells)
    made = values.objects(base, names[:1], [put(at(base, names[0]), names[1:], new)])
    return pc.if_else(pc.and_(pc.invert(objects), new.is_null()), cells, made)


def emptied(cells: pa.BinaryArray) -> pa.BinaryArray:
    """Null in place of arrays; other values as they are."""
    counts, _ = values.items(cells)
    return pc.if_else(pa.array(counts >= 0), _NULL, cells)


def unwound(cells: pa.BinaryArray, *, keep_empty: bool) -> tuple[Int64s, pa.BinaryArray, pa.Array]:
    """(the row of each item, the items, their indices, null where there was no array); other values stand for themselves.

    keep_empty: null, missing and empty arrays leave a row.
    """
    counts, items = values.items(cells)
    kinds = values.read(cells).tags
    empty = (counts == 0) | (kinds == tags.NULL) | (kinds == tags.MISSING)
    times = np.where(empty, int(keep_empty), np.where(counts < 0, 1, counts))
    rows = np.repeat(np.arange(len(cells)), times)
    inside = (counts > 0)[rows]
    begins = np.cumsum(times) - times
    index = np.arange(len(rows)) - begins[rows]
    first = np.cumsum(np.maximum(counts, 0)) - np.maximum(counts, 0)
    alone = pc.if_else(pa.array(counts == 0), pa.scalar(None, pa.binary()), cells)
    places = np.where(inside, first[rows] + index, len(items) + rows)
    return rows, pa.concat_arrays([items, alone]).take(pa.array(places)), pa.array(index, mask=~inside)


def _nothing(cells: pa.BinaryArray) -> pa.BinaryArray:
    return pa.nulls(len(cells), pa.binary())
