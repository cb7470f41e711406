"""The topics of a Kafka sink, while others make them, too."""

from tidemark.services.sink.connectors.kafkarecords import Takes
from tidemark.services.sink.connectors.kafkatopics import TopicLimits
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog


class _Meanwhile(MemoryLog):
    """Behind the first look at the topics somebody makes one, with four partitions."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self._made_in = broker

    async def list_topics(self) -> dict[str, int]:
        """As they were in front of that."""
        found = await super().list_topics()
        if not found:
            self._made_in.create_topic("out", 4)
        return found


async def test_a_topic_that_somebody_makes_at_the_same_moment_is_there() -> None:
    """With another number of partitions than the sink would have given it: no row is refused for that."""
    limits = TopicLimits(_Meanwhile(MemoryBroker(SystemClock())), Takes(new_topic_partitions=1))
    assert await limits.missing({"out"}) == {}
