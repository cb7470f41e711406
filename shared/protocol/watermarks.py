"""How a task derives its input watermark and idleness from its channels (W1, W3). The same rule serves a source's splits."""

from collections.abc import Iterable
from dataclasses import dataclass

from shared.model.time import MAX_TIME, MIN_TIME


@dataclass(slots=True)
class InputProgress:
    """What one channel (or split) has said last."""

    watermark_ms: int = MIN_TIME
    idle: bool = False
    ended: bool = False

    def raise_to(self, watermark_ms: int) -> None:
        """Take a watermark; a lower one changes nothing (W1)."""
        self.watermark_ms = max(self.watermark_ms, watermark_ms)


def combined_watermark(inputs: Iterable[InputProgress]) -> int:
    """W3: the minimum over inputs neither idle nor ended; else the highest of the idle; MAX_TIME only when all have ended, ms."""
    active, idle = MAX_TIME, MIN_TIME
    any_active = any_idle = False
    for progress in inputs:
        if progress.ended or progress.watermark_ms == MAX_TIME:
            continue  # An input at MAX_TIME has said all but END: it holds nobody back, nor does it speak for those that are idle.
        if progress.idle:
            any_idle, idle = True, max(idle, progress.watermark_ms)
        else:
            any_active, active = True, min(active, progress.watermark_ms)
    if any_active:
        return active
    return idle if any_idle else MAX_TIME


def all_idle(inputs: Iterable[InputProgress]) -> bool:
    """W3: idle are those whose inputs are all idle or ended, but not all ended. Without inputs: idle."""
    seen = list(inputs)
    return all(p.idle or p.ended for p in seen) and not (seen and all(p.ended for p in seen))
