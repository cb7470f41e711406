"""Formats of other packages on topics: records become JSON and documents records, and what is none is a dead letter, not a loss."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_shelf import Labels

from tests.contract.sinks_targets import KafkaWorld
from tests.harness.registry import MemoryRegistry
from tidemark.plugins import Document, Format, NoConfig
from tidemark.services.library.release_world import IDENTITY, InlineSpawner, batch_of, row_of
from tidemark.services.sink.connectors.formatted import FormattedForms
from tidemark.services.sink.connectors.kafka import KafkaSink
from tidemark.services.sink.connectors.kafkarecords import RecordMaker, Takes
from tidemark.services.sink.connectors.registered import RegisteredForms, Unregistered
from tidemark.services.sink.connectors.staging import PartStore
from tidemark.services.source.connectors.formatted import FormattedRecords
from tidemark.services.source.connectors.registered import RegisteredRecords
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.documents.model import plugin_uses
from tidemark.shared.language.expressions.ast import FieldPath
from tidemark.shared.language.forms import PluginFormat, RegisteredSchema
from tidemark.shared.language.stages import KafkaEmit, KafkaSource
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.ids import Epoch, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.values import Binary
from tidemark.shared.operators.batches import batch_of as documents_batch
from tidemark.shared.operators.context import topics_told
from tidemark.shared.operators.record_keys import shown_key
from tidemark.shared.plugins.installed import make_of
from tidemark.shared.plugins.interface import PluginError
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.registry import header_of
from tidemark.shared.runtime.plugged import PluggedFormat
from tidemark.testing import FormatContract

FORM = PluginFormat("$source.format", "labels")
SCHEMA = {"type": "json", "schema": {"title": "T"}}


class Odd(Format[NoConfig]):
    """Breaks its contract, by the record."""

    api = 1

    def decode(self, data: bytes) -> Any:
        match data:
            case b"key":
                raise KeyError("x")
            case b"text":
                return "text"
            case b"json":
                return b'{"a": 1}'
            case _:
                return {"large": "x" * 100}

    def encode(self, document: Document) -> Any:
        if document["id"] == 1:
            raise KeyError("x")
        return "text" if document["id"] == 2 else b"record %d" % document["id"]


def _made(plugin: type[Format[Any]]) -> Format[Any]:
    return make_of("x", plugin, {}, {})


async def _decoded(plugin: type[Format[Any]], values: list[bytes | None]) -> RawBatch:
    places = np.arange(len(values), dtype=np.int64)
    batch = RawBatch(SplitId("t-0"), 0, places, places, pa.array(values, pa.binary()), unread={9: "before"})
    return await FormattedRecords(PluggedFormat(lambda: _made(plugin), FORM), None, InlineSpawner(), 60).decoded(batch)


async def test_records_become_json_and_what_is_none_stays_with_the_reason() -> None:
    """A tombstone stays one; and reasons that were there before stay, too."""
    found = await _decoded(Labels, [b"a=1;b=x", None, b"a", b""])
    assert found.values.to_pylist() == [b'{"a":"1","b":"x"}', None, b"a", b"{}"]
    assert found.unread == {
        2: "$source.format, plug-in labels: ValueError: expected name=value, with ; between",
        9: "before",
    }


async def test_what_a_format_raises_is_about_the_record() -> None:
    """Whatever it is: one record of a topic does not stop the others."""
    found = await _decoded(Odd, [b"key", b"text", b"json", b"large"])
    assert found.values.to_pylist() == [b"key", b"text", b'{"a": 1}', b"large"]
    reasons = [found.unread[row].removeprefix("$source.format, plug-in labels: ") for row in (0, 1, 3)]
    assert reasons[:2] == ["KeyError: 'x'", "expected a document, or JSON in bytes, found str"]
    assert reasons[2].startswith("as JSON the record has 112 bytes, at most 60 are allowed")


async def test_documents_become_records_and_what_has_none_is_rejected() -> None:
    """The bytes are staged; the key and the topic are as ever."""
    world = KafkaWorld()
    stage = KafkaEmit(path="$emit", connection_name="c", topic=world.stage.topic, key=world.stage.key, format=FORM)
    forms = FormattedForms(PluggedFormat(lambda: _made(Odd), FORM), None, InlineSpawner())
    parts = PartStore(world.blobs, lambda epoch: f"a/{epoch}", inline_bytes_max=700)
    executor = AsyncExecutor()
    sink = KafkaSink(RecordMaker(stage, world.takes, forms), world.log, parts, SystemClock(), executor, world.settings)
    await sink.open(IDENTITY, Epoch(0))
    rejected = await sink.accept(batch_of([0, 1, 2, 3]))
    staged = await sink.stage(Epoch(1), Epoch(0))
    await sink.release(row_of(1, 0, staged), staged)
    assert [(each.row, each.reason) for each in rejected] == [
        (1, "$source.format, plug-in labels: KeyError: 'x'"),
        (2, "$source.format, plug-in labels: expected bytes, found str"),
    ]
    records = await world.records()
    assert sorted((record.key, record.value) for record in records) == [(b'"n0"', b"record 0"), (b'"n3"', b"record 3")]
    await sink.close()
    await executor.close()


async def test_a_format_that_does_not_load_fails_the_task() -> None:
    """Once, and not each record."""

    def fail() -> Format[Any]:
        raise PluginError("format x: no package that is installed here has it")

    batch = RawBatch(SplitId("t-0"), 0, np.zeros(1, np.int64), np.zeros(1, np.int64), pa.array([b"x"], pa.binary()))
    with pytest.raises(PluginError):
        await FormattedRecords(PluggedFormat(fail, FORM), None, InlineSpawner(), 60).decoded(batch)
    with pytest.raises(PluginError):
        await FormattedForms(PluggedFormat(fail, FORM), None, InlineSpawner()).prepare("t")


KEY_FORM = PluginFormat("$source.config.keyFormat", "labels")
_TEXTS = st.text(st.sampled_from("aä\x00 '\U0001f600"), max_size=3)
_LABELS = st.dictionaries(_TEXTS, _TEXTS, max_size=2)
_KEYS = st.one_of(_LABELS, st.none(), st.just("a text"), st.fixed_dictionaries({"n": st.integers(0, 3)}))


@given(keys=st.lists(_KEYS, min_size=1, max_size=5), beside=st.sampled_from(["json", "format", "registry"]))
@settings(max_examples=60, deadline=None)
def test_keys_are_written_and_read_in_a_format(keys: list[Any], beside: str) -> None:
    """Drawn: keys that are documents come back, beside values of any form; others are rejected, and null is no key."""
    asyncio.run(_through(keys, beside))


async def _through(keys: list[Any], beside: str) -> None:
    key = PluggedFormat(lambda: _made(Labels), KEY_FORM)
    value = PluggedFormat(lambda: _made(Told), FORM) if beside == "format" else None
    stage = replace(KafkaWorld().stage, key=FieldPath(("key",)), key_format="plugin", key_plugin=KEY_FORM)
    registry, by_registry, from_registry = MemoryRegistry(), None, None
    if beside == "registry":
        stage = replace(stage, registry="r", value_schema=RegisteredSchema(type="json", text="{}", name="T"))
        by_registry = RegisteredForms(registry, stage, InlineSpawner())
        from_registry = RegisteredRecords(registry, InlineSpawner(), 1_000)
    forms = FormattedForms(value, key, InlineSpawner(), by_registry)
    maker = RecordMaker(stage, Takes(), forms)
    batch = documents_batch([{"n": n} if each is None else {"n": n, "key": each} for n, each in enumerate(keys)])
    if any(each is not None and isinstance(each, dict) for each in keys):
        with pytest.raises(Unregistered):
            maker.runs(batch)
    await forms.prepare("out")
    runs, rejected = maker.runs(batch)
    fits = [each is None or (isinstance(each, dict) and "n" not in each) or each == {"n": ""} for each in keys]
    assert {each.row for each in rejected} == {row for row, fit in enumerate(fits) if not fit}
    written = [(row, record) for rows, run in runs for row, record in zip(rows.tolist(), run.columns, strict=True)]
    assert [row for row, _ in written] == [row for row, fit in enumerate(fits) if fit]
    if not written:
        return
    places = np.arange(len(written), dtype=np.int64)
    columns = [pa.array([getattr(record, name) for _, record in written], pa.binary()) for name in ("value", "key")]
    raw = RawBatch(SplitId("t-0"), 0, places, places, columns[0], columns[1])
    read = await FormattedRecords(value, key, InlineSpawner(), 1_000, registered=from_registry).decoded(raw)
    assert read.keys is not None
    topics = topics_told(("t",), "plugin")
    shown = [None if each is None else shown_key(topics, each) for each in read.keys.to_pylist()]
    assert shown == [keys[row] for row, _ in written]
    assert [parse_json(each)["n"] for each in read.values.to_pylist()] == [row for row, _ in written]
    assert read.unread == {}


class Told(Format[NoConfig]):
    """A document's number alone."""

    api = 1

    def decode(self, data: bytes) -> Document:
        return {"n": int(data)}

    def encode(self, document: Document) -> bytes:
        return str(document["n"]).encode()


@pytest.mark.parametrize("must", [True, False])
async def test_a_key_that_is_none_of_the_format_is_told_or_passed_on(must: bool) -> None:
    """As `keyFormatError` says: the record is a dead letter with its key's reason, or its key stays bytes."""
    keys = [b"a=1", b"none", None]
    places = np.arange(3, dtype=np.int64)
    raw = RawBatch(SplitId("t-0"), 0, places, places, pa.array([b"{}"] * 3), pa.array(keys, pa.binary()))
    key = PluggedFormat(lambda: _made(Labels), KEY_FORM)
    found = await FormattedRecords(None, key, InlineSpawner(), 1_000, keys_must=must).decoded(raw)
    assert found.values.to_pylist() == [b"{}"] * 3
    assert found.keys is not None
    assert found.keys.to_pylist() == [b'{"a":"1"}', b"none", None]
    why = "its key: $source.config.keyFormat, plug-in labels: ValueError: expected name=value, with ; between"
    assert found.unread == ({1: why} if must else {})
    assert shown_key(topics_told(("t",), "plugin"), b"none") == Binary(b"none")


async def test_a_key_of_a_format_and_a_value_of_a_registry_are_told_apart() -> None:
    """A record is a dead letter by the reason of its value, else by that of its key; the registry's outage is one."""
    registry = MemoryRegistry()
    value = header_of(registry.content.add("t-value", {"title": "T"}, "JSON")) + b'{"n":1}'
    registry.content.away = 1
    values, keys = [value, value, b"none", b"none"], [b"a=1", b"none", b"a=1", b"none"]
    places = np.arange(4, dtype=np.int64)
    raw = RawBatch(SplitId("t-0"), 0, places, places, pa.array(values, pa.binary()), pa.array(keys, pa.binary()))
    key = PluggedFormat(lambda: _made(Labels), KEY_FORM)
    reader = FormattedRecords(
        None, key, InlineSpawner(), 1_000, registered=RegisteredRecords(registry, InlineSpawner(), 1_000)
    )
    with pytest.raises(LogUnavailable):
        await reader.decoded(raw)
    found = await reader.decoded(raw)
    assert found.keys is not None
    assert found.values.to_pylist() == [b'{"n":1}', b'{"n":1}', b"none", b"none"]
    assert found.keys.to_pylist() == [b'{"a":"1"}', b"none", b'{"a":"1"}', b"none"]
    assert [(row, why.startswith("its key")) for row, why in sorted(found.unread.items())] == [
        (1, True),
        (2, False),
        (3, False),
    ]


async def test_values_of_a_format_stand_beside_keys_of_a_registry() -> None:
    """Written and read: each part is told apart, and the registry is asked for nothing of values."""
    registry = MemoryRegistry()
    key_schema = RegisteredSchema(type="avro", text='"string"', name="")
    stage = replace(KafkaWorld().stage, key=FieldPath(("key",)), registry="r", key_schema=key_schema, format=FORM)
    value = PluggedFormat(lambda: _made(Told), FORM)
    forms = FormattedForms(value, None, InlineSpawner(), RegisteredForms(registry, stage, InlineSpawner()))
    await forms.prepare("out")
    batch = documents_batch([{"n": 0, "key": "a"}, {"n": 1}, {"n": 2, "key": 7}, {"key": "b"}, {"n": 4, "key": "c"}])
    runs, rejected = RecordMaker(stage, Takes(), forms).runs(batch)
    assert [(each.row, each.reason.split(":")[0]) for each in sorted(rejected, key=lambda each: each.row)] == [
        (2, "$emit.schemaRegistry.keySchema"),
        (3, "$source.format, plug-in labels"),
    ]
    written = [record for _, run in runs for record in run.columns]
    assert [(record.key, record.value) for record in written] == [
        (header_of(1) + b"\x02a", b"0"), (None, b"1"), (header_of(1) + b"\x02c", b"4"),
    ]  # fmt: skip
    keys = [*(record.key for record in written), b"none", b"none"]
    values = [*(record.value for record in written), b"5", b"no number"]
    places = np.arange(5, dtype=np.int64)
    raw = RawBatch(SplitId("t-0"), 0, places, places, pa.array(values, pa.binary()), pa.array(keys, pa.binary()))
    by_registry = RegisteredRecords(registry, InlineSpawner(), 1_000, values=False, keys=True)
    reader = FormattedRecords(value, None, InlineSpawner(), 1_000, registered=by_registry)
    registry.content.away = 1
    with pytest.raises(LogUnavailable):
        await reader.decoded(raw)
    found = await reader.decoded(raw)
    assert found.keys is not None
    assert found.keys.to_pylist()[:3] == [b'"a"', None, b'"c"']
    assert [parse_json(each)["n"] for each in found.values.to_pylist()[:4]] == [0, 1, 4, 5]
    assert {row: why.split(":")[0] for row, why in found.unread.items()} == {
        3: "its key",
        4: "$source.format, plug-in labels",
    }
    assert set(registry.content.subjects) == {"out-key"}


def test_values_of_a_format_may_stand_beside_keys_of_a_registry() -> None:
    """On either side; a registry that would have neither keys nor values is an error."""
    registry = {"connectionName": "r"}
    source = {"format": "messagePack", "schemaRegistry": registry, "config": {"keyFormat": "schemaRegistry"}}
    emit = {"format": "messagePack", "schemaRegistry": {**registry, "keySchema": SCHEMA}, "config": {"key": "$k"}}
    stages = parse(_document(source, emit)).pipeline
    assert [stage.format is not None and stage.registry for stage in stages] == ["r", "r"]  # type: ignore[attr-defined]
    for config in ({"keyFormat": "json"}, {}):
        with pytest.raises(InvalidDocument, match="not of both"):
            parse(_document({**source, "config": config}, emit))


def test_keys_of_a_format_may_stand_beside_a_registry() -> None:
    """Of values, on either side."""
    config = {"keyFormat": {"plugin": "x"}}
    source = {"config": config, "schemaRegistry": {"connectionName": "r"}}
    emit = {"config": {**config, "key": "$k"}, "schemaRegistry": {"connectionName": "r", "valueSchema": SCHEMA}}
    stages = parse(_document(source, emit)).pipeline
    assert [stage.key_plugin is not None and stage.registry for stage in stages] == ["r", "r"]  # type: ignore[attr-defined]


def _document(source: dict[str, Any], emit: dict[str, Any]) -> str:
    topic = {"connectionName": "k", "topic": "t"}
    return json.dumps({"pipeline": [{"$source": {**topic, **source}}, {"$emit": {**topic, "topic": "o", **emit}}]})


def test_a_document_names_formats_on_both_sides() -> None:
    """With a config each; a run looks for them as for sources and sinks."""
    form = {"plugin": "labels", "config": {"a": 1}}
    both = {"format": form, "config": {"keyFormat": form}}
    processor = parse(_document(both, {**both, "config": {"key": "$k", "keyFormat": form}}))
    source, emit = processor.pipeline
    assert isinstance(source, KafkaSource)
    assert isinstance(emit, KafkaEmit)
    uses = [(use.kind, use.plugin, use.config, use.path) for use in plugin_uses(processor.pipeline)]
    assert uses == [
        ("format", "labels", {"a": 1}, f"pipeline[{n}].{name}.{place}")
        for n, name in enumerate(("$source", "$emit"))
        for place in ("format", "config.keyFormat")
    ]
    assert (source.key_format, emit.key_format) == ("plugin", "plugin")


@pytest.mark.parametrize(
    ("source", "emit", "says"),
    [
        ({"format": "labels"}, {}, r"pipeline\[0\]\.\$source\.format"),
        ({"format": {"config": {}}}, {}, r"\$source\.format.*plugin"),
        ({"format": {"plugin": "x"}, "schemaRegistry": {"connectionName": "r"}}, {}, "not of both"),
        (
            {},
            {
                "config": {"key": "$k", "keyFormat": {"plugin": "x"}},
                "schemaRegistry": {"connectionName": "r", "keySchema": SCHEMA},
            },
            r"config\.keyFormat: the key is written by keySchema",
        ),
        ({"config": {"keyFormat": {"plugins": "x"}}}, {}, r"config\.keyFormat.*plugin"),
        ({"config": {"keyFormat": "plugin"}}, {}, r"config\.keyFormat"),
        ({}, {"format": {"plugin": "x"}, "config": {"outputFormat": "basicJson"}}, "config.outputFormat"),
    ],
)
def test_what_has_no_meaning_beside_a_format_is_an_error(
    source: dict[str, Any], emit: dict[str, Any], says: str
) -> None:
    """A format has the whole value."""
    with pytest.raises(InvalidDocument, match=says):
        parse(_document(source, emit))


class Changing(Labels):
    """Writes a document twice in two ways."""

    written = 0

    def encode(self, document: Document) -> bytes:
        self.written += 1
        return super().encode({**document, "written": str(self.written)})


class Indexing(Labels):
    """Fails as it happens to."""

    def decode(self, data: bytes) -> Document:
        pairs = [each.split("=") for each in data.decode().split(";")]
        return {each[0]: each[1] for each in pairs}


@pytest.mark.parametrize(
    ("plugin", "test", "kind"),
    [
        (Changing, "test_what_is_written_is_read_back", AssertionError),
        (Changing, "test_a_document_has_one_record", AssertionError),
        (Indexing, "test_a_damaged_record_is_read_or_refused_by_a_value_error", IndexError),
    ],
)
def test_the_suite_of_formats_finds(plugin: type[Labels], test: str, kind: type[Exception]) -> None:
    """As those of sinks and sources."""
    suite = FormatContract()
    suite.plugin, suite.documents = plugin, [{"a": "1"}]  # type: ignore[misc]
    with pytest.raises(kind):
        getattr(suite, test)()
    suite.plugin = Labels  # type: ignore[misc]
    getattr(suite, test)()
