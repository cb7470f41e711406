"""Topics to files, as a reader of committed records sees them."""

from collections.abc import AsyncIterator
from pathlib import Path

from shared.ports.log import Log, LogRecord, TopicPartition
from shared.runtime.reading import up_to_now


async def committed_records(log: Log, topic: str, only: int | None = None) -> AsyncIterator[LogRecord]:
    """Every committed record of a topic up to where it ends now, partition by partition; nothing if there is no such topic.

    only: of one partition.
    """
    count = (await log.list_topics()).get(topic, 0)
    numbers = range(count) if only is None else (only,)
    for partition in (TopicPartition(topic, number) for number in numbers):
        async for record in up_to_now(log, partition, committed_only=True):
            yield record


async def write_lines(log: Log, topic: str, path: Path) -> int:
    """The values of a topic as JSON lines; how many."""
    lines = 0
    with path.open("wb") as out:
        async for record in committed_records(log, topic):
            out.write((record.value or b"null") + b"\n")
            lines += 1
    return lines
