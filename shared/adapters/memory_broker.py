"""The log that several `MemoryLog` clients share: topics, partitions, offsets, transactions; no await, no faults.

It does what Kafka does where the protocol can tell: a transaction's end takes an offset in each of its
partitions; read-committed readers stop at the last stable offset and skip aborted records; opening an
identity fences older holders and aborts their open transactions; an open transaction ends by itself after a
time-out. Nothing is compacted; keys and null values are kept.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.log import (
    Fenced,
    LogError,
    LogRecord,
    LogUnavailable,
    NewRecord,
    OffsetOutOfRange,
    RecordTooLarge,
    TopicPartition,
)

CAPACITY_BYTES: Final = 1 << 30
"""Keys and values that all topics together may hold, by default."""
RECORD_BYTES_MAX: Final = 1 << 20
"""Key and value of one record, by default (Kafka's `message.max.bytes`)."""
TRANSACTION_TIMEOUT_MS: Final = 60_000
"""After this an open transaction is aborted and its writer fenced, by default."""


@dataclass(eq=False, slots=True)
class OpenTransaction:
    """A transaction: where it began in each partition, and how it ended."""

    deadline_ms: int
    first: dict[TopicPartition, Offset] = field(default_factory=dict)
    state: Literal["open", "committed", "aborted"] = "open"


class _Stored(NamedTuple):
    """The entry at an offset; `record` is None for the marker that ends a transaction."""

    record: LogRecord | None
    transaction: OpenTransaction | None


@dataclass(slots=True)
class _Partition:
    start: int = 0
    stored: list[_Stored] = field(default_factory=list)
    open: dict[OpenTransaction, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + len(self.stored)

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.end)


@dataclass(slots=True)
class _Identity:
    epoch: int = 0
    open: OpenTransaction | None = None


class MemoryBroker:
    """Topics in memory, and the identities under which writers may write to them."""

    def __init__(
        self,
        clock: Clock,
        *,
        capacity_bytes: int = CAPACITY_BYTES,
        record_bytes_max: int = RECORD_BYTES_MAX,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> None:
        self._clock = clock
        self._capacity_bytes = capacity_bytes
        self._record_bytes_max = record_bytes_max
        self._transaction_timeout_ms = transaction_timeout_ms
        self._held_bytes = 0
        self._topics: dict[str, list[_Partition]] = {}
        self._ids: dict[str, str] = {}
        self.compacted: set[str] = set()
        """Topics that say so of themselves: whoever names one here takes its records away."""
        self._made = 0
        """Topics ever."""
        self._identities: dict[str, _Identity] = {}
        self.noted: dict[str, dict[TopicPartition, Offset]] = {}
        """Offsets by group, as `Log.note_offsets` left them."""
        # Dicts for their order: the same program wakes readers in the same order.
        self._waiting: dict[TopicPartition, dict[asyncio.Event, None]] = {}
        self._open: dict[str, _Identity] = {}
        """Those with an open transaction: few, however many there have been."""

    # --- topics

    def create_topic(self, topic: str, partitions: int) -> None:
        """Make a topic; quiet if it is there with as many partitions."""
        there = self._topics.get(topic)
        if partitions < 1:
            raise LogError(f"topic {topic}: expected at least one partition, found {partitions}")
        if there is None:
            self._topics[topic] = [_Partition() for _ in range(partitions)]
            self._made += 1
            self._ids[topic] = f"topic-{self._made}"
        elif len(there) != partitions:
            raise LogError(
                f"topic {topic}: expected {partitions} partitions, found {len(there)}; delete it or use another name"
            )

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Let a topic have so many."""
        there = self._topics[topic]
        there += [_Partition() for _ in range(partitions - len(there))]

    def delete_topic(self, topic: str) -> None:
        """Forget a topic and its records; quiet if it is not there."""
        for number, partition in enumerate(self._topics.pop(topic, ())):
            self._held_bytes -= sum(_size(stored) for stored in partition.stored)
            self._wake(TopicPartition(topic, number))

    def topics(self) -> dict[str, int]:
        """All topics with their numbers of partitions."""
        return {topic: len(partitions) for topic, partitions in self._topics.items()}

    def topic_id(self, topic: str) -> str:
        """Of a topic that is there; another one if it is deleted and made anew."""
        return self._ids[topic]

    def begin(self, at: TopicPartition) -> Offset:
        """The first offset still there."""
        return Offset(self._partition(at).start)

    def end(self, at: TopicPartition) -> Offset:
        """The high watermark."""
        return Offset(self._partition(at).end)

    def delete_records(self, at: TopicPartition, before: Offset) -> None:
        """Delete the records below an offset."""
        partition = self._partition(at)
        if before > partition.end:
            raise LogError(f"{at}: cannot delete records below {before}, its end is {partition.end}; ask for less")
        if before > partition.start:
            gone = partition.stored[: before - partition.start]
            del partition.stored[: before - partition.start]
            partition.start = before
            self._held_bytes -= sum(_size(stored) for stored in gone)

    # --- reading

    def read(
        self, at: TopicPartition, position: Offset, records_max: int, *, committed_only: bool
    ) -> tuple[list[LogRecord], Offset]:
        """Up to so many records from a position, and the position after them (past markers and aborted records)."""
        self._expire()
        partition = self._partition(at)
        if not partition.start <= position <= partition.end:
            raise OffsetOutOfRange(
                f"{at}: position {position} is not in the log, which has {partition.start} to"
                f" {partition.end}; resume from a later checkpoint, or start without state"
            )
        last = partition.stable if committed_only else partition.end
        found: list[LogRecord] = []
        while position < last and len(found) < records_max:
            record, transaction = partition.stored[position - partition.start]
            aborted = transaction is not None and transaction.state == "aborted"
            if record is not None and not (committed_only and aborted):
                found.append(record)
            position = Offset(position + 1)
        return found, position

    def await_change(self, event: asyncio.Event, partitions: Iterable[TopicPartition]) -> None:
        """Set this event at the next change of any of these."""
        for at in partitions:
            self._waiting.setdefault(at, {})[event] = None

    def forget(self, event: asyncio.Event, partitions: Iterable[TopicPartition]) -> None:
        """Set this event no longer when any of these changes."""
        for at in partitions:
            self._waiting.get(at, {}).pop(event, None)

    def _wake(self, at: TopicPartition) -> None:
        """Something changed there: only its readers look."""
        for event in self._waiting.pop(at, ()):
            event.set()

    # --- writing

    def check(self, at: TopicPartition, record: NewRecord) -> None:
        """Raise LogError if the record cannot be written there at all."""
        self._partition(at)
        size = _bytes(record.key, record.value)
        if size > self._record_bytes_max:
            raise RecordTooLarge(
                f"{at}: a record of {size} bytes exceeds the limit of {self._record_bytes_max};"
                " split it, or raise the limit"
            )

    def append(self, at: TopicPartition, records: Sequence[NewRecord]) -> Offset:
        """Write records outside transactions; the offset of the first."""
        return self._append(at, records, None)

    def open_identity(self, identity: str) -> int:
        """Fence earlier holders, abort their open transactions; the new holder's epoch."""
        holder = self._identities.setdefault(identity, _Identity())
        if holder.open is not None:
            self._finish(holder.open, "aborted")
            holder.open = None
            del self._open[identity]
        holder.epoch += 1
        return holder.epoch

    def holds(self, identity: str, epoch: int) -> bool:
        """Whether this epoch is still the identity's newest."""
        self._expire()
        return self._identities[identity].epoch == epoch

    def append_transaction(
        self, identity: str, epoch: int, at: TopicPartition, records: Sequence[NewRecord]
    ) -> Offset | None:
        """Write records in the holder's open transaction, which the first of them opens; the first offset, None without records."""
        holder = self._holder(identity, epoch)
        if not records:
            return None
        if holder.open is None:
            holder.open = OpenTransaction(self._clock.monotonic_ms() + self._transaction_timeout_ms)
            self._open[identity] = holder
        partition = self._partition(at)
        if at not in holder.open.first:
            holder.open.first[at] = Offset(partition.end)
            partition.open[holder.open] = partition.end
        return self._append(at, records, holder.open)

    def end_transaction(self, identity: str, epoch: int, state: Literal["committed", "aborted"]) -> None:
        """End the holder's open transaction; nothing to do if it has none."""
        holder = self._holder(identity, epoch)
        if holder.open is not None:
            self._finish(holder.open, state)
            holder.open = None
            del self._open[identity]

    # --- inside

    def _partition(self, at: TopicPartition) -> _Partition:
        partitions = self._topics.get(at.topic)
        if partitions is None:
            raise LogError(f"topic {at.topic} does not exist; create it first")
        if not 0 <= at.partition < len(partitions):
            raise LogError(f"{at} does not exist: the topic has {len(partitions)} partitions")
        return partitions[at.partition]

    def _holder(self, identity: str, epoch: int) -> _Identity:
        self._expire()
        holder = self._identities[identity]
        if holder.epoch != epoch:
            raise Fenced(
                f"transactional identity {identity}: epoch {epoch} is fenced by {holder.epoch};"
                " a newer writer has taken over, stop"
            )
        return holder

    def _append(self, at: TopicPartition, records: Sequence[NewRecord], transaction: OpenTransaction | None) -> Offset:
        partition = self._partition(at)
        first = partition.end
        for record in records:
            self.check(at, record)
        size = sum(_bytes(record.key, record.value) for record in records)
        if self._held_bytes + size > self._capacity_bytes:
            raise LogUnavailable(
                f"the log in memory holds {self._held_bytes} bytes and has room for {self._capacity_bytes};"
                " delete records or topics, or raise capacity_bytes"
            )
        self._held_bytes += size
        now_ms = self._clock.now_ms()
        for number, record in enumerate(records, first):
            stamp = now_ms if record.timestamp_ms is None else record.timestamp_ms
            read = LogRecord(at.topic, at.partition, Offset(number), stamp, record.key, record.value, record.headers)
            partition.stored.append(_Stored(read, transaction))
        self._wake(at)
        return Offset(first)

    def _finish(self, transaction: OpenTransaction, state: Literal["committed", "aborted"]) -> None:
        transaction.state = state
        for at in transaction.first:
            partitions = self._topics.get(at.topic, [])
            partition = partitions[at.partition] if at.partition < len(partitions) else None
            # The topic may have been deleted meanwhile, or made anew.
            if partition is not None and partition.open.pop(transaction, None) is not None:
                partition.stored.append(_Stored(None, transaction))
                self._wake(at)

    def _expire(self) -> None:
        """Abort transactions past their time-out, and fence their writers, as the broker's coordinator does."""
        now_ms = self._clock.monotonic_ms() if self._open else 0
        for identity, holder in list(self._open.items()):
            if holder.open is not None and holder.open.deadline_ms <= now_ms:
                self._finish(holder.open, "aborted")
                holder.open = None
                holder.epoch += 1
                del self._open[identity]

    def dump(self, topic: str) -> Mapping[int, Sequence[LogRecord]]:
        """Committed records of a topic by partition: for tests and for looking."""
        return {
            number: self.read(
                TopicPartition(topic, number),
                Offset(partition.start),
                len(partition.stored),
                committed_only=True,
            )[0]
            for number, partition in enumerate(self._topics[topic])
        }


def _bytes(key: bytes | None, value: bytes | None) -> int:
    return len(key or b"") + len(value or b"")


def _size(stored: _Stored) -> int:
    return 0 if stored.record is None else _bytes(stored.record.key, stored.record.value)
