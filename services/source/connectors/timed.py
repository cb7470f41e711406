"""Records that time makes: one is a function of its position, and positions follow from the time.

So a restore reads the same records again (I1), and nothing need be kept. There is one split, without an end. Its position goes on with
the clock where nothing is due, and never back: another timetable that a document names later gives what comes from then on.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from tidemark.shared.language.values import render_json
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.model.values import Document
from tidemark.shared.ports.clock import Clock

ROWS_MAX: Final = 1000
"""Of one batch, where the source has to catch up."""


class Timetable(Protocol):
    """What comes when. Positions rise with time."""

    split: SplitId

    def positions(self, begin: int) -> Iterator[int]:
        """Those from this one on that have a record, in order, as far as the calendar goes."""
        ...

    def time_ms(self, position: int) -> int:
        """The timestamp of the record at a position, ms."""
        ...

    def due_ms(self, position: int) -> int:
        """When it is due, ms."""
        ...

    def due(self, now_ms: int) -> int:
        """The position behind all that are due."""
        ...

    def record(self, position: int) -> Document:
        """The record at a position."""
        ...


class TimedConnector:
    """`SourcePort` of a timetable. `ends_after`: for a try-out the first so many records that are not due yet; None: it never ends."""

    def __init__(self, timetable: Timetable, clock: Clock, ends_after: int | None = None) -> None:
        self._table = timetable
        self._clock = clock
        self._ends_after = ends_after
        self._next: Offset | None = None
        self._until: Offset | None = None
        self._at_end = False

    def _now(self) -> Offset:
        return Offset(self._table.due(self._clock.now_ms()))

    async def splits(self) -> Mapping[SplitId, int]:
        """There is one."""
        return {self._table.split: 0}

    async def check(self, known: Mapping[SplitId, KnownSplit]) -> None:
        """Computed records cannot be replaced."""

    async def found(self, splits: Collection[SplitId], *, first: bool) -> Mapping[SplitId, KnownSplit]:
        """It is read from now on."""
        del first
        begin, until = self._now(), None
        if self._ends_after is not None:
            *_, last = islice(self._table.positions(begin), self._ends_after)
            until = Offset(last + 1)
        return {split: KnownSplit(0, "", begin, until) for split in splits}

    async def ends(self, positions: Mapping[SplitId, Offset]) -> Mapping[SplitId, Offset | None]:
        """Behind what is due now."""
        return {split: Offset(max(position, self._now())) for split, position in positions.items()}

    async def open(self, positions: Mapping[SplitId, Offset]) -> None:
        """Read from here."""
        self._next = positions.get(self._table.split, self._next)

    async def fetch(self, max_bytes: int, timeout_ms: int) -> Sequence[RawBatch]:
        """The records that are due; [] after the time."""
        if self._next is None or self._finished():
            return []
        table, ahead = self._table, self._table.positions(self._next)
        at = next(ahead, None)
        wait_ms = timeout_ms if at is None else table.due_ms(at) - self._clock.now_ms()
        if wait_ms > 0 and self._until is None:
            await self._clock.sleep_ms(min(timeout_ms, wait_ms))
        end = self._now() if self._until is None else self._until
        positions: list[int] = []
        values: list[bytes] = []
        size = 0
        while at is not None and at < end and len(positions) < ROWS_MAX and size < max_bytes:
            positions.append(at)
            values.append(render_json(table.record(at), canonical=True))
            size += len(values[-1])
            self._next, at = Offset(at + 1), next(ahead, None)
        self._at_end = at is None or at >= end
        if self._at_end:
            self._next = max(self._next, end)  # nothing is in between
        if not positions:
            return []
        times = np.array([table.time_ms(at) for at in positions], dtype=np.int64)
        return [RawBatch(table.split, 0, np.array(positions, dtype=np.int64), times, pa.array(values, pa.binary()))]

    def _finished(self) -> bool:
        return self._next is not None and self._until is not None and self._next >= self._until

    def status(self) -> Sequence[SplitStatus]:
        """See `Source.status`."""
        if self._next is None:
            return []
        done = self._finished()
        return [SplitStatus(self._table.split, self._next, done or self._at_end, done)]

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """See `Source.end_at`."""
        self._until = until.get(self._table.split, self._until)

    async def close(self) -> None:
        """Nothing to let go of."""
