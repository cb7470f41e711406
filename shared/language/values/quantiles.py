"""Quantiles of ordered numbers."""

import math
from collections.abc import Sequence


def quantile(ordered: Sequence[float], p: float) -> float | None:
    """The p-quantile (0 to 1) of ascending numbers, one of them: the ceil(p·n)-th, the first for p = 0; None of none."""
    if not ordered:
        return None
    return ordered[max(0, min(len(ordered), math.ceil(p * len(ordered))) - 1)]
