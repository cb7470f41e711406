"""Whatever stands in a topic: none of it stops the job; what cannot be used is a dead letter with reason, place and bytes."""

import asyncio
import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Offset, ProcessorName
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.ports.log import NewRecord, TopicPartition

pytestmark = pytest.mark.e2e
SECOND, GROWING, GROWN = ProcessorName("second"), "growing", "grown"
NAME, TOPIC, OUT, LETTERS = ProcessorName("meters"), "meters", "meters.seen", "meters.letters"
WORKERS = {"coordinator": 1, "source": 1, "operator": 1, "sink": 1, "spark": 0}
BYTES_MAX = 256 * 1024
"""`letterBytes`, by default."""
PARTITIONS = 2
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Bad:
    """A record, what its letter says, and where it was written."""

    value: bytes | None
    code: str
    reason: str


def reading(number: int, **others: Any) -> bytes:
    """A record that is in order, one a second."""
    return json.dumps({"id": number, "meter": f"m{number % 5}", "at": 1_000 * number, "wh": 1, **others}).encode()


def bad_records() -> list[Bad]:
    """Of every kind."""
    huge = b'{"id": 1, "meter": "' + b"x" * 3_000_000
    return [
        Bad(b'{"id": 1, "meter":', "DecodeFailure", "does not decode"),
        Bad(b"\xff\xfe{\x00}\x00", "DecodeFailure", "does not decode"),
        Bad(b"\x00\x00\x00\x00\x07\x02Hmeter", "DecodeFailure", "does not decode"),
        Bad(b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "DecodeFailure", "does not decode"),
        Bad(b"[1, 2]", "DecodeFailure", "no document"),
        Bad(b"null", "DecodeFailure", "no document"),
        Bad(b"", "DecodeFailure", "does not decode"),
        Bad(b"[" * 100_000, "DecodeFailure", "does not decode"),
        Bad(None, "NoValue", "no value"),
        Bad(b'{"id": 1, "meter": "m1", "wh": 2}', "", ""),
        Bad(b'{"id": 1, "meter": "m1", "at": "soon", "wh": 2}', "", ""),
        Bad(b'{"id": 1, "meter": "m1", "at": null, "wh": 2}', "", ""),
        Bad(b'{"id": 1, "meter": "m1", "at": 1e300, "wh": 2}', "", ""),
        Bad(b'{"id": null, "meter": "m1", "at": 1, "wh": 2}', "SchemaMismatch", "id is declared as int and is null"),
        Bad(reading(7, wh="many"), "SchemaMismatch", "wh"),
        Bad(reading(7, wh=[1]), "SchemaMismatch", "wh"),
        Bad(reading(7, meter=3), "SchemaMismatch", "meter"),
        Bad(reading(7, wh=2**40), "SchemaMismatch", "wh"),
        Bad(reading(770, meter="z", junk="z" * 2_000_000), "TargetWouldRefuse", "bytes"),
        Bad(reading(7, at=10_000 * HOUR_MS), "", "ahead"),
        Bad(huge, "DecodeFailure", "does not decode"),
        Bad(huge + b'"}', "", ""),
        Bad(reading(780, meter="x", then="raise", junk="y" * 900_000), "ComputationFailed", "no such meter"),
        Bad(reading(800, meter="m2", then="crash"), "ComputationFailed", "ended 1 times"),
    ]


def document() -> str:
    """Readings from Kafka, counted by meter, to Kafka."""
    source = {
        "connectionName": "broker",
        "topic": TOPIC,
        "config": {"auto_offset_reset": "earliest"},
        "timeField": {"$toDate": {"$toLong": "$at"}},
        "schema": {"id": "int", "meter": "string", "wh": "int"},
        "maxEventTimeJump": {"size": 10, "unit": "hour"},
        "watermark": {"strategy": "boundedDisorder", "maxDelay": {"size": 1, "unit": "minute"}},
    }
    compute = {"class": "tests.harness.computations:Fragile", "key": "$meter"}
    return json.dumps({
        "name": NAME,
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
        "pipeline": [
            {"$source": source},
            {"$compute": compute},
            {"$emit": {"connectionName": "broker", "topic": OUT}},
        ],
        "options": {
            "dlq": {"connectionName": "broker", "topic": LETTERS},
            "checkpoint": {"interval": {"size": 200, "unit": "ms"}},
        },
    })  # fmt: skip


async def run(there: Installation, records: list[tuple[int, bytes | None]]) -> dict[str, list[dict[str, Any]]]:
    """Write, drain; what the output topics hold, read committed."""
    for topic, count in ((TOPIC, PARTITIONS), (OUT, 1), (LETTERS, 1)):
        config = {"retention.ms": "-1", "max.message.bytes": str(4 << 20 if topic == TOPIC else 1 << 20)}
        await there.log.create_topic(topic, count, config)
    await there.ensure_started(NAME, document(), {"source": 1, "operator": 1, "sink": 1})
    await there.until_running(NAME)
    until: dict[str, Offset] = {}
    log = KafkaLog(KafkaSettings(bootstrap=there.cluster.bootstrap, message_bytes_max=4 << 20))
    writer = await log.writer("feeder")
    sent = [(p, await writer.send(TopicPartition(TOPIC, p), NewRecord(value, b"k"))) for p, value in records]
    for partition, offset in sent:
        until[f"{TOPIC}-{partition}"] = Offset(await offset + 1)
    await log.close()
    await there.client.request(StopProcessor(there.client.unique(), NAME, drain=True, until=until))
    status = await there.until_ended(NAME)
    assert status.state == "FINISHED", f"{status.state}: {status.reason}"
    found = {}
    for topic in (OUT, LETTERS):
        found[topic] = [json.loads(r.value or b"") async for r in committed_records(there.log, topic)]
    return found


async def grown_and_broken(there: Installation) -> str:
    """A partition comes while a second processor runs, and is read; then somebody writes into an edge's topic. Why it ended."""
    for topic in (GROWING, GROWN):
        await there.log.create_topic(topic, 1, {"retention.ms": "-1"})
    config = {"auto_offset_reset": "earliest"}
    pipeline = [
        {"$source": {"connectionName": "broker", "topic": GROWING, "config": config}},
        {"$emit": {"connectionName": "broker", "topic": GROWN}},
    ]
    options = {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}}
    connections = json.loads(document())["connections"]
    second = json.dumps({"name": SECOND, "connections": connections, "pipeline": pipeline, "options": options})
    await there.ensure_started(SECOND, second, {"source": 1, "sink": 1})
    await there.until_running(SECOND)
    admin = AIOKafkaAdminClient(bootstrap_servers=there.cluster.bootstrap)
    await admin.start()
    await admin.create_partitions({GROWING: NewPartitions(total_count=2)})
    await admin.close()
    writer = await there.log.writer("feeder")
    for partition in (0, 1):
        await (await writer.send(TopicPartition(GROWING, partition), NewRecord(reading(partition))))
    async for _ in there.client.heartbeats():
        if len([r async for r in committed_records(there.log, GROWN)]) == PARTITIONS:
            break
    (edge,) = [topic for topic in await there.log.list_topics() if topic.startswith(f"tidemark.{SECOND}.")]
    offset = await (await writer.send(TopicPartition(edge, 0), NewRecord(b"no frame")))
    await writer.close()
    status = await there.until_ended(SECOND)
    assert status.state == "FAILED"
    assert f"topic {edge} partition 0 offset {offset}" in status.reason
    return status.reason


def test_nothing_in_a_topic_stops_the_job(tmp_path: Path) -> None:
    """Good records come out once each; of the others, one that ends its process among them, each has its letter.

    In the same installation: a partition that comes is read, and a frame that no peer sends ends its processor with the place.
    """
    bad = bad_records()
    good = [reading(number) for number in range(1_000)]
    records: list[tuple[int, bytes | None]] = [(number % 2, value) for number, value in enumerate(good)]
    places: dict[tuple[int, int], Bad] = {}
    for number, one in enumerate(bad):
        records.insert(600 + 11 * number, (number % 2, one.value))
    offsets = [0, 0]
    for partition, value in records:
        for one in bad:
            if one.value is value:
                places[partition, offsets[partition]] = one
        offsets[partition] += 1

    settings = {"engine": "local", "deaths": {"deaths_max": 1}, "splits_interval_ms": 500}
    environment = {"TIDEMARK_RUNTIME": json.dumps(settings), "TIDEMARK_EXTRA": json.dumps({"failures_max": 3})}

    async def all_of_it() -> dict[str, list[dict[str, Any]]]:
        async with installation(tmp_path / "data", environment, WORKERS) as there:
            found = await run(there, records)
            assert "expected" in await grown_and_broken(there), "the frame's error does not say what was expected"
            return found

    found = asyncio.run(all_of_it())
    (tmp_path / "found.json").write_text(json.dumps(found))
    assert sorted(d["id"] for d in found[OUT]) == list(range(1_000))
    letters = found[LETTERS]
    assert len(letters) == len(bad)
    for letter in letters:
        if letter["errInfo"]["code"] == "TargetWouldRefuse":
            assert letter["_stream_meta"]["source"] == {}, "the computation made this document: it stands at no place"
            continue
        source = letter["_stream_meta"]["source"]
        one = places[source["partition"], source["offset"]]
        assert source["topic"] == TOPIC
        assert one.code in letter["errInfo"]["code"], letter
        assert one.reason in letter["errInfo"]["reason"], letter
        assert _same_bytes(letter, one.value or b""), letter


def _same_bytes(letter: dict[str, Any], value: bytes) -> bool:
    """A letter has the record itself, and of a huge one the beginning; documents may be written otherwise."""
    doc = letter["doc"]
    if "docBytes" in letter:
        data = base64.b64decode(doc["$binary"]["base64"])
        return len(data) == BYTES_MAX and abs(letter["docBytes"] - len(value)) < 100 and data[:6] == value[:6]
    if "$binary" in doc:
        return base64.b64decode(doc["$binary"]["base64"]) == value
    return bool(doc == json.loads(value))
