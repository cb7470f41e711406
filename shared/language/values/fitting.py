"""Numbers as formats with types of their own take them: exactly, or not at all."""

from decimal import Decimal
from typing import Final

from tidemark.shared.model.values import Long, Value

_EXACT: Final = 2.0**53
"""Below it a double has each whole number."""
_WHOLE_MAX: Final = (1 << 64) - 1
"""No format has whole numbers of more bits."""


def whole_of(value: Value) -> int | None:
    """The whole number of at most 64 bits that a value is, whatever its type; None if it is none."""
    if type(value) in (int, Long):
        return int(value)
    if type(value) is float:
        return int(value) if abs(value) < _EXACT and value == int(value) else None
    if type(value) is Decimal and value.is_finite() and abs(value) <= _WHOLE_MAX and value == value.to_integral_value():
        return int(value)
    return None


def double_of(value: Value) -> float | None:
    """The double that a whole number or a decimal is exactly; None if there is none. Doubles are left to the caller."""
    if type(value) in (int, Long):
        return float(value) if int(float(value)) == value else None
    if type(value) is Decimal:
        found = float(value)
        return found if not value.is_finite() or Decimal(found) == value else None
    return None
