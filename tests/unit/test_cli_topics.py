"""`tidemark topics` beside processors that come and go."""

from tidemark.services.cli.records import _topics_of
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog


class _Dropping(MemoryLog):
    """A processor is dropped while the list is made: the topic of its edge is in it, and has gone."""

    async def list_topics(self) -> dict[str, int]:
        found = await super().list_topics()
        await self.delete_topics(["tidemark.p.source-1-emit-1.7"])
        return found


async def test_a_topic_of_a_processor_that_is_dropped_meanwhile_is_not_asked_about() -> None:
    """The list is of users' topics; internal ones, which may go at any moment, have no part in it."""
    log = _Dropping(MemoryBroker(SystemClock()))
    await log.create_topic("tidemark.p.source-1-emit-1.7", 2)
    await log.create_topic("orders", 3)
    found = await _topics_of(log, "local", internal="tidemark.")
    assert found == [{"connection": "local", "topic": "orders", "partitions": 3, "records": 0}]
