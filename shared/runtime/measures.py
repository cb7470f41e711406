"""Measures of a process for monitoring: figures by name, and whether it is ready. `tidemark.shared.process` serves them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, runtime_checkable

from tidemark.shared.model.messages import ProcessorStatus, TaskBeat
from tidemark.shared.model.time import MAX_TIME, MIN_TIME

_MS: Final = 1000
"""A unit."""
Kind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure. Counters grow while the process lives, or its task."""

    name: str
    """Without the prefix `tidemark_`, with the unit."""
    kind: Kind
    text: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Observed(Protocol):
    """A service that can be looked at."""

    def unready(self) -> str:
        """Why it cannot do its work now; empty if it can."""
        ...

    def measures(self) -> Iterable[Measure]:
        """All figures, as of now."""
        ...


_COUNTED: Final[tuple[tuple[str, str, float, Kind, str], ...]] = (
    ("inRows", "events_in_total", 1, "counter", "Rows taken in"),
    ("outRows", "events_out_total", 1, "counter", "Rows let out, dead letters apart"),
    ("inBytes", "bytes_in_total", 1, "counter", "Bytes taken in"),
    ("outBytes", "bytes_out_total", 1, "counter", "Bytes let out"),
    ("dlqRows", "dead_letters_total", 1, "counter", "Dead letters let out"),
    ("late", "late_total", 1, "counter", "Rows that came late"),
    ("duplicates", "duplicates_total", 1, "counter", "Records whose id had been before"),
    ("busyMs", "busy_seconds_total", _MS, "counter", "Time spent on rows"),
    ("heldMs", "held_back_seconds_total", _MS, "counter", "Time in which input waited for receivers or commits (F7, F8)"),
    ("stateBytes", "state_bytes", 1, "gauge", "State in the last snapshot"),
    ("snapshotMs", "snapshot_seconds", _MS, "gauge", "From copy to acknowledgement of the last snapshot"),
    ("lagMs", "processing_lag_seconds", _MS, "gauge", "Age of the oldest work that waits (W5)"),
)  # fmt: skip


def of_task(beat: TaskBeat) -> Iterator[Measure]:
    """Of one task."""
    labels = {"processor": beat.name, "vertex": beat.vertex, "task": str(beat.index)}
    for counter, name, unit, kind, text in _COUNTED:
        if counter in beat.counters:
            yield Measure(f"task_{name}", kind, text, beat.counters[counter] / unit, labels)
    yield Measure("task_epoch", "gauge", "The last snapshot", beat.epoch, labels)
    yield Measure("task_generation", "gauge", "Grows at every restart", beat.generation, labels)
    for side, time_ms in (("input", beat.input_watermark_ms), ("output", beat.output_watermark_ms)):
        if MIN_TIME + 1 < time_ms < MAX_TIME - 1:
            text = "Event time before which nothing more is on time"
            yield Measure("task_watermark_seconds", "gauge", text, time_ms / _MS, {**labels, "side": side})


def of_processor(status: ProcessorStatus, waiting: int) -> Iterator[Measure]:
    """Of one processor; `waiting`: commits that some sink has not released."""
    labels = {"processor": status.name}
    state = {**labels, "state": status.state}
    yield Measure("processor_state", "gauge", "1 for the state that the processor is in", 1, state)
    yield Measure("processor_generation", "gauge", "Grows at every start and restart", status.generation, labels)
    yield Measure("checkpoint_epoch", "gauge", "The last committed checkpoint", status.last, labels)
    yield Measure("checkpoints_total", "counter", "Committed in the life of the job", status.commits, labels)
    text = "The last committed checkpoint, from its start"
    yield Measure("checkpoint_seconds", "gauge", text, status.epoch_ms / _MS, labels)
    yield Measure("released_epoch", "gauge", "All sinks have released up to this", status.released, labels)
    yield Measure("release_lag_checkpoints", "gauge", "Committed and not yet released everywhere", waiting, labels)
