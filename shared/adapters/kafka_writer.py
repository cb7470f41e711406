"""Writing Kafka: acks from all replicas, idempotent, in the order of the calls per partition, unusable after any error (F2).

The library takes a record's place in its partition before it waits for room, so that several coroutines may
overtake each
other: here each partition has a lane, entered first come first served. The library also tries again without
end while a broker is away: here a record that is not acknowledged in time breaks the writer.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Any

import aiokafka
from aiokafka.partitioner import murmur2

from tidemark.shared.adapters.kafka_answers import Answers
from tidemark.shared.adapters.kafka_client import (
    KAFKA_ERRORS,
    discard,
    distrust_starting_brokers,
    find_moved_brokers,
    name_unreached_brokers,
    require_topics,
    seal,
    translated,
)
from tidemark.shared.adapters.kafka_denied import why_not
from tidemark.shared.adapters.kafka_sending import send_by
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import LogError, LogUnavailable, NewRecord, TopicPartition


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition, of so many, of a key."""
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)


class Producer:
    """One aiokafka producer: opened in bounded time, checked at every use, thrown away in bounded time."""

    def __init__(self, settings: KafkaSettings, name: str, *, identity: str | None = None) -> None:
        self.settings = settings
        self.name = f"{name} at {settings.bootstrap}"
        self.raw: Any = aiokafka.AIOKafkaProducer(
            **settings.connection(name),
            acks="all",
            enable_idempotence=True,
            max_batch_size=settings.message_bytes_max,
            max_request_size=settings.message_bytes_max,
            transactional_id=identity,
            transaction_timeout_ms=settings.transaction_timeout_ms,
        )
        find_moved_brokers(self.raw.client)
        name_unreached_brokers(self.raw.client)
        distrust_starting_brokers(self.raw.client)
        self._answers = Answers(self.raw.client)
        send_by(self.raw, settings.message_bytes_max, settings.compression, transactional=identity is not None)
        self._known: dict[str, int] = {}
        self._error: LogError | None = None
        self._discarded = False

    async def start(self) -> None:
        """Connect, and take the identity if there is one: fences earlier holders and ends transactions that they left open."""
        try:
            async with asyncio.timeout(self.settings.delivery_timeout_ms / 1000):
                await self._started()
        except BaseException as error:
            doing = f"{self.name}: opening"
            error = self.explained(error)
            self.broken(translated(error, doing))
            await self.close()
            if isinstance(error, KAFKA_ERRORS):
                raise await why_not(self.settings, error, doing) from error
            raise

    async def _started(self) -> None:
        """The library asks on where the brokers refuse; here it is known after the time of a request."""
        starting = asyncio.ensure_future(self.raw.start())
        try:
            while not (await asyncio.wait({starting}, timeout=self.settings.request_timeout_ms / 1000))[0]:
                self.check_refused()
        finally:
            starting.cancel()
            await asyncio.wait({starting})
        starting.result()

    def explained(self, error: BaseException) -> BaseException:
        """An error that says only that time is up, with the brokers' last answers."""
        if isinstance(error, TimeoutError):
            return TimeoutError(f"not within {self.settings.delivery_timeout_ms} ms{self.last_answers()}")
        return error

    def last_answers(self) -> str:
        """What the brokers refuse now, as a part of a sentence."""
        return self._answers.said(2 * self.settings.request_timeout_ms / 1000)

    def check_refused(self) -> None:
        """LogUnavailable where brokers have refused the same for as long as a request may take: the library would go on."""
        if self._answers.refused_s() * 1000 >= self.settings.request_timeout_ms:
            raise LogUnavailable(f"{self.name}: the brokers refuse{self.last_answers()}; try again")

    def check(self) -> None:
        """Raise the error that broke the producer, if one has."""
        if self._error is not None:
            raise type(self._error)(str(self._error))

    @property
    def error(self) -> LogError | None:
        """The error that broke it."""
        return self._error

    def broken(self, error: LogError) -> LogError:
        """Make it unusable, once; the error that counts."""
        if self._error is None:
            self._error = error
            seal(self.raw, error)
        return self._error

    async def admit(self, partition: TopicPartition, *, has_content: bool) -> None:
        """Raise LogError if a record can not be written there: no such partition, neither key nor value."""
        if not has_content:
            raise LogError(f"{self.name}: {partition}: a record needs a key or a value")
        known = self._known.get(partition.topic, 0)
        if partition.partition >= known:
            self._known |= await require_topics(self.raw.client, [partition.topic], self.settings.topic_wait_ms)
            if known:  # some may have been added, of which the library learns in minutes
                await self.raw.client.force_metadata_update()
        if not 0 <= partition.partition < self._known[partition.topic]:
            raise LogError(f"{partition} does not exist: the topic has {self._known[partition.topic]} partitions")

    async def close(self) -> None:
        """Throw it away; idempotent."""
        self.broken(LogUnavailable(f"{self.name}: closed before everything was acknowledged"))
        if not self._discarded:
            self._discarded = True
            await discard(self.raw)


class KafkaWriter:
    """`Writer` on a producer of its own."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._lanes: dict[TopicPartition, asyncio.Lock] = {}
        # By the time of handing over, for the one timer that watches the oldest.
        self._pending: deque[tuple[float, asyncio.Future[Offset]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False

    async def send(self, partition: TopicPartition, record: NewRecord) -> Awaitable[Offset]:
        """Hand over a record; waits only for room in the buffer. The result is its offset, once all replicas have it."""
        doing = f"{self._producer.name}: writing to {partition}"
        async with self._lanes.setdefault(partition, asyncio.Lock()):
            await self._room()
            self._producer.check()
            try:
                await self._producer.admit(partition, has_content=record.key is not None or record.value is not None)
                sent = await self._producer.raw.send(
                    partition.topic,
                    value=record.value,
                    key=record.key,
                    partition=partition.partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
            except KAFKA_ERRORS as error:
                raise self._fail(translated(error, doing)) from error
            except LogError as error:
                self._fail(error)
                raise
        result: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()
        # The caller need not await each result: `flush` raises the error.
        result.add_done_callback(lambda f: f.cancelled() or f.exception())
        self._watch(result)
        sent.add_done_callback(lambda f: self._answered(f, result, doing))
        return result

    async def _room(self) -> None:
        """Wait while as many records as may be are on their way; an error wakes all that wait."""
        while len(self._pending) >= self._producer.settings.records_in_flight_max:
            oldest = self._pending[0][1]
            if not oldest.done():
                await asyncio.wait({oldest})
            self._forget_done()

    def _forget_done(self) -> None:
        while self._pending and self._pending[0][1].done():
            self._pending.popleft()

    def _answered(self, sent: "asyncio.Future[Any]", result: "asyncio.Future[Offset]", doing: str) -> None:
        error = None if sent.cancelled() else sent.exception()
        if sent.cancelled():
            self._fail(LogUnavailable(f"{doing}: cancelled"))
        elif error is not None:
            self._fail(translated(error, doing))
        elif sent.result().offset < 0:
            self._fail(LogUnavailable(f"{doing}: the broker has the record but no longer knows its offset"))
        elif not result.done():
            result.set_result(Offset(sent.result().offset))

    def _fail(self, error: LogError) -> LogError:
        """Break the writer: every result that is still awaited gets the first error."""
        first = self._producer.broken(error)
        while self._pending:
            _, result = self._pending.popleft()
            if not result.done():
                result.set_exception(type(first)(str(first)))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return type(first)(str(first))

    def _watch(self, result: "asyncio.Future[Offset]") -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._producer.settings.delivery_timeout_ms / 1000
        self._forget_done()
        self._pending.append((deadline, result))
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._look)

    def _look(self) -> None:
        """The timer: break the writer if the oldest record is overdue, else look again when it would be."""
        self._timer = None
        loop = asyncio.get_running_loop()
        self._forget_done()
        if not self._pending:
            return
        deadline = self._pending[0][0]
        if deadline > loop.time():
            self._timer = loop.call_at(deadline, self._look)
            return
        limit_ms = self._producer.settings.delivery_timeout_ms
        self._fail(
            LogUnavailable(
                f"{self._producer.name}: a record was not acknowledged within {limit_ms} ms (delivery_timeout_ms)"
                f"{self._producer.last_answers()}; open a new writer and send again"
            )
        )

    async def flush(self) -> None:
        """Wait until all handed over is acknowledged; raises the first error of any of them."""
        waiting = [result for _, result in self._pending if not result.done()]
        if waiting:
            await asyncio.wait(waiting)
        self._producer.check()

    async def close(self) -> None:
        """Release all resources; idempotent. Unacknowledged records may or may not be in the log."""
        self.closed = True
        self._fail(LogUnavailable(f"{self._producer.name}: closed before the record was acknowledged"))
        await self._producer.close()
