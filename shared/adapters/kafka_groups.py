"""Offsets of consumer groups that have no members: written so that lag tools work, and read back by nobody here."""

from collections.abc import Mapping
from typing import Any

import aiokafka

from tidemark.shared.adapters.kafka_client import KAFKA_ERRORS, stop_consumer, translated
from tidemark.shared.adapters.kafka_reader import theirs
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import TopicPartition


class KafkaGroups:
    """One consumer a group, with partitions assigned by hand, so that it joins nothing and fetches nothing."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumers: dict[str, Any] = {}

    async def note(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Commit these offsets for the group. LogError."""
        try:
            consumer = await self._consumer(group, offsets)
            await consumer.commit({theirs(partition): int(offset) for partition, offset in offsets.items()})
        except KAFKA_ERRORS as error:
            await self._drop(group)
            raise translated(error, f"group {group}: noting offsets") from error

    async def _consumer(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> Any:
        consumer = self._consumers.get(group)
        if consumer is None:
            while len(self._consumers) >= self._settings.groups_max:
                await self._drop(next(iter(self._consumers)))
            consumer = aiokafka.AIOKafkaConsumer(
                **self._settings.connection("groups"), group_id=group, enable_auto_commit=False
            )
            try:
                await consumer.start()
            except BaseException:
                await stop_consumer(consumer)
                raise
            self._consumers[group] = consumer
        wanted = {theirs(partition) for partition in offsets}
        if not wanted <= consumer.assignment():
            wanted |= consumer.assignment()
            consumer.assign(list(wanted))
            consumer.pause(*wanted)
        return consumer

    async def _drop(self, group: str) -> None:
        consumer = self._consumers.pop(group, None)
        if consumer is not None:
            await stop_consumer(consumer)

    async def close(self) -> None:
        """Let go."""
        for group in list(self._consumers):
            await self._drop(group)
