"""The log as an installation's own processes see it: records that they write to its topics are sealed, and they read only sealed ones.

It stands in front of any `Log`, so that no reader or writer of messages, frames or mirrors can forget it. Topics of users pass untouched.
A record without a seal of the installation's keys is counted, named and skipped: it never reaches a decoder.
"""

from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import (
    Log,
    LogRecord,
    NewRecord,
    Reader,
    TopicFound,
    TopicPartition,
    TopicRules,
    Transaction,
    TransactionalWriter,
    Writer,
    Written,
)
from tidemark.shared.runtime.reading import Unreadable
from tidemark.shared.runtime.topics import MARKERS_PREFIX
from tidemark.shared.wire.seals import HEADER, SealKeys


@dataclass(frozen=True, slots=True)
class Sealing:
    """Of which topics, with which keys."""

    keys: SealKeys
    prefix: str
    unreadable: Unreadable

    def concerns(self, topic: str) -> bool:
        """Whether a topic is the installation's own. Release markers are a target's, in whichever cluster: they go with its output."""
        return topic.startswith(f"{self.prefix}.") and not topic.startswith(MARKERS_PREFIX)

    def sealed(self, partition: TopicPartition, record: NewRecord) -> NewRecord:
        """The record as it is written there."""
        if not self.concerns(partition.topic):
            return record
        seal = self.keys.seal((partition.topic, partition.partition), record.key, record.value, record.headers)
        return replace(record, headers=(*record.headers, (HEADER, seal)))

    def admits(self, record: LogRecord) -> bool:
        """Whether a record that was read counts."""
        if not self.concerns(record.topic):
            return True
        return self.unreadable.read(record, self._checked) is not None

    def _checked(self, record: LogRecord) -> LogRecord:
        self.keys.check((record.topic, record.partition), record.key, record.value, record.headers)
        return record


class SealedReader:
    """`Reader` that gives sealed records only."""

    def __init__(self, inner: Reader, sealing: Sealing) -> None:
        self._inner = inner
        self._sealing = sealing
        self.assign = inner.assign
        self.seek = inner.seek
        self.position = inner.position
        self.pause = inner.pause
        self.resume = inner.resume
        self.close = inner.close

    async def fetch(self, max_records: int, timeout_ms: int) -> list[LogRecord]:
        """As the inner reader, without records that are not sealed; [] may then come before the time."""
        return [record for record in await self._inner.fetch(max_records, timeout_ms) if self._sealing.admits(record)]


class SealedWriter:
    """`Writer` that seals."""

    def __init__(self, inner: Writer, sealing: Sealing) -> None:
        self._inner = inner
        self._sealing = sealing
        self.flush = inner.flush
        self.close = inner.close

    async def send(self, partition: TopicPartition, record: NewRecord) -> Awaitable[Offset]:
        """As the inner writer, sealed."""
        return await self._inner.send(partition, self._sealing.sealed(partition, record))


class SealedTransaction:
    """`Transaction` that seals."""

    def __init__(self, inner: Transaction, sealing: Sealing) -> None:
        self._inner = inner
        self._sealing = sealing
        self.commit = inner.commit
        self.abort = inner.abort

    async def send_batch(self, partition: TopicPartition, records: Sequence[NewRecord]) -> None:
        """As the inner transaction, sealed."""
        if self._sealing.concerns(partition.topic):
            records = [self._sealing.sealed(partition, record) for record in records]
        await self._inner.send_batch(partition, records)

    async def written(self) -> Sequence[Written]:
        """As the inner transaction."""
        return await self._inner.written()


class SealedTransactionalWriter:
    """`TransactionalWriter` that seals."""

    def __init__(self, inner: TransactionalWriter, sealing: Sealing) -> None:
        self._inner = inner
        self._sealing = sealing
        self.close = inner.close

    async def begin(self, partitions: Collection[TopicPartition] = ()) -> SealedTransaction:
        """As the inner writer."""
        return SealedTransaction(await self._inner.begin(partitions), self._sealing)


class SealedLog:
    """`Log` in front of another."""

    def __init__(self, inner: Log, keys: SealKeys, prefix: str) -> None:
        """`prefix`: of the installation's topics."""
        self.inner = inner
        self.unreadable = Unreadable()
        self._sealing = Sealing(keys, prefix, self.unreadable)

    async def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """As the inner log."""
        await self.inner.create_topic(topic, partitions, config)

    async def delete_topics(self, topics: Sequence[str]) -> None:
        """As the inner log."""
        await self.inner.delete_topics(topics)

    async def list_topics(self) -> dict[str, int]:
        """As the inner log."""
        return await self.inner.list_topics()

    async def describe_topics(self, topics: Sequence[str]) -> dict[str, TopicFound]:
        """As the inner log."""
        return await self.inner.describe_topics(topics)

    async def topic_rules(self, topics: Sequence[str]) -> dict[str, TopicRules]:
        """As the inner log."""
        return await self.inner.topic_rules(topics)

    async def begin_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        """As the inner log."""
        return await self.inner.begin_offsets(partitions)

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        """As the inner log."""
        return await self.inner.end_offsets(partitions)

    async def note_offsets(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """As the inner log."""
        await self.inner.note_offsets(group, offsets)

    async def delete_records(self, before: Mapping[TopicPartition, Offset]) -> None:
        """As the inner log."""
        await self.inner.delete_records(before)

    async def reader(self, *, committed_only: bool = False, follows: bool = False) -> SealedReader:
        """A reader of sealed records."""
        return SealedReader(await self.inner.reader(committed_only=committed_only, follows=follows), self._sealing)

    async def writer(self, client: str) -> SealedWriter:
        """A writer that seals."""
        return SealedWriter(await self.inner.writer(client), self._sealing)

    async def transactional_writer(self, identity: str) -> SealedTransactionalWriter:
        """A writer in transactions that seals."""
        return SealedTransactionalWriter(await self.inner.transactional_writer(identity), self._sealing)

    async def close(self) -> None:
        """As the inner log."""
        await self.inner.close()
