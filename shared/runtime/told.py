"""How many changes of the store leaders have told of: one that counts fewer has lost what it had confirmed (C8)."""

import structlog

from tidemark.shared.model.ids import LeaderToken, Offset
from tidemark.shared.ports.commits import Ambiguous, CommitStore, StoreLost, StoreUnavailable, lacks
from tidemark.shared.ports.log import OffsetOutOfRange, TopicPartition
from tidemark.shared.runtime.context import Outside
from tidemark.shared.runtime.fencing import changes_of
from tidemark.shared.runtime.reading import up_to_now

_log = structlog.get_logger()


class Told:
    """In the registry; each look reads on from where the last one ended."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._position: Offset | None = None
        self._most = 0

    async def most(self) -> int:
        """The most changes up to where the registry ends now; 0 if nobody has led. LogUnavailable."""
        topic, log = TopicPartition(self._outside.topics.registry, 0), self._outside.log
        if self._position == (await log.end_offsets([topic]))[topic]:
            return self._most
        try:
            async for record in up_to_now(log, topic, self._outside.settings, begin=self._position):
                self._most = max(self._most, changes_of(record))
                self._position = Offset(record.offset + 1)
        except OffsetOutOfRange:
            self._position = None
            return await self.most()
        return self._most

    async def refused(self, store: CommitStore, token: LeaderToken, its: LeaderToken, lease_ms: int) -> None:
        """Another leads, by its word: wait until the store says so, too. StoreLost where it goes on to name this leader."""
        while True:
            try:
                renewed = await store.renew(token, lease_ms, self._outside.clock.now_ms())
            except (StoreUnavailable, Ambiguous) as error:
                _log.warning("coordinator.leadership_waits", reason=str(error))
                await self._outside.clock.sleep_ms(self._outside.settings.retry_ms)
                continue
            if renewed:
                raise StoreLost(lacks(f"names leader {token}, but leader {its} has told of itself in the registry"))
            return
