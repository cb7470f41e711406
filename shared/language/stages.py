"""The parsed stages: one frozen dataclass a stage, options in snake case, durations in milliseconds (`_ms`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from tidemark.shared.language.accumulators.base import Accumulator
from tidemark.shared.language.expressions.ast import Expr, SortKey
from tidemark.shared.language.forms import PluginFormat, RegisteredSchema
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.query.ast import Predicate
from tidemark.shared.language.schema import NO_SCHEMA, Schema
from tidemark.shared.language.steps import ScriptStep
from tidemark.shared.model.values import Document, Value

Boundary = Literal["eventTime", "processingTime"]
UNITS_MS: Final = {"ms": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
"""The units of durations in a document; all of fixed length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBase:
    """`path` is the stage's place in the document, e.g. `pipeline[2].$tumblingWindow`: in errors, dead letters and plans."""

    path: str

    @property
    def name(self) -> str:
        """The stage's operator, e.g. `$match`."""
        return self.path.rpartition(".")[2]


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


FileFormat = Literal["json", "csv", "parquet"]
EmitFormat = Literal["json", "csv", "parquet", "iceberg"]
"""Of these, parquet is a Delta Lake table."""


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


Source: TypeAlias = (
    KafkaSource | FileSource | ChangesSource | SampleSource | DocumentsSource | ScriptSource | PluginSource
)


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection by name: its type and settings, `${NAME}` references not yet replaced (`documents.connections.resolve`)."""

    name: str
    type: Literal["kafka", "files", "sql", "mongodb", "gateway", "sample", "schemaRegistry", "https", "plugin"]
    settings: Mapping[str, Value] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match(StageBase):
    """Lets through the documents that the predicate is true of."""

    predicate: Predicate


@dataclass(frozen=True, slots=True)
class Keep:
    """A field that `$project` keeps."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A field that `$project` or `$unset` leaves out."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A field that takes an expression's value; missing takes the field away."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class Branch:
    """The changes to the fields inside a field, through arrays too."""

    fields: tuple[tuple[str, "Leaf"], ...]


Leaf: TypeAlias = Keep | Drop | Computed | Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFields(StageBase):
    """`$addFields` and `$set`: a tree of computed fields; expressions see the document as it came."""

    fields: Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(StageBase):
    """`$project`: inclusion (the tree has Keep, Computed; the rest goes) or exclusion (Drop; the rest stays)."""

    mode: Literal["inclusion", "exclusion"]
    fields: Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class Unset(StageBase):
    """`$unset`: a tree of Drop."""

    fields: Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceRoot(StageBase):
    """`$replaceRoot` and `$replaceWith`: the document becomes the expression's value, which must be a document."""

    new_root: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwind(StageBase):
    """One document for each item of an array."""

    names: tuple[str, ...]
    include_array_index: tuple[str, ...] | None = None
    preserve_null_and_empty_arrays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Redact(StageBase):
    """The expression gives `$$DESCEND`, `$$PRUNE` or `$$KEEP` for the document and, descending, for each one inside it."""

    expr: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate(StageBase):
    """Lets through the documents that the validator is true of; the rest is discarded, dead-lettered, or stops the processor (`error`)."""

    validator: Predicate
    validation_action: Literal["discard", "dlq", "error"] = "discard"


Stateless: TypeAlias = Match | AddFields | Project | Unset | ReplaceRoot | Unwind | Redact | Validate


OutputTime = Literal["end", "earliest", "latest"]
DEFAULT_LATENESS_MS = 3000
"""`allowedLateness` of an event-time window that names none."""


@dataclass(frozen=True, slots=True)
class GroupField:
    """An output field of `$group` and the accumulator that fills it."""

    name: str
    accumulator: Accumulator


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(StageBase):
    """`$group`: `id` is the key (a missing key is null); one document a key, `_id` first."""

    id: Expr
    fields: tuple[GroupField, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(StageBase):
    """`$sort`: stable; null and missing are equal; an array sorts by its least item, descending by its greatest."""

    keys: tuple[SortKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(StageBase):
    """`$limit`: the first documents, in the order that stands (D11 without a `$sort`)."""

    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Count(StageBase):
    """`$count`: one document with the number of documents under `field`; none for an empty input."""

    field: str


InnerStage: TypeAlias = Stateless | Group | Sort | Limit | Count


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBase(StageBase):
    """The options of all windows. With `processingTime` there is no lateness (0) and no idle time-out."""

    pipeline: tuple[InnerStage, ...]
    boundary: Boundary = "eventTime"
    allowed_lateness_ms: int = DEFAULT_LATENESS_MS
    output_time: OutputTime = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class TumblingWindow(WindowBase):
    """Windows [k · interval + offset, + interval)."""

    interval_ms: int
    offset_ms: int = 0
    idle_timeout_ms: int | None = None

    @property
    def hop_size_ms(self) -> int:
        """A tumbling window hops by its interval."""
        return self.interval_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class HoppingWindow(WindowBase):
    """Windows [k · hop + offset, + interval); with a hop above the interval there are gaps."""

    interval_ms: int
    hop_size_ms: int
    offset_ms: int = 0
    idle_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWindow(WindowBase):
    """Sessions [first, last + gap) per key; a missing key is null; None: one key for all."""

    gap_ms: int
    partition_by: Expr | None = None


Window: TypeAlias = TumblingWindow | HoppingWindow | SessionWindow


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table, collection (`db.coll`) or file of a connection."""

    connection_name: str
    table: str


@dataclass(frozen=True, slots=True)
class InlineTable:
    """Documents written into the pipeline itself."""

    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup(StageBase):
    """Adds under `as_` the array of the foreign documents that match.

    They match where `foreign_field` equals `local_field` (names of a path; both None: all do) and come out of `pipeline`, which sees the
    `let` variables.
    """

    from_: TableRef | InlineTable
    as_: tuple[str, ...]
    local_field: tuple[str, ...] | None = None
    foreign_field: tuple[str, ...] | None = None
    let: tuple[tuple[str, Expr], ...] = ()
    pipeline: tuple[InnerStage, ...] = ()
    limits: Limits = DEFAULTS
    """Of the document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLookup(Lookup):
    """A lookup whose answers are kept for `ttl_ms`, at most `max_entries` of them, and `bytes_max` as they are encoded."""

    ttl_ms: int
    max_entries: int = 10_000
    bytes_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStage(StageBase):
    """A request for each document."""

    connection_name: str
    subpath: Expr | None = None
    """Below the connection's URL."""
    parameters: tuple[tuple[str, Expr], ...] = ()
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: tuple[tuple[str, Expr], ...] = ()
    on_error: Literal["dlq", "ignore", "fail"] = "fail"
    payload: tuple["Stateless", ...] | None = None
    """Stages that make the body of the document; None: the document itself, where the method has a body."""
    connection_timeout_s: int = 30
    request_timeout_s: int = 60
    parallelism: int = 16
    """Requests of one task at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Https(RequestStage):
    """Inside a pipeline: the answer becomes the field `as_`."""

    as_: tuple[str, ...]
    on_error: Literal["dlq", "ignore", "fail"] = "dlq"
    parse_json_strings: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpsEmit(RequestStage):
    """At the end of a pipeline: requests are sent once their checkpoint is committed, and answers are not kept.

    on_error: `fail` or `ignore`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(StageBase):
    """`$compute`: a user's computation, `class_` as `module:Class`; `key` a field path's or expression's value."""

    class_: str
    key: Expr
    config: Document = field(default_factory=dict)
    order: Literal["eventTime", "arrival"] = "eventTime"
    limits: Limits = DEFAULTS
    """Of the document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(StageBase):
    """`$join`: right time in [left − before_ms, left + after_ms]. `from_` is a pipeline that starts with a source."""

    from_: "tuple[Stage, ...]"
    left_key: Expr
    right_key: Expr
    before_ms: int = 0
    after_ms: int = 0
    type: Literal["inner", "left", "right", "full"] = "inner"
    as_: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Union(StageBase):
    """`$union`: pipelines that each start with a source, merged with this one."""

    pipelines: "tuple[tuple[Stage, ...], ...]"


Relational: TypeAlias = Lookup | CachedLookup | Https | Compute | Join | Union


OutputFormat = Literal["relaxedJson", "canonicalJson", "basicJson"]
DateFormat = Literal["default", "ISO8601"]
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
class FileEmit(StageBase):
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
class Merge(StageBase):
    """Rows of a table, or documents of a collection, found by the fields `on`. `delete` and `fail` on a match as they say.

    `$emit` into a collection is one that replaces.

    table, when_matched and when_not_matched may be expressions, evaluated on each document. A pipeline in when_matched turns the row
    that is there into the new one; it sees the `let` variables.
    """

    connection_name: str
    table: str | Expr
    on: tuple[str, ...] = ("_id",)
    let: tuple[tuple[str, Expr], ...] = ()
    when_matched: "WhenMatched | Expr | tuple[Stateless, ...]" = "merge"
    when_not_matched: "WhenNotMatched | Expr" = "insert"

    @property
    def is_constant(self) -> bool:
        """Whether neither the table nor the new row depends on the document."""
        return all(type(each) is str for each in (self.table, self.when_matched, self.when_not_matched))


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginEmit(StageBase):
    """A sink of another package, by its name there."""

    plugin: str
    config: Document = field(default_factory=dict)
    """As the plug-in takes it."""
    connection_name: str | None = None


Sink: TypeAlias = KafkaEmit | FileEmit | Merge | HttpsEmit | PluginEmit
"""`KafkaEmit`, `FileEmit` and, into a collection, `Merge` are all written `$emit`."""


Stage: TypeAlias = Source | Stateless | Window | Relational | Sink
"""A stage at the top of a pipeline. `InnerStage` is one inside a window."""
