"""State of a window's stage between steps: a list of Parquet segments, and times. Its snapshot is this and nothing else (P2).

Bounds of every step of a Spark stage. They decide how a step is carried out, never its output.
"""

from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from tidemark.shared.model.knobs import knob
from tidemark.shared.model.positive import check_positive
from tidemark.shared.model.time import MIN_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBounds:
    """Raises ValueError, naming the setting, where one cannot work."""

    segments_max: int = 48
    """Segments of a stage's state beyond which they are compacted."""
    gathered_rows_max: int = knob(2_000_000)
    """Rows that one task of a step reads before it merges; a step is shuffled where one window has more: lower it where memory is short."""
    task_rows: int = 65_536
    """Rows of a step for which another task is worth its while."""
    tasks_planned: int = 8
    """Tasks that a step is cut into, at most, unless they would be large ones; so many plans of steps are kept."""
    large_task_rows: int = 262_144
    """Rows beyond which a task's range of windows is halved, as often as it has windows."""
    session_keys_max: int = 1_000
    """Keys of rows that may be late beyond which the open sessions of all keys are looked at."""

    def __post_init__(self) -> None:
        check_positive(self, "spark")
        if self.large_task_rows < self.task_rows:
            raise ValueError(
                f"spark settings: large_task_rows={self.large_task_rows} must not be below task_rows={self.task_rows}:"
                " tasks would be halved that another one is not worth its while for"
            )


DEFAULTS: Final = StepBounds()


class StateSegment(Struct, frozen=True):
    """Partials (or rows with windows) in one Parquet file."""

    name: str
    rows: int
    size_bytes: int
    digest: str
    min_start_ms: int
    """No window in it that is still open starts before this."""
    max_end_ms: int
    """No window in it ends after this: once that is closed, the segment goes."""


class StageState(Struct, frozen=True):
    """Open windows of a stage."""

    segments: tuple[StateSegment, ...] = ()
    closed_to_ms: int = MIN_TIME
    """Windows that end at or below are closed: rows of theirs that segments still hold are left out."""
    forced_ms: int = MIN_TIME
    """To where `idleTimeout` has put the watermark."""
    last_arrival_ms: int = MIN_TIME
