"""`$emit.schemaRegistry`: the schemas that records are written by, read and checked with the document."""

import json
from typing import Any, Final

from tidemark.shared.language.avro import AvroSchemaError, parse_alone, parse_schema, writer_of
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.forms import RegisteredSchema
from tidemark.shared.language.kinds import (
    BOOLEAN,
    STRING,
    Kind,
    Option,
    Read,
    choice,
    closed,
    closed_schema,
    integer,
    list_of,
    read_later,
    read_options,
)
from tidemark.shared.language.problems import join
from tidemark.shared.model.schemas import SchemaReference

_OPTIONS: Final = closed(
    Option(
        "autoRegisterSchemas",
        BOOLEAN,
        "register the schema where the registry does not have it (default true); else documents are dead letters until it is there",
    ),
    Option(
        "subjectNameStrategy",
        choice("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy"),
        "the subject is topic-value or topic-key (default), the record's name, or topic-name",
    ),
)
_REFERENCE: Final = (
    Option("name", STRING, "the file as the schema imports it; of avro the full name of the type", required=True),
    Option("subject", STRING, "under which the registry has it", required=True),
    Option("version", integer(1, 2**31 - 1), "of the subject", required=True),
)


def _reference(tree: Any, path: str, scope: Scope) -> SchemaReference | None:
    before = len(scope.problems.errors)
    found = read_options(tree, path, scope, _REFERENCE)
    return None if len(scope.problems.errors) > before else SchemaReference(**found.fields)


_TREE: Final = Kind(read_later, {"anyOf": [{"type": kind} for kind in ("object", "array", "string")]})
_WORDS: Final = (
    Option(
        "type",
        choice("avro", "protobuf", "json"),
        "avro, protobuf, or json: JSON behind the id of a JSON Schema",
        required=True,
    ),
    Option("schema", _TREE, "the schema; of protobuf its text", required=True, into="tree"),
    Option("message", STRING, "of protobuf the message's full name; the first of the schema by default"),
    Option(
        "references",
        list_of(Kind(_reference, closed_schema(_REFERENCE))),
        "of avro and protobuf the schemas of the registry that it refers to; what these refer to comes with them",
    ),
    Option("options", _OPTIONS, "how the registry knows it"),
)


def _registered(tree: Any, path: str, scope: Scope) -> RegisteredSchema | None:
    before = len(scope.problems.errors)
    found = read_options(tree, path, scope, _WORDS)
    fields = dict(found.fields)
    schema, message = fields.pop("tree", None), fields.pop("message", "")
    _check_references(found, path, scope)
    name = message or (_name(found, schema, join(path, "schema"), scope) if "schema" in found else "")
    if message and found.get("type") != "protobuf":
        scope.problems.add(join(path, "message"), "names a message of Protobuf: leave it out")
    if fields.get("subject_name_strategy", "TopicNameStrategy") != "TopicNameStrategy" and not name:
        scope.problems.add(
            join(path, "options.subjectNameStrategy"),
            "needs a schema with a name (of JSON: title; of protobuf: message)",
        )
    if len(scope.problems.errors) > before:
        return None
    text = schema if found.get("type") == "protobuf" else json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    return RegisteredSchema(text=text, name=name, **fields)


def _check_references(found: Read, path: str, scope: Scope) -> None:
    references = found.get("references") or ()
    if references and found.get("type") == "json":
        scope.problems.add(join(path, "references"), "are what a schema of Avro or Protobuf refers to: leave them out")
    names = [each.name for each in references]
    for number, name in enumerate(names):
        if name in names[:number]:
            scope.problems.add(f"{join(path, 'references')}[{number}].name", f"{name!r} is there twice")


def _name(found: Read, schema: Any, path: str, scope: Scope) -> str:
    """The schema's name, "" if it has none; a wrong schema is noted."""
    kind, others = found.get("type"), [each.name for each in found.get("references") or ()]
    if kind == "json":
        if type(schema) is not dict:
            scope.problems.add(path, "a JSON Schema is an object")
            return ""
        title = schema.get("title", "")
        return title if type(title) is str else ""
    if kind == "protobuf":
        if type(schema) is not str:
            scope.problems.add(
                path, 'a schema of Protobuf is a text, such as: syntax = "proto3"; message A { int64 id = 1; }'
            )
        return ""
    try:
        if others:  # defaults are looked at when the types that they are of are known
            return parse_alone(schema, others).name
        read = parse_schema(schema)
        writer_of(read)
    except AvroSchemaError as error:
        scope.problems.add(path, f"no schema of Avro: {error}")
        return ""
    return read.name


_SCHEMA: Final = Kind(_registered, closed_schema(_WORDS))
REGISTRY: Final = closed(
    Option("connectionName", STRING, "the registry's connection", required=True, into="registry"),
    Option("valueSchema", _SCHEMA, "what documents are written by"),
    Option("keySchema", _SCHEMA, "what config.key is written by, in place of keyFormat"),
)


def check_schemas(tree: Any, found: Read, path: str, scope: Scope) -> None:
    """Note options of `$emit` that have no meaning beside schemas."""
    registry = found.get("schemaRegistry")
    if registry is None:
        return
    config = tree.get("config")
    written = config if type(config) is dict else {}
    value, key = registry.get("valueSchema"), registry.get("keySchema")
    if not {"valueSchema", "keySchema"} & tree["schemaRegistry"].keys():
        scope.problems.add(join(path, "schemaRegistry"), "needs valueSchema, keySchema or both")
    if value is not None and value.type != "json":
        for name in ("outputFormat", "dateFormat"):
            if name in written:
                scope.problems.add(
                    join(path, f"config.{name}"), f"tells how JSON is written, and values are {value.type.title()}"
                )
    if key is not None and "key" not in written:
        scope.problems.add(join(path, "schemaRegistry.keySchema"), "needs config.key, whose values it is for")
    if key is not None and "keyFormat" in written:
        scope.problems.add(join(path, "config.keyFormat"), "the key is written by keySchema: leave this out")
