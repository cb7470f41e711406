"""Many values at once, with the result that `add`, one value after the other, would give for the states of consecutive groups (A1).

A form in bulk is there for values of one type without surprises; with any other value among them, all are added one by one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.language.accumulators.base import AnyImplementation, OrderKey
from tidemark.shared.language.accumulators.extremes import Extremes
from tidemark.shared.language.accumulators.numbers import Count, TotalOf
from tidemark.shared.language.accumulators.sketches import ApproxCountDistinct, Percentiles, hash_of
from tidemark.shared.language.values.numbers import DOUBLE, INT, LONG
from tidemark.shared.language.values.totals import Total
from tidemark.shared.model.values import Date, Long, Value

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


Add: TypeAlias = Callable[[Any, int], Any]
"""A state, and the number of a group whose values it takes in; the state with them."""
Bounds: TypeAlias = Sequence[int]
"""Where groups begin, and, last, where the last one ends: group i has the values from bounds[i] to bounds[i + 1]."""
_TYPES: Final[dict[type, pa.DataType]] = {int: pa.int32(), Long: pa.int64(), float: pa.float64()}
_NO_ORDER: Final[OrderKey] = (0, 0, 0)
_NONE: Final = type(None)
_SMALL: Final = 16
"""Groups of so few values are counted one by one: arrays would be slower."""


@dataclass(frozen=True)
class Given:
    """The values that rows add, group after group."""

    column: pa.Array | None
    """Values of one type, and nulls: int32 ints, int64 longs, float64 doubles, timestamps dates; None where they have another form."""
    _listed: Callable[[], Sequence[Value]]

    @cached_property
    def listed(self) -> Sequence[Value]:
        """The values."""
        return self._listed()

    @cached_property
    def numbers(self) -> pa.Array | None:
        """The values as a column, where they are numbers of one type, or nulls."""
        if self.column is not None:
            return self.column if self.column.type in _TYPES.values() else None
        kinds = set(map(type, self.listed)) - {_NONE}
        kind = _TYPES.get(next(iter(kinds))) if len(kinds) == 1 else None
        try:
            return None if kind is None else pa.array(self.listed, kind)
        except (pa.ArrowInvalid, OverflowError):  # ints beyond 32 bits are longs
            return None


def adder(
    accumulator: AnyImplementation, given: Given, bounds: Bounds, orders: Callable[[], Sequence[OrderKey]]
) -> Add:
    """How the values of groups are added; `orders` gives their order keys, for accumulators that ask for them."""
    bulk = _BULK.get(type(accumulator))
    found = None if bulk is None else bulk(accumulator, given, bounds)
    return _one_by_one(accumulator, given.listed, bounds, orders) if found is None else found


def _one_by_one(
    accumulator: AnyImplementation, values: Sequence[Value], bounds: Bounds, orders: Callable[[], Sequence[OrderKey]]
) -> Add:
    keys = orders() if accumulator.ordered else None

    def add(state: Any, group: int) -> Any:
        for i in range(bounds[group], bounds[group + 1]):
            state = accumulator.add(state, values[i], _NO_ORDER if keys is None else keys[i])
        return state

    return add


def _count(_: Count, __: Given, bounds: Bounds) -> Add:
    return lambda state, group: state + bounds[group + 1] - bounds[group]


# --- totals -----------------------------------------------------------------------------------------------------------


def _total(_: TotalOf, given: Given, bounds: Bounds) -> Add | None:
    cells = given.numbers
    if cells is None or not len(cells):
        return None
    counts = np.diff(bounds)
    if cells.null_count:
        there = cells.is_valid().to_numpy(zero_copy_only=False)
        counts = np.add.reduceat(there.astype(np.int64), bounds[:-1])
    if pa.types.is_floating(cells.type):
        return _doubles(cells.fill_null(0.0).to_numpy(zero_copy_only=False), bounds, counts.tolist())
    numbers = cells.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if max(-int(numbers.min()), int(numbers.max())) * len(numbers) >= 2**62:
        return None
    wide = INT if pa.types.is_int32(cells.type) else LONG
    sums: list[int] = np.add.reduceat(numbers, bounds[:-1]).tolist()
    of_group = counts.tolist()

    def add(state: Total, group: int) -> Total:
        return _with(state, Total(of_group[group], wide, sums[group])) if of_group[group] else state

    return add


def _doubles(values: npt.NDArray[np.float64], bounds: Bounds, counts: Sequence[int]) -> Add | None:
    if not bool(np.isfinite(values).all()):
        return None
    groups = np.repeat(np.arange(len(counts), dtype=np.int64), np.diff(bounds))
    units = units_by_group(values, groups, len(counts))

    def add(state: Total, group: int) -> Total:
        return _with(state, Total(counts[group], DOUBLE, units=units[group])) if counts[group] else state

    return add


def _with(state: Total, more: Total) -> Total:
    if not state.count:
        return more
    state.merge(more)
    return state


# --- extremes, sketches -----------------------------------------------------------------------------------------------


def _extreme(accumulator: Extremes, given: Given, bounds: Bounds) -> Add | None:
    """The least or greatest value of a group, where equal values are the same, but for zeros."""
    if accumulator.most != 1:
        return None
    if given.numbers is not None:
        return _extreme_number(accumulator, given.numbers, bounds)
    values = given.listed
    if set(map(type, values)) - {_NONE} not in ({str}, {Date}):
        return None
    first = max if accumulator.greatest else min

    def add(state: list[Any], group: int) -> list[Any]:
        some: list[Any] = [value for value in values[bounds[group] : bounds[group + 1]] if value is not None]
        return accumulator.add(state, first(some), _NO_ORDER) if some else state

    return add


def _extreme_number(accumulator: Extremes, cells: pa.Array, bounds: Bounds) -> Add | None:
    """Of doubles without NaN, and of ints; a long of 32 bits and an int are different values."""
    if pa.types.is_int64(cells.type) or not len(cells):
        return None
    there = cells.is_valid().to_numpy(zero_copy_only=False)
    numbers = cells.fill_null(0).to_numpy(zero_copy_only=False)
    if bool((numbers != numbers).any()):  # noqa: PLR0124 - NaN
        return None
    kind = np.float64 if numbers.dtype.kind == "f" else np.int64
    bound = np.inf if kind is np.float64 else np.iinfo(np.int64).max
    far = np.where(there, numbers.astype(kind), -bound if accumulator.greatest else bound)
    best = (np.maximum if accumulator.greatest else np.minimum).reduceat(far, bounds[:-1]).tolist()
    any_there = np.logical_or.reduceat(there, bounds[:-1]).tolist()

    def add(state: list[Any], group: int) -> list[Any]:
        if not any_there[group]:
            return state
        rows = slice(bounds[group], bounds[group + 1])
        # Zeros are equal and may differ in their signs.
        zeros = numbers[rows][(numbers[rows] == 0) & there[rows]].tolist() if best[group] == 0 else [best[group]]
        for value in zeros:
            state = accumulator.add(state, value, _NO_ORDER)
        return state

    return add


def _quantiles(accumulator: Percentiles, given: Given, bounds: Bounds) -> Add | None:
    cells = given.numbers
    if cells is None and not set(map(type, given.listed)) <= {int, float, Long}:
        return None
    if cells is not None and cells.null_count:
        return None
    plain = given.listed if cells is None else cells.to_numpy()
    numbers = np.array(plain, dtype=np.float64) + 0.0
    if bool(np.isnan(numbers).any()):
        return None

    def add(state: Any, group: int) -> Any:
        begin, end = bounds[group], bounds[group + 1]
        if end - begin < _SMALL:
            for number in numbers[begin:end].tolist():
                state = accumulator.add(state, number, _NO_ORDER)
            return state
        found, counts = np.unique(numbers[begin:end], return_counts=True)
        bits = found.view(np.int64)
        keys = np.where(bits >= 0, bits, -(bits & 0x7FFF_FFFF_FFFF_FFFF) - 1)
        state.put_all(found.tolist(), counts.tolist(), keys.tolist())
        return state

    return add


def _distinct(_: ApproxCountDistinct, given: Given, bounds: Bounds) -> Add | None:
    values = given.listed
    if set(map(type, values)) not in ({str}, {int}):
        return None
    hashes = {value: hash_of(value) for value in set(values)}

    def add(state: Any, group: int) -> Any:
        for value in set(values[bounds[group] : bounds[group + 1]]):
            state.put(hashes[value])
        return state

    return add


_BULK: Final[dict[type, Callable[[Any, Given, Bounds], Add | None]]] = {
    Count: _count,
    TotalOf: _total,
    Extremes: _extreme,
    Percentiles: _quantiles,
    ApproxCountDistinct: _distinct,
}
