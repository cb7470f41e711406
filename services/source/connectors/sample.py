"""The sample stream: readings of solar panels, as Atlas' `sample_stream_solar` has them, made up.

A record is a function of its position, and its position of the time. So a restore reads the same records again (I1), and nothing
need be kept. It has one split, without an end.
"""

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.shared.language.values import render_json
from tidemark.shared.language.values.instants import format_iso
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.model.values import Document
from tidemark.shared.ports.clock import Clock

SPLIT: Final = SplitId("sample-0")
PERIOD_MS: Final = 100
"""From one record to the next."""
ROWS_MAX: Final = 1000
"""Of one batch, where the source has to catch up."""
_DEVICES: Final = 10
_WATTS: Final = (250, 450)
_FROM_C: Final = 5
_TEMPERATURES: Final = 20


def record(position: int) -> Document:
    """The record at a position."""
    drawn = blake2b(position.to_bytes(8, "big"), digest_size=8).digest()
    device = drawn[0] % _DEVICES
    most = _WATTS[device % len(_WATTS)]
    return {
        "device_id": f"device_{device}",
        "group_id": device % len(_WATTS),
        "timestamp": format_iso(position * PERIOD_MS),
        "max_watts": most,
        "event_type": int(drawn[1] == 0),
        "obs": {
            "watts": int.from_bytes(drawn[2:4], "big") % (most + 1),
            "temp": _FROM_C + drawn[4] % _TEMPERATURES,
        },
    }


class SampleConnector:
    """`SourcePort` of the sample stream. `ends_after`: so many records, for a try-out; None: none."""

    def __init__(self, clock: Clock, ends_after: int | None = None) -> None:
        self._clock = clock
        self._ends_after = ends_after
        self._next: Offset | None = None
        self._until: Offset | None = None

    def _now(self) -> Offset:
        """The position that is due next."""
        return Offset(self._clock.now_ms() // PERIOD_MS)

    async def splits(self) -> Mapping[SplitId, int]:
        """There is one."""
        return {SPLIT: 0}

    async def check(self, known: Mapping[SplitId, KnownSplit]) -> None:
        """Computed records cannot be replaced."""

    async def found(self, splits: Collection[SplitId], *, first: bool) -> Mapping[SplitId, KnownSplit]:
        """It is read from now on."""
        del first
        now = self._now()
        until = None if self._ends_after is None else Offset(now + self._ends_after)
        return {split: KnownSplit(0, "", now, until) for split in splits}

    async def ends(self, positions: Mapping[SplitId, Offset]) -> Mapping[SplitId, Offset | None]:
        """Where the stream stands now."""
        return {split: Offset(max(position, self._now())) for split, position in positions.items()}

    async def open(self, positions: Mapping[SplitId, Offset]) -> None:
        """Read from here."""
        self._next = positions.get(SPLIT, self._next)

    async def fetch(self, max_bytes: int, timeout_ms: int) -> Sequence[RawBatch]:
        """The records that are due; [] after the time."""
        if self._next is None or self._finished():
            return []
        if self._next >= self._now():
            await self._clock.sleep_ms(min(timeout_ms, PERIOD_MS))
        end = min(self._now(), Offset(self._next + ROWS_MAX), *([] if self._until is None else [self._until]))
        positions: list[int] = []
        values: list[bytes] = []
        size = 0
        while self._next < end and size < max_bytes:
            positions.append(self._next)
            values.append(render_json(record(self._next), canonical=True))
            size += len(values[-1])
            self._next = Offset(self._next + 1)
        if not positions:
            return []
        places = np.array(positions, dtype=np.int64)
        return [RawBatch(SPLIT, 0, places, places * PERIOD_MS, pa.array(values, pa.binary()))]

    def _finished(self) -> bool:
        return self._next is not None and self._until is not None and self._next >= self._until

    def status(self) -> Sequence[SplitStatus]:
        """See `Source.status`."""
        if self._next is None:
            return []
        done = self._finished()
        return [SplitStatus(SPLIT, self._next, done or self._next >= self._now(), done)]

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """See `Source.end_at`."""
        self._until = until.get(SPLIT, self._until)

    async def close(self) -> None:
        """Nothing to let go of."""
