"""Window stages and what stands inside them."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidemark.shared.language.accumulators.spec import Accumulator
from tidemark.shared.language.expressions.ast import Expr, SortKey
from tidemark.shared.language.stages.base import Boundary, StageBase
from tidemark.shared.language.stages.stateless import Stateless

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
    """What all windows take. With `processingTime` there is no lateness (0) and no idle time-out."""

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
