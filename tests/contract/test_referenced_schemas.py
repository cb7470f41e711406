"""Schemas of Protobuf and Avro that are written and refer to others of the registry: over HTTP, with references drawn at random."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.contract.sinks_targets import KafkaWorld
from tests.harness.registry import Registry
from tidemark.services.sink.connectors.registered import RegisteredForms
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.registry import RegistrySettings, RestRegistry
from tidemark.shared.language.avro import parse_text
from tidemark.shared.language.avro import reader_of as avro_reader_of
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.forms import RegisteredSchema
from tidemark.shared.language.protobuf.reading import reader_of
from tidemark.shared.language.stages import KafkaEmit
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.schemas import SchemaReference
from tidemark.shared.ports.registry import SchemaUnknown
from tidemark.shared.ports.sink import TargetRefused
from tidemark.shared.process.protobuf_compiler import compiled
from tidemark.shared.process.registered import refused_schemas

FILES = 5


def drawn(seed: int) -> list[list[int]]:
    """For each file the earlier ones that it imports: an import without a circle, with files that several import."""
    chance = random.Random(seed)
    return [[other for other in range(number) if chance.random() < 0.5] for number in range(FILES)]


def text_of(number: int, imports: Sequence[int]) -> str:
    """A file with one message, which holds one of each file that it imports, and itself."""
    lines = ['syntax = "proto3";', "package x;", *(f'import "parts/f{other}.proto";' for other in imports)]
    fields = [f"M{other} f{other} = {other + 2};" for other in imports]
    return "\n".join([*lines, f"message M{number} {{ int64 n = 1; {' '.join(fields)} repeated M{number} more = 99; }}"])


def record_of(number: int, others: Sequence[int]) -> dict[str, Any]:
    """The same as a record of Avro, by names that are full or in the namespace; with a type of its own inside."""
    n = {"name": "n", "type": "long"}
    more = {"name": "more", "type": {"type": "array", "items": f"T{number}"}}
    tail = {"type": "record", "name": f"T{number}", "fields": [n, more]}
    fields = [{"name": f"f{other}", "type": f"x.M{other}" if number % 2 else f"M{other}"} for other in others]
    own = [n, *fields, {"name": "more", "type": {"type": "array", "items": tail}}]
    return {"type": "record", "name": f"M{number}", "namespace": "x", "fields": own}


def of_avro(number: int) -> SchemaReference:
    return SchemaReference(f"x.M{number}", f"s{number}", 1)


def reference(number: int) -> SchemaReference:
    return SchemaReference(f"parts/f{number}.proto", f"s{number}", 1)


def document_of(graph: list[list[int]], number: int) -> dict[str, Any]:
    inner = {f"f{other}": document_of(graph, other) for other in graph[number]}
    return {"n": number, **inner, "more": [{"n": 7, "more": []}]}


def _plain(value: Any) -> Any:
    """The values of a document without the difference of int and long."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else int(value)


def written(text: str, references: tuple[SchemaReference, ...], name: str = "") -> RegisteredSchema:
    return RegisteredSchema(type="protobuf", text=text, name=name, references=references)


def forms_of(registry: RestRegistry, schema: RegisteredSchema) -> RegisteredForms:
    stage = replace(KafkaWorld().stage, value_schema=schema)
    return RegisteredForms(registry, stage, AsyncExecutor())


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_written_is_read_by_the_references_that_were_registered(seed: int) -> None:
    """Any files that import one another: only the outermost's own references are named, the rest comes from the registry."""
    graph = drawn(seed)
    last = FILES - 1
    server = await Registry().start()
    registry = RestRegistry(RegistrySettings((server.url,)))
    reading = RestRegistry(RegistrySettings((server.url,)))
    try:
        for number in range(last):
            references = [
                {"name": each.name, "subject": each.subject, "version": each.version}
                for each in map(reference, graph[number])
            ]
            server.add(f"s{number}", text_of(number, graph[number]), "PROTOBUF", references)
        schema = written(text_of(last, graph[last]), tuple(map(reference, graph[last])), f"x.M{last}")
        stage = replace(KafkaWorld().stage, value_schema=schema)
        assert await refused_schemas(stage, registry) == []
        forms = forms_of(registry, schema)
        await forms.prepare("out")
        document = document_of(graph, last)
        record = forms.value(document, lambda: b"", "out")
        known = await reading.schema(int.from_bytes(record[1:5], "big"))
        messages = await asyncio.to_thread(compiled, known.text, {each.name: each.text for each in known.references})
        assert _plain(parse_json(reader_of(messages)(record[5:]))) == document
    finally:
        await registry.close()
        await reading.close()
        await server.stop()


@pytest.mark.parametrize("seed", range(6))
async def test_records_of_avro_are_written_and_read_by_their_references(seed: int) -> None:
    """The same of Avro: the document's text tells what is missing, the registry takes it, and a reader has the document back."""
    graph = drawn(seed)
    last = FILES - 1
    server = await Registry().start()
    registry = RestRegistry(RegistrySettings((server.url,)))
    reading = RestRegistry(RegistrySettings((server.url,)))
    try:
        for number in range(last):
            references = [asdict(of_avro(each)) for each in graph[number]]
            server.add(f"s{number}", record_of(number, graph[number]), "AVRO", references)
        told = [asdict(of_avro(each)) for each in graph[last]]
        schema = avro_of(record_of(last, graph[last]), told)
        assert schema.name == f"x.M{last}"
        assert await refused_schemas(replace(KafkaWorld().stage, value_schema=schema), registry) == []
        forms = forms_of(registry, schema)
        await forms.prepare("out")
        document = document_of(graph, last)
        record = forms.value(document, lambda: b"", "out")
        known = await reading.schema(int.from_bytes(record[1:5], "big"))
        assert len(known.references) >= len(told)
        read = parse_text(known.text, (each.text for each in known.references))
        assert _plain(parse_json(avro_reader_of(read)(record[5:]))) == document
        if told:
            with pytest.raises(InvalidDocument, match=r"valueSchema\.schema: no schema of Avro: .*unknown type"):
                avro_of(record_of(last, graph[last]), told[1:])
    finally:
        await registry.close()
        await reading.close()
        await server.stop()


def avro_of(tree: Any, references: Sequence[dict[str, Any]]) -> RegisteredSchema:
    """A schema as a document has it. InvalidDocument."""
    emit = {
        "connectionName": "k", "topic": "out",
        "schemaRegistry": {"connectionName": "r", "valueSchema": {"type": "avro", "schema": tree, "references": list(references)}},
    }  # fmt: skip
    connections = {
        "k": {"type": "kafka", "bootstrapServers": "b:1"},
        "r": {"type": "schemaRegistry", "schemaRegistryUrls": ["http://r"]},
    }
    found = parse({"connections": connections, "pipeline": [{"$source": {"documents": []}}, {"$emit": emit}]}).sinks[0]
    assert isinstance(found, KafkaEmit)
    assert found.value_schema is not None
    return found.value_schema


async def test_types_inside_of_one_schema_are_referred_to_each_by_its_name() -> None:
    """Two references to one subject; a default is looked at with the type that it is of, and a wrong one refused by the sink."""
    server = await Registry().start()
    registry = RestRegistry(RegistrySettings((server.url,)))
    color = {"type": "enum", "name": "Color", "symbols": ["RED"]}
    server.add("paint", {"type": "record", "name": "Paint", "fields": [{"name": "color", "type": color}]})
    references = [{"name": name, "subject": "paint", "version": 1} for name in ("Paint", "Color")]

    def tree(default: str) -> dict[str, Any]:
        fields = [{"name": "paint", "type": "Paint"}, {"name": "line", "type": "Color", "default": default}]
        return {"type": "record", "name": "Door", "fields": fields}

    try:
        forms = forms_of(registry, avro_of(tree("RED"), references))
        await forms.prepare("out")
        assert forms.value({"paint": {"color": "RED"}}, lambda: b"", "out")[5:] == b"\0\0"
        with pytest.raises(TargetRefused, match=r"valueSchema: .*line.*BLUE"):
            await forms_of(registry, avro_of(tree("BLUE"), references)).prepare("out")
    finally:
        await registry.close()
        await server.stop()


@pytest.mark.parametrize("kind", ["PROTOBUF", "AVRO"])
async def test_what_is_referred_to_and_is_no_avro_is_said(kind: str) -> None:
    """The sink refuses the schema with the text; nobody's process ends."""
    server = await Registry().start()
    registry = RestRegistry(RegistrySettings((server.url,)))
    try:
        server.add("s0", text_of(0, []) if kind == "PROTOBUF" else {"type": "rec"}, kind)
        schema = avro_of(record_of(1, [0]), [asdict(of_avro(0))])
        with pytest.raises(TargetRefused, match=r"valueSchema: .*(is JSON|rec)"):
            await forms_of(registry, schema).prepare("out")
    finally:
        await registry.close()
        await server.stop()


async def test_a_circle_is_refused_by_name() -> None:
    """A registry that tells of one ends nobody's process: the sink refuses the schema with the way round."""
    server = await Registry().start()
    registry = RestRegistry(RegistrySettings((server.url,)))
    try:
        for number, other in ((0, 1), (1, 0)):
            body = {"name": f"parts/f{other}.proto", "subject": f"s{other}", "version": 1}
            server.add(f"s{number}", text_of(number, [other]), "PROTOBUF", [body])
        said = r"s0 version 1 → s1 version 1 → s0 version 1"
        with pytest.raises(SchemaUnknown, match=said):
            await registry.referenced([reference(0)])
        schema = written(text_of(2, [0]), (reference(0),))
        with pytest.raises(TargetRefused, match=rf"valueSchema: schemas refer to one another in a circle: {said}"):
            await forms_of(registry, schema).prepare("out")
    finally:
        await registry.close()
        await server.stop()


@pytest.mark.parametrize(
    ("references", "said"),
    [
        ((), r"parts/f0\.proto"),
        ((replace(reference(0), version=2),), r"version 2 of s0, which a schema refers to as 'parts/f0\.proto'"),
        ((replace(reference(0), name="f0.proto"),), r"parts/f0\.proto"),
    ],
    ids=["none", "no version", "another name"],
)
async def test_an_import_that_is_not_there_is_named(references: tuple[SchemaReference, ...], said: str) -> None:
    """The sink refuses the schema, and says which file, or which version of which subject."""
    server = await Registry().start()
    registry = RestRegistry(RegistrySettings((server.url,)))
    try:
        server.add("s0", text_of(0, []), "PROTOBUF")
        schema = written(text_of(1, [0]), references)
        with pytest.raises(TargetRefused, match=said):
            await forms_of(registry, schema).prepare("out")
    finally:
        await registry.close()
        await server.stop()
