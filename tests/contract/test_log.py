# ruff: noqa: N802 -- a test carries its rule's name
"""The Log port's contract, against every implementation: in memory, and on a real broker."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import (
    Fenced,
    Log,
    LogError,
    LogRecord,
    NewRecord,
    OffsetOutOfRange,
    Reader,
    RecordTooLarge,
    TopicPartition,
)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The broker's address; empty for the log in memory. Not async: the session's broker starts in a loop of its own."""
    return str(request.getfixturevalue("kafka_broker")) if request.param == "kafka" else ""


@pytest.fixture
async def log(bootstrap: str) -> AsyncIterator[Log]:
    opened: Log = MemoryLog(MemoryBroker(SystemClock()))
    if bootstrap:
        opened = KafkaLog(KafkaSettings(bootstrap=bootstrap))
    yield opened
    await opened.close()


@pytest.fixture
async def topic(log: Log) -> str:
    name = f"t-{uuid.uuid4().hex}"
    await log.create_topic(name, 2)
    return name


async def read_until(reader: Reader, partition: TopicPartition, end: int) -> list[LogRecord]:
    """Records of one partition until the reader's position has reached `end`."""
    found: list[LogRecord] = []
    async with asyncio.timeout(30):
        while reader.position(partition) < end:
            found += await reader.fetch(100, 500)
    return found


async def put(log: Log, partition: TopicPartition, *values: bytes) -> None:
    writer = await log.writer("test")
    for value in values:
        _ = await writer.send(partition, NewRecord(value))
    await writer.flush()
    await writer.close()


def values(records: list[LogRecord]) -> list[bytes | None]:
    return [record.value for record in records]


async def test_topics_are_made_once_and_listed(log: Log, topic: str) -> None:
    """Making a topic again is quiet with the same number of partitions, an error that says so with another."""
    await log.create_topic(topic, 2, {"cleanup.policy": "compact"})
    with pytest.raises(LogError, match="2"):
        await log.create_topic(topic, 3)
    assert (await log.list_topics())[topic] == 2


async def test_topics_are_deleted(log: Log, topic: str) -> None:
    """A deleted topic is no longer listed; deleting it again is quiet."""
    await log.delete_topics([topic, f"{topic}-never"])
    assert topic not in await log.list_topics()
    await log.delete_topics([topic])


async def test_offsets_count_per_partition(log: Log, topic: str) -> None:
    """Offsets start at 0 in each partition, and a send's result is the record's offset."""
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    writer = await log.writer("test")
    results = [await writer.send(first, NewRecord(b"%d" % i)) for i in range(3)]
    assert [await result for result in results] == [0, 1, 2]
    assert await (await writer.send(second, NewRecord(b"x"))) == 0
    await writer.close()
    assert await log.begin_offsets([first, second]) == {first: 0, second: 0}
    assert await log.end_offsets([first, second]) == {first: 3, second: 1}


async def test_F2_order_of_calls_is_the_order_in_the_log(log: Log, topic: str) -> None:
    """Records sent by several coroutines lie in each partition in the order of the calls (F2)."""
    partition = TopicPartition(topic, 0)
    writer = await log.writer("test")
    order: list[bytes] = []

    async def send(number: int) -> None:
        for step in range(50):
            value = b"%d.%d" % (number, step)
            order.append(value)
            _ = await writer.send(partition, NewRecord(value))
            if step % 7 == number:
                await asyncio.sleep(0)

    await asyncio.gather(*(send(number) for number in range(4)))
    await writer.flush()
    await writer.close()
    reader = await log.reader()
    await reader.assign({partition: Offset(0)})
    assert values(await read_until(reader, partition, 200)) == order


async def test_records_come_back_whole(log: Log, topic: str) -> None:
    """Key, value, headers and time come back as written; null key and value stay null, empty stays empty."""
    partition = TopicPartition(topic, 1)
    written = [
        NewRecord(b"v", b"k", (("a", b"1"), ("b", b"")), 1_600_000_000_123),
        NewRecord(None, b"k", timestamp_ms=1_600_000_000_124),
        NewRecord(b"", b"", timestamp_ms=1_600_000_000_125),
        NewRecord(b"v", None, timestamp_ms=1_600_000_000_126),
    ]
    writer = await log.writer("test")
    for record in written:
        _ = await writer.send(partition, record)
    await writer.flush()
    await writer.close()
    reader = await log.reader()
    await reader.assign({partition: Offset(0)})
    found = await read_until(reader, partition, 4)
    assert [NewRecord(r.value, r.key, r.headers, r.timestamp_ms) for r in found] == written
    assert [(r.topic, r.partition, r.offset) for r in found] == [(topic, 1, i) for i in range(4)]


async def test_fetch_waits_and_is_bounded(log: Log, topic: str) -> None:
    """Fetch gives [] after its time, wakes for a record that comes meanwhile, and gives at most what was asked."""
    partition = TopicPartition(topic, 0)
    reader = await log.reader()
    await reader.assign({partition: Offset(0)})
    assert await reader.fetch(10, 50) == []
    waiting = asyncio.ensure_future(reader.fetch(10, 30_000))
    await put(log, partition, b"a")
    assert values(await waiting) == [b"a"]
    await put(log, partition, b"b", b"c", b"d")
    assert values(await reader.fetch(1, 30_000)) == [b"b"]
    assert reader.position(partition) == 2
    assert values(await read_until(reader, partition, 4)) == [b"c", b"d"]


async def test_seek_discards_what_was_fetched_ahead(log: Log, topic: str) -> None:
    """After a seek the next record is the one at the new position, backwards and forwards."""
    partition = TopicPartition(topic, 0)
    await put(log, partition, *(b"%d" % i for i in range(20)))
    reader = await log.reader()
    await reader.assign({partition: Offset(0)})
    assert values(await reader.fetch(3, 30_000)) == [b"0", b"1", b"2"]
    await reader.seek(partition, Offset(1))
    assert reader.position(partition) == 1
    assert values(await reader.fetch(2, 30_000)) == [b"1", b"2"]
    await reader.seek(partition, Offset(17))
    assert values(await read_until(reader, partition, 20)) == [b"17", b"18", b"19"]


async def test_paused_partitions_are_silent(log: Log, topic: str) -> None:
    """A paused partition gives nothing, others go on; after `resume` nothing is missing."""
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    reader = await log.reader()
    await reader.assign({first: Offset(0), second: Offset(0)})
    await put(log, first, b"a", b"b")
    assert values(await read_until(reader, first, 2)) == [b"a", b"b"]
    reader.pause([first])
    await put(log, first, b"c")
    await put(log, second, b"x")
    assert values(await read_until(reader, second, 1)) == [b"x"]
    assert await reader.fetch(10, 50) == []
    assert reader.position(first) == 2
    reader.resume([first])
    assert values(await read_until(reader, first, 3)) == [b"c"]


async def test_assign_replaces(log: Log, topic: str) -> None:
    """A new assignment replaces the old: only its partitions are read, from its positions."""
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await put(log, first, b"a", b"b")
    await put(log, second, b"x", b"y")
    reader = await log.reader()
    await reader.assign({first: Offset(0)})
    await read_until(reader, first, 2)
    await reader.assign({second: Offset(1)})
    assert values(await read_until(reader, second, 2)) == [b"y"]
    for use in (reader.position, lambda at: reader.pause([at]), lambda at: reader.resume([at])):
        with pytest.raises(LogError, match="not assigned"):
            use(first)
    with pytest.raises(LogError, match="not assigned"):
        await reader.seek(first, Offset(0))


async def test_deleted_records_and_positions_out_of_range(log: Log, topic: str) -> None:
    """Records below an offset can be let go; reading from below or beyond the log names position and range."""
    partition = TopicPartition(topic, 0)
    await put(log, partition, *(b"%d" % i for i in range(6)))
    await log.delete_records({partition: Offset(4)})
    assert await log.begin_offsets([partition]) == {partition: 4}
    reader = await log.reader()
    for position in (2, 9):
        await reader.assign({partition: Offset(position)})
        with pytest.raises(OffsetOutOfRange, match=rf"{topic}.*0.*{position}.*4.*6"):
            await read_until(reader, partition, 100)
    await reader.assign({partition: Offset(4)})
    assert values(await read_until(reader, partition, 6)) == [b"4", b"5"]


async def test_unknown_topics_are_named(log: Log, topic: str) -> None:
    """Reading or writing a topic or partition that is not there is an error that names it."""
    reader = await log.reader()
    for missing in (TopicPartition(f"{topic}-none", 0), TopicPartition(topic, 7)):
        with pytest.raises(LogError, match=missing.topic):
            await reader.assign({missing: Offset(0)})
        with pytest.raises(LogError, match=missing.topic):
            await log.end_offsets([missing])
        writer = await log.writer("test")
        with pytest.raises(LogError, match=missing.topic):
            _ = await writer.send(missing, NewRecord(b"x"))
        await writer.close()


async def test_F2_too_large_a_record_breaks_the_writer(log: Log, topic: str) -> None:
    """A record beyond the limit is refused for good, and the writer is unusable afterwards (F2)."""
    partition = TopicPartition(topic, 0)
    writer = await log.writer("test")
    with pytest.raises(RecordTooLarge):
        await (await writer.send(partition, NewRecord(bytes(40_000_000))))
    with pytest.raises(LogError):
        await (await writer.send(partition, NewRecord(b"small")))
    with pytest.raises(LogError):
        await writer.flush()
    await writer.close()
    assert await log.end_offsets([partition]) == {partition: 0}


async def test_committed_transactions_appear_at_once(log: Log, topic: str) -> None:
    """Readers of committed records see nothing of an open transaction, and all of a committed one, in order."""
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    writer = await log.transactional_writer(f"id-{topic}")
    reader = await log.reader(committed_only=True)
    await reader.assign({first: Offset(0), second: Offset(0)})
    transaction = await writer.begin()
    await transaction.send_batch(first, [NewRecord(b"a", b"k"), NewRecord(b"b", headers=(("h", b"1"),))])
    await transaction.send_batch(second, [NewRecord(None, b"x")])
    await transaction.send_batch(first, [NewRecord(b"c")])
    assert await reader.fetch(10, 200) == []
    await transaction.commit()
    end = await log.end_offsets([first, second])
    assert end == {first: 4, second: 2}, "the commit's marker takes an offset"
    found = [r for p in (first, second) for r in await read_until(reader, p, end[p])]
    assert {(r.partition, r.offset): (r.key, r.value, r.headers) for r in found} == {
        (0, 0): (b"k", b"a", ()),
        (0, 1): (None, b"b", (("h", b"1"),)),
        (0, 2): (None, b"c", ()),
        (1, 0): (b"x", None, ()),
    }
    await writer.close()


async def test_a_transaction_says_where_its_records_lie(log: Log, topic: str) -> None:
    """Before the commit each batch is told with partition, first offset and number; behind a transaction lies its marker."""
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    writer = await log.transactional_writer(f"id-{topic}")
    transaction = await writer.begin()
    await transaction.send_batch(first, [NewRecord(b"a"), NewRecord(b"b")])
    await transaction.send_batch(second, [NewRecord(b"x")])
    assert sorted(await transaction.written()) == [(first, 0, 2), (second, 0, 1)]
    await transaction.send_batch(first, [NewRecord(b"c")])
    assert sorted(await transaction.written()) == [(first, 0, 2), (first, 2, 1), (second, 0, 1)]
    await transaction.commit()
    following = await writer.begin()
    assert await following.written() == ()
    await following.send_batch(first, [NewRecord(b"d")])
    assert await following.written() == ((first, 4, 1),)
    await following.abort()
    await writer.close()


async def test_W4_S3_end_offset_is_the_high_watermark_also_beside_open_transactions(log: Log, topic: str) -> None:
    """The end offset counts an open transaction's records; readers of committed records stand before them."""
    partition = TopicPartition(topic, 0)
    await put(log, partition, b"before")
    writer = await log.transactional_writer(f"id-{topic}")
    transaction = await writer.begin()
    await transaction.send_batch(partition, [NewRecord(b"open"), NewRecord(b"open")])
    dirty = await log.reader()
    await dirty.assign({partition: Offset(0)})
    assert values(await read_until(dirty, partition, 3)) == [b"before", b"open", b"open"]
    assert await log.end_offsets([partition]) == {partition: 3}
    clean = await log.reader(committed_only=True)
    await clean.assign({partition: Offset(0)})
    assert values(await read_until(clean, partition, 1)) == [b"before"]
    assert await clean.fetch(10, 200) == []
    assert clean.position(partition) == 1
    await transaction.abort()
    assert await read_until(clean, partition, 4) == []


async def test_aborted_transactions_are_invisible(log: Log, topic: str) -> None:
    """Of an aborted transaction readers of committed records see nothing, but their position passes it."""
    partition = TopicPartition(topic, 0)
    writer = await log.transactional_writer(f"id-{topic}")
    for number, commit in enumerate([False, True, False]):
        transaction = await writer.begin()
        await transaction.send_batch(partition, [NewRecord(b"%d" % number)] * 2)
        await (transaction.commit() if commit else transaction.abort())
    reader = await log.reader(committed_only=True)
    await reader.assign({partition: Offset(0)})
    assert await log.end_offsets([partition]) == {partition: 9}
    found = await read_until(reader, partition, 9)
    assert [(r.offset, r.value) for r in found] == [(3, b"1"), (4, b"1")]


async def test_S1_a_new_holder_fences_the_old(log: Log, topic: str) -> None:
    """Opening an identity aborts what its earlier holder left open, and stops that holder for good (S1)."""
    partition = TopicPartition(topic, 0)
    old = await log.transactional_writer(f"id-{topic}")
    left = await old.begin()
    await left.send_batch(partition, [NewRecord(b"zombie")])
    new = await log.transactional_writer(f"id-{topic}")
    transaction = await new.begin()
    await transaction.send_batch(partition, [NewRecord(b"new")])
    await transaction.commit()
    with pytest.raises(Fenced, match=f"id-{topic}"):
        await left.commit()
    with pytest.raises(Fenced):
        await old.begin()
    await old.close()
    reader = await log.reader(committed_only=True)
    await reader.assign({partition: Offset(0)})
    end = (await log.end_offsets([partition]))[partition]
    assert values(await read_until(reader, partition, end)) == [b"new"]


async def test_S3_a_fenced_holder_cannot_write(log: Log, topic: str) -> None:
    """A fenced holder's new transaction never becomes visible: sending or committing raises Fenced."""
    partition = TopicPartition(topic, 0)
    old = await log.transactional_writer(f"id-{topic}")
    await log.transactional_writer(f"id-{topic}")
    transaction = await old.begin()
    with pytest.raises(Fenced):  # noqa: PT012 - which of the two raises is the log's choice
        await transaction.send_batch(partition, [NewRecord(b"zombie")])
        await transaction.commit()
    await old.close()
    reader = await log.reader(committed_only=True)
    await reader.assign({partition: Offset(0)})
    end = (await log.end_offsets([partition]))[partition]
    assert await read_until(reader, partition, end) == []


async def test_one_transaction_at_a_time(log: Log, topic: str) -> None:
    """A second transaction before the end of the first is refused; an ended one cannot be used; empty ones end."""
    writer = await log.transactional_writer(f"id-{topic}")
    transaction = await writer.begin()
    with pytest.raises(LogError, match="open"):
        await writer.begin()
    await transaction.commit()
    with pytest.raises(LogError, match="end"):
        await transaction.send_batch(TopicPartition(topic, 0), [NewRecord(b"x")])
    again = await writer.begin()
    await again.abort()
    await writer.close()


async def test_S3_a_refused_batch_fails_the_commit(log: Log, topic: str) -> None:
    """A transaction of which one record was refused is not committed: the error comes out, nothing is visible."""
    partition = TopicPartition(topic, 0)
    writer = await log.transactional_writer(f"id-{topic}")
    transaction = await writer.begin()
    await transaction.send_batch(partition, [NewRecord(b"small")])
    with pytest.raises(LogError):  # noqa: PT012 - which of the two raises is the log's choice
        await transaction.send_batch(partition, [NewRecord(bytes(40_000_000))])
        await transaction.commit()
    await writer.close()
    await (await log.transactional_writer(f"id-{topic}")).close()  # aborts it
    reader = await log.reader(committed_only=True)
    await reader.assign({partition: Offset(0)})
    end = (await log.end_offsets([partition]))[partition]
    assert await read_until(reader, partition, end) == []


async def test_closing_twice_is_quiet(log: Log, topic: str) -> None:
    """Readers and writers can be closed twice."""
    reader = await log.reader()
    for part in (reader, await log.writer("w"), await log.transactional_writer(f"id-{topic}")):
        await part.close()
        await part.close()
    with pytest.raises(LogError, match="after close"):
        await reader.fetch(1, 1)


async def test_a_group_stands_where_it_was_told(log: Log, bootstrap: str, topic: str) -> None:
    """Offsets that are noted for a group are what tools see of it, partition by partition; noting again moves them."""
    group = f"g-{uuid.uuid4().hex}"
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await put(log, first, b"a", b"b", b"c")
    await log.note_offsets(group, {first: Offset(1)})
    await log.note_offsets(group, {first: Offset(3), second: Offset(0)})
    if isinstance(log, MemoryLog):
        seen = {p.partition: int(at) for p, at in log.broker.noted[group].items()}
    else:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        told = await admin.list_consumer_group_offsets(group)
        await admin.close()
        seen = {p.partition: meta.offset for p, meta in told.items() if p.topic == topic}
    assert seen == {0: 3, 1: 0}
