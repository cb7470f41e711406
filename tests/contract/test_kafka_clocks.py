"""Clocks of writers and brokers that are further apart than brokers allow: nothing stands still, nothing fails for good."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import LogUnavailable, NewRecord, TopicPartition
from tidemark.shared.runtime.topics import EDGE_CONFIG, LATEST_CONFIG, TOLD_CONFIG, Topics

pytestmark = pytest.mark.kafka
DAY_MS = 86_400_000


@pytest.fixture
async def log(kafka_broker: str) -> AsyncIterator[KafkaLog]:
    opened = KafkaLog(KafkaSettings(bootstrap=kafka_broker))
    yield opened
    await opened.close()


async def written(log: KafkaLog, at: TopicPartition, time_ms: int) -> Offset:
    """As by a process whose clock says so."""
    writer = await log.writer("w")
    try:
        return await (await writer.send(at, NewRecord(b"value", b"key", timestamp_ms=time_ms)))
    finally:
        await writer.close()


OWN = {
    "edge": EDGE_CONFIG,
    "told": TOLD_CONFIG,
    "latest": LATEST_CONFIG,
    "samples": Topics().plain()["tidemark.samples"],
}


@pytest.mark.parametrize("name", OWN)
async def test_topics_of_an_installation_take_records_whatever_their_writers_clock_says(
    log: KafkaLog, name: str
) -> None:
    """A machine with a flat battery, or with a year typed wrong; a reader sees the broker's time."""
    at, now_ms = TopicPartition(f"t-{uuid.uuid4().hex}", 0), SystemClock().now_ms()
    await log.create_topic(at.topic, 1, OWN[name])
    for days in (-20_000, 400):
        await written(log, at, now_ms + days * DAY_MS)
    reader = await log.reader()
    try:
        await reader.assign({at: Offset(0)})
        async with asyncio.timeout(30):
            while not (found := await reader.fetch(1, 500)):
                pass
    finally:
        await reader.close()
    assert all(abs(record.timestamp_ms - now_ms) < DAY_MS for record in found)


async def test_topics_of_others_are_an_outage_until_the_clocks_agree(log: KafkaLog) -> None:
    """The words name both clocks and the setting; the same writer's next record, with the right time, is taken."""
    at, now_ms = TopicPartition(f"t-{uuid.uuid4().hex}", 0), SystemClock().now_ms()
    await log.create_topic(at.topic, 1)
    with pytest.raises(
        LogUnavailable, match=r"clock of this machine and the broker's .*message\.timestamp\.after\.max\.ms"
    ):
        await written(log, at, now_ms + DAY_MS)
    assert await written(log, at, now_ms) == 0
