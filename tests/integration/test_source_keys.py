"""Keys of Kafka records: `$source.config.keyFormat` says how they are read, `keyFormatError` what becomes of others."""

import json
import logging
import struct
from typing import Any

import pytest

from tests.harness.installation import NAME, installed
from tidemark.services.audit.check import audit
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.ports.log import LogRecord, NewRecord, TopicPartition
from tidemark.shared.runtime.settings import RuntimeSettings

BYTES = {"$binary": {"base64": "//4=", "subType": "00"}}


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


OUT: dict[str, Any] = {"connectionName": "broker", "topic": "out"}


async def written(
    world: VirtualWorld, config: dict[str, Any], keys: list[bytes | None], emit: dict[str, Any]
) -> dict[str, list[LogRecord]]:
    """The records of all topics behind a run in which the audit agrees; documents have the keys that `$meta` shows."""
    source = {
        "connectionName": "broker",
        "topic": "in",
        "config": {"auto_offset_reset": "earliest", **config},
        "schema": {"id": "int"},
    }
    document = {
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
        "pipeline": [
            {"$source": source},
            {"$addFields": {"key": {"$ifNull": [{"$meta": "stream.source.key"}, "none"]}}},
            {"$emit": emit},
        ],
        "options": {"lateness": "split", "dlq": {"connectionName": "broker", "topic": "letters"}},
    }
    async with installed(world.clock, world.executor, settings=RuntimeSettings(engine="local")) as it:
        log = MemoryLog(it.broker)
        await log.create_topic("in", 1)
        await it.create(document)
        await it.start()
        writer = await log.writer("feeder")
        for number, key in enumerate(keys):
            record = NewRecord(json.dumps({"id": number}).encode(), key)
            await (await writer.send(TopicPartition("in", 0), record))
        await writer.close()
        await it.committed()
        await it.stop(drain=True)
        await audit(NAME, AuditedInstallation(MemoryCommitStore(it.store), it.memory_blobs, log, {}))
        return {
            topic: [s.record for p in partitions for s in p.stored if s.record]
            for topic, partitions in it.broker._topics.items()
        }


async def keyed(world: VirtualWorld, config: dict[str, Any], keys: list[bytes | None]) -> tuple[list[Any], list[Any]]:
    """What `$meta` shows of each record's key; and the letters about others."""
    found = await written(world, config, keys, OUT)
    shown, letters = [
        [json.loads(record.value or b"") for record in found.get(topic, ())] for topic in ("out", "letters")
    ]
    return [(each["id"], each["key"]) for each in shown], letters


@pytest.mark.parametrize(
    ("key_format", "key", "value"),
    [
        ("binData", b"\xff\xfe", BYTES),
        ("string", "\u00e9".encode(), "\u00e9"),
        ("json", b'{"a":[1]}', {"a": [1]}),
        ("int", struct.pack(">i", -7), -7),
        ("long", struct.pack(">q", 2**40), 2**40),
        ("double", struct.pack(">d", 0.5), 0.5),
    ],
)
def test_a_key_is_read_by_its_format_or_is_a_dead_letter(key_format: str, key: bytes, value: object) -> None:
    """`$meta` shows the value; a record without a key has none; one whose key is no such value is told with the reason."""
    config = {"keyFormat": key_format}
    shown, letters = run_virtual(lambda world: keyed(world, config, [key, None, b"\xff\xfe"]))
    bad = [] if key_format == "binData" else [2]
    assert shown == [(0, value), (1, "none"), *([(2, BYTES)] if not bad else [])]
    assert [letter["doc"]["id"] for letter in letters] == bad
    assert all(letter["errInfo"]["reason"].startswith(f"The record's key is no {key_format}: ") for letter in letters)
    assert all(letter["_stream_meta"]["source"]["key"] == BYTES for letter in letters)


def test_a_key_of_another_format_may_pass_as_its_bytes() -> None:
    """`keyFormatError: passThrough`."""
    config = {"keyFormat": "string", "keyFormatError": "passThrough"}
    shown, letters = run_virtual(lambda world: keyed(world, config, [b"a", b"\xff\xfe"]))
    assert (shown, letters) == ([(0, "a"), (1, BYTES)], [])


@pytest.mark.parametrize("key_format", ["string", "json", "long"])
def test_a_sink_reads_topic_and_key_of_a_record_as_stages_do(key_format: str) -> None:
    """For the topic that it writes to, and for the key that it writes, in the format in which the source reads keys."""
    keys = {"string": ["\u00e9".encode()], "json": [b'{"a":[1]}', b"7"], "long": [struct.pack(">q", 2**40)]}[key_format]
    key = {"key": {"$meta": "stream.source.key"}, "keyFormat": key_format}
    topic = {"$concat": [{"$meta": "stream.source.topic"}, "-out"]}
    emit = {"connectionName": "broker", "topic": topic, "config": key}
    found = run_virtual(lambda world: written(world, {"keyFormat": key_format}, list(keys), emit))
    assert [record.key for record in found.get("in-out", ())] == keys, found.get("letters")
