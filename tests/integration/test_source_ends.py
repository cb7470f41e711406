# ruff: noqa: N802 -- a test carries its rule's name
"""What a job reads of a topic, from the first record to the last, is one thing over failures, restarts, new partitions and drains (I1–I3).

The last test draws the story: whatever fails and whenever, each record that was written between the start and the drain comes out once.
"""

import json
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.messages import ProcessorStatus, StartProcessor, StopProcessor
from tidemark.shared.ports.log import LogUnavailable, NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.worker import Worker

LOOK_MS = 1_000
SEEDS = 25


class Story:
    """A processor that copies a topic to another, and what is written and read of it."""

    def __init__(self, there: Installed, interval_ms: int) -> None:
        self.there = there
        self.interval_ms = interval_ms
        self.written: list[int] = []

    async def begin(self, partitions: int = 1, *, tasks: int = 1, start_at: str = "latest") -> None:
        self.there.broker.create_topic("in", partitions)
        self.there.broker.create_topic("out", 1)
        document = {
            "connections": {"k": {"type": "kafka", "bootstrapServers": "memory:1"}},
            "pipeline": [
                {"$source": {"connectionName": "k", "topic": "in", "config": {"auto_offset_reset": start_at}}},
                {"$emit": {"connectionName": "k", "topic": "out"}},
            ],
            "options": {"checkpoint": {"interval": {"size": self.interval_ms, "unit": "ms"}}},
        }
        await self.there.create(document, source=tasks)

    async def write(self, partition: int, count: int) -> None:
        writer = await MemoryLog(self.there.broker).writer("feed")
        for number in range(len(self.written), len(self.written) + count):
            value = json.dumps({"n": number}).encode()
            await (await writer.send(TopicPartition("in", partition), NewRecord(value)))
            self.written.append(number)
        await writer.close()

    def read(self) -> list[int]:
        return sorted(json.loads(r.value or b"")["n"] for r in self.there.broker.dump("out")[0])

    def fail(self, service: str, at: int = 0) -> None:
        """A task of a service stops with an error, if one runs."""
        worker = self.there.parts[service]
        assert isinstance(worker, Worker)
        drivers = [hosted.driver for hosted in worker._tasks.values() if hosted.driver is not None]
        if drivers:
            drivers[at % len(drivers)].site.fail(LogUnavailable("a hiccup"))

    async def drain(self) -> None:
        """Ask for it, and do not wait."""
        await self.there.client.request(StopProcessor(self.there.client.unique(), NAME, drain=True))

    async def finished(self) -> ProcessorStatus:
        return await self.there.when(lambda s: s.state == "FINISHED")

    async def sleep_ms(self, wait_ms: int) -> None:
        await self.there.clock.sleep_ms(wait_ms)


def tell(told: Callable[[Story], Coroutine[Any, Any, None]], *, interval_ms: int = 30_000) -> None:
    """On virtual time."""
    settings = RuntimeSettings(engine="local", splits_interval_ms=LOOK_MS)

    async def main(world: VirtualWorld) -> None:
        quick = CoordinatorSettings(adopt_wait_ms=100, backoff_base_ms=50, checkpoint_timeout_ms=60_000)
        async with installed(world.clock, world.executor, settings=settings, coordinator=quick) as there:
            await told(Story(there, interval_ms))

    run_virtual(main)


@pytest.mark.parametrize("service", ["source", "sink"])
@pytest.mark.parametrize("committed", [0, 100])
def test_I3_a_failure_behind_a_drain_does_not_move_its_end(service: str, committed: int) -> None:
    """What was there when the drain was asked for comes out once, however far back the next generation begins."""

    async def story(it: Story) -> None:
        await it.begin(start_at="earliest")
        await it.write(0, committed)
        await it.there.start()
        if committed:
            await it.there.committed()
        await it.write(0, 300 - committed)
        await it.sleep_ms(5_000)
        await it.drain()
        it.fail(service)
        await it.finished()
        assert it.read() == it.written

    tell(story)


def test_I3_a_drain_reads_what_it_has_not_come_to_yet_and_nothing_behind_it() -> None:
    """The end is that of the topic when it is decided, over a stop and a start too; records that come later have no part."""

    async def story(it: Story) -> None:
        await it.begin(start_at="earliest")
        await it.there.start()
        await it.write(0, 50)
        await it.drain()
        await it.sleep_ms(1_000)
        covered = list(it.written)
        await it.write(0, 10)
        it.fail("source")
        await it.finished()
        assert it.read() == covered

    tell(story)


def test_I2_a_topic_that_was_made_anew_fails_the_processor_with_what_to_do() -> None:
    """No record of the new topic is taken for one of the old; started without state, all of it is read."""

    async def story(it: Story) -> None:
        await it.begin(start_at="earliest")
        await it.there.start()
        await it.write(0, 30)
        await it.there.committed()
        await it.there.stop()
        it.there.broker.delete_topic("in")
        it.there.broker.create_topic("in", 1)
        await it.write(0, 40)
        with pytest.raises(
            AssertionError, match=r"topic in: .* with id .* deleted and made anew.* start without state"
        ):
            await it.there.start()
        assert it.read() == list(range(30))
        await it.there.client.request(StartProcessor(it.there.client.unique(), NAME, resume=False))
        await it.sleep_ms(5_000)
        assert it.read() == it.written

    tell(story, interval_ms=200)


def test_I2_a_topic_that_is_made_anew_while_it_is_read_fails_the_processor() -> None:
    """At the next look, also where the new topic is longer than what was read of the old one."""

    async def story(it: Story) -> None:
        await it.begin(start_at="earliest")
        await it.there.start()
        await it.write(0, 30)
        await it.there.committed()
        it.there.broker.delete_topic("in")
        it.there.broker.create_topic("in", 1)
        await it.write(0, 40)
        with pytest.raises(AssertionError, match="deleted and made anew"):
            await it.finished()

    tell(story, interval_ms=200)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_I1_a_partition_that_is_added_is_read_from_its_beginning(tasks: int, stopped: bool) -> None:
    """Whichever task reads it, had it splits or not, and whether anybody ran when it came."""

    async def story(it: Story) -> None:
        await it.begin(tasks=tasks)
        await it.there.start()
        await it.write(0, 2)
        await it.there.committed(3)
        if stopped:
            await it.there.stop()
        it.there.broker.add_partitions("in", 2)
        await it.write(1, 3)
        if stopped:
            await it.there.start()
        await it.sleep_ms(3 * LOOK_MS)
        await it.write(1, 1)
        await it.sleep_ms(3_000)
        assert it.read() == it.written

    tell(story, interval_ms=200)


def test_I1_latest_is_one_place_over_a_failure_before_the_first_checkpoint() -> None:
    """What came since the start is read, also what no checkpoint covered when the first generation ended."""

    async def story(it: Story) -> None:
        await it.begin()
        await it.there.start()
        await it.write(0, 3)
        await it.sleep_ms(1_000)
        it.fail("source")
        await it.sleep_ms(1_000)
        await it.write(0, 2)
        await it.sleep_ms(60_000)
        assert it.read() == it.written

    tell(story)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_I1_I3_whatever_happens_each_record_comes_out_once(seed: int) -> None:
    """Records, partitions, failures, stops and starts in any order, checkpoints seldom; then a drain, with failures around it."""
    draw = random.Random(seed)
    partitions = draw.randint(1, 3)

    async def story(it: Story) -> None:
        there, now = it.there, partitions
        await it.begin(partitions, tasks=draw.randint(1, 3), start_at=draw.choice(["latest", "earliest"]))
        await there.start()
        for _ in range(draw.randint(3, 12)):
            match draw.choice(["write", "write", "write", "fail", "add", "stop", "wait"]):
                case "write":
                    await it.write(draw.randrange(now), draw.randint(1, 30))
                case "fail":
                    it.fail(draw.choice(["source", "sink"]), draw.randrange(3))
                case "add" if now < 5:
                    now += 1
                    there.broker.add_partitions("in", now)
                case "stop":
                    await there.client.request(StopProcessor(there.client.unique(), NAME))
                    await it.sleep_ms(draw.choice([0, 500]))
                    await there.client.request(StartProcessor(there.client.unique(), NAME, True))
                case _:
                    await it.sleep_ms(draw.choice([0, 100, LOOK_MS, 5 * LOOK_MS]))
        await it.drain()
        for _ in range(draw.randrange(4)):
            it.fail(draw.choice(["source", "sink"]), draw.randrange(3))
            await it.sleep_ms(draw.choice([0, 1, 10, 100, 1_000]))
        await it.finished()
        assert it.read() == it.written

    tell(story, interval_ms=draw.choice([200, 2_000, 30_000]))
