# ruff: noqa: N802 -- a test carries its rule's name
"""Requests that no leader has decided stay where the next one finds them."""

import asyncio
from types import SimpleNamespace
from typing import Any

from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.runtime.upkeep import Undecided


def test_C8_a_request_that_is_not_decided_outlives_those_that_are() -> None:
    """The first of three is still being thought about: only when it is decided do the others' records go, with its own."""

    async def story(world: VirtualWorld) -> None:
        broker, topics = MemoryBroker(world.clock), Topics()
        at = TopicPartition(topics.requests, 0)
        broker.create_topic(at.topic, 1)
        broker.append(at, [NewRecord(b"1"), NewRecord(b"2"), NewRecord(b"3")])
        outside: Any = SimpleNamespace(
            log=MemoryLog(broker), clock=world.clock, topics=topics, settings=RuntimeSettings()
        )
        undecided = Undecided(outside)
        undecided.begin(Offset(0))
        for number in range(3):
            undecided.heard(f"request {number}", Offset(number))
        letting_go = asyncio.ensure_future(undecided.let_go())
        for decided, begin in (("request 1", 0), ("request 0", 2), ("request 2", 3)):
            undecided.decided(decided)
            await world.clock.sleep_ms(10)
            assert broker.begin(at) == begin
        letting_go.cancel()

    run_virtual(story)
