"""The log on Kafka. Readers and writers have connections of their own, so that one's trouble is not another's."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import aiokafka

from tidemark.shared.adapters.kafka_admin import KafkaAdmin
from tidemark.shared.adapters.kafka_client import (
    KAFKA_ERRORS,
    find_moved_brokers,
    quiet_library_log,
    stop_consumer,
    translated,
)
from tidemark.shared.adapters.kafka_reader import KafkaReader, theirs
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.adapters.kafka_transactions import KafkaTransactionalWriter
from tidemark.shared.adapters.kafka_writer import KafkaWriter, Producer
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import TopicFound, TopicPartition, TopicRules


class KafkaGroups:
    """One consumer a group, with partitions assigned by hand, so that it joins nothing and fetches nothing."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumers: dict[str, Any] = {}
        self._opening = asyncio.Lock()

    async def note(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Commit these offsets for the group. LogError."""
        try:
            async with asyncio.timeout(
                self._settings.delivery_timeout_ms / 1000
            ):  # the library looks for a coordinator without end
                consumer = await self._consumer(group, offsets)
                await consumer.commit({theirs(partition): int(offset) for partition, offset in offsets.items()})
        except KAFKA_ERRORS as error:
            await self._drop(group)
            raise translated(error, f"group {group}: noting offsets") from error

    async def _consumer(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> Any:
        async with self._opening:  # several tasks of a processor note at once, and its group has one
            consumer = await self._opened(group)
        wanted = {theirs(partition) for partition in offsets}
        if not wanted <= consumer.assignment():
            wanted |= consumer.assignment()
            consumer.assign(list(wanted))
            consumer.pause(*wanted)
        return consumer

    async def _opened(self, group: str) -> Any:
        consumer = self._consumers.get(group)
        if consumer is None:
            while len(self._consumers) >= self._settings.groups_max:
                await self._drop(next(iter(self._consumers)))
            consumer = aiokafka.AIOKafkaConsumer(
                **self._settings.connection("groups"), group_id=group, enable_auto_commit=False
            )
            find_moved_brokers(consumer._client)  # noqa: SLF001 - the library shows it nowhere
            try:
                await consumer.start()
            except BaseException:
                await stop_consumer(consumer)
                raise
            self._consumers[group] = consumer
        return consumer

    async def _drop(self, group: str) -> None:
        consumer = self._consumers.pop(group, None)
        if consumer is not None:
            await stop_consumer(consumer)

    async def close(self) -> None:
        """Close the consumers of all groups."""
        for group in list(self._consumers):
            await self._drop(group)


_Part = KafkaReader | KafkaWriter | KafkaTransactionalWriter
P = TypeVar("P", KafkaReader, KafkaWriter, KafkaTransactionalWriter)


class KafkaLog:
    """`Log` on a Kafka cluster. Opening connects nothing; the first use does."""

    def __init__(self, settings: KafkaSettings) -> None:
        """Raise Unusable if the certificates that the settings name cannot be read."""
        quiet_library_log(settings.log_kinds_max)
        settings.ssl_context()
        self._settings = settings
        self._admin = KafkaAdmin(settings)
        self._opened: list[_Part] = []
        self._groups: KafkaGroups | None = None

    @property
    def settings(self) -> KafkaSettings:
        """Of the cluster's clients."""
        return self._settings

    async def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Make it, and wait until it has leaders; quiet when it exists with as many partitions."""
        await self._admin.create_topic(topic, partitions, config)

    async def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete those that exist, and wait until they are gone."""
        await self._admin.delete_topics(topics)

    async def list_topics(self) -> dict[str, int]:
        """All topics but the broker's own, with their numbers of partitions."""
        return await self._admin.list_topics()

    async def describe_topics(self, topics: Sequence[str]) -> dict[str, TopicFound]:
        """Those of these topics that exist, with their ids."""
        return await self._admin.describe_topics(topics)

    async def topic_rules(self, topics: Sequence[str]) -> dict[str, TopicRules]:
        """The records that each of these topics refuses; Kafka's defaults where we may not ask."""
        return await self._admin.topic_rules(topics)

    async def may_not(
        self,
        *,
        reads: Collection[str] = (),
        writes: Collection[str] = (),
        creates: Collection[str] = (),
        identities: Collection[str] = (),
    ) -> list[str]:
        """The rights to these topics and transactional ids that this client lacks; asking changes nothing."""
        return await self._admin.may_not(reads, writes, creates, identities)

    async def begin_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The first offset that is still there."""
        return await self._admin.offsets(partitions, end=False)

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The high watermark, open transactions included."""
        return await self._admin.offsets(partitions, end=True)

    async def note_offsets(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Let a group without members stand at these offsets, for tools that show lag."""
        if self._groups is None:
            self._groups = KafkaGroups(self._settings)
        await self._groups.note(group, offsets)

    async def delete_records(self, before: Mapping[TopicPartition, Offset]) -> None:
        """Let go of records below these offsets."""
        await self._admin.delete_records(before)

    async def reader(self, *, committed_only: bool = False, follows: bool = False) -> KafkaReader:
        """A connected reader with nothing assigned."""
        reader = KafkaReader(self._settings, committed_only=committed_only, follows=follows)
        await reader.start()
        return self._keep(reader)

    async def writer(self, client: str) -> KafkaWriter:
        """A connected writer; `client` is in its client id."""
        producer = Producer(self._settings, f"writer {client}")
        await producer.start()
        return self._keep(KafkaWriter(producer))

    async def transactional_writer(self, identity: str) -> KafkaTransactionalWriter:
        """Take the identity: fences earlier holders, ends transactions that they left open."""
        producer = Producer(self._settings, f"transactional writer {identity}", identity=identity)
        await producer.start()
        return self._keep(KafkaTransactionalWriter(producer))

    async def close(self) -> None:
        """Let go of everything that was opened here."""
        for part in self._opened:
            await part.close()
        self._opened.clear()
        if self._groups is not None:
            await self._groups.close()
        await self._admin.close()

    def _keep(self, part: P) -> P:
        """Remember a part that is to be closed, and forget those that are closed."""
        self._opened = [opened for opened in self._opened if not opened.closed]
        self._opened.append(part)
        return part
