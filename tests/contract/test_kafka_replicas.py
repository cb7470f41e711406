"""Replicas of the topics that are made here: as many as the cluster gives, also while some of its brokers are away."""

from pathlib import Path

import pytest

from tests.harness.brokers.cluster import brokers
from tidemark.services.local.broker import LocalBroker
from tidemark.services.local.broker_settings import BrokerSettings
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.ports.log import LogUnavailable

pytestmark = pytest.mark.kafka


async def test_a_topic_waits_for_brokers_that_have_not_come_yet(tmp_path: Path) -> None:
    """The first broker of a new cluster knows no other: a topic that is made then would have one replica for ever."""
    broker = LocalBroker(BrokerSettings(data_dir=tmp_path, overrides={"default.replication.factor": "3"}))
    log = KafkaLog(KafkaSettings(bootstrap=await broker.start()))
    with pytest.raises(LogUnavailable, match=r"creating topic early: the brokers cannot do it now .*try again"):
        await log.create_topic("early", 1)
    await log.close()
    broker.kill()


@pytest.mark.long  # three brokers take half a minute to start
async def test_a_broker_that_is_away_gets_replicas(tmp_path: Path) -> None:
    """While one of three is away a topic gets three, of which two have to have what is acknowledged."""
    async with brokers(tmp_path, {}) as three:
        log = KafkaLog(KafkaSettings(bootstrap=three.bootstrap))
        three.nodes[2].kill()
        await three.gone(2)
        await log.create_topic("whole", 1)
        await log.close()
        (part,) = await three.asking.parts("whole")
        assert sorted(part.replicas) == [1, 2, 3]
        assert (await three.asking.settings("whole"))["min.insync.replicas"] == "2"
