# ruff: noqa: N802 -- a test carries its rule's name
"""The Kafka log in trouble: brokers that do not answer, batches that are refused, lanes that are full."""

import asyncio
import contextlib
import logging
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest

from tidemark.services.local.broker import LocalBroker
from tidemark.services.local.broker_settings import LOOPBACK
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_raw import RawReader
from tidemark.shared.adapters.kafka_reader import theirs
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import Fenced, LogError, LogUnavailable, NewRecord, TopicPartition

pytestmark = pytest.mark.kafka


class Network:
    """Cuts this process off from the broker: open connections break, new ones are refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._down = False
        self._clients: list[AIOKafkaClient] = []
        connect = AIOKafkaClient._get_conn
        network = self

        async def get_connection(self: AIOKafkaClient, *args: object, **named: object) -> object:
            if self not in network._clients:
                network._clients.append(self)
            return None if network._down else await connect(self, *args, **named)

        monkeypatch.setattr(AIOKafkaClient, "_get_conn", get_connection)

    def cut(self) -> None:
        self._down = True
        for client in self._clients:
            for connection in list(client._conns.values()):
                connection.close()

    def mend(self) -> None:
        self._down = False

    def move(self) -> None:
        """Brokers have other addresses from here on: nobody listens where clients know them, only at `bootstrap`."""
        with socket.create_server((LOOPBACK, 0)) as gone:
            port = gone.getsockname()[1]
        for client in self._clients:
            known = client.cluster._brokers
            known |= {node: broker._replace(port=port) for node, broker in known.items()}
        self.cut()
        self.mend()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    made = Network(monkeypatch)
    yield made
    made.mend()


@pytest.fixture
async def log(kafka_broker: str) -> AsyncIterator[KafkaLog]:
    opened = KafkaLog(KafkaSettings(bootstrap=kafka_broker))
    yield opened
    await opened.close()


def impatient(bootstrap: str) -> KafkaSettings:
    """Soon through with a broker that is away, but not with one that is slow, as on a machine with much else to do."""
    return KafkaSettings(bootstrap=bootstrap, request_timeout_ms=2_000, delivery_timeout_ms=6_000)


@pytest.fixture
async def cut_log(kafka_broker: str, network: Network) -> AsyncIterator[KafkaLog]:
    """Of a process that the network is cut for."""
    del network
    opened = KafkaLog(impatient(kafka_broker))
    yield opened
    await opened.close()


@pytest.fixture
async def at(log: KafkaLog) -> TopicPartition:
    name = f"t-{uuid.uuid4().hex}"
    await log.create_topic(name, 1)
    return TopicPartition(name, 0)


async def read_forever(fetch: Callable[[int, int], Awaitable[Sequence[object]]]) -> None:
    """Fetch until it raises; there is nothing to read."""
    async with asyncio.timeout(30):
        while True:
            assert not await fetch(1, 100)


@pytest.mark.parametrize("moved", [False, True])
async def test_S3_W4_silence_of_an_outage_is_an_error(
    cut_log: KafkaLog, network: Network, at: TopicPartition, *, moved: bool
) -> None:
    """Readers say that nobody answers instead of giving nothing, and go on by themselves afterwards (S3, W4).

    Also with brokers that have `moved` meanwhile, and are to be found by their bootstrap address alone.
    """
    reader, raw = await cut_log.reader(), RawReader(cut_log._settings)
    await raw.start()
    await reader.assign({at: Offset(0)})
    await raw.assign({at: Offset(0)})
    assert await reader.fetch(1, 50) == []
    assert await raw.fetch(1, 50) == []
    network.cut()
    async with asyncio.timeout(30):
        for read in (reader.fetch, raw.fetch):
            with pytest.raises(LogUnavailable, match=r"fetching|no leader now"):
                await read_forever(read)
    with pytest.raises(LogUnavailable):
        await cut_log.end_offsets([at])
    network.move() if moved else network.mend()
    await (await (await cut_log.writer("w")).send(at, NewRecord(b"after")))
    found: list[bytes | None] = []
    async with asyncio.timeout(30):
        while len(found) < 2:
            for fetch in (reader.fetch, raw.fetch):
                try:
                    for part in await fetch(10, 100):
                        values = getattr(part, "values", None)
                        found += [part.value] if values is None else values.to_pylist()  # type: ignore[union-attr]
                except LogUnavailable:
                    continue
    assert found == [b"after", b"after"]
    await raw.close()


async def test_whoever_had_nothing_to_say_finds_brokers_that_have_moved(
    cut_log: KafkaLog, network: Network, at: TopicPartition
) -> None:
    """Writers go on as they are, and lag is told; they looked at the old addresses until they were given up, the group for ever."""
    writer, once = await cut_log.writer("idle"), await cut_log.transactional_writer("tidemark.idle")

    async def used(value: bytes) -> None:
        await (await writer.send(at, NewRecord(value)))
        transaction = await once.begin([at])
        await transaction.send_batch(at, [NewRecord(value)])
        await transaction.commit()
        await cut_log.note_offsets("idle", {at: Offset(1)})

    await used(b"before")
    network.move()
    async with asyncio.timeout(30):
        await used(b"after")


async def test_a_broker_that_is_not_reached_is_named(cut_log: KafkaLog, network: Network, at: TopicPartition) -> None:
    """With the address that it tells clients and the reason, as that of a certificate for another host; it was `node id 1`."""
    told = r"broker 1 is not reached at 127\.0\.0\.1:\d+, its advertised\.listeners: .*Connect call failed"
    await cut_log.describe_topics([at.topic])
    network.move()
    with pytest.raises(LogUnavailable, match=told):
        await cut_log.describe_topics([at.topic])


async def test_noting_does_not_wait_for_ever(cut_log: KafkaLog, network: Network, at: TopicPartition) -> None:
    """A group whose coordinator is away: the next note is tried anew."""
    await cut_log.note_offsets("away", {at: Offset(0)})
    network.cut()
    async with asyncio.timeout(30):
        with pytest.raises(LogUnavailable, match="group away: noting offsets"):
            await cut_log.note_offsets("away", {at: Offset(1)})
    network.mend()
    await cut_log.note_offsets("away", {at: Offset(1)})


async def test_tasks_that_note_at_once_leave_no_consumer_behind(
    kafka_broker: str, at: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of a processor share its group; each opened a consumer, and one of them stayed open for the process' life."""
    open_ = set[AIOKafkaConsumer]()
    start, stop = AIOKafkaConsumer.start, AIOKafkaConsumer.stop

    async def started(consumer: AIOKafkaConsumer) -> None:
        open_.add(consumer)
        await start(consumer)

    async def stopped(consumer: AIOKafkaConsumer) -> None:
        await stop(consumer)
        open_.discard(consumer)

    monkeypatch.setattr(AIOKafkaConsumer, "start", started)
    monkeypatch.setattr(AIOKafkaConsumer, "stop", stopped)
    log = KafkaLog(KafkaSettings(bootstrap=kafka_broker))
    await asyncio.gather(*(log.note_offsets("both", {at: Offset(n)}) for n in range(3)))
    await log.close()
    assert open_ == set()


async def test_a_reader_that_follows_asks_seldom_and_has_at_once_what_comes(
    kafka_broker: str, at: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fetch lasts where others would make ten, and a record ends it."""
    log = KafkaLog(KafkaSettings(bootstrap=kafka_broker, fetch_wait_ms=50))
    reader, asked = await log.reader(follows=True), list[object]()
    send = reader.client.send

    async def noted(node: object, request: object, **how: Any) -> Any:
        asked.extend([request] if isinstance(request, FetchRequest) else [])
        return await send(node, request, **how)

    monkeypatch.setattr(reader.client, "send", noted)
    await reader.assign({at: Offset(0)})
    assert await reader.fetch(1, 500) == []
    assert len(asked) == 1
    writer = await log.writer("w")
    await (await writer.send(at, NewRecord(b"here")))
    assert [record.value for record in await reader.fetch(1, 20_000)] == [b"here"]
    await log.close()


@pytest.mark.parametrize(("request_ms", "held_ms"), [(15_000, 5_000), (600, 200)])
def test_a_fetch_is_held_for_less_than_its_request_may_take(request_ms: int, held_ms: int) -> None:
    """Whatever the time for a request is set to."""
    settings = KafkaSettings(bootstrap="b:1", request_timeout_ms=request_ms)
    assert settings.following_wait_ms() == held_ms


async def test_a_leader_that_was_not_yet_asked_for_is_there(log: KafkaLog, at: TopicPartition) -> None:
    """However short the first fetch is: a partition is without a leader when the brokers say so, not when nobody has answered yet."""
    reader, raw = await log.reader(), RawReader(log._settings)
    await raw.start()
    for read in (reader, raw):
        await read.assign({at: Offset(0)})
        assert await read.fetch(1, 0) == []
    await raw.close()


async def test_F2_a_record_without_answer_breaks_its_writer(
    cut_log: KafkaLog, network: Network, at: TopicPartition
) -> None:
    """What is not acknowledged in time fails every result and the writer, whose closing does not wait (F2)."""
    writer = await cut_log.writer("w")
    await (await writer.send(at, NewRecord(b"before")))
    network.cut()
    results = [await writer.send(at, NewRecord(b"%d" % i)) for i in range(3)]
    async with asyncio.timeout(60):
        for result in results:
            with pytest.raises(LogUnavailable, match="delivery_timeout_ms"):
                await result
        with pytest.raises(LogUnavailable):
            await writer.flush()
        with pytest.raises(LogUnavailable):
            _ = await writer.send(at, NewRecord(b"more"))
        await writer.close()
        with pytest.raises(LogUnavailable):
            await cut_log.writer("x")
    network.mend()
    again = await cut_log.writer("w")
    assert await (await again.send(at, NewRecord(b"again"))) == 1, "nothing of the broken writer follows"


async def test_S3_a_commit_without_answer_is_not_known(cut_log: KafkaLog, network: Network, at: TopicPartition) -> None:
    """A commit that is not answered raises LogUnavailable; the identity's next holder finds it ended (S3)."""
    writer = await cut_log.transactional_writer(at.topic)
    transaction = await writer.begin()
    await transaction.send_batch(at, [NewRecord(b"a")])
    network.cut()
    async with asyncio.timeout(60):
        with pytest.raises(LogUnavailable, match="committing"):
            await transaction.commit()
        with pytest.raises(LogUnavailable):
            await writer.begin()
        await writer.close()
    network.mend()
    following = await cut_log.transactional_writer(at.topic)
    transaction = await following.begin()
    await transaction.send_batch(at, [NewRecord(b"b")])
    await transaction.commit()
    reader = await cut_log.reader(committed_only=True)
    await reader.assign({at: Offset(0)})
    async with asyncio.timeout(30):
        found = await reader.fetch(10, 100)
        while not found:
            found = await reader.fetch(10, 100)
    assert [r.value for r in found] == [b"b"]


async def test_S3_who_looks_behind_a_commit_finds_its_records(log: KafkaLog, kafka_broker: str) -> None:
    """Kafka answers a commit before it has told the partitions: a reader that asks for their ends then would miss records."""
    topic = f"t-{uuid.uuid4().hex}"
    await log.create_topic(topic, 16)
    places = [TopicPartition(topic, number) for number in range(16)]
    writer = await log.transactional_writer(topic)
    async with AIOKafkaConsumer(bootstrap_servers=kafka_broker, isolation_level="read_committed") as consumer:
        for turn in range(30):
            transaction = await writer.begin(places)
            for place in places:
                await transaction.send_batch(place, [NewRecord(b"a")])
            await (transaction.abort() if turn % 3 else transaction.commit())
            ends = await consumer.end_offsets([theirs(place) for place in places])
            assert set(ends.values()) == {2 * (turn + 1)}, f"behind {turn + 1} transactions of a record and a marker"
    await writer.close()


@pytest.mark.parametrize("call", ["send", "commit"])
async def test_S3_a_holder_that_was_fenced_before_its_next_call_is_told_so(
    log: KafkaLog, at: TopicPartition, call: str
) -> None:
    """The library hears it by itself, and then says only that there is no transaction."""
    old = await log.transactional_writer(f"id-{at.topic}")
    await log.transactional_writer(f"id-{at.topic}")
    transaction = await old.begin([at])
    await asyncio.wait([old._producer.raw._txn_manager.wait_for_transaction_end()])
    with pytest.raises(Fenced):
        await (transaction.send_batch(at, [NewRecord(b"zombie")]) if call == "send" else transaction.commit())


async def test_S3_a_batch_that_the_broker_refuses_fails_the_commit(log: KafkaLog) -> None:
    """The topic's limit is below ours: the broker refuses, and the commit does not pass over it."""
    at = TopicPartition(f"t-{uuid.uuid4().hex}", 0)
    await log.create_topic(at.topic, 1, {"max.message.bytes": "1000"})
    writer = await log.transactional_writer(at.topic)
    transaction = await writer.begin()
    await transaction.send_batch(at, [NewRecord(bytes(5_000))])
    with pytest.raises(LogError, match=r"MessageSizeTooLarge|RecordListTooLarge"):
        await transaction.commit()
    await writer.close()
    await (await log.transactional_writer(at.topic)).close()
    reader = await log.reader(committed_only=True)
    await reader.assign({at: Offset(0)})
    assert await reader.fetch(10, 300) == []


async def test_a_partition_that_is_added_is_written_to(log: KafkaLog, at: TopicPartition) -> None:
    """By writers that have written to the topic before."""
    added = TopicPartition(at.topic, 5)
    writer, sealed = await log.writer(at.topic), await log.transactional_writer(at.topic)

    async def write(place: TopicPartition) -> None:
        await (await writer.send(place, NewRecord(b"x")))
        transaction = await sealed.begin((place,))
        await transaction.send_batch(place, [NewRecord(b"x")])
        await transaction.commit()

    await write(at)
    admin = AIOKafkaAdminClient(bootstrap_servers=log._settings.bootstrap)
    await admin.start()
    await admin.create_partitions({at.topic: NewPartitions(total_count=6)})
    await admin.close()
    await write(added)
    await writer.close()
    await sealed.close()
    assert (await log.end_offsets([added]))[added] > 1


async def test_F2_order_is_kept_when_the_buffer_is_full(kafka_broker: str, at: TopicPartition) -> None:
    """Coroutines that wait for room in one partition go on in the order in which they called (F2)."""
    log = KafkaLog(KafkaSettings(bootstrap=kafka_broker, message_bytes_max=2_000))
    writer = await log.writer("w")
    order: list[bytes] = []

    async def send(number: int) -> None:
        for step in range(40):
            value = b"%d.%d." % (number, step) + bytes(100 + 90 * (number + step) % 700)
            order.append(value)
            _ = await writer.send(at, NewRecord(value))

    await asyncio.gather(*(send(number) for number in range(8)))
    await writer.flush()
    reader = await log.reader()
    await reader.assign({at: Offset(0)})
    found: list[bytes | None] = []
    async with asyncio.timeout(30):
        while len(found) < len(order):
            found += [r.value for r in await reader.fetch(1000, 100)]
    assert found == order
    await log.close()


async def test_a_cancelled_batch_cannot_be_committed(
    log: KafkaLog, at: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When handing over was cancelled half way, the transaction cannot be committed with a part of its records."""
    writer = await log.transactional_writer(at.topic)
    transaction = await writer.begin()
    await transaction.send_batch(at, [NewRecord(b"first")])
    stuck = asyncio.Event()

    async def wait_for_ever(*_: object, **__: object) -> None:
        stuck.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(writer._producer.raw, "send_batch", wait_for_ever)
    sending = asyncio.ensure_future(transaction.send_batch(at, [NewRecord(b"second")]))
    await stuck.wait()
    sending.cancel()
    await asyncio.wait({sending})
    with pytest.raises(LogError, match="cancelled"):
        await transaction.commit()


@pytest.mark.slow
async def test_a_broker_that_is_killed_and_comes_back(fresh_broker: LocalBroker) -> None:
    """Acknowledged records are there after a kill, readers go on by themselves, a new writer goes on behind them."""
    log = KafkaLog(impatient(fresh_broker.bootstrap))
    at = TopicPartition("t", 0)
    await log.create_topic("t", 1)
    writer, reader = await log.writer("w"), await log.reader()
    assert await (await writer.send(at, NewRecord(b"before"))) == 0
    await reader.assign({at: Offset(0)})
    async with asyncio.timeout(30):
        while not await reader.fetch(10, 100):
            pass
    fresh_broker.kill()
    with pytest.raises(LogUnavailable):
        await (await writer.send(at, NewRecord(b"lost")))
    with pytest.raises(LogUnavailable):
        await read_forever(reader.fetch)
    await writer.close()
    assert await fresh_broker.start() == log._settings.bootstrap
    again = await log.writer("w")
    assert await (await again.send(at, NewRecord(b"after"))) == 1
    async with asyncio.timeout(60):
        found = None
        while found is None:
            with contextlib.suppress(LogUnavailable):
                found = next(iter(await reader.fetch(10, 100)), None)
    assert (found.offset, found.value) == (1, b"after")
    assert (await log.begin_offsets([at]), await log.end_offsets([at])) == ({at: 0}, {at: 2})
    await log.close()


async def test_the_library_does_not_flood_the_log(
    cut_log: KafkaLog, network: Network, at: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    """While the broker is away the library's repeated errors show once, not at every attempt."""
    reader = await cut_log.reader()
    await reader.assign({at: Offset(0)})
    network.cut()
    with caplog.at_level(logging.DEBUG), pytest.raises(LogUnavailable):
        await read_forever(reader.fetch)
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(lines) <= len(set(lines)) + 1


async def test_a_topic_for_which_too_few_brokers_count_yet_is_tried_again(
    kafka_broker: str, unique_name: Callable[[str], str]
) -> None:
    """Brokers that are starting are fenced, or not registered: a coordinator that came before them waits, and does not end."""
    log, name = KafkaLog(KafkaSettings(bootstrap=kafka_broker, replication=3)), unique_name("early")
    with pytest.raises(LogUnavailable, match=f"creating topic {name}: the brokers cannot do it now .*try again"):
        await log.create_topic(name, 1)
    await log.close()
