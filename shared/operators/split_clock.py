"""What a split's watermark strategy remembers; lies in the snapshot."""

import msgspec

from tidemark.shared.model.time import MIN_TIME


class SplitClock(msgspec.Struct):
    """A split's event time so far; lies in the snapshot."""

    highest_ms: int = MIN_TIME
    """The highest accepted event time."""
    raised_ms: int = MIN_TIME
    """What a script raised it to (D2), or the highest watermark given out, where the strategy could fall."""
    suspect_ms: int | None = None
    agreeing: int = 0
    delays: dict[int, int] = {}
    """Percentile strategy: counts of delays by slot in the window of event time that is being filled."""
    delays_before: dict[int, int] = {}
    """The same of the window before it."""
    delay_ms: int = 0
    """Percentile strategy: how far the watermark is held back, until the block of records is full."""
    largest_ms: int = 0
    """Percentile strategy: the largest delay that was seen."""
    window_from_ms: int = MIN_TIME
    seen: int = 0
    late: int = 0
    """Records that came behind the watermark, of `seen`: the achieved fraction."""
