"""Whatever bytes lie on an internal topic, whoever reads it goes on: they are counted and skipped, and what comes behind them is read."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec
import pytest

from tests.harness.installation import installed
from tests.harness.sealing import KEYS, sealed
from tidemark.services.control.readmodel import ReadModel
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Epoch, Generation, JobId, Offset, ProcessorName
from tidemark.shared.model.messages import CreateProcessor, ProcessorStatus
from tidemark.shared.ports.log import LogRecord, NewRecord, TopicPartition
from tidemark.shared.runtime.fencing import HEADER, Headers, signed, token_of
from tidemark.shared.runtime.registry import KnownConnections, Registry
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import encode_message
from tidemark.shared.wire.seals import HEADER as SEAL

SEEDS = range(30)
RECORDS = 40
STATUS = ProcessorStatus(
    ProcessorName("p"), JobId("j"), "STOPPED", "", Generation(1), Epoch(7), Epoch(7), 1, '{"pipeline": []}', {}
)
WHOLE = (
    encode_message(STATUS),
    encode_message(CreateProcessor("r", ProcessorName("q"), '{"pipeline": []}', {})),
    b'{"type": "files", "path": "x"}',
)
ODD = (b"", b"\xff", b"\x00", b"null", b"[1]", b"7", b'"x"', b"NaN", b'{"a":', b"[" * 25_000, b"\x91" * 25_000, b"9" * 5_000)  # fmt: skip
TOKENS = (b"", b"\xff", b"9" * 5_000, b"-1", "٣".encode(), b"0x1")


def hostile(seed: int, leader: Headers = ()) -> Iterator[NewRecord]:
    """Records that no part of the product writes: cut, changed, nested, random; half of them claim to be the leader's.

    The first two cannot be read whatever the seed.
    """
    draw = random.Random(seed)
    yield NewRecord(b"no such thing", b"\xff\xfe", leader)
    yield NewRecord(b"\xc1 no such thing", b"name", leader)
    for _ in range(RECORDS):
        value = bytearray(draw.choice(WHOLE))
        match draw.randrange(4):
            case 0:
                value = bytearray(draw.choice(ODD))
            case 1:
                value = value[: draw.randrange(len(value))]
            case 2:
                value = bytearray(draw.randbytes(draw.randrange(200)))
            case _:
                value[0] = draw.choice((0xC1, 0x7F, 0xFF))
        key = draw.choice((None, b"", b"\xff", b"\xed\xa0\x80", b"name", draw.randbytes(8)))
        headers = ((HEADER, draw.choice(TOKENS)),) if draw.random() < 0.3 else leader * draw.randrange(2)
        yield NewRecord(bytes(value) if draw.random() < 0.95 else None, key, headers)


def read(topic: str, records: Iterator[NewRecord]) -> Iterator[LogRecord]:
    """As a reader hands them out."""
    for offset, record in enumerate(records):
        yield LogRecord(topic, 0, Offset(offset), 0, record.key, record.value, record.headers)


@pytest.mark.parametrize("seed", SEEDS)
def test_views_of_compacted_topics_pass_over_what_they_cannot_read(seed: int) -> None:
    """The registry and the connections: nothing is raised, nothing of it is kept as if it were something, and it is counted."""
    registry, connections = Registry(), KnownConnections()
    for record in read("registry", hostile(seed)):
        registry.take(record)
    for record in read("connections", hostile(seed)):
        connections.take(record)
    registry.take(LogRecord("registry", 0, Offset(99), 0, b"p", WHOLE[0]))
    connections.take(LogRecord("connections", 0, Offset(99), 0, b"c", WHOLE[2]))
    assert registry.statuses[ProcessorName("p")] == STATUS
    assert connections.values["c"] == msgspec.json.decode(WHOLE[2])
    assert all(isinstance(value, dict) for value in connections.values.values())
    assert registry.unreadable.counts["registry"] > 1
    assert connections.unreadable.counts["connections"] > 1


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_that_is_none_is_nobodys(token: bytes) -> None:
    """A header of any bytes is read; what is no token of a leader counts as none."""
    assert token_of(LogRecord("t", 0, Offset(0), 0, None, None, ((HEADER, token),))) == 0


def as_ours(topic: str, records: Iterable[NewRecord]) -> list[NewRecord]:
    """Sealed, as one of the installation's own processes would write them."""
    return [replace(r, headers=(*r.headers, (SEAL, KEYS.seal((topic, 0), r.key, r.value, r.headers)))) for r in records]


@pytest.mark.parametrize("ours", [False, True], ids=["a stranger's", "sealed"])
@pytest.mark.parametrize("seed", SEEDS)
def test_services_go_on_behind_what_they_cannot_read(seed: int, ours: bool) -> None:
    """Control's read model, a client and the coordinator, with hostile records on every topic that they follow meanwhile."""

    async def story(world: VirtualWorld) -> None:
        topics = Topics()
        async with installed(world.clock, world.executor, services=()) as there:
            broken: list[BaseException] = []
            await there.client.put_connection("zero", {"type": "files", "path": "x"})
            leader = signed(there.store.token)
            log = sealed(MemoryLog(there.broker))
            model = ReadModel(log, topics, world.clock, unreadable=log.unreadable)
            followed = model.start(world.executor, broken.append)

            def written(topic: str) -> list[NewRecord]:
                return as_ours(topic, hostile(seed, leader)) if ours else list(hostile(seed, leader))

            everywhere = (topics.registry, topics.connections, topics.reports, topics.requests, topics.answers)
            for name in ("first", "second"):
                for topic in everywhere:
                    there.broker.append(TopicPartition(topic, 0), written(topic))
                await there.client.put_connection(name, {"type": "files", "path": "x"})
            for topic in everywhere:
                there.broker.append(TopicPartition(topic, 0), written(topic))
            await there.client.put_connection("last", {"type": "files", "path": "x"})
            await world.clock.sleep_ms(5_000)
            assert {"first", "second", "last"} <= set(await there.client.connections())
            assert {"first", "second", "last"} <= set(model.connections)
            assert await there.client.statuses() == {}
            assert model.ready()
            assert broken == []
            assert {topics.registry, topics.connections, topics.reports} <= set(model.unreadable.counts)
            for handle in followed:
                handle.cancel()
                await handle.join()

    run_virtual(story)
