"""Records of internal topics that say nothing: counted, named in the log, skipped. Whoever reaches the brokers can write such."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from tidemark.shared.ports.log import LogRecord
from tidemark.shared.runtime.measures import Measure
from tidemark.shared.wire.errors import WireError

_log = structlog.get_logger()
T = TypeVar("T")


@dataclass(slots=True)
class Unreadable:
    """Of one reader of topics."""

    counts: dict[str, int] = field(default_factory=dict)
    """By topic."""

    def read(self, record: LogRecord, decode: Callable[[LogRecord], T]) -> T | None:
        """What a record says; None where key or value are no such thing."""
        try:
            return decode(record)
        except (WireError, ValueError, RecursionError) as error:
            count = self.counts[record.topic] = self.counts.get(record.topic, 0) + 1
            reason = str(error) or type(error).__name__
            _log.error("log.unreadable", topic=record.topic, offset=record.offset, count=count, reason=reason)
            return None


def unreadable_measure(topic: str, count: int) -> Measure:
    """For whoever measures."""
    text = "Records of an internal topic that were skipped, for they say nothing"
    return Measure("unreadable_records_total", "counter", text, count, {"topic": topic})


def key_of(record: LogRecord) -> str:
    """A name, UTF-8. UnicodeDecodeError."""
    return (record.key or b"").decode()
