"""An audit of targets whose records are no JSON: of a schema registry, MessagePack, a plug-in's format."""

import json
import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from tidemark_shelf import Labels

from tests.harness.installation import NAME, Installed, MemoryConnections, installed
from tests.harness.registry import MemoryRegistry
from tests.harness.sealing import sealed
from tidemark.plugins import NoConfig
from tidemark.services.audit.check import Audited, AuditFailed, NotAuditable, audit
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.language.avro import parse_schema, reader_of, writer_of
from tidemark.shared.language.values import parse_json
from tidemark.shared.plugins.interface import PluginError
from tidemark.shared.ports.log import Log, LogUnavailable, NewRecord, TopicPartition
from tidemark.shared.ports.registry import HEADER_BYTES, header_of
from tidemark.shared.process import connections as installed_plugins
from tidemark.shared.process.allowed import OWNER, Allowed
from tidemark.shared.runtime.settings import RuntimeSettings

COUNT = 60
NO_DOUBLE = 13
"""The number of a row that has no record by the schemas, and goes to a topic of its own."""
RECORDS: list[dict[str, Any]] = [
    {
        "id": f"r{n}",
        "at": f"{1_000_000 + 1_000 * n}",
        "topic": f"out{n % 3}" if n != NO_DOUBLE else "odd",
        "gone": "yes" if n % 5 == 0 else "no",
        "amount": "much" if n == NO_DOUBLE else f"{n}.25",
    }
    for n in range(COUNT)
]
ROW: dict[str, Any] = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "amount", "type": "double"},
        {"name": "topic", "type": ["null", "string"], "default": None},
        {"name": "gone", "type": ["null", "string"], "default": None},
    ],
}
MESSAGE = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
message Row { string id = 1; google.protobuf.Timestamp at = 2; double amount = 3; string topic = 4; string gone = 5; }"""
TYPED = {"$addFields": {"at": {"$toDate": {"$toLong": "$at"}}, "amount": {"$convert": {
    "input": "$amount", "to": "double", "onError": "$amount"}}}}  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one plug-in is there."""
    quiet(logging.CRITICAL)
    monkeypatch.setattr(installed_plugins, "make_plugin", lambda *_: Labels(NoConfig(), NoConfig()))


def registered(kind: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {"schemaRegistry": {"connectionName": "registry", "valueSchema": {"type": kind, "schema": schema}, **more}}


AVRO = registered("avro", ROW)
KEYS = registered("avro", ROW, keySchema={"type": "avro", "schema": "string"})


class Run:
    """A pipeline that has run to its end on a broker in memory, with a registry that the installation and its audits ask."""

    def __init__(self, it: Installed, registry: MemoryRegistry, log: Log) -> None:
        self.it, self.registry, self.log = it, registry, log

    async def audit(self, allowed: Allowed = OWNER) -> Audited:
        connections = MemoryConnections("audit", MemoryLog(self.it.broker), self.registry, allowed)
        store = MemoryCommitStore(self.it.store)
        return await audit(
            NAME, AuditedInstallation(store, self.it.memory_blobs, self.log, {}, connections=connections)
        )

    async def with_value(self, change: Callable[[list[Any]], None], topic: str = "out") -> None:
        """An audit where the records of a partition are others; they are put back behind it."""
        stored = self.it.broker._topics[topic][0].stored
        kept = deepcopy(stored)
        places = [place for place, each in enumerate(stored) if each.record is not None and each.record.value]
        values = [stored[place].record.value for place in places]  # type: ignore[union-attr]
        change(values)
        for place, value in zip(places, values, strict=True):
            record = stored[place].record
            assert record is not None
            stored[place] = stored[place]._replace(record=None if value is None else replace(record, value=value))
        try:
            await self.audit()
        finally:
            stored[:] = kept


async def ran(
    world: VirtualWorld,
    emit: Mapping[str, Any],
    then: Callable[[Run], Any],
    stages: tuple[dict[str, Any], ...] = (TYPED,),
) -> Any:
    """Three parts of the records through two tasks of each kind, and something behind it."""
    source = {
        "connectionName": "broker",
        "topic": "in",
        "config": {"auto_offset_reset": "earliest"},
        "timeField": {"$toDate": {"$toLong": "$at"}},
    }
    document: dict[str, Any] = {
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "memory"},
            "registry": {"type": "schemaRegistry", "schemaRegistryUrls": ["http://memory"]},
        },
        "pipeline": [{"$source": source}, *stages, {"$emit": {"connectionName": "broker", "topic": "out", **emit}}],
        "options": {
            "lateness": "split",
            "dlq": {"connectionName": "broker", "topic": "letters"},
            "checkpoint": {"interval": {"size": 1, "unit": "second"}},
        },
    }
    registry = MemoryRegistry()
    settings = RuntimeSettings(engine="local")
    async with installed(world.clock, world.executor, settings=settings, registry=registry, allowed=OWNER) as it:
        log = sealed(MemoryLog(it.broker))
        await log.create_topic("in", 2)
        await it.create(document, source=2, sink=2)
        await it.start()
        for first in range(0, COUNT, 20):
            writer = await log.writer("feeder")
            for n in range(first, first + 20):
                await (await writer.send(TopicPartition("in", n % 2), NewRecord(json.dumps(RECORDS[n]).encode())))
            await writer.close()
            await it.committed()
        await it.stop(drain=True)
        return await then(Run(it, registry, log))


def _lost(values: list[Any]) -> None:
    values[7] = None


def _doubled(values: list[Any]) -> None:
    values[7] = values[8]


def _no_record(values: list[Any]) -> None:
    values[7] = b"\x00\x00"


def _of_another_schema(values: list[Any]) -> None:
    values[7] = header_of(99) + values[7][HEADER_BYTES:]


def _of_avro(values: list[Any]) -> None:
    row = parse_json(reader_of(parse_schema(ROW))(values[7][HEADER_BYTES:]))
    values[7] = values[7][:HEADER_BYTES] + writer_of(parse_schema(ROW))({**row, "amount": -1.0})


def _of_protobuf(values: list[Any]) -> None:
    assert b"\x0a" in values[7]
    values[7] = values[7].replace(b"r", b"s", 1)


def _of_json(values: list[Any]) -> None:
    values[7] = values[7].replace(b".25", b".5")


def _of_message_pack(values: list[Any]) -> None:
    values[7] = msgpack.packb({**msgpack.unpackb(values[7], timestamp=0), "amount": -1.0}, default=lambda each: each)


def _of_text(values: list[Any]) -> None:
    values[7] = values[7].replace(b".25", b".5")


FORMS = {
    "avro": (AVRO, (TYPED,), 1, _of_avro, r"r\d+.* does not follow from"),
    "protobuf": (registered("protobuf", MESSAGE), (TYPED,), 1, _of_protobuf, r"s\d+.* does not follow from"),
    "json": (registered("json", {"title": "Row"}), (TYPED,), 0, _of_json, r"r\d+.* does not follow from"),
    "messagePack": ({"format": "messagePack"}, (TYPED,), 0, _of_message_pack, r"r\d+.* does not follow from"),
    "csv": (
        {"format": {"csv": {"fields": ["id", "at", "amount", "topic", "gone"], "delimiter": ";"}}},
        (TYPED,),
        0,
        _of_text,
        r"r\d+.* does not follow from",
    ),
    "plugin": ({"format": {"plugin": "labels"}}, (), 0, _of_text, r"r\d+.* does not follow from"),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_was_lost_doubled_or_changed_at_a_target_of_another_form_is_found(form: str) -> None:
    """The first such record is told with its place, as JSON; and what is as it was written is accused of nothing."""
    emit, stages, refused, change, says = FORMS[form]

    async def then(run: Run) -> None:
        found = await run.audit()
        assert (found.records, found.dead_letters, sum(found.outputs.values())) == (COUNT, refused, COUNT)
        for change_, what in (
            (_lost, r"expected \d+ records from offset \d+, found"),
            (_doubled, r"topic out partition 0 offset \d+: \{.*is there 2 times"),
            (change, rf"topic out partition 0 offset \d+: .*{says}"),
        ):
            with pytest.raises(AuditFailed, match=what):
                await run.with_value(change_)
        assert (await run.audit()).records == COUNT

    run_virtual(lambda world: ran(world, emit, then, stages))


BY_TOPIC = {**KEYS, "topic": "$topic", "config": {"key": "$id", "tombstoneWhen": {"$eq": ["$gone", "yes"]}}}


def test_topics_of_rows_keys_and_tombstones_are_written_again() -> None:
    """Each topic has numbers of its own, which are asked for once; the registry learns nothing, and its outage is waited out."""

    async def then(run: Run) -> None:
        content = run.registry.content
        known, content.away = deepcopy((content.schemas, content.subjects)), 3
        content.asked.clear()
        found = await run.audit()
        assert (found.records, found.dead_letters, sum(found.outputs.values())) == (COUNT, 1, COUNT)
        assert (content.schemas, content.subjects) == known
        assert sum(content.asked.values()) == 3 + 2 * 4, "an outage, and a number for each topic's keys and values"
        stored = run.it.broker._topics["out0"][0].stored
        place, record = next((n, s.record) for n, s in enumerate(stored) if s.record and not s.record.value)
        stored[place] = stored[place]._replace(record=replace(record, key=b"another"))
        with pytest.raises(
            AuditFailed, match=r'topic out0 partition 0 offset \d+: \{"tombstone": "616e6f74686572"\} does not follow'
        ):
            await run.audit()

    run_virtual(lambda world: ran(world, BY_TOPIC, then))


@pytest.mark.parametrize("place", ["topic", "config.tombstoneWhen", "config.key"])
def test_what_metadata_decide_is_written_again(place: str) -> None:
    """A topic by the record's partition, with a schema's number of its own; a tombstone by its offset, and its key."""
    partition = {"$toString": {"$meta": "stream.source.partition"}}
    late = {"$eq": [{"$mod": [{"$meta": "stream.source.offset"}, 3]}, 0]}
    gone = late if place == "config.tombstoneWhen" else {"$eq": ["$gone", "yes"]}
    key = {"$concat": ["$id", "-", partition]} if place == "config.key" else "$id"
    topic = {"$concat": ["from", partition]} if place == "topic" else "out"
    emit = {**(AVRO if place == "topic" else {}), "topic": topic}
    if place != "topic":
        emit["config"] = {"key": key, "keyFormat": "string", "tombstoneWhen": gone}

    async def then(run: Run) -> None:
        found = await run.audit()
        assert (found.unchecked, sum(found.outputs.values())) == ((), COUNT)
        written = "from1" if place == "topic" else "out"
        stored = run.it.broker._topics[written][0].stored
        at, record = next(
            (n, s.record) for n, s in enumerate(stored) if s.record and bool(s.record.value) is (place == "topic")
        )
        value = (record.value or b"")[:-1] + b"?"
        other = replace(record, value=value) if place == "topic" else replace(record, key=b"another")
        stored[at] = stored[at]._replace(record=other)
        with pytest.raises(AuditFailed, match=r"does not follow|expected"):
            await run.audit()

    run_virtual(lambda world: ran(world, emit, then))


def test_keys_of_a_plugin_beside_values_of_a_registry_are_written_again() -> None:
    """Whole through a pipeline: by them tombstones are told apart."""
    config = {"key": {"id": "$id"}, "keyFormat": {"plugin": "labels"}, "tombstoneWhen": {"$eq": ["$gone", "yes"]}}

    async def then(run: Run) -> None:
        found = await run.audit()
        assert (found.records, found.dead_letters, sum(found.outputs.values())) == (COUNT, 1, COUNT)
        stored = run.it.broker._topics["out"][0].stored
        records = [each.record for each in stored if each.record is not None]
        assert {(record.key or b"")[:4] for record in records} == {b"id=r"}
        assert {record.value[:1] for record in records if record.value} == {b"\0"}
        place, record = next((n, s.record) for n, s in enumerate(stored) if s.record and not s.record.value)
        stored[place] = stored[place]._replace(record=replace(record, key=b"id=another"))
        with pytest.raises(AuditFailed, match=r'"tombstone": "[0-9a-f]*"\} does not follow'):
            await run.audit()

    run_virtual(lambda world: ran(world, {**AVRO, "config": config}, then))


KEYS_ALONE = {"connectionName": "registry", "keySchema": {"type": "avro", "schema": "string"}}


@pytest.mark.parametrize(
    ("form", "same"),
    [
        ({}, (b":", b" : ")),
        ({"format": {"plugin": "labels"}}, (b"n=", b"n=")),
        ({"format": "messagePack"}, (b"\xa1n", b"\xd9\x01n")),
    ],
    ids=["json", "plug-in", "MessagePack"],
)
def test_keys_of_a_registry_beside_values_of_any_form_are_written_again(
    form: dict[str, Any], same: tuple[bytes, bytes]
) -> None:
    """By keys tombstones are told apart; a value is compared by what it holds, whatever letters it has. same: other bytes of the same."""
    config = {"key": "$id", "tombstoneWhen": {"$eq": ["$gone", "yes"]}}
    project = {"$project": {"_id": 0, "n": "Ąmok", "id": 1, "gone": 1}}

    async def then(run: Run) -> None:
        found = await run.audit()
        assert (found.records, found.dead_letters, sum(found.outputs.values())) == (COUNT, 0, COUNT)
        records = [each.record for each in run.it.broker._topics["out"][0].stored if each.record is not None]
        assert {(record.key or b"")[:1] for record in records} == {b"\0"}
        assert sum(record.value is None for record in records) > 0
        await run.with_value(lambda values: values.__setitem__(0, values[0].replace(*same)))
        with pytest.raises(AuditFailed, match="does not follow"):
            await run.with_value(lambda values: values.__setitem__(0, values[0].replace("Ą".encode(), "ä".encode())))

    run_virtual(lambda world: ran(world, {**form, "schemaRegistry": KEYS_ALONE, "config": config}, then, (project,)))


def test_other_bytes_of_the_same_content_are_no_discrepancy() -> None:
    """A later release may write a document in other bytes: by another schema, say, which reads as the same."""

    async def then(run: Run) -> None:
        number = run.registry.content.add("out-value", {**ROW, "doc": "the same"})

        def change(values: list[Any]) -> None:
            values[:] = [header_of(number) + value[HEADER_BYTES:] for value in values]

        await run.with_value(change)

    run_virtual(lambda world: ran(world, AVRO, then))


def test_a_registry_that_lost_a_schema_is_no_discrepancy() -> None:
    """What the document had registered is not there, or the registry refuses: there is no statement. One that answers not is an outage."""

    async def then(run: Run) -> None:
        run.registry.denied = True
        with pytest.raises(NotAuditable, match=r"\$emit: what was written cannot be written again: wrong password"):
            await run.audit()
        run.registry.denied = False
        run.registry.content.away = 1_000_000
        with pytest.raises(LogUnavailable, match="schema registry: away"):
            await run.audit()
        run.registry.content.away = 0
        run.registry.content.subjects.clear()
        with pytest.raises(NotAuditable, match=r"\$emit\.schemaRegistry\.valueSchema: no such schema under out-value"):
            await run.audit()

    run_virtual(lambda world: ran(world, AVRO, then))


def test_rows_without_a_schema_are_the_dead_letters_that_they_were() -> None:
    """With `autoRegisterSchemas: false`, where nobody has registered it."""
    options = {"autoRegisterSchemas": False}
    emit = {
        "schemaRegistry": {**AVRO["schemaRegistry"], "valueSchema": {"type": "avro", "schema": ROW, "options": options}}
    }

    async def then(run: Run) -> None:
        found = await run.audit()
        assert (found.records, found.dead_letters) == (COUNT, COUNT)

    run_virtual(lambda world: ran(world, emit, then))


def test_a_plugin_that_an_audit_may_not_ask_is_told() -> None:
    """The installation's settings say which plug-ins are loaded, in an audit, too."""

    async def then(run: Run) -> None:
        with pytest.raises(NotAuditable, match="plug-in 'labels': none is used here until it is named"):
            await run.audit(Allowed(loopback=True))

    run_virtual(lambda world: ran(world, {"format": {"plugin": "labels"}}, then, ()))


def test_a_plugin_that_is_not_installed_where_the_audit_runs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no fault of the records."""

    def gone(*_: Any) -> Any:
        raise PluginError("format labels: no package that is installed here has it")

    async def then(run: Run) -> None:
        monkeypatch.setattr(installed_plugins, "make_plugin", gone)
        with pytest.raises(NotAuditable, match="format labels: no package"):
            await run.audit()

    run_virtual(lambda world: ran(world, {"format": {"plugin": "labels"}}, then, ()))
