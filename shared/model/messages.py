"""Messages of the control plane: the coordinator's commands, the workers' reports, the users' requests.

Tagged msgspec structs: `tidemark.shared.wire.messages` has their bytes. Messages may be repeated or late; a reader
compares worker incarnation, job and generation first (R2).
"""

from typing import Final

from msgspec import Struct

from tidemark.shared.model.checkpoint import KnownSplit, LineageEntry, TaskHandle
from tidemark.shared.model.held import Wait
from tidemark.shared.model.ids import (
    NO_EPOCH,
    EdgeId,
    Epoch,
    Generation,
    Incarnation,
    JobId,
    LeaderToken,
    Offset,
    Place,
    ProcessorName,
    SplitId,
    VertexId,
    WorkerIncarnation,
)
from tidemark.shared.model.time import MIN_TIME

KEY_GROUPS: Final = 128
"""Default of a plan. It is kept with the processor, so that state has an owner for any numbers of tasks."""


class EdgeBinding(Struct, frozen=True):
    """An edge of the plan as it runs: its topic, its incarnation, and the task counts at both ends."""

    edge: EdgeId
    incarnation: Incarnation
    topic: str
    senders: int
    receivers: int


class RunningPlan(Struct, frozen=True):
    """All that a worker needs to build any task: document, task counts and edges. Planning is deterministic on it."""

    version: int
    document: str
    """The processor's document, canonical JSON, environment variables already put in."""
    tasks: dict[VertexId, int]
    edges: tuple[EdgeBinding, ...]
    key_groups: int = KEY_GROUPS
    services: dict[VertexId, str] = {}
    """Which service runs a vertex."""
    names: dict[str, VertexId] = {}
    """Vertices of computations and sinks, by the paths of their stages: kept over changes of plan (E3). Those of removed ones: `gone/…`."""
    since: Epoch = NO_EPOCH
    """The checkpoint behind which this document, with its code, runs; earlier epochs followed from another document."""
    code: bytes = b""
    """The code of its computations, as it was when the plan was made (`shared.computation.bundle`); empty where each worker has its own."""
    code_digest: str = ""


# --- commands: coordinator to workers -------------------------------------------------------------------------------


class Assign(Struct, frozen=True, tag=True):
    """Run a task: build it, restore it from `handles`, seek, report `TaskRestored` (R1)."""

    to: WorkerIncarnation
    name: ProcessorName
    job: JobId
    generation: Generation
    lineage: tuple[LineageEntry, ...]
    last: Epoch
    """The last committed checkpoint, = restored_from of this generation."""
    plan: RunningPlan
    vertex: VertexId
    index: int
    handles: tuple[TaskHandle, ...] = ()
    """Of the restored checkpoint: all tasks of this vertex (a rescale reads several)."""
    retired: tuple[tuple[VertexId, int], ...] = ()
    """Release identities of earlier generations that this sink task takes over, besides its own (S1)."""
    new_identity: bool = False
    """No commit that can still be released names this sink task's identity: first write marker `last` (S2)."""
    release_only: bool = False
    """Take over the identities, release up to `last`, report it, and nothing else: no input, no part in checkpoints (S1, E2)."""
    skips: tuple[tuple[VertexId, int, Epoch], ...] = ()
    """Commits of release identities in which a user lets the sink pass over the records that the target refuses (S6)."""
    listed: bool = False
    """The splits that the source began with are in the processor's row: a split found from now on has come since (I1)."""
    splits: dict[SplitId, KnownSplit] = {}
    """Those of a source's task, as the processor's row lists them."""
    mirror: Offset = Offset(0)
    """From where the mirror is to be read: earlier commits are released (C9)."""


class _OfGeneration(Struct, frozen=True):
    job: JobId
    generation: Generation


class StartSources(_OfGeneration, frozen=True, tag=True):
    """All tasks of the generation have restored: sources may take input (R1)."""

    target_ms: int = 0
    """The time that an epoch may take behind its barrier (F9); 0: any time."""
    first_rows: int = 0
    """How many rows a source task's first epoch may have."""


class StartCheckpoint(_OfGeneration, frozen=True, tag=True):
    """Take checkpoint `epoch`; `committed` is the last committed one (C5)."""

    epoch: Epoch
    committed: Epoch
    ended: Epoch = NO_EPOCH
    """The last epoch that is released everywhere (F9)."""
    took_ms: int = 0
    """From its start until then."""
    late: Epoch = NO_EPOCH
    """A later one, that takes too long: it is committed, and not released everywhere yet."""
    late_ms: int = 0
    """From its start until now."""
    aligned: bool = False
    """Every task waits for its barriers, for something changes behind this checkpoint (C13, R4)."""
    committed_ms: int = 0
    """From the start of `committed` to its commit, where this leader committed it."""


class AbortCheckpoint(_OfGeneration, frozen=True, tag=True):
    """Checkpoint `epoch` will not be committed (C5, C10)."""

    epoch: Epoch


class CommitHint(_OfGeneration, frozen=True, tag=True):
    """Checkpoint `epoch` is committed; a hint, the mirror is the word (C9). Without one the next start says so."""

    epoch: Epoch


class TellSplits(_OfGeneration, frozen=True, tag=True):
    """Every source task reports again the splits that it found and was not told to read: another coordinator leads (I1)."""


class ReadSplits(_OfGeneration, frozen=True, tag=True):
    """The processor's row lists these splits of a source's task: it reads them (I1)."""

    vertex: VertexId
    index: int
    splits: dict[SplitId, KnownSplit]


class TellEnds(_OfGeneration, frozen=True, tag=True):
    """A drain: every source task takes no more input and says where its splits end, the named ones at these offsets (I3)."""

    until: dict[str, Offset]


class Drain(_OfGeneration, frozen=True, tag=True):
    """The processor's row has the ends of a drain: the splits of this source's task are read up to them (I3, E2)."""

    vertex: VertexId
    index: int
    splits: dict[SplitId, KnownSplit]


class HoldInput(_OfGeneration, frozen=True, tag=True):
    """Sources wait (`held`) or go on: too many checkpoints wait for their release (C11, F8)."""

    held: bool


class ShareBytes(_OfGeneration, frozen=True, tag=True):
    """Bytes that each source task of the job may take in a second, of its namespace's quota (E4)."""

    shares: tuple[tuple[VertexId, int, int], ...]
    """Vertex, index, bytes a second; 0 bytes: what it likes."""


class CoordinatorBeat(Struct, frozen=True, tag=True):
    """The leader is there; a worker that hears none for long stops its tasks by its own clock (R2)."""

    leader: LeaderToken


class StopTasks(_OfGeneration, frozen=True, tag=True):
    """Every task of this job whose generation is at most this one stops at once, and writes nothing more."""


class WorkerWanted(Struct, frozen=True, tag=True):
    """To a supervisor, if there is one: one more worker of this service."""

    service: str
    there: tuple[Place, ...] = ()
    """Where workers of it are known: one that the supervisor has elsewhere is still on its way, and is waited for."""


class WorkerUnwanted(Struct, frozen=True, tag=True):
    """To a supervisor, if there is one: this worker hosts nothing and is one too many."""

    place: Place
    worker: WorkerIncarnation


class Sample(_OfGeneration, frozen=True, tag=True):
    """Tasks of the job report rows on the `samples` topic, at most `limit` each: sinks their last input, or receivers those of an edge."""

    request: str
    limit: int
    edge: EdgeId = EdgeId("")
    """The edge with receivers that read the end of their partitions; "": every sink shows its last input."""


Command = (
    Assign
    | StartSources
    | StartCheckpoint
    | AbortCheckpoint
    | CommitHint
    | TellSplits
    | ReadSplits
    | TellEnds
    | Drain
    | HoldInput
    | ShareBytes
    | StopTasks
    | CoordinatorBeat
    | Sample
    | WorkerWanted
    | WorkerUnwanted
)

# --- reports: workers to coordinator ----------------------------------------------------------------------------------


class _Process(Struct, frozen=True):
    worker: WorkerIncarnation
    place: Place
    service: str
    slots: int
    pid: int
    host: str


class Register(_Process, frozen=True, tag=True):
    """A worker's process has started; `place` names its seat over restarts (R1)."""


TAKEN: Final = "inBytes"
"""The counter of a task's beat that has the bytes of the records' values that it took in."""
SHARE: Final = "shareBytes"
"""Of a source under a quota of bytes: its share, bytes a second (E4)."""
QUOTA_MS: Final = "quotaMs"
"""For how long it has waited for the quota."""


class TaskBeat(Struct, frozen=True):
    """One task's part of a heartbeat."""

    name: ProcessorName
    job: JobId
    generation: Generation
    vertex: VertexId
    index: int
    phase: str
    epoch: Epoch
    input_watermark_ms: int
    output_watermark_ms: int
    counters: dict[str, int] = {}
    details: dict[str, str] = {}
    released: tuple[tuple[VertexId, int, Epoch], ...] = ()
    """A sink's markers, by identity that it holds. They repeat `Released`, for a coordinator that has just taken over."""
    waiting: tuple[Wait, ...] = ()
    """Reasons outside of the task that keep it from going on, or from releasing."""


class Heartbeat(_Process, frozen=True, tag=True):
    """Sent at a fixed interval; its absence loses the worker (R1)."""

    tasks: tuple[TaskBeat, ...] = ()


class Deregister(Struct, frozen=True, tag=True):
    """A worker is going away in good order, or its parent process saw it end."""

    worker: WorkerIncarnation
    reason: str = "has gone away in good order"


class Alive(Struct, frozen=True, tag=True):
    """The parent of these processes sees that they run: sent at the heartbeats' interval, whatever keeps them from beating (R1)."""

    workers: tuple[WorkerIncarnation, ...]


class Echo(Struct, frozen=True, tag=True):
    """A leader's own message among the reports: once it is read, every earlier report has been read (R1)."""

    leader: LeaderToken
    said_ms: int
    """By its monotonic clock."""


class _WorkerReport(Struct, frozen=True):
    worker: WorkerIncarnation
    job: JobId
    generation: Generation


class _TaskReport(_WorkerReport, frozen=True):
    vertex: VertexId
    index: int


class TaskRestored(_TaskReport, frozen=True, tag=True):
    """The task stands where the checkpoint left it and can receive."""


class SplitsFound(_TaskReport, frozen=True, tag=True):
    """Splits that a source's task has found and was not told to read, with where each would begin and end (I1)."""

    splits: dict[SplitId, KnownSplit]
    gone: tuple[SplitId, ...] = ()
    """Splits of its assignment that are no longer there: files that were deleted."""


class EndsFound(_TaskReport, frozen=True, tag=True):
    """A source task's splits with their ends; it reads nothing until it is told that the row has them (I3)."""

    splits: dict[SplitId, KnownSplit]


class Ack(_WorkerReport, frozen=True, tag=True):
    """The task's part of checkpoint `epoch` is durable, and the broker has all its frames up to the barrier (C7)."""

    epoch: Epoch
    handle: TaskHandle


class CheckpointWanted(_WorkerReport, frozen=True, tag=True):
    """A task asks for a checkpoint before the interval is over (F8)."""


class TaskFailed(_TaskReport, frozen=True, tag=True):
    """The task has stopped with an error. `permanent`: trying again will not help; the processor is FAILED (S6)."""

    reason: str
    permanent: bool = False
    outage: bool = False
    """Something outside is away (broker, store, target): does not count towards FAILED (C10)."""


class Released(Struct, frozen=True, tag=True):
    """A release identity's marker stands at `epoch`."""

    worker: WorkerIncarnation
    job: JobId
    vertex: VertexId
    index: int
    epoch: Epoch


Report = (
    Register
    | Heartbeat
    | Deregister
    | Alive
    | Echo
    | TaskRestored
    | SplitsFound
    | EndsFound
    | Ack
    | CheckpointWanted
    | TaskFailed
    | Released
)

# --- flow: receivers to senders (F7) ---------------------------------------------------------------------------------------


class ReadPosition(Struct, frozen=True):
    """The receiver of a partition of an edge has taken all below `offset` from the log."""

    incarnation: Incarnation
    partition: int
    offset: Offset
    snapshot: Epoch = NO_EPOCH
    """All frames of the partition up to this epoch have been applied."""
    watermark_ms: int = MIN_TIME
    """Its input watermark, then or later."""
    full: bool = False
    """The task keeps so many rows for the watermark that senders ahead of it should wait."""


class ReadPositions(Struct, frozen=True):
    """The positions up to which one worker's tasks have read, on the `flow` topic; only the highest of each partition counts."""

    positions: tuple[ReadPosition, ...]


# --- requests: users (command line, control service) to coordinator ----------------------------------------------------


class _OfRequest(Struct, frozen=True):
    request: str
    name: ProcessorName


class OfJob(_OfRequest, frozen=True, kw_only=True):
    """A request about a processor that is there."""

    job: str = ""
    """The job that who asks has seen: refused where the processor of this name has another one by now. Empty: whichever it has."""


def another_job(seen: str, job: str) -> str:
    """What became of the job that somebody has seen; "" where the processor has it still, or nobody names one."""
    if seen in ("", job):
        return ""
    return f"was dropped and made anew, or began without state, since you looked (its job was {seen[:100]})"


class CreateProcessor(_OfRequest, frozen=True, tag=True):
    """Register a processor; `parallelism` by vertex or by service (`source`, `operator`, `sink`), default 1."""

    document: str
    parallelism: dict[str, int] = {}


class CreateRunning(CreateProcessor, frozen=True, tag=True):
    """Register a processor that runs; where it may not run, none is registered."""


class StartProcessor(OfJob, frozen=True, tag=True):
    """Start, from the last checkpoint unless `resume` is false."""

    resume: bool = True
    checkpoint: str = ""
    """From the kept checkpoint of this name instead, by the document and the parallelism that the processor had then (E2)."""


class StopProcessor(OfJob, frozen=True, tag=True):
    """Stop; with `drain` the input ends (at `until` by split, else at its present end) and everything is released (E2)."""

    drain: bool = False
    until: dict[str, Offset] = {}


class ModifyProcessor(OfJob, frozen=True, tag=True):
    """Replace the document or the parallelism: a new plan version, at a checkpoint."""

    document: str | None = None
    parallelism: dict[str, int] | None = None
    resume_from_checkpoint: bool = True
    replaces: str = ""
    """`document_digest` of the document that the change was made from: refused where another is there, or waits for a checkpoint."""


class DropProcessor(OfJob, frozen=True, tag=True):
    """Forget a stopped processor and delete all that it stored."""


class SkipRelease(OfJob, frozen=True, tag=True):
    """Pass over the records of commit `epoch` that a target refuses, at the processor's next start; the rest is released (S6)."""

    epoch: Epoch
    vertex: VertexId | None = None
    """The sink; None: every one that has not released the commit."""


class KeepCheckpoint(OfJob, frozen=True, tag=True):
    """Keep the last checkpoint under a name; while channels carry frames in it, the next one waits for all barriers (C11, C13)."""

    checkpoint: str


class ForgetCheckpoint(OfJob, frozen=True, tag=True):
    """A kept checkpoint is no longer needed (C11)."""

    checkpoint: str


class SampleProcessor(_OfRequest, frozen=True, tag=True):
    """Show some documents of a running processor: `Sampled` come on the `samples` topic, one a sink task, or a receiver of the edge."""

    limit: int = 10
    edge: EdgeId = EdgeId("")
    """The edge of the rows; "": the output."""


NO_CONNECTION: Final = "none"
"""In the place of a connection's digest: there is none."""


class PutConnection(_OfRequest, frozen=True, tag=True):
    """Write the connection of this name, which stages of later documents may name, into the registry, or delete it.

    Existing processors keep the connection as it was when they were planned.
    """

    value: str | None
    """JSON, as in a document's `connections`; None: it goes."""
    replaces: str = ""
    """`connection_digest` of the one that the change was made from, or NO_CONNECTION; empty: whatever is there.

    Refused where another is there, neither this one nor what the change makes: it may be asked again.
    """


Request = (
    CreateProcessor
    | CreateRunning
    | StartProcessor
    | StopProcessor
    | ModifyProcessor
    | DropProcessor
    | SkipRelease
    | KeepCheckpoint
    | ForgetCheckpoint
    | SampleProcessor
    | PutConnection
)


class Sampled(Struct, frozen=True):
    """A task's part of a sample: documents as they came in, extended JSON; not all of them need be committed yet."""

    request: str
    vertex: VertexId
    index: int
    documents: tuple[bytes, ...]
    """Of an edge: its rows with what their frames say of them (`shared/runtime/sampling.py`)."""
    edge: EdgeId = EdgeId("")
    trouble: str = ""
    """Why there are none, or not all."""


class Answered(_OfRequest, frozen=True, tag=True):
    """A request has been decided: `error` is empty, or says why not."""

    error: str


# --- registry: records of the compacted topic, by processor name --------------------------------------------------------

IDLE_STATES: Final = frozenset({"CREATED", "STOPPED", "FINISHED", "FAILED"})
"""States in which no generation runs."""


class ProcessorStatus(Struct, frozen=True):
    """A processor as users see it."""

    name: ProcessorName
    job: JobId
    state: str
    """CREATED, STARTING, RUNNING, STOPPING, STOPPED, FINISHED or FAILED."""
    reason: str
    generation: Generation
    last: Epoch
    released: Epoch
    plan_version: int
    document: str
    parallelism: dict[str, int]
    """As it was asked for last: what waits for a checkpoint counts."""
    tasks: tuple[tuple[VertexId, int, Place], ...] = ()
    answers: tuple[tuple[str, str], ...] = ()
    """The last requests for this processor: (request id, "" or the error); bounded."""
    commits: int = 0
    """Checkpoints committed in the life of the job."""
    services: dict[VertexId, str] = {}
    """Which service runs a vertex."""
    epoch_ms: int = 0
    """How long the last committed checkpoint took, from its start, ms."""
    changes: int = 0
    """How often state, generation or job have changed in the life of the processor: tells two stays in one state apart."""
    checkpoints: tuple[tuple[str, Epoch], ...] = ()
    """Those that are kept, by the names that users gave them."""
