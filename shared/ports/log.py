"""The log: topics of partitions of records with offsets. Kafka, or memory. No consumer groups: readers are told where to read.

Errors: `LogUnavailable` may pass by waiting (no broker, no leader). `LogError` will not; `LogDenied`, a wrong password, is one of them.
After any of them from a writer the writer is unusable: close it and open a new one (F2).
"""

from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.model.failures import LogError, Outage
from tidemark.shared.model.ids import Offset

__all__ = [
    "HEADERS",
    "Fenced",
    "Log",
    "LogDenied",
    "LogError",
    "LogRecord",
    "LogUnavailable",
    "NewRecord",
    "OffsetOutOfRange",
    "Reader",
    "RecordColumns",
    "RecordTooLarge",
    "TopicFound",
    "TopicPartition",
    "TopicRules",
    "Transaction",
    "TransactionalWriter",
    "Writer",
    "Written",
]

Int64s: TypeAlias = npt.NDArray[np.int64]


class LogUnavailable(LogError, Outage):
    """The log cannot be reached now; waiting may help."""


class LogDenied(LogError):
    """The log refuses the client: a password, a certificate. Waiting does not mend it, but it is tried as often as any failure (C10)."""


class RecordTooLarge(LogError):
    """A record, or a batch of them, has more bytes than brokers or client take. The message names the bytes and the limit."""


class OffsetOutOfRange(LogError):
    """The position asked for is not in the log (any more). The message names topic, partition, position and the offsets that are there."""


class Fenced(LogError):
    """A newer writer has taken this transactional identity: stop, write nothing more."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """As messages name it."""
        return f"topic {self.topic} partition {self.partition}"


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record as read. `timestamp_ms` is the broker's or producer's time, never the event time of a frame (F5)."""

    topic: str
    partition: int
    offset: Offset
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to write."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TopicFound:
    """A topic that exists."""

    id: str
    """Given when it was made, and to no other: one that is deleted and made anew under the same name has another (KIP-516)."""
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The limits that a topic sets for records. None: no limit of this kind."""

    batch_bytes_max: int | None = None
    """Of records that are written together, or of one alone, as the broker counts them."""
    needs_key: bool = False
    """A compacted topic takes no record without a key."""
    ahead_ms_max: int | None = None
    """A record's time may be so far ahead of the broker's clock."""
    behind_ms_max: int | None = None
    """The same, behind it."""


class Written(NamedTuple):
    """Records that lie one behind the other in a partition."""

    partition: TopicPartition
    first: Offset
    records: int


HEADERS: Final = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))
"""The Arrow type of headers."""


@dataclass(frozen=True, slots=True)
class RecordColumns(Sequence[NewRecord]):
    """Records to write, as columns of equal length: many, without an object each unless somebody looks at one."""

    values: pa.BinaryArray
    """Null: none."""
    keys: pa.BinaryArray | None = None
    """Null: none; None: no record has one."""
    timestamps_ms: pa.Int64Array | None = None
    """Null, or None: when it is written."""
    headers: pa.ListArray | None = None
    """Of the type HEADERS; None: no record has any."""

    @staticmethod
    def of(records: Sequence[NewRecord]) -> "RecordColumns":
        """The columns of records."""
        if isinstance(records, RecordColumns):
            return records
        keys = pa.array([r.key for r in records], pa.binary()) if any(r.key is not None for r in records) else None
        headers = [[{"name": n, "value": v} for n, v in r.headers] for r in records]
        return RecordColumns(
            pa.array([r.value for r in records], pa.binary()), keys,
            pa.array([r.timestamp_ms for r in records], pa.int64()), pa.array(headers, HEADERS) if any(headers) else None,
        )  # fmt: skip

    @property
    def _others(self) -> "tuple[pa.Array | None, ...]":
        return self.keys, self.timestamps_ms, self.headers

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, at: int) -> NewRecord: ...
    @overload
    def __getitem__(self, at: slice) -> "RecordColumns": ...
    def __getitem__(self, at: int | slice) -> "NewRecord | RecordColumns":
        if isinstance(at, slice):
            return RecordColumns(self.values[at], *(None if column is None else column[at] for column in self._others))
        value = self.values[at].as_py()
        key, time, headers = (None if column is None else column[at].as_py() for column in self._others)
        return NewRecord(value, key, tuple((h["name"], h["value"]) for h in headers or ()), time)

    def take(self, rows: Int64s) -> "RecordColumns":
        """Some of the records, in the order of `rows`."""
        places = pa.array(rows)
        others = (None if column is None else column.take(places) for column in self._others)
        return RecordColumns(self.values.take(places), *others)


class Reader(Protocol):
    """Reads assigned partitions, each in offset order."""

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read these from here; replaces the earlier assignment. Raises OffsetOutOfRange at `fetch` if a position is not in the log."""
        ...

    async def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Go on from here in one partition; records fetched earlier from it are not returned again by `fetch`."""
        ...

    def position(self, partition: TopicPartition) -> Offset:
        """The offset that `fetch` goes on from.

        It moves past transaction markers and aborted records too, which no record shows: so a reader knows that it
        has reached an end offset (S3, W4).
        """
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return nothing of these until `resume`."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Return records of these again."""
        ...

    async def fetch(self, max_records: int, timeout_ms: int) -> list[LogRecord]:
        """The next records, at most so many, waiting at most so long for the first; [] after the time."""
        ...

    async def close(self) -> None:
        """Let go of connections; idempotent."""
        ...


class Writer(Protocol):
    """Writes with acks=all, idempotently, in the order of the calls per partition (F2)."""

    async def send(self, partition: TopicPartition, record: NewRecord) -> Awaitable[Offset]:
        """Hand over a record; waits only for room in the buffer. Await the result for its offset, once the broker has it."""
        ...

    async def flush(self) -> None:
        """Wait until all handed over is acknowledged; raises the first error of any of them."""
        ...

    async def close(self) -> None:
        """Let go; idempotent. Records that were not acknowledged may or may not be in the log."""
        ...


class Transaction(Protocol):
    """One open transaction of a TransactionalWriter."""

    async def send_batch(self, partition: TopicPartition, records: Sequence[NewRecord]) -> None:
        """Hand over records in order, as `RecordColumns` where they are many."""
        ...

    async def written(self) -> Sequence[Written]:
        """Wait until the broker has all that was handed over, and say where it lies, in the order of handing over. Raises as `commit`."""
        ...

    async def commit(self) -> None:
        """All records become visible at once, or an error is raised and it is not known which: read the markers (S3)."""
        ...

    async def abort(self) -> None:
        """None of the records becomes visible."""
        ...


class TransactionalWriter(Protocol):
    """Writes in transactions under one identity; opening it fences every earlier holder (S1)."""

    async def begin(self, partitions: Collection[TopicPartition] = ()) -> Transaction:
        """Start a transaction; one at a time. Its partitions are named, so that the broker is asked for all of them at once."""
        ...

    async def close(self) -> None:
        """Let go; idempotent; aborts an open transaction."""
        ...


class Log(Protocol):
    """Topics, and readers and writers on them."""

    async def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Make it; returns quietly when it exists with as many partitions, raises LogError when with another number."""
        ...

    async def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete those that exist."""
        ...

    async def list_topics(self) -> dict[str, int]:
        """All topics with their numbers of partitions."""
        ...

    async def describe_topics(self, topics: Sequence[str]) -> dict[str, TopicFound]:
        """Those of these topics that exist."""
        ...

    async def topic_rules(self, topics: Sequence[str]) -> dict[str, TopicRules]:
        """The limits of each of these topics, all of which exist."""
        ...

    async def begin_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The first offset that is still there."""
        ...

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The high watermark: the offset that the next record gets, open transactions included."""
        ...

    async def note_offsets(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Let a group without members stand at these offsets, for tools that show lag. Nothing here ever reads them back."""
        ...

    async def delete_records(self, before: Mapping[TopicPartition, Offset]) -> None:
        """Let go of records below these offsets."""
        ...

    async def reader(self, *, committed_only: bool = False, follows: bool = False) -> Reader:
        """A reader with nothing assigned; `committed_only`: records of aborted or open transactions are not returned.

        `follows`: it is assigned once and reads on, without a seek or pause. So where there is nothing it asks seldom, and it has at once
        what comes.
        """
        ...

    async def writer(self, client: str) -> Writer:
        """A writer; `client` names it in the broker's logs."""
        ...

    async def transactional_writer(self, identity: str) -> TransactionalWriter:
        """Initialise the identity. This fences earlier writers, and completes or aborts the transactions that they left open."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...
