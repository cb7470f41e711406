"""The last minutes of each job, as messages between coordinator and workers tell them: checkpoints, and event time against processing time.

Times are those of the messages' records. It begins with the service; what came before, or while the brokers were away, is not known.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tidemark.services.control.stats import is_queue, shown_time
from tidemark.shared.model.checkpoint import TaskHandle
from tidemark.shared.model.ids import Epoch, JobId, TaskId, VertexId
from tidemark.shared.model.messages import (
    QUOTA_MS,
    AbortCheckpoint,
    Ack,
    Command,
    CommitHint,
    ProcessorStatus,
    Released,
    Report,
    Request,
    StartCheckpoint,
    TaskBeat,
)
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.protocol.coordinator.retention import parse_blob_name

CHECKPOINTS_MAX: Final = 100
"""Of a job: at four a second the last 25 s, at one a minute the last hours."""
POINTS_MAX: Final = 600
"""Of a job: ten minutes at one a second."""
JOBS_MAX: Final = 1_000
"""Beyond it those that were heard of first are forgotten."""
RATE_POINTS: Final = 10
"""Over so many points a rate is taken: heartbeats come at their own times."""
_KEPT: Final = ("inRows", "outRows", "inBytes", "outBytes", "busyMs", "heldMs", QUOTA_MS)
Counts: TypeAlias = Mapping[VertexId, Mapping[str, int]]


@dataclass(slots=True)
class TaskPart:
    """A task's part of a checkpoint."""

    at_ms: int
    """When its acknowledgement was written, UTC."""
    state_bytes: int
    written_bytes: int
    """Of it, the bytes that this checkpoint stored."""
    aligned: bool
    """The snapshot was taken behind all barriers: no frame was in flight (C13)."""


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint of which something was heard. Times are UTC, ms; None: not heard."""

    epoch: Epoch
    generation: int
    began_ms: int | None = None
    committed_ms: int | None = None
    aborted: bool = False
    parts: dict[TaskId, TaskPart] = field(default_factory=dict)
    released_ms: dict[TaskId, int] = field(default_factory=dict)

    def shown(self, released: Epoch) -> dict[str, Any]:
        """As REST shows it. released: the last epoch that all sinks have released."""
        parts, began_ms = self.parts.values(), self.began_ms
        done_ms = max(self.released_ms.values(), default=None) if self.epoch <= released else None
        return {
            "epoch": self.epoch,
            "generation": self.generation,
            "state": _state(self, released),
            "began": shown_time(began_ms) if began_ms is not None else None,
            "durationMillis": _since(self.committed_ms, began_ms),
            "releaseMillis": _since(done_ms, self.committed_ms),
            "aligned": all(part.aligned for part in parts) if parts else None,
            "stateBytes": sum(part.state_bytes for part in parts),
            "writtenBytes": sum(part.written_bytes for part in parts),
            "tasks": [
                {
                    "task": str(task),
                    "durationMillis": _since(part.at_ms, began_ms),
                    "stateBytes": part.state_bytes,
                    "aligned": part.aligned,
                }
                for task, part in sorted(self.parts.items())
            ],
        }


def _state(checkpoint: Checkpoint, released: Epoch) -> str:
    if checkpoint.aborted:
        return "aborted"
    if checkpoint.committed_ms is None:
        return "under way"
    return "released" if checkpoint.epoch <= released else "committed"


def _since(end_ms: int | None, begin_ms: int | None) -> int | None:
    return None if end_ms is None or begin_ms is None else max(0, end_ms - begin_ms)


@dataclass(frozen=True, slots=True)
class Point:
    """A look at a running processor. Times are UTC, ms; None: not known yet."""

    at_ms: int
    watermark_ms: int | None
    """That reaches the sinks; `source_ms` is that which the sources give out."""
    source_ms: int | None
    lag_ms: int
    """Age of the oldest work that waits (W5)."""


@dataclass(slots=True)
class Job:
    """The figures that are kept of one."""

    checkpoints: OrderedDict[Epoch, Checkpoint] = field(default_factory=OrderedDict)
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))
    counts: deque[tuple[int, Counts]] = field(default_factory=lambda: deque(maxlen=RATE_POINTS + 1))
    """At the last points: when, by the monotonic clock, ms, and what each vertex had counted."""

    def rates(self, vertex: VertexId) -> dict[str, float]:
        """Of a vertex over the last points: counters a second, by the counter's name; of times, ms in a second."""
        recent = [(at_ms, counts[vertex]) for at_ms, counts in self.counts if vertex in counts]
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:  # noqa: PLR2004 - a rate is between two points
            return {}
        (first_ms, first), (last_ms, last) = recent[0], recent[-1]
        seconds = (last_ms - first_ms) / 1000
        # Counters begin again with a generation.
        return {name: max(0, last[name] - first[name]) / seconds for name in last}


@dataclass(slots=True)
class History:
    """The measured points of all jobs."""

    jobs: OrderedDict[JobId, Job] = field(default_factory=OrderedDict)

    def of(self, job: JobId) -> Job:
        """The figures of a job; it is known from now on."""
        found = self.jobs.get(job)
        if found is None:
            found = self.jobs[job] = Job()
            while len(self.jobs) > JOBS_MAX:
                self.jobs.popitem(last=False)
        return found

    def take(self, message: Command | Report | Request, at_ms: int) -> None:
        """A message of a checkpoint; others say nothing here. at_ms: UTC."""
        match message:
            case StartCheckpoint(job=job, generation=generation, epoch=epoch, committed=committed):
                self._of(job, epoch, generation).began_ms = at_ms
                before = self.of(job).checkpoints.get(committed)
                if before is not None and before.began_ms is not None and message.committed_ms:
                    before.committed_ms = before.committed_ms or before.began_ms + message.committed_ms
            case AbortCheckpoint(job=job, generation=generation, epoch=epoch):
                self._of(job, epoch, generation).aborted = True
            case CommitHint(job=job, generation=generation, epoch=epoch):
                checkpoint = self._of(job, epoch, generation)
                checkpoint.committed_ms = checkpoint.committed_ms or at_ms
            case Ack(job=job, generation=generation, epoch=epoch, handle=handle):
                self._of(job, epoch, generation).parts[TaskId(handle.vertex, handle.index)] = _part(
                    handle, epoch, at_ms
                )
            case Released(job=job, epoch=epoch, vertex=vertex, index=index) if epoch in self.of(job).checkpoints:
                self.of(job).checkpoints[epoch].released_ms[TaskId(vertex, index)] = at_ms
            case _:
                return

    def look(self, status: ProcessorStatus, tasks: Mapping[TaskId, TaskBeat], now_ms: int, monotonic_ms: int) -> None:
        """One more point of a running processor. now_ms: UTC, for who reads it; rates are taken by the monotonic clock."""
        counts: dict[VertexId, dict[str, int]] = {}
        for task, beat in tasks.items():
            vertex = counts.setdefault(task.vertex, dict.fromkeys(_KEPT, 0))
            for name in _KEPT:
                vertex[name] += beat.counters.get(name, 0)
        by_service = {
            s: [b for t, b in tasks.items() if status.services.get(t.vertex) == s] for s in ("source", "sink")
        }
        lag_ms = max((beat.counters.get("lagMs", 0) for beat in tasks.values()), default=0)
        job = self.of(status.job)
        job.counts.append((monotonic_ms, counts))
        reached = _known(b.input_watermark_ms for b in by_service["sink"] if not is_queue(b.vertex))
        job.points.append(Point(now_ms, reached, _known(b.output_watermark_ms for b in by_service["source"]), lag_ms))

    def _of(self, job: JobId, epoch: Epoch, generation: int) -> Checkpoint:
        checkpoints = self.of(job).checkpoints
        found = checkpoints.get(epoch)
        if found is None:
            found = checkpoints[epoch] = Checkpoint(epoch, generation)
            while len(checkpoints) > CHECKPOINTS_MAX:
                checkpoints.popitem(last=False)
        return found


def _known(times_ms: Iterable[int]) -> int | None:
    """The lowest; None where that is no instant."""
    found = min(times_ms, default=MIN_TIME)
    return found if MIN_TIME + 1 < found < MAX_TIME - 1 else None


def _part(handle: TaskHandle, epoch: Epoch, at_ms: int) -> TaskPart:
    blobs = {ref.name: ref.size_bytes for ref in (*(p.blob for p in handle.parts if p.blob), *handle.blobs)}
    names = {name: parse_blob_name(name) for name in blobs}
    inline = sum(len(p.inline) for p in handle.parts if p.inline is not None)
    written = inline + sum(blobs[name] for name, parsed in names.items() if parsed and parsed.epoch == epoch)
    aligned = all(c.ended or c.last_barrier >= epoch for i in handle.protocol.inputs for c in i.channels)
    return TaskPart(at_ms, inline + sum(blobs.values()), written, aligned)
