"""The sinks but `$https`: `$emit` and `$merge`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.forms import PluginFormat, RegisteredSchema
from tidemark.shared.language.schema import Schema
from tidemark.shared.language.stages.base import Stage, Stateless
from tidemark.shared.language.stages.sources import KeyFormat
from tidemark.shared.model.values import Document, Value

OutputFormat = Literal["relaxedJson", "canonicalJson", "basicJson"]
DateFormat = Literal["default", "ISO8601"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
EmitFormat = Literal["json", "csv", "parquet", "iceberg"]
"""Of these, parquet is a Delta Lake table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBase(Stage):
    """A stage that writes what comes in, and changes nothing of it."""

    def written(self, names: Fields) -> Fields:
        """What came in."""
        return names

    def declared(self, schema: Schema) -> Schema:
        """What came in."""
        return schema


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
    """Of values, by a plug-in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEmit(SinkBase):
    """Immutable files below `path`; `partition_by` makes a folder for each value, `field=value`.

    folder: an expression that gives each document's folder below `path`, which is the connection's then.
    """

    file_path: str
    folder: Expr | None = None
    format: EmitFormat = "json"
    connection_name: str | None = None
    partition_by: tuple[str, ...] = ()
    output_format: OutputFormat = "relaxedJson"
    date_format: DateFormat = "default"
    write_options: Mapping[str, Value] = field(default_factory=dict)


WhenMatched = Literal["replace", "merge", "keepExisting", "delete", "fail"]
WhenNotMatched = Literal["insert", "discard", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(SinkBase):
    """Rows of a table, or documents of a collection, found by the fields `on`. `delete` and `fail` on a match as they say.

    `$emit` into a collection is one that replaces.

    table, when_matched and when_not_matched may be expressions, evaluated on each document. A pipeline in when_matched turns the row
    that is there into the new one; it sees the `let` variables.
    """

    connection_name: str
    table: str | Expr
    on: tuple[str, ...] = ("_id",)
    let: tuple[tuple[str, Expr], ...] = ()
    when_matched: WhenMatched | Expr | tuple[Stateless, ...] = "merge"
    when_not_matched: WhenNotMatched | Expr = "insert"

    @property
    def is_constant(self) -> bool:
        """Whether neither the table nor the new row depends on the document."""
        return all(type(each) is str for each in (self.table, self.when_matched, self.when_not_matched))


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginEmit(SinkBase):
    """A sink of another package, by its name there."""

    plugin: str
    config: Document = field(default_factory=dict)
    """As the plug-in takes it."""
    connection_name: str | None = None
