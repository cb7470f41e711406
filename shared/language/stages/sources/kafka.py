"""`$source` of topics."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from tidemark.shared.language.expressions.ast import FieldPath, fields_used
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.forms import PluginFormat, PluginUse, plugin_uses_of
from tidemark.shared.language.kinds import (
    BOOLEAN,
    DATE,
    STRING,
    Kind,
    Option,
    Read,
    choice,
    closed,
    integer,
    one_or_more,
)
from tidemark.shared.language.problems import join
from tidemark.shared.language.schema import NO_SCHEMA
from tidemark.shared.language.stages.base import ConnectionNeed
from tidemark.shared.language.stages.formats import FORMAT, check_format, key_format
from tidemark.shared.language.stages.sources.base import TIMING, SourceBase, SourceKind


@dataclass(frozen=True, slots=True)
class StartAtTime:
    """`startAt` a time: the first record whose broker timestamp is at or after it (ms)."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class StartAtOffsets:
    """`startAt` or `until` offsets by partition; `startAt` for the others: earliest, `until` for the others: latest."""

    offsets: tuple[tuple[int, int], ...]


StartAt: TypeAlias = Literal["earliest", "latest"] | StartAtTime | StartAtOffsets
KeyFormat = Literal["binData", "string", "json", "int", "long", "double", "schemaRegistry", "plugin"]
"""With the last two, a key is one of a schema registry, or of a plug-in's format: connectors read and write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource(SourceBase):
    """A topic, or several as one source. With `until` it is bounded and END follows."""

    connection_name: str
    topics: tuple[str, ...]
    start_at: StartAt = "latest"
    until: Literal["latest"] | StartAtOffsets | None = None
    key_format: KeyFormat = "binData"
    key_format_error: Literal["dlq", "passThrough"] = "dlq"
    registry: str | None = None
    """The connection of a schema registry: values are records of its schemas."""
    format: PluginFormat | None = None
    """Of values; None: JSON, or as the registry has it."""
    key_plugin: PluginFormat | None = None
    """Of keys, where their format is a plug-in's."""

    def plugins(self) -> Iterator[PluginUse]:
        """The plug-ins for formats of values and keys."""
        return plugin_uses_of(self.format, self.key_plugin)

    @property
    def bounded(self) -> bool:
        """Whether it ends by itself: with `until` it does."""
        return self.until is not None

    def needs(self) -> Iterator[ConnectionNeed]:
        """The brokers, and the registry of its schemas."""
        yield ConnectionNeed(self.connection_name, ("kafka", "gateway"), self.path)
        if self.registry is not None:
            yield ConnectionNeed(self.registry, ("schemaRegistry",), f"{self.path}.schemaRegistry")


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

    def read(tree: object, path: str, scope: Scope) -> Any:
        if type(tree) is dict and "$date" in tree and time:
            date = DATE.read(tree, path, scope)
            return None if date is None else StartAtTime(int(date))
        if type(tree) is dict and tree:
            return _offsets(tree, path, scope)
        return choice(*names).read(tree, path, scope)

    return Kind(read, {"anyOf": [{"enum": list(names)}, {"type": "object"}]})


_RESETS: Final = {"smallest": "earliest", "beginning": "earliest", "largest": "latest", "end": "latest"}
"""Words of Kafka's clients for the same."""


def _reset(tree: object, path: str, scope: Scope) -> str | None:
    found: str | None = choice("earliest", "latest", *_RESETS).read(tree, path, scope)
    return None if found is None else _RESETS.get(found, found)


_KEY_FORMAT: Final = key_format("binData", "string", "json", "int", "long", "double", "schemaRegistry")
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
    Option("keyFormat", _KEY_FORMAT, "how the record's key is read (default binData), or a plug-in's format"),
    Option(
        "keyFormatError", choice("dlq", "passThrough"), "what becomes of a key that is not of that format (default dlq)"
    ),
    Option("group_id", STRING, "accepted and without effect: positions are part of the checkpoint", into=None),
    Option(
        "enable_auto_commit", BOOLEAN, "accepted and without effect: positions are part of the checkpoint", into=None
    ),
)

_CONNECTION: Final = Option("connectionName", STRING, "the connection to read from", required=True)
_REGISTRY: Final = closed(Option("connectionName", STRING, "the registry's connection", required=True, into="registry"))
_KAFKA: Final = (
    _CONNECTION,
    Option("topic", one_or_more(STRING), "a topic, or a list of them", required=True, into="topics"),
    Option(
        "schemaRegistry",
        _REGISTRY,
        "records are Avro, Protobuf or JSON by the schemas of a registry; beside format: keys alone",
    ),
    Option("format", FORMAT, "messagePack, csv with its fields, or a plug-in's format (default JSON)"),
    Option("config", _CONFIG, "how the topic is read"),
    Option("until", _position(("latest",), time=False), "latest, or offsets by partition: then the source ends"),
    Option("partitionCount", integer(1), "accepted and without effect: the brokers know their partitions", into=None),
    *TIMING,
)


def _check(tree: object, found: Read, path: str, scope: Scope) -> None:
    keys_of_registry = found.fields.get("key_format") == "schemaRegistry"
    if keys_of_registry and "registry" not in found.fields:
        scope.problems.add(join(path, "config.keyFormat"), "keys of a schema registry need $source.schemaRegistry")
    check_format(tree, found, path, scope, registry_has_keys_alone=keys_of_registry)
    form = found.fields.get("format")
    if form is not None and form.own and form.plugin == "csv":
        _check_cells(form.config["fields"], found, path, scope)
    if form is None and "registry" not in found.fields and not found.get("schema"):
        _check_bare_time(found, path, scope)


def _check_bare_time(found: Read, path: str, scope: Scope) -> None:
    """JSON has no dates of its own: the time is mostly a text or a number, which is no event time as it stands."""
    time = found.fields.get("time_field")
    if isinstance(time, FieldPath) and time.names:
        name = ".".join(time.names)
        what = f"a record whose {name} is a text or a number, and not {{$date: …}}, is a dead letter"
        scope.problems.warn(join(path, "timeField"), f"{what}; {{$toDate: ${name}}} makes a date of it")


def _check_cells(cells: tuple[str, ...], found: Read, path: str, scope: Scope) -> None:
    """Of lines the text tells which fields there are: a declared one that none is, and a time of others, would fail for each record."""
    for field in found.fields.get("schema", NO_SCHEMA):
        if field.name not in cells:
            scope.problems.add(
                join(path, f"schema.{field.name}"), "no cell of format.csv.fields", accepted=cells, found=field.name
            )
    time = found.fields.get("time_field")
    names = None if time is None else fields_used(time)
    if names and names.isdisjoint(cells):
        name = min(names)
        scope.problems.add(
            join(path, "timeField"),
            f"reads {name!r}, and no cell of format.csv.fields has this name",
            accepted=cells,
            found=name,
        )


KIND: Final = SourceKind(KafkaSource, _KAFKA, _check)
