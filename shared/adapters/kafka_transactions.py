"""Transactions on Kafka under an identity (S1, S3).

The library's commit can return normally although a batch was refused: every batch's result is awaited before.
Any error breaks the writer, and its producer is thrown away: the broker aborts an open transaction when the
identity is opened anew, or after its time-out.
"""

import asyncio
import itertools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
from aiokafka import errors
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import IllegalOperation
from aiokafka.protocol.transaction import EndTxnRequest

from tidemark.shared.adapters.kafka_client import KAFKA_ERRORS, translated
from tidemark.shared.adapters.kafka_codes import PRODUCER_FENCED
from tidemark.shared.adapters.kafka_packed import packed
from tidemark.shared.adapters.kafka_reader import theirs
from tidemark.shared.adapters.kafka_sending import PackedBatch
from tidemark.shared.adapters.kafka_writer import Producer
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import LogError, LogUnavailable, NewRecord, RecordColumns, TopicPartition, Written

_PAUSES_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
"""Between two questions whether a transaction has ended everywhere, which takes milliseconds; the last one stays."""
_GOES_ON: Final = frozenset(
    error.errno
    for error in (
        errors.ConcurrentTransactions,
        errors.CoordinatorNotAvailableError,
        errors.CoordinatorLoadInProgressError,
        errors.NotCoordinatorError,
    )
)
"""Ask again: it has not ended everywhere, or another broker tells."""
_OTHERS: Final = frozenset({errors.InvalidProducerEpoch.errno, PRODUCER_FENCED})
"""A newer holder has the identity. It was given it after the transaction had ended everywhere."""


class KafkaTransaction:
    """`Transaction` of a `KafkaTransactionalWriter`."""

    def __init__(self, writer: "KafkaTransactionalWriter", producer: Producer) -> None:
        self._writer = writer
        self._producer = producer
        self._lanes: dict[TopicPartition, asyncio.Lock] = {}
        self._sent: dict[asyncio.Future[Any], TopicPartition] = {}
        self._answers: list[tuple[TopicPartition, int, asyncio.Future[Any]]] = []
        """Of every batch: its partition, its number of records, and the broker's answer."""
        self._ended = False

    async def send_batch(self, partition: TopicPartition, records: Sequence[NewRecord]) -> None:
        """Hand over records in order; waits while `batches_in_flight_max` batches are not acknowledged."""
        self._check()
        if not records:
            return
        doing = f"{self._producer.name}: writing to {partition}"
        columns = RecordColumns.of(records)
        settings = self._producer.settings
        async with self._lanes.setdefault(partition, asyncio.Lock()):
            self._producer.check()
            with self._broken_by_errors(doing):
                await self._admit(partition, columns)
            # A fault of packing is none of the broker's, and no wait mends it.
            for batch in packed(columns, settings.message_bytes_max, settings.compression, transactional=True):
                with self._broken_by_errors(doing):
                    await self._send_one(partition, batch)

    @contextmanager
    def _broken_by_errors(self, doing: str) -> Iterator[None]:
        """The library's errors in the log's words; after any the writer is of no more use."""
        try:
            yield
        except KAFKA_ERRORS as error:
            raise self._writer.refused(error, doing) from error
        except LogError as error:
            self._writer.fail(error)
            raise
        except asyncio.CancelledError:
            # A part of the records may be under way: such a transaction must not be committed.
            self._writer.fail(LogError(f"{doing}: cancelled half way; open a new writer"))
            raise

    async def _admit(self, partition: TopicPartition, columns: RecordColumns) -> None:
        """LogError for a record that is too large, or that has no content, and for a partition that is not there.

        The library takes the first record of a batch of any size; the broker would refuse the batch.
        """
        keys = columns.keys
        sizes = np.diff(buffers(columns.values)[1]) + (0 if keys is None else np.diff(buffers(keys)[1]))
        limit, size = self._producer.settings.message_bytes_max, int(sizes.max())
        if size > limit:
            raise LogError(
                f"{partition}: a record of {size} bytes exceeds message_bytes_max {limit}; split it,"
                " or raise the limit here and at the topic"
            )
        empty = columns.values.is_null() if keys is None else pc.and_(columns.values.is_null(), keys.is_null())
        await self._producer.admit(partition, has_content=not pc.any(empty).as_py())

    async def _send_one(self, partition: TopicPartition, batch: PackedBatch) -> None:
        limit = self._producer.settings.batches_in_flight_max
        while len(self._sent) >= limit:
            await asyncio.wait(self._sent, return_when=asyncio.FIRST_COMPLETED)
            self._take_answers()
        sent = await self._producer.raw.send_batch(batch, partition.topic, partition=partition.partition)
        # Looked at in any case, so that nobody is warned of an error that the end of the transaction reports.
        sent.add_done_callback(lambda f: f.cancelled() or f.exception())
        self._sent[sent] = partition
        self._answers.append((partition, batch.record_count(), sent))

    def _take_answers(self) -> None:
        """Raise the first error among the answers that are there, with the partition; let go of the others."""
        done = {sent: at for sent, at in self._sent.items() if sent.done()}
        self._sent = {sent: at for sent, at in self._sent.items() if not sent.done()}
        for sent, at in done.items():
            if (error := sent.exception()) is not None:
                raise self._writer.refused(error, f"{self._producer.name}: writing to {at}") from error

    async def _answered(self) -> None:
        """Until the brokers have answered for all batches. LogUnavailable, as soon as it is known, where they take none of a partition."""
        waiting = set(self._sent)
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=self._producer.settings.request_timeout_ms / 1000)
            if waiting:
                self._producer.check_refused()

    async def written(self) -> Sequence[Written]:
        """Wait until the broker has all batches; where each lies.

        Raises:
            Fenced, LogUnavailable, LogError: as `commit`; LogUnavailable, too, if the broker has a batch and no longer knows where.
        """
        self._check()
        doing = f"{self._producer.name}: waiting for what was written"
        try:
            async with asyncio.timeout(self._producer.settings.delivery_timeout_ms / 1000):
                await self._answered()
                self._take_answers()
        except KAFKA_ERRORS as error:
            raise self._writer.refused(error, doing) from error
        except LogUnavailable as error:
            raise self._writer.fail(error) from error
        except asyncio.CancelledError:
            self._writer.fail(LogError(f"{doing}: cancelled; open a new writer"))
            raise
        found = tuple(Written(at, Offset(sent.result().offset), count) for at, count, sent in self._answers)
        if any(place.first < 0 for place in found):
            raise self._writer.fail(LogUnavailable(f"{doing}: a repeated batch was taken, but its offset was not told"))
        return found

    async def commit(self) -> None:
        """All records become visible at once, or an error is raised and it is not known which: read the markers (S3).

        Raises:
            Fenced: a newer writer has the identity; nothing of this transaction becomes visible.
            LogUnavailable, LogError: it is not known whether it was committed.
        """
        await self._end("committing", committed=True)

    async def abort(self) -> None:
        """None of the records becomes visible."""
        await self._end("aborting", committed=False)

    def _is_somewhere(self) -> bool:
        """Whether it has a partition: a coordinator hears nothing of one that has none."""
        manager = self._producer.raw._txn_manager
        return bool(manager.txn_partitions or manager.partitions_to_add())

    async def _ended_everywhere(self, *, committed: bool) -> None:
        """Wait until the coordinator of the transaction has told every partition of its end.

        It answers a commit as soon as it is sure of it: readers see the records later. It takes the same end again as a question, and
        answers it well once all partitions know. No answer at all breaks the writer: such a question, late, could end the next transaction.
        """
        raw = self._producer.raw
        manager, sender = raw._txn_manager, raw._sender
        question = EndTxnRequest(
            manager.transactional_id, manager.producer_id, manager.producer_epoch, transaction_result=committed
        )
        code = errors.ConcurrentTransactions.errno
        for pause in itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1])):
            node = await sender._find_coordinator(CoordinationType.TRANSACTION, manager.transactional_id)
            code = (await raw.client.send(node, question, group=ConnectionGroup.COORDINATION)).error_code
            if code not in _GOES_ON:
                break
            if code != errors.ConcurrentTransactions.errno:
                sender._coordinator_dead(CoordinationType.TRANSACTION)
            await asyncio.sleep(pause)
        if code and code not in _OTHERS:
            raise errors.for_code(code)(f"whether {manager.transactional_id} has ended everywhere")

    async def _end(self, what: str, *, committed: bool) -> None:
        self._check()
        self._producer.check()
        self._ended = True
        try:
            async with asyncio.timeout(self._producer.settings.delivery_timeout_ms / 1000):
                if committed and self._sent:
                    await self._answered()
                    self._take_answers()
                is_somewhere = self._is_somewhere()
                producer = self._producer.raw
                await (producer.commit_transaction() if committed else producer.abort_transaction())
                if is_somewhere:
                    await self._ended_everywhere(committed=committed)
        except KAFKA_ERRORS as error:
            raise self._writer.refused(error, f"{self._producer.name}: {what} a transaction") from error
        except LogUnavailable as error:
            raise self._writer.fail(error) from error
        except asyncio.CancelledError:
            self._writer.fail(LogError(f"{self._producer.name}: cancelled while {what} a transaction; open a new one"))
            raise
        self._writer.ended()

    def _check(self) -> None:
        if self._ended:
            self._producer.check()
            raise LogError(f"{self._producer.name}: the transaction was used after its end; begin a new one")


class KafkaTransactionalWriter:
    """`TransactionalWriter` on a producer of its own."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._open: KafkaTransaction | None = None
        self.closed = False

    async def begin(self, partitions: Collection[TopicPartition] = ()) -> KafkaTransaction:
        """Start a transaction; one at a time. The library would ask for each partition with its first batch."""
        self._producer.check()
        if self._open is not None:
            raise LogError(f"{self._producer.name}: the transaction before is still open; end it first")
        try:
            await self._producer.raw.begin_transaction()
            for partition in partitions:
                await self._producer.admit(partition, has_content=True)
                self._producer.raw._txn_manager.maybe_add_partition_to_txn(theirs(partition))
        except KAFKA_ERRORS as error:
            raise self.refused(error, f"{self._producer.name}: beginning a transaction") from error
        except LogError as error:
            raise self.fail(error) from error
        self._open = KafkaTransaction(self, self._producer)
        return self._open

    def ended(self) -> None:
        """The open transaction has ended well."""
        self._open = None

    def refused(self, error: BaseException, doing: str) -> LogError:
        """As `fail`, for an error of the library.

        A transaction may have failed before the library is called. It then says only that its state does not fit the call, and keeps the
        cause: a newer holder of the identity, for one, must be known as such.
        """
        if isinstance(error, IllegalOperation | AssertionError):
            ending = self._producer.raw._txn_manager.wait_for_transaction_end()
            if ending is not None and ending.done() and not ending.cancelled():
                error = ending.exception() or error
        return self.fail(translated(self._producer.explained(error), doing))

    def fail(self, error: LogError) -> LogError:
        """Break the writer; a copy of the first error, to raise."""
        first = self._producer.broken(error)
        return type(first)(str(first))

    async def close(self) -> None:
        """Release all resources; idempotent; aborts an open transaction, if the broker answers."""
        if self.closed:
            return
        self.closed = True
        try:
            if self._open is not None and self._producer.error is None:
                await self._open.abort()
        except LogError:
            # It is aborted by the broker: when the identity is opened anew, or after its time-out.
            self._open = None
        await self._producer.close()
