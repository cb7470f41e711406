"""What an operator is to do, as frozen data. The planner puts specs into `Vertex.head` and `Vertex.chain`; `build.py` makes operators.

Rules:

- A spec holds typed parts of the language (expressions, stages), never text that has still to be parsed or checked.
- A spec is equal to another iff both do the same: a worker plans again what the coordinator planned, and compares.
- Durations and times are milliseconds.

A window of the document becomes two specs that share one `WindowSpec`: `PartialSpec` ends the chain of the sender (it assigns
windows, judges lateness where the sender may, and aggregates beforehand), `StepSpec` is the head of the receiver (merge, close,
finish, what stands behind `$group`), whatever the accumulators are: what cannot be aggregated beforehand travels as rows.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

Expression: TypeAlias = Any
"""A checked expression of `shared.language.expressions`."""
Stage: TypeAlias = Any
"""A checked stage of `shared.language.stages`."""
Lateness = Literal["split", "merged"]
Boundary = Literal["eventTime", "processingTime"]
OutputTime = Literal["end", "earliest", "latest"]
Schema: TypeAlias = tuple[tuple[str, pa.DataType], ...]
"""Declared fields of a document, top level: name and Arrow type (`batches.py` says which types there are)."""


# --- the source's front ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MaxSeen:
    """The watermark of a split is the highest event time so far."""


@dataclass(frozen=True, slots=True)
class BoundedDisorder:
    """The highest event time so far less a fixed delay."""

    max_delay_ms: int


@dataclass(frozen=True, slots=True)
class Percentile:
    """Held back just enough that at most `late_fraction` (0 to 1) of the records of the last `window_ms` of event time came behind it."""

    late_fraction: float
    window_ms: int


@dataclass(frozen=True, slots=True)
class Perfect:
    """The highest event time so far, and the source promises order: a record behind it is an error."""


Strategy = MaxSeen | BoundedDisorder | Percentile | Perfect


@dataclass(frozen=True, slots=True)
class EventTimeHorizon:
    """Repeats are noticed while the first is at most so far behind the split's highest event time."""

    span_ms: int


@dataclass(frozen=True, slots=True)
class PositionHorizon:
    """Repeats are noticed while the first is at most so many positions behind the split's last."""

    positions: int


@dataclass(frozen=True, slots=True)
class DedupeSpec:
    """`recordId` of `$source`: a record whose id its split has seen within the horizon counts once."""

    record_id: Expression
    horizon: EventTimeHorizon | PositionHorizon


@dataclass(frozen=True, slots=True)
class Origin:
    """Where records come from, for `_stream_meta` of dead letters."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class FrontSpec:
    """Decoding, event time, watermarks and dedupe: the first operator of a source's task (`source_front.SourceFront`)."""

    schema: Schema = ()
    time_field: Expression | None = None
    """None: the record's own timestamp."""
    strategy: Strategy = MaxSeen()
    dedupe: DedupeSpec | None = None
    max_event_time_jump_ms: int | None = None
    origin: Origin = Origin()


# --- stateless stages and keys --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StatelessSpec:
    """Stages that treat each document by itself, in order."""

    stages: tuple[Stage, ...]
    operator: str = ""
    """`operatorName` in dead letters; the failing stage's own name where empty."""


@dataclass(frozen=True, slots=True)
class KeyBySpec:
    """Adds KEY and GROUP for an edge that is partitioned by key."""

    key: Expression
    key_groups: int = 128


# --- windows --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tumbling:
    """[k · size + offset, (k + 1) · size + offset), aligned to 1970."""

    size_ms: int
    offset_ms: int = 0


@dataclass(frozen=True, slots=True)
class Hopping:
    """[k · hop + offset, k · hop + offset + size); a hop above the size leaves gaps."""

    size_ms: int
    hop_ms: int
    offset_ms: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """Per key, [first, last + gap); two merge when one begins before the other ends."""

    gap_ms: int
    partition_by: Expression | None = None


Window = Tumbling | Hopping | Session


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """A window stage whole; both its halves read it."""

    window: Window
    pipeline: tuple[Stage, ...]
    """The stages inside, in order: stateless ones, `$group`, `$sort`, `$limit`, `$count`."""
    boundary: Boundary = "eventTime"
    allowed_lateness_ms: int = 3_000
    idle_timeout_ms: int | None = None
    output_time: OutputTime = "end"
    lateness: Lateness = "merged"
    schema: Schema = ()
    """Declared fields of the documents that come in, as far as the planner knows them."""
    from_source: bool = True
    """Whether rows come from a source, with their split's watermark (WM); else only the input watermark judges lateness."""
    operator: str = "$tumblingWindow"
    """`operatorName` in dead letters."""


@dataclass(frozen=True, slots=True)
class PartialSpec:
    """The sender's half of a window."""

    window: WindowSpec
    max_groups: int = 200_000
    """Held (window, key) pairs beyond which partials are given out before the barrier."""


@dataclass(frozen=True, slots=True)
class StepSpec:
    """The receiver's half of a window: the head of a Spark stage, or of an operator task with `engine: local`."""

    window: WindowSpec


OperatorSpec = FrontSpec | StatelessSpec | KeyBySpec | PartialSpec | StepSpec
