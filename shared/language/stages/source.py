"""`$source` in its four kinds, and how watermarks are made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.schema import NO_SCHEMA, Schema
from tidemark.shared.language.stages.base import StageBase
from tidemark.shared.model.values import Document, Value


@dataclass(frozen=True, slots=True)
class MaxSeen:
    """Watermark = the highest event time so far (the default)."""


@dataclass(frozen=True, slots=True)
class BoundedDisorder:
    """Watermark = the highest event time so far − max_delay_ms."""

    max_delay_ms: int


@dataclass(frozen=True, slots=True)
class Percentile:
    """Watermark held back just enough that at most `late_fraction` of the data of a `window_ms` comes late."""

    late_fraction: float
    window_ms: int


@dataclass(frozen=True, slots=True)
class Perfect:
    """Watermark = the event time of the last record, a promise of the source; going back is an error, not late data."""


Watermark: TypeAlias = MaxSeen | BoundedDisorder | Percentile | Perfect


@dataclass(frozen=True, slots=True)
class TimeHorizon:
    """Repeats of a record id are noticed within this much event time."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class PositionHorizon:
    """Repeats of a record id are noticed within this many positions of the split."""

    positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBase(StageBase):
    """What every source takes. Expressions are evaluated on the decoded document."""

    time_field: Expr | None = None
    """The event time, a date; None: the record's own timestamp (documents and script: the arrival)."""
    schema: Schema = NO_SCHEMA
    record_id: Expr | None = None
    record_id_horizon: TimeHorizon | PositionHorizon | None = None
    """None: a day."""
    record_id_scope: Literal["source", "split"] = "source"
    """split: the document promises that repeats come in the split of their first."""
    watermark: Watermark = MaxSeen()
    partition_idle_timeout_ms: int | None = None
    max_event_time_jump_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StartAtTime:
    """`startAt` a time: the first record whose broker timestamp is at or after it (ms)."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class StartAtOffsets:
    """`startAt` or `until` offsets by partition; `startAt` for the others: earliest, `until` for the others: latest."""

    offsets: tuple[tuple[int, int], ...]


StartAt: TypeAlias = Literal["earliest", "latest"] | StartAtTime | StartAtOffsets
KeyFormat = Literal["binData", "string", "json", "int", "long", "double"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource(SourceBase):
    """A topic, or several as one source. With `until` it is bounded and END follows."""

    connection_name: str
    topics: tuple[str, ...]
    start_at: StartAt = "latest"
    until: Literal["latest"] | StartAtOffsets | None = None
    key_format: KeyFormat = "binData"
    key_format_error: Literal["dlq", "passThrough"] = "dlq"


FileFormat = Literal["json", "csv", "parquet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource(SourceBase):
    """Files that match a glob; each file is a split. JSON is one document a line."""

    path_glob: str
    format: FileFormat
    connection_name: str | None = None
    """None: the path is a local one."""
    ordered: bool = True
    """Files are read one after another in the order of their names, as one split; else each is a split of its own."""
    follow: bool = False
    """The directory grows: look for new files without end. Else the source is bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsSource(SourceBase):
    """The documents themselves, for tests: one split, bounded."""

    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True)
class DataStep:
    """A document arrives on a partition."""

    data: Document
    partition: int


@dataclass(frozen=True, slots=True)
class WatermarkStep:
    """The watermark of a partition, or of all, rises to at least this (ms)."""

    time_ms: int
    partition: int | None


@dataclass(frozen=True, slots=True)
class ProcessingTimeStep:
    """Processing time goes to this (ms)."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class IdleStep:
    """A partition, or all, is idle until data or a watermark comes."""

    partition: int | None


ScriptStep: TypeAlias = DataStep | WatermarkStep | ProcessingTimeStep | IdleStep


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSource(SourceBase):
    """Data, watermarks and processing time in a given order, for tests; bounded. Partitions are those that steps name, 0 by default."""

    script: tuple[ScriptStep, ...]


Source: TypeAlias = KafkaSource | FileSource | DocumentsSource | ScriptSource


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection by name: its type and settings, `${NAME}` references not yet replaced (`documents.connections.resolve`)."""

    name: str
    type: Literal["kafka", "files", "sql", "gateway"]
    settings: Mapping[str, Value] = field(default_factory=dict, repr=False)
