"""The machine's knowledge of one processor (row, generation, checkpoint in flight), and the state that all processors share."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import structs

from tidemark.shared.model.checkpoint import CommitRow, KnownSplit, LineageEntry
from tidemark.shared.model.held import Wait
from tidemark.shared.model.ids import (
    NO_LEADER,
    Epoch,
    Generation,
    JobId,
    LeaderToken,
    Offset,
    ProcessorName,
    SplitId,
    TaskId,
    VertexId,
    WorkerIncarnation,
)
from tidemark.shared.model.messages import Command, ProcessorStatus, Request, RunningPlan, SplitsFound
from tidemark.shared.model.processors import Expected, ProcessorRow
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.checkpoints import CommitPermit, Flight, Numbers, is_aligned, taken_up_to
from tidemark.shared.protocol.coordinator.commands import CoordinatorCommand, OpId
from tidemark.shared.protocol.coordinator.events import PlannedPipeline
from tidemark.shared.protocol.coordinator.mirror import Mirror
from tidemark.shared.protocol.coordinator.pace import EpochTimes
from tidemark.shared.protocol.coordinator.plans import own_identities, sinks_of
from tidemark.shared.protocol.coordinator.record import (
    Decisions,
    Identity,
    OldJob,
    Purpose,
    decode_kept,
    decode_plan,
    encode_kept,
    encode_plan,
)
from tidemark.shared.protocol.coordinator.retention import Retained
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.protocol.coordinator.workers import Workers
from tidemark.shared.protocol.lineage import essential

FORGOTTEN_MAX = 1_000
"""Commit rows, and entries of the lineage, that are forgotten at a time: a statement of SQL names them."""
UNIQUE_DIGITS = 16
"""Of an id, behind the mark of the installation."""


class Phase(StrEnum):
    """Where a processor stands. Status and row show users less: see `shown_state`."""

    IDLE = "idle"
    """No generation runs: CREATED, STOPPED, FINISHED or FAILED."""
    ADOPTING = "adopting"
    """A new leader waits for the tasks of the running generation to show themselves."""
    WAITING = "waiting"
    """The generation has ended; the next begins at `resume_at_ms` (C10)."""
    PREPARING = "preparing"
    """The generation is durable; topics, mirror and workers are awaited."""
    RESTORING = "restoring"
    """Every task is assigned; not all have restored (R1)."""
    RUNNING = "running"
    """Sources take input, checkpoints go."""
    RELEASING = "releasing"
    """Only committed output is released (E2)."""
    DROPPING = "dropping"
    """The processor's stored state is being deleted."""


ACTIVE = frozenset({Phase.ADOPTING, Phase.WAITING, Phase.PREPARING, Phase.RESTORING, Phase.RUNNING, Phase.RELEASING})
"""A generation runs or is to run."""
HOSTED = frozenset({Phase.ADOPTING, Phase.RESTORING, Phase.RUNNING, Phase.RELEASING})
"""Tasks of the current generation may be on workers."""


@dataclass(frozen=True, slots=True)
class Work:
    """One task of a generation: its own part of the assignment."""

    service: str
    plan: RunningPlan
    release_only: bool = False
    retired: tuple[Identity, ...] = ()
    new_identity: bool = False


@dataclass(frozen=True, slots=True)
class TakenBytes:
    """Bytes that a source task has taken since it began, the time of its report, and its latest rate (E4)."""

    total: int
    at_ms: int
    bytes_per_s: float


@dataclass(slots=True)
class GenerationRun:
    """The current generation's tasks and where they are."""

    purpose: Purpose
    tasks: dict[TaskId, Work]
    holders: dict[TaskId, WorkerIncarnation] = field(default_factory=dict)
    restored: set[TaskId] = field(default_factory=set)
    topics_op: OpId | None = None
    topics_ready: bool = False
    since_ms: int = 0
    read_on: bool = False
    """A commit of it has read further than the one before (C10)."""
    wants_service: str = ""
    """No worker of this service has room."""
    waits: dict[TaskId, tuple[Wait, ...]] = field(default_factory=dict)
    """The outside systems that tasks report to wait for."""
    waited_ms: dict[TaskId, int] = field(default_factory=dict)
    """When they said so last."""
    found: dict[TaskId, SplitsFound] = field(default_factory=dict)
    """The splits that source tasks have found and were not told to read (I1)."""
    ends_asked: bool = False
    ends: dict[TaskId, dict[SplitId, KnownSplit]] = field(default_factory=dict)
    """Where source tasks say that their splits end (I3)."""
    ends_told: bool = False
    taken: dict[TaskId, TakenBytes] = field(default_factory=dict)
    """By source task."""
    shares: dict[TaskId, int] = field(default_factory=dict)
    """Bytes a second that source tasks were told, or said at first that they have; 0: without a bound."""
    shares_had: dict[TaskId, int] = field(default_factory=dict)
    """Their latest reports."""

    @property
    def waiting(self) -> str:
        """Why the first of the tasks cannot go on now, where that lies outside; "" where none says so."""
        return next((f"task {task} waits, {waits[0]}" for task, waits in sorted(self.waits.items()) if waits), "")

    def have_waited(self, tasks: Iterable[TaskId], since_ms: int) -> bool:
        """Whether one of these has waited for an outside system since then: its lateness in that time does not count (C10)."""
        return any(self.waited_ms.get(task, since_ms - 1) >= since_ms for task in tasks)

    @property
    def acking(self) -> frozenset[TaskId]:
        """Those that take part in checkpoints."""
        return frozenset(t for t, w in self.tasks.items() if not w.release_only)


@dataclass(frozen=True, slots=True)
class Doom:
    """Why the generation ends."""

    reason: str
    counts: bool = False
    """Towards FAILED (C10): a failure of a task or of checkpoints; not an outage, not a lost worker."""
    permanent: bool = False
    outage: bool = False


# --- reasons to write the row -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reserved:
    """A block of numbers has been reserved: (given, end] (C1)."""

    given: Epoch
    end: Epoch


@dataclass(frozen=True, slots=True)
class Began:
    """A generation has begun (R1)."""

    entry: LineageEntry
    new_job: bool
    block: Reserved


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint has been committed."""

    commit: CommitRow


@dataclass(frozen=True, slots=True)
class Learned:
    """The row lists the splits that source tasks have found (I1), or their ends (I3)."""


@dataclass(frozen=True, slots=True)
class FailureCounted:
    """A failed generation has been counted; the next begins after a while (C10)."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The processor has come to rest: STOPPED, FINISHED or FAILED."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A request has changed the row."""

    request: Request


@dataclass(frozen=True, slots=True)
class Dropped:
    """The row is gone."""


Then = Reserved | Began | Committed | Learned | FailureCounted | Ended | Applied | Dropped


@dataclass(frozen=True, slots=True)
class Write:
    """The one write of the row that is under way (C8)."""

    op: OpId
    row: ProcessorRow
    kept: Decisions
    then: Then


@dataclass(slots=True)
class Cleaning:
    """A round of forgetting and deleting (C12)."""

    forget_op: OpId | None
    forget: tuple[Epoch, ...]
    generations: tuple[Generation, ...] = ()
    """Of the lineage, that are being forgotten."""
    waiting: dict[OpId, CoordinatorCommand] = field(default_factory=dict)


@dataclass(slots=True)
class Context:
    """State that all processors of one coordinator share."""

    settings: CoordinatorSettings
    unique: Callable[[], str]
    """Supplies UUIDs, 32 hex digits."""
    workers: Workers
    mark: str = ""
    """The prefix of the installation's ids."""
    token: LeaderToken = NO_LEADER
    ops: int = 0
    outage_seen_ms: int | None = None
    states: Callable[[], Iterable["ProcessorState"]] = lambda: ()
    """Of all processors."""
    starting: Callable[[], Iterable[tuple[ProcessorName, int]]] = lambda: ()
    """Those whose rows are being written and that run then, with their numbers of tasks."""
    shared_ms: int = 0
    """When the shares of quotas of bytes were looked at last."""
    contradicted: str = ""
    """A contradiction found in this event: others have seen more than the store has."""
    out: list[CoordinatorCommand] = field(default_factory=list)

    def fresh(self) -> str:
        """An id of this installation's, that no other has: of a job, of an edge's life, of a blob (C12)."""
        return self.mark + self.unique()[-UNIQUE_DIGITS:]

    def op(self) -> OpId:
        """A number for a command that is answered."""
        self.ops += 1
        return OpId(self.ops)


@dataclass(slots=True)
class ProcessorState:
    """One processor."""

    ctx: Context
    row: ProcessorRow
    kept: Decisions
    plan: RunningPlan
    lineage: list[LineageEntry]
    commits: Retained
    phase: Phase = Phase.IDLE
    write: Write | None = None
    store_away: bool = False
    """The last write was not answered: it is made again."""
    retry_at_ms: int = 0
    mirror: Mirror = field(default_factory=Mirror)
    released: dict[Identity, Epoch] = field(default_factory=dict)
    run: GenerationRun | None = None
    numbers: Numbers = field(default_factory=Numbers)
    flight: Flight | None = None
    doom: Doom | None = None
    resume_at_ms: int = 0
    outages: int = 0
    """Generations in a row that an outage ended."""
    outage: str = ""
    """The message of the last outage, for users who wonder why nothing goes on; empty since the last commit."""
    setback: str = ""
    """Why the last generation ended, until the next one runs."""
    timeouts: int = 0
    last_start_ms: int | None = None
    checkpoint_wanted: bool = False
    epoch_ms: int = 0
    """From start to commit of the last committed checkpoint."""
    times: EpochTimes = field(default_factory=EpochTimes)
    leave_behind: Epoch | None = None
    """A stop or a change of plan waits for a commit above this one."""
    stop_since_ms: int | None = None
    held: bool = False
    requests: deque[Request] = field(default_factory=deque)
    """`requests_max` a processor."""
    planning_op: OpId | None = None
    planned: PlannedPipeline | str | None = None
    answers: deque[tuple[str, str]] = field(default_factory=deque)
    """`answers_max` a processor."""
    cleaning: Cleaning | None = None
    clean_at_ms: int = 0
    cleaned_at: Epoch | None = None
    dropping: set[OpId] | None = None
    untold: set[str] | None = None
    """Of a drop whose deletions are done: requests whose answers the brokers do not have yet."""
    gone_topics: frozenset[str] = frozenset()
    """Deleted since the last write that knew of them."""
    gone_jobs: frozenset[JobId] = frozenset()
    shown: tuple[str, Generation, JobId] | None = None
    changes: int = 0
    status: ProcessorStatus | None = None
    status_at_ms: int = 0

    @property
    def name(self) -> ProcessorName:
        """The processor's name."""
        return self.row.name

    @property
    def settings(self) -> CoordinatorSettings:
        """The coordinator's."""
        return self.ctx.settings

    # --- small questions ------------------------------------------------------------------------------------------------

    def sinks(self) -> frozenset[VertexId]:
        """Vertices whose handles must be released: the plan's and removed ones."""
        return frozenset(sinks_of(self.plan)) | {r.vertex for r in self.kept.removed}

    def watch(self) -> None:
        """The plan or what is kept may have changed: other releases may be waited for."""
        self.commits.watch(self.sinks(), frozenset(each.epoch for each in self.kept.checkpoints))

    def unreleased(self) -> list[Epoch]:
        """Commits that some sink has not released, oldest first (C11)."""
        return [row.epoch for row in self.commits.unreleased(self.released)]

    def superfluous_lineage(self) -> tuple[Generation, ...]:
        """Entries that assignments name no more (L1)."""
        named = {e.generation for e in self.named_lineage()}
        return tuple(e.generation for e in self.lineage if e.generation not in named)[:FORGOTTEN_MAX]

    def named_lineage(self) -> tuple[LineageEntry, ...]:
        """The lineage that an assignment names (L1)."""
        most, newest = self.settings.lineage_max, self.commits.newest
        taken = taken_up_to([newest] if newest else [], self.row.last) if len(self.lineage) > most else self.row.last
        return essential(self.lineage, most, taken)

    def mirror_begin(self) -> Offset:
        """From where sinks and the next leader read the mirror: the oldest commit that waits, or the last one (C9)."""
        return self.mirror.begin(min(self.unreleased(), default=self.row.last), self.kept.mirror)

    def waiting_for(self, epoch: Epoch) -> list[Identity]:
        """Release identities that have this commit still to release (S6)."""
        sinks, commit = self.sinks(), self.commits.of(epoch)
        return [
            (h.vertex, h.index)
            for h in (() if commit is None else commit.tasks)
            if h.vertex in sinks and self.released.get((h.vertex, h.index), 0) < epoch
        ]

    def unwanted_topics(self) -> tuple[str, ...]:
        """Topics that may go and have not gone yet."""
        return tuple(t for t in self.kept.unwanted_topics if t not in self.gone_topics)

    def old_jobs(self) -> tuple[OldJob, ...]:
        """Earlier lives of which something may still be there."""
        return tuple(j for j in self.kept.old_jobs if j.job not in self.gone_jobs)

    def final(self) -> bool:
        """Whether the last commit covers END everywhere (E1)."""
        newest = self.commits.newest
        return newest is not None and newest.final and newest.epoch == self.row.last

    def is_aligned(self) -> bool:
        """Whether the last commit has no frames of channels to read again (C13)."""
        newest = self.commits.newest
        return newest is not None and is_aligned(newest)

    def restored_from(self) -> Epoch:
        """Of the current generation."""
        return self.lineage[-1].restored_from if self.lineage else Epoch(0)

    def outage_since(self, ms: int) -> bool:
        """Whether something outside was away at or after this time (C10)."""
        return self.ctx.outage_seen_ms is not None and self.ctx.outage_seen_ms >= ms

    def backoff_until(self, now_ms: int, tries: int) -> int:
        """When to go on after so many tries, ms."""
        return now_ms + self.settings.backoff_ms(tries)

    # --- output -----------------------------------------------------------------------------------------------------------

    def emit(self, command: CoordinatorCommand) -> None:
        """Hand a command to the driver."""
        self.ctx.out.append(command)

    def tell(self, command: Command) -> None:
        """Hand a command to the workers."""
        self.ctx.out.append(do.Publish(command))

    def answer(self, request: str, error: str) -> None:
        """Say how a request was decided, and remember it."""
        error = bounded(error, self.settings.reason_characters_max)
        self.answers.append((request, error))
        while len(self.answers) > self.settings.answers_max:
            self.answers.popleft()
        self.emit(do.Answer(request, self.name, error))

    # --- writing the row (C8) ---------------------------------------------------------------------------------------------

    def next_kept(self) -> Decisions:
        """The kept facts, as known by now; identities that have nothing more to release are retired (S1)."""
        own = own_identities(self.plan)
        base = max(self.restored_from(), self.plan.since)
        stay = tuple(i for i in self.kept.identities if i in own or self.released.get(i, 0) < base)
        vertices = {v for v, _ in stay}
        return structs.replace(
            self.kept,
            identities=stay,
            removed=tuple(r for r in self.kept.removed if r.vertex in vertices),
            released=tuple((v, i, e) for (v, i), e in sorted(self.released.items())),
            skips=tuple(s for s in self.kept.skips if self.released.get(s[:2], 0) < s[2]),
            answers=tuple(self.answers),
            shown=self.shown,
            changes=self.changes,
            unwanted_topics=self.unwanted_topics(),
            old_jobs=self.old_jobs(),
            mirror=self.mirror_begin(),
        )

    def change_row(self, kept: Decisions, then: Then, row: ProcessorRow) -> None:
        """Issue the write; nothing about it holds before the store has answered (C8)."""
        row = structs.replace(row, leader=self.ctx.token, extra=encode_kept(kept))
        expected = Expected(self.row.name, self.ctx.token, self.row.generation, self.row.last)
        op = self.ctx.op()
        self.write = Write(op, row, kept, then)
        match then:
            case Began(entry):
                self.emit(do.StoreNewGeneration(op, expected, row, entry))
            case Committed(commit):
                self.emit(do.StoreCommit(op, expected, row, commit))
            case Dropped():
                self.emit(do.StoreDrop(op, expected))
            case _:
                self.emit(do.StoreUpdate(op, expected, row))

    def written(self) -> Write:
        """The store has answered: the row is as it was written."""
        write = self.write
        assert write is not None
        self.write = None
        self.store_away = False
        if write.row.plan != self.row.plan:
            self.plan = decode_plan(write.row.plan)
        self.row = write.row
        self.kept = write.kept
        self.watch()
        self.gone_topics &= frozenset(self.kept.unwanted_topics)
        self.gone_jobs &= frozenset(old.job for old in self.kept.old_jobs)
        return write

    def take_permit(self, permit: CommitPermit) -> None:
        """A commit is durable: the mirror may have it (C9)."""
        self.mirror.add(permit.mirror_row(self.sinks()))


def restore_state(
    ctx: Context, row: ProcessorRow, lineage: tuple[LineageEntry, ...], commits: tuple[CommitRow, ...]
) -> ProcessorState:
    """A processor as it was read from the store."""
    kept = decode_kept(row.extra)
    p = ProcessorState(ctx, row, kept, decode_plan(row.plan), list(lineage), Retained(commits))
    p.watch()
    p.released = {(v, i): e for v, i, e in kept.released}
    p.answers = deque(kept.answers)
    """The same, as it was stored."""
    p.shown, p.changes = kept.shown, kept.changes
    return p


def bounded(text: str, characters_max: int) -> str:
    """A text for a message of the brokers, cut to this length."""
    return text if len(text) <= characters_max else f"{text[:characters_max]}… ({len(text)} characters in all)"


def plan_bytes(plan: RunningPlan) -> bytes:
    """For the row."""
    return encode_plan(plan)
