"""Reading Kafka without consumer groups: partitions and positions are assigned, never reset on their own.

An outage is an error here, not an empty answer: a caller that waits for a marker or an end must not take silence for
the end (S3, W4).

The client library unpacks a batch whole before anybody sees its size. Internal topics and markers hold nothing so large, but everybody who
reaches the brokers can write it there. So a record stands in for a batch that unpacks to very much, which is never unpacked. Sources read
such batches in parts (`kafka_batches`).
"""

import asyncio
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import aiokafka
import structlog
from aiokafka import errors
from aiokafka.record.default_records import DefaultRecord
from crc32c import crc32c

from tidemark.shared.adapters.kafka_client import (
    KAFKA_ERRORS,
    Heard,
    distrust_starting_brokers,
    find_moved_brokers,
    name_unreached_brokers,
    require_partitions,
    require_topics,
    stop_consumer,
    translated,
)
from tidemark.shared.adapters.kafka_denied import why_not
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.adapters.kafka_unpacking import UNPACKED_BYTES_MAX, unpacks_to_more
from tidemark.shared.compiled import kafka
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import LogError, LogRecord, LogUnavailable, OffsetOutOfRange, TopicPartition

_log = structlog.get_logger()
PASSED: Final = "passed-batch"
"""Header of the record that stands for a batch: how many bytes it has, packed."""
_LENGTH_AT: Final = 8
_LENGTH: Final = struct.Struct(">i")
_MAGIC_AT: Final = 16
_HEADER: Final = struct.Struct(">h4xq")
"""Of a batch, from its attributes on: these, and the time of its first record, ms; between them its last offset."""


class FetchedRecords(dict[Any, Any]):
    """Records that the library has fetched and not given out, by partition. Takes the place of its own dict; checks every new entry."""

    def __setitem__(self, partition: Any, result: Any) -> None:
        records = getattr(result, "_partition_records", None)
        if records is not None:
            records._records = Batches(records._records, partition)  # no hook of the library comes before it unpacks
        super().__setitem__(partition, result)


class Batches:
    """The library's batches of one answer, in their order, with a stand-in for each that unpacks to more than UNPACKED_BYTES_MAX.

    Their CRCs are checked here, by the processor's own instruction: the library's check took 5 % of a sink's time.

    No compiled code: a process that reads single records alone, a coordinator's, needs no LLVM for it.
    """

    def __init__(self, inner: Any, partition: Any) -> None:
        self._inner = inner
        self._partition = partition
        self.has_next = inner.has_next
        self.size_in_bytes = inner.size_in_bytes
        (self._data, self._at) = inner.__reduce__()[2]  # the library shows them to pickle alone

    def next_batch(self) -> Any:
        """The next batch, or the record that stands in for it. CorruptRecordException if it has not the CRC that it names."""
        batch, begin = self._inner.next_batch(), self._at
        self._at += kafka.LOG_OVERHEAD_BYTES + _LENGTH.unpack_from(self._data, begin + _LENGTH_AT)[0]
        if self._at - begin < kafka.HEADER_BYTES or self._data[begin + _MAGIC_AT] < kafka.FORMAT:
            return self._intact(batch, whole=batch.validate_crc())
        attributes, time_ms = _HEADER.unpack_from(self._data, begin + kafka.CHECKED_FROM)
        named = int.from_bytes(self._data[begin + kafka.CRC_AT : begin + kafka.CHECKED_FROM], "big")
        checked = memoryview(self._data)[begin + kafka.CHECKED_FROM : self._at]
        batch = self._intact(batch, whole=crc32c(checked) == named)
        codec = attributes & kafka.CODEC_MASK
        if not codec:
            return batch
        packed = self._data[begin + kafka.HEADER_BYTES : self._at]
        if not unpacks_to_more(packed, codec):
            return batch
        at, size = self._partition, len(packed)
        _log.error(
            "kafka.batch_passed", topic=at.topic, partition=at.partition, offset=batch.base_offset, packed_bytes=size,
            unpacked_bytes_max=UNPACKED_BYTES_MAX,
        )  # fmt: skip
        return _InPlace(batch, time_ms, size)

    def _intact(self, batch: Any, *, whole: bool) -> Any:
        if not whole:
            raise errors.CorruptRecordException(
                f"{self._partition}: the batch at {batch.base_offset} has not the CRC that it names"
            )
        return batch


class _InPlace:
    """A batch of one record, with the producer, the CRC and the offsets of the one that it stands for."""

    def __init__(self, batch: Any, time_ms: int, packed_bytes: int) -> None:
        self._batch = batch
        headers = [(PASSED, str(packed_bytes).encode())]
        self._records = iter([DefaultRecord(batch.next_offset - 1, time_ms, 0, None, b"", headers)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        return self._records


def theirs(partition: TopicPartition) -> Any:
    """The library's type for the same."""
    return aiokafka.TopicPartition(partition.topic, partition.partition)


class KafkaReader:
    """`Reader` on an aiokafka consumer of its own."""

    def __init__(self, settings: KafkaSettings, *, committed_only: bool, follows: bool = False) -> None:
        self._settings = settings
        self._place = f"reader of {settings.bootstrap}"
        self._consumer: Any = aiokafka.AIOKafkaConsumer(
            **settings.connection("reader"),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            check_crcs=False,  # `Batches` checks them
            fetch_max_wait_ms=settings.following_wait_ms() if follows else settings.fetch_wait_ms,
            fetch_max_bytes=settings.fetch_bytes_max,
            max_partition_fetch_bytes=settings.partition_fetch_bytes_max,
            isolation_level="read_committed" if committed_only else "read_uncommitted",
        )
        find_moved_brokers(self.client)
        name_unreached_brokers(self.client)
        distrust_starting_brokers(self.client)
        self._heard = Heard(self.client)
        self._assigned: tuple[TopicPartition, ...] = ()
        self.closed = False

    @property
    def client(self) -> Any:
        """The library's client of this reader."""
        return self._consumer._client

    @property
    def consumer(self) -> Any:
        """The library's consumer."""
        return self._consumer

    async def start(self) -> None:
        """Connect; LogUnavailable if no broker answers, LogDenied if one refuses."""
        try:
            await self._consumer.start()
            self._consumer._fetcher._records = FetchedRecords()
        except BaseException as error:
            await self.close()
            if isinstance(error, KAFKA_ERRORS):
                doing = f"{self._place}: connecting"
                raise await why_not(self._settings, error, doing) from error
            raise

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read these partitions from these offsets; replaces the last assignment. LogError names a partition that does not exist."""
        await self._require(positions)
        if positions:
            # The library learns leaders beside its own `assign`: a short fetch would find none, and take that for an outage.
            await self.client.set_topics({partition.topic for partition in positions})
        self._assigned = tuple(positions)
        self._consumer.assign([theirs(partition) for partition in positions])
        for partition, offset in positions.items():
            self._consumer.seek(theirs(partition), offset)

    async def _require(self, partitions: Mapping[TopicPartition, Offset]) -> None:
        try:
            await require_partitions(self.client, partitions, self._settings.topic_wait_ms)
        except KAFKA_ERRORS as error:
            raise translated(
                error, f"{self._place}: looking up {', '.join(sorted({at.topic for at in partitions}))}"
            ) from error

    async def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Go on from here in one partition; records fetched ahead of it are discarded."""
        self.state(partition)
        self._consumer.seek(theirs(partition), offset)

    def position(self, partition: TopicPartition) -> Offset:
        """The offset that `fetch` goes on from."""
        return Offset(self.state(partition).position)

    async def offsets_at(self, time_ms: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The first offsets whose timestamp is at or after a time (ms); the end if there is no such record."""
        if not partitions:
            return {}
        asked = [theirs(partition) for partition in partitions]
        try:
            # The library answers for partitions that its metadata has; a reader with nothing assigned has none.
            await require_topics(
                self.client, {partition.topic for partition in partitions}, self._settings.topic_wait_ms
            )
            found = await self._consumer.offsets_for_times(dict.fromkeys(asked, time_ms))
            ends = await self._consumer.end_offsets(asked)
        except KAFKA_ERRORS as error:
            raise translated(
                error, f"{self._place}: offsets at {time_ms} ms in {', '.join(map(str, partitions))}"
            ) from error
        return {
            TopicPartition(at.topic, at.partition): Offset(ends[at] if found.get(at) is None else found[at].offset)
            for at in asked
        }

    def state(self, partition: TopicPartition) -> Any:
        """The library's state of an assigned partition: its public `position` is a coroutine without need."""
        if partition not in self._assigned:
            raise LogError(f"reader: {partition} is not assigned")
        return self._consumer._subscription.subscription.assignment.state_value(theirs(partition))

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return nothing of these until `resume`."""
        for partition in partitions:
            self.state(partition)
        self._consumer.pause(*(theirs(partition) for partition in partitions))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Return records of these again."""
        for partition in partitions:
            self.state(partition)
        self._consumer.resume(*(theirs(partition) for partition in partitions))

    async def fetch(self, max_records: int, timeout_ms: int) -> list[LogRecord]:
        """The records that are there, at most so many, waiting at most so long for the first; [] after the time.

        Raises:
            OffsetOutOfRange: a position is not in the log; every call says so until a seek or an assignment.
            LogUnavailable: no broker has answered for `outage_after_ms`, or a partition has no leader.
        """
        if max_records < 1:
            raise ValueError(f"fetch: expected max_records ≥ 1, found {max_records}")
        self.check_open()
        if not self._assigned:
            await asyncio.sleep(timeout_ms / 1000)
            return []
        try:
            fetched = await self._consumer.getmany(timeout_ms=timeout_ms, max_records=max_records)
        except KAFKA_ERRORS as error:
            raise await self.failure(error) from error
        if not fetched:
            self.check_answered()
        return [
            LogRecord(r.topic, r.partition, Offset(r.offset), r.timestamp, r.key, r.value, r.headers)
            for records in fetched.values()
            for r in records
        ]

    def check_open(self) -> None:
        """Raise LogError after `close`."""
        if self.closed:
            raise LogError("reader: used after close; open a new one")

    def check_answered(self) -> None:
        """Nothing came: because there is nothing, or because nobody answers?"""
        self._heard.check(self._settings.outage_after_ms, f"{self._place}: fetching")
        cluster = self.client.cluster
        for partition in self._assigned:
            if cluster.leader_for_partition(theirs(partition)) in (None, -1) and not self._paused(partition):
                self.client.force_metadata_update()
                raise LogUnavailable(f"{partition} has no leader now, or was deleted; try again, or see the broker")

    def _paused(self, partition: TopicPartition) -> bool:
        return bool(self.state(partition).paused)

    async def failure(self, error: BaseException) -> LogError:
        """The port's error for one of fetching; for a position out of range with the offsets that the log has."""
        if not isinstance(error, errors.OffsetOutOfRangeError):
            return translated(error, f"{self._place}: fetching")
        ((partition, position),) = error.args[0].items()
        try:
            begin = await self._consumer.beginning_offsets([partition])
            end = await self._consumer.end_offsets([partition])
        except KAFKA_ERRORS as outage:
            return translated(outage, f"{partition}: position {position} is out of range")
        return OffsetOutOfRange(
            f"{partition}: position {position} is not in the log, which has {begin[partition]} to"
            f" {end[partition]}; resume from a later checkpoint, or start without state"
        )

    async def close(self) -> None:
        """Let go of connections; idempotent."""
        if self.closed:
            return
        self.closed = True
        await stop_consumer(self._consumer)
