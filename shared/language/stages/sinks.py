"""Stages that write: `$emit` to Kafka or files, `$merge` to tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.stages.base import StageBase
from tidemark.shared.language.stages.source import FileFormat, KeyFormat
from tidemark.shared.model.values import Value

OutputFormat = Literal["relaxedJson", "canonicalJson"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaEmit(StageBase):
    """A record a document. `topic` is a constant expression or one evaluated on each document, as are key, headers and tombstone_when."""

    connection_name: str
    topic: Expr
    key: Expr | None = None
    key_format: KeyFormat = "json"
    headers: Expr | None = None
    output_format: OutputFormat = "relaxedJson"
    compression_type: Compression = "none"
    tombstone_when: Expr | None = None
    """Where it is true the record has a null value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEmit(StageBase):
    """Immutable files below `path`; `partition_by` makes a folder for each value, `field=value`."""

    file_path: str
    format: FileFormat
    connection_name: str | None = None
    partition_by: tuple[str, ...] = ()
    write_options: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(StageBase):
    """Rows of a table, found by the fields `on`. `delete` and `fail` on a match as they say."""

    connection_name: str
    table: str
    on: tuple[str, ...] = ("_id",)
    when_matched: Literal["replace", "merge", "keepExisting", "delete", "fail"] = "merge"
    when_not_matched: Literal["insert", "discard", "fail"] = "insert"


Sink: TypeAlias = KafkaEmit | FileEmit | Merge
"""`KafkaEmit` and `FileEmit` are both written `$emit`."""
