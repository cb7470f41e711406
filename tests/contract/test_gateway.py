"""The gateway, on a log in memory and on a real broker: a batch is there whole when it is answered, or not at all."""

import asyncio
import gzip
import itertools
import json
import uuid
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import ClientSession

from tidemark.services.gateway.service import GatewayService
from tidemark.services.gateway.settings import GatewaySettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.adapters.kafka_writer import partition_of_key
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import Log, LogRecord, LogUnavailable, TopicPartition

TOKEN = "a-token-of-the-tests"
LINES = "application/x-ndjson"
SETTINGS = GatewaySettings(
    port=0, batch_bytes_max=10_000, in_flight_bytes_max=15_000, record_bytes_max=500, records_max=50
)


@dataclass
class Asked:
    """A gateway, and the log behind it."""

    session: ClientSession
    service: GatewayService
    log: Log
    topic: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex}")

    async def send(
        self, body: bytes, kind: str = LINES, *, query: str = "", topic: str = "", **headers: str
    ) -> tuple[int, Any]:
        url = f"{self.service.url}/v1/topics/{topic or self.topic}/records{query}"
        given = {
            "Authorization": f"Bearer {TOKEN}",
            "Content-Type": kind,
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        async with self.session.post(url, data=body, headers=given) as answer:
            return answer.status, {**json.loads(await answer.read()), "retry": answer.headers.get("Retry-After")}

    async def records(self, count: int = 2) -> list[LogRecord]:
        """What committed readers see now in so many partitions, one by one."""
        partitions = [TopicPartition(self.topic, n) for n in range(count)]
        ends = await self.log.end_offsets(partitions)
        reader = await self.log.reader(committed_only=True)
        await reader.assign(dict.fromkeys(partitions, Offset(0)))
        found: list[LogRecord] = []
        while any(reader.position(p) < ends[p] for p in partitions):
            found += await reader.fetch(100, 100)
        await reader.close()
        return sorted(found, key=lambda r: (r.partition, r.offset))


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The broker's address; empty for the log in memory."""
    return str(request.getfixturevalue("kafka_broker")) if request.param == "kafka" else ""


@pytest.fixture
async def asked(bootstrap: str) -> AsyncIterator[Asked]:
    clock, executor = SystemClock(), AsyncExecutor()
    log: Log = MemoryLog(MemoryBroker(clock))
    if bootstrap:
        log = KafkaLog(KafkaSettings(bootstrap=bootstrap))
    service = GatewayService(log, clock, executor, f"g-{uuid.uuid4().hex}", "tidemark", SETTINGS, TOKEN)
    errors: list[BaseException] = []
    running = executor.spawn(service.run(), "gateway", errors.append)
    await service.serving.wait()
    async with ClientSession() as session:
        asked = Asked(session, service, log)
        await log.create_topic(asked.topic, 2)
        yield asked
    service.stop()
    await running.join()
    assert errors == []


def lines(*documents: Any) -> bytes:
    return b"\n".join(json.dumps(document).encode() for document in documents) + b"\n"


async def test_a_batch_is_there_when_it_is_answered(asked: Asked) -> None:
    """Lines and arrays alike, as they were sent, with key and id; one key lies in one partition, in order."""
    status, told = await asked.send(lines(*({"k": "a", "n": n} for n in range(3))), query="?key=k&id=n")
    assert (status, told["written"]) == (200, 3)
    assert (await asked.send(json.dumps([{"n": 3}, {"n": 4}]).encode(), "application/json", Idempotency_Key="b"))[
        0
    ] == 200
    found = await asked.records()
    keyed = [r for r in found if r.key == b"a"]
    assert [json.loads(r.value or b"")["n"] for r in keyed] == [0, 1, 2]
    assert [r.headers for r in keyed] == [(("record-id", str(n).encode()),) for n in range(3)]
    assert len({r.partition for r in keyed}) == 1
    others = [r for r in found if r.key is None]
    assert [r.headers for r in others] == [(("record-id", b"b-0"),), (("record-id", b"b-1"),)]


@pytest.mark.parametrize(("query", "key"), [("?id=n", ""), ("", "batch-1"), ("?id=n", "batch-1"), ("?id=n&key=k", "")])
async def test_a_batch_that_is_sent_again_meets_its_first_sending(asked: Asked, query: str, key: str) -> None:
    """Each record lies where it lay: by its key, its id, or its batch's; ids are looked for within a partition."""
    headers = {"Idempotency-Key": key} if key else {}
    batch = lines(*({"k": f"k{n}", "n": n} for n in range(20)))
    for _ in range(3):
        assert (await asked.send(batch, query=query, **headers))[0] == 200
    places = Counter((record.value, record.partition) for record in await asked.records())
    assert set(places.values()) == {3}
    assert len(places) == 20


async def test_a_record_is_placed_by_its_id_whatever_batch_it_comes_with(asked: Asked) -> None:
    """Who sends a part of a batch again, or under another key, is understood as well."""
    for key, numbers in (("one", range(10)), ("two", range(5, 10)), ("", range(7))):
        headers = {"Idempotency-Key": key} if key else {}
        assert (await asked.send(lines(*({"n": n} for n in numbers)), query="?id=n", **headers))[0] == 200
    places = {(record.value, record.partition) for record in await asked.records()}
    assert len(places) == 10


async def test_a_bad_line_is_named_and_nothing_is_written(asked: Asked) -> None:
    """Whatever is wrong with one record, its place is said and no record of its batch is there; an empty batch is none."""
    good = lines({"k": 1})
    cases = [
        (good + b"{no json\n", LINES, "", 400, "line 2"),
        (good + b"\n[1]\n", LINES, "", 400, "line 3"),
        (b'[{"k": 1}, 7]', "application/json", "", 400, "[1]"),
        (b'{"k": 1}', "application/json", "", 400, "body"),
        (good + lines({"j": 1}), LINES, "?key=k", 400, "line 2, field k"),
        (good + lines({"k": "x" * 600}), LINES, "", 413, "line 2"),
        (lines(*({"k": n} for n in range(51))), LINES, "", 413, "line 51"),
        (good, "text/csv", "", 400, "header Content-Type"),
        (good, LINES, "?keys=k", 400, "query keys"),
        (b"x" * 10_001, LINES, "", 413, "body"),
        (lines({"k": ""}), LINES, "?id=k", 400, "line 1, field k"),
    ]
    for body, kind, query, status, place in cases:
        found = await asked.send(body, kind, query=query)
        assert (found[0], found[1]["error"]["place"]) == (status, place), body[:40]
    assert (await asked.send(b"\n"))[1]["written"] == 0
    assert await asked.records() == []


async def test_only_with_the_token_and_only_where_it_may(asked: Asked) -> None:
    """Without the token nothing is taken; the product's own topics, the broker's and unknown ones are not written to."""
    assert (await asked.send(lines({}), Authorization="Bearer other"))[0] == 401
    for topic in ("tidemark.commands", "tidemark.markers.x", "__consumer_offsets", "unknown"):
        assert (await asked.send(lines({}), topic=topic))[0] == 404
    assert await asked.records() == []


async def test_a_topic_that_was_made_just_now_is_there(asked: Asked) -> None:
    """The list of topics is kept for a while, and says of no topic that it is not there."""
    assert (await asked.send(lines({"n": 1})))[0] == 200
    assert (await asked.send(lines({"n": 1}), topic=f"{asked.topic}-new"))[0] == 404
    await asked.log.create_topic(f"{asked.topic}-new", 2)
    assert (await asked.send(lines({"n": 1}), topic=f"{asked.topic}-new"))[0] == 200


async def test_a_topic_may_be_made_anew_with_other_partitions(asked: Asked) -> None:
    """What topics there are is asked again: keys go where other clients put them now, and nothing goes to partitions that are gone."""
    service = GatewayService(
        asked.log, SystemClock(), AsyncExecutor(), "g", "tidemark", replace(SETTINGS, topics_age_ms_max=0), TOKEN
    )
    errors: list[BaseException] = []
    running = AsyncExecutor().spawn(service.run(), "gateway", errors.append)
    await service.serving.wait()
    again = Asked(asked.session, service, asked.log, asked.topic)
    for partitions in (1, 3):
        assert (await again.send(lines({"k": "a"}), query="?key=k"))[0] == 200
        await asked.log.delete_topics([asked.topic])
        assert (await again.send(lines({"k": "a"}), query="?key=k"))[0] == 404
        await asked.log.create_topic(asked.topic, partitions)
        keys = [f"k{n}" for n in range(20)]
        assert (await again.send(lines(*({"k": key} for key in keys)), query="?key=k"))[0] == 200
        found = [(r.key, r.partition) for r in await again.records(partitions)]
        assert sorted(found) == sorted((key.encode(), partition_of_key(key.encode(), partitions)) for key in keys)
    service.stop()
    await running.join()
    assert errors == []


@pytest.mark.kafka
async def test_what_a_topic_does_not_take_is_no_outage(kafka_broker: str) -> None:
    """A refusal by the brokers is the request's error, and nothing is written; sending it again would not mend it."""
    log = KafkaLog(KafkaSettings(bootstrap=kafka_broker))
    settings = replace(SETTINGS, topics_age_ms_max=0)
    service = GatewayService(log, SystemClock(), AsyncExecutor(), uuid.uuid4().hex, "tidemark", settings, TOKEN)
    errors: list[BaseException] = []
    running = AsyncExecutor().spawn(service.run(), "gateway", errors.append)
    await service.serving.wait()
    async with ClientSession() as session:
        for config in ({"max.message.bytes": "200"}, {"cleanup.policy": "compact"}):
            asked = Asked(session, service, KafkaLog(KafkaSettings(bootstrap=kafka_broker)))
            await asked.log.create_topic(asked.topic, 1, config)
            status, told = await asked.send(lines({"x": "y" * 400}))
            assert (status, told["error"]["place"], told["error"]["remedy"]) == (422, "topic", "nothing was written")
            assert await asked.records(1) == []
            assert (await asked.send(lines({"k": "a"}), query="?key=k"))[0] == 200
            await asked.log.close()
    service.stop()
    await running.join()
    assert errors == []


async def test_a_client_that_sends_no_body_keeps_nobody_out() -> None:
    """Its room is another's after `body_timeout_ms`. What is no text in a header is an error of the request, not of the service."""
    log = MemoryLog(MemoryBroker(SystemClock()))
    await log.create_topic("t", 1)
    settings = replace(SETTINGS, in_flight_bytes_max=10_000, body_timeout_ms=50)
    service = GatewayService(log, SystemClock(), AsyncExecutor(), "g", "tidemark", settings, TOKEN)
    errors: list[BaseException] = []
    running = AsyncExecutor().spawn(service.run(), "gateway", errors.append)
    await service.serving.wait()
    reader, writer = await asyncio.open_connection(*service.url.removeprefix("http://").split(":"))
    head = (
        f"POST /v1/topics/t/records HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: {LINES}\r\n"
    )
    writer.write(f"{head}Content-Length: 10000\r\n\r\n".encode())
    assert b"408" in await reader.readline()
    writer.close()
    async with ClientSession() as session:
        assert (await Asked(session, service, log, "t").send(lines({"x": 1})))[0] == 200
    service.stop()
    await running.join()
    assert errors == []


class _Slow:
    """A log whose transactions wait for a word, or find no broker."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.go_on = asyncio.Event()
        self.opening = asyncio.Event()
        self.away = False

    async def transactional_writer(self, identity: str) -> Any:
        """After the word."""
        self.opening.set()
        await self.go_on.wait()
        if self.away:
            raise LogUnavailable("no broker answers")
        return await self._log.transactional_writer(identity)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


async def test_under_pressure_more_is_refused_and_comes_in_later(asked: Asked) -> None:
    """Bytes under way are bounded: what exceeds them is 429 with Retry-After; an outage is 503 and says that nothing was written."""
    slow = _Slow(asked.log)
    settings = replace(SETTINGS, in_flight_bytes_max=10_000, writers=1)
    executor = AsyncExecutor()
    service = GatewayService(slow, SystemClock(), executor, f"g-{uuid.uuid4().hex}", "tidemark", settings, TOKEN)
    errors: list[BaseException] = []
    running = executor.spawn(service.run(), "slow gateway", errors.append)
    await service.serving.wait()
    pressed = Asked(asked.session, service, asked.log, asked.topic)
    first = asyncio.gather(pressed.send(lines(*({"x": "y" * 400} for _ in range(20)))))
    await slow.opening.wait()
    status, told = await pressed.send(lines(*({"x": "y" * 400} for _ in range(10))))
    assert (status, told["retry"]) == (429, "1")
    slow.away = True
    slow.go_on.set()
    ((status, told),) = await first
    assert (status, told["retry"], "nothing was written" in told["error"]["remedy"]) == (503, "1", True)
    assert service.unready() == "no broker answers"
    slow.away = False
    assert (await pressed.send(lines({"x": 1})))[0] == 200
    assert service.unready() == ""
    assert len(await asked.records()) == 1
    service.stop()
    await running.join()
    assert errors == []


class _Away:
    """A log whose brokers answer from some moment on."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.there = False

    async def list_topics(self) -> Any:
        """As a client without brokers, or as the log."""
        if not self.there:
            raise LogUnavailable("no broker answers")
        return await self._log.list_topics()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


async def test_it_is_ready_again_without_a_batch() -> None:
    """Who is not ready gets no batches: whether brokers answer is asked, not learnt from one."""
    clock, executor, log = SystemClock(), AsyncExecutor(), _Away(MemoryLog(MemoryBroker(SystemClock())))
    service = GatewayService(log, clock, executor, "g", "tidemark", replace(SETTINGS, look_ms=10), TOKEN)
    errors: list[BaseException] = []
    assert service.unready() != "", "ready before any broker has answered"
    running = executor.spawn(service.run(), "gateway", errors.append)
    await service.serving.wait()
    for there, said in ((False, "no broker answers"), (True, ""), (False, "no broker answers"), (True, "")):
        log.there = there
        while service.unready() != said:
            await clock.sleep_ms(1)
    service.stop()
    await running.join()
    assert errors == []


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "members"])
async def test_a_packed_body_is_taken_by_what_it_unpacks_to(asked: Asked, encoding: str) -> None:
    """Its lines are records, within the same bounds; several members of gzip are one body."""
    body = b'{"a": 1}\n{"a": 2}\n'
    packed = {
        "gzip": gzip.compress(body), "deflate": zlib.compress(body), "members": gzip.compress(body[:9]) + gzip.compress(body[9:]),
    }[encoding]  # fmt: skip
    answer = await asked.send(packed, Content_Encoding="deflate" if encoding == "deflate" else "gzip")
    assert answer[0] == 200, answer
    assert [json.loads(r.value or b"") for r in await asked.records()] == [{"a": 1}, {"a": 2}]


async def test_bytes_that_a_packed_body_unpacks_to_count_as_in_flight(asked: Asked) -> None:
    """Small packed, large unpacked: one above the batch's bound is 413, and many at once are 429 but for those that have room."""
    large = gzip.compress(b" " * (SETTINGS.batch_bytes_max + 1))
    assert (await asked.send(large, Content_Encoding="gzip"))[0] == 413
    endless = gzip.compress(b" " * 50_000_000)
    assert (await asked.send(endless[: SETTINGS.batch_bytes_max], Content_Encoding="gzip"))[0] == 413
    fits = gzip.compress(b'{"a": 1}' + b" " * (SETTINGS.batch_bytes_max - 100))
    taken, gate = [], asyncio.Event()

    async def waits(*_: Any) -> None:
        taken.append(asked.service._in_flight_bytes)
        await gate.wait()

    asked.service._write = waits  # type: ignore[assignment, method-assign]
    sent = [asyncio.ensure_future(asked.send(fits, Content_Encoding="gzip")) for _ in range(5)]
    refused = [await each for each in itertools.islice(asyncio.as_completed(sent), 4)]
    assert {status for status, _ in refused} == {429}
    gate.set()
    assert sorted(status for status, _ in [await each for each in sent]) == [200, 429, 429, 429, 429]
    assert taken == [SETTINGS.batch_bytes_max - 92]
    assert asked.service._in_flight_bytes == 0


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"no gzip", "gzip", 400),
        (gzip.compress(b"{}", mtime=0)[:-5], "gzip", 400),
        (b"{}", "br", 415),
        (b"{}", "zstd", 415),
    ],
)
async def test_a_body_that_is_not_packed_as_it_says_is_refused(
    asked: Asked, body: bytes, encoding: str, status: int
) -> None:
    """With what was expected; nothing of it is written."""
    assert (await asked.send(body, Content_Encoding=encoding))[0] == status
    assert await asked.records() == []
