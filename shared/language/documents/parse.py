"""A processor's document, from text or a tree, to its typed form; all its errors at once."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidemark.shared.language.documents.connections import forbid_references, read_connections, types_of
from tidemark.shared.language.documents.doubtful import hardly_meant
from tidemark.shared.language.documents.foregone import foretell
from tidemark.shared.language.documents.idle import does_nothing
from tidemark.shared.language.documents.load import Loaded, load_all
from tidemark.shared.language.documents.model import (
    CollectionDlq,
    Dlq,
    FileDlq,
    KafkaDlq,
    Options,
    Processor,
    TaskBounds,
    connection_needs,
)
from tidemark.shared.language.documents.names import unwritten
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import (
    STRING,
    Kind,
    Option,
    choice,
    closed,
    closed_schema,
    duration,
    integer,
    read_options,
)
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.problems import DocumentError, InvalidDocument, Problems
from tidemark.shared.language.stages import Connection
from tidemark.shared.language.stages.base import ConnectionNeed
from tidemark.shared.language.stages.counting import counted
from tidemark.shared.language.stages.inner import GATHERING
from tidemark.shared.language.stages.pipeline import PIPELINE
from tidemark.shared.language.stages.table import STAGES
from tidemark.shared.model.ids import ProcessorName


@dataclass(frozen=True, slots=True)
class Range:
    """An option: its name in a document, its least and its greatest value, and the quantity that it bounds."""

    name: str
    least: int
    most: int
    doc: str


RANGES: Final = {
    "windows_of_one_max": Range("windowsPerDocument", 1, 1_000_000, "overlapping windows that one document may be in"),
    "group_values_max": Range("valuesPerGroup", 1, 100_000_000, "values that $push and its kin keep for one group"),
    "matches_max": Range("matchesPerDocument", 1, 10_000_000, "foreign documents that a lookup gives one document"),
    "combinations_max": Range(
        "combinationsPerDocument", 1, 1_000_000, "combinations of values that one document looks for"
    ),
    "state_bytes_max": Range("stateBytes", 64, 256 * 1024 * 1024, "a computation's state for one key"),
    "timers_max": Range("timersPerKey", 1, 1_000_000, "pending timers of one key of a computation"),
    "outputs_max": Range("outputsPerCall", 1, 10_000_000, "documents that one callback of a computation may yield"),
    "attempts_max": Range("attempts", 1, 100, "times that a callback is tried that fails"),
    "passed_timers_max": Range(
        "passedTimersInARow", 1, 10_000_000, "timers of a key in a row for a time that has passed"
    ),
    "letter_bytes_max": Range(
        "letterBytes", 64, 16 * 1024 * 1024, "a document in its dead letter, of which the beginning stays"
    ),
    "record_bytes_max": Range("recordBytes", 1024, 1024 * 1024 * 1024, "a line of a file"),
}
"""By the field of `Limits`."""
_LIMIT_OPTIONS: Final = tuple(
    Option(each.name, integer(each.least, each.most), f"{each.doc} (default {getattr(DEFAULTS, field)})", into=field)
    for field, each in RANGES.items()
)


def _read_limits(tree: object, path: str, scope: Scope) -> Limits:
    return Limits(**read_options(tree, path, scope, _LIMIT_OPTIONS).fields)


LIMITS: Final = Kind(_read_limits, closed_schema(_LIMIT_OPTIONS))


def limits_of(options: object) -> Limits:
    """The limits that a document's `options` give the stages, which are read before them; errors are noted with the options."""
    tree = options.get("limits") if type(options) is dict else None
    return DEFAULTS if tree is None else _read_limits(tree, "", Scope(Problems()))


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def _name(tree: object, path: str, scope: Scope) -> str | None:
    if type(tree) is str and _NAME.fullmatch(tree):
        return tree
    scope.problems.add(
        path, f"a name has 1 to 100 letters, digits, _, . and -, and begins with a letter or digit; found {tree!r}"
    )
    return None


_TOPIC_DLQ: Final = (
    Option("connectionName", STRING, "a Kafka connection", required=True),
    Option("topic", STRING, "the topic", required=True),
)
_FILE_DLQ: Final = (
    Option("connectionName", STRING, "a files connection; without it a local path"),
    Option("path", STRING, "the folder", required=True, into="file_path"),
)


def _top_level(tree: object, path: str, scope: Scope) -> str | None:
    """The name of a top-level field."""
    name = STRING.read(tree, path, scope)
    if type(name) is str and (name.startswith("$") or "." in name):
        scope.problems.add(path, f"a top-level field name, without dots and $, found {name!r}")
    return None if name is None else str(name)


_COLLECTION_DLQ: Final = (
    Option("connectionName", STRING, "a MongoDB connection", required=True),
    Option("db", STRING, "the database", required=True),
    Option("coll", STRING, "the collection", required=True),
)


def _dlq(tree: object, path: str, scope: Scope) -> Dlq | None:
    """A topic, a folder, or a collection."""
    before = len(scope.problems.errors)
    if type(tree) is dict and "table" in tree:
        where = (
            "to a topic, {connectionName, topic}, to files, {path}, or into a collection, {connectionName, db, coll}"
        )
        scope.problems.add(path, f"dead letters go {where}; a table takes none")
        return None
    if type(tree) is dict and {"coll", "db"} & tree.keys():
        o = read_options(tree, path, scope, _COLLECTION_DLQ)
        return None if len(scope.problems.errors) > before else CollectionDlq(**o.fields)
    if type(tree) is dict and "path" in tree:
        o = read_options(tree, path, scope, _FILE_DLQ)
        return None if len(scope.problems.errors) > before else FileDlq(**o.fields)
    o = read_options(tree, path, scope, _TOPIC_DLQ)
    return None if len(scope.problems.errors) > before else KafkaDlq(**o.fields)


TASKS_MAX: Final = 1_000
"""Of a vertex; an installation's own bound (`tasks_max`) is lower, or a request is refused."""
_BOUNDS: Final = (
    Option("min", integer(1, TASKS_MAX), "not fewer (default 1)"),
    Option("max", integer(1, TASKS_MAX), "not more", required=True),
)


def _bounds(tree: object, path: str, scope: Scope) -> TaskBounds | None:
    before = len(scope.problems.errors)
    found = read_options(tree, path, scope, _BOUNDS).fields
    if len(scope.problems.errors) > before:
        return None
    bounds = TaskBounds(found.get("min", 1), found["max"])
    if bounds.min > bounds.max:
        scope.problems.add(path, f"min is at most max, found {bounds.min} and {bounds.max}")
    return bounds


_TASKS: Final = tuple(
    Option(service, Kind(_bounds, closed_schema(_BOUNDS)), f"of each vertex that {plural} run")
    for service, plural in (
        ("source", "sources"),
        ("operator", "operators"),
        ("spark", "Spark stages"),
        ("sink", "sinks"),
    )
)


def _tasks(tree: object, path: str, scope: Scope) -> Mapping[str, TaskBounds]:
    return read_options(tree, path, scope, _TASKS).fields


_DLQ_SCHEMA: Final = {"oneOf": [closed_schema(_TOPIC_DLQ), closed_schema(_FILE_DLQ), closed_schema(_COLLECTION_DLQ)]}
_OPTIONS: Final = (
    Option("dlq", Kind(_dlq, _DLQ_SCHEMA), "where dead letters go"),
    Option(
        "checkpoint",
        closed(
            Option("interval", duration(least=1), "time between checkpoints", into="checkpoint_interval_ms"),
            Option(
                "alignmentTimeout",
                duration(least=0),
                "how long a task waits until a checkpoint's barrier has come on all of its inputs; 0: not at all (default: until it has)",
            ),
        ),
        "checkpoints",
    ),
    Option("lateness", choice("merged", "split"), "whose watermark decides what is late (default merged)"),
    Option(
        "streamMetaFieldName",
        Kind(_top_level, STRING.schema),
        "the field of outputs that tells where they come from; without it none does",
    ),
    Option(
        "tasks",
        Kind(_tasks, closed_schema(_TASKS)),
        "bounds within which the number of tasks follows lag and busy time (default: it is as asked for)",
    ),
    Option("limits", LIMITS, "bounds of what the stages compute and keep"),
)


def _options(tree: object, path: str, scope: Scope) -> Options:
    return Options(**read_options(tree, path, scope, _OPTIONS).fields)


DOCUMENT_OPTIONS: Final = (
    Option("name", Kind(_name, {"type": "string", "pattern": f"^{_NAME.pattern}$"}), "the processor's name"),
    Option(
        "connections",
        Kind(read_connections, {"type": "object", "additionalProperties": {"$ref": "#/$defs/connection"}}),
        "connections that only this processor knows; others are kept in the registry",
    ),
    Option("pipeline", PIPELINE, "the stages", required=True),
    Option("options", Kind(_options, closed_schema(_OPTIONS)), "of the processor as a whole"),
)
"""The options of a processor's document."""


def parse(
    document: str | Mapping[str, object], *, known_connections: Mapping[str, Connection] | None = None
) -> Processor:
    """The processor of a YAML or JSON text, or of a plain tree.

    A connection that a stage names must be of the right type; with `known_connections` (the registry's) it must be there or in the
    document, otherwise one that the document does not have is left to the registry.

    Raises:
        InvalidDocument: with all errors.
    """
    loaded = load_all(document) if isinstance(document, str) else Loaded(document, {})
    tree = loaded.tree
    if type(tree) is not dict:
        kind = {list: "a list", str: "a text", type(None): "null"}.get(type(tree), "a single value")
        message = f"a processor's document is an object with pipeline: a list of stages; found {kind}"
        raise InvalidDocument([DocumentError("", message)])
    problems = Problems(loaded.lines, [*loaded.errors], [*loaded.warnings])
    scope = Scope(
        problems,
        limits=limits_of(tree.get("options")),
        processor=tree["name"] if type(tree.get("name")) is str else "",
        stages={**STAGES, **GATHERING},
        connections=types_of(tree.get("connections"), known_connections or {}),
    )
    for key in ("pipeline", "options"):
        forbid_references(tree.get(key), key, problems)
    found = read_options(tree, "", scope, DOCUMENT_OPTIONS, "the document")
    connections = found.get("connections", {})
    known = Known({**(known_connections or {}), **connections}, all=known_connections is not None)
    pipeline = found.get("pipeline", ())
    foretell(pipeline, tree.get("pipeline"), problems)
    hardly_meant(pipeline, problems)
    does_nothing(pipeline, problems)
    outside = found.get("options", Options()).stream_meta_field_name
    unwritten(pipeline, frozenset(() if outside is None else (outside,)), problems)
    _check_connections(connection_needs(pipeline, found.get("options", Options()).dlq), known, problems)
    problems.check()
    name = found.get("name")
    return Processor(
        name=None if name is None else ProcessorName(name),
        pipeline=counted(found["pipeline"]),
        options=found.get("options", Options()),
        connections=connections,
        warnings=tuple(problems.warnings),
    )


@dataclass(frozen=True, slots=True)
class Known:
    """Connections by name, and whether there are no others."""

    connections: Mapping[str, Connection]
    all: bool


def _check_connections(needs: Iterable[ConnectionNeed], known: Known, problems: Problems) -> None:
    """Note every name of a connection that is unknown, of the wrong type, or of another plug-in: secrets are for the one that they name."""
    for need in needs:
        place = f"{need.path}.connectionName"
        connection = known.connections.get(need.connection)
        if connection is None:
            if known.all:
                names = sorted(known.connections)
                problems.add(place, f"unknown connection {need.connection}", accepted=names, found=need.connection)
        elif connection.type not in need.types:
            message = (
                f"the connection {connection.name} is of type {connection.type}, expected {' or '.join(need.types)}"
            )
            problems.add(place, message)
        elif need.plugin is not None and (meant := connection.settings.get("plugin", need.plugin)) != need.plugin:
            message = f"the connection {connection.name} is of the plug-in {meant}, expected {need.plugin}"
            problems.add(place, message)
