# ruff: noqa: N802 -- a test carries its rule's name
"""The fast reader gives exactly what the ordinary reader gives, whatever lies in the log."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from aiokafka import AIOKafkaProducer, codec

from tidemark.shared.adapters import kafka_batches
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_raw import RawReader
from tidemark.shared.adapters.kafka_reader import PASSED
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.failures import is_lasting
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.records import RawPartition
from tidemark.shared.ports.log import LogError, NewRecord, OffsetOutOfRange, TopicPartition, Transaction

pytestmark = pytest.mark.kafka

Row = tuple[int, int, bytes | None, bytes | None]


@pytest.fixture
def settings(kafka_broker: str) -> KafkaSettings:
    return KafkaSettings(bootstrap=kafka_broker)


@pytest.fixture
async def log(settings: KafkaSettings) -> AsyncIterator[KafkaLog]:
    opened = KafkaLog(settings)
    yield opened
    await opened.close()


async def fill(log: KafkaLog, topic: str, seed: int) -> TopicPartition:
    """Plain records, tombstones, and committed, aborted, interleaved and open transactions, in a drawn order."""
    chooser = random.Random(seed)
    partition = TopicPartition(topic, 0)
    await log.create_topic(topic, 1)
    plain = await log.writer("plain")
    writers = [await log.transactional_writer(f"{topic}-{i}") for i in range(3)]
    open_now: list[Transaction | None] = [None, None, None]
    number = 0

    def some() -> list[NewRecord]:
        nonlocal number
        made = []
        for _ in range(chooser.randint(1, 5)):
            number += 1
            key = chooser.choice([None, b"", b"key-%d" % number])
            value = None if key is not None and chooser.random() < 0.2 else b"v%d" % number * chooser.randint(1, 40)
            headers = (("h", b"x"),) if chooser.random() < 0.2 else ()
            made.append(NewRecord(value, key, headers, 1_600_000_000_000 + chooser.randint(0, 10**6)))
        return made

    for _ in range(60):
        which = chooser.randint(0, 3)
        if which == 3:
            for record in some():
                await (await plain.send(partition, record))
            continue
        transaction = open_now[which]
        if transaction is None:
            open_now[which] = transaction = await writers[which].begin()
        await transaction.send_batch(partition, some())
        if chooser.random() < 0.5:
            await (transaction.commit() if chooser.random() < 0.5 else transaction.abort())
            open_now[which] = None
    return partition


async def read_plainly(log: KafkaLog, at: TopicPartition, start: int, *, committed_only: bool) -> tuple[list[Row], int]:
    """What the ordinary reader gives until three silent fetches, and its position then."""
    reader = await log.reader(committed_only=committed_only)
    await reader.assign({at: Offset(start)})
    rows: list[Row] = []
    silent = 0
    while silent < 3:
        found = await reader.fetch(1000, 200)
        silent = 0 if found else silent + 1
        rows += [(r.offset, r.timestamp_ms, r.key, r.value) for r in found]
    position = reader.position(at)
    await reader.close()
    return rows, position


def rows_of(raw: RawPartition) -> list[Row]:
    keys = [None] * len(raw.values) if raw.keys is None else raw.keys.to_pylist()
    assert raw.offsets.dtype == raw.timestamps.dtype == np.int64
    assert raw.values.type == pa.binary()
    return list(zip(raw.offsets.tolist(), raw.timestamps.tolist(), keys, raw.values.to_pylist(), strict=True))


async def read_raw(reader: RawReader, at: TopicPartition, end: int, max_bytes: int) -> list[Row]:
    """What the fast reader gives until its position reaches `end`."""
    rows: list[Row] = []
    async with asyncio.timeout(60):
        while reader.position(at) < end:
            for raw in await reader.fetch(max_bytes, 500):
                assert (raw.topic, raw.partition) == at
                assert len(raw.values) > 0
                rows += rows_of(raw)
    return rows


@pytest.mark.parametrize("committed_only", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
async def test_same_records_as_the_ordinary_reader(
    log: KafkaLog, settings: KafkaSettings, seed: int, committed_only: bool
) -> None:
    """From any position, in pieces of any size: the same offsets, times, keys and values, and the same position."""
    at = await fill(log, f"t-{uuid.uuid4().hex}", seed)
    whole, end = await read_plainly(log, at, 0, committed_only=committed_only)
    assert whole
    reader = RawReader(settings, committed_only=committed_only)
    await reader.start()
    for start in range(0, end + 1, max(1, end // 6)):
        await reader.assign({at: Offset(start)})
        expected = [row for row in whole if row[0] >= start]
        assert await read_raw(reader, at, end, max_bytes=1 + start * 37) == expected
        assert reader.position(at) == end
    await reader.close()


async def test_W4_knows_the_high_watermark(log: KafkaLog, settings: KafkaSettings) -> None:
    """The end that the broker names counts open transactions too; it is unknown before the first answer (W4)."""
    at = TopicPartition(f"t-{uuid.uuid4().hex}", 0)
    await log.create_topic(at.topic, 1)
    transaction = await (await log.transactional_writer(at.topic)).begin()
    await transaction.send_batch(at, [NewRecord(b"a"), NewRecord(b"b")])
    reader = RawReader(settings)
    await reader.start()
    await reader.assign({at: Offset(0)})
    assert reader.high_watermark(at) is None
    async with asyncio.timeout(30):
        while reader.high_watermark(at) != 2:
            assert await reader.fetch(1000, 200) == []
    assert reader.position(at) == 0
    await transaction.commit()
    assert [r[3] for r in await read_raw(reader, at, 2, 1000)] == [b"a", b"b"]
    await reader.close()


async def test_seek_pause_and_range(log: KafkaLog, settings: KafkaSettings) -> None:
    """Seeks discard what was fetched ahead, paused partitions are silent, positions out of range are named."""
    at, other = (TopicPartition(f"t-{uuid.uuid4().hex}", 0) for _ in range(2))
    writer = await log.writer("w")
    for topic in (at.topic, other.topic):
        await log.create_topic(topic, 1)
        for i in range(10):
            await (await writer.send(TopicPartition(topic, 0), NewRecord(b"%d" % i)))
    reader = RawReader(settings, with_keys=False)
    await reader.start()
    await reader.assign({at: Offset(0), other: Offset(0)})
    reader.pause([other])
    assert [r[3] for r in await read_raw(reader, at, 3, 1)][:3] == [b"0", b"1", b"2"]
    await reader.seek(at, Offset(8))
    assert [r[3] for r in await read_raw(reader, at, 10, 1)] == [b"8", b"9"]
    assert reader.position(other) == 0
    reader.resume([other])
    assert len(await read_raw(reader, other, 10, 1000)) == 10
    await reader.seek(at, Offset(99))
    with pytest.raises(OffsetOutOfRange, match=f"{at.topic}.*99.*0.*10"):
        await read_raw(reader, at, 100, 1000)
    await reader.close()
    with pytest.raises(LogError, match="close"):
        await reader.fetch(1, 1)


INSTALLED = ["gzip", *(name for name in ("snappy", "lz4", "zstd") if getattr(codec, f"has_{name}")())]


@pytest.mark.parametrize("compression", INSTALLED)
async def test_compressed_topics_are_read_by_either_reader(
    settings: KafkaSettings, unique_name: Callable[[str], str], compression: str
) -> None:
    """Whatever codec the producer or the topic chose, the records are the same; batches of ours may be compressed, too."""
    log = KafkaLog(replace(settings, compression=compression))  # type: ignore[arg-type]
    at = TopicPartition(unique_name(compression), 0)
    await log.create_topic(at.topic, 1, {"compression.type": compression})
    writer = await log.writer("feeder")
    values = [b"value %d " % number * 20 for number in range(50)]
    for answer in [await writer.send(at, NewRecord(value, b"k")) for value in values]:
        await answer
    raw = RawReader(settings)
    await raw.start()
    await raw.assign({at: Offset(0)})
    plain = await log.reader()
    await plain.assign({at: Offset(0)})
    fast: list[bytes] = []
    slow: list[bytes | None] = []
    while len(fast) < len(values) or len(slow) < len(values):
        fast += [v for part in await raw.fetch(1 << 20, 100) for v in part.values.to_pylist()]
        slow += [record.value for record in await plain.fetch(1_000, 100)]
    await raw.close()
    await log.close()
    assert fast == slow == values


async def test_a_batch_in_an_encoding_that_is_not_known_is_an_error_with_its_place(
    settings: KafkaSettings, unique_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has topic, partition, offset, and the number of the encoding; and no waiting makes it known."""
    log = KafkaLog(settings)
    at = TopicPartition(unique_name("unknown"), 0)
    await log.create_topic(at.topic, 1, {"compression.type": "gzip"})
    writer = await log.writer("feeder")
    await (await writer.send(at, NewRecord(b"value")))

    monkeypatch.setattr(kafka_batches, "UNPACK", {})
    raw = RawReader(settings)
    await raw.start()
    await raw.assign({at: Offset(0)})

    async def until_something() -> None:
        while not await raw.fetch(1 << 20, 100):
            continue

    with pytest.raises(
        LogError,
        match=rf"topic {at.topic} partition 0: the batch at offset 0 is compressed in a way that is not known \(1\)",
    ) as raised:
        await until_something()
    assert is_lasting(raised.value)
    await raw.close()
    await log.close()


@pytest.mark.parametrize("waits", [True, False])
async def test_batches_that_come_before_the_next_fetch_come_together(
    log: KafkaLog, settings: KafkaSettings, unique_name: Callable[[str], str], waits: bool
) -> None:
    """An answer with a record a partition is not asked for again at once: what ordinary producers send meanwhile is one answer."""
    topic = unique_name("gathered")
    await log.create_topic(topic, 3)
    places = [TopicPartition(topic, number) for number in range(3)]
    writer = await log.writer("feeder")

    async def feed(count: int) -> None:
        for number in range(count):
            await (await writer.send(places[number % 3], NewRecord(b"%d" % number)))

    reader = RawReader(settings)
    await reader.start()
    await reader.assign(dict.fromkeys(places, Offset(0)))
    await feed(3)
    first: list[RawPartition] = []
    while sum(len(raw.values) for raw in first) < 1:
        first += await reader.fetch(1 << 20, 5_000)
    await feed(60)
    found = await reader.fetch(1 << 20, 10_000, waits=waits)
    assert sum(len(raw.values) for raw in [*first, *found]) == 63
    assert len(found) == 3
    await reader.close()
    await writer.close()


async def test_a_fetch_that_does_not_wait_is_over_with_the_brokers_answer(
    log: KafkaLog, settings: KafkaSettings, unique_name: Callable[[str], str]
) -> None:
    """Also if nothing is there, and however long a broker would wait for something; the next fetch waits again."""
    place = TopicPartition(unique_name("looked"), 0)
    await log.create_topic(place.topic, 1)
    writer = await log.writer("feeder")
    reader = RawReader(replace(settings, fetch_wait_ms=10_000))
    await reader.start()
    await reader.assign({place: Offset(0)})
    for number in range(3):
        await (await writer.send(place, NewRecord(b"%d" % number)))
        assert [value.as_py() for raw in await reader.fetch(1 << 20, 10_000) for value in raw.values] == [
            b"%d" % number
        ]
        assert await reader.fetch(1 << 20, 3_600_000, waits=False) == []
    await reader.close()
    await writer.close()


@pytest.mark.parametrize("compression", ["gzip", "lz4", "zstd"])
async def test_a_record_stands_in_the_place_of_a_batch_that_unpacks_to_much(
    settings: KafkaSettings, log: KafkaLog, unique_name: Callable[[str], str], compression: str
) -> None:
    """Who reads record by record, as coordinator, workers and control do, gets what lies around such a batch, and never unpacks it."""
    at = TopicPartition(unique_name("bomb"), 0)
    await log.create_topic(at.topic, 1)
    much = 2_000_000_000
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap, compression_type=compression, max_request_size=much, max_batch_size=much
    )
    await producer.start()
    try:
        for texts in ([b"before"], [b"x" * 900_000] * 60, [b"behind"]):
            batch = producer.create_batch()
            for text in texts:
                batch.append(key=None, value=text, timestamp=None)
            await (await producer.send_batch(batch, at.topic, partition=0))
    finally:
        await producer.stop()
    reader = await log.reader()
    await reader.assign({at: Offset(0)})
    found = []
    while reader.position(at) < 62:
        found += await reader.fetch(100, 500)
    assert [(r.offset, r.value, [name for name, _ in r.headers]) for r in found] == [
        (0, b"before", []), (60, b"", [PASSED]), (61, b"behind", []),
    ]  # fmt: skip
