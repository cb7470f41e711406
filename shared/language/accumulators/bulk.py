"""Many values at once: what `add`, one value after the other, would make of the states of consecutive groups (A1).

A form in bulk is there for values of one type without surprises; whatever else is among them, they are added one by one.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from shared.language.accumulators.base import AnyImplementation, OrderKey
from shared.language.accumulators.extremes import Extremes
from shared.language.accumulators.numbers import Count, TotalOf
from shared.language.accumulators.sketches import ApproxCountDistinct, Percentiles, hash_of
from shared.language.kernels.totals import units_by_group
from shared.language.values.numbers import DOUBLE, INT, LONG
from shared.language.values.totals import Total
from shared.model.values import INT32_MAX, INT32_MIN, Date, Long, Value

Add: TypeAlias = Callable[[Any, int], Any]
"""A state, and the number of a group whose values it takes in; the state with them."""
Bounds: TypeAlias = Sequence[int]
"""Where groups begin, and, last, where the last one ends: group i has the values from bounds[i] to bounds[i + 1]."""
_NO_ORDER: Final[OrderKey] = (0, 0, 0)
_NONE: Final = type(None)
_SMALL: Final = 16
"""Groups of so few values are counted one by one: arrays would be slower."""


def adder(
    accumulator: AnyImplementation, values: Sequence[Value], bounds: Bounds, orders: Callable[[], Sequence[OrderKey]]
) -> Add:
    """How the values of groups are added; `orders` gives their order keys, for accumulators that ask for them."""
    bulk = _BULK.get(type(accumulator))
    found = None if bulk is None else bulk(accumulator, values, bounds)
    return _one_by_one(accumulator, values, bounds, orders) if found is None else found


def _one_by_one(
    accumulator: AnyImplementation, values: Sequence[Value], bounds: Bounds, orders: Callable[[], Sequence[OrderKey]]
) -> Add:
    keys = orders() if accumulator.ordered else None

    def add(state: Any, group: int) -> Any:
        for i in range(bounds[group], bounds[group + 1]):
            state = accumulator.add(state, values[i], _NO_ORDER if keys is None else keys[i])
        return state

    return add


def _count(_: Count, __: Sequence[Value], bounds: Bounds) -> Add:
    return lambda state, group: state + bounds[group + 1] - bounds[group]


# --- totals -----------------------------------------------------------------------------------------------------------


def _total(_: TotalOf, values: Sequence[Value], bounds: Bounds) -> Add | None:
    kinds = set(map(type, values))
    there = np.array([value is not None for value in values], dtype=np.int64) if _NONE in kinds else None
    kinds.discard(_NONE)
    filled = values if there is None else [0 if value is None else value for value in values]
    counts = np.diff(bounds) if there is None else np.add.reduceat(there, bounds[:-1])
    if kinds == {float}:
        return _doubles(np.array(filled, dtype=np.float64), bounds, counts.tolist())
    if kinds and kinds <= {int, Long}:
        return _wholes(filled, kinds, bounds, counts.tolist())
    return None


def _wholes(values: Sequence[int], kinds: set[type], bounds: Bounds, counts: Sequence[int]) -> Add | None:
    """Sums of whole numbers that are all ints, or all longs."""
    least, most = min(values), max(values)
    if max(-least, most) * len(values) >= 2**62:
        return None
    if kinds == {int} and least >= INT32_MIN and most <= INT32_MAX:
        wide = INT
    elif kinds == {Long}:
        wide = LONG
    else:
        return None
    sums: list[int] = np.add.reduceat(np.array(values, dtype=np.int64), bounds[:-1]).tolist()

    def add(state: Total, group: int) -> Total:
        if counts[group]:
            state.merge(Total(count=counts[group], wide=wide, whole=sums[group]))
        return state

    return add


def _doubles(values: npt.NDArray[np.float64], bounds: Bounds, counts: Sequence[int]) -> Add | None:
    if not bool(np.isfinite(values).all()):
        return None
    groups = np.repeat(np.arange(len(counts), dtype=np.int64), np.diff(bounds))
    units = units_by_group(values, groups, len(counts))

    def add(state: Total, group: int) -> Total:
        if counts[group]:
            state.merge(Total(count=counts[group], wide=DOUBLE, units=units[group]))
        return state

    return add


# --- extremes, sketches -----------------------------------------------------------------------------------------------


def _extreme(accumulator: Extremes, values: Sequence[Value], bounds: Bounds) -> Add | None:
    """The least or greatest value of a group, where equal values are the same, but for zeros."""
    kinds = set(map(type, values)) - {_NONE}
    if accumulator.most != 1 or kinds not in ({int}, {float}, {str}, {Date}):
        return None
    if kinds == {float} and any(value != value for value in values):  # noqa: PLR0124 - NaN
        return None
    first = max if accumulator.greatest else min

    def add(state: list[Any], group: int) -> list[Any]:
        given = [value for value in values[bounds[group] : bounds[group + 1]] if value is not None]
        best = first(given, default=None)
        # Zeros are equal and may differ in their signs.
        for value in (value for value in given if value == 0) if best == 0 else [best]:
            state = accumulator.add(state, value, _NO_ORDER)
        return state

    return add


def _quantiles(accumulator: Percentiles, values: Sequence[Value], bounds: Bounds) -> Add | None:
    if not set(map(type, values)) <= {int, float, Long}:
        return None
    numbers = np.array(list(map(float, values)), dtype=np.float64) + 0.0
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


def _distinct(_: ApproxCountDistinct, values: Sequence[Value], bounds: Bounds) -> Add | None:
    kinds = set(map(type, values))
    if kinds not in ({str}, {int}):
        return None
    hashes = {value: hash_of(value) for value in set(values)}

    def add(state: Any, group: int) -> Any:
        for value in set(values[bounds[group] : bounds[group + 1]]):
            state.put(hashes[value])
        return state

    return add


_BULK: Final[dict[type, Callable[[Any, Sequence[Value], Bounds], Add | None]]] = {
    Count: _count,
    TotalOf: _total,
    Extremes: _extreme,
    Percentiles: _quantiles,
    ApproxCountDistinct: _distinct,
}
