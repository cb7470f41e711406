"""Reading Kafka fast, for sources: columns of a partition's records without an object a record.

The library's reader makes a ConsumerRecord of nine fields for each record; here the batches that it fetched
are taken apart into an Arrow column of values. What an ordinary reader would not return is left out in the
same way: records of aborted transactions, control batches, records before the position. Every batch's CRC is
verified.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from aiokafka import errors
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords

from shared.adapters.kafka_client import KAFKA_ERRORS
from shared.adapters.kafka_reader import KafkaReader
from shared.adapters.kafka_settings import KafkaSettings
from shared.model.ids import Offset
from shared.ports.log import TopicPartition

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RawPartition:
    """Records of one partition, in offset order; columns of equal length n ≥ 1."""

    topic: str
    partition: int
    offsets: Int64s
    """Shape (n,)."""
    timestamps: Int64s
    """Shape (n,): the broker's or producer's time, ms since 1970."""
    keys: pa.BinaryArray | None
    """Shape (n,), null where a record has none; None if no record has one, or keys were not asked for."""
    values: pa.BinaryArray
    """Shape (n,), null for a tombstone."""


class Gap(Exception):
    """A batch from which records were compacted away: its offsets must be read, which the quick way does not."""


class _Columns:
    """What was taken of one partition so far.

    exact: read each record's offset. The quick way counts instead, and raises Gap where that is not enough.
    A record's object is let go before the next is made: many alive at once cost ten times as much.
    """

    def __init__(self, *, with_keys: bool, exact: bool) -> None:
        self._with_keys = with_keys
        self._exact = exact
        self._offsets: list[Int64s] = []
        self._timestamps: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self.size_bytes = 0

    def take(self, batch: Any, position: int) -> None:
        """Append a batch's records from a position on.

        Raises:
            Gap: not `exact`, and records are missing; nothing was appended.
        """
        offsets: list[int] = []
        timestamps: list[int] = []
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        add_timestamp, add_key, add_value = timestamps.append, keys.append, values.append
        if self._exact:
            for record in batch:
                offsets.append(record.offset)
                add_timestamp(record.timestamp)
                add_key(record.key)
                add_value(record.value)
        elif self._with_keys:
            for record in batch:
                add_timestamp(record.timestamp)
                add_key(record.key)
                add_value(record.value)
        else:
            for record in batch:
                add_timestamp(record.timestamp)
                add_value(record.value)
        if self._exact:
            numbers = np.array(offsets, dtype=np.int64)
        elif batch.next_offset - batch.base_offset == len(values):
            numbers = np.arange(batch.base_offset, batch.next_offset, dtype=np.int64)
        else:
            raise Gap
        # A broker sends the whole batch that contains the position.
        skip = int(np.searchsorted(numbers, position))
        self._offsets.append(numbers[skip:])
        self._timestamps += timestamps[skip:] if skip else timestamps
        self._values += values[skip:] if skip else values
        if self._with_keys:
            self._keys += keys[skip:] if skip else keys
        self.size_bytes += sum(map(len, filter(None, values)))

    @property
    def empty(self) -> bool:
        """Whether nothing was taken."""
        return not self._values

    def finish(self, partition: TopicPartition) -> RawPartition | None:
        """The columns; None if nothing was taken."""
        if not self._values:
            return None
        has_keys = self._with_keys and any(key is not None for key in self._keys)
        return RawPartition(
            topic=partition.topic,
            partition=partition.partition,
            offsets=np.concatenate(self._offsets),
            timestamps=np.array(self._timestamps, dtype=np.int64),
            keys=pa.array(self._keys, pa.binary()) if has_keys else None,
            values=pa.array(self._values, pa.binary()),
        )


class RawRecords(PartitionRecords):  # type: ignore[misc]  # the library has no types
    """The library's fetched batches of one partition, given out batch by batch instead of record by record."""

    next_fetch_offset: int

    @classmethod
    def of(cls, fetched: Any) -> "RawRecords":
        """The same batches, position and aborted transactions as those of the library's object, not yet begun."""
        return cls(
            fetched._tp,  # noqa: SLF001
            fetched._records,  # noqa: SLF001
            fetched._aborted_transactions,  # noqa: SLF001
            fetched.next_fetch_offset,
            None,
            None,
            fetched._check_crcs,  # noqa: SLF001
            fetched._isolation_level,  # noqa: SLF001
        )

    def next_into(self, columns: _Columns) -> bool:
        """Take the next batch, or pass it if a reader may not see it; False if none is left.

        Raises:
            CorruptRecordException: the batch's CRC is not that of its bytes; names the partition and the
            offset.
        """
        if not self._records.has_next():
            return False
        batch = self._records.next_batch()
        if not batch.validate_crc():
            raise errors.CorruptRecordException(
                f"topic {self._tp.topic} partition {self._tp.partition}: the batch at offset {batch.base_offset} does"
                " not have the CRC that it names"
            )
        if self._visible(batch):
            columns.take(batch, self.next_fetch_offset)
        self.next_fetch_offset = batch.next_offset
        return True

    def _visible(self, batch: Any) -> bool:
        """Whether records of the batch are for readers; follows which producers' transactions are aborted."""
        if self._isolation_level != READ_COMMITTED or batch.producer_id is None:
            return not batch.is_control_batch
        self._consume_aborted_up_to(batch.base_offset)
        if batch.is_control_batch:
            if self._contains_abort_marker(batch):
                self._aborted_producers.discard(batch.producer_id)
            return False
        return not (batch.is_transactional and batch.producer_id in self._aborted_producers)


class RawReader:
    """Reads assigned partitions as columns.

    committed_only: records of aborted or open transactions are not returned. with_keys: fill
    `RawPartition.keys`.
    """

    def __init__(self, settings: KafkaSettings, *, committed_only: bool = True, with_keys: bool = True) -> None:
        self._settings = settings
        self._reader = KafkaReader(settings, committed_only=committed_only)
        self._with_keys = with_keys
        self._exact: set[TopicPartition] = set()
        """Partitions in which a batch with a gap was met: from there on each record's offset is read."""

    async def start(self) -> None:
        """Connect; LogUnavailable if no broker answers."""
        await self._reader.start()

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read these from here; replaces what was assigned. LogError names a partition that does not exist."""
        await self._reader.assign(positions)

    async def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Go on from here in one partition; what was fetched ahead of it is discarded."""
        await self._reader.seek(partition, offset)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return nothing of these until `resume`."""
        self._reader.pause(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Return records of these again."""
        self._reader.resume(partitions)

    def position(self, partition: TopicPartition) -> Offset:
        """The offset that `fetch` goes on from; past control batches and aborted records too."""
        return self._reader.position(partition)

    def high_watermark(self, partition: TopicPartition) -> Offset | None:
        """The end offset that the broker named with its last answer; None before the first since `assign`."""
        found = self._reader.state(partition).highwater
        return None if found is None else Offset(found)

    def answered(self, partition: TopicPartition) -> int | None:
        """A number that changes with the broker's answers about a partition; None before the first since `assign`.

        It is the library's time of the answer: only that it has changed means something (W4).
        """
        found = self._reader.state(partition).timestamp
        return None if found is None else int(found)

    async def offsets_at(self, time_ms: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The first offsets whose timestamp is at or after a time (ms); the end where there is none. LogError."""
        return await self._reader.offsets_at(time_ms, partitions)

    async def fetch(self, max_bytes: int, timeout_ms: int) -> list[RawPartition]:
        """What is there, waiting at most so long for the first; [] after the time.

        It stops behind the first batch that brings the values to `max_bytes` or more: so it exceeds that by
        less than one batch. At most one element a partition.

        Raises:
            OffsetOutOfRange: a position is not in the log; every call says so until a seek or an assignment.
            LogUnavailable: no broker has answered for `outage_after_ms`, or a partition has no leader.
            LogError: a batch is corrupt (names partition and offset), or the reader is closed.
        """
        if max_bytes < 1:
            raise ValueError(f"fetch: expected max_bytes ≥ 1, found {max_bytes}")
        self._reader.check_open()
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            found = await self._take(max_bytes)
            left_s = deadline - time.monotonic()
            if found or left_s <= 0:
                break
            waiter = self._fetcher._create_fetch_waiter()  # noqa: SLF001
            await asyncio.wait({waiter}, timeout=left_s)
            waiter.cancel()
            self._reader.check_open()
        if not found:
            self._reader.check_answered()
        return found

    @property
    def _fetcher(self) -> Any:
        return self._reader.consumer._fetcher  # noqa: SLF001

    async def _take(self, max_bytes: int) -> list[RawPartition]:
        found: list[RawPartition] = []
        taken_bytes = 0
        fetched = self._fetcher._records  # noqa: SLF001
        for at in list(fetched):
            if taken_bytes >= max_bytes:
                break
            partition = TopicPartition(at.topic, at.partition)
            columns = _Columns(with_keys=self._with_keys, exact=partition in self._exact)
            try:
                self._take_partition(at, columns, max_bytes - taken_bytes)
            except KAFKA_ERRORS as error:
                if not found:
                    raise await self._reader.failure(error) from error
                # What was taken before goes out first; the position stands before the failure, which comes
                # again.
                return found
            taken_bytes += columns.size_bytes
            raw = columns.finish(partition)
            if raw is not None:
                found.append(raw)
        return found

    def _take_partition(self, at: Any, columns: _Columns, max_bytes: int) -> None:
        """Take a partition's fetched batches, and move its position behind each."""
        fetcher = self._fetcher
        result = fetcher._records[at]  # noqa: SLF001
        if not isinstance(result, FetchResult):
            self._let_fetch(at)
            result.check_raise()
            return
        if not result.check_assignment(at):
            self._let_fetch(at)
            return
        records = result._partition_records  # noqa: SLF001
        if not isinstance(records, RawRecords):
            records = RawRecords.of(records)
            result._partition_records = records  # noqa: SLF001
        more = True
        try:
            while more and columns.size_bytes < max_bytes:
                more = records.next_into(columns)
        except Gap:
            # The batch is used up: it is fetched again, and then read exactly.
            more = False
            self._exact.add(TopicPartition(at.topic, at.partition))
        except errors.CorruptRecordException:
            # What came before it goes out first; fetched again, it raises then.
            more = False
            if columns.empty:
                raise
        finally:
            result._update_position()  # noqa: SLF001
            if not more:
                self._let_fetch(at)

    def _let_fetch(self, at: Any) -> None:
        """Drop what is used up, so that more is fetched."""
        fetcher = self._fetcher
        del fetcher._records[at]  # noqa: SLF001
        fetcher._notify(fetcher._wait_consume_future)  # noqa: SLF001

    async def close(self) -> None:
        """Let go of connections; idempotent."""
        await self._reader.close()
