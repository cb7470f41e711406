"""The parts that a worker gives to its service's tasks, and those that a service provides."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from tidemark.shared.language.documents import Processor
from tidemark.shared.model.held import Wait
from tidemark.shared.model.ids import Epoch, JobId, TaskId
from tidemark.shared.model.messages import Assign
from tidemark.shared.model.plan import PhysicalPlan, Vertex
from tidemark.shared.operators.context import TaskContext, context_of
from tidemark.shared.ports.blobs import BlobStore
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.log import Log
from tidemark.shared.runtime.body import TaskBody
from tidemark.shared.runtime.reading import Unreadable, patiently
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics

Phase = Literal[
    "restored",
    "checkpoint-started",
    "snapshot-begun",
    "snapshot-taken",
    "state-durable",
    "step-running",
    "staged",
    "releasing",
    "released",
    "commit-decided",
    "commit-stored",
    "mirrored",
]
"""Phases of an epoch: a crash at one has consequences of its own, and a trace has them as the ends of its spans."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A phase is reached."""

    phase: Phase
    epoch: Epoch
    job: JobId
    task: TaskId | None = None
    """None for the coordinator; of a sink's release the identity."""
    processor: str = ""
    """"": not known here."""


def _nothing(moment: Moment) -> None:
    del moment


def _forget(activity: str, wait: Wait | None) -> None:
    del activity, wait


@dataclass(frozen=True, slots=True)
class Outside:
    """The ports of one process."""

    log: Log
    blobs: BlobStore
    clock: Clock
    executor: Executor
    topics: Topics
    settings: RuntimeSettings
    unique: Callable[[], str]
    """Names that no other attempt has had or will have."""
    passing: Callable[[Moment], None] = _nothing
    """Told when a phase of the protocol is reached: where traces are made, and where tests of faults kill the process."""
    unreadable: Unreadable = field(default_factory=Unreadable)
    """Where records of the installation's topics are counted that say nothing, or that nobody of it wrote."""


async def ensure_topics(outside: Outside) -> None:
    """Make the topics that every installation has; the first process to need them does it. An outage is waited out."""

    async def make() -> None:
        for name, config in outside.topics.plain().items():
            await outside.log.create_topic(name, 1, config)

    await patiently(outside.clock, make, outside.settings, what="broker")


@dataclass(frozen=True, slots=True)
class AssignedTask:
    """One assignment, planned, with the ways back to the worker."""

    outside: Outside
    assign: Assign
    processor: Processor
    """The plan's document."""
    plan: PhysicalPlan
    vertex: Vertex
    released: Callable[[int, Epoch], None]
    """A release identity of this vertex (its index) has its marker at this epoch."""
    fail: Callable[[BaseException], None]
    """Something beside the task's own calls has failed: the task fails with it."""
    waits: Callable[[str, Wait | None], None] = _forget
    """Reports the outside system that an activity of the task (by name) waits for; None when the activity goes on."""
    alignment_timeout_ms: int | None = None
    """How long the task waits for barriers (C13)."""

    @property
    def task(self) -> TaskId:
        """Which task this is."""
        return TaskId(self.assign.vertex, self.assign.index)

    def passing(self, phase: Phase, epoch: Epoch, index: int | None = None) -> None:
        """This task has reached a phase; `index`: of a release identity, where it is not the task's own."""
        task = self.task if index is None else TaskId(self.task.vertex, index)
        self.outside.passing(Moment(phase, epoch, self.assign.job, task, self.assign.name))

    @property
    def operators(self) -> TaskContext:
        """The context of operators, the same in every service: a dead letter does not depend on the service that writes it."""
        settings = self.outside.settings
        return replace(
            context_of(self.plan, self.assign.vertex, self.assign.name),
            join_bytes_max=settings.join_bytes_max,
            join_ahead_bytes_max=settings.join_ahead_bytes_max,
            join_pairs_max=settings.join_pairs_max,
            waiting_records_max=settings.waiting_records_max,
            computed_max=settings.computed_max,
            ids_bytes_max=settings.ids_bytes_max,
            ordered_bytes_max=settings.ordered_bytes_max,
            open_rows_max=settings.open_rows_max,
            unmerged_groups_max=settings.unmerged_groups_max,
            held_groups_max=settings.held_groups_max,
            letter_bytes_max=self.processor.options.limits.letter_bytes_max,
            code=self.assign.plan.code,
        )


class Service(Protocol):
    """The part that makes a worker a source, an operator, a Spark stage or a sink."""

    @property
    def name(self) -> str:
        """The service's name, as `Vertex.service` has it."""
        ...

    async def build(self, context: AssignedTask) -> TaskBody:
        """The body of a task, not yet opened. A ReadingBody for vertices of the service `source`."""
        ...

    async def close(self) -> None:
        """The process ends: release the resources that all tasks share."""
        ...
