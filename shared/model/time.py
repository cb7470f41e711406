"""Event time: UTC in whole milliseconds since 1970, as 64-bit integers; durations in milliseconds."""

from typing import Final

MIN_TIME: Final = -(2**63)
"""The watermark before any: nothing is known yet (null in Arrow columns is never used for it)."""
MAX_TIME: Final = 2**63 - 1
"""The watermark after the last: no on-time record follows at all."""


def minus(time_ms: int, duration_ms: int) -> int:
    """`time_ms - duration_ms`, staying at the two ends (ms): the end of time less an hour is still the end of time."""
    if time_ms in (MIN_TIME, MAX_TIME):
        return time_ms
    return max(MIN_TIME, min(MAX_TIME, time_ms - duration_ms))
