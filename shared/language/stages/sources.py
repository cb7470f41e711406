"""The sources: `$source`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.forms import PluginFormat, PluginUse
from tidemark.shared.language.schema import NO_SCHEMA, Schema
from tidemark.shared.language.stages.base import Stage, Told
from tidemark.shared.language.steps import ScriptStep
from tidemark.shared.model.values import Document, Timestamp


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
class SourceBase(Stage):
    """The options of every source. Expressions are evaluated on the decoded document."""

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
    from_ms: int | None = None
    """Records with an earlier event time are left to the history in front of this source (D16); its watermark begins here."""
    before_ms: int | None = None
    """Records with this event time or a later one are left to the source behind this history (D16)."""

    @property
    def name(self) -> str:
        """`$source`, also for the parts of one."""
        return "$source"

    def declared(self, schema: Schema) -> Schema:
        """Its own."""
        return self.schema

    def told(self) -> tuple[Told, ...]:
        """The event time and the record id."""
        given = (("timeField", self.time_field), ("recordId", self.record_id))
        return tuple((name, expr) for name, expr in given if expr is not None)


@dataclass(frozen=True, slots=True)
class StartAtTime:
    """`startAt` a time: the first record whose broker timestamp is at or after it (ms)."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class StartAtOffsets:
    """`startAt` or `until` offsets by partition; `startAt` for the others: earliest, `until` for the others: latest."""

    offsets: tuple[tuple[int, int], ...]


StartAt: TypeAlias = Literal["earliest", "latest"] | StartAtTime | StartAtOffsets
KeyFormat = Literal["binData", "string", "json", "int", "long", "double", "schemaRegistry"]
"""With the last, a key is one of a schema registry; the source's connector makes it JSON."""


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

    def plugins(self) -> Iterator[PluginUse]:
        """The format."""
        if self.format is not None:
            yield self.format.use()


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


SAMPLE_CONNECTION: Final = "sample_stream_solar"
"""A connection that every installation has: the sample stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource(SourceBase):
    """Readings of solar panels, made up: one split that never ends, whose records are a function of their positions."""

    connection_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesSource(SourceBase):
    """Changes of PostgreSQL's tables, as a logical replication slot keeps them: one split that never ends."""

    connection_name: str
    publication: str
    slot: str
    initial_sync: bool = False
    """The tables' rows come first, if there is no state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStreamSource(SourceBase):
    """A change stream of MongoDB, one split without an end: of collections; without `coll` of a database, without `db` of a cluster."""

    connection_name: str
    db: str | None = None
    coll: tuple[str, ...] = ()
    start_after: Document | None = None
    start_at_operation_time: Timestamp | None = None
    full_document: Literal["default", "updateLookup", "required", "whenAvailable"] = "default"
    full_document_only: bool = False
    full_document_before_change: Literal["off", "required", "whenAvailable"] = "off"
    server_stages: tuple[Document, ...] = ()
    max_await_ms: int = 1000
    read_preference: Literal["primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"] = "primary"
    read_preference_tags: tuple[Document, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSource(SourceBase):
    """Data, watermarks and processing time in a given order, for tests; bounded. Partitions are those that steps name, 0 by default."""

    script: tuple[ScriptStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSource(SourceBase):
    """A source of another package, by its name there."""

    plugin: str
    config: Document = field(default_factory=dict)
    """As the plug-in takes it."""
    connection_name: str | None = None

    def plugins(self) -> Iterator[PluginUse]:
        """The source."""
        yield PluginUse("source", self.plugin, self.config, self.path, self.connection_name)


Source: TypeAlias = (
    KafkaSource
    | FileSource
    | ChangesSource
    | ChangeStreamSource
    | SampleSource
    | DocumentsSource
    | ScriptSource
    | PluginSource
)
