# ruff: noqa: N802 -- a test carries its rule's name
"""A source's task over Kafka, in memory and on a real broker: when a split is idle (W4), and how the input ends (E1, E2)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from tests.harness.raw_log import LogRawReader
from tests.harness.source_stand import IDLE_MS, SourceStand, feed, record
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_raw import RawReader
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.language.stages import StartAt
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.ports.log import Log, LogUnavailable, NewRecord, TopicPartition
from tidemark.shared.ports.source import SourceReplaced
from tidemark.shared.protocol.source.machine import Tell


class Cluster:
    """A log with a topic of two partitions of the test's own, and tasks that read it."""

    def __init__(self, log: Log, topic: str, reader: Callable[[], Awaitable[Any]]) -> None:
        self.log, self.topic, self._reader = log, topic, reader

    async def stand(
        self,
        *,
        tasks: int = 1,
        index: int = 0,
        until: StartAt | None = None,
        row: Mapping[SplitId, KnownSplit] | None = None,
        start_at: StartAt = "earliest",
    ) -> SourceStand:
        # The clock is the test's: on it an answer never grows old by itself.
        made = SourceStand(
            self.log,
            await self._reader(),
            self.topic,
            tasks=tasks,
            index=index,
            until=until,
            start_at=start_at,
            answer_age_ms_max=10**9,
        )
        return await made.open(row=row)

    async def feed(self, partition: int, *times_ms: int) -> None:
        await feed(self.log, self.topic, partition, *times_ms)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def bootstrap(request: pytest.FixtureRequest) -> str | None:
    """The broker's address; None for a log in memory."""
    return None if request.param == "memory" else request.getfixturevalue("kafka_broker")


@pytest.fixture
async def cluster(bootstrap: str | None, unique_name: Callable[[str], str]) -> AsyncIterator[Cluster]:
    topic = unique_name("in")
    if bootstrap is None:
        log: Log = MemoryLog(MemoryBroker(SystemClock()))

        async def reader() -> Any:
            return LogRawReader(log)

        await log.create_topic(topic, 2)
        yield Cluster(log, topic, reader)
        return
    settings = KafkaSettings(bootstrap=bootstrap)
    opened: list[RawReader] = []

    async def raw() -> Any:
        opened.append(RawReader(settings))
        await opened[-1].start()
        return opened[-1]

    log = KafkaLog(settings)
    await log.create_topic(topic, 2)
    yield Cluster(log, topic, raw)
    for one in opened:
        await one.close()
    await log.close()


async def read(stand: SourceStand, count: int) -> list[int]:
    """Take until so many rows have come; no time passes on the stand's clock."""
    found: list[int] = []
    for _ in range(200):
        if len(found) >= count:
            break
        found += await stand.take()
    assert len(found) == count
    return found


async def at_end(stand: SourceStand, *, ends: bool = True) -> None:
    """Take until the broker's answers say that every split is at its end, or that some is not."""
    for _ in range(200):
        await stand.take()
        if all(status.at_end for status in stand.source.status()) == ends:
            return
    raise AssertionError(stand.source.status())


async def test_W4_a_split_is_idle_only_after_the_time_out_at_its_end(cluster: Cluster) -> None:
    """A partition that was never fed holds the watermark until then, and no longer."""
    await cluster.feed(0, 50)
    stand = await cluster.stand()
    await read(stand, 1)
    await at_end(stand)
    await stand.take(IDLE_MS - 1)
    assert stand.watermark() is None
    await cluster.feed(0, 60)
    await read(stand, 1)
    await stand.take(1)
    assert stand.watermark() == 60
    assert not stand.body.input.is_idle()


async def test_W4_an_open_transaction_keeps_its_split_from_idleness(cluster: Cluster) -> None:
    """The position is compared with the high watermark, not with the last stable offset: what is uncommitted is on its way."""
    await cluster.feed(0, 50)
    await cluster.feed(1, 20)
    writer = await cluster.log.transactional_writer(cluster.topic)
    transaction = await writer.begin()
    await transaction.send_batch(TopicPartition(cluster.topic, 1), [NewRecord(record(25))])
    stand = await cluster.stand()
    await read(stand, 2)
    await at_end(stand, ends=False)
    await stand.take(10 * IDLE_MS)
    await stand.take(10 * IDLE_MS)
    assert stand.watermark() == 20
    await transaction.commit()
    assert await read(stand, 1) == [25]
    assert stand.watermark() == 25
    await writer.close()


async def test_W4_an_idle_split_is_active_again_when_the_broker_says_that_more_is_there(cluster: Cluster) -> None:
    """Also before it can be read: from then on the split holds the watermark, and what comes is not late by the others."""
    await cluster.feed(0, 50)
    await cluster.feed(1, 20)
    stand = await cluster.stand()
    await read(stand, 2)
    await at_end(stand)
    await stand.take(IDLE_MS)
    assert stand.body.input.is_idle()
    writer = await cluster.log.transactional_writer(cluster.topic)
    transaction = await writer.begin()
    await transaction.send_batch(TopicPartition(cluster.topic, 1), [NewRecord(record(70))])
    await at_end(stand, ends=False)
    assert not stand.body.input.is_idle()
    await cluster.feed(0, 90)
    await read(stand, 1)
    assert stand.watermark() == 50
    await transaction.commit()
    assert await read(stand, 1) == [70]
    assert stand.watermark() == 70
    await writer.close()


async def test_W4_time_in_which_the_task_was_held_back_does_not_count(cluster: Cluster) -> None:
    """A task that flow control stops for long does not find its splits idle when it goes on."""
    await cluster.feed(0, 50)
    stand = await cluster.stand()
    await read(stand, 1)
    await at_end(stand)
    await stand.take(IDLE_MS - 10)
    stand.body.input.held_back(stand.clock.at_ms)
    await stand.take(100 * IDLE_MS)
    assert stand.watermark() is None
    await stand.take(9)
    assert stand.watermark() is None
    await stand.take(1)
    assert stand.body.input.is_idle()


async def test_W2_what_a_restart_restores_holds_back_as_before(cluster: Cluster) -> None:
    """A split that had data goes on from its own watermark; one that had none holds the task's, which never falls."""
    await cluster.feed(0, 50)
    stand = await cluster.stand()
    await read(stand, 1)
    parts = await stand.copy()
    await cluster.feed(1, 30)
    again = SourceStand(cluster.log, await cluster._reader(), cluster.topic)
    await again.open(parts, stand.row)
    assert again.watermark() is None
    assert await read(again, 1) == [30]
    assert again.watermark() == 30


async def test_E1_a_bounded_source_s_task_without_splits_ends_at_once(cluster: Cluster) -> None:
    """With more tasks than splits the input would never end otherwise; where it does not end by itself, the task is idle."""
    bounded = await cluster.stand(tasks=3, index=2, until="latest")
    await bounded.take()
    assert bounded.body.input.has_ended()
    endless = await cluster.stand(tasks=3, index=2)
    await endless.take()
    assert not endless.body.input.has_ended()
    assert endless.body.input.is_idle()
    await endless.drain()
    assert endless.body.input.has_ended()


async def test_E1_a_split_ends_when_its_position_reaches_its_end(cluster: Cluster) -> None:
    """Not before, and the watermark is the end of time only when all have."""
    await cluster.feed(0, 50, 60)
    await cluster.feed(1, 20)
    stand = await cluster.stand(until="latest")
    await cluster.feed(0, 70)
    assert sorted(await read(stand, 3)) == [20, 50, 60]
    await at_end(stand)
    assert stand.body.input.has_ended()
    assert stand.watermark() == MAX_TIME


async def test_E2_a_drain_at_named_offsets_reads_up_to_them_and_no_further(cluster: Cluster) -> None:
    """The first offset that is not read is named."""
    await cluster.feed(0, 10, 20)
    stand = await cluster.stand()
    await read(stand, 2)
    await stand.drain({f"{cluster.topic}-0": 3, f"{cluster.topic}-1": 0})
    await cluster.feed(0, 30, 40)
    await cluster.feed(1, 15)
    assert await read(stand, 1) == [30]
    await at_end(stand)
    assert stand.body.input.has_ended()


async def test_I3_a_split_that_is_not_named_ends_with_what_is_there_now(cluster: Cluster) -> None:
    """What was written before the ends are decided is read, whether the task had come so far or not; what comes later is not."""
    await cluster.feed(0, 10, 20)
    stand = await cluster.stand()
    await cluster.feed(1, 15)
    await stand.drain()
    await cluster.feed(0, 30)
    assert sorted(await read(stand, 3)) == [10, 15, 20]
    await at_end(stand)
    assert stand.body.input.has_ended()
    assert {split: known.end for split, known in stand.row.items()} == {
        f"{cluster.topic}-0": 2,
        f"{cluster.topic}-1": 1,
    }


async def test_I3_an_end_is_never_in_front_of_what_was_read(cluster: Cluster) -> None:
    """What has gone out cannot be taken back: a named offset below the position ends the split where it stands."""
    await cluster.feed(0, 10, 20, 30)
    stand = await cluster.stand()
    await read(stand, 3)
    await stand.drain({f"{cluster.topic}-0": 1})
    assert stand.row[SplitId(f"{cluster.topic}-0")].end == 3
    await at_end(stand)
    assert stand.body.input.has_ended()


async def test_I3_what_was_said_of_the_ends_is_said_again_as_it_was(cluster: Cluster) -> None:
    """Another leader asks again: the task reads nothing meanwhile, and what came since has no part."""
    await cluster.feed(0, 10)
    stand = await cluster.stand()
    said = await stand.ends({})
    await cluster.feed(0, 20)
    assert await stand.ends({}) == said


async def test_I3_a_restored_task_ends_where_the_row_says(cluster: Cluster) -> None:
    """It begins further back than the task that was asked, with records behind the end in the topic, and reads exactly up to it."""
    await cluster.feed(0, 10, 20, 30)
    stand = await cluster.stand()
    await read(stand, 3)
    await stand.drain()
    await cluster.feed(0, 40)
    again = await cluster.stand(row=stand.row)
    assert await read(again, 3) == [10, 20, 30]
    await at_end(again)
    assert again.body.input.has_ended()
    assert {s.split: s.next_position for s in again.source.status()} == {s: k.end for s, k in stand.row.items()}


async def test_I1_a_split_is_read_when_the_row_lists_it_and_not_before(cluster: Cluster) -> None:
    """A task that has told what it found reads nothing of it, says no end and no idleness, until it is told."""
    await cluster.feed(0, 10)
    stand = SourceStand(cluster.log, await cluster._reader(), cluster.topic, answer_age_ms_max=10**9)
    await stand.body.open({})
    (told,) = stand.body.input.tell()
    assert isinstance(told, Tell)
    assert sorted(told.found) == [f"{cluster.topic}-0", f"{cluster.topic}-1"]
    assert not told.gone
    assert not (await stand.body.fetch()).batches
    assert not stand.source.status()
    assert stand.body.input.tell() == []
    assert stand.body.input.tell(again=True) == [told]
    stand.body.input.listed(told.found)
    assert not stand.body.input.has_ended()
    assert await read(stand, 1) == [10]


async def test_I1_a_split_without_a_position_begins_where_the_row_says(cluster: Cluster) -> None:
    """The end of the topic has moved on since the row was written; what came in between is read."""
    await cluster.feed(0, 10)
    row = {SplitId(f"{cluster.topic}-0"): KnownSplit(0, await topic_id(cluster), Offset(1))}
    await cluster.feed(0, 20, 30)
    again = await cluster.stand(row=row)
    assert await read(again, 2) == [20, 30]


async def test_I1_what_comes_while_nobody_reads_begins_with_its_first_record(cluster: Cluster) -> None:
    """Also to a task that had no split, and never had read one: `latest` is for what was there when the source was listed."""
    topic = SplitId(f"{cluster.topic}-1")
    await cluster.feed(1, 10, 20)
    stand = await cluster.stand(tasks=2, index=1, row={}, start_at="latest")
    assert await read(stand, 2) == [10, 20]
    assert stand.row[topic].begin == 0


async def test_I1_nothing_ends_while_a_split_that_was_told_is_not_opened(cluster: Cluster) -> None:
    """A task that had no splits, and hears of some with their ends, has not ended before it has read them."""
    await cluster.feed(1, 10)
    stand = await cluster.stand(row={})
    assert sorted(stand.row) == [f"{cluster.topic}-0", f"{cluster.topic}-1"]
    await stand.drain()
    assert not stand.body.input.has_ended()
    assert await read(stand, 1) == [10]
    await at_end(stand)
    assert stand.body.input.has_ended()


async def test_I1_a_task_does_not_end_while_a_split_waits_behind_an_earlier_fetch(cluster: Cluster) -> None:
    """Two fetches are read ahead, the second with a split that has come: what the first brings is not the end of the input."""
    stand = SourceStand(cluster.log, await cluster._reader(), cluster.topic)
    stand._assign.listed = True  # the row lists no split of this task yet
    stand.body = stand._made()
    await stand.body.open({})
    await cluster.feed(0, 10)
    earlier = await stand.body.fetch()
    await stand.drain()
    later = await stand.body.fetch()
    assert not earlier.statuses
    assert sorted(status.split for status in later.statuses) == [f"{cluster.topic}-0", f"{cluster.topic}-1"]
    await stand.work(earlier)
    assert not stand.body.input.has_ended()
    await stand.work(later)
    await at_end(stand)
    assert stand.body.input.has_ended()


async def test_W3_a_task_that_was_not_told_its_splits_is_not_idle(cluster: Cluster) -> None:
    """Who writes the row may die before it tells: idle meanwhile, the other streams' watermark would pass the rows that it is to read."""
    await cluster.feed(0, 10)
    stand = SourceStand(cluster.log, await cluster._reader(), cluster.topic)
    await stand.body.open({})
    await stand.work(await stand.body.fetch())
    assert not stand.body.input.is_idle()
    stand.write_row()
    assert not stand.body.input.is_idle()
    assert await read(stand, 1) == [10]


async def topic_id(cluster: Cluster) -> str:
    """As the log tells it."""
    return (await cluster.log.describe_topics([cluster.topic]))[cluster.topic].id


async def test_I2_a_topic_that_was_made_anew_is_refused(cluster: Cluster) -> None:
    """At a restore and while it is read: with both ids and what to do; no record of the new one is given."""
    await cluster.feed(0, 10)
    stand = await cluster.stand()
    await read(stand, 1)
    parts, old = await stand.copy(), await topic_id(cluster)
    await cluster.log.delete_topics([cluster.topic])
    await cluster.log.create_topic(cluster.topic, 2)
    await cluster.feed(0, 20, 30, 40)
    again = SourceStand(cluster.log, await cluster._reader(), cluster.topic)
    with pytest.raises(SourceReplaced, match=rf"with id {old}, .* id {await topic_id(cluster)} .* start without state"):
        await again.open(parts, stand.row)
    with pytest.raises(SourceReplaced, match="made anew"):
        await stand.take(after_ms=10**6)


async def test_I2_what_a_topic_gave_that_was_made_anew_behind_the_last_look_is_in_no_checkpoint(
    cluster: Cluster,
) -> None:
    """Deleted, made and filled within a second: the next fetch goes on in the other topic, and only the checkpoint can tell."""
    await cluster.feed(0, 10)
    stand = await cluster.stand()
    await read(stand, 1)
    await stand.copy()
    await cluster.log.delete_topics([cluster.topic])
    await cluster.log.create_topic(cluster.topic, 2)
    await cluster.feed(0, 20, 30, 40)
    await read(stand, 2)
    with pytest.raises(SourceReplaced, match="made anew"):
        await stand.copy()


async def test_I2_what_is_there_after_an_outage_is_compared_before_it_is_read(cluster: Cluster) -> None:
    """A cluster that was away may have come back with other topics: no time need have passed."""
    await cluster.feed(0, 10)
    stand = await cluster.stand()
    await read(stand, 1)
    fetch = stand.source.fetch

    async def away(max_bytes: int, timeout_ms: int) -> Any:
        raise LogUnavailable("away")

    stand.source.fetch = away
    with pytest.raises(LogUnavailable):
        await stand.take()
    stand.source.fetch = fetch
    await cluster.log.delete_topics([cluster.topic])
    await cluster.log.create_topic(cluster.topic, 2)
    await cluster.feed(0, 20, 30, 40)
    with pytest.raises(SourceReplaced, match="made anew"):
        await stand.take()


async def test_E2_a_split_that_comes_after_the_input_was_ended_is_not_read(cluster: Cluster) -> None:
    """The row has no end for it: the drain would wait for ever."""
    stand = await cluster.stand()
    await stand.take()
    await stand.drain()
    known, looked = await stand.source.splits(), list[str]()

    async def splits() -> dict[SplitId, int]:
        looked.append("splits")
        return {**known, SplitId("new-0"): 2}

    stand.source.splits = splits
    await stand.take(after_ms=10**6)
    assert looked == []
    assert stand.body.input.has_ended()


async def test_E1_the_end_is_resolved_once_also_over_a_restart_before_anything_was_read(cluster: Cluster) -> None:
    """The row has had the ends since before the first record was read."""
    await cluster.feed(0, 50)
    stand = await cluster.stand(until="latest")
    parts = await stand.copy()
    await cluster.feed(0, 60)
    again = SourceStand(cluster.log, await cluster._reader(), cluster.topic, until="latest", answer_age_ms_max=10**9)
    await again.open(parts, stand.row)
    assert await read(again, 1) == [50]
    await at_end(again)
    assert again.body.input.has_ended()
