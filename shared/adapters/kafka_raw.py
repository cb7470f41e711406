"""Reading Kafka fast, for sources: columns of a partition's records without an object a record.

The library's reader makes a ConsumerRecord of nine fields for each record; here the batches that it fetched
are taken apart into an Arrow column of values, by numpy for all records at once where they are not compressed
(kafka_batches.py). What an ordinary reader would not return is left out in the same way: records of aborted
transactions, control batches, records before the position. Every batch's CRC is verified.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from aiokafka import errors
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords
from crc32c import crc32c

from shared.adapters.kafka_batches import HEADER_BYTES, BatchPlace, Records, read_batches
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


_COUNT_AT: Final = 57
"""In a batch of format 2: how many records it has, 4 bytes."""
_CRC_AT: Final = 17
"""In a batch of format 2: the CRC-32C, 4 bytes, of all that follows it."""
_CHECKED_FROM: Final = 21
_FORMAT: Final = 2
_APPEND_TIME: Final = 1
_UNTIL_TAKEN_S: Final = 3_600.0
"""No bound: the library is to wait until the reader says so."""
_MUCH_BYTES: Final = 64 * 1024
"""An answer of so much is asked for again at once: there is more, and what a request costs is little beside it."""


class _Columns:
    """What was taken of one partition so far: whole batches by numpy, and what needs it record by record."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        self._waiting: list[tuple[BatchPlace, Any]] = []
        self._pieces: list[Records] = []
        self.size_bytes = 0

    def take(self, batch: Any, begin: int, end: int) -> None:
        """Append the records of a batch, which lies from begin to end in the data."""
        self.size_bytes += end - begin
        count = int.from_bytes(self._data[begin + _COUNT_AT : begin + HEADER_BYTES], "big")
        if batch.magic == _FORMAT and not batch.compression_type and count:
            appended = batch.max_timestamp if batch.timestamp_type == _APPEND_TIME else None
            place = BatchPlace(begin + HEADER_BYTES, end, batch.base_offset, count, batch.first_timestamp, appended)
            self._waiting.append((place, batch))
        else:
            self._read()
            self._pieces += _one_by_one(batch)

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        records = read_batches(self._data, [place for place, _ in waiting])
        self._pieces += [records] if records is not None else [r for _, batch in waiting for r in _one_by_one(batch)]

    @property
    def empty(self) -> bool:
        """Whether nothing was taken."""
        return not self._waiting and not self._pieces

    def finish(self, partition: TopicPartition, *, with_keys: bool) -> RawPartition | None:
        """The columns; None if nothing was taken."""
        self._read()
        # A broker sends the whole batch that contains the position.
        pieces = [p for piece in self._pieces if len((p := _from(piece, self._position)).offsets)]
        if not pieces:
            return None
        has_keys = with_keys and any(p.keys is not None for p in pieces)
        return RawPartition(
            topic=partition.topic,
            partition=partition.partition,
            offsets=np.concatenate([p.offsets for p in pieces]),
            timestamps=np.concatenate([p.timestamps for p in pieces]),
            keys=pa.concat_arrays([_keys(p) for p in pieces]) if has_keys else None,
            values=pa.concat_arrays([p.values for p in pieces]),
        )


def _one_by_one(batch: Any) -> list[Records]:
    """The records of a batch, each as the library's object, let go before the next is made: many alive cost ten times as much."""
    rows = [(r.offset, r.timestamp, r.key, r.value) for r in batch]
    if not rows:
        return []
    offsets, timestamps, keys, values = zip(*rows, strict=True)
    return [
        Records(
            np.array(offsets, dtype=np.int64),
            np.array(timestamps, dtype=np.int64),
            pa.array(keys, pa.binary()) if any(key is not None for key in keys) else None,
            pa.array(values, pa.binary()),
        )
    ]


def _from(piece: Records, position: int) -> Records:
    skip = int(np.searchsorted(piece.offsets, position))
    if not skip:
        return piece
    keys = None if piece.keys is None else piece.keys.slice(skip)
    return Records(piece.offsets[skip:], piece.timestamps[skip:], keys, piece.values.slice(skip))


def _keys(piece: Records) -> pa.BinaryArray:
    return piece.keys if piece.keys is not None else pa.nulls(len(piece.offsets), pa.binary())


def _state(records: Any) -> tuple[bytes, int]:
    """The bytes of fetched batches, and where the next begins: the library shows them to pickle alone."""
    data, at = records.__reduce__()[2]
    return data, at


def _intact(batch: Any, data: bytes, begin: int, end: int) -> bool:
    """Whether a batch, from begin to end in the data, has the CRC that it names: a tenth of the time that the library takes."""
    if batch.magic != _FORMAT:
        return bool(batch.validate_crc())
    named = int.from_bytes(data[begin + _CRC_AT : begin + _CHECKED_FROM], "big")
    return bool(crc32c(memoryview(data)[begin + _CHECKED_FROM : end]) == named)


class RawRecords(PartitionRecords):  # type: ignore[misc]  # the library has no types
    """The library's fetched batches of one partition, given out batch by batch instead of record by record."""

    next_fetch_offset: int

    @classmethod
    def of(cls, fetched: Any) -> "RawRecords":
        """The same batches, position and aborted transactions as those of the library's object, not yet begun.

        Each has an iterator that knows it, which the library lets go at its end. Here nobody iterates: they are let go now. Else every
        fetched buffer, megabytes each, would lie in a cycle until the collector comes to its oldest generation, which is seldom.
        """
        made = cls(
            fetched._tp,  # noqa: SLF001
            fetched._records,  # noqa: SLF001
            fetched._aborted_transactions,  # noqa: SLF001
            fetched.next_fetch_offset,
            None,
            None,
            fetched._check_crcs,  # noqa: SLF001
            fetched._isolation_level,  # noqa: SLF001
        )
        made._records_iterator = fetched._records_iterator = None  # noqa: SLF001
        return made

    def columns(self) -> _Columns:
        """What comes from here on, not yet taken."""
        return _Columns(_state(self._records)[0], self.next_fetch_offset)

    def next_into(self, columns: _Columns) -> bool:
        """Take the next batch, or pass it if a reader may not see it; False if none is left.

        Raises:
            CorruptRecordException: the batch's CRC is not that of its bytes, or it cannot be decompressed; names the
            partition and the offset.
        """
        if not self._records.has_next():
            return False
        begin = _state(self._records)[1]
        batch = self._records.next_batch()
        data, end = _state(self._records)
        if not _intact(batch, data, begin, end):
            raise errors.CorruptRecordException(
                f"topic {self._tp.topic} partition {self._tp.partition}: the batch at offset {batch.base_offset} does"
                " not have the CRC that it names"
            )
        if self._visible(batch):
            try:
                columns.take(batch, begin, end)
            except Exception as error:
                raise errors.CorruptRecordException(
                    f"topic {self._tp.topic} partition {self._tp.partition}: the batch at offset {batch.base_offset} cannot be read"
                    f" ({type(error).__name__}: {error}); is it compressed in a way that this installation knows?"
                ) from error
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

    Ordinary producers write batches of a few records: asked again at once, a broker answers with one of them, a thousand times a second. So
    after an answer that was small all partitions of its broker are asked again together, `fetch_gather_ms` after it was taken.
    """

    def __init__(self, settings: KafkaSettings, *, committed_only: bool = True, with_keys: bool = True) -> None:
        self._settings = settings
        self._reader = KafkaReader(settings, committed_only=committed_only)
        self._with_keys = with_keys
        self._used: dict[Any, Any] = {}
        """By partition, the library's answers that are used up and keep it from asking again."""
        self._taken_at = 0.0

    async def start(self) -> None:
        """Connect; LogUnavailable if no broker answers."""
        await self._reader.start()
        # The library asks a broker again for other partitions while what came of one lies here, and then for that one when the broker
        # has answered, which may be long. Here it asks for all together, when `_let_fetch` says so.
        self._fetcher._prefetch_backoff = _UNTIL_TAKEN_S  # noqa: SLF001

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

        It stops behind the first batch that brings what was taken to `max_bytes` or more: so it exceeds that by less than
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
            gathers_s = self._taken_at + self._settings.fetch_gather_ms / 1000 - time.monotonic()
            if gathers_s > 0:
                await asyncio.sleep(min(gathers_s, timeout_ms / 1000))
                self._reader.check_open()
            self._ask_again()
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
        try:
            await self._take_into(found, max_bytes)
        finally:
            self._taken_at = time.monotonic()
            if not found:
                self._ask_again()
        return found

    async def _take_into(self, found: list[RawPartition], max_bytes: int) -> None:
        taken_bytes = 0
        fetched = self._fetcher._records  # noqa: SLF001
        for at in list(fetched):
            if self._used.get(at) is fetched[at]:
                continue
            if taken_bytes >= max_bytes:
                break
            partition = TopicPartition(at.topic, at.partition)
            try:
                columns = self._take_partition(at, max_bytes - taken_bytes)
            except KAFKA_ERRORS as error:
                if not found:
                    raise await self._reader.failure(error) from error
                # What was taken before goes out first; the position stands before the failure, which comes
                # again.
                return
            if columns is not None:
                taken_bytes += columns.size_bytes
                raw = columns.finish(partition, with_keys=self._with_keys)
                if raw is not None:
                    found.append(raw)
        if taken_bytes >= _MUCH_BYTES or any(self._used.get(at) is not result for at, result in fetched.items()):
            # What was taken of one partition is fetched anew while the others are worked on, not only when all are used up.
            for result in fetched.values():
                result._backoff = 0  # noqa: SLF001
            self._ask_again()

    def _take_partition(self, at: Any, max_bytes: int) -> _Columns | None:
        """Take a partition's fetched batches, and move its position behind each; None if it has none."""
        fetcher = self._fetcher
        result = fetcher._records[at]  # noqa: SLF001
        if not isinstance(result, FetchResult):
            self._let_fetch(at)
            result.check_raise()
            return None
        if not result.check_assignment(at):
            self._let_fetch(at)
            return None
        records = result._partition_records  # noqa: SLF001
        if not isinstance(records, RawRecords):
            records = RawRecords.of(records)
            result._partition_records = records  # noqa: SLF001
        columns = records.columns()
        more = True
        try:
            while more and columns.size_bytes < max_bytes:
                more = records.next_into(columns)
        except errors.CorruptRecordException:
            # What came before it goes out first; fetched again, it raises then.
            more = False
            if columns.empty:
                raise
        finally:
            result._update_position()  # noqa: SLF001
            if not more:
                result._partition_records = None  # noqa: SLF001
                self._used[at] = result
        return columns

    def _ask_again(self) -> None:
        """Ask for more of what is used up."""
        used, self._used = self._used, {}
        for at, result in used.items():
            if self._fetcher._records.get(at) is result:  # noqa: SLF001
                self._let_fetch(at)

    def _let_fetch(self, at: Any) -> None:
        """Drop what lies here of a partition, so that more is fetched."""
        fetcher = self._fetcher
        del fetcher._records[at]  # noqa: SLF001
        fetcher._notify(fetcher._wait_consume_future)  # noqa: SLF001

    async def close(self) -> None:
        """Let go of connections; idempotent."""
        await self._reader.close()
