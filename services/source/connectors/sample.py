"""The sample stream: readings of solar panels, as Atlas' `sample_stream_solar` has them, made up."""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import count
from typing import Final

from tidemark.shared.language.values.instants import format_iso
from tidemark.shared.model.ids import SplitId
from tidemark.shared.model.values import Document

SPLIT: Final = SplitId("sample-0")
PERIOD_MS: Final = 100
"""From one record to the next."""
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


class SampleTimetable:
    """`Timetable` of the sample stream: a record a tenth of a second."""

    split = SPLIT

    def positions(self, begin: int) -> Iterator[int]:
        """Each has one."""
        return count(begin)

    def time_ms(self, position: int) -> int:
        """The begin of its tenth of a second."""
        return position * PERIOD_MS

    def due_ms(self, position: int) -> int:
        """The end of its tenth of a second."""
        return (position + 1) * PERIOD_MS

    def due(self, now_ms: int) -> int:
        """Behind the last full tenth."""
        return now_ms // PERIOD_MS

    def record(self, position: int) -> Document:
        """See `record`."""
        return record(position)
