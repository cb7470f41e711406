"""Hostile inputs from outside the installation: bodies, commands, log lines, connections, answers of servers, batches of producers.

Each family is a function of a chooser, as in `hostile.py`, and raises what its reader does not name.
"""

import json
import random
from functools import cache
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c

from tests.harness.damage import damaged
from tests.harness.registry import MemoryRegistry
from tests.harness.sealing import KEYS
from tidemark.services.control.agents import check_expires
from tidemark.services.control.commands import Command
from tidemark.services.gateway.batch import Shape, records_of
from tidemark.services.library.release_world import InlineSpawner
from tidemark.services.operator.requests import Requests
from tidemark.services.source.connectors.registered import RegisteredRecords, _reader_of
from tidemark.shared.adapters.kafka_batches import BrokenBatch, PartitionAnswer
from tidemark.shared.adapters.registry import RegistrySettings, RestRegistry, answer_of
from tidemark.shared.language.avro import AvroError
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.documents.connections import read_connections
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.redaction import redacted_command, redacted_line, redacted_text, shown_connection
from tidemark.shared.language.schema import NO_SCHEMA
from tidemark.shared.language.stages import Connection, Https
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.decode import decode
from tidemark.shared.ports.http import HttpAnswer, ServerRefused
from tidemark.shared.ports.log import LogRecord
from tidemark.shared.ports.registry import (
    MAGIC,
    KnownSchema,
    RegistryDenied,
    RegistryUnavailable,
    SchemaRefused,
    SchemaType,
    SchemaUnknown,
)
from tidemark.shared.process.allowed import Allowed, NotAllowed
from tidemark.shared.process.web import Problem
from tidemark.shared.runtime.reading import Unreadable
from tidemark.shared.runtime.registry import KnownConnections, Registry
from tidemark.shared.runtime.requests import Asked, Asking, Wanted
from tidemark.shared.runtime.sealed_log import Sealing
from tidemark.shared.runtime.settings import LookupSettings
from tidemark.shared.wire.seals import HEADER

_LINES: Final = (
    b'{"id": 7, "user": {"name": "x", "n": 18446744073709551616}}\n{"id": "a", "user": {"name": null}, "n": -0.0}\n'
)
_COMMANDS: Final = (
    b'{"command": "create", "name": "p", "request": "r", "expires": "2030-01-31T12:00:00Z", "document": {"pipeline": []}}',
    b'{"command": "connect", "name": "c", "request": "r", "connection": {"type": "kafka", "config": {"sasl_password": "x"}}}',
    b'{"command": "stop", "name": "p", "request": "r", "expires": "0001-01-01T00:00:00+23:59", "until": {"t-0": 5}}',
)
_CONNECTIONS: Final = (
    b'{"type": "kafka", "bootstrapServers": "a:9092,[::1]:9093", "config": {"sasl_password": "${WORD}", "ssl": {"host": "x"}}}',
    b'{"type": "sql", "url": "postgresql+psycopg://user:word@host:5432/db?host=a,b&hostaddr=1.2.3.4"}',
    b'{"type": "https", "url": "https://user@host/a?b#c", "headers": {"Authorization": "x"}}',
    b'{"type": "schemaRegistry", "provider": "Confluent", "schemaRegistryUrls": ["http://127.0.0.1:8081"]}',
    b'{"type": "files", "path": "s3://bucket/x", "config": {"client_kwargs": {"endpoint_url": "http://h:1"}}}',
)
_SCHEMA: Final = json.dumps(
    {
        "type": "record", "name": "R", "fields": [
            {"name": "a", "type": ["null", "long", {"type": "map", "values": "string"}]},
            {"name": "b", "type": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 2}}},
            {"name": "c", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "d", "type": ["null", "R"]},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        ],
    }
)  # fmt: skip
_RECORD: Final = bytes([2, 14, 4, 1, 2, 3, 4, 0, 2, 7, 0, 2])
_ANSWERS: Final = (
    json.dumps(
        {"schema": _SCHEMA, "schemaType": "AVRO", "references": [{"name": "n", "subject": "s", "version": 1}]}
    ).encode(),
    b'{"id": 7, "is_compatible": false, "messages": ["a", {"b": 1}]}',
    b'{"error_code": 40403, "message": "not found"}',
)
_JSON: Final = b'{"city": "Utrecht", "at": {"$date": "2024-01-01T00:00:00Z"}, "n": {"$numberDecimal": "1E+6000"}, "t": "{\\"a\\": [1]}"}'


def a_body(chooser: random.Random) -> None:
    """Of the gateway, in each form, with paths of keys and ids."""
    lines = chooser.random() < 0.5
    body = _LINES if lines else b"[" + b",".join(_LINES.split()) + b"]"
    kind = "application/x-ndjson" if lines else "application/json"
    paths = ("", "id", "user", "user.n", "n", ".", "user..name")
    try:
        records_of(
            damaged(body, chooser), Shape(kind, chooser.choice(paths), chooser.choice(paths), "batch"), 1_000, 100
        )
    except Problem as problem:
        problem.answer()


def a_command(chooser: random.Random) -> None:
    """By topic: decoded, or put aside without secrets."""
    data = damaged(chooser.choice(_COMMANDS), chooser)
    redacted_command(data)
    try:
        command = msgspec.json.decode(data, type=Command)
        check_expires(command.expires, command.request, 0, 300_000)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Problem):
        return


def a_line(chooser: random.Random) -> None:
    """A log's, whoever has written it."""
    redacted_line(damaged(b" kafka://me:word@host:1/?token=x&a=b ".join(_COMMANDS), chooser).decode(errors="replace"))


def a_connection(chooser: random.Random) -> None:
    """Read, shown, and judged by what documents may reach."""
    data = damaged(chooser.choice(_CONNECTIONS), chooser)
    redacted_text(data.decode(errors="replace"))
    try:
        value = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    shown_connection(value)
    problems = Problems()
    found = read_connections({"c": value}, "connections", Scope(problems))
    for connection in found.values():
        try:
            problems.check()
            Allowed().check_connection(connection)
        except (InvalidDocument, NotAllowed):
            return


def on_topics(chooser: random.Random) -> None:
    """Of the registry and of connections, sealed, with a damaged seal, or without."""
    unreadable = Unreadable()
    sealing = Sealing(KEYS, "tidemark", unreadable)
    registry, connections = Registry(unreadable=unreadable), KnownConnections(unreadable=unreadable)
    value, key = damaged(chooser.choice((*_CONNECTIONS, *_COMMANDS)), chooser), damaged(b"name", chooser)
    topic = chooser.choice(("tidemark.registry", "tidemark.connections"))
    seal = KEYS.seal((topic, 0), key, value, ())
    seal = damaged(seal, chooser) if chooser.random() < 0.3 else seal
    record = LogRecord(topic, 0, Offset(0), 0, key, value, ((HEADER, seal),) if chooser.random() < 0.9 else ())
    if sealing.admits(record):
        (registry if topic.endswith("registry") else connections).take(record)
    assert not key or registry.statuses or connections.values or unreadable.counts, (
        "skipped without a count"
    )  # b"": a leader's


class _Told(RestRegistry):
    """The client, with answers that it is handed."""

    def __init__(self, chooser: random.Random) -> None:
        super().__init__(RegistrySettings(("http://registry",)))
        self._chooser = chooser

    async def _answer(self, method: str, url: str, body: Any) -> Any:
        status = self._chooser.choice((200, 200, 200, 404, 409, 422, 401))
        self.said = answer_of(status, damaged(self._chooser.choice(_ANSWERS), self._chooser))
        return self.said


def a_registry(chooser: random.Random) -> None:
    """What a schema registry says, for each question."""
    client = _Told(chooser)
    for asked in (client.schema(1), client.number("s", "AVRO", "{}", register=True), client.refused("s", "AVRO", "{}")):
        try:
            asked.send(None)
        except StopIteration:
            continue
        except (RegistryDenied, SchemaUnknown, SchemaRefused):
            assert not client.said.is_of_others
        except RegistryUnavailable:
            assert client.said.is_of_others
        finally:
            asked.close()


def avro(chooser: random.Random) -> None:
    """Schemas of a registry, and records of the schema."""
    text = _SCHEMA if chooser.random() < 0.7 else damaged(_SCHEMA.encode(), chooser).decode(errors="replace")
    reader = _reader_of(KnownSchema("AVRO", text), 1)
    if isinstance(reader, str):
        return
    assert reader.many is not None
    record = damaged(_RECORD, chooser)
    texts, sure = reader.many(pa.array([record], pa.binary()))
    try:
        found = reader.one(record)
    except AvroError:
        assert not sure[0]
        return
    assert not sure[0] or texts[0].as_py() == found
    parse_json(found)


_KNOWN: Final[dict[int, tuple[SchemaType, bytes]]] = {
    1: ("AVRO", _RECORD),
    2: ("JSON", _JSON),
    3: ("PROTOBUF", b"\x00\x08\x96\x01"),
}
"""Schemas of a registry by number: the type, and a record."""


class _Known(MemoryRegistry):
    """Knows some schemas, and no others."""

    async def schema(self, number: int) -> KnownSchema:
        if number not in _KNOWN:
            raise SchemaUnknown(f"schema {number}")
        return KnownSchema(_KNOWN[number][0], _SCHEMA)


def a_registered_record(chooser: random.Random) -> None:
    """Of a topic, by schemas of each type: a document, or the reason beside the record, and the others come."""
    keys, values = (pa.array([_of_registry(chooser) for _ in range(4)], pa.binary()) for _ in range(2))
    batch = RawBatch(SplitId("t-0"), 0, np.arange(4), np.arange(4), values, keys)
    reading = RegisteredRecords(_Known(), InlineSpawner(), 1 << 20, keys=True).decoded(batch)
    try:
        reading.send(None)
    except StopIteration as done:
        found: RawBatch = done.value
        read = [row for row in range(4) if row not in found.unread]
        decode(found.values.take(pa.array(read, pa.int64())), NO_SCHEMA)


def _of_registry(chooser: random.Random) -> bytes:
    number, (_, record) = chooser.choice(list(_KNOWN.items()))
    whole = bytes([MAGIC]) + number.to_bytes(4, "big") + record
    return whole if chooser.random() < 0.2 else damaged(whole, chooser)


@cache
def _requests() -> Requests:
    source, sink = ({"connectionName": "k", "topic": topic} for topic in ("in", "out"))
    tree = {"connectionName": "api", "as": "found", "config": {"parseJsonStrings": True}}
    connections = {"api": {"type": "https", "url": "http://api"}, "k": {"type": "kafka", "bootstrapServers": "b:1"}}
    document = {"connections": connections, "pipeline": [{"$source": source}, {"$https": tree}, {"$emit": sink}]}
    (stage,) = (each for each in parse(document).pipeline if isinstance(each, Https))
    nothing: Any = None
    connection = Connection("api", "https", {"url": "http://api"})
    asking = Asking(stage, connection, nothing, nothing, nothing, LookupSettings())
    return Requests(stage, asking, TaskContext(topic="in"), "job")


def an_https_answer(chooser: random.Random) -> None:
    """Of a server that `$https` asks."""
    kinds = ("application/json", "text/plain", "application/x+json", "", "image/png", "\xff")
    answer = HttpAnswer(
        chooser.choice((200, 200, 200, 204, 404, 301, 500)), chooser.choice(kinds), damaged(_JSON, chooser)
    )
    try:
        row = Asked(0, Wanted("", (), None), "key")
        _requests()._asking._judge(row, answer, passing=False)
        _requests()._answered(row, {})
    except ServerRefused:
        return


def a_batch_of_a_producer(chooser: random.Random) -> None:
    """Compressed records with a right CRC, as any producer may write them."""
    codec = chooser.choice((0, 1, 2, 3, 4))
    builder = DefaultRecordBatchBuilder(
        2, codec, is_transactional=False, producer_id=-1, producer_epoch=0, base_sequence=0, batch_size=10**6
    )
    for number in range(chooser.choice((1, 3, 40))):
        builder.append(number, number, None, _JSON, [])
    whole = bytes(builder.build())
    data = bytearray(whole[:61] + damaged(whole[61:], chooser))
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    answer = PartitionAnswer(bytes(data), 0, 0, (), committed_only=True)
    try:
        while answer.more:
            answer.take(1 << 20, with_keys=True)
    except BrokenBatch:
        return


FAMILIES: Final = (
    a_body, a_command, a_line, a_connection, on_topics, a_registry, avro, a_registered_record, an_https_answer,
    a_batch_of_a_producer,
)  # fmt: skip
