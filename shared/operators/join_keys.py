"""What a `$join` keeps of one key: rows that wait for the watermark, rows of either side that may still find a match.

Rows are encoded documents, and stay so from their coming to their going: pairs are put together from bytes.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from shared.model.ids import KeyGroup

Side = Literal[0, 1]
LEFT: Final[Side] = 0
RIGHT: Final[Side] = 1
ROW_BYTES: Final = 256
"""What a row costs besides its document."""


class Waiting(msgspec.Struct, array_like=True, frozen=True, order=True, gc=False):
    """A row that waits until the watermark is above its time; they compare in the order in which they are applied (J2)."""

    time_ms: int
    side: Side
    part: int
    position: int
    data: bytes
    arrival_ms: int


class Kept(msgspec.Struct, array_like=True, gc=False):
    """A row that has been applied and may still find a match."""

    time_ms: int
    arrival_ms: int
    number: int
    """The place of its own output, should it find no match, among those of its key and time."""
    data: bytes
    matched: bool = False


class Found(msgspec.Struct, frozen=True, gc=False):
    """A document to give out: of a pair, or of one row that has found no match. They compare in the order in which they go out (J5)."""

    time_ms: int
    key: bytes
    number: int
    arrival_ms: int
    left: bytes | None
    right: bytes | None


class KeySnapshot(msgspec.Struct, array_like=True):
    """One key in the snapshot."""

    key: bytes
    waiting: list[Waiting]
    left: list[Kept]
    right: list[Kept]


class JoinKey:
    """The rows of one key. Bounds: a right row matches from `after_ms` before it to `before_ms` behind it, seen from the left rows."""

    __slots__ = ("data", "group", "kept", "size_bytes", "waiting")

    def __init__(self, data: bytes, group: KeyGroup) -> None:
        self.data = data
        self.group = group
        self.waiting: list[Waiting] = []
        """A heap."""
        self.kept: tuple[list[Kept], list[Kept]] = ([], [])
        """By side, in the order of time."""
        self.size_bytes = 0

    def apply(self, below_ms: int, reach_ms: tuple[int, int]) -> Iterator[Found]:
        """Apply the rows with a time below this: each pairs with those of the other side that were applied before it.

        reach_ms: by side, how much later than such a row one of the other side may still be its match.
        """
        time_ms: int | None = None
        number = 0
        while self.waiting and self.waiting[0].time_ms < below_ms:
            row = heapq.heappop(self.waiting)
            number = number + 1 if row.time_ms == time_ms else 0
            time_ms = row.time_ms
            kept = Kept(time_ms, row.arrival_ms, number, row.data)
            others = self.kept[1 - row.side]
            first = bisect_left(others, time_ms - reach_ms[1 - row.side], key=_time)
            for other in others[first:]:
                kept.matched = other.matched = True
                number += 1
                arrival_ms = max(row.arrival_ms, other.arrival_ms)
                pair = (row.data, other.data) if row.side == LEFT else (other.data, row.data)
                yield Found(time_ms, self.data, number, arrival_ms, *pair)
            self.kept[row.side].append(kept)

    def expire(self, watermark_ms: int, reach_ms: tuple[int, int], outer: tuple[bool, bool]) -> Iterator[Found]:
        """Drop the rows that no row to come can match; of outer sides, those without a match come out."""
        for side in (LEFT, RIGHT):
            rows = self.kept[side]
            gone = bisect_left(rows, watermark_ms - reach_ms[side], key=_time)
            for row in rows[:gone]:
                self.size_bytes -= len(row.data) + ROW_BYTES
                if outer[side] and not row.matched:
                    alone = (row.data, None) if side == LEFT else (None, row.data)
                    yield Found(row.time_ms, self.data, row.number, row.arrival_ms, *alone)
            del rows[:gone]

    def wait(self, row: Waiting) -> None:
        """A row has come."""
        heapq.heappush(self.waiting, row)
        self.size_bytes += len(row.data) + ROW_BYTES

    def due_ms(self, reach_ms: tuple[int, int]) -> int | None:
        """There is something to do once the watermark is above this; None for an empty key."""
        due = self.waiting[0].time_ms if self.waiting else None
        for rows, reach in zip(self.kept, reach_ms, strict=True):
            if rows and (due is None or rows[0].time_ms + reach < due):
                due = rows[0].time_ms + reach
        return due

    def hold_ms(self, outer: tuple[bool, bool]) -> int | None:
        """The earliest time of a row that may yet come out alone (J4)."""
        hold = None
        for rows, counts in zip(self.kept, outer, strict=True):
            if counts:
                first = next((row.time_ms for row in rows if not row.matched), None)
                if first is not None and (hold is None or first < hold):
                    hold = first
        return hold

    def snapshot(self) -> KeySnapshot:
        """As it is stored."""
        return KeySnapshot(self.data, sorted(self.waiting), *self.kept)

    def restore(self, stored: KeySnapshot) -> None:
        """Become what was stored."""
        self.waiting = stored.waiting
        heapq.heapify(self.waiting)
        self.kept = (stored.left, stored.right)
        data = [row.data for row in self.waiting] + [row.data for rows in self.kept for row in rows]
        self.size_bytes = sum(len(each) + ROW_BYTES for each in data)


def _time(row: Kept) -> int:
    return row.time_ms
