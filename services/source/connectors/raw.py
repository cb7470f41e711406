"""A reader of raw records, as the Kafka source needs it: columns, straight from the answers to fetches."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tidemark.shared.model.ids import Offset
from tidemark.shared.model.records import RawPartition
from tidemark.shared.ports.log import TopicPartition


class RawReader(Protocol):
    """Reads assigned partitions as columns. Committed records only. Errors are those of the log."""

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read these partitions from here; replaces earlier assignments."""
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return nothing of these any more."""
        ...

    async def fetch(self, max_bytes: int, timeout_ms: int, *, waits: bool = True) -> Sequence[RawPartition]:
        """The records that are there, about so many bytes at most, waiting at most so long; OffsetOutOfRange, LogUnavailable.

        Without `waits`: waiting for the brokers' answers alone, which come at once.
        """
        ...

    def position(self, partition: TopicPartition) -> Offset:
        """Behind the records that `fetch` returned, and behind those that readers are not shown (aborted records, markers)."""
        ...

    def high_watermark(self, partition: TopicPartition) -> Offset | None:
        """The end that the broker's last answer named, open transactions included; None before the first since `assign`."""
        ...

    def answered(self, partition: TopicPartition) -> int | None:
        """A number that changes with every answer of the broker about the partition; None as above."""
        ...

    async def offsets_at(self, time_ms: int, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        """The first offsets with a timestamp at or after a time; the end where there is none."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...
