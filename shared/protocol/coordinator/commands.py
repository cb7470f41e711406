"""Commands of the coordinator machine to its driver. Frozen; to be carried out in order.

A command with an `op` is answered by exactly one event that carries it; the driver need not wait for one answer before it goes on to
the next command. Publications (`Publish`, `PublishStatus`, `RetractStatus`, `Answer`) keep their order, are retried while the broker is
away, and have no answer. After `TakeLeadership` the machine ignores answers to earlier commands.
"""

from dataclasses import dataclass
from typing import NewType

from tidemark.shared.model.checkpoint import CommitRow, LineageEntry, MirrorRow
from tidemark.shared.model.ids import Epoch, Generation, JobId, LeaderToken, Offset, ProcessorName
from tidemark.shared.model.messages import Command, ProcessorStatus, RunningPlan
from tidemark.shared.model.processors import Expected, ProcessorRow

OpId = NewType("OpId", int)
"""Number of a command that is answered; never used twice by one machine."""


@dataclass(frozen=True, slots=True)
class TakeLeadership:
    """Take leadership anew, then read rows, lineage, commits and mirror, and say `LeadershipTaken` (C8); or stay a standby."""

    reason: str


@dataclass(frozen=True, slots=True)
class ProveLeadership:
    """Others have seen more than the store has: it has lost that, if it still renews this lease; else another leads (C8)."""

    contradiction: str


@dataclass(frozen=True, slots=True)
class _Operation:
    op: OpId


@dataclass(frozen=True, slots=True)
class _Change(_Operation):
    expected: Expected


@dataclass(frozen=True, slots=True)
class StoreCreate(_Operation):
    """`CommitStore.create`."""

    row: ProcessorRow


@dataclass(frozen=True, slots=True)
class StoreUpdate(_Change):
    """`CommitStore.update`."""

    row: ProcessorRow


@dataclass(frozen=True, slots=True)
class StoreNewGeneration(_Change):
    """`CommitStore.new_generation`; the row may have a new job (E2)."""

    row: ProcessorRow
    entry: LineageEntry


@dataclass(frozen=True, slots=True)
class StoreCommit(_Change):
    """`CommitStore.commit`."""

    row: ProcessorRow
    commit: CommitRow


@dataclass(frozen=True, slots=True)
class StoreDrop(_Change):
    """`CommitStore.drop`."""


@dataclass(frozen=True, slots=True)
class StoreForget(_Operation):
    """`CommitStore.forget_commits`: nothing resumes from these or releases them any more (C11)."""

    leader: LeaderToken
    job: JobId
    epochs: tuple[Epoch, ...]
    generations: tuple[Generation, ...] = ()
    """Entries of the lineage that go, too: other entries say the same, or nobody asks for them any more (L1)."""


@dataclass(frozen=True, slots=True)
class StoreConnection(_Operation):
    """`CommitStore.put_connection`, then tell the connections topic, without secrets."""

    leader: LeaderToken
    name: str
    value: str | None
    replaces: str = ""
    """See `PutConnection`."""


@dataclass(frozen=True, slots=True)
class AppendMirror:
    """Append to the `commits` topic; answered by `MirrorAppended` once the broker has it, or `MirrorFailed` (C9)."""

    row: MirrorRow


@dataclass(frozen=True, slots=True)
class Publish:
    """To the workers."""

    command: Command


@dataclass(frozen=True, slots=True)
class PublishStatus:
    """To the registry."""

    status: ProcessorStatus


@dataclass(frozen=True, slots=True)
class RetractStatus:
    """The processor is gone: its entry in the registry is deleted."""

    name: ProcessorName


@dataclass(frozen=True, slots=True)
class Answer:
    """A request has been decided: `error` is empty, or says why not."""

    request: str
    name: ProcessorName
    error: str


@dataclass(frozen=True, slots=True)
class MakePlan(_Operation):
    """Plan a document; answered by `PlanMade` or `PlanRefused`. `previous`: the plan that runs or ran, if its state is to be kept."""

    name: ProcessorName
    document: str
    parallelism: dict[str, int]
    previous: RunningPlan | None


@dataclass(frozen=True, slots=True)
class TopicWanted:
    """A topic of an edge, with as many partitions as the receiving vertex has tasks."""

    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class CreateTopics(_Operation):
    """Make topics that may exist already, and the job's mirror; answered by `TopicsReady` or `TopicsFailed`."""

    job: JobId
    topics: tuple[TopicWanted, ...]


@dataclass(frozen=True, slots=True)
class DeleteTopics(_Operation):
    """Delete those that exist; answered by `Deleted` or `DeletionFailed`."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Floor:
    """Records of a partition below `offset` may go."""

    topic: str
    partition: int
    offset: Offset


@dataclass(frozen=True, slots=True)
class DeleteRecords(_Operation):
    """Delete below these offsets; answered by `Deleted` or `DeletionFailed` (C12)."""

    floors: tuple[Floor, ...]


@dataclass(frozen=True, slots=True)
class TrimMirror(_Operation):
    """Delete the rows of a job's mirror below an offset; answered by `Deleted` or `DeletionFailed` (C9, C12)."""

    job: JobId
    before: Offset


@dataclass(frozen=True, slots=True)
class DeleteBlobs(_Operation):
    """Delete the names below `<job>/` of which `retention.blob_may_go` says so; answered by `Deleted` or `DeletionFailed` (C12).

    `up_to`: the last committed checkpoint; None: the whole job goes.
    """

    job: JobId
    up_to: Epoch | None
    keep: frozenset[str]


@dataclass(frozen=True, slots=True)
class BlobWanted:
    """An object to create."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class WriteBlobs(_Operation):
    """Make these durable; answered by `BlobsWritten`, references in the same order, or `BlobsFailed` (C7)."""

    blobs: tuple[BlobWanted, ...]


CoordinatorCommand = (
    TakeLeadership
    | ProveLeadership
    | StoreCreate
    | StoreUpdate
    | StoreNewGeneration
    | StoreCommit
    | StoreDrop
    | StoreForget
    | StoreConnection
    | AppendMirror
    | Publish
    | PublishStatus
    | RetractStatus
    | Answer
    | MakePlan
    | CreateTopics
    | DeleteTopics
    | DeleteRecords
    | TrimMirror
    | DeleteBlobs
    | WriteBlobs
)
