"""`RawReader` on any `Log`."""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from tidemark.shared.model.ids import Offset
from tidemark.shared.model.records import RawPartition
from tidemark.shared.ports.log import Log, LogRecord, Reader, TopicPartition


class LogRawReader:
    """`RawReader` on any `Log`: a Python object a record, so for logs in memory."""

    def __init__(self, log: Log, fetch_records_max: int = 10_000) -> None:
        """`fetch_records_max`: taken from the log at once, and held until they are asked for."""
        self._log = log
        self._records_max = fetch_records_max
        self._reader: Reader | None = None
        self._held: deque[LogRecord] = deque()
        """What one fetch of a log in memory gave: at most `fetch_records_max` of its reader."""
        self._assigned: tuple[TopicPartition, ...] = ()
        self._paused: set[TopicPartition] = set()
        self._ends: dict[TopicPartition, Offset] = {}
        self._count = 0

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """See `RawReader.assign`."""
        if self._reader is None:
            self._reader = await self._log.reader(committed_only=True)
        await self._reader.assign(positions)
        self._assigned = tuple(positions)
        self._held.clear()
        self._ends.clear()
        self._paused.clear()

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """See `RawReader.pause`."""
        if self._reader is not None:
            self._reader.pause(partitions)
        self._paused.update(partitions)

    async def fetch(self, max_bytes: int, timeout_ms: int, *, waits: bool = True) -> list[RawPartition]:
        """See `RawReader.fetch`."""
        if self._reader is None:
            return []
        if not self._held:
            self._held.extend(await self._reader.fetch(self._records_max, timeout_ms if waits else 0))
            self._count += 1
            self._ends = await self._log.end_offsets(self._assigned)
        taken: list[LogRecord] = []
        size = 0
        while self._held and (not taken or size < max_bytes):
            record = self._held.popleft()
            size += len(record.value or b"") + len(record.key or b"")
            taken.append(record)
        kept = [r for r in taken if TopicPartition(r.topic, r.partition) not in self._paused]
        return [
            records_of(TopicPartition(*place), list(run))
            for place, run in groupby(kept, lambda r: (r.topic, r.partition))
        ]

    def position(self, partition: TopicPartition) -> Offset:
        """See `RawReader.position`."""
        held = (r.offset for r in self._held if (r.topic, r.partition) == partition)
        assert self._reader is not None, "position before assign"
        return next(held, self._reader.position(partition))

    def high_watermark(self, partition: TopicPartition) -> Offset | None:
        """See `RawReader.high_watermark`."""
        return self._ends.get(partition)

    def answered(self, partition: TopicPartition) -> int | None:
        """See `RawReader.answered`."""
        return self._count if partition in self._ends else None

    async def offsets_at(self, time_ms: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        """See `RawReader.offsets_at`; reads from the beginning."""
        ends = await self._log.end_offsets(partitions)
        found = dict(ends)
        reader = await self._log.reader(committed_only=False)
        try:
            for partition, position in (await self._log.begin_offsets(partitions)).items():
                await reader.assign({partition: position})
                while found[partition] == ends[partition] and reader.position(partition) < ends[partition]:
                    later = (r for r in await reader.fetch(self._records_max, 0) if r.timestamp_ms >= time_ms)
                    first = next(later, None)
                    if first is not None:
                        found[partition] = first.offset
                        break
        finally:
            await reader.close()
        return found

    async def close(self) -> None:
        """See `RawReader.close`."""
        if self._reader is not None:
            await self._reader.close()


def records_of(partition: TopicPartition, records: Sequence[LogRecord]) -> RawPartition:
    """Records of one partition as columns."""
    keyed = any(record.key is not None for record in records)
    return RawPartition(
        *partition,
        offsets=np.array([record.offset for record in records], dtype=np.int64),
        timestamps=np.array([record.timestamp_ms for record in records], dtype=np.int64),
        keys=pa.array([record.key for record in records], pa.binary()) if keyed else None,
        values=pa.array([record.value for record in records], pa.binary()),
    )
