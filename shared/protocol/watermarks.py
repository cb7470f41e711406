"""How a task derives its input watermark and idleness from its channels (W1, W3). The same rule serves a source's splits."""

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.shared.model.time import MAX_TIME, MIN_TIME


@dataclass(slots=True)
class InputProgress:
    """The last report of one channel (or split)."""

    watermark_ms: int = MIN_TIME
    idle: bool = False
    ended: bool = False
    together: str = ""
    """The vertex of the sender, where all of its tasks hear the same: they count as one. Empty for sources and splits."""

    def raise_to(self, watermark_ms: int) -> None:
        """Take a watermark; a lower one changes nothing (W1)."""
        self.watermark_ms = max(self.watermark_ms, watermark_ms)


def combined_watermark(inputs: Iterable[InputProgress]) -> int:
    """W3: the minimum over inputs neither idle nor ended; else the highest of the idle; MAX_TIME only when all have ended, ms.

    Tasks that receive the same frames are one input. It is as low as the lowest of them, for that one may hold rows that the others do not
    know of. It is idle when all of them are.
    """
    active = MAX_TIME
    any_active = False
    idle: list[int] = []
    shared: dict[str, tuple[int, bool]] = {}
    for progress in inputs:
        if progress.ended or progress.watermark_ms == MAX_TIME:
            continue  # An input at MAX_TIME has said all but END: it holds nobody back, nor does it speak for those that are idle.
        if progress.together:
            lowest_ms, all_are = shared.get(progress.together, (MAX_TIME, True))
            shared[progress.together] = (min(lowest_ms, progress.watermark_ms), all_are and progress.idle)
        elif progress.idle:
            idle.append(progress.watermark_ms)
        else:
            any_active, active = True, min(active, progress.watermark_ms)
    for lowest_ms, all_are in shared.values():
        if all_are:
            idle.append(lowest_ms)
        else:
            any_active, active = True, min(active, lowest_ms)
    return active if any_active else max(idle, default=MAX_TIME)


def all_idle(inputs: Iterable[InputProgress]) -> bool:
    """W3: a task is idle if all its inputs are idle or ended, but not all ended. Without inputs: idle."""
    seen = list(inputs)
    return all(p.idle or p.ended for p in seen) and not (seen and all(p.ended for p in seen))
