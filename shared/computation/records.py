"""A computation's input: records and timers. Times are UTC milliseconds."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Domain = Literal["event", "processing"]
"""The clock that a timer follows: the watermark, or processing time."""
Order = Literal["eventTime", "arrival"]
"""How records and event-time timers of a key follow one another."""


class Record(msgspec.Struct, frozen=True):
    """One document of one key. `timestamp` is its event time, ms. A computation does not change the value in place."""

    key: Any
    value: Any
    timestamp: int


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that fires: the name and time (ms) that it was set with."""

    name: str
    time: int
    domain: Domain = "event"
