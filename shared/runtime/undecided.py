"""Requests that a leader has read and not answered yet, and the deletion of those that no leader will have to decide again."""

import asyncio

import structlog

from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import LogError, TopicPartition
from tidemark.shared.runtime.context import Outside

_log = structlog.get_logger()


class Undecided:
    """Of one coordinator, by request id."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._offsets: dict[str, Offset] = {}
        self._read = Offset(0)
        self._fewer = asyncio.Event()

    def begin(self, start: Offset) -> None:
        """A term reads from here: what an earlier one left is read again, or another leader has decided it."""
        self._offsets.clear()
        self._read = start

    def heard(self, request: str, offset: Offset) -> None:
        """It has been read."""
        self._offsets[request] = offset
        self._read = Offset(offset + 1)

    def decided(self, request: str) -> None:
        """It has been answered."""
        self._offsets.pop(request, None)
        self._fewer.set()

    async def let_go(self) -> None:
        """Delete what is decided, however long it takes: a request that stayed would be carried out anew by a later leader."""
        topic, log = TopicPartition(self._outside.topics.requests, 0), self._outside.log
        while True:
            await self._fewer.wait()
            self._fewer.clear()
            try:
                await log.delete_records({topic: min(self._offsets.values(), default=self._read)})
            except LogError as error:
                _log.warning("cleanup.failed", topic=topic.topic, reason=str(error))
                self._fewer.set()
                await self._outside.clock.sleep_ms(self._outside.settings.retry_ms)
