"""Topics to files, as a reader of committed records sees them.

A short outage is waited out: a broker that was killed and has just been started again has no leader for some partitions yet.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from tidemark.services.audit.settings import audit_settings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.ids import FIRST_OFFSET, Offset
from tidemark.shared.ports.log import Log, LogRecord, LogUnavailable, TopicPartition
from tidemark.shared.runtime.reading import read_to
from tidemark.shared.runtime.settings import RuntimeSettings

T = TypeVar("T")

_RECORD_BYTES: Final = 512
"""The size of a record in memory besides its key and value: an estimate."""
RAW_RECORD_BYTES: Final = 96
"""The same in columns: position, time, where value and key end, and what their buffers have to spare; measured with values of 58 bytes."""

_FETCH_RECORDS: Final = 10_000
"""That one fetch brings: some megabytes, and few round trips."""
_RETRY_MS: Final = 300
"""Before a broker that is away is asked again: shorter than it takes one to elect a leader."""


class TooMuchHeld(Exception):
    """A command would hold more than it may: a sentence for the user."""


class HeldRecords:
    """The records of one place that a command holds, counted."""

    def __init__(self, place: str, record_bytes: int = _RECORD_BYTES) -> None:
        """record_bytes: of one in memory, besides its key and value."""
        self._place = place
        self._record_bytes = record_bytes
        self._most = audit_settings().held_bytes_max
        self._size_bytes = 0

    def take(self, record: LogRecord) -> LogRecord:
        """Hold one more record. TooMuchHeld."""
        size_bytes = len(record.value or b"") + len(record.key or b"")
        self.add(size_bytes, 1, f"offset {record.offset} of partition {record.partition}")
        return record

    def add(self, size_bytes: int, records: int, place: str) -> None:
        """Records up to a place. TooMuchHeld."""
        self._size_bytes += size_bytes + records * self._record_bytes
        if self._size_bytes > self._most:
            raise TooMuchHeld(
                f"{self._place}: to be compared its records have to lie in memory, and up to {place} they take"
                f" {self._size_bytes} bytes; held_bytes_max in TIDEMARK_AUDIT allows {self._most}"
            )


async def committed_records(
    log: Log, topic: str, only: int | None = None, since: Offset = FIRST_OFFSET, until: Offset | None = None
) -> AsyncIterator[LogRecord]:
    """Every committed record of a topic up to where it ends now, partition by partition; nothing if there is no such topic.

    only: of one partition. since, until: from this offset on, and those below this one. LogUnavailable: after `outage_ms_max` of outages.
    """
    patience = Patience()
    fetching = RuntimeSettings(topic_records_max=_FETCH_RECORDS)
    count = (await log.list_topics()).get(topic, 0)
    left = [TopicPartition(topic, number) for number in (range(count) if only is None else (only,))]
    position: Offset | None = None
    while left:
        try:
            begins, ends = await log.begin_offsets(left), await log.end_offsets(left)
            while left:
                begin = max(begins[left[0]], since) if position is None else position
                end = ends[left[0]] if until is None else min(ends[left[0]], until)
                async for record in read_to(log, left[0], begin, end, fetching, committed_only=True):
                    yield record
                    position = Offset(record.offset + 1)
                del left[0]
                position = None
        except LogUnavailable as error:
            await patience.wait(error)


class Patience:
    """How long one reading has waited already."""

    def __init__(self) -> None:
        self._waited_ms = 0
        self._most_ms = audit_settings().outage_ms_max

    async def wait(self, error: LogUnavailable) -> None:
        """A while; the error, once it has been long enough."""
        if self._waited_ms >= self._most_ms:
            raise error
        self._waited_ms += _RETRY_MS
        await SystemClock().sleep_ms(_RETRY_MS)


async def patiently(what: Callable[[], Awaitable[T]]) -> T:
    """The answer of something that may be away for a while."""
    patience = Patience()
    while True:
        try:
            return await what()
        except LogUnavailable as error:
            await patience.wait(error)


async def write_lines(log: Log, topic: str, path: Path) -> int:
    """The values of a topic as JSON lines; how many."""
    lines = 0
    with path.open("wb") as out:
        async for record in committed_records(log, topic):
            out.write((record.value or b"null") + b"\n")
            lines += 1
    return lines
