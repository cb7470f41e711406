"""Topics to files, as a reader of committed records sees them.

A short outage is waited out: a broker that was killed and has just been started again has no leader for some partitions yet.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from shared.adapters.clock import SystemClock
from shared.model.ids import Offset
from shared.ports.log import Log, LogRecord, LogUnavailable, TopicPartition
from shared.runtime.reading import up_to_now

OUTAGE_MS_MAX: Final = 30_000
_RETRY_MS: Final = 300


async def committed_records(log: Log, topic: str, only: int | None = None) -> AsyncIterator[LogRecord]:
    """Every committed record of a topic up to where it ends now, partition by partition; nothing if there is no such topic.

    only: of one partition. LogUnavailable: after OUTAGE_MS_MAX of outages.
    """
    patience = _Patience()
    count = (await log.list_topics()).get(topic, 0)
    numbers = range(count) if only is None else (only,)
    for partition in (TopicPartition(topic, number) for number in numbers):
        position: Offset | None = None
        while True:
            try:
                async for record in up_to_now(log, partition, committed_only=True, begin=position):
                    yield record
                    position = Offset(record.offset + 1)
                break
            except LogUnavailable as error:
                await patience.wait(error)


class _Patience:
    """How long one reading has waited already."""

    def __init__(self) -> None:
        self._waited_ms = 0

    async def wait(self, error: LogUnavailable) -> None:
        """A while; the error, once it has been long enough."""
        if self._waited_ms >= OUTAGE_MS_MAX:
            raise error
        self._waited_ms += _RETRY_MS
        await SystemClock().sleep_ms(_RETRY_MS)


async def write_lines(log: Log, topic: str, path: Path) -> int:
    """The values of a topic as JSON lines; how many."""
    lines = 0
    with path.open("wb") as out:
        async for record in committed_records(log, topic):
            out.write((record.value or b"null") + b"\n")
            lines += 1
    return lines
