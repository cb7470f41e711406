"""Brokers for the clients: one of today, and one that keeps the formats of before 0.11; topics on them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.harness.clients.drawing import PARTITIONS, Drawn
from tests.harness.clients.running import Row, consumed, produce
from tests.harness.clusters.broker import AnyBroker
from tidemark.services.local.broker_settings import BrokerSettings
from tidemark.services.local.jars import KAFKA_VERSION
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.ports.log import TopicPartition

OLD: Final = "2.8.2"
"""The last version that keeps message formats below 2."""
_QUICK: Final = {
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


@dataclass(frozen=True, slots=True)
class Brokers:
    """Addresses, and where the clients are built."""

    built: Path
    new: str
    old: str

    def of(self, drawn: Drawn) -> str:
        """The address of the one that it needs."""
        return self.old if drawn.old else self.new

    async def filled(self, drawn: Drawn, topic: str) -> list[int]:
        """The topic with what the client wrote; the ends of its partitions. ClientFailed."""
        address = self.of(drawn)
        await make(address, topic, drawn.topic)
        await produce(drawn, self.built, address, topic)
        return await ends_of(address, topic)

    async def read(self, drawn: Drawn, topic: str, ends: list[int], reader: str = "java") -> list[Row]:
        """What another client reads there."""
        return await consumed(reader, self.built, self.of(drawn), topic, ends)


async def make(address: str, topic: str, settings: Mapping[str, str], partitions: int = PARTITIONS) -> None:
    """A topic with these settings."""
    log = KafkaLog(KafkaSettings(bootstrap=address))
    try:
        await log.create_topic(topic, partitions, dict(settings))
    finally:
        await log.close()


async def ends_of(address: str, topic: str, partitions: int = PARTITIONS) -> list[int]:
    """The high watermarks."""
    log = KafkaLog(KafkaSettings(bootstrap=address))
    places = [TopicPartition(topic, partition) for partition in range(partitions)]
    try:
        found = await log.end_offsets(places)
    finally:
        await log.close()
    return [int(found[place]) for place in places]


@asynccontextmanager
async def standing(folder: Path, built: Path) -> AsyncIterator[Brokers]:
    """Both brokers, gone at the end."""
    made = []
    try:
        for version in (KAFKA_VERSION, OLD):
            (folder / version).mkdir()
            broker = AnyBroker(version, BrokerSettings(data_dir=folder / version, overrides=_QUICK))
            made.append((broker, await broker.start()))
        yield Brokers(built, made[0][1], made[1][1])
    finally:
        for broker, _ in made:
            broker.end()
