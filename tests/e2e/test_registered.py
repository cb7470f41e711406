"""Avro from one topic to another on a real broker, by real processes, with a schema registry over HTTP."""

import asyncio
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.harness.registry import Registry
from tidemark.services.audit.check import AuditFailed, audit_local
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.feed import Fed, feed
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.language.avro import parse_schema, reader_of, writer_of
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StartProcessor, StopProcessor
from tidemark.shared.model.values import Date
from tidemark.shared.ports.log import LogRecord, TopicPartition
from tidemark.shared.ports.registry import header_of
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.reading import followed

pytestmark = pytest.mark.e2e
NAME = ProcessorName("orders")
WORKERS = {"coordinator": 1, "source": 1, "operator": 1, "sink": 1, "spark": 0, "control": 0}
BEGIN_MS = 1_700_000_000_000
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "user", "type": "string"},
    {"name": "amount", "type": MONEY},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]
ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": FIELDS}
LATER = {**ORDER, "fields": [*FIELDS, {"name": "note", "type": ["null", "string"], "default": None}]}
PRICED = {
    "type": "record",
    "name": "Priced",
    "fields": [*FIELDS[:3], {"name": "doubled", "type": MONEY}, {"name": "key", "type": ["null", "string"]}],
}


def document(registry: str) -> str:
    source = {
        "connectionName": "broker",
        "topic": "orders",
        "schemaRegistry": {"connectionName": "registry"},
        "timeField": {"$toDate": "$at"},
        "schema": {"id": "long", "amount": "decimal"},
        "config": {"auto_offset_reset": "earliest", "keyFormat": "schemaRegistry"},
    }
    added = {"doubled": {"$multiply": ["$amount", 2]}, "key": {"$meta": "stream.source.key"}}
    emit = {
        "connectionName": "broker",
        "topic": "priced",
        "schemaRegistry": {
            "connectionName": "registry",
            "valueSchema": {"type": "avro", "schema": PRICED},
            "keySchema": {"type": "avro", "schema": "string"},
        },
        "config": {"key": "$user"},
    }
    return json.dumps({
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"},
            "registry": {"type": "schemaRegistry", "schemaRegistryUrls": [registry]},
        },
        "pipeline": [{"$source": source}, {"$addFields": added}, {"$unset": ["at", "note"]}, {"$emit": emit}],
        "options": {
            "checkpoint": {"interval": {"size": 200, "unit": "ms"}},
            "dlq": {"connectionName": "broker", "topic": "letters"},
        },
    })  # fmt: skip


class Shop:
    """A producer, as others are: it registers its schemas and writes."""

    def __init__(self, registry: Registry, installed: Installation) -> None:
        self.registry, self.installed = registry, installed
        self.numbers = [registry.add("orders-value", tree) for tree in (ORDER, LATER)]
        self.writers = [writer_of(parse_schema(tree)) for tree in (ORDER, LATER)]
        self.key = header_of(registry.add("orders-key", "string")) + writer_of(parse_schema("string"))("shop")
        self.sent = 0

    def record(self, number: int) -> bytes:
        version = number % 2
        order = {"id": number, "user": f"u{number % 5}", "amount": Decimal(number).scaleb(-2)}
        whole = {**order, "at": Date(BEGIN_MS + number)}
        return header_of(self.numbers[version]) + self.writers[version](whole)

    async def send(self, count: int) -> None:
        """Orders, and a record of another kind behind each tenth."""
        records = []
        for number in range(self.sent, self.sent + count):
            records.append((0, self.key, self.record(number)))
            if number % 10 == 0:
                records.append((0, self.key, b"\x00\x00\x00\x00\x63" if number % 20 else b"{}"))
        await feed(self.installed.log, "orders", records, len(records), 0.0, Fed())
        self.sent += count

    async def until_out(self, topic: str, count: int) -> list[LogRecord]:
        """Wait until so many are out; all that are."""
        seen = 0
        async for _ in followed(self.installed.log, SystemClock(), TopicPartition(topic, 0), committed_only=True):
            seen += 1
            if seen == count:
                break
        return [record async for record in committed_records(self.installed.log, topic)]


async def until(client: Client, state: str) -> None:
    """Wait until the processor is in that state."""
    async for status in client.watch(NAME):
        if status.state == state:
            return


async def _story(folder: Path, registry: Registry) -> None:
    async with installation(folder, {}, WORKERS) as installed:
        for topic in ("orders", "priced", "letters"):
            await installed.log.create_topic(topic, 1, {"retention.ms": "-1"})
        shop = Shop(registry, installed)
        await shop.send(100)
        registry.away = 8
        await installed.ensure_started(NAME, document(registry.url), {})
        await shop.until_out("priced", 100)
        client = installed.client
        await client.request(StopProcessor(client.unique(), NAME, drain=False))
        await until(client, "STOPPED")
        await shop.send(100)
        await client.request(StartProcessor(client.unique(), NAME))
        out = await shop.until_out("priced", 200)
        letters = await shop.until_out("letters", 20)
        number = registry.add("priced-value", PRICED)
        read = reader_of(parse_schema(PRICED))
        rows: list[Any] = [parse_json(read((record.value or b"")[5:])) for record in out]
        assert {(record.value or b"")[:5] for record in out} == {header_of(number)}
        assert Counter(int(row["id"]) for row in rows) == Counter(range(200))
        assert all(row["amount"] == Decimal(int(row["id"])).scaleb(-2) for row in rows)
        assert all(row["doubled"] == row["amount"] * 2 and row["key"] == "shop" for row in rows)
        assert {record.key[5:] for record in out if record.key} == {b"\x04u%d" % n for n in range(5)}
        reasons = Counter(json.loads(letter.value or b"")["errInfo"]["reason"][:60] for letter in letters)
        assert sorted(reasons.values()) == [10, 10]
        schemas = [count for what, count in registry.asked.items() if what.startswith("GET /schemas/ids/")]
        assert sum(schemas) < 40, "a request a schema, an unknown number and an outage, none a record"
        await client.request(StopProcessor(client.unique(), NAME, drain=True))
        await until(client, "FINISHED")
        audited = await audit_local(NAME, folder)
        assert (audited.records, audited.accepted, audited.dead_letters) == (220, 200, 20)
        assert (sum(audited.outputs.values()), audited.unchecked) == (220, ())
        await feed(installed.log, "priced", [(0, shop.key, out[0].value or b"")], 1, 0.0, Fed())
        with pytest.raises(AuditFailed, match=r"topic priced partition 0 .* is in no release of any job"):
            await audit_local(NAME, folder)


def test_avro_goes_through_whole_and_once_over_outage_and_restart(tmp_path: Path) -> None:
    """Two versions of a schema, keys, exact money: each order comes out once, in the sink's schema; the rest are dead letters.

    An audit reads source and target again, and finds the same.
    """

    async def run() -> None:
        registry = await Registry().start()
        try:
            await _story(tmp_path, registry)
        finally:
            await registry.stop()

    asyncio.run(run())
