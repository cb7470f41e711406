"""Records of a schema registry: ours as other clients decode them, and theirs as a source reads them; by the tests' registry over HTTP."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tests.harness.clients.drawing import START_MS, coded, raw
from tests.harness.clients.jobs import ENDED_S
from tests.harness.clients.running import HERE, ClientFailed, Row, consumed, ran
from tests.harness.clients.standing import Brokers, ends_of, make
from tests.harness.clusters.jobs import WORKERS
from tests.harness.registry import Registry
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.ports.log import NewRecord, TopicPartition

_AT: Final = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}
_FIELDS: Final = [
    {"name": "id", "type": "long"}, {"name": "amount", "type": "double"}, _AT,
    {"name": "note", "type": ["null", "string"], "default": None}, {"name": "tags", "type": {"type": "array", "items": "string"}},
]  # fmt: skip
AVRO: Final = {"type": "record", "name": "Order", "namespace": "shop", "fields": _FIELDS}
JSON: Final = {
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object",
    "properties": {"id": {"type": "integer"}, "amount": {"type": "number"}, "at": {"type": "integer"}},
}  # fmt: skip
DOCUMENTS: Final = [
    {"id": n, "amount": n / 4, "at": START_MS + n, "note": f"ä{n}" if n % 3 else None, "tags": ["a"] * (n % 3)}
    for n in range(-3, 40)
]
"""What is written, in both directions."""
_SCHEMAS: Final[Mapping[str, Any]] = {"avro": AVRO, "json": JSON}


async def _node(brokers: Brokers, role: str, said: Mapping[str, Any], given: Sequence[Any]) -> list[Any]:
    process = await asyncio.create_subprocess_exec(
        "node", str(HERE / "node" / "registered.mjs"), role, cwd=brokers.built / "node",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await process.communicate("".join(json.dumps(each) + "\n" for each in (said, *given)).encode())
    if process.returncode:
        raise ClientFailed(f"kafkajs' registry, {role}: {error.decode(errors='replace')[-500:]}")
    return [json.loads(line) for line in out.splitlines()]


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)


def _alike(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """To compare, in any order: numbers by their value."""
    numbers = ("id", "amount", "at")
    return sorted(json.dumps({k: float(v) if k in numbers else v for k, v in sorted(one.items())}) for one in documents)


async def _ran(there: Installation, brokers: Brokers, name: str, document: Mapping[str, Any]) -> list[Row]:
    await make(brokers.new, f"{name}-out", {}, 1)
    await there.ensure_started(ProcessorName(name), json.dumps(document), {})
    async with asyncio.timeout(ENDED_S):
        await there.until_ended(ProcessorName(name))
    return await consumed(
        "java", brokers.built, brokers.new, f"{name}-out", await ends_of(brokers.new, f"{name}-out", 1)
    )


async def registered(brokers: Brokers, folder: Path, tag: str) -> list[str]:
    """What did not hold."""
    registry, log, wrong = await Registry().start(), KafkaLog(KafkaSettings(bootstrap=brokers.new)), []
    connections = {
        "theirs": {"type": "kafka", "bootstrapServers": brokers.new},
        "registry": {"type": "schemaRegistry", "schemaRegistryUrls": [registry.url]},
    }
    known = {"schemaRegistry": {"connectionName": "registry"}}

    async def write(topic: str, values: Sequence[bytes]) -> None:
        await make(brokers.new, topic, {}, 1)
        writer = await log.writer("feeder")
        for value in values:
            await (await writer.send(TopicPartition(topic, 0), NewRecord(value)))

    def document(
        topic: str, stages: Sequence[Any], name: str, emit: Mapping[str, Any], more: Mapping[str, Any]
    ) -> dict[str, Any]:
        source = {
            "connectionName": "theirs",
            "topic": topic,
            "config": {"startAt": "earliest"},
            "until": "latest",
            **more,
        }
        target = {"connectionName": "theirs", "topic": f"{name}-out", **emit}
        return {"connections": connections, "pipeline": [{"$source": source}, *stages, {"$emit": target}]}

    environment = {"TIDEMARK_RUNTIME": json.dumps({"engine": "local"}), "TIDEMARK_EXTRA": "{}"}
    try:
        async with installation(folder, environment, WORKERS) as there:
            await write(f"plain-{tag}", [json.dumps(one).encode() for one in DOCUMENTS])
            for kind, schema in _SCHEMAS.items():
                dated = [{"$addFields": {"at": {"$toDate": "$at"}}}] if kind == "avro" else []
                emit = {"schemaRegistry": {**known["schemaRegistry"], "valueSchema": {"type": kind, "schema": schema}}}
                out = await _ran(
                    there, brokers, f"as-{kind}-{tag}", document(f"plain-{tag}", dated, f"as-{kind}-{tag}", emit, {})
                )
                coded_ones = [coded(row.value) for row in out]
                readers = {"kafkajs": await _node(brokers, "decode", {"registry": registry.url}, coded_ones)}
                if kind == "avro":
                    asked: list[dict[str, Any]] = [
                        {"client": "", "bootstrap": registry.url},
                        *({"v": each} for each in coded_ones),
                    ]
                    readers["hamba"] = [
                        {**one, "at": _ms(one["at"])} for one in await ran("franz", brokers.built, "decode", asked)
                    ]
                for reader, found in readers.items():
                    wrong += (
                        [] if _alike(found) == _alike(DOCUMENTS) else [f"{reader} reads of our {kind}: {found[:2]}"]
                    )
                number = registry.add(f"theirs-{kind}-value", schema, kind.upper())
                theirs = await _node(brokers, "encode", {"registry": registry.url, "id": number}, DOCUMENTS)
                await write(f"theirs-{kind}-{tag}", [raw(each) or b"" for each in theirs])
                back = [{"$addFields": {"at": {"$toLong": "$at"}}}] if kind == "avro" else []
                name = f"back-{kind}-{tag}"
                rows = await _ran(there, brokers, name, document(f"theirs-{kind}-{tag}", back, name, {}, known))
                read = [json.loads(row.value or b"") for row in rows]
                wrong += [] if _alike(read) == _alike(DOCUMENTS) else [f"a source reads of kafkajs' {kind}: {read[:2]}"]
    finally:
        await log.close()
        await registry.stop()
    return wrong
