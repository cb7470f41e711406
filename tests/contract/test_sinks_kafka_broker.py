# ruff: noqa: N802 -- a test carries its rule's name
"""The Kafka sink on a real broker: what a log in memory could only imitate (protocol, S3)."""

import itertools
import json
import uuid
from collections.abc import AsyncIterator

import pytest

from services.sink.connectors.kafkamarkers import MarkerReading, last_marker, markers_of
from services.sink.connectors.kafkarecords import Takes
from services.sink.connectors.staging import decode_handle
from shared.adapters.kafka_log import KafkaLog
from shared.adapters.kafka_settings import KafkaSettings
from shared.model.ids import Epoch, JobId, VertexId
from shared.operators.keygroups import key_group
from shared.ports.log import Fenced
from shared.ports.sink import Identity, TargetRefused
from tests.contract.sinks_support import Task, World, batch_of
from tests.contract.sinks_targets import KafkaWorld
from tests.contract.test_sinks_contract import crash_after, haunt

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
    writer = old.sink._writer  # type: ignore[attr-defined]
    transaction = await writer.begin()
    row, staged = world.commits[0]
    part = decode_handle(staged)[0]
    for partition, records in (await old.sink._records(row, part, 1, await log.list_topics())).items():  # type: ignore[attr-defined]
        for some in records:
            await transaction.send_batch(partition, some)
    await world.check()
    new = Task(world)
    await new.start()
    await world.complete()
    with pytest.raises(Fenced):
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
    world: World, log: KafkaLog
) -> None:
    """A topic whose own limit is below the sink's refuses at release: TargetRefused with commit, and nothing is visible."""
    target = world.target
    assert isinstance(target, KafkaWorld)
    await log.create_topic(target.topic, target.partitions, {"max.message.bytes": "100"})
    task = Task(world)
    await task.start()
    await task.accept()
    await task.stage()
    await task.commit()
    with pytest.raises(TargetRefused, match="commit 1"):
        await task.release()
    assert await target.visible() == []
