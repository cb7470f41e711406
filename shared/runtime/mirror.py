"""The mirror of a job's commits: a topic that the coordinator appends to and sinks read (C9)."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.ids import JobId, LeaderToken, Offset
from tidemark.shared.ports.log import Log, LogError, NewRecord, TopicPartition, Writer
from tidemark.shared.runtime.fencing import signed
from tidemark.shared.runtime.reading import ENDS_WAIT_MS, reading
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.wire.messages import decode_mirror_row

_DEFAULT: Final = RuntimeSettings()


class MirrorWriter:
    """Appends rows to jobs' mirrors; after an error the writer is opened anew."""

    def __init__(self, log: Log, topic_of: Callable[[JobId], str]) -> None:
        self._log = log
        self._topic_of = topic_of
        self._writer: Writer | None = None

    async def append(self, job: JobId, data: bytes, leader: LeaderToken) -> Offset:
        """Append one row; where it lies. LogError: the row may not be there."""
        if self._writer is None:
            self._writer = await self._log.writer("mirror")
        try:
            record = NewRecord(data, headers=signed(leader))
            return await (await self._writer.send(TopicPartition(self._topic_of(job), 0), record))
        except LogError:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of the writer."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()


async def read_mirrors(
    log: Log, begins: Mapping[str, Offset], settings: RuntimeSettings = _DEFAULT
) -> AsyncIterator[tuple[str, Offset, MirrorRow]]:
    """The rows of several mirrors, by topic, each from an offset up to where it ends now: (topic, offset, row). LogUnavailable."""
    there = await log.list_topics()
    partitions = [TopicPartition(topic, 0) for topic in begins if topic in there]
    firsts, ends = await log.begin_offsets(partitions), await log.end_offsets(partitions)
    positions = {p: within(begins[p.topic], firsts[p], ends[p]) for p in partitions}
    positions = {p: begin for p, begin in positions.items() if begin < ends[p]}
    async with reading(log) as reader:
        await reader.assign(positions)
        while any(reader.position(p) < ends[p] for p in positions):
            for record in await reader.fetch(settings.topic_records_max, ENDS_WAIT_MS):
                if record.offset < ends[TopicPartition(record.topic, 0)]:
                    yield record.topic, record.offset, decode_mirror_row(record.value or b"", settings.wire)


def within(begin: Offset, first: Offset, end: Offset) -> Offset:
    """Where to begin in a mirror that has `first` to `end`: where it was said, if that is in it."""
    return begin if first <= begin <= end else first
