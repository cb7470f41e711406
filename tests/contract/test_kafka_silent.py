"""Connections that have died without a word, as behind a proxy or a firewall that forgot them: they are found out together."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness.chaos.lanes import Lanes
from tests.harness.worlds.ways import CLEAR, Way, Weather
from tidemark.services.local.broker import LocalBroker
from tidemark.services.local.broker_settings import LOOPBACK, BrokerSettings
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.ports.log import LogUnavailable, NewRecord, TopicPartition

pytestmark = pytest.mark.kafka
AT = TopicPartition("t", 0)


@pytest.fixture
async def lanes() -> AsyncIterator[Lanes]:
    made = Lanes(["here"], Way)
    await made.open()
    yield made
    made.close()


@pytest.fixture
async def log(tmp_path: Path, lanes: Lanes) -> AsyncIterator[KafkaLog]:
    """By a way to a broker of its own."""
    broker = LocalBroker(
        BrokerSettings(
            data_dir=tmp_path, port=lanes.main, controller_port=lanes.controller, overrides=lanes.properties()
        )
    )
    await broker.start()
    opened = KafkaLog(KafkaSettings(bootstrap=f"{LOOPBACK}:{lanes.of('here').port}", request_timeout_ms=2_000))
    await opened.create_topic(AT.topic, 1)
    yield opened
    await opened.close()
    broker.kill()


async def test_what_one_connection_finds_out_the_others_need_not(log: KafkaLog, lanes: Lanes) -> None:
    """The first call waits for an answer in vain; those that have other connections then use none that has died, too."""
    way: Way = lanes.of("here")
    writer = await log.writer("w")
    await (await writer.send(AT, NewRecord(b"before")))
    await log.end_offsets([AT])
    assert await log.list_topics() == {AT.topic: 1}
    way.become(Weather(swallows=True))
    with pytest.raises(LogUnavailable):
        await log.end_offsets([AT])
    way.become(CLEAR)
    lost_bytes = way.lost_bytes
    assert await log.list_topics() == {AT.topic: 1}, "on a connection that had died, too"
    assert await (await writer.send(AT, NewRecord(b"after"))) == 1
    assert (await log.end_offsets([AT]))[AT] == 2
    assert way.lost_bytes == lost_bytes, "nobody spoke on a connection that had died"
    await writer.close()
