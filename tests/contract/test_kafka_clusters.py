"""Clusters whose defaults are not ours, and brokers of an old version: no topic is lost, brought back or said to be away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from aiokafka import errors

from tests.harness.clusters.broker import AnyBroker
from tidemark.services.local.broker import LocalBroker
from tidemark.services.local.broker_settings import BrokerSettings
from tidemark.shared.adapters.kafka_client import translated
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import LogError, LogUnavailable, NewRecord, TopicPartition
from tidemark.shared.runtime.topics import EDGE_CONFIG, KEPT, LATEST_CONFIG, TOLD_CONFIG, Topics

WITH_ZOOKEEPER = "2.8.2"
_LOST_SOON = {"auto.create.topics.enable": "true", "num.partitions": "3", "transaction.max.timeout.ms": "20000"}


@pytest.mark.parametrize("config", [KEPT, EDGE_CONFIG, TOLD_CONFIG, LATEST_CONFIG, *Topics().plain().values()], ids=str)
def test_no_default_of_a_cluster_loses_records_of_a_topic_of_ours(config: dict[str, str]) -> None:
    """Each topic says by itself what deletes its records."""
    assert config["cleanup.policy"] in ("delete", "compact")
    assert config["cleanup.policy"] == "compact" or {"retention.ms", "retention.bytes"} <= config.keys()


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (errors.InvalidTransactionTimeout(), "transaction.max.timeout.ms"),
        (errors.TopicAuthorizationFailedError(), "rights to topics"),
        (errors.MessageSizeTooLargeError(), "message_bytes_max"),
        (errors.IncompatibleBrokerVersion("EndTxn"), "docs/kafka.md"),
        (NotImplementedError("ProduceRequest v20"), "docs/kafka.md"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_refusal_that_the_cluster_decides_names_the_remedy(error: BaseException, remedy: str) -> None:
    """Not the broker's log, where the words of the error say nothing to who reads them."""
    found = translated(error, "writing")
    assert not isinstance(found, LogUnavailable)
    assert remedy in str(found)
    assert "broker's log" not in str(found)


@pytest.fixture
async def making(tmp_path: Path) -> AsyncIterator[KafkaLog]:
    """Of a broker that makes each topic that is asked for, and that takes no long transaction."""
    broker = LocalBroker(BrokerSettings(data_dir=tmp_path, overrides=_LOST_SOON))
    log = KafkaLog(KafkaSettings(bootstrap=await broker.start()))
    yield log
    await log.close()
    broker.kill()


@pytest.mark.kafka
async def test_what_a_cluster_makes_or_refuses_by_its_settings(making: KafkaLog) -> None:
    """A topic that is deleted while a client has it stays deleted; a transaction that may last too long is refused, and told how long."""
    at = TopicPartition("deleted", 0)
    await making.create_topic(at.topic, 1)
    reader, writer = await making.reader(), await making.writer("test")
    await reader.assign({at: Offset(0)})
    await reader.fetch(1, 100)
    await making.delete_topics([at.topic])
    for client in (reader.client, writer._producer.raw.client):
        await client.add_topic(at.topic)
        await client.force_metadata_update()
    assert at.topic not in await making.list_topics()
    await reader.close()
    await writer.close()
    with pytest.raises(LogError, match=r"transaction\.max\.timeout\.ms") as raised:
        await making.transactional_writer("tidemark.long")
    assert not isinstance(raised.value, LogUnavailable)


@pytest.mark.kafka
async def test_a_refusal_is_no_outage_for_what_is_asked_beside_it(
    kafka_broker: str, unique_name: Callable[[str], str]
) -> None:
    """A processor that may read one of two topics fails by that; where the other's question seemed to be lost, it was tried for ever."""
    log, name = KafkaLog(KafkaSettings(bootstrap=kafka_broker)), unique_name("beside")
    await log.create_topic(name, 1)
    for _ in range(20):
        asked = log.describe_topics(["no topic's name"]), *(log.describe_topics([name]) for _ in range(5))
        refused, *others = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(refused, LogError)
        assert not isinstance(refused, LogUnavailable)
        assert all(isinstance(found, dict) and name in found for found in others), others
    await log.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _old(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AnyBroker]:
    broker = AnyBroker(WITH_ZOOKEEPER, BrokerSettings(data_dir=tmp_path_factory.mktemp("old")))
    await broker.start()
    yield broker
    broker.end()


@pytest.fixture
def old(_old: AnyBroker) -> AnyBroker:
    """Not async: the broker starts in a loop of its own."""
    return _old


@pytest.mark.kafka
async def test_a_topic_that_is_just_being_deleted_is_made(old: AnyBroker, unique_name: Callable[[str], str]) -> None:
    """With ZooKeeper a topic is no longer shown, and said to exist, while it is being deleted."""
    log = KafkaLog(KafkaSettings(bootstrap=old.bootstrap))
    name = unique_name("anew")
    for partitions in (1, 2, 3):
        await log.create_topic(name, partitions)
        assert (await log.describe_topics([name]))[name].partitions == partitions
        await log.delete_topics([name])
    await log.close()


@pytest.mark.kafka
async def test_too_few_replicas_in_sync_are_told(old: AnyBroker, unique_name: Callable[[str], str]) -> None:
    """Not only that it took too long: topic, partition, what the brokers answer, and what to do."""
    settings = KafkaSettings(bootstrap=old.bootstrap, request_timeout_ms=2_000, delivery_timeout_ms=30_000)
    log, at = KafkaLog(settings), TopicPartition(unique_name("few"), 0)
    await KafkaLog(KafkaSettings(bootstrap=old.bootstrap)).create_topic(at.topic, 1, {"min.insync.replicas": "2"})
    told = rf"topic {at.topic} partition 0: NotEnoughReplicas.*min\.insync\.replicas of the topic: bring brokers back"
    writer = await log.transactional_writer("tidemark.few")
    transaction = await writer.begin([at])
    await transaction.send_batch(at, [NewRecord(b"one")])
    with pytest.raises(LogUnavailable, match=told):
        await transaction.written()
    plain = await KafkaLog(replace(settings, delivery_timeout_ms=3_000)).writer("few")
    with pytest.raises(LogUnavailable, match=told):
        await (await plain.send(at, NewRecord(b"one")))
    await plain.close()
    await log.close()


@pytest.mark.kafka
@pytest.mark.long
async def test_no_topic_is_said_to_be_away_while_an_old_broker_starts(
    old: AnyBroker, unique_name: Callable[[str], str]
) -> None:
    """With ZooKeeper a broker answers before it knows its topics: what asks meanwhile is told to wait."""
    log = KafkaLog(KafkaSettings(bootstrap=old.bootstrap, topic_wait_ms=0))
    name = unique_name("there")
    await log.create_topic(name, 2)
    for _ in range(2):
        old.kill()
        starting = asyncio.ensure_future(old.start())
        known = 0
        while known < 3:  # once for each kind of answer, after the broker has come
            if starting.done():
                starting.result()
            try:
                assert (await log.describe_topics([name]))[name].partitions == 2
                assert name in await log.list_topics()
                await log.topic_rules([name])
                await log.end_offsets([TopicPartition(name, 0)])
                known += 1
            except LogUnavailable:
                known = 0
        await starting
    await log.close()
