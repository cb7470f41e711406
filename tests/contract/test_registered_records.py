"""Kafka's source and sink with a schema registry: what is no record, outages, evolution, refusals."""

import json
from decimal import Decimal
from typing import Any, Literal

import pytest

from tests.contract.sinks_targets import AvroWorld, expression
from tests.contract.sources_worlds import AvroLanes
from tests.harness.opening import open_splits
from tests.harness.registry import MemoryRegistry, Registry
from tidemark.services.audit.history import Commit
from tidemark.services.audit.sources import TopicsRead
from tidemark.services.cli import connected
from tidemark.services.cli.connected import refused_by_what_is_there
from tidemark.services.control.outside import refused_by_registries
from tidemark.services.library.release_world import InlineSpawner, Task, World, batch_of
from tidemark.services.sink.connectors.kafkarecords import RecordMaker
from tidemark.services.sink.connectors.registered import RegisteredForms, Unregistered
from tidemark.services.source.connectors.registered import RegisteredRecords
from tidemark.shared.adapters.registry import RegistrySettings, RestRegistry
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.forms import RegisteredSchema
from tidemark.shared.language.protobuf import ProtobufSchemaError
from tidemark.shared.language.stages import KafkaEmit
from tidemark.shared.model.checkpoint import MirrorRow, SplitStand
from tidemark.shared.model.ids import FIRST_OFFSET, NO_EPOCH, Epoch, Generation, JobId, Offset, SplitId, VertexId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.values import Document, long
from tidemark.shared.operators.batches import batch_of as documents_batch
from tidemark.shared.ports.log import LogDenied, LogUnavailable, NewRecord, TopicPartition
from tidemark.shared.ports.registry import header_of
from tidemark.shared.ports.sink import TargetDenied, TargetRefused, TargetUnavailable
from tidemark.shared.process.allowed import OWNER, Allowed, NotAllowed
from tidemark.shared.process.connections import Connections
from tidemark.shared.process.protobuf_compiler import compiled


async def lanes(*records: NewRecord, **options: Any) -> AvroLanes:
    """One partition with numbers 0 and 1, then these records."""
    world = AvroLanes(**options)
    await world.add(0, [0, 1])
    writer = await world.log.writer("other")
    for record in records:
        await (await writer.send(TopicPartition("in", 0), record))
    await writer.flush()
    await writer.close()
    return world


async def all_of(world: AvroLanes) -> RawBatch:
    source = world.source()
    await open_splits(source)
    (batch,) = await source.fetch(1 << 20, 10)
    return batch


async def test_records_are_read_by_the_schema_of_each() -> None:
    """Versions of a schema side by side: each record has the fields of its own, each value with its type."""
    batch = await all_of(await lanes())
    assert batch.values.to_pylist() == [b'{"n":0}', b'{"n":1,"note":null}']
    assert batch.keys is not None
    assert batch.keys.to_pylist() == [b'"k"', b'"k"']
    assert batch.unread == {}


async def test_what_is_no_record_keeps_its_bytes_and_has_a_reason() -> None:
    """A foreign first byte, an unknown schema, damaged bytes, another type of schema, a foreign key: named, and the rest is read."""
    world = AvroLanes()
    proto = world.registry.content.add("other", "message A {}", "PROTOBUF")
    key = world.record(0).key
    bad = [
        NewRecord(b'{"n":5}', key),
        NewRecord(header_of(77) + b"\x00", key),
        NewRecord(header_of(world.numbers[1]) + b"\x04\x08", key),
        NewRecord(header_of(proto) + b"\x00\x0a", key),
        NewRecord(world.record(6).value, b"plain"),
        NewRecord(None, key),
    ]
    world = await lanes(*bad)
    world.registry.content.add("other", "message A {}", "PROTOBUF")
    batch = await all_of(world)
    assert [batch.values[row].as_py() for row in (2, 3, 4, 5)] == [each.value for each in bad[:4]]
    assert batch.values[7].as_py() is None
    said = dict(sorted(batch.unread.items()))
    assert list(said) == [2, 3, 4, 5, 6]
    for row, word in zip(
        said,
        ("begins with byte 0", "no schema 77", "union has 2 types", "Wire format was corrupt", "its key"),
        strict=True,
    ):
        assert word in said[row]


SHOP = """syntax = "proto3";
package shop;
import "parts/line.proto";
message Cart { int64 id = 1; repeated shop.Line lines = 2; message Note { string text = 1; } }
message Empty {}
"""
LINE = 'syntax = "proto3"; package shop; message Line { string sku = 1; int32 n = 2; }'


LINES = {"name": "parts/line.proto", "subject": "line", "version": 1}


async def test_messages_are_read_by_the_place_that_they_name() -> None:
    """The file's first message by one zero byte, others by their indexes; what a schema imports comes from its references."""
    server = await Registry().start()
    registry = RestRegistry(RegistrySettings((server.url,)))
    try:
        line = server.add("line", LINE, "PROTOBUF")
        references = [{"name": "parts/line.proto", "subject": "line", "version": 1}]
        cart = header_of(server.add("cart", SHOP, "PROTOBUF", references))
        world = AvroLanes(key_format_error="passThrough")
        world.registry = registry  # type: ignore[assignment]
        await world.grow(1)
        writer = await world.log.writer("producer")
        for value in (
            header_of(line) + b"\x00" + bytes.fromhex("0a0161 1003"),
            cart + b"\x00" + bytes.fromhex("0807 1205 0a0161 1003"),
            cart + b"\x04\x00\x00" + bytes.fromhex("0a0168"),
            cart + b"\x02\x04",
            cart + b"\x02\x02" + bytes.fromhex("0801"),
        ):
            await (await writer.send(TopicPartition("in", 0), NewRecord(value)))
        await writer.close()
        batch = await all_of(world)
        read = batch.values.to_pylist()
        assert read[:3] == [
            b'{"sku":"a","n":3}',
            b'{"id":{"$numberLong":"7"},"lines":[{"sku":"a","n":3}]}',
            b'{"text":"h"}',
        ]
        assert "message [2] is named, and the schema has 2 there" in batch.unread[3]
        assert "message shop.Empty has field 1, and its schema has not" in batch.unread[4]
    finally:
        await registry.close()
        await server.stop()


async def test_a_schema_that_does_not_compile_makes_its_records_unreadable() -> None:
    """The compiler's words are the reason; a name that leaves the folder is refused before it."""
    world = AvroLanes()
    broken = world.registry.content.add("broken", "message A { optional B b = 1; }", "PROTOBUF")
    world = await lanes(NewRecord(header_of(broken) + b"\x00"))
    world.registry.content.add("broken", "message A { optional B b = 1; }", "PROTOBUF")
    assert '"B" is not defined' in (await all_of(world)).unread[2]
    for name in ("../evil.proto", "/etc/evil.proto"):
        with pytest.raises(ProtobufSchemaError, match="a path below the schema's own folder"):
            compiled("", {name: "message A {}"})


async def test_an_audit_reads_records_again_by_the_schema_of_each() -> None:
    """The product's own reader makes the same JSON, and an outage of the registry is waited out."""
    world = await lanes()
    world.registry.content.away = 1
    made = RegisteredRecords(world.registry, InlineSpawner(), 1024, keys=True)
    read = TopicsRead(VertexId("source"), world.stage, world.log, made, {}, several=False)
    split, end = SplitId("in-0"), Offset(2)
    stands = {split: SplitStand(split, end, FIRST_OFFSET, "finished")}
    row = MirrorRow(JobId("j"), Epoch(1), NO_EPOCH, Generation(1), ())
    (found,) = await read.records([Commit(row, stands, "here")], None)
    (batch,) = found.batches
    assert batch.values.to_pylist() == [b'{"n":0}', b'{"n":1,"note":null}']
    assert batch.keys is not None
    assert batch.keys.to_pylist() == [b'"k"', b'"k"']


async def test_keys_may_pass_through() -> None:
    """With `keyFormatError: passThrough` a foreign key is no failure, and stays as it is."""
    value = AvroLanes().record(6).value
    batch = await all_of(await lanes(NewRecord(value, b"plain"), key_format_error="passThrough"))
    assert batch.unread == {}
    assert batch.keys is not None
    assert batch.keys.to_pylist()[2] == b"plain"


async def test_a_registry_that_is_away_is_waited_for_and_nothing_is_lost() -> None:
    """While it is away fetching is an outage and positions stay; then come the same records, and the registry was asked once a schema."""
    world = await lanes()
    source = world.source()
    splits = await open_splits(source)
    world.registry.content.away = 3
    for _ in range(3):
        with pytest.raises(LogUnavailable, match="away"):
            await source.fetch(1 << 20, 10)
        assert [status.next_position for status in source.status()] == [split.begin for split in splits.values()]
    (batch,) = await source.fetch(1 << 20, 10)
    assert len(batch.values) == 2
    await world.add(0, list(range(2, 50)))
    (batch,) = await source.fetch(1 << 20, 10)
    assert len(batch.values) == 48
    assert sorted(world.registry.content.asked.values()) == [1, 1, 4]


async def test_a_registry_that_denies_fails_the_source() -> None:
    """A wrong password is no outage."""
    world = await lanes()
    world.registry.denied = True
    with pytest.raises(LogDenied, match="password"):
        await all_of(world)


async def test_a_record_that_grows_beyond_the_bound_is_told() -> None:
    """As JSON a record is at most `recordBytes` long."""
    world = AvroLanes()
    number = world.registry.content.add("other", {"type": "array", "items": "null"})
    world = await lanes(NewRecord(header_of(number) + bytes([0x90, 0x4E, 0])))
    world.registry.content.add("other", {"type": "array", "items": "null"})
    assert "recordBytes" in (await all_of(world)).unread[2]


# --- sink -------------------------------------------------------------------------------------------------------------


async def begun(target: AvroWorld) -> Task:
    task = Task(World(target))
    await task.start()
    return task


async def test_rows_that_do_not_fit_the_schema_are_refused_before_staging() -> None:
    """The row is named with the field's place, and the others are taken (S6)."""
    target = AvroWorld()
    task = await begun(target)
    fields = [{"name": "id", "type": {"type": "enum", "name": "E", "symbols": ["a"]}}]
    tree = {"type": "record", "name": "Row", "fields": fields}
    target.stage = KafkaEmit(
        path="$emit",
        connection_name="c",
        topic=expression("out"),
        registry="r",
        value_schema=RegisteredSchema(type="avro", text=json.dumps(tree), name="Row"),
    )
    target.registry.content.subjects.clear()
    sink = target.sink()
    await sink.open(task.world.identity, task.marker)
    (refused,) = await sink.accept(batch_of([1]))
    assert "$emit.schemaRegistry.valueSchema: id: expected one of a" in refused.reason or "name" in refused.reason


async def test_an_incompatible_schema_stops_the_sink_at_its_begin() -> None:
    """What the registry refuses can never be written: the processor fails with the registry's reason."""
    target = AvroWorld()
    target.registry.content.add("out-value", {"type": "record", "name": "Row", "fields": []})
    with pytest.raises(TargetRefused, match=r"valueSchema.*id"):
        await begun(target)


async def test_without_auto_registration_rows_wait_for_no_schema() -> None:
    """Rows are refused with the reason as long as the registry lacks the schema; once it is there, the next are written."""
    target = AvroWorld(auto_register_schemas=False)
    target.registry.content.add("out-key", "string")
    task = await begun(target)
    (refused, *_) = await task.sink.accept(batch_of([0, 1, 2]))
    assert "no such schema under out-value" in refused.reason
    target.registry.content.add("out-value", target.value)
    await task.accept()
    await task.stage()
    await task.commit()
    await task.release()
    assert sorted(await target.visible()) == [0, 1, 2]


async def test_a_registry_that_is_away_is_an_outage_of_the_target() -> None:
    """Opening is tried again, and a batch is taken whole after it, or not at all."""
    target = AvroWorld()
    target.registry.content.away = 1
    with pytest.raises(TargetUnavailable, match="away"):
        await begun(target)
    task = await begun(target)
    target.registry.denied = True
    await task.accept()
    with pytest.raises(TargetDenied):
        await begun(target)


async def test_bytes_are_the_same_after_a_restart() -> None:
    """Another attempt stages the same bytes for the same rows: registry and schema give the same number."""
    target = AvroWorld()
    staged: list[list[bytes]] = []
    for _ in range(2):
        target.blobs.objects.clear()
        task = await begun(target)
        await task.accept()
        await task.accept()
        await task.stage()
        staged.append(list(target.blobs.objects.values()))
    assert staged[0] == staged[1]
    assert staged[0]


async def test_a_topic_of_each_document_has_its_own_subject() -> None:
    """With a topic by expression the schemas are registered under each topic's subject, once."""
    target = AvroWorld()
    target.stage = KafkaEmit(
        path="$emit",
        connection_name="c",
        topic=expression({"$cond": ["$even", "evens", "odds"]}),
        registry="r",
        value_schema=target.stage.value_schema,
    )
    task = await begun(target)
    await task.accept()
    await task.accept()
    assert sorted(target.registry.content.subjects) == ["evens-value", "odds-value"]
    assert set(target.registry.content.asked.values()) == {1}


@pytest.mark.parametrize("kind", ["avro", "json"])
async def test_rows_become_the_same_records_at_once_as_one_by_one(kind: Literal["avro", "json"]) -> None:
    """Those that do not fit are refused with the same reasons; topics without a number are asked for."""
    tree = {**AvroWorld.value, "fields": [*AvroWorld.value["fields"], {"name": "dead", "type": "boolean"}]}
    schema = RegisteredSchema(type=kind, text=json.dumps(tree if kind == "avro" else {}), name="Row")
    topic, tombstone = expression({"$cond": ["$even", "evens", "odds"]}), expression("$dead")
    stage = KafkaEmit(
        path="$emit", connection_name="c", topic=topic, key=expression("$name"), tombstone_when=tombstone, registry="r", value_schema=schema
    )  # fmt: skip
    rows: list[Document] = [
        {"id": long(1), "name": "a", "even": True}, {"even": False, "id": 2}, {"id": "x", "even": True},
        {"id": 4.0, "name": None, "even": True},
        {"id": Decimal(5), "even": False}, {"id": 6, "name": "dead", "even": True, "dead": True}, {"id": 7, "even": True, "other": 1},
    ]  # fmt: skip
    forms = RegisteredForms(MemoryRegistry(), stage, InlineSpawner())
    maker, batch = RecordMaker(stage, forms=forms), documents_batch([{"dead": False, **row} for row in rows])
    with pytest.raises(Unregistered):
        maker.runs(batch)
    for name in ("evens", "odds"):
        await forms.ask(name)
    at_once = maker.runs(batch)
    forms.values = lambda *_: None  # type: ignore[method-assign]
    one_by_one = maker.runs(batch)
    assert at_once[1] == one_by_one[1]
    assert [(places.tolist(), run.topic, run.columns.values) for places, run in at_once[0]] == [
        (places.tolist(), run.topic, run.columns.values) for places, run in one_by_one[0]
    ]


@pytest.mark.parametrize("text", ["avro", "protobuf"])
async def test_half_of_a_pair_is_no_text_of_a_record(text: Literal["avro", "protobuf"]) -> None:
    """The row is refused; the sink goes on."""
    tree = {"type": "record", "name": "Row", "fields": [{"name": "name", "type": "string"}]}
    message = 'syntax = "proto3"; message Row { string name = 1; }'
    schema = RegisteredSchema(type=text, text=json.dumps(tree) if text == "avro" else message, name="Row")
    stage = KafkaEmit(path="$emit", connection_name="c", topic=expression("out"), registry="r", value_schema=schema)
    forms = RegisteredForms(MemoryRegistry(), stage, InlineSpawner())
    await forms.ask("out")
    runs, rejected = RecordMaker(stage, forms=forms).runs(
        documents_batch([{"name": "a"}, {"name": "\ud800"}, {"name": "b"}])
    )
    assert [len(run) for _, run in runs] == [2]
    assert [(each.row, "surrogates not allowed" in each.reason) for each in rejected] == [(1, True)]


# --- the document -----------------------------------------------------------------------------------------------------

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
VALUE = {"connectionName": "r", "valueSchema": {"type": "avro", "schema": ORDER}}


def document(url: str = "http://registry:8081", **emit: Any) -> dict[str, Any]:
    return {
        "connections": {
            "k": {"type": "kafka", "bootstrapServers": "b:1"},
            "r": {"type": "schemaRegistry", "schemaRegistryUrls": url},
        },
        "pipeline": [
            {"$source": {"connectionName": "k", "topic": "in", "schemaRegistry": {"connectionName": "r"}}},
            {"$emit": {"connectionName": "k", "topic": "out", "schemaRegistry": VALUE, **emit}},
        ],
    }


@pytest.mark.parametrize(
    ("emit", "said"),
    [
        ({"schemaRegistry": {**VALUE, "connectionName": "k"}}, "expected schemaRegistry"),
        ({"schemaRegistry": {"connectionName": "r"}}, "needs valueSchema"),
        ({"config": {"outputFormat": "canonicalJson"}}, "values are Avro"),
        ({"schemaRegistry": {**VALUE, "keySchema": {"type": "avro", "schema": "string"}}}, "needs config.key"),
        (
            {"schemaRegistry": {"connectionName": "r", "valueSchema": {"type": "avro", "schema": "int32"}}},
            "unknown type",
        ),
        (
            {"schemaRegistry": {"connectionName": "r", "valueSchema": {"type": "protobuf", "schema": {}}}},
            "a schema of Protobuf is a text",
        ),
        (
            {
                "schemaRegistry": {
                    "connectionName": "r",
                    "valueSchema": {"type": "avro", "schema": ORDER, "message": "A"},
                }
            },
            "names a message of Protobuf",
        ),
        (
            {
                "schemaRegistry": {
                    "connectionName": "r",
                    "valueSchema": {"type": "json", "schema": {}, "references": [LINES]},
                }
            },
            "leave them out",
        ),
        (
            {
                "schemaRegistry": {
                    "connectionName": "r",
                    "valueSchema": {"type": "protobuf", "schema": SHOP, "references": [LINES, LINES]},
                }
            },
            "'parts/line.proto' is there twice",
        ),
    ],
)
def test_a_wrong_use_of_a_registry_is_an_error_of_the_document(emit: dict[str, Any], said: str) -> None:
    """Schemas, connections and options without a meaning are named before anything runs."""
    with pytest.raises(InvalidDocument, match=said):
        parse(document(**emit))


async def test_check_and_create_name_a_schema_that_the_registry_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An incompatible schema is an error before anything starts, and nothing is registered; a registry that is away is none of `create`."""
    monkeypatch.setattr(connected, "ANSWER_S_MAX", 3)  # no broker is there
    server = await Registry().start()
    server.add("out-value", {"type": "record", "name": "Order", "fields": []})
    processor = parse(document(server.url))
    connections = Connections("check", allowed=OWNER, values={})
    try:
        (error,) = await refused_by_registries(processor, connections)
        assert error.path == "pipeline[1].$emit"
        assert "READER_FIELD_MISSING_DEFAULT_VALUE" in error.message
        told = [str(each) for each in await refused_by_what_is_there(processor)]
        assert any("READER_FIELD_MISSING_DEFAULT_VALUE" in each for each in told)
        assert list(server.subjects) == ["out-value"]
        server.away = 5
        assert await refused_by_registries(processor, connections) == []
    finally:
        await connections.close()
        await server.stop()


def test_documents_reach_registries_where_the_installation_lets_them() -> None:
    """A registry on this machine, or on a host that is not listed, is refused as other targets are."""
    for url, allowed in (("http://127.0.0.1:8081", Allowed()), ("http://other:8081", Allowed(hosts=("registry",)))):
        with pytest.raises(NotAllowed, match="schemaRegistryUrls"):
            Connections("x", allowed=allowed, values={}).get(parse(document(url)), "r")
    assert Connections("x", allowed=Allowed(hosts=("registry",)), values={}).get(parse(document()), "r").name == "r"
