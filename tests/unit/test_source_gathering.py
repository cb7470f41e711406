# ruff: noqa: N802 -- a test carries its rule's name
"""How long a Kafka source leaves what comes at the brokers, and that a checkpoint has it (C2)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.harness.driver_stand import StandingBody
from tests.harness.raw_log import LogRawReader
from tests.harness.source_stand import HandClock
from tests.harness.worker_stand import JOB, WorkerStand, working
from tidemark.services.source.connectors.kafka import KafkaConnector, KafkaSourceSettings
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.language.stages import StartAt
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Epoch, Generation, Offset, SplitId
from tidemark.shared.model.messages import AbortCheckpoint, StartCheckpoint, StartSources, TaskRestored
from tidemark.shared.ports.log import LogUnavailable, NewRecord, TopicPartition
from tidemark.shared.protocol.source.machine import Input
from tidemark.shared.runtime.body import Fetched, ReadingBody

IN = TopicPartition("in", 0)


@pytest.mark.parametrize(
    ("size_bytes", "took_ms", "until", "expected"),
    [
        (60, 100, None, 500),
        (6_554, 10, None, 99),
        (32_768, 10, None, 19),
        (32_768, 0, None, 1),
        (65_536, 10, None, 0),
        (0, 500, None, 0),
        (60, 100, "latest", 0),
    ],
)
async def test_a_source_gathers_until_much_is_there(
    size_bytes: int, took_ms: int, until: StartAt | None, expected: int
) -> None:
    """By the rate of the last fetch. It does not where nothing came, which it waits for anyway, nor where it reads to an end."""
    clock = HandClock()
    log = MemoryLog(MemoryBroker(clock))
    await log.create_topic(IN.topic, 1)
    settings = KafkaSourceSettings(topics=(IN.topic,), start_at="earliest", until=until, gather_ms_max=500)
    source = KafkaConnector(settings, log, LogRawReader(log), clock)
    if size_bytes:
        writer = await log.writer("feeder")
        await (await writer.send(IN, NewRecord(b"x" * size_bytes)))
    split = SplitId("in-0")
    found = await source.found([split], first=True)
    await source.open({split: Offset(0)})
    source.end_at({split: end for split, known in found.items() if (end := known.end) is not None})
    clock.at_ms = took_ms
    await source.fetch(1 << 20, 0)
    assert source.gathers_ms() == expected


class Gathering(StandingBody, ReadingBody):
    """Has one record, then leaves what comes at its source; what the look before a barrier brings is up to the test."""

    place = "$source"

    def __init__(self, blobs: Any, gathers_ms: int) -> None:
        super().__init__(blobs)
        self.input = Input(listed_once=False)
        self.input.looked({}, 0)
        self.input.listed({SplitId("s"): KnownSplit(0, "o", Offset(0))})
        self.input.opened([SplitId("s")])
        self.gathers_ms = gathers_ms
        self.found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def fetch(self, *, waits: bool = True) -> Any:
        self.calls.append("fetch" if waits else "look")
        return Fetched((), (), gathers_ms=self.gathers_ms) if waits else await self.found

    async def take(self, fetched: Any, now_ms: int, monotonic_ms: int) -> list[Any]:
        self.calls.append("take")
        return []

    async def ends(self) -> dict[SplitId, Offset | None]:
        return {}

    def held_rows(self, merge_above: int) -> int:
        return 0

    def end_at(self, until: Any) -> None: ...

    async def note(self, positions: Any) -> None: ...


def gathering(story: Callable[[WorkerStand, Gathering], Awaitable[None]], gathers_ms: int = 60_000) -> None:
    """A source's task that leaves records at their source for so long, when its first checkpoint has been started."""
    bodies: list[Gathering] = []

    def make(context: Any) -> Any:
        bodies.append(Gathering(context.outside.blobs, gathers_ms))
        return bodies[-1]

    async def begun(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1, vertex="source-1"))
        await stand.said(TaskRestored)
        await stand.tell(StartSources(JOB, Generation(1)))
        looks = [] if gathers_ms > 10_000 else ["look"]
        await stand.until(lambda: bodies[0].calls == ["fetch", "take", *looks])
        await stand.tell(StartCheckpoint(JOB, Generation(1), Epoch(1), Epoch(0)))
        await stand.settle()
        assert bodies[0].calls == ["fetch", "take", "look"]
        await story(stand, bodies[0])

    async def main(world: VirtualWorld) -> None:
        async with working(world, make=make) as stand:
            await begun(stand)

    run_virtual(main)


@pytest.mark.parametrize("gathers_ms", [60_000, 10])
def test_C2_what_lies_at_the_source_is_in_front_of_the_barrier(gathers_ms: int) -> None:
    """Where records are left at the source, a checkpoint begins behind those that are there when it starts; a look may be under way."""

    async def story(stand: WorkerStand, body: Gathering) -> None:
        body.found.set_result(Fetched((), ()))
        await stand.until(lambda: "copy" in body.calls)
        assert body.calls.index("take", 2) < body.calls.index("flush")

    gathering(story, gathers_ms)


def test_C2_a_source_that_is_away_keeps_no_barrier_back() -> None:
    """The look fails, and the checkpoint is taken without it."""

    async def story(stand: WorkerStand, body: Gathering) -> None:
        body.found.set_exception(LogUnavailable("away"))
        await stand.until(lambda: "copy" in body.calls)
        assert "take" not in body.calls[2:]

    gathering(story)


def test_C5_a_checkpoint_that_is_aborted_during_the_look_is_not_begun() -> None:
    """What the look brings is taken; the next checkpoint has it."""

    async def story(stand: WorkerStand, body: Gathering) -> None:
        await stand.tell(AbortCheckpoint(JOB, Generation(1), Epoch(1)))
        await stand.settle()
        body.found.set_result(Fetched((), (), gathers_ms=60_000))
        await stand.until(lambda: body.calls[2:] == ["look", "take"])
        await stand.settle()
        assert "copy" not in body.calls

    gathering(story)
