"""Comparisons of columns in the order over all types."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.kernels.base import (
    NUMERIC,
    RANKS,
    WHOLE,
    Bools,
    Column,
    Unvectorised,
    as_doubles,
    either,
    filled,
    inexact,
    nulls_of,
)

Signs = npt.NDArray[np.int8]
"""-1, 0 or 1 a row."""


def compare_columns(left: Column, right: Column) -> tuple[Signs, Bools | None]:
    """How the cells compare, and where there is doubt: as where it hangs on a null being a missing field."""
    null_left, null_right = nulls_of(left), nulls_of(right)
    both = null_left & null_right
    doubt = either(both) if left.missing or right.missing else None
    signs: Signs = np.zeros(len(left.values), dtype=np.int8)
    valid = ~(null_left | null_right)
    if RANKS[left.type] != RANKS[right.type]:
        signs[valid] = -1 if RANKS[left.type] < RANKS[right.type] else 1
    elif left.type != "null":
        found, more = _same_rank(left, right)
        signs[valid], doubt = found[valid], either(doubt, more)
    signs[null_left & ~null_right] = -1
    signs[~null_left & null_right] = 1
    return signs, doubt


def _same_rank(left: Column, right: Column) -> tuple[Signs, Bools | None]:
    a, b, doubt = comparable(left, right)
    less, greater = filled(pc.less(a, b)), filled(pc.greater(a, b))
    return greater.astype(np.int8) - less.astype(np.int8), doubt


def comparable(left: Column, right: Column) -> tuple[pa.Array, pa.Array, Bools | None]:
    """Two arrays of one type whose cells compare as the values do, but where there is doubt."""
    if left.type == "object":
        raise Unvectorised
    if left.type == "bool":
        return left.values.cast(pa.uint8()), right.values.cast(pa.uint8()), None
    if left.type in WHOLE and right.type in WHOLE:
        return left.values.cast(pa.int64()), right.values.cast(pa.int64()), None
    if left.type in NUMERIC:
        a, b = as_doubles(left), as_doubles(right)
        nans = [filled(pc.is_nan(column)) for column in (a, b)]
        return a, b, either(inexact(left), inexact(right), *nans)
    return left.values, right.values, None


HOLDS: Final[dict[str, Callable[[Any], Any]]] = {
    "$eq": lambda signs: signs == 0,
    "$ne": lambda signs: signs != 0,
    "$gt": lambda signs: signs > 0,
    "$gte": lambda signs: signs >= 0,
    "$lt": lambda signs: signs < 0,
    "$lte": lambda signs: signs <= 0,
}
"""Which signs make a comparison true."""
