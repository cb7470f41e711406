"""The mirror of a job's commits: a topic that the coordinator appends to and sinks read (C9)."""

from collections.abc import Callable

from shared.model.checkpoint import MirrorRow
from shared.model.ids import JobId, Offset
from shared.ports.log import Log, LogError, NewRecord, TopicPartition, Writer
from shared.runtime.reading import up_to_now
from shared.wire.messages import decode_mirror_row


class MirrorWriter:
    """Appends rows to jobs' mirrors; after an error everything is opened anew."""

    def __init__(self, log: Log, topic_of: Callable[[JobId], str]) -> None:
        self._log = log
        self._topic_of = topic_of
        self._writer: Writer | None = None
        self._made: set[str] = set()

    async def append(self, job: JobId, data: bytes) -> None:
        """Append one row and wait for the broker's word; the topic is made when it is not there. LogError if it may not be there."""
        topic = self._topic_of(job)
        if topic not in self._made:
            await self._log.create_topic(topic, 1, {"retention.ms": "-1", "retention.bytes": "-1"})
            self._made.add(topic)
        if self._writer is None:
            self._writer = await self._log.writer("mirror")
        try:
            await (await self._writer.send(TopicPartition(topic, 0), NewRecord(data)))
        except LogError:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of the writer."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()


async def read_mirror(log: Log, topic: str) -> list[tuple[Offset, MirrorRow]]:
    """All rows of a job's mirror, up to where it ends now: (offset, MirrorRow)."""
    if topic not in await log.list_topics():
        return []
    partition = TopicPartition(topic, 0)
    return [(r.offset, decode_mirror_row(r.value or b"")) async for r in up_to_now(log, partition)]
