"""Watermarks of splits: one strategy a split, and the minimum over splits (protocol, W1 to W3; LANGUAGE.md, Time).

A strategy sees the event times of one split in order and gives, for each record, the split's watermark *before* it, and the split's
watermark behind the last. It is a function of the split's data (and of a script's steps) alone: batches may be cut anywhere.

The percentile strategy: hold a split's watermark back just enough that at most a declared fraction of its records comes behind it.

How late records come (their delay behind the highest event time so far) is counted by slot, over this and the last window of event
time; the watermark is the highest event time less the smallest delay that all but the fraction keep to. Rules:

- PC1 The delay changes at the ends of blocks of records, counted from the first: blocks double up to BLOCK records, so that the
  beginning is learnt from soon. So the result is a function of the records alone, and a block is a few array operations.
- PC2 The past is no promise. It aims at AIM of the fraction, and while the fraction achieved is above that, the watermark is held back
  by the largest delay ever seen, so that later records make up for the late ones.
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from tidemark.shared.language.stages import BoundedDisorder, MaxSeen, Percentile, Perfect, Watermark
from tidemark.shared.model.time import MIN_TIME, minus
from tidemark.shared.operators.base import OperatorError


class SplitClock(msgspec.Struct):
    """A split's event time so far; lies in the snapshot."""

    highest_ms: int = MIN_TIME
    """The highest accepted event time."""
    raised_ms: int = MIN_TIME
    """The watermark to which a script raised it (D2), or the highest that was given out: no other strategy falls behind it (W1)."""
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


Int64s = npt.NDArray[np.int64]
BLOCK: Final = 256
"""Records of a block, once so many were seen."""
AIM: Final = 0.9
SLOTS: Final = 1024
"""Delays are counted in so many slots; each is 1/16 wider than the last, which holds every 64-bit delay."""
_EXACT: Final = 16


def _by_percentile(clock: SplitClock, times_ms: Int64s, strategy: Percentile) -> Int64s:
    """Take event times in order; the watermark before each, shape (n,). `clock` stands behind the last afterwards."""
    before = np.empty(len(times_ms), dtype=np.int64)
    done = 0
    while done < len(times_ms):
        end = min(len(times_ms), done + _block_end(clock.seen) - clock.seen)
        before[done:end] = _block(clock, times_ms[done:end], strategy)
        done = end
    return before


def _block_end(seen: int) -> int:
    """The number of records at which the block that the next one belongs to is full."""
    return (seen // BLOCK + 1) * BLOCK if seen >= BLOCK else 1 << seen.bit_length()


def _block(clock: SplitClock, times_ms: Int64s, strategy: Percentile) -> Int64s:
    """Records of one block, not necessarily all of it."""
    full = _block_end(clock.seen) == clock.seen + len(times_ms)
    highest = np.maximum.accumulate(np.concatenate(([clock.highest_ms], times_ms)))
    held = np.where(highest == MIN_TIME, MIN_TIME, highest - clock.delay_ms)
    before = np.maximum(held[:-1], clock.raised_ms)
    if clock.window_from_ms == MIN_TIME:
        clock.window_from_ms = int(times_ms[0])
    _count(clock, highest[1:] - times_ms)
    clock.seen += len(times_ms)
    clock.late += int((times_ms < before).sum())
    clock.highest_ms = int(highest[-1])
    if full:
        clock.delay_ms = _needed(clock, strategy.late_fraction)
        if clock.highest_ms - clock.window_from_ms >= strategy.window_ms:
            clock.delays_before, clock.delays, clock.window_from_ms = clock.delays, {}, clock.highest_ms
    clock.raised_ms = max(int(before[-1]), clock.highest_ms - clock.delay_ms)
    return before


def _count(clock: SplitClock, delays_ms: Int64s) -> None:
    clock.largest_ms = max(clock.largest_ms, int(delays_ms.max()))
    slots, counts = np.unique(slots_of(delays_ms), return_counts=True)
    for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
        clock.delays[slot] = clock.delays.get(slot, 0) + count


def _needed(clock: SplitClock, late_fraction: float) -> int:
    """The smallest delay, ms, behind which at most the fraction of the remembered records came (PC2)."""
    if clock.late > AIM * late_fraction * clock.seen:
        return clock.largest_ms
    found = np.zeros(SLOTS, dtype=np.int64)
    for counts in (clock.delays, clock.delays_before):
        for slot, count in counts.items():
            found[slot] += count
    beyond = np.cumsum(found[::-1])
    first = int(np.argmax(beyond > AIM * late_fraction * beyond[-1]))
    return min(slot_top(SLOTS - 1 - first), clock.largest_ms)


def slots_of(delays_ms: Int64s) -> Int64s:
    """The slot of each delay, ms; shape (n,). Below 16 each has its own."""
    length = np.frexp(delays_ms.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(length - 5, 0)
    # A double may round a long delay up into the next power of two: its slot is then the first of that one.
    slots = 16 * shift + np.maximum(delays_ms >> shift, np.where(shift > 0, _EXACT, 0))
    return np.asarray(slots, dtype=np.int64)


def slot_top(slot: int) -> int:
    """The largest delay in a slot, ms: the error of a delay is below 1/16, and always to the safe side."""
    if slot < 2 * _EXACT:
        return slot
    shift = slot // 16 - 1
    return ((slot - 16 * shift + 1) << shift) - 1


GAP_PROOF: Final = 3
"""So many records in a row have to agree with one that jumped too far ahead before the jump is believed."""


def advance(clock: SplitClock, times_ms: Int64s, strategy: Watermark) -> Int64s:
    """Take event times in order; the watermark before each, shape (n,). `clock` stands behind the last afterwards."""
    if len(times_ms) == 0:
        return np.empty(0, dtype=np.int64)
    if isinstance(strategy, Percentile):
        return _by_percentile(clock, times_ms, strategy)
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
    clock.raised_ms = watermark_of(clock, strategy)
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
    """Which records are believed: `maxEventTimeJump` (LANGUAGE.md). Shape (n,). Only accepted ones may go to `advance`.

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
    """Times less a delay; MIN_TIME stays as it is."""
    return np.where(times_ms == MIN_TIME, MIN_TIME, times_ms - delay_ms)
