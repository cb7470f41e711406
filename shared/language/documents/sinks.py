"""`$emit` to Kafka or files, `$merge` to tables."""

from typing import Any, Final

from tidemark.shared.language.documents.kinds import (
    DOCUMENT,
    EXPRESSION,
    PATH,
    STRING,
    Kind,
    Option,
    Read,
    StageSpec,
    choice,
    closed,
    closed_schema,
    one_or_more,
    read_options,
    with_options,
)
from tidemark.shared.language.documents.relational import TABLE
from tidemark.shared.language.expressions.ast import Literal
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages import FileEmit, KafkaEmit, Merge, Sink


def _acks(tree: Any, path: str, scope: Scope) -> Any:
    if type(tree) in (str, int) and tree in _ACKS_KNOWN:
        return tree
    scope.problems.add(path, f"unknown value {tree!r}", accepted=[str(known) for known in _ACKS_KNOWN])
    return None


_ACKS_KNOWN: Final = ("all", -1, 0, 1)
_ACKS: Final = Kind(_acks, {"enum": list(_ACKS_KNOWN)})
_CONFIG: Final = closed(
    Option("key", EXPRESSION, "the record's key"),
    Option(
        "keyFormat",
        choice("binData", "string", "json", "int", "long", "double"),
        "how the key is written (default json)",
    ),
    Option("headers", EXPRESSION, "an object, or a list of {k, v}"),
    Option("outputFormat", choice("relaxedJson", "canonicalJson"), "how documents are written (default relaxedJson)"),
    Option(
        "compression_type", choice("none", "gzip", "snappy", "lz4", "zstd"), "compression of batches (default none)"
    ),
    Option("tombstoneWhen", EXPRESSION, "where it is true the record has no value"),
    Option("acks", _ACKS, "accepted and without effect: output always waits for all replicas"),
)
_KAFKA: Final = (
    Option("connectionName", STRING, "the connection to write to", required=True),
    Option("topic", EXPRESSION, "a topic, or an expression that gives one", required=True),
    Option("config", _CONFIG, "how records are written"),
)
_FILES: Final = (
    Option("connectionName", STRING, "the connection of the files; without it a local path"),
    Option("path", STRING, "the folder", required=True),
    Option("format", choice("json", "csv", "parquet"), "json is a document a line", required=True),
    Option("partitionBy", one_or_more(PATH), "a folder for each value"),
    Option("writeOptions", DOCUMENT, "of the format"),
)


def _emit(tree: Any, path: str, scope: Scope) -> Sink | None:
    before = len(scope.problems.errors)
    if type(tree) is dict and "path" in tree:
        o = read_options(tree, path, scope, _FILES)
        return None if len(scope.problems.errors) > before else _files(o, path)
    o = read_options(tree, path, scope, _KAFKA)
    topic = o.get("topic")
    if isinstance(topic, Literal) and (type(topic.value) is not str or not topic.value):
        scope.problems.add(join(path, "topic"), "a topic's name, or an expression that gives one")
    return None if len(scope.problems.errors) > before else _kafka(o, path)


def _files(o: Read, path: str) -> Sink:
    return FileEmit(
        path=path,
        file_path=o["path"],
        format=o["format"],
        connection_name=o.get("connectionName"),
        partition_by=tuple(".".join(names) for names in o.get("partitionBy", ())),
        write_options=o.get("writeOptions", {}),
    )


def _kafka(o: Read, path: str) -> Sink:
    config = o.get("config", {})
    return KafkaEmit(
        path=path,
        connection_name=o["connectionName"],
        topic=o["topic"],
        key=config.get("key"),
        key_format=config.get("keyFormat", "json"),
        headers=config.get("headers"),
        output_format=config.get("outputFormat", "relaxedJson"),
        compression_type=config.get("compression_type", "none"),
        tombstone_when=config.get("tombstoneWhen"),
    )


def _merge(o: Read, path: str, _: Scope) -> Merge:
    return Merge(
        path=path,
        connection_name=o["into"].connection_name,
        table=o["into"].table,
        on=tuple(".".join(names) for names in o.get("on", (("_id",),))),
        when_matched=o.get("whenMatched", "merge"),
        when_not_matched=o.get("whenNotMatched", "insert"),
    )


_MERGE: Final = (
    Option("into", TABLE, "the table", required=True),
    Option("on", one_or_more(PATH), "the fields that find a row (default _id)"),
    Option(
        "whenMatched",
        choice("replace", "merge", "keepExisting", "delete", "fail"),
        "what becomes of a row that is there (default merge)",
    ),
    Option(
        "whenNotMatched",
        choice("insert", "discard", "fail"),
        "what becomes of a document without a row (default insert)",
    ),
)

SINKS: Final[dict[str, StageSpec]] = {
    "$emit": StageSpec(
        "Writes to a topic or to files.", _emit, {"oneOf": [closed_schema(_KAFKA), closed_schema(_FILES)]}
    ),
    "$merge": with_options("Writes to a table, row by row.", _MERGE, _merge),
}
