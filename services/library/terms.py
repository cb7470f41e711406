"""Decimals and numpy as they are in a process of a service, whatever a program has set for itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import ROUND_HALF_EVEN, Context, DivisionByZero, InvalidOperation, Overflow, localcontext
from typing import Final

import numpy as np

_DECIMALS: Final = Context(
    prec=28,
    rounding=ROUND_HALF_EVEN,
    Emin=-999_999,
    Emax=999_999,
    capitals=1,
    clamp=0,
    flags=[],
    traps=[InvalidOperation, DivisionByZero, Overflow],
)
"""Python's own, in which a process begins. What is not stated comes from `decimal.DefaultContext`, which programs change."""


@contextmanager
def own_terms() -> Iterator[None]:
    """In the block this thread computes as a service does: a computation, or a comparison, has the same result here and there."""
    with localcontext(_DECIMALS), np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
        yield
