"""Comparisons of columns in the order over all types."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shared.language.kernels.base import NUMERIC, RANKS, WHOLE, Column, Fallback, Unvectorised, exact_doubles, nulls_of

Signs = npt.NDArray[np.int8]
"""-1, 0 or 1 a row."""


def compare_columns(left: Column, right: Column) -> Signs:
    """How the cells compare; Fallback where it hangs on a null being a missing field."""
    null_left, null_right = nulls_of(left), nulls_of(right)
    both = null_left & null_right
    if (left.missing or right.missing) and bool(both.any()):
        raise Fallback
    signs: Signs = np.zeros(len(left.values), dtype=np.int8)
    valid = ~(null_left | null_right)
    if RANKS[left.type] != RANKS[right.type]:
        signs[valid] = -1 if RANKS[left.type] < RANKS[right.type] else 1
    elif left.type != "null":
        signs[valid] = _same_rank(left, right)[valid]
    signs[null_left & ~null_right] = -1
    signs[~null_left & null_right] = 1
    return signs


def _same_rank(left: Column, right: Column) -> Signs:
    a, b = _comparable(left, right)
    less = _filled(pc.less(a, b))
    greater = _filled(pc.greater(a, b))
    return greater.astype(np.int8) - less.astype(np.int8)


def _filled(values: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _comparable(left: Column, right: Column) -> tuple[pa.Array, pa.Array]:
    """Two arrays of one type whose cells compare as the values do."""
    if left.type == "object":
        raise Unvectorised
    if left.type == "bool":
        return left.values.cast(pa.uint8()), right.values.cast(pa.uint8())
    if left.type in WHOLE and right.type in WHOLE:
        return left.values.cast(pa.int64()), right.values.cast(pa.int64())
    if left.type in NUMERIC:
        a, b = exact_doubles(left), exact_doubles(right)
        for column in (a, b):
            if pc.any(pc.is_nan(column)).as_py():
                raise Fallback
        return a, b
    return left.values, right.values


HOLDS: Final[dict[str, Callable[[Any], Any]]] = {
    "$eq": lambda signs: signs == 0,
    "$ne": lambda signs: signs != 0,
    "$gt": lambda signs: signs > 0,
    "$gte": lambda signs: signs >= 0,
    "$lt": lambda signs: signs < 0,
    "$lte": lambda signs: signs <= 0,
}
"""Which signs make a comparison true."""
