"""Measures of a process for monitoring: figures by name, and whether it is ready. `tidemark.shared.process` serves them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, runtime_checkable

from tidemark.shared.model.messages import QUOTA_MS, SHARE, ProcessorStatus, TaskBeat
from tidemark.shared.model.spans import Spans
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.protocol.coordinator.pace import Timings
from tidemark.shared.runtime.meter import Meter

_MS: Final = 1000
"""A unit."""
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A name under which there are figures. Counters and histograms grow while the process lives, or its task."""

    kind: Kind
    text: str
    of: str
    """The service that tells it, or `worker`."""
    labels: tuple[str, ...] = ()


_TASK: Final = ("processor", "vertex", "task")
_PROCESSOR: Final = ("processor",)
_UNREADABLE: Final = "Records of an internal topic that were skipped, for they say nothing"
METRICS: Final[Mapping[str, Metric]] = {
    "task_events_in_total": Metric("counter", "Rows taken in", "worker", _TASK),
    "task_events_out_total": Metric("counter", "Rows let out, dead letters apart", "worker", _TASK),
    "task_bytes_in_total": Metric("counter", "Bytes taken in", "worker", _TASK),
    "task_bytes_out_total": Metric("counter", "Bytes let out", "worker", _TASK),
    "task_dead_letters_total": Metric("counter", "Dead letters let out", "worker", _TASK),
    "task_late_total": Metric("counter", "Rows that came late", "worker", _TASK),
    "task_duplicates_total": Metric("counter", "Records whose id had been before", "worker", _TASK),
    "task_busy_seconds_total": Metric("counter", "Time spent on rows", "worker", _TASK),
    "task_held_back_seconds_total": Metric("counter", "Input waited for receivers, commits, quotas (F7, F8, E4)", "worker", _TASK),
    "task_held_by_quota_seconds_total": Metric("counter", "The part of it that waited for a quota of bytes (E4)", "worker", _TASK),
    "task_quota_bytes_per_second": Metric("gauge", "Bytes a second that the task may take, of the namespace's quota", "worker", _TASK),
    "task_state_bytes": Metric("gauge", "State in the last snapshot", "worker", _TASK),
    "task_processing_lag_seconds": Metric("gauge", "Age of the oldest work that waits (W5)", "worker", _TASK),
    "task_step_seconds": Metric("histogram", "One call of a task's work: rows, a watermark, the end of an epoch", "worker", _TASK),
    "task_snapshot_seconds": Metric("histogram", "From copy to acknowledgement of a snapshot", "worker", _TASK),
    "task_event_time_lag_seconds": Metric("histogram", "The output watermark behind the clock, at each snapshot", "worker", _TASK),
    "task_epoch": Metric("gauge", "The last snapshot", "worker", _TASK),
    "task_generation": Metric("gauge", "Grows at every restart", "worker", _TASK),
    "task_watermark_seconds": Metric("gauge", "Event time before which nothing more is on time", "worker", (*_TASK, "side")),
    "tasks": Metric("gauge", "Tasks that this worker hosts", "worker"),
    "slots": Metric("gauge", "Processors of which it hosts tasks at most", "worker"),
    "leads": Metric("gauge", "1 for the coordinator that leads", "coordinator"),
    "workers_wanted": Metric(
        "gauge", "Workers that a service should have: one more while a processor finds no room", "coordinator", ("service",)
    ),
    "processor_state": Metric("gauge", "1 for the state that the processor is in", "coordinator", (*_PROCESSOR, "state")),
    "processor_generation": Metric("gauge", "Grows at every start and restart", "coordinator", _PROCESSOR),
    "checkpoint_epoch": Metric("gauge", "The last committed checkpoint", "coordinator", _PROCESSOR),
    "checkpoints_total": Metric("counter", "Committed in the life of the job", "coordinator", _PROCESSOR),
    "checkpoint_seconds": Metric("histogram", "A checkpoint, from its start to its commit", "coordinator", _PROCESSOR),
    "release_seconds": Metric("histogram", "From a commit until all sinks have released", "coordinator", _PROCESSOR),
    "end_to_end_seconds": Metric(
        "histogram", "From the barrier in front of an epoch to its release: the longest that a record in it took", "coordinator", _PROCESSOR
    ),
    "released_epoch": Metric("gauge", "All sinks have released up to this", "coordinator", _PROCESSOR),
    "release_lag_checkpoints": Metric("gauge", "Committed and not yet released everywhere", "coordinator", _PROCESSOR),
    "unreadable_records_total": Metric("counter", _UNREADABLE, "worker, coordinator, control", ("topic",)),
    "commands_waiting": Metric("gauge", "Commands that wait for the coordinator", "control"),
    "audited_epoch": Metric("gauge", "The last checkpoint that an audit compared at all outputs", "control", _PROCESSOR),
    "audit_outcome": Metric(
        "gauge", "1 for the last audit's outcome: held, unchecked, differs, cannot, away", "control", (*_PROCESSOR, "outcome")
    ),
    "processors_known": Metric("gauge", "Processors in the registry", "control"),
    "gateway_records_total": Metric("counter", "Records acknowledged", "gateway"),
    "gateway_refused_total": Metric("counter", "Batches answered 429", "gateway"),
    "gateway_in_flight_bytes": Metric("gauge", "Of batches under way", "gateway"),
}  # fmt: skip
"""All there are, by name without the prefix `tidemark_`, with the unit."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a metric, by its name in `METRICS`; of a histogram, its counts."""

    name: str
    value: float | Spans
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def metric(self) -> Metric:
        """The measure that it is a figure of. KeyError if none was declared."""
        return METRICS[self.name]


@runtime_checkable
class Observed(Protocol):
    """A service that can be looked at."""

    def unready(self) -> str:
        """Why it cannot do its work now; empty if it can."""
        ...

    def measures(self) -> Iterable[Measure]:
        """All figures, as of now."""
        ...


_COUNTED: Final[tuple[tuple[str, str, float], ...]] = (
    ("inRows", "events_in_total", 1),
    ("outRows", "events_out_total", 1),
    ("inBytes", "bytes_in_total", 1),
    ("outBytes", "bytes_out_total", 1),
    ("dlqRows", "dead_letters_total", 1),
    ("late", "late_total", 1),
    ("duplicates", "duplicates_total", 1),
    ("busyMs", "busy_seconds_total", _MS),
    ("heldMs", "held_back_seconds_total", _MS),
    (QUOTA_MS, "held_by_quota_seconds_total", _MS),
    (SHARE, "quota_bytes_per_second", 1),
    ("stateBytes", "state_bytes", 1),
    ("lagMs", "processing_lag_seconds", _MS),
)


def of_task(beat: TaskBeat, meter: Meter | None) -> Iterator[Measure]:
    """Of one task; `meter`: while it works."""
    labels = {"processor": beat.name, "vertex": beat.vertex, "task": str(beat.index)}
    for counter, name, unit in _COUNTED:
        if counter in beat.counters:
            yield Measure(f"task_{name}", beat.counters[counter] / unit, labels)
    if meter is not None:
        yield Measure("task_step_seconds", meter.steps, labels)
        yield Measure("task_snapshot_seconds", meter.snapshots, labels)
        yield Measure("task_event_time_lag_seconds", meter.lags, labels)
    yield Measure("task_epoch", beat.epoch, labels)
    yield Measure("task_generation", beat.generation, labels)
    for side, time_ms in (("input", beat.input_watermark_ms), ("output", beat.output_watermark_ms)):
        if MIN_TIME + 1 < time_ms < MAX_TIME - 1:
            yield Measure("task_watermark_seconds", time_ms / _MS, {**labels, "side": side})


def of_processor(status: ProcessorStatus, waiting: int, timings: Timings) -> Iterator[Measure]:
    """Of one processor; `waiting`: commits that some sink has not released."""
    labels = {"processor": status.name}
    yield Measure("processor_state", 1, {**labels, "state": status.state})
    yield Measure("processor_generation", status.generation, labels)
    yield Measure("checkpoint_epoch", status.last, labels)
    yield Measure("checkpoints_total", status.commits, labels)
    yield Measure("checkpoint_seconds", timings.checkpoints, labels)
    yield Measure("release_seconds", timings.releases, labels)
    yield Measure("end_to_end_seconds", timings.latencies, labels)
    yield Measure("released_epoch", status.released, labels)
    yield Measure("release_lag_checkpoints", waiting, labels)
