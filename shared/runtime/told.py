"""How high the tokens are that leaders have told of: a store that has handed out fewer has lost what it knew (C8)."""

from shared.model.ids import LeaderToken, Offset
from shared.ports.log import OffsetOutOfRange, TopicPartition
from shared.runtime.context import Outside
from shared.runtime.fencing import token_of
from shared.runtime.reading import up_to_now


class Told:
    """Of the registry, where every term begins with a word; each look reads on from where the last one ended."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._position: Offset | None = None
        self._highest = LeaderToken(0)

    async def highest(self) -> LeaderToken:
        """The highest token up to where the registry ends now; 0 if nobody has led. LogUnavailable."""
        topic, log = TopicPartition(self._outside.topics.registry, 0), self._outside.log
        if self._position == (await log.end_offsets([topic]))[topic]:
            return self._highest
        try:
            async for record in up_to_now(log, topic, self._outside.settings, begin=self._position):
                self._highest = max(self._highest, token_of(record))
                self._position = Offset(record.offset + 1)
        except OffsetOutOfRange:
            self._position = None
            return await self.highest()
        return self._highest
