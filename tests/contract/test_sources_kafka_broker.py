# ruff: noqa: N802 -- a test carries its rule's name
"""The Kafka source over the fast reader, on a real broker."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from tests.contract.sources_worlds import CLOCK, number_of
from tests.harness.opening import open_known, open_splits
from tidemark.services.local.broker import LocalBroker
from tidemark.services.source.connectors.kafka import KafkaConnector, KafkaSourceSettings, split_of
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_raw import RawReader
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.language.stages import StartAt, StartAtTime
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.ports.log import LogUnavailable, NewRecord, OffsetOutOfRange, TopicPartition
from tidemark.shared.ports.source import SourceReplaced

pytestmark = pytest.mark.kafka


class Topic:
    """A topic of the test's own, and sources on it."""

    def __init__(self, bootstrap: str, name: str, stack: AsyncExitStack) -> None:
        # Short, so that an outage shows soon.
        self.settings = KafkaSettings(bootstrap=bootstrap, request_timeout_ms=3_000)
        self.name = name
        self.log = KafkaLog(self.settings)
        self._stack = stack
        stack.push_async_callback(self.log.close)

    async def write(self, partition: int, numbers: Sequence[int]) -> None:
        writer = await self.log.writer("feeder")
        for number in numbers:
            record = NewRecord(json.dumps({"n": number}).encode(), b"k", timestamp_ms=1_600_000_000_000 + number)
            await (await writer.send(TopicPartition(self.name, partition), record))
        await writer.close()

    async def source(self, *, start_at: StartAt = "earliest", until: StartAt | None = None) -> KafkaConnector:
        reader = RawReader(self.settings)
        await reader.start()
        self._stack.push_async_callback(reader.close)
        settings = KafkaSourceSettings(topics=(self.name,), start_at=start_at, until=until)
        return KafkaConnector(settings, self.log, reader, CLOCK)

    def split(self, partition: int) -> SplitId:
        return split_of(TopicPartition(self.name, partition))


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


@pytest.fixture
async def topic(kafka_broker: str, unique_name: Callable[[str], str], stack: AsyncExitStack) -> Topic:
    made = Topic(kafka_broker, unique_name("in"), stack)
    await made.log.create_topic(made.name, 3)
    return made


async def drain(source: KafkaConnector, max_bytes: int = 1 << 20) -> list[RawBatch]:
    """Everything up to where every split is at its end."""
    batches: list[RawBatch] = []
    while not all(status.at_end for status in source.status()):
        batches += await source.fetch(max_bytes, 50)
    return batches


async def fetch_for_ever(source: KafkaConnector) -> None:
    """Ends with the error that fetching raises."""
    while True:
        await source.fetch(1000, 100)


def numbers(batches: Sequence[RawBatch]) -> list[int]:
    return sorted(number_of(value) for batch in batches for value in batch.values.to_pylist())


async def test_a_restart_resumes_exactly(topic: Topic) -> None:
    """Read in small pieces by two tasks, dropped and opened again at the reported positions: each record once, per split in order."""
    for partition in range(3):
        await topic.write(partition, range(partition * 100, partition * 100 + 50))
    first = await topic.source()
    known = await open_splits(first)
    given = [*await first.fetch(100, 500), *await first.fetch(100, 500)]
    positions = {status.split: status.next_position for status in first.status()}
    splits = list(positions)
    for mine in (splits[:1], splits[1:]):
        source = await topic.source()
        await open_known(source, {split: known[split] for split in mine}, positions)
        given += await drain(source, max_bytes=200)
    assert numbers(given) == [p * 100 + i for p in range(3) for i in range(50)]
    for split in splits:
        offsets = [o for batch in given if batch.split == split for o in batch.positions.tolist()]
        assert offsets == list(range(50))


async def test_W4_ends_are_reached_behind_aborted_records_and_not_before_open_ones(topic: Topic) -> None:
    """Control and aborted records move the position to the high watermark; an open transaction keeps the split from its end."""
    await topic.write(0, [1])
    writer = await topic.log.transactional_writer(topic.name)
    aborted = await writer.begin()
    await aborted.send_batch(TopicPartition(topic.name, 0), [NewRecord(b'{"n": 99}')])
    await aborted.abort()
    source = await topic.source()
    await open_splits(source, splits=[topic.split(0)])
    assert numbers(await drain(source)) == [1]
    opened = await writer.begin()
    await opened.send_batch(TopicPartition(topic.name, 0), [NewRecord(b'{"n": 2}')])
    while source.status()[0].at_end:
        await source.fetch(1000, 50)
    assert not source.status()[0].at_end
    await opened.commit()
    assert numbers(await drain(source)) == [2]


async def test_E1_until_latest_ends_the_source(topic: Topic) -> None:
    """Bounded by what was there at open: every split finishes, empty ones too, and what comes later is not read."""
    await topic.write(0, [1, 2])
    await topic.write(1, [3])
    source = await topic.source(until="latest")
    known = await open_splits(source)
    await topic.write(0, [4])
    batches: list[RawBatch] = []
    while not all(status.finished for status in source.status()):
        batches += await source.fetch(1000, 50)
    assert numbers(batches) == [1, 2, 3]
    assert {split: each.end for split, each in known.items()} == {
        topic.split(0): 2,
        topic.split(1): 1,
        topic.split(2): 0,
    }


async def test_start_at_a_time_asks_the_broker(topic: Topic) -> None:
    """`startAt` a time finds the first record at or after it, the end where there is none."""
    await topic.write(0, range(10))
    source = await topic.source(start_at=StartAtTime(1_600_000_000_004))
    await open_splits(source, splits=[topic.split(0), topic.split(1)])
    assert {s.split: s.next_position for s in source.status()} == {topic.split(0): 4, topic.split(1): 0}


async def test_partitions_that_are_added_are_noticed_and_read_from_their_beginning(topic: Topic) -> None:
    """A partition made while the source runs appears in `splits` and, opened, is read whole; the others go on where they were."""
    source = await topic.source(start_at="latest")
    await open_splits(source)
    await topic.write(0, [1])
    assert numbers(await drain(source)) == [1]
    admin = AIOKafkaAdminClient(bootstrap_servers=topic.settings.bootstrap)
    await admin.start()
    await admin.create_partitions({topic.name: NewPartitions(total_count=4)})
    await admin.close()
    while topic.split(3) not in (known := await source.splits()):
        continue
    await topic.write(3, [10, 11])
    await open_splits(source, splits=[topic.split(3)], first=False)
    await topic.write(0, [2])
    assert known[topic.split(3)] == 3
    assert numbers(await drain(source)) == [2, 10, 11]


async def test_I2_a_topic_that_is_made_anew_has_another_id(topic: Topic) -> None:
    """The broker tells it, and the check names both; a partition that is added changes nothing."""
    source = await topic.source()
    known = await open_splits(source)
    admin = AIOKafkaAdminClient(bootstrap_servers=topic.settings.bootstrap)
    await admin.start()
    await admin.create_partitions({topic.name: NewPartitions(total_count=4)})
    await admin.close()
    await source.check(known)
    old = known[topic.split(0)].origin
    assert len(old) == 22
    await topic.log.delete_topics([topic.name])
    await topic.log.create_topic(topic.name, 3)
    with pytest.raises(SourceReplaced, match=f"with id {old}"):
        await source.check(known)
    assert (await topic.log.describe_topics([topic.name, "no-such-topic"])).keys() == {topic.name}


async def test_retention_that_overtakes_a_reader_is_an_error(topic: Topic) -> None:
    """Records deleted before a stopped source came back: refused, with what is there."""
    await topic.write(0, range(10))
    await topic.log.delete_records({TopicPartition(topic.name, 0): Offset(6)})
    source = await topic.source()
    with pytest.raises(OffsetOutOfRange, match=r"offset 2 .* begins at 6"):
        await source.open({topic.split(0): Offset(2)})


async def test_W4_an_outage_is_no_end_and_the_source_goes_on_after_it(
    fresh_broker: LocalBroker, unique_name: Callable[[str], str], stack: AsyncExitStack
) -> None:
    """While the broker is away no split is at its end; when it is back, the same source reads on."""
    topic = Topic(fresh_broker.bootstrap, unique_name("in"), stack)
    await topic.log.create_topic(topic.name, 1)
    await topic.write(0, [1])
    source = await topic.source()
    await open_splits(source, splits=[topic.split(0)])
    assert numbers(await drain(source)) == [1]
    fresh_broker.kill()
    with pytest.raises(LogUnavailable):
        await fetch_for_ever(source)
    assert not source.status()[0].at_end
    await fresh_broker.start()
    await topic.write(0, [2])
    found: list[RawBatch] = []
    while not found:
        try:
            found += await source.fetch(1000, 100)
        except LogUnavailable:
            assert not source.status()[0].at_end
    assert numbers(found) == [2]
