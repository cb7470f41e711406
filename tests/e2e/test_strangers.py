# ruff: noqa: N802 -- a test carries its rule's name
"""What a stranger does who reaches the brokers, and what a document does that reaches for more than it may, on a real installation."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Offset, ProcessorName
from tidemark.shared.model.messages import CreateProcessor, PutConnection
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition
from tidemark.shared.runtime.client import RequestRefused
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import encode_message

pytestmark = pytest.mark.e2e
WORKERS = {"coordinator": 1, "source": 1, "operator": 0, "sink": 1, "spark": 0}
NAME, EVIL = ProcessorName("honest"), ProcessorName("evil")
HOSTILE = 400
"""Records on each internal topic."""


def copying(source: Path, out: Path) -> str:
    """A document that copies lines."""
    return json.dumps(
        {
            "connections": {
                "in": {"type": "files", "path": str(source.parent)},
                "out": {"type": "files", "path": str(out)},
            },
            "pipeline": [
                {
                    "$source": {
                        "connectionName": "in",
                        "path": source.name,
                        "format": "csv",
                        "ordered": True,
                        "follow": True,
                    }
                },
                {"$emit": {"connectionName": "out", "path": "rows", "format": "json"}},
            ],
            "options": {"checkpoint": {"interval": {"size": 500, "unit": "ms"}}},
        }
    )


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Installation, Log]]:
    """An installation with a processor that runs, and a stranger's client."""
    (folder / "rows.csv").write_text("a\n1\n2\n3\n")
    async with installation(folder / "data", {}, WORKERS) as there:
        stranger = KafkaLog(KafkaSettings(bootstrap=there.cluster.bootstrap, client="stranger"))
        try:
            await there.ensure_started(NAME, copying(folder / "rows.csv", folder / "out"), {})
            await commits(there, 2)
            yield there, stranger
        finally:
            await stranger.close()


async def commits(there: Installation, more: int) -> None:
    """Wait for further checkpoints."""
    first: int | None = None
    async for status in there.client.watch(NAME):
        assert status.state in ("CREATED", "STARTING", "RUNNING"), status.reason
        first = status.commits if first is None else first
        if status.state == "RUNNING" and status.commits >= first + more:
            return


async def put(log: Log, partition: TopicPartition, records: list[NewRecord]) -> None:
    writer = await log.writer("stranger")
    for record in records:
        await (await writer.send(partition, record))
    await writer.close()


async def first_records(log: Log, partition: TopicPartition) -> list[NewRecord]:
    """What lies at the begin of a partition, as it can be copied."""
    begin = (await log.begin_offsets([partition]))[partition]
    reader = await log.reader()
    await reader.assign({partition: Offset(begin)})
    found = await reader.fetch(100, 500)
    await reader.close()
    return [NewRecord(r.value, r.key, r.headers) for r in found]


def hostile(draw: random.Random, copies: list[NewRecord]) -> NewRecord:
    """Bytes of any kind, or a real record that was changed or lost its seal."""
    record = draw.choice(copies) if copies else NewRecord(draw.randbytes(50))
    value = bytearray(record.value or b"")
    match draw.randrange(4):
        case 0:
            return NewRecord(draw.randbytes(draw.randrange(300)), draw.randbytes(5))
        case 1:
            return NewRecord(record.value, record.key)
        case 2 if value:
            value[draw.randrange(len(value))] ^= 1 << draw.randrange(8)
            return NewRecord(bytes(value), record.key, record.headers)
        case _:
            return NewRecord(
                draw.choice((b"[" * 25_000, b"9" * 5_000, None, b"\xc1")), record.key or b"name", record.headers
            )


def test_F10_nobody_obeys_who_has_no_key(tmp_path: Path) -> None:
    """A whole request, and hostile bytes on every topic, edges and mirrors among them: nothing is made, nothing ends."""

    async def story() -> None:
        async with running(tmp_path) as (there, stranger):
            before = there.cluster.pids()
            request = CreateProcessor("r", EVIL, copying(tmp_path / "rows.csv", tmp_path / "stolen"), {})
            await put(stranger, TopicPartition(Topics().requests, 0), [NewRecord(encode_message(request))])
            topics = [name for name in await stranger.list_topics() if name.startswith("tidemark.")]
            assert len(topics) > len(Topics().plain())
            draw = random.Random(14)
            for topic in topics:
                at = TopicPartition(topic, 0)
                copies = await first_records(stranger, at)
                records = [hostile(draw, copies) for _ in range(HOSTILE)]
                compacted = topic in (Topics().registry, Topics().connections)
                await put(stranger, at, [r for r in records if r.key or not compacted])
            with (tmp_path / "rows.csv").open("a") as more:
                more.write("4\n5\n")
            await commits(there, 3)
            status = (await there.client.statuses())[NAME]
            assert (set(await there.client.statuses()), status.state, status.generation) == ({NAME}, "RUNNING", 1)
            assert there.cluster.pids() == before

    asyncio.run(story())


def test_keys_and_secrets_are_their_owners_alone(tmp_path: Path) -> None:
    """Whatever the installation writes into its folder, others of the machine read none of it."""

    async def story() -> None:
        async with running(tmp_path):
            data = tmp_path / "data"
            assert data.stat().st_mode & 0o077 == 0
            for name in ("signing.keys", "environment.json"):
                assert (data / name).stat().st_mode & 0o077 == 0, name

    asyncio.run(story())


def of_source(stages: list[object], **connections: object) -> str:
    """A document of one record."""
    emit = {"$emit": {"connectionName": "out", "path": "rows", "format": "json"}}
    pipeline = [{"$source": {"documents": [{"a": "theirs"}]}}, *stages]
    return json.dumps(
        {"connections": connections, "pipeline": pipeline if "out" not in connections else [*pipeline, emit]}
    )


def test_a_document_reaches_what_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused: variables that nobody opened, the coordinator's database, a folder above its connection's, the link, foreign modules."""
    monkeypatch.setenv("A_SECRET", "xyzzy")
    monkeypatch.setenv("TIDEMARK_SECRET_WORD", "plugh")
    out = {"type": "files", "path": str(tmp_path / "out")}
    store = {"type": "sql", "url": f"sqlite:///{tmp_path / 'data' / 'coordinator.db'}"}
    look = {
        "$lookup": {
            "from": {"connectionName": "db", "coll": "tidemark_connections"},
            "localField": "a",
            "foreignField": "name",
            "as": "b",
        }
    }
    above = {"$emit": {"connectionName": "out", "path": "../beside/rows", "format": "json"}}
    mail = {"$source": {"connectionName": "k", "topic": "t"}}
    at_once = {
        "variable": of_source([], out={"type": "files", "path": f"{tmp_path}/${{A_SECRET}}"}),
        "own": of_source([], out={"type": "files", "path": f"{tmp_path}/${{TIDEMARK_STORE}}"}),
        "word": of_source([], out={"type": "files", "path": f"{tmp_path}/${{WORD}}"}),
        "store": of_source([look], out=out, db=store),
        "class": of_source([{"$compute": {"class": "antigravity:Fly", "key": "$a"}}], out=out),
        "host": json.dumps({
            "connections": {"k": {"type": "kafka", "bootstrapServers": "169.254.169.254:9092"}, "out": out},
            "pipeline": [mail, {"$emit": {"connectionName": "out", "path": "rows", "format": "json"}}],
        }),
    }  # fmt: skip
    later = {
        "above": json.dumps({"connections": {"files": out}, "pipeline": [
            {"$source": {"documents": [{"a": 1}]}}, {"$emit": {**above["$emit"], "connectionName": "files"}}]}),
        "named": of_source([{"$emit": {"connectionName": "hidden", "path": "rows", "format": "json"}}]),
    }  # fmt: skip

    async def story() -> None:
        async with running(tmp_path) as (there, _):
            ask = there.client.request
            for name, document in at_once.items():
                with pytest.raises(RequestRefused, match=r"open to documents|closed to documents|no computations|link"):
                    await ask(CreateProcessor(name, ProcessorName(name), document, {}))
            hidden = json.dumps({"type": "files", "path": f"{tmp_path}/${{WORD}}"})
            await ask(PutConnection("hidden", ProcessorName("hidden"), hidden))
            for name, document in later.items():
                await there.ensure_started(ProcessorName(name), document, {})
                ended = await there.until_ended(ProcessorName(name))
                assert ended.state == ("FAILED" if name == "above" else "FINISHED"), ended.reason
                assert "without `..`" in ended.reason or name == "named"
            assert (tmp_path / "plugh" / "rows").is_dir()
            found = {path.name for path in tmp_path.iterdir()}
            assert found & {"xyzzy", "beside"} == set()
            assert "xyzzy" in os.environ["A_SECRET"]

    asyncio.run(story())
