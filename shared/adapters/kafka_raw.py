"""Reading Kafka fast, for sources: columns of a partition's records without an object a record.

The library's reader makes a ConsumerRecord of nine fields for each record; here compiled code takes the batches that it fetched apart
(`kafka_batches`). Records that an ordinary reader would not return are left out: those of aborted transactions, control
batches, records before the position. Every batch's CRC is verified.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from aiokafka import errors
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult

from tidemark.shared.adapters.kafka_batches import BatchRecords, BrokenBatch, PartitionAnswer
from tidemark.shared.adapters.kafka_client import KAFKA_ERRORS
from tidemark.shared.adapters.kafka_reader import KafkaReader
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.records import RawPartition
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.ports.source import SourceUnreadable

_UNTIL_TAKEN_S: Final = 3_600.0
"""No bound: the library is to wait until the reader says so."""
_AS_WRITTEN: Final = (
    "its bytes are those that its producer wrote (CRC), so no fetch mends it: start without state, from an offset behind it"
    " (config.startAt)"
)
_MUCH_BYTES: Final = 64 * 1024
"""An answer of so much is asked for again at once: there is more, and the cost of a request is little beside it."""


def answer_of(theirs: Any) -> PartitionAnswer:
    """The batches, position and aborted transactions of the library's object for a partition's answer, which is not begun yet.

    It has an iterator that knows it, which the library lets go at its end. Here nobody iterates: it is let go now. Else every fetched
    buffer, megabytes each, would lie in a cycle until the collector comes to its oldest generation, which is seldom.
    """
    theirs._records_iterator = None
    data, begin = theirs._records.__reduce__()[2]  # the library shows them to pickle alone
    committed = theirs._isolation_level == READ_COMMITTED
    aborted = theirs._aborted_transactions or ()
    return PartitionAnswer(data, begin, theirs.next_fetch_offset, aborted, committed_only=committed)


class RawReader:
    """Reads assigned partitions as columns.

    committed_only: records of aborted or open transactions are not returned. with_keys: fill
    `RawPartition.keys`.

    Ordinary producers write batches of a few records: asked again at once, a broker answers with one of them, a thousand times a second. So
    after an answer that was small all partitions of its broker are asked again together, with the next `fetch`.
    """

    def __init__(self, settings: KafkaSettings, *, committed_only: bool = True, with_keys: bool = True) -> None:
        self._reader = KafkaReader(settings, committed_only=committed_only)
        self._with_keys = with_keys
        self._used: dict[Any, Any] = {}
        """By partition, the library's answers that are used up and keep it from asking again."""
        self._looking = False
        """What was asked last without a wait is not answered yet."""
        self._looks = 0
        """Such requests that are under way, one a broker."""

    async def start(self) -> None:
        """Connect; LogUnavailable if no broker answers."""
        await self._reader.start()
        self._fetcher._records = {}  # what unpacks to much is not passed here, but given out in parts
        # While records of one partition lie here, the library asks their broker for the other partitions, and for this one only after the
        # broker has answered, which may be long. Here it asks for all together, when `_let_fetch` says so.
        self._fetcher._prefetch_backoff = _UNTIL_TAKEN_S
        self._hear_of_looks()

    def _hear_of_looks(self) -> None:
        """Know when requests without a wait are answered: the library tells of answers with records alone."""
        fetcher, usual_ms = self._fetcher, self._fetcher._fetch_max_wait_ms
        process = fetcher._proc_fetch_request

        async def processed(assignment: Any, node: Any, request: Any) -> bool:
            # The requests to all brokers are made together, before the first of them is sent.
            fetcher._fetch_max_wait_ms = usual_ms
            looks = self._looking and not request._max_wait_ms
            self._looks += looks
            try:
                return bool(await process(assignment, node, request)) or looks
            finally:
                self._looks -= looks
                self._looking = self._looking and (not looks or self._looks > 0)

        fetcher._proc_fetch_request = processed

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read these partitions from these offsets; replaces the last assignment. LogError names a partition that does not exist."""
        await self._reader.assign(positions)

    async def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Go on from here in one partition; records fetched ahead of it are discarded."""
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
        """The first offsets whose timestamp is at or after a time (ms); the end if there is no such record. LogError."""
        return await self._reader.offsets_at(time_ms, partitions)

    async def fetch(self, max_bytes: int, timeout_ms: int, *, waits: bool = True) -> list[RawPartition]:
        """The records that are there, waiting at most so long for the first; [] after the time.

        Without `waits` the brokers that were left alone since they answered are asked once, and answer at once; [] where nothing is there.

        It stops behind the first batch with which it reaches `max_bytes` or more: so it exceeds that by less than
        one batch. At most one element a partition.

        Raises:
            OffsetOutOfRange: a position is not in the log; every call says so until a seek or an assignment.
            LogUnavailable: no broker has answered for `outage_after_ms`, or a partition has no leader.
            LogError: a batch is corrupt (names partition and offset), or the reader is closed.
        """
        if max_bytes < 1:
            raise ValueError(f"fetch: expected max_bytes ≥ 1, found {max_bytes}")
        self._reader.check_open()
        deadline = time.monotonic() + timeout_ms / 1000
        if self._used:
            self._looking = not waits
            if self._looking:
                self._fetcher._fetch_max_wait_ms = 0
            self._ask_again()
        while True:
            found = await self._take(max_bytes)
            left_s = deadline - time.monotonic()
            if found or left_s <= 0 or not (waits or self._looking):
                break
            waiter = self._fetcher._create_fetch_waiter()
            await asyncio.wait({waiter}, timeout=left_s)
            waiter.cancel()
            self._reader.check_open()
        if not found:
            self._reader.check_answered()
        return found

    @property
    def _fetcher(self) -> Any:
        return self._reader.consumer._fetcher

    async def _take(self, max_bytes: int) -> list[RawPartition]:
        found: list[RawPartition] = []
        try:
            await self._take_into(found, max_bytes)
        finally:
            if not found:
                self._ask_again()
        return found

    async def _take_into(self, found: list[RawPartition], max_bytes: int) -> None:
        taken_bytes = 0
        fetched = self._fetcher._records
        for at in list(fetched):
            if self._used.get(at) is fetched[at]:
                continue
            if taken_bytes >= max_bytes:
                break
            partition = TopicPartition(at.topic, at.partition)
            try:
                records, size_bytes = self._take_partition(at, max_bytes - taken_bytes)
            except KAFKA_ERRORS as error:
                if not found:
                    raise await self._reader.failure(error) from error
                # Batches taken before go out first; the position stands before the failure, which comes
                # again.
                return
            taken_bytes += size_bytes
            if records is not None:
                columns = records.offsets, records.timestamps, records.keys, records.values
                unread = {int(np.searchsorted(columns[0], at)): why for at, why in records.unread.items()}
                found.append(RawPartition(partition.topic, partition.partition, *columns, unread=unread))
        if taken_bytes >= _MUCH_BYTES or any(self._used.get(at) is not result for at, result in fetched.items()):
            # A partition whose records were taken is fetched anew while the others are worked on, not only when all are used up.
            for result in fetched.values():
                result._backoff = 0
            self._ask_again()

    def _take_partition(self, at: Any, max_bytes: int) -> tuple[BatchRecords | None, int]:
        """Take of a partition's fetched batches, and move its position behind them: records, if it has any, and bytes of batches."""
        fetcher = self._fetcher
        result = fetcher._records[at]
        if not isinstance(result, FetchResult):
            self._let_fetch(at)
            result.check_raise()
            return None, 0
        if not result.check_assignment(at):
            self._let_fetch(at)
            return None, 0
        fetched = result._partition_records
        if not isinstance(fetched, PartitionAnswer):
            fetched = result._partition_records = answer_of(fetched)
        more = False
        try:
            taken = fetched.take(max_bytes, with_keys=self._with_keys) if fetched.more else (None, 0)
            more = fetched.more
        except BrokenBatch as error:  # fetched again, it raises again
            said = f"topic {at.topic} partition {at.partition}: the batch at offset {error.base_offset} {error.reason}"
            if error.whole:
                raise SourceUnreadable(f"{said}; {_AS_WRITTEN}") from error
            raise errors.CorruptRecordException(said) from error
        finally:
            result._update_position()
            if not more:
                result._partition_records = None
                self._used[at] = result
        return taken

    def _ask_again(self) -> None:
        """Ask for more of the partitions that are used up."""
        used, self._used = self._used, {}
        for at, result in used.items():
            if self._fetcher._records.get(at) is result:
                self._let_fetch(at)

    def _let_fetch(self, at: Any) -> None:
        """Drop the records of a partition that lie here, so that more are fetched."""
        fetcher = self._fetcher
        del fetcher._records[at]
        fetcher._notify(fetcher._wait_consume_future)

    async def close(self) -> None:
        """Let go of connections; idempotent."""
        await self._reader.close()
