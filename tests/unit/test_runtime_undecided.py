# ruff: noqa: N802 -- a test carries its rule's name
"""Requests that no leader has decided stay where the next one finds them."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.installation import Installed, installed
from tests.harness.leaders import another, of_installation
from tests.harness.sealing import sealed
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset, ProcessorName
from tidemark.shared.model.messages import CreateProcessor, DropProcessor, StopProcessor
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.client import RequestRefused
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
            undecided.decided(decided, Offset(0))
            await world.clock.sleep_ms(10)
            assert broker.begin(at) == begin
        letting_go.cancel()

    run_virtual(story)


DOCUMENT = """
connections: {o: {type: files, path: /nowhere}}
pipeline: [{$source: {documents: [{a: 1}]}}, {$emit: {connectionName: o, path: x, format: json}}]
"""


@pytest.mark.parametrize(
    "after", [None, 0, 2], ids=["by the same leader", "by the next one", "by one that finds no answers"]
)
def test_F10_a_request_that_was_copied_is_not_carried_out_again(after: int | None) -> None:
    """Created and dropped: whoever puts copies of the sealed requests behind that brings nothing back; one of a new id does."""

    async def story(world: VirtualWorld) -> None:
        settings = RuntimeSettings(engine="local", topics_kept_ms=300_000)
        name, copies = ProcessorName("p"), list[NewRecord]()
        async with installed(world.clock, world.executor, settings=settings, services=()) as there:
            at = TopicPartition(Topics().requests, 0)
            append = there.broker.append

            def noted(at_: TopicPartition, records: Sequence[NewRecord]) -> Offset:
                if at_ == at:
                    copies.extend(records)
                return append(at_, records)

            there.broker.append = noted  # type: ignore[method-assign, assignment]
            await there.client.request(CreateProcessor("create", name, DOCUMENT, {}))
            with pytest.raises(RequestRefused, match="no processor"):
                await there.client.request(StopProcessor("refused", ProcessorName("q")))
            await there.client.request(DropProcessor("drop", name))
            there.broker.append = append  # type: ignore[method-assign]
            assert len(copies) == 3
            while there.store.rows:  # which knows what was answered, until it goes
                await world.clock.sleep_ms(10)
            if after is not None:
                await world.clock.sleep_ms(after * settings.topics_kept_ms)
                async with another(there) as second:
                    of_installation(there).driver.stop()
                    await second.leads()
                    await came_to_nothing(there, at, copies)
            else:
                await came_to_nothing(there, at, copies)

    async def came_to_nothing(there: Installed, at: TopicPartition, copies: list[NewRecord]) -> None:
        names = set[str]()
        for some in (copies[:1], copies):  # a drop behind it would take away what the first one made
            there.broker.append(at, some)
            names.add(f"r{len(some)}")
            await there.client.request(
                CreateProcessor(f"another {names}", ProcessorName(f"r{len(some)}"), DOCUMENT, {})
            )
            assert set(await there.client.statuses()) == names
        stranger = MemoryLog(there.broker)
        assert await stranger.end_offsets([at]) == await sealed(stranger).begin_offsets([at])

    run_virtual(story)
