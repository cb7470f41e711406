"""Batches into topics: each in one transaction, so that readers see all of it or nothing, and the answer comes after the commit.

If a transaction fails, its writer is thrown away. It is then unknown whether the batch was written, and the caller is told so.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import structlog

from tidemark.shared.adapters.kafka_writer import partition_of_key
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.log import (
    Fenced,
    Log,
    LogDenied,
    LogError,
    LogUnavailable,
    NewRecord,
    TopicPartition,
    TransactionalWriter,
)

_log = structlog.get_logger()
PlacedBy = Callable[[NewRecord], bytes | None]
"""The bytes that decide on a record's partition; None: any partition."""


class NotWritten(Exception):
    """Nothing of the batch was written: the reason."""


class TopicRefused(Exception):
    """The topic takes no such records, and nothing of the batch was written: the reason."""


class NotKnown(Exception):
    """The batch may or may not have been written: the reason."""


@dataclass(slots=True)
class BatchWriter:
    """A few writers, each with an identity of its own below the gateway's place."""

    log: Log
    clock: Clock
    place: str
    writers: int
    topics_age_ms_max: int
    _free: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    _open: dict[int, TransactionalWriter] = field(default_factory=dict)
    _partitions: dict[str, int] = field(default_factory=dict)
    _asked_ms: int | None = None
    _turn: int = 0

    def __post_init__(self) -> None:
        """All writers are free."""
        for number in range(self.writers):
            self._free.put_nowait(number)

    async def partitions(self, topic: str) -> int:
        """Of a topic; 0 if there is none of this name. NotWritten when nobody answers."""
        now_ms = self.clock.monotonic_ms()
        old = self._asked_ms is None or now_ms - self._asked_ms >= self.topics_age_ms_max
        if old or topic not in self._partitions:
            # A topic may have been made just now, have got more partitions, or have been deleted and made anew.
            before, self._asked_ms = self._asked_ms, now_ms
            try:
                self._partitions = dict(await self.log.list_topics())
            except LogError as error:
                self._asked_ms = before
                raise NotWritten(str(error)) from error
        return self._partitions.get(topic, 0)

    async def write(
        self, topic: str, partitions: int, records: Sequence[NewRecord], placed_by: PlacedBy = attrgetter("key")
    ) -> None:
        """All of them or none, acknowledged by every replica. NotWritten, NotKnown, TopicRefused."""
        number = await self._free.get()
        try:
            await self._write(number, self._divided(topic, partitions, records, placed_by))
        finally:
            self._free.put_nowait(number)

    async def _write(self, number: int, divided: dict[TopicPartition, list[NewRecord]]) -> None:
        try:
            writer = self._open.get(number)
            if writer is None:
                writer = self._open[number] = await self.log.transactional_writer(f"gateway.{self.place}.{number}")
            transaction = await writer.begin()
            for partition, records in divided.items():
                await transaction.send_batch(partition, records)
            # The brokers report a refusal before the commit.
            await transaction.written()
        except LogError as error:
            self._asked_ms = None
            await self._throw_away(number)
            passing = isinstance(error, LogUnavailable | LogDenied | Fenced)
            raise NotWritten(str(error)) if passing else TopicRefused(str(error)) from error
        except BaseException:
            await self._throw_away(number)
            raise
        try:
            await transaction.commit()
        except LogError as error:
            await self._throw_away(number)
            raise NotKnown(str(error)) from error
        except BaseException:
            await self._throw_away(number)
            raise

    async def _throw_away(self, number: int) -> None:
        """Its open transaction is aborted, by the next writer of its identity at the latest."""
        writer = self._open.pop(number, None)
        if writer is not None:
            try:
                await writer.close()
            except LogError as error:
                _log.warning("gateway.writer_lost", reason=str(error))

    def _divided(
        self, topic: str, partitions: int, records: Sequence[NewRecord], placed_by: PlacedBy
    ) -> dict[TopicPartition, list[NewRecord]]:
        """As Kafka's own clients divide by key; records without such bytes go, batch by batch, round the partitions."""
        self._turn += 1
        found: dict[TopicPartition, list[NewRecord]] = {}
        for record in records:
            by = placed_by(record)
            at = self._turn % partitions if by is None else partition_of_key(by, partitions)
            found.setdefault(TopicPartition(topic, at), []).append(record)
        return found

    async def close(self) -> None:
        """Close the writers of all partitions."""
        for number in list(self._open):
            await self._throw_away(number)
