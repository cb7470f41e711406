"""`$source`: which of its kinds is meant is told by its options, then all of them are checked."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tidemark.shared.language.documents import changestreams
from tidemark.shared.language.expressions.ast import Expr, Literal, constant
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import (
    BOOLEAN,
    DATE,
    DOCUMENT,
    EXPRESSION,
    STRING,
    Kind,
    Option,
    Read,
    StageSpec,
    choice,
    closed,
    closed_schema,
    duration,
    fraction,
    integer,
    list_of,
    one_or_more,
    read_options,
)
from tidemark.shared.language.problems import join
from tidemark.shared.language.schema import FIELD_TYPES, parse_schema
from tidemark.shared.language.stages import (
    BoundedDisorder,
    ChangesSource,
    ChangeStreamSource,
    DocumentsSource,
    FileSource,
    KafkaSource,
    MaxSeen,
    Percentile,
    Perfect,
    PluginSource,
    PositionHorizon,
    SampleSource,
    ScriptSource,
    Source,
    Stage,
    StartAtOffsets,
    StartAtTime,
    TimeHorizon,
    Union,
    Watermark,
)
from tidemark.shared.language.stages.formats import FORMAT, check_format
from tidemark.shared.language.steps import DataStep, IdleStep, ProcessingTimeStep, ScriptStep, WatermarkStep
from tidemark.shared.model.values import INT64_MAX, Date

_STRATEGIES: Final = {
    "maxSeen": (MaxSeen, ()),
    "boundedDisorder": (
        BoundedDisorder,
        (Option("maxDelay", duration(least=0), "how far behind the highest time data may come", required=True),),
    ),
    "percentile": (
        Percentile,
        (
            Option("lateFraction", fraction(), "at most this fraction may come late", required=True),
            Option("window", duration(least=1), "over how much event time the fraction is taken", required=True),
        ),
    ),
    "perfect": (Perfect, ()),
}
_STRATEGY: Final = Option("strategy", choice(*_STRATEGIES), "how the watermark is made", required=True, into=None)


def _watermark(tree: Any, path: str, scope: Scope) -> Watermark | None:
    if type(tree) is not dict or tree.get("strategy") not in list(_STRATEGIES):
        read_options(tree, path, scope, (_STRATEGY,), "watermark")
        return None
    before = len(scope.problems.errors)
    strategy = tree["strategy"]
    made, options = _STRATEGIES[strategy]
    found = read_options(tree, path, scope, (_STRATEGY, *options), f"the watermark strategy {strategy}")
    return None if len(scope.problems.errors) > before else made(**found.fields)


_WATERMARK: Final = Kind(
    _watermark, {"oneOf": [closed_schema((_STRATEGY, *options)) for _, options in _STRATEGIES.values()]}
)


def _horizon(tree: Any, path: str, scope: Scope) -> TimeHorizon | PositionHorizon | None:
    if type(tree) is dict and "positions" in tree:
        found = read_options(tree, path, scope, (Option("positions", integer(1), "how many positions", required=True),))
        return PositionHorizon(found["positions"]) if "positions" in found else None
    ms = duration(least=1).read(tree, path, scope)
    return None if ms is None else TimeHorizon(ms)


def _offsets(tree: Any, path: str, scope: Scope) -> StartAtOffsets | None:
    pairs = []
    for partition, offset in tree.items():
        if not partition.isdigit() or type(offset) is not int or offset < 0:
            scope.problems.add(
                join(path, partition), f"expected partition: offset, both whole and ≥ 0, found {offset!r}"
            )
            return None
        pairs.append((int(partition), offset))
    return StartAtOffsets(tuple(sorted(pairs)))


def _position(names: tuple[str, ...], *, time: bool) -> Kind:
    """A word, a date where allowed, or offsets by partition."""

    def read(tree: Any, path: str, scope: Scope) -> Any:
        if type(tree) is dict and "$date" in tree and time:
            date = DATE.read(tree, path, scope)
            return None if date is None else StartAtTime(int(date))
        if type(tree) is dict and tree:
            return _offsets(tree, path, scope)
        return choice(*names).read(tree, path, scope)

    return Kind(read, {"anyOf": [{"enum": list(names)}, {"type": "object"}]})


_RESETS: Final = {"smallest": "earliest", "beginning": "earliest", "largest": "latest", "end": "latest"}
"""Words of Kafka's clients for the same."""


def _reset(tree: Any, path: str, scope: Scope) -> str | None:
    found: str | None = choice("earliest", "latest", *_RESETS).read(tree, path, scope)
    return None if found is None else _RESETS.get(found, found)


_KEY_FORMAT: Final = choice("binData", "string", "json", "int", "long", "double", "schemaRegistry")
_CONFIG: Final = closed(
    Option(
        "auto_offset_reset",
        Kind(_reset, {"enum": ["earliest", "latest", *_RESETS]}),
        "where to begin without a checkpoint: earliest (smallest, beginning) or latest (largest, end; default)",
        into="start_at",
    ),
    Option(
        "startAt", _position(("earliest", "latest"), time=True), "earliest, latest, a date, or offsets by partition"
    ),
    Option("keyFormat", _KEY_FORMAT, "how the record's key is read (default binData)"),
    Option(
        "keyFormatError", choice("dlq", "passThrough"), "what becomes of a key that is not of that format (default dlq)"
    ),
    Option("group_id", STRING, "accepted and without effect: positions are part of the checkpoint", into=None),
    Option(
        "enable_auto_commit", BOOLEAN, "accepted and without effect: positions are part of the checkpoint", into=None
    ),
)

_SCHEMA: Final = Kind(
    lambda tree, path, scope: parse_schema(tree, path, scope.problems),
    {"type": "object", "additionalProperties": {"enum": [t + mark for t in FIELD_TYPES for mark in ("", "?")]}},
)


def _time(tree: Any, path: str, scope: Scope) -> Expr:
    expr = parse_expression(tree, path, scope)
    if isinstance(expr, Literal) and type(expr.value) is not Date:
        scope.problems.add(path, f"timeField is {constant(expr.value)}, which is no date")
    elif isinstance(expr, Literal):
        scope.problems.warn(path, "timeField is a constant: all records have one event time")
    return expr


def _id(tree: Any, path: str, scope: Scope) -> Expr:
    expr = parse_expression(tree, path, scope)
    if isinstance(expr, Literal):
        scope.problems.add(
            path, f"recordId is {constant(expr.value)}: all records but the first would count as repeated"
        )
    return expr


_TIME: Final = Kind(_time, EXPRESSION.schema)
_ID: Final = Kind(_id, EXPRESSION.schema)
_TIMING: Final = (
    Option("timeField", _TIME, "the event time, a date; without it the record's own timestamp"),
    Option("schema", _SCHEMA, "declared fields: field: type, a trailing ? for what may be null or missing"),
    Option("recordId", _ID, "a repeated record, one with the same id, counts once"),
    Option("recordIdHorizon", Kind(_horizon, {"type": "object"}), "{size, unit} of event time or {positions} of a split"),
    Option("recordIdScope", choice("source", "split"), "split: a promise that a repeat comes in the split of its first (default source)"),
    Option("watermark", _WATERMARK, "how the watermark is made (default maxSeen)"),
    Option("partitionIdleTimeout", duration(least=0, zero_alone=True), "after which a silent partition no longer holds the watermark"),
    Option("maxEventTimeJump", duration(least=1), "a document further ahead than this goes to the dead letters"),
)  # fmt: skip
_CONNECTION: Final = Option("connectionName", STRING, "the connection to read from", required=True)
_REGISTRY: Final = closed(Option("connectionName", STRING, "the registry's connection", required=True, into="registry"))
_KAFKA: Final = (
    _CONNECTION,
    Option("topic", one_or_more(STRING), "a topic, or a list of them", required=True, into="topics"),
    Option("schemaRegistry", _REGISTRY, "records are Avro, Protobuf or JSON by the schemas of a registry"),
    Option("format", FORMAT, "records are of a plug-in's format"),
    Option("config", _CONFIG, "how the topic is read"),
    Option("until", _position(("latest",), time=False), "latest, or offsets by partition: then the source ends"),
    Option("partitionCount", integer(1), "accepted and without effect: the brokers know their partitions", into=None),
    *_TIMING,
)
_FILES: Final = (
    Option("connectionName", STRING, "the connection of the files; without it a local path"),
    Option("path", STRING, "a glob", required=True, into="path_glob"),
    Option("format", choice("json", "csv", "parquet"), "json is a document a line", required=True),
    Option("ordered", BOOLEAN, "one file after the other, by name (default), or each a split of its own"),
    Option("follow", BOOLEAN, "the directory grows: go on looking for files (default false)"),
    *_TIMING,
)
_DOCUMENTS: Final = (Option("documents", list_of(DOCUMENT), "the documents", required=True), *_TIMING)


def _check_registry(found: Read, path: str, scope: Scope) -> None:
    if found.fields.get("key_format") == "schemaRegistry" and "registry" not in found.fields:
        scope.problems.add(join(path, "config.keyFormat"), "keys of a schema registry need $source.schemaRegistry")


def _check_ids(found: Read, path: str, scope: Scope) -> None:
    """Positions are of one split, and say nothing of another: repeats are looked for within it."""
    at = join(path, "recordIdHorizon")
    if isinstance(found.get("recordIdHorizon"), PositionHorizon):
        if found.get("recordIdScope") == "source":
            scope.problems.add(
                at, "positions are counted in one split, and recordIdScope is source: give {size, unit} of event time"
            )
        elif "recordIdScope" not in found:
            found.fields["record_id_scope"] = "split"
            scope.problems.warn(
                at,
                "repeats are looked for within each split, whose positions these are: say recordIdScope: split",
            )
    for name in ("recordIdHorizon", "recordIdScope"):
        if name in found and "recordId" not in found:
            scope.problems.warn(join(path, name), "without recordId it has no effect")


_STEP_PARTITION: Final = Option("partition", integer(0, 10_000), "0 by default")
_STEPS: Final = {
    "data": (Option("data", DOCUMENT, "a document that arrives", required=True), _STEP_PARTITION),
    "watermark": (Option("watermark", DATE, "the watermark rises to this", required=True), _STEP_PARTITION),
    "processingTime": (Option("processingTime", DATE, "processing time goes to this", required=True),),
    "idle": (Option("idle", BOOLEAN, "true: the partition is idle", required=True), _STEP_PARTITION),
}


def _step(tree: Any, path: str, scope: Scope) -> ScriptStep | None:
    kinds = [name for name in _STEPS if type(tree) is dict and name in tree]
    if len(kinds) != 1:
        scope.problems.add(
            path, "a step is one of {data}, {watermark}, {processingTime}, {idle: true}", accepted=_STEPS
        )
        return None
    found = read_options(tree, path, scope, _STEPS[kinds[0]], "a step")
    if kinds[0] not in found:
        return None
    value, partition = found[kinds[0]], found.get("partition")
    if kinds[0] == "data":
        return DataStep(value, partition or 0)
    if kinds[0] == "watermark":
        # The maximum itself says that the input has ended.
        return WatermarkStep(min(int(value), INT64_MAX - 1), partition)
    return ProcessingTimeStep(int(value)) if kinds[0] == "processingTime" else IdleStep(partition)


_SCRIPT: Final = (
    Option(
        "script",
        list_of(Kind(_step, {"anyOf": [closed_schema(o) for o in _STEPS.values()]})),
        "the steps",
        required=True,
    ),
    *_TIMING,
)
_SAMPLE: Final = (
    Option("connectionName", STRING, "sample_stream_solar, or a connection of type sample", required=True),
    *_TIMING,
)
_SYNC: Final = closed(
    Option("enable", BOOLEAN, "rows that are there come first, as inserts (default false)", into="initial_sync"),
    Option("parallelism", integer(1), "accepted and without effect: rows are read in the order of keys", into=None),
)
_CHANGES: Final = (
    Option("connectionName", STRING, "the connection to PostgreSQL, of type sql", required=True),
    Option("publication", STRING, "the publication: which tables, rows and columns", required=True),
    Option(
        "slot", STRING, "the replication slot (pgoutput), which this source alone reads and advances", required=True
    ),
    Option("initialSync", _SYNC, "whether a start without state reads the tables' rows before their changes"),
    *_TIMING,
)
_COLLECTIONS: Final = (*changestreams.COLLECTIONS, *_TIMING)
_CLUSTER: Final = (*changestreams.CLUSTER, *_TIMING)
_PLUGIN: Final = (
    Option("plugin", STRING, "the source's name in the package that has it", required=True),
    Option("connectionName", STRING, "a connection of type plugin, with the same plugin, if it takes one"),
    Option("config", DOCUMENT, "as the plug-in takes it"),
    *_TIMING,
)
_KINDS: Final[dict[str, tuple[Callable[..., Source], tuple[Option, ...]]]] = {
    "script": (ScriptSource, _SCRIPT),
    "documents": (DocumentsSource, _DOCUMENTS),
    "path": (FileSource, _FILES),
    "topic": (KafkaSource, _KAFKA),
    "publication": (ChangesSource, _CHANGES),
    "plugin": (PluginSource, _PLUGIN),
    "db": (ChangeStreamSource, _COLLECTIONS),
    "config": (ChangeStreamSource, _CLUSTER),
    "connectionName": (SampleSource, _SAMPLE),
}
"""By the option that tells; a connection alone is a sample stream, or a whole cluster."""
_ELSEWHERE: Final = {
    "stream": "Kinesis is no source here: bring its records to a topic, and give topic",
    "cron": "a schedule is no source here: let what keeps the schedule write to a topic, and give topic",
}
"""Sources of Atlas' cloud, by an option that tells, and why there are none here."""


def _kinds_of(tree: Any, scope: Scope) -> list[str]:
    """The kinds that the options tell; a configuration is of a topic, of collections or of a cluster."""
    if type(tree) is not dict:
        return []
    plain = [name for name in ("script", "documents", "path", "topic", "publication", "plugin") if name in tree]
    if plain:
        return plain
    if {"db", "coll", "initialSync"} & tree.keys():
        return ["db"]
    if "connectionName" not in tree:
        return []
    if scope.connections.get(str(tree["connectionName"])) == "mongodb" or changestreams.tells_cluster(tree):
        return ["config"]
    return ["connectionName" if tree.keys() <= {option.name for option in _SAMPLE} else "topic"]


_SWITCH_AT: Final = Option(
    "switchAt", DATE, "the event time at which history ends: earlier records are its, all others then's", required=True
)


def _part(name: str) -> Kind:
    """One of two sources; which kind is told by its options."""

    def read(tree: Any, path: str, scope: Scope) -> Source | None:
        if type(tree) is dict and not _PARTS & tree.keys():
            scope.problems.add(path, f"{name} needs topic (Kafka), path (files) or documents", accepted=_PARTS)
            return None
        return _plain(tree, path, scope)

    return Kind(read, {"type": "object"})


_PARTS: Final = frozenset(("path", "topic", "documents"))
_SWITCHED: Final = (
    Option("history", _part("history"), "a source that ends, with the options above: files, or a topic with until", required=True),
    Option("then", _part("then"), "the source that goes on: a topic, read from switchAt on unless config.startAt is given", required=True),
    _SWITCH_AT,
)  # fmt: skip


def _switched(tree: Any, path: str, scope: Scope) -> tuple[Stage, ...] | None:
    before = len(scope.problems.errors)
    found = read_options(tree, path, scope, _SWITCHED)
    if len(scope.problems.errors) > before:
        return None
    history, then, at = found["history"], found["then"], int(found["switchAt"])
    if (isinstance(history, FileSource) and history.follow) or (
        isinstance(history, KafkaSource) and history.until is None
    ):
        option = "follow: false" if isinstance(history, FileSource) else "until"
        scope.problems.add(history.path, f"history has to end: give {option}; what goes on belongs into then")
    for part in (history, then):
        if part.time_field is None and not isinstance(part, KafkaSource):
            scope.problems.add(part.path, "needs timeField: switchAt divides records by their event time")
    if isinstance(then, KafkaSource):
        config = tree["then"].get("config", {})
        if not {"startAt", "auto_offset_reset"} & config.keys():
            then = replace(then, start_at=StartAtTime(at))
        elif then.start_at == "latest":
            scope.problems.add(
                join(then.path, "config"),
                "latest would leave out what came between switchAt and the start: leave startAt away, or give earliest, a date or offsets",
            )
    if len(scope.problems.errors) > before:
        return None
    behind = Union(path=f"{path}.then.$union", pipelines=((replace(then, from_ms=at),),))
    return replace(history, before_ms=at), behind


def _read(tree: Any, path: str, scope: Scope) -> Source | tuple[Stage, ...] | None:
    if type(tree) is dict and ("history" in tree or "then" in tree):
        return _switched(tree, path, scope)
    return _plain(tree, path, scope)


def _plain(tree: Any, path: str, scope: Scope) -> Source | None:
    kinds = _kinds_of(tree, scope)
    elsewhere = [] if type(tree) is not dict or kinds not in ([], ["topic"]) or "topic" in tree else list(_ELSEWHERE)
    for name in elsewhere:
        if name in tree:
            scope.problems.add(join(path, name), _ELSEWHERE[name])
            return None
    if len(kinds) > 1:
        scope.problems.add(
            path,
            "a source is one of Kafka (topic), files (path), changes (publication; db), plugin, documents or script;"
            f" found {' and '.join(kinds)}",
        )
        return None
    if not kinds:
        scope.problems.add(
            path,
            "a source needs topic (Kafka), path (files), publication or db (changes), plugin, documents or script",
            accepted=_KINDS,
        )
        return None
    kind = kinds[0]
    before = len(scope.problems.errors)
    made, options = _KINDS[kind]
    if kind == "config":  # a connection alone is enough
        options = tuple(replace(each, required=each.name == "connectionName") for each in options)
    found = read_options(tree, path, scope, options)
    _check_ids(found, path, scope)
    _check_registry(found, path, scope)
    if kind == "topic":
        check_format(tree, found, path, scope)
    if made is ChangeStreamSource:
        changestreams.check_stream(found, path, scope)
    return None if len(scope.problems.errors) > before else made(path=path, **found.fields)


SOURCE: Final = StageSpec(
    "Where documents come from, their event time and watermark.",
    _read,
    {"oneOf": [closed_schema(options) for options in (*(options for _, options in _KINDS.values()), _SWITCHED)]},
)
