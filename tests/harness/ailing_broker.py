"""A broker that falls ill at a drawn moment, in a drawn way, in the middle of every kind of call: no answer of it is taken for a refusal.

It cannot write (its disk is full), it dies, or it stands still and then dies; after a drawn while a new one takes over.
"""

import asyncio
import random
import resource
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import psutil

from tidemark.services.local.broker import LocalBroker
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import LogError, LogUnavailable, NewRecord, TopicPartition

PLAIN, COMMITTED = TopicPartition("ailing", 0), TopicPartition("ailing", 1)
WAYS: Final = ("full", "killed", "still")
_PAUSE_S: Final = 0.05
RECORD = NewRecord(b"x" * 1_000)


class Calls:
    """Each kind of call, again and again, each with clients of its own; what they said."""

    def __init__(self, log: KafkaLog) -> None:
        self._log = log
        self._made = 0
        self.said: Counter[tuple[str, str]] = Counter()
        self.refusals: list[str] = []

    def kinds(self) -> tuple[Callable[[], Awaitable[object]], ...]:
        """All of them."""
        return (
            self.create,
            self.delete,
            self.describe,
            self.rules,
            self.offsets,
            self.note,
            self.read,
            self.write,
            self.commit,
        )

    async def create(self) -> None:
        self._made += 1
        await self._log.create_topic(f"made-{self._made}", 1)

    async def delete(self) -> None:
        await self._log.delete_topics([f"made-{self._made - 1}"])

    async def describe(self) -> None:
        assert await self._log.describe_topics(["ailing"]), "a topic that is there was said to be away"

    async def rules(self) -> None:
        await self._log.topic_rules(["ailing"])

    async def offsets(self) -> None:
        await self._log.end_offsets([PLAIN, COMMITTED])

    async def note(self) -> None:
        await self._log.note_offsets("group", {PLAIN: Offset(1)})

    async def read(self) -> None:
        reader = await self._log.reader(committed_only=True)
        try:
            await reader.assign({PLAIN: Offset(0), COMMITTED: Offset(0)})
            await reader.fetch(100, 50)
        finally:
            await reader.close()

    async def write(self) -> None:
        writer = await self._log.writer("ailing")
        try:
            await (await writer.send(PLAIN, RECORD))
        finally:
            await writer.close()

    async def commit(self) -> None:
        writer = await self._log.transactional_writer("ailing")
        try:
            transaction = await writer.begin([COMMITTED])
            await transaction.send_batch(COMMITTED, [RECORD])
            await transaction.written()
            await transaction.commit()
        finally:
            await writer.close()

    async def go_on(self, kind: Callable[[], Awaitable[object]], well: asyncio.Event) -> None:
        """Until it has succeeded with the broker well again."""
        name = getattr(kind, "__name__", "")
        while True:
            asked_when_well = well.is_set()
            try:
                await kind()
            except LogUnavailable:
                self.said[name, "unavailable"] += 1
            except LogError as error:
                self.refusals.append(f"{name}: {type(error).__name__}: {error}")
            else:
                self.said[name, "done"] += 1
                if asked_when_well:
                    return
            await asyncio.sleep(_PAUSE_S)


async def story(broker: LocalBroker, seed: int) -> Calls:
    """Each kind of call, until it has succeeded with the broker well again."""
    draw, way = random.Random(seed), WAYS[seed % len(WAYS)]
    log = KafkaLog(KafkaSettings(bootstrap=broker.bootstrap, request_timeout_ms=2_000, delivery_timeout_ms=4_000))
    await log.create_topic("ailing", 2)
    calls, well = Calls(log), asyncio.Event()
    tasks = [asyncio.ensure_future(calls.go_on(kind, well)) for kind in calls.kinds()]
    await asyncio.sleep(draw.uniform(0.2, 2))
    assert broker.pid is not None
    process = psutil.Process(broker.pid)
    if way == "full":
        process.rlimit(psutil.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    elif way == "still":
        process.send_signal(signal.SIGSTOP)
    else:
        process.kill()
    await asyncio.sleep(draw.uniform(0, 4))
    broker.kill()
    await asyncio.sleep(draw.uniform(0, 2))
    await broker.start()
    well.set()
    await asyncio.gather(*tasks)
    await log.close()
    return calls
