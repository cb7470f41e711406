"""Watermarks of splits: one strategy a split, and the minimum over splits (protocol, W1 to W3; language.md, Time).

A strategy sees the event times of one split in order and gives, for each record, the split's watermark *before* it, and the split's
watermark behind the last. It is a function of the split's data (and of a script's steps) alone: batches may be cut anywhere.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from tidemark.shared.language.stages import BoundedDisorder, MaxSeen, Percentile, Perfect, Watermark
from tidemark.shared.model.time import MAX_TIME, MIN_TIME, minus
from tidemark.shared.operators import percentile
from tidemark.shared.operators.errors import OperatorError
from tidemark.shared.operators.split_clock import SplitClock

Int64s = npt.NDArray[np.int64]
GAP_PROOF: Final = 3
"""So many records in a row have to agree with one that jumped too far ahead before the jump is believed."""


def advance(clock: SplitClock, times_ms: Int64s, strategy: Watermark) -> Int64s:
    """Take event times in order; the watermark before each, shape (n,). `clock` stands behind the last afterwards."""
    if len(times_ms) == 0:
        return np.empty(0, dtype=np.int64)
    if isinstance(strategy, Percentile):
        return percentile.advance(clock, times_ms, strategy)
    seen = np.maximum.accumulate(np.concatenate(([clock.highest_ms], times_ms)))
    before = np.maximum(_less(seen[:-1], _delay(strategy)), clock.raised_ms)
    behind = int((times_ms < before).sum())
    if behind and isinstance(strategy, Perfect):
        at = int(np.argmax(times_ms < before))
        raise OperatorError(
            f"the source promises order (watermark strategy perfect), but event time {times_ms[at]} ms follows {before[at]} ms; "
            "declare boundedDisorder, or mend the source"
        )
    clock.highest_ms = int(seen[-1])
    clock.seen += len(times_ms)
    clock.late += behind
    return before


def watermark_of(clock: SplitClock, strategy: Watermark) -> int:
    """The split's watermark now, ms; MIN_TIME before its first data."""
    if isinstance(strategy, Percentile):
        return clock.raised_ms
    return max(minus(clock.highest_ms, _delay(strategy)), clock.raised_ms)


def held_behind(clock: SplitClock, strategy: Watermark) -> int:
    """How far the strategy holds the watermark behind the highest event time now, ms."""
    return clock.delay_ms if isinstance(strategy, Percentile) else _delay(strategy)


def raise_to(clock: SplitClock, time_ms: int) -> None:
    """A script raises the watermark (D2); it never falls."""
    clock.raised_ms = max(clock.raised_ms, time_ms)


def accept(clock: SplitClock, times_ms: Int64s, max_jump_ms: int | None) -> npt.NDArray[np.bool_]:
    """Which records are believed: `maxEventTimeJump` (language.md). Shape (n,). Only accepted ones may go to `advance`.

    The record that makes it `GAP_PROOF` more in a row that agree (none further apart from the first than the jump) is accepted.
    """
    taken = np.ones(len(times_ms), dtype=np.bool_)
    if max_jump_ms is None or len(times_ms) == 0:
        return taken
    first = clock.highest_ms if clock.highest_ms != MIN_TIME else int(times_ms[0])
    seen = np.maximum.accumulate(np.concatenate(([first], times_ms)))[:-1]
    if clock.suspect_ms is None and not bool((times_ms - seen > max_jump_ms).any()):
        return taken
    highest = first
    for i, time in enumerate(times_ms.tolist()):
        taken[i], highest = _believe(clock, time, highest, max_jump_ms)
    return taken


def _believe(clock: SplitClock, time_ms: int, highest_ms: int, jump_ms: int) -> tuple[bool, int]:
    if time_ms - highest_ms <= jump_ms:
        clock.suspect_ms, clock.agreeing = None, 0
        return True, max(highest_ms, time_ms)
    if clock.suspect_ms is not None and abs(time_ms - clock.suspect_ms) <= jump_ms:
        clock.agreeing += 1
        if clock.agreeing >= GAP_PROOF:
            clock.suspect_ms, clock.agreeing = None, 0
            return True, time_ms
        return False, highest_ms
    clock.suspect_ms, clock.agreeing = time_ms, 0
    return False, highest_ms


def _delay(strategy: Watermark) -> int:
    match strategy:
        case BoundedDisorder(max_delay_ms):
            return max_delay_ms
        case MaxSeen() | Perfect() | Percentile():
            return 0


def _less(times_ms: Int64s, delay_ms: int) -> Int64s:
    """Times less a delay; MIN_TIME stays what it is."""
    return np.where(times_ms == MIN_TIME, MIN_TIME, times_ms - delay_ms)


# --- over splits ------------------------------------------------------------------------------------------------------


def merged(watermarks: list[tuple[int, bool, bool]]) -> int:
    """The minimum over (watermark, idle, ended) of splits or channels, by W3; MIN_TIME where there is none."""
    active = [w for w, idle, ended in watermarks if not idle and not ended]
    if active:
        return min(active)
    idle_ones = [w for w, idle, ended in watermarks if idle and not ended]
    if idle_ones:
        return max(idle_ones)
    return MAX_TIME if watermarks else MIN_TIME
