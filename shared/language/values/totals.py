"""Exact totals of numbers of mixed types: sum, average, deviation.

- T1 The result depends on which numbers were added, never on their order or on how they were split and merged: doubles are summed as
  exact integers (multiples of the least double, 2⁻¹⁰⁷⁴), decimals without rounding; rounding happens once, at the end.
- T2 Types widen as in MongoDB: int, long, double, decimal; a whole sum that exceeds 64 bits becomes a double.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Final

from tidemark.shared.language.values.numbers import DEC, DOUBLE, LONG, decimal_of, whole, width
from tidemark.shared.language.values.types import NUMBER_TYPES, is_finite
from tidemark.shared.model.values import Value


def quantile(ordered: Sequence[float], p: float) -> float | None:
    """The p-quantile (0 to 1) of ascending numbers, one of them: the ceil(p·n)-th, the first for p = 0; None of none."""
    if not ordered:
        return None
    return ordered[max(0, min(len(ordered), math.ceil(p * len(ordered))) - 1)]


UNIT_BITS: Final = 1074
"""A double is a whole multiple of 2⁻¹⁰⁷⁴."""
_EXACT: Final = Context(prec=13_000, Emin=-999_999, Emax=999_999)
ZERO: Final = Decimal(0)


def units_of(value: float) -> int:
    """A finite double as a whole number of units of 2⁻¹⁰⁷⁴."""
    numerator, denominator = value.as_integer_ratio()
    return numerator << (UNIT_BITS + 1 - denominator.bit_length())


def _ratio(numerator: int, denominator: int) -> float:
    """The double nearest to a fraction, infinite beyond the range."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


@dataclass(slots=True)
class Total:
    """A sum and a count. `special` is the sum of the infinities and NaNs, 0.0 without any."""

    count: int = 0
    wide: int = 0
    whole: int = 0
    units: int = 0
    decimal: Decimal = ZERO
    special: float = 0.0

    def add(self, value: Value) -> None:
        """Take in a value; values other than numbers are passed over."""
        kind = type(value)
        if kind not in NUMBER_TYPES:
            return
        self.count += 1
        wide = width(value)
        self.wide = max(self.wide, wide)
        if wide <= LONG:
            self.whole += int(value)
        elif not is_finite(value):
            self.special += float(value)
        elif wide == DOUBLE:
            self.units += units_of(value)
        else:
            self.decimal = _EXACT.add(self.decimal, value)

    def merge(self, other: "Total") -> None:
        """Take in another total."""
        self.count += other.count
        self.wide = max(self.wide, other.wide)
        self.whole += other.whole
        self.units += other.units
        self.decimal = _EXACT.add(self.decimal, other.decimal)
        self.special += other.special

    def _decimal(self) -> Decimal:
        exact = _EXACT.add(self.decimal, Decimal(self.whole))
        if self.units:
            exact = _EXACT.add(exact, _EXACT.divide(Decimal(self.units), Decimal(1 << UNIT_BITS)))
        return exact

    def sum(self) -> Any:
        """The sum: 0 of nothing."""
        if self.special != 0:  # infinite or NaN
            return Decimal(self.special) if self.wide == DEC else self.special
        if self.wide <= LONG:
            return whole(self.whole, self.wide)
        if self.wide == DOUBLE:
            return _ratio((self.whole << UNIT_BITS) + self.units, 1 << UNIT_BITS)
        return decimal_of(self._decimal())

    def average(self) -> Any:
        """The average: a double, or a decimal if one was; None of nothing."""
        if self.count == 0:
            return None
        if self.special != 0:
            return Decimal(self.special) if self.wide == DEC else self.special
        if self.wide < DEC:
            return _ratio((self.whole << UNIT_BITS) + self.units, self.count << UNIT_BITS)
        return decimal_of(_EXACT.divide(self._decimal(), Decimal(self.count)))


@dataclass(slots=True)
class Deviation:
    """Σx and Σx² of doubles, exactly; numbers of other types count as the nearest double. `special`: an infinity or NaN came."""

    count: int = 0
    units: int = 0
    squares: int = 0
    special: bool = False

    def add(self, value: Value) -> None:
        """Take in a value; values other than numbers are passed over."""
        if type(value) not in NUMBER_TYPES:
            return
        self.count += 1
        double = float(value)
        if not is_finite(double):
            self.special = True
            return
        units = units_of(double)
        self.units += units
        self.squares += units * units

    def merge(self, other: "Deviation") -> None:
        """Take in another one."""
        self.count += other.count
        self.units += other.units
        self.squares += other.squares
        self.special = self.special or other.special

    def _root(self, divisor: int) -> float:
        if self.special:
            return math.nan
        spread = self.count * self.squares - self.units * self.units
        if not spread:  # of one value, or of equal ones
            return 0.0
        return math.sqrt(_ratio(spread, self.count * divisor << (2 * UNIT_BITS)))

    def population(self) -> float | None:
        """The deviation of a population; None of nothing."""
        return self._root(self.count) if self.count else None

    def sample(self) -> float | None:
        """The deviation of a sample; None of fewer than two."""
        return self._root(self.count - 1) if self.count > 1 else None
