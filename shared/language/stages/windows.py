"""The windows: `$tumblingWindow`, `$hoppingWindow`, `$sessionWindow`."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.stages.base import InnerStage, Stage, written

Boundary = Literal["eventTime", "processingTime"]
OutputTime = Literal["end", "earliest", "latest"]
DEFAULT_LATENESS_MS = 3000
"""`allowedLateness` of an event-time window that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBase(Stage):
    """The options of all windows. With `processingTime` there is no lateness (0) and no idle time-out."""

    pipeline: tuple[InnerStage, ...]
    boundary: Boundary = "eventTime"
    allowed_lateness_ms: int = DEFAULT_LATENESS_MS
    output_time: OutputTime = "end"

    def written(self, names: Fields) -> Fields:
        """What its pipeline writes."""
        return written(self.pipeline)


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
