"""`$emit` to Kafka, files or collections, `$merge` to tables and collections."""

from typing import Any, Final

from tidemark.shared.language.documents.plugins import FORMAT, check_format
from tidemark.shared.language.documents.registered import REGISTRY, check_schemas
from tidemark.shared.language.expressions.ast import Call, Expr, Literal
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import (
    DOCUMENT,
    EXPRESSION,
    PATHS,
    STRING,
    Kind,
    Option,
    Read,
    StageSpec,
    choice,
    closed,
    closed_schema,
    integer,
    read_later,
    read_options,
    read_stages,
    with_options,
)
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages import FileEmit, KafkaEmit, Merge, PluginEmit, Sink
from tidemark.shared.language.stages.inner import IN_PLACE
from tidemark.shared.language.stages.lookup import read_let


def _acks(tree: Any, path: str, scope: Scope) -> Any:
    if type(tree) in (str, int) and tree in _ACKS_KNOWN:
        return tree
    scope.problems.add(path, f"unknown value {tree!r}", accepted=[str(known) for known in _ACKS_KNOWN])
    return None


_WRITTEN: Final = (
    Option(
        "outputFormat",
        choice("relaxedJson", "canonicalJson", "basicJson"),
        "how documents are written (default relaxedJson)",
    ),
    Option("dateFormat", choice("default", "ISO8601"), "ISO8601: dates as text (default: as outputFormat has them)"),
)
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
    *_WRITTEN,
    Option(
        "compression_type",
        choice("none", "gzip", "snappy", "lz4", "zstd"),
        "compression of batches (default: `compression` of the connection's config, else none)",
    ),
    Option("tombstoneWhen", EXPRESSION, "where it is true the record has no value"),
    Option("acks", _ACKS, "accepted and without effect: output always waits for all replicas", into=None),
)
_KAFKA: Final = (
    Option("connectionName", STRING, "the connection to write to", required=True),
    Option("topic", EXPRESSION, "a topic, or an expression that gives one", required=True),
    Option("schemaRegistry", REGISTRY, "values, keys or both are records of a registry's schemas"),
    Option("format", FORMAT, "values are of a plug-in's format"),
    Option("config", _CONFIG, "how records are written"),
)


def _computed(tree: Any) -> bool:
    """Whether a tree is an expression, and no word."""
    return type(tree) is dict or (type(tree) is str and tree.startswith("$"))


_NAME: Final = Kind(
    lambda tree, path, scope: (
        parse_expression(tree, path, scope) if _computed(tree) else STRING.read(tree, path, scope)
    ),
    {"anyOf": [STRING.schema, EXPRESSION.schema]},
)


def _line_feed(tree: Any, path: str, scope: Scope) -> Any:
    if tree != "\n":
        scope.problems.add(path, f"expected a line feed, for each document is a line, found {tree!r:.20}")
    return tree


_LINES: Final = Kind(_line_feed, STRING.schema)
_FILE_CONFIG: Final = closed(
    *_WRITTEN,
    Option(
        "writeOptions",
        DOCUMENT,
        "accepted and without effect: files end with checkpoints, and by their size",
        into=None,
    ),
    Option("delimiter", _LINES, "a line feed: a document a line", into=None),
)
_FILES: Final = (
    Option("connectionName", STRING, "the connection of the files; without it a local path"),
    Option(
        "path",
        _NAME,
        "the folder, or an expression that gives one below the connection's",
        required=True,
        into="file_path",
    ),
    Option(
        "format",
        choice("json", "csv", "parquet", "iceberg"),
        "json is a document a line (default, with bucket or config), parquet a Delta Lake table, iceberg a table of the connection's"
        " `catalog`",
    ),
    Option("partitionBy", PATHS, "a folder for each value"),
    Option("writeOptions", DOCUMENT, "of the format"),
    Option("bucket", STRING, "accepted and without effect: the connection's path names the bucket", into=None),
    Option("region", STRING, "accepted and without effect: the connection has it", into=None),
    Option("config", _FILE_CONFIG, "how documents are written, of format json"),
)


_COLLECTION: Final = (
    Option("connectionName", STRING, "the connection, of type mongodb", required=True),
    Option("db", _NAME, "the database, or an expression that gives one", required=True),
    Option("coll", _NAME, "the collection, or an expression that gives one", required=True),
)
_PLUGIN: Final = (
    Option("plugin", STRING, "the sink's name in the package that has it", required=True),
    Option("connectionName", STRING, "a connection of type plugin, with the same plugin, if it takes one"),
    Option("config", DOCUMENT, "as the plug-in takes it"),
)
_ELSEWHERE: Final = {
    "timeseries": "a time series collection is no target here: it has no unique keys, so no release into it could be repeated",
    "stream": "Kinesis is no target here: write to a topic",
}
"""Targets of Atlas' cloud, by an option that tells, and why there are none here."""


def _emit(tree: Any, path: str, scope: Scope) -> Sink | None:
    before = len(scope.problems.errors)
    if type(tree) is dict and "plugin" in tree:
        o = read_options(tree, path, scope, _PLUGIN)
        return None if len(scope.problems.errors) > before else PluginEmit(path=path, **o.fields)
    if type(tree) is dict and "path" in tree:
        o = read_options(tree, path, scope, _FILES)
        _check_files(o, path, scope)
        if len(scope.problems.errors) > before:
            return None
        computed = {} if type(o["path"]) is str else {"file_path": "", "folder": o["path"]}
        return FileEmit(path=path, **{**o.fields, **computed})
    for name, why in _ELSEWHERE.items():
        if type(tree) is dict and "topic" not in tree and name in tree:
            scope.problems.add(join(path, name), why)
            return None
    if type(tree) is dict and "topic" not in tree and ("db" in tree or "coll" in tree):
        o = read_options(tree, path, scope, _COLLECTION)
        if len(scope.problems.errors) > before:
            return None
        target = _joined([o["db"], o["coll"]], path)
        return Merge(path=path, connection_name=o["connectionName"], table=target, when_matched="replace")
    o = read_options(tree, path, scope, _KAFKA)
    topic = o.get("topic")
    if isinstance(topic, Literal) and (type(topic.value) is not str or not topic.value):
        scope.problems.add(join(path, "topic"), "a topic's name, or an expression that gives one")
    check_schemas(tree, o, path, scope)
    check_format(tree, o, path, scope)
    return None if len(scope.problems.errors) > before else KafkaEmit(path=path, **o.fields)


def _check_files(o: Read, path: str, scope: Scope) -> None:
    kind = o.get("format")
    if kind is None and "bucket" not in o and "config" not in o:
        scope.problems.add(path, "$emit needs format: json is a document a line")
    if kind not in (None, "json") and "config" in o:
        scope.problems.add(
            join(path, "config"), f"tells how JSON is written, and format is {kind}: writeOptions are of the format"
        )
    if kind == "iceberg":
        _check_iceberg(o, path, scope)
    if "path" in o and type(o["path"]) is not str:
        if kind in ("parquet", "iceberg"):
            message = "a table is one folder, and this is an expression: partitionBy divides a table"
            scope.problems.add(join(path, "path"), message)
        if "connectionName" not in o:
            message = "a path that an expression gives is below that of a connection: give connectionName"
            scope.problems.add(path, message)


def _check_iceberg(o: Read, path: str, scope: Scope) -> None:
    if "connectionName" not in o:
        scope.problems.add(path, "format iceberg needs connectionName: a connection of type files that has a catalog")
    for name in o.get("partitionBy", ()):
        if "." in name:
            scope.problems.add(
                join(path, "partitionBy"),
                f"a table of Iceberg is divided by its columns: make a field of {name} with $set",
            )
    if type(o.get("path")) is str and not o["path"].strip("/"):
        scope.problems.add(join(path, "path"), "names the table: namespace/table")


def _word_or_expression(*words: str) -> Kind:
    known = choice(*words)

    def read(tree: Any, path: str, scope: Scope) -> Any:
        if not _computed(tree):
            return known.read(tree, path, scope)
        expr = parse_expression(tree, path, scope)
        return known.read(expr.value, path, scope) if isinstance(expr, Literal) else expr

    return Kind(read, {"anyOf": [known.schema, EXPRESSION.schema]})


_INTO: Final = (
    Option("connectionName", STRING, "the connection", required=True),
    Option("table", _NAME, "a table, or an expression that gives one"),
    Option("db", _NAME, "with coll: the collection, or the table db.coll"),
    Option("coll", _NAME, "with db: the collection, or the table db.coll"),
)


def _into(tree: Any, path: str, scope: Scope) -> tuple[str, str | Expr] | None:
    """The connection, and the table or the expression that gives it."""
    found = read_options(tree, path, scope, _INTO)
    parts = [found[name] for name in (["table"] if "table" in found else ["db", "coll"]) if name in found]
    if "connectionName" not in found:
        return None
    if not parts:
        scope.problems.add(path, "needs table, or coll (and db)", accepted=("table", "db", "coll"))
        return None
    return found["connectionName"], _joined(parts, path)


def _joined(parts: list[Any], path: str) -> str | Expr:
    """`db.coll`, or the expression that gives it."""
    if all(type(part) is str for part in parts):
        return ".".join(parts)
    exprs: list[Expr] = [Literal(part) if type(part) is str else part for part in parts]
    return exprs[0] if len(exprs) == 1 else Call("$concat", (exprs[0], Literal("."), exprs[1]), path)


_MATCHED: Final = _word_or_expression("replace", "merge", "keepExisting", "delete", "fail")


def _matched(tree: Any, variables: tuple[str, ...], path: str, scope: Scope) -> Any:
    if type(tree) is not list:
        return _MATCHED.read(tree, path, scope)
    return read_stages(tree, path, scope.bind(*variables), IN_PLACE, "")


def _merge(o: Read, path: str, scope: Scope) -> Merge:
    if "let" in o and type(o.get("whenMatched")) is not list:
        scope.problems.add(join(path, "let"), "are variables of a pipeline in whenMatched, and there is none")
    let = read_let(o.get("let", {"new": "$$ROOT"}), join(path, "let"), scope)
    matched = _matched(o.get("whenMatched", "merge"), tuple(n for n, _ in let), join(path, "whenMatched"), scope)
    name, table = o["into"]
    let = let if type(matched) is tuple else ()
    return Merge(path=path, connection_name=name, table=table, let=let, when_matched=matched, **o.fields)


_MERGE: Final = (
    Option("into", Kind(_into, closed_schema(_INTO)), "the table or collection", required=True, into=None),
    Option("on", PATHS, "the fields that find a row (default _id)"),
    Option("let", Kind(read_later, {"type": "object"}), "variables for the pipeline of whenMatched (default {new: $$ROOT})", into=None),
    Option(
        "whenMatched",
        Kind(read_later, {"anyOf": [_MATCHED.schema, {"type": "array"}]}),
        "what becomes of a row that is there (default merge): a word, an expression that gives one, or a pipeline on the row",
        into=None,
    ),
    Option(
        "whenNotMatched",
        _word_or_expression("insert", "discard", "fail"),
        "what becomes of a document without a row (default insert): a word, or an expression that gives one",
    ),
    Option("parallelism", integer(1), "accepted and without effect: the processor has the number of tasks", into=None),
)  # fmt: skip

SINKS: Final[dict[str, StageSpec]] = {
    "$emit": StageSpec(
        "Writes to a topic, to files, into a collection, or where a plug-in does.",
        _emit,
        {"oneOf": [closed_schema(_KAFKA), closed_schema(_FILES), closed_schema(_COLLECTION), closed_schema(_PLUGIN)]},
    ),
    "$merge": with_options("Writes into a table or a collection, row by row.", _MERGE, _merge),
}
