# ruff: noqa: N802 -- a test carries its rule's name
"""The Kafka sink on a real broker: what a log in memory could only imitate (protocol, S3)."""

import contextlib
import itertools
import json
import re
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError

from tests.contract.sinks_targets import KafkaWorld, expression
from tests.harness.clusters.broker import time_limit
from tidemark.services.library.release_world import Task, World, batch_of, crash_after, haunt
from tidemark.services.sink.connectors.kafkamarkers import MarkerReading, last_marker, markers_of
from tidemark.services.sink.connectors.kafkarecords import Takes
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Epoch, JobId, VertexId
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import TS
from tidemark.shared.operators.batches import batch_of as documents_batch
from tidemark.shared.operators.keygroups import key_group
from tidemark.shared.ports.log import LogError, LogRecord
from tidemark.shared.ports.sink import Identity, TargetRefused

pytestmark = pytest.mark.kafka


@pytest.fixture
async def log(kafka_broker: str) -> AsyncIterator[KafkaLog]:
    opened = KafkaLog(KafkaSettings(bootstrap=kafka_broker))
    yield opened
    await opened.close()


@pytest.fixture
def world(log: KafkaLog) -> World:
    """A topic and a job of the test's own."""
    job = JobId(uuid.uuid4().hex)
    target = KafkaWorld(log, topic=f"out-{job}")
    target.fetch_ms, target.silent_max = 100, 5
    return World(target, identity=Identity(job, VertexId("emit"), 0))


@pytest.mark.parametrize(
    ("first", "second"), list(itertools.product(("stage", "commit"), ("accept", "commit", "release")))
)
async def test_exactly_once_with_zombies_on_a_real_broker(world: World, first: str, second: str) -> None:
    """Crashes between the phases, with zombies going on, leave every committed row visible once."""
    old = Task(world)
    await old.start()
    await old.epoch()
    await crash_after(old, first)
    middle = Task(world)
    await middle.start()
    await haunt(old)
    await crash_after(middle, second)
    new = Task(world)
    await new.start()
    await world.complete()
    await haunt(middle)
    newest = Task(world)
    await newest.start()
    await newest.epoch()
    await world.complete()


async def test_S3_a_holder_that_died_in_a_transaction_leaves_nothing_visible(world: World, log: KafkaLog) -> None:
    """Records of a transaction that was open at the crash are aborted by the next holder, which writes them itself."""
    old = Task(world)
    await old.start()
    await old.accept()
    await old.stage()
    await old.commit()
    sink: Any = old.sink
    await sink._writing.join()
    transaction = sink._ahead.transaction
    await world.check()
    new = Task(world)
    await new.start()
    await world.complete()
    with pytest.raises(
        LogError
    ):  # it is fenced, or ended before: what is written ahead is aborted where its commit takes long
        await transaction.commit()
    await world.complete()
    marker = await last_marker(log, markers_of(world.identity), MarkerReading())
    assert marker is not None
    assert marker.released == 1


async def test_many_parts_of_many_rows_come_out_whole_and_keyed(world: World) -> None:
    """An epoch of 20,000 rows in parts of 3,000 is complete, each record at the partition of its key."""
    target = world.target
    assert isinstance(target, KafkaWorld)
    target.settings = target.settings.__class__(part_records_max=3000)
    target.takes = Takes(new_topic_partitions=3)
    sink = target.sink()
    await sink.open(world.identity, Epoch(0))
    for start in range(0, 20_000, 2_000):
        await sink.accept(batch_of(range(start, start + 2_000)))
    world.commit(Epoch(1), await sink.stage(Epoch(1), Epoch(0)), 20_000)
    await sink.release(*world.commits[0])
    records = await target.records()
    assert sorted(json.loads(record.value or b"")["id"] for record in records) == list(range(20_000))
    assert all(record.partition == key_group(record.key or b"", 3) for record in records)


async def test_S3_S6_a_record_that_the_broker_refuses_at_release_is_a_permanent_refusal(
    world: World, log: KafkaLog, kafka_broker: str
) -> None:
    """A topic whose limit was lowered since the rows were taken: TargetRefused with commit, as what is written ahead was."""
    target = world.target
    assert isinstance(target, KafkaWorld)
    task = Task(world)
    await task.start()
    await task.accept()
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker)
    await admin.start()
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, target.topic, {"max.message.bytes": "100"})])
    await admin.close()
    await task.stage()
    await task.commit()
    with pytest.raises(TargetRefused, match="commit 1"):
        await task.release()
    assert await target.visible() == []


async def test_S6_what_a_broker_refuses_at_release_is_tried_by_the_rules_of_now_and_named(
    world: World, log: KafkaLog, kafka_broker: str
) -> None:
    """A limit was lowered since: batches are divided anew by it; one record that is too large for it is named, with topic and bytes."""
    target = world.target
    assert isinstance(target, KafkaWorld)
    await log.create_topic(name := f"lowered-{world.identity.job}", 1)
    target.stage = replace(target.stage, topic=expression(name))
    target.settings = replace(
        target.settings, ahead_ms_max=1
    )  # nothing is written ahead behind a release that took longer
    sink = target.sink()
    await sink.open(world.identity, Epoch(0))
    for epoch, sizes in enumerate(([10], [300] * 50, [10, 3_000, 10]), 1):
        assert not await sink.accept(documents_batch([{"pad": token_hex(size)} for size in sizes]))
        world.commit(Epoch(epoch), await sink.stage(Epoch(epoch), Epoch(epoch - 1)), len(sizes))
        await (
            log.list_topics()
        )  # longer than that: so the next one is not written ahead, by rules that are looked up anew
        if epoch == 3:
            with pytest.raises(
                TargetRefused, match=rf"commit 3 .*{name} partition 0.*; part 1, record 1: .* has about 61\d\d bytes"
            ):
                await sink.release(*world.commits[-1])
            continue
        await sink.release(*world.commits[-1])
        if epoch == 1:
            await _lowered(kafka_broker, name)
    rows = [json.loads(record.value or b"") for record in await target.records(name)]
    assert sum("pad" in row for row in rows) == 51


async def _lowered(kafka_broker: str, topic: str) -> None:
    """The topic takes 1,000 bytes at the most, and its partitions know it."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker)
    await admin.start()
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "1000"})])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=kafka_broker) as producer:
        with contextlib.suppress(MessageSizeTooLargeError):
            while True:
                await producer.send_and_wait(topic, json.dumps({"probe": token_hex(1_000)}).encode())


async def released(world: World, batch: pa.RecordBatch, topic: str) -> tuple[list[str], list[LogRecord]]:
    """Release rows as one epoch into a topic: why rows were refused before, and what readers see."""
    target = world.target
    assert isinstance(target, KafkaWorld)
    target.stage = replace(target.stage, topic=expression(topic), key=expression("$key"))
    target.settings = replace(target.settings, part_records_max=1000)
    sink = target.sink()
    await sink.open(world.identity, Epoch(0))
    rejected = await sink.accept(batch)
    world.commit(Epoch(1), await sink.stage(Epoch(1), Epoch(0)), 0)
    await sink.release(*world.commits[0])
    return [f"{r.row}: {r.reason}" for r in rejected], await target.records(topic)


async def test_S6_a_time_that_the_topic_refuses_costs_no_record(world: World, log: KafkaLog) -> None:
    """Far ahead of the broker's clock, or further behind than the topic takes: written all the same, at the time of the release."""
    now_ms = int(time.time() * 1000)
    times = [now_ms, now_ms + 7_200_000, now_ms - 90_000_000, 2**62]
    batch = pa.RecordBatch.from_pydict({TS: pa.array(times), "id": pa.array(range(4))})
    name = f"times-{world.identity.job}"
    await log.create_topic(name, 1, {time_limit(): "86400000"})
    rejected, records = await released(world, batch, name)
    assert not rejected
    assert [json.loads(record.value or b"")["id"] for record in records] == [0, 1, 2, 3]
    assert records[0].timestamp_ms == now_ms
    assert all(abs(record.timestamp_ms - now_ms) < 3_600_000 for record in records)


async def test_S6_a_compacted_topic_gets_no_record_without_a_key(world: World, log: KafkaLog) -> None:
    """The broker would refuse the transaction: the row is told before staging, and the others are written."""
    name = f"compacted-{world.identity.job}"
    await log.create_topic(name, 1, {"cleanup.policy": "compact"})
    rejected, records = await released(world, documents_batch([{"key": "a"}, {"n": 1}, {"key": "b"}]), name)
    assert rejected == [
        f"1: $emit: topic {name} is compacted, and the record has no key; set $emit.config.key, or the topic's cleanup.policy to delete"
    ]
    assert [record.key for record in records] == [b'"a"', b'"b"']


async def test_S6_a_topic_with_a_limit_of_its_own_takes_what_fits(world: World, log: KafkaLog) -> None:
    """Records are sent in batches that the topic takes; one that is too large for it alone is told before staging."""
    name = f"small-{world.identity.job}"
    await log.create_topic(name, 2, {"max.message.bytes": "1000"})
    documents: list[Document] = [{"key": f"k{n % 3}", "n": n} for n in range(40)]
    rejected, records = await released(world, documents_batch([*documents, {"key": "k", "n": "x" * 1000}]), name)
    assert len(rejected) == 1
    assert "max.message.bytes is 1000" in rejected[0]
    assert sorted(json.loads(record.value or b"")["n"] for record in records) == list(range(40))


@pytest.mark.parametrize(
    ("there", "topic", "finding"),
    [
        ("a.b", "a_b", "cannot be made: .*collides"),
        ("x", "__consumer_offsets", "is an internal topic"),
        ("x", "__share_group_state", "is an internal topic"),
    ],
)
async def test_S6_a_topic_that_the_cluster_refuses_costs_its_rows_alone(
    world: World, log: KafkaLog, kafka_broker: str, there: str, topic: str, finding: str
) -> None:
    """A name that an expression gave ends no pipeline: its rows are told before staging."""
    target = world.target
    assert isinstance(target, KafkaWorld)
    job = str(world.identity.job)
    await log.create_topic(f"{there}{job}", 1)
    bad = topic if topic.startswith("__") else f"{topic}{job}"
    target.stage = replace(target.stage, topic=expression("$topic"), key=None)
    sink = target.sink()
    await sink.open(world.identity, Epoch(0))
    rejected = await sink.accept(documents_batch([{"topic": f"{there}{job}"}, {"topic": bad}]))
    assert [r.row for r in rejected] == [1]
    assert re.search(finding, rejected[0].reason)
    world.commit(Epoch(1), await sink.stage(Epoch(1), Epoch(0)), 0)
    await sink.release(*world.commits[0])
    assert len(await target.records(f"{there}{job}")) == 1
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker)
    await admin.start()
    assert "__share_group_state" not in await admin.list_topics(), "nobody reads by shares here: the sink has made it"
    await admin.close()
