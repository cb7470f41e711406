"""Readers for the time of a block, and topics followed through outages.

Unreadable records of internal topics are counted, named in the log and skipped. Everybody who reaches the brokers can write such.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog

from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.log import Log, LogRecord, LogUnavailable, OffsetOutOfRange, Reader, TopicPartition
from tidemark.shared.runtime.measures import Measure
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.wire.limits import WireError

_log = structlog.get_logger()
T = TypeVar("T")


_FURTHER: Final = 4
"""Times the offsets of the look before, where those held too few records."""


@dataclass(slots=True)
class Unreadable:
    """Records that one reader of topics could not read: it counts them and passes over them."""

    counts: dict[str, int] = field(default_factory=dict)
    """By topic."""

    def read(self, record: LogRecord, decode: Callable[[LogRecord], T]) -> T | None:
        """The decoded record; None if its key or value is not readable."""
        try:
            return decode(record)
        except (WireError, ValueError, RecursionError) as error:
            count = self.counts[record.topic] = self.counts.get(record.topic, 0) + 1
            reason = str(error) or type(error).__name__
            _log.error("log.unreadable", topic=record.topic, offset=record.offset, count=count, reason=reason)
            return None


def unreadable_measure(topic: str, count: int) -> Measure:
    """The count of unreadable records, as a measure."""
    return Measure("unreadable_records_total", count, {"topic": topic})


def key_of(record: LogRecord) -> str:
    """A name, UTF-8. UnicodeDecodeError."""
    return (record.key or b"").decode()


_DEFAULT: Final = RuntimeSettings()
ENDS_WAIT_MS: Final = 50
"""For one fetch towards an end that is known: a transaction's marker moves the position and brings no record, so a fetch waits its time."""


@asynccontextmanager
async def reading(log: Log, *, committed_only: bool = False, follows: bool = False) -> AsyncIterator[Reader]:
    """A reader, closed at the end. LogUnavailable, also when it cannot be opened: catch it around the block."""
    reader = await log.reader(committed_only=committed_only, follows=follows)
    try:
        yield reader
    finally:
        await reader.close()


async def up_to_now(
    log: Log,
    partition: TopicPartition,
    settings: RuntimeSettings = _DEFAULT,
    *,
    committed_only: bool = False,
    begin: Offset | None = None,
) -> AsyncIterator[LogRecord]:
    """Every record of a partition up to where it ends now. LogUnavailable. begin: from there; None: from its beginning."""
    end = (await log.end_offsets([partition]))[partition]
    if begin is None:
        begin = (await log.begin_offsets([partition]))[partition]
    async for record in read_to(log, partition, begin, end, settings, committed_only=committed_only):
        yield record


async def read_to(
    log: Log,
    partition: TopicPartition,
    begin: Offset,
    end: Offset,
    settings: RuntimeSettings = _DEFAULT,
    *,
    committed_only: bool = False,
) -> AsyncIterator[LogRecord]:
    """The records of a partition from an offset to another. LogUnavailable.

    By a reader of its own: one that went from partition to partition would wait for each answer that it asked for ahead.
    """
    if begin >= end:
        return
    async with reading(log, committed_only=committed_only) as reader:
        await reader.assign({partition: begin})
        while reader.position(partition) < end:
            for record in await reader.fetch(settings.topic_records_max, ENDS_WAIT_MS):
                if record.offset < end:
                    yield record


async def newest(
    log: Log, topic: str, limit: int, settings: RuntimeSettings = _DEFAULT, *, bytes_max: int | None = None
) -> list[LogRecord]:
    """At most `limit` records, those written last and committed, oldest first. LogUnavailable.

    bytes_max: of all their values; where they are larger there are fewer. Each partition has an equal part of it. Markers of
    transactions, aborted records and compacted ones have offsets too: it looks further back until there are enough.
    """
    places = [TopicPartition(topic, number) for number in range((await log.list_topics()).get(topic, 0))]
    if not places:
        return []
    begins, ends = await log.begin_offsets(places), await log.end_offsets(places)
    found: list[LogRecord] = []
    for place in places:
        span = limit
        while True:
            begin = Offset(max(begins[place], ends[place] - span))
            kept: deque[LogRecord] = deque(maxlen=limit)
            size = seen = 0
            async for record in read_to(log, place, begin, ends[place], settings, committed_only=True):
                seen += 1
                if len(kept) == limit:
                    size -= len(kept.popleft().value or b"")
                kept.append(record)
                size += len(record.value or b"")
                while bytes_max is not None and size > bytes_max // len(places):
                    size -= len(kept.popleft().value or b"")
            if begin == begins[place] or seen >= limit or len(kept) < seen:
                break
            span *= _FURTHER
        found += kept
    return sorted(found, key=lambda record: (record.timestamp_ms, record.partition, record.offset))[-limit:]


async def patiently(
    clock: Clock,
    ask: Callable[[], Awaitable[T]],
    settings: RuntimeSettings = _DEFAULT,
    *,
    most_ms: int | None = None,
    on_away: Callable[[LogUnavailable], None] = lambda _: None,
    **about: str,
) -> T:
    """The answer; outages are waited out, at most so long in all (None: however long). LogUnavailable.

    on_away: told of each try that fails. about: for the log.
    """
    began_ms = clock.monotonic_ms()
    while True:
        try:
            return await ask()
        except LogUnavailable as error:
            if most_ms is not None and clock.monotonic_ms() - began_ms >= most_ms:
                raise
            _log.warning("log.away", reason=str(error), **about)
            on_away(error)
            await clock.sleep_ms(settings.retry_ms)


async def end_of(log: Log, clock: Clock, partition: TopicPartition, settings: RuntimeSettings = _DEFAULT) -> Offset:
    """Where a partition ends now; outages are waited out."""
    ends = await patiently(clock, lambda: log.end_offsets([partition]), settings, topic=partition.topic)
    return ends[partition]


async def followed(
    log: Log,
    clock: Clock,
    partition: TopicPartition,
    settings: RuntimeSettings = _DEFAULT,
    *,
    committed_only: bool = False,
    begin: Offset | None = None,
    goes_on: Callable[[], bool] = lambda: True,
    on_away: Callable[[], None] = lambda: None,
) -> AsyncGenerator[LogRecord, None]:
    """Every record of a partition, while it goes on. Outages are waited out; records deleted meanwhile are passed over.

    begin: from there; None: from its beginning. on_away: told of each outage.
    """
    position = begin
    while goes_on():
        try:
            if position is None:
                position = (await log.begin_offsets([partition]))[partition]
            async with reading(log, committed_only=committed_only, follows=True) as reader:
                await reader.assign({partition: position})
                while goes_on():
                    for record in await reader.fetch(settings.topic_records_max, settings.fetch_timeout_ms):
                        yield record
                        position = Offset(record.offset + 1)
        except LogUnavailable as error:
            _log.warning("log.away", topic=partition.topic, reason=str(error))
            on_away()
            await clock.sleep_ms(settings.retry_ms)
        except OffsetOutOfRange as error:
            # This process stood still for longer than the topic is kept (`upkeep.py`): facts that still count are written again.
            _log.warning("log.overtaken", topic=partition.topic, reason=str(error))
            position = None
