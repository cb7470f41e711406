"""Exact sums of doubles, group by group, on arrays: the `units` of `values.totals.Total`, so that partial sums merge without rounding."""

from typing import Final

import numpy as np
import numpy.typing as npt

ROWS_MAX: Final = 1 << 26
"""Rows of one call: sums of halves of mantissas stay whole in doubles."""
_FRACTION_BITS: Final = 52
_HALF_BITS: Final = 26
_EXPONENTS: Final = 2048


def units_by_group(values: npt.NDArray[np.float64], groups: npt.NDArray[np.int64], count: int) -> list[int]:
    """For each group 0 … count − 1 the exact sum of its values in units of 2⁻¹⁰⁷⁴.

    values: finite doubles, shape (rows,). groups: the group of each, shape (rows,), below `count`. At most ROWS_MAX rows.
    """
    assert len(values) <= ROWS_MAX
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.int64)
    exponent = (bits >> _FRACTION_BITS) & (_EXPONENTS - 1)
    mantissa = bits & ((1 << _FRACTION_BITS) - 1)
    mantissa |= (exponent > 0).astype(np.int64) << _FRACTION_BITS
    signed = np.where(bits < 0, -mantissa, mantissa)
    shift = np.maximum(exponent, 1) - 1
    places, inverse = np.unique(groups * _EXPONENTS + shift, return_inverse=True)
    high = signed >> _HALF_BITS  # rounds down, so that the low half is never negative
    low = signed - (high << _HALF_BITS)
    highs = np.bincount(inverse, weights=high.astype(np.float64), minlength=len(places))
    lows = np.bincount(inverse, weights=low.astype(np.float64), minlength=len(places))
    totals = [0] * count
    for place, upper, lower in zip(places.tolist(), highs.tolist(), lows.tolist(), strict=True):
        group, by = divmod(place, _EXPONENTS)
        totals[group] += ((int(upper) << _HALF_BITS) + int(lower)) << by
    return totals
