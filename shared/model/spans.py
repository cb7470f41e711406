"""Counts of time spans by length, for histograms. No decision depends on them."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

BOUNDS_MS: Final = (
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 3_600_000, 86_400_000,
)  # fmt: skip
"""Upper bounds of the counts but the last, which has none: from a call to data that are a day late."""


@dataclass(slots=True)
class Spans:
    """The counts of one kind of span."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    sum_ms: int = 0

    def add(self, span_ms: int) -> None:
        """Count one more span, ms."""
        self.counts[bisect_left(BOUNDS_MS, span_ms)] += 1
        self.sum_ms += max(0, span_ms)
