# ruff: noqa: N802 -- a test carries its rule's name
"""The Kafka source's own promises: where it starts and ends, when it is idle, what it refuses (W4, E1, retention)."""

from collections.abc import Mapping

import pytest

from tests.contract.sources_worlds import CLOCK, KafkaLanes, number_of
from tests.harness.opening import open_known, open_splits
from tests.harness.raw_log import LogRawReader
from tidemark.services.source.connectors.kafka import KafkaConnector, KafkaSourceSettings, partition_of, split_of
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.faults import Faults
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.language.stages import StartAt, StartAtOffsets, StartAtTime
from tidemark.shared.model.failures import is_lasting
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.ports.log import LogUnavailable, NewRecord, OffsetOutOfRange, TopicPartition
from tidemark.shared.ports.source import SourceMissing

IN_0 = split_of(TopicPartition("in", 0))


class HandClock(SystemClock):
    """Monotonic time stands still unless the test moves it."""

    def __init__(self) -> None:
        self.at_ms = 0

    def monotonic_ms(self) -> int:
        return self.at_ms


async def lane(numbers: list[int], **options: StartAt) -> KafkaLanes:
    """One partition with these records."""
    world = KafkaLanes(**options)
    await world.add(0, numbers)
    return world


async def read(source: KafkaConnector, fetches: int = 3) -> list[int]:
    batches = [batch for _ in range(fetches) for batch in await source.fetch(1 << 20, 1)]
    return [number_of(value) for batch in batches for value in batch.values.to_pylist()]


async def start(world: KafkaLanes, positions: Mapping[SplitId, Offset] | None = None) -> KafkaConnector:
    source = world.source()
    await open_splits(source, positions)
    return source


def position(source: KafkaConnector, split: SplitId = IN_0) -> int:
    return {status.split: status.next_position for status in source.status()}[split]


@pytest.mark.parametrize(
    ("start_at", "first"),
    [("earliest", 0), ("latest", 5), (StartAtOffsets(((0, 3),)), 3), (StartAtOffsets(((7, 3),)), 0)],
)
async def test_start_at_is_told_before_anything_is_read(start_at: StartAt, first: int) -> None:
    """The position that `startAt` chose is told, and reading begins there."""
    world = await lane([0, 1, 2, 3, 4], start_at=start_at)
    source = await start(world)
    assert position(source) == first
    await world.add(0, [5])
    assert await read(source) == list(range(first, 6))


async def test_start_at_a_time_begins_with_the_first_record_not_before_it() -> None:
    """`startAt` a time finds the first record whose timestamp is at or after it; the end if there is none."""
    for time_ms, first in ((0, 0), (1_500, 2), (2_000, 2), (9_000, 4)):
        world = KafkaLanes(start_at=StartAtTime(time_ms))
        await world.log.create_topic("in", 1)
        writer = await world.log.writer("feeder")
        for number in range(4):
            await (await writer.send(TopicPartition("in", 0), NewRecord(b"{}", timestamp_ms=number * 1000)))
        await writer.flush()
        assert position(await start(world)) == first


async def test_W2_a_partition_that_came_since_begins_with_its_first_record() -> None:
    """`latest` is for the first look: what comes later loses nothing."""
    world = await lane([0, 1], start_at="latest")
    source = await start(world)
    await world.add(1, [10, 11])
    await open_splits(source, splits=[SplitId("in-1")], first=False)
    assert await read(source) == [10, 11]


async def test_retention_that_overtook_a_position_is_an_error_that_names_both() -> None:
    """A position below what the log still has is refused with topic, partition, position and beginning; nothing is skipped."""
    world = await lane([0, 1, 2, 3, 4])
    await world.log.delete_records({TopicPartition("in", 0): Offset(3)})
    with pytest.raises(
        OffsetOutOfRange, match=r"topic in partition 0: offset 1 .* begins at 3: 2 offsets were deleted"
    ) as found:
        await start(world, {IN_0: Offset(1)})
    assert is_lasting(found.value)


async def test_I1_retention_that_overtook_a_partition_before_it_was_found_is_an_error() -> None:
    """All records of a partition that came later are input: those that went before anybody looked are missed, with their number."""
    world = await lane([0, 1], start_at="latest")
    source = await start(world)
    await world.add(1, [10, 11, 12])
    await world.log.delete_records({TopicPartition("in", 1): Offset(2)})
    with pytest.raises(
        OffsetOutOfRange, match=r"topic in partition 1: offset 0 .* begins at 2: 2 offsets were deleted"
    ) as found:
        await open_splits(source, splits=[SplitId("in-1")], first=False)
    assert is_lasting(found.value)


async def test_E1_retention_in_a_partition_that_is_no_input_is_no_error() -> None:
    """A partition that came behind `until: latest` ends where it begins."""
    world = await lane([0, 1], until="latest")
    source = await start(world)
    await world.add(1, [10, 11, 12])
    await world.log.delete_records({TopicPartition("in", 1): Offset(2)})
    await open_splits(source, splits=[SplitId("in-1")], first=False)
    assert await read(source) == [0, 1]
    assert all(status.finished for status in source.status())


async def test_a_position_beyond_the_log_is_an_error() -> None:
    """A position above the end means another topic of the same name: refused."""
    world = await lane([0, 1])
    with pytest.raises(OffsetOutOfRange, match=r"offset 9 .* ends at 2: the topic was made anew"):
        await start(world, {IN_0: Offset(9)})


async def test_a_missing_topic_is_named() -> None:
    """A topic that is not in the cluster is an error that names it."""
    with pytest.raises(SourceMissing, match="in not found in the cluster one:9092"):
        await KafkaLanes().source().splits()


async def test_E1_until_latest_is_told_before_anything_is_read() -> None:
    """What is written after that is not read; who opens with what was told ends at the same offset."""
    world = await lane([0, 1, 2], until="latest")
    source, again = world.source(), world.source()
    known = await open_splits(source)
    await world.add(0, [3, 4])
    await open_known(again, known)
    for reader in (source, again):
        assert await read(reader) == [0, 1, 2]
        assert reader.status()[0].finished
        assert position(reader) == 3


async def test_E1_until_offsets_end_each_partition_there() -> None:
    """`until` by partition: the named end at their offset, the others at what was the latest."""
    world = KafkaLanes(until=StartAtOffsets(((0, 1),)))
    await world.add(0, [0, 1, 2])
    await world.add(1, [10, 11])
    source = await start(world)
    await world.add(1, [12])
    assert sorted(await read(source)) == [0, 10, 11]
    assert all(status.finished for status in source.status())


async def test_ordinals_stay_when_partitions_are_added() -> None:
    """Ordinals interleave the topics by partition: a topic that grows changes no other split's ordinal."""
    broker = MemoryBroker(CLOCK)
    log = MemoryLog(broker)
    source = KafkaConnector(KafkaSourceSettings(topics=("a", "b")), log, LogRawReader(log), CLOCK)
    await log.create_topic("b", 2)
    await log.create_topic("a", 1)
    before = await source.splits()
    broker.add_partitions("a", 3)
    after = await source.splits()
    assert before == {"a-0": 0, "b-0": 1, "b-1": 3}
    assert before.items() < after.items()


async def test_W4_a_split_with_an_open_transaction_is_not_at_its_end() -> None:
    """The end is the high watermark: while a transaction holds records back, more is to come, and the split is not idle."""
    world = await lane([0, 1])
    writer = await world.log.transactional_writer("producer")
    transaction = await writer.begin()
    await transaction.send_batch(TopicPartition("in", 0), [NewRecord(b'{"n": 2}')])
    source = await start(world)
    assert await read(source) == [0, 1]
    assert not source.status()[0].at_end
    await transaction.commit()
    assert await read(source) == [2]
    assert source.status()[0].at_end


async def test_W4_aborted_records_do_not_keep_a_split_from_its_end() -> None:
    """Positions move past what readers are not shown."""
    world = await lane([0])
    writer = await world.log.transactional_writer("producer")
    transaction = await writer.begin()
    await transaction.send_batch(TopicPartition("in", 0), [NewRecord(b'{"n": 1}')])
    await transaction.abort()
    source = await start(world)
    assert await read(source) == [0]
    assert source.status()[0].at_end


async def test_W4_an_old_answer_says_nothing_about_the_end() -> None:
    """A split counts as at its end only while the broker's last answer is recent: a process that was stopped asks again first."""
    world = await lane([0])
    clock = HandClock()
    source = KafkaConnector(world.settings, world.log, LogRawReader(world.log), clock)
    await open_splits(source, splits=[IN_0])
    assert not source.status()[0].at_end
    await read(source)
    assert source.status()[0].at_end
    clock.at_ms += world.settings.answer_age_ms_max + 1
    assert not source.status()[0].at_end
    await read(source)
    assert source.status()[0].at_end


async def test_W4_an_outage_is_no_end() -> None:
    """When the broker does not answer, fetch says so, and no split is at its end until it answers again."""
    world = await lane([0])
    faults = Faults()
    source = KafkaConnector(world.settings, world.log, LogRawReader(MemoryLog(world.broker, faults)), CLOCK)
    await open_splits(source, splits=[IN_0])
    await read(source)
    faults.away = True
    with pytest.raises(LogUnavailable):
        await source.fetch(1000, 1)
    assert not source.status()[0].at_end
    faults.away = False
    await read(source)
    assert source.status()[0].at_end


async def test_keys_tombstones_and_times_come_with_the_values() -> None:
    """A batch has the keys where there are any, null for a tombstone, and the broker's timestamps."""
    world = KafkaLanes()
    await world.log.create_topic("in", 1)
    writer = await world.log.writer("feeder")
    await (await writer.send(TopicPartition("in", 0), NewRecord(b"{}", b"k", timestamp_ms=5)))
    await (await writer.send(TopicPartition("in", 0), NewRecord(None, b"k", timestamp_ms=7)))
    await writer.flush()
    source = await start(world)
    batches: list[RawBatch] = list(await source.fetch(1000, 5))
    assert [batch.values.to_pylist() for batch in batches] == [[b"{}", None]]
    assert batches[0].keys is not None
    assert batches[0].keys.to_pylist() == [b"k", b"k"]
    assert batches[0].timestamps_ms.tolist() == [5, 7]


def test_a_splits_id_is_its_topic_and_partition() -> None:
    """The id says both, for topics with dashes too; what is none is refused."""
    place = TopicPartition("a-b", 12)
    assert partition_of(split_of(place)) == place
    for wrong in ("a", "a-b", "-"):
        with pytest.raises(ValueError, match="expected topic-partition"):
            partition_of(SplitId(wrong))


def test_settings_that_contradict_are_refused() -> None:
    """No topic, a topic twice, or an `until` that is no end, are refused with their place."""
    for options in ({"topics": ()}, {"topics": ("a", "a")}, {"topics": ("a",), "until": "earliest"}):
        with pytest.raises(ValueError, match=r"\$source"):
            KafkaSourceSettings(**options)
