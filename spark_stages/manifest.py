"""State of a window's stage between steps: a list of Parquet segments, and times. Its snapshot is this and nothing else (P2).

A task has the manifest of its key groups. Behind a rescale a segment may be listed by several, each for its own key groups.

Bounds of every step of a Spark stage. They decide how a step is carried out, never its output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct, structs

from tidemark.shared.model.settings import check_positive, knob
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


Owned = tuple[int, int]
"""Key groups [first, end)."""


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
    only: Owned | None = None
    """Rows of these key groups count: other tasks count the others. None: all rows do."""


class StageState(Struct, frozen=True):
    """Open windows of a stage."""

    segments: tuple[StateSegment, ...] = ()
    closed_to_ms: int = MIN_TIME
    """Windows that end at or below are closed: rows of theirs that segments still hold are left out."""
    forced_ms: int = MIN_TIME
    """To where `idleTimeout` has put the watermark."""
    last_arrival_ms: int = MIN_TIME


class StageManifest(Struct, frozen=True):
    """The snapshot of a task of a stage: of the key groups that it had."""

    state: StageState
    stepped_ms: int
    """The input watermark of the last step."""
    stepped_now_ms: int
    """Its processing time."""
    output_ms: int
    """Its output watermark."""
    groups: Owned | None = None
    """None: all of them, as in version 1."""


def share(manifest: StageManifest, owned: Owned, groups: int) -> StageManifest:
    """The part of a manifest that is of these key groups, of so many in all."""
    had = manifest.groups or (0, groups)
    mine = (max(had[0], owned[0]), min(had[1], owned[1]))
    if mine == had:
        return structs.replace(manifest, groups=had)
    kept = []
    for segment in manifest.state.segments:
        held = segment.only or had
        only = (max(held[0], mine[0]), min(held[1], mine[1]))
        if only[0] < only[1]:
            kept.append(structs.replace(segment, only=only))
    return structs.replace(manifest, state=structs.replace(manifest.state, segments=tuple(kept)), groups=mine)


def joined(states: Sequence[StageState]) -> StageState:
    """The states of several ranges of key groups, in order, as one; all have closed the same windows."""
    found: dict[str, StateSegment] = {}
    apart: list[StateSegment] = []
    for segment in (segment for state in states for segment in state.segments):
        last = found.get(segment.name)
        if last is None or last.only is None or segment.only is None or last.only[1] != segment.only[0]:
            apart += [last] if last is not None else []
            found[segment.name] = segment
        else:
            start = min(last.min_start_ms, segment.min_start_ms)
            found[segment.name] = structs.replace(last, only=(last.only[0], segment.only[1]), min_start_ms=start)
    return StageState(
        (*apart, *found.values()),
        max(state.closed_to_ms for state in states),
        max(state.forced_ms for state in states),
        max(state.last_arrival_ms for state in states),
    )
