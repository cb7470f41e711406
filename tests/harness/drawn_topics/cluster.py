"""What a person does to topics with the tools of a cluster, and producers of every kind."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from aiokafka.structs import TopicPartition

KEPT: Final = {"retention.ms": "-1"}
_POLL_S: Final = 0.05
"""Between two looks, or tries."""


class Cluster:
    """Topics by their names."""

    def __init__(self, bootstrap: str, admin: AIOKafkaAdminClient, consumer: aiokafka.AIOKafkaConsumer) -> None:
        self.bootstrap = bootstrap
        self._admin = admin
        self._consumer = consumer

    async def make(self, topic: str, partitions: int, settings: Mapping[str, str] | None = None) -> None:
        """Make it; one of the name that is being deleted goes first."""
        async with asyncio.timeout(60):
            while True:
                made = NewTopic(topic, partitions, 1, topic_configs={**KEPT, **(settings or {})})
                ((_, code, *_),) = (await self._admin.create_topics([made])).topic_errors
                if not code:
                    break
                if code != TopicAlreadyExistsError.errno or topic in await self._admin.list_topics():
                    raise for_code(code)(topic)
                await asyncio.sleep(_POLL_S)
            while len(await self.partitions(topic)) != partitions:  # noqa: ASYNC110 - it is not told
                await asyncio.sleep(_POLL_S)

    async def drop(self, topic: str) -> None:
        """Delete it, and wait until it is gone."""
        await self._admin.delete_topics([topic])
        async with asyncio.timeout(60):
            while topic in await self._admin.list_topics():  # noqa: ASYNC110 - it is not told
                await asyncio.sleep(_POLL_S)

    async def grow(self, topic: str, partitions: int) -> None:
        """Give it so many partitions in all."""
        await self._admin.create_partitions({topic: NewPartitions(total_count=partitions)})
        async with asyncio.timeout(60):
            while len(await self.partitions(topic)) != partitions:  # noqa: ASYNC110 - it is not told
                await asyncio.sleep(_POLL_S)

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """Those that have a leader."""
        found = [t for t in await self._admin.describe_topics([topic]) if not t["error_code"]]
        return [TopicPartition(topic, p["partition"]) for t in found for p in t["partitions"] if p["leader"] >= 0]

    async def answers(self) -> None:
        """Wait until the broker does, which was killed."""
        async with asyncio.timeout(120):
            while True:
                try:
                    async with cluster(self.bootstrap) as again:
                        await again.names()
                except (KafkaError, OSError):
                    await asyncio.sleep(_POLL_S)
                else:
                    return

    async def names(self) -> list[str]:
        """Of all topics."""
        return sorted(await self._admin.list_topics())

    async def ends(self, topic: str) -> dict[TopicPartition, int]:
        """Where its partitions end."""
        return dict(await self._consumer.end_offsets(await self.partitions(topic)))

    async def clear(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records below these offsets, as retention does."""
        await self._admin.delete_records({at: RecordsToDelete(offset) for at, offset in before.items()})

    async def noted(self, group: str) -> dict[TopicPartition, int]:
        """Where tools see the job."""
        found = await self._admin.list_consumer_group_offsets(group)
        return {at: each.offset for at, each in found.items()}

    async def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """Give it these settings alone."""
        wanted = {**KEPT, **settings}
        await self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, wanted)])


@asynccontextmanager
async def cluster(bootstrap: str) -> AsyncIterator[Cluster]:
    """For the time of a block."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await admin.start()
    await consumer.start()
    try:
        yield Cluster(bootstrap, admin, consumer)
    finally:
        await consumer.stop()
        await admin.close()


class Producers:
    """One plain producer, and transactional ones by their names, which may be left with a transaction open."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._plain: Any = None
        self._open: dict[str, Any] = {}

    async def send(self, topic: str, records: Sequence[tuple[int, Any]]) -> None:
        """Records with their partitions; there when it returns. By a new producer: topics may have other partitions by now."""
        async with self._producer() as out:
            await _sent(out, topic, records)

    async def in_transaction(self, topic: str, records: Sequence[tuple[int, Any]], *, commits: bool) -> None:
        """The same in a transaction of its own."""
        async with self._producer(transactional_id=f"{topic}-once") as out:
            await out.begin_transaction()
            await _sent(out, topic, records)
            await (out.commit_transaction() if commits else out.abort_transaction())

    async def leave_open(self, topic: str, records: Sequence[tuple[int, Any]]) -> None:
        """The same in a transaction that nobody ends."""
        out = aiokafka.AIOKafkaProducer(bootstrap_servers=self._bootstrap, transactional_id=f"{topic}-open")
        await out.start()
        await out.begin_transaction()
        await _sent(out, topic, records)
        self._open[topic] = out

    async def fence(self, topic: str) -> bool:
        """Another takes the identity of the open transaction, which is aborted; the first is refused then. Whether there was one."""
        zombie = self._open.pop(topic, None)
        if zombie is None:
            return False
        async with self._producer(transactional_id=f"{topic}-open"):
            with suppress(KafkaError):
                await zombie.commit_transaction()
                raise AssertionError("a producer that was fenced has committed")
        with suppress(KafkaError):
            await zombie.stop()
        return True

    @asynccontextmanager
    async def _producer(self, **settings: Any) -> AsyncIterator[Any]:
        out = aiokafka.AIOKafkaProducer(bootstrap_servers=self._bootstrap, **settings)
        await out.start()
        try:
            yield out
        finally:
            await out.stop()


async def _sent(out: Any, topic: str, records: Sequence[tuple[int, Any]]) -> None:
    sent = [await out.send(topic, json.dumps(value).encode(), partition=partition) for partition, value in records]
    await asyncio.gather(*sent)
