"""`$emit` into a topic."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from tidemark.shared.language.expressions.ast import Expr, FieldPath
from tidemark.shared.language.expressions.ast import Literal as Constant
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.forms import PluginFormat, PluginUse, RegisteredSchema, plugin_uses_of
from tidemark.shared.language.kinds import EXPRESSION, STRING, Kind, Option, choice, closed, closed_schema, read_options
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages.base import ConnectionNeed
from tidemark.shared.language.stages.formats import FORMAT, check_format, key_format
from tidemark.shared.language.stages.sinks.base import WRITTEN, DateFormat, OutputFormat, SinkBase
from tidemark.shared.language.stages.sinks.registered import REGISTRY, check_schemas
from tidemark.shared.language.stages.sources.kafka import KeyFormat

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaEmit(SinkBase):
    """A record a document. `topic` is a constant expression or one evaluated on each document, as are key, headers and tombstone_when."""

    connection_name: str
    topic: Expr
    key: Expr | None = None
    key_format: KeyFormat = "json"
    headers: Expr | None = None
    output_format: OutputFormat = "relaxedJson"
    date_format: DateFormat = "default"
    compression_type: Compression | None = None
    """None: as the connection says."""
    tombstone_when: Expr | None = None
    """Where it is true the record has a null value."""
    registry: str | None = None
    """The connection of a schema registry that knows the two schemas."""
    value_schema: RegisteredSchema | None = None
    key_schema: RegisteredSchema | None = None
    format: PluginFormat | None = None
    """Of values; None: JSON, or as the registry has it."""
    key_plugin: PluginFormat | None = None
    """Of keys, where their format is a plug-in's."""

    def target(self) -> tuple[Any, ...]:
        """The topic that is written."""
        return ("kafka", self.connection_name, self.topic)

    def order_key(self, *, last: bool) -> Expr | None:
        """The record's key."""
        return self.key if last or isinstance(self.key, FieldPath) else None

    def needs(self) -> Iterator[ConnectionNeed]:
        """The brokers, and the registry of its schemas."""
        yield ConnectionNeed(self.connection_name, ("kafka",), self.path)
        if self.registry is not None:
            yield ConnectionNeed(self.registry, ("schemaRegistry",), f"{self.path}.schemaRegistry")

    def plugins(self) -> Iterator[PluginUse]:
        """The plug-ins for formats of values and keys."""
        return plugin_uses_of(self.format, self.key_plugin)


def _acks(tree: object, path: str, scope: Scope) -> Any:
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
        key_format("binData", "string", "json", "int", "long", "double"),
        "how the key is written (default json), or a plug-in's format: of keys that are documents",
    ),
    Option("headers", EXPRESSION, "an object, or a list of {k, v}"),
    *WRITTEN,
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
    Option("format", FORMAT, "messagePack, csv with its fields, or a plug-in's format (default JSON)"),
    Option("config", _CONFIG, "how records are written"),
)


def read(tree: object, path: str, scope: Scope) -> KafkaEmit | None:
    """`$emit` with a topic."""
    before = len(scope.problems.errors)
    o = read_options(tree, path, scope, _KAFKA)
    topic = o.get("topic")
    if isinstance(topic, Constant) and (type(topic.value) is not str or not topic.value):
        scope.problems.add(join(path, "topic"), "a topic's name, or an expression that gives one")
    check_schemas(tree, o, path, scope)
    check_format(tree, o, path, scope, registry_has_keys_alone="value_schema" not in o.fields)
    return None if len(scope.problems.errors) > before else KafkaEmit(path=path, **o.fields)


SCHEMA: Final = closed_schema(_KAFKA)
