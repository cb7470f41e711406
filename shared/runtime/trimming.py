"""Lets go of old records of the topics that tell what is going on now: commands, reports, answers, read positions (C12).

They have no retention, for no clock of a broker's decides what may go: the leader deletes what was written `topics_kept_ms` before. Whoever
reads them reads from their ends; a process that stood still for so long has stopped its tasks by its own clock, and starts anew.
"""

from collections import deque
from collections.abc import Callable, Mapping

import structlog

from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import LogError, TopicPartition
from tidemark.shared.runtime.context import Outside

_log = structlog.get_logger()
_LOOKS = 10
"""How often the ends are noted within `topics_kept_ms`."""


class Trimmer:
    """Of one leader."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        topics = outside.topics
        named = (topics.commands, topics.reports, topics.answers, topics.flow)
        self._topics = [TopicPartition(topic, 0) for topic in named]
        self._seen: deque[Mapping[TopicPartition, Offset]] = deque(maxlen=_LOOKS)
        """Where the topics ended, the oldest first."""

    async def run(self, leads: Callable[[], bool]) -> None:
        """Look at the ends, and delete what lay below those that were seen a full round ago. An outage is waited out."""
        while True:
            await self._outside.clock.sleep_ms(self._outside.settings.topics_kept_ms // _LOOKS)
            if not leads():
                self._seen.clear()
                continue
            try:
                ends = await self._outside.log.end_offsets(self._topics)
                if len(self._seen) == _LOOKS:
                    await self._outside.log.delete_records(self._seen[0])
            except LogError as error:
                _log.warning("cleanup.failed", topic="of the installation", reason=str(error))
            else:
                self._seen.append(ends)
