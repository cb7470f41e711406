"""Events of the coordinator. Frozen; the driver hands them in one at a time, each with the monotonic time in ms."""

from dataclasses import dataclass, field

from tidemark.shared.model.checkpoint import BlobRef, CommitRow, LineageEntry
from tidemark.shared.model.ids import EdgeId, Epoch, JobId, LeaderToken, Offset, ProcessorName, VertexId
from tidemark.shared.model.messages import KEY_GROUPS, Report, Request
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.protocol.coordinator.commands import OpId


@dataclass(frozen=True, slots=True)
class StoredProcessor:
    """A processor as a new leader reads it, after it has taken leadership."""

    row: ProcessorRow
    lineage: tuple[LineageEntry, ...]
    """Of the row's job, oldest first."""
    commits: tuple[CommitRow, ...]
    """All that are kept of the row's job, oldest first."""
    mirrored: Epoch
    """The highest checkpoint of the row's job in the `commits` topic, read to its end; 0 for none (C9)."""
    rows: tuple[tuple[Epoch, Offset], ...] = ()
    """Where the rows of kept commits lie in it, in the order of commits."""


@dataclass(frozen=True, slots=True)
class _At:
    now_ms: int


@dataclass(frozen=True, slots=True)
class _OfOperation(_At):
    op: OpId


@dataclass(frozen=True, slots=True)
class _FailureEvent(_OfOperation):
    reason: str


@dataclass(frozen=True, slots=True)
class LeadershipTaken(_At):
    """This coordinator leads, and has read everything since."""

    token: LeaderToken
    processors: tuple[StoredProcessor, ...]
    mark: str = ""
    """The prefix of the ids that this installation gives (C12)."""


@dataclass(frozen=True, slots=True)
class LeadershipLost(_At):
    """The lease is no longer ours."""


@dataclass(frozen=True, slots=True)
class Tick(_At):
    """Time goes on; at least a few times in each checkpoint interval."""

    read_to_ms: int | None = None
    """Reports that were made before this have been read; None: all that were made."""


@dataclass(frozen=True, slots=True)
class ReportReceived(_At):
    """A worker has spoken."""

    report: Report


@dataclass(frozen=True, slots=True)
class RequestReceived(_At):
    """A user wants something."""

    request: Request


@dataclass(frozen=True, slots=True)
class AnswerTold(_At):
    """The brokers have the answer to a request."""

    request: str


@dataclass(frozen=True, slots=True)
class StoreDone(_OfOperation):
    """The change is durable; exactly one row was touched (C8)."""


@dataclass(frozen=True, slots=True)
class StoreStale(_OfOperation):
    """The row was not as expected (a taken name, for `StoreCreate`); nothing was changed."""


@dataclass(frozen=True, slots=True)
class StoreAmbiguous(_OfOperation):
    """The answer was lost: the change may or may not have happened (C8)."""


@dataclass(frozen=True, slots=True)
class StoreAway(_OfOperation):
    """The store cannot be reached; nothing was changed."""


@dataclass(frozen=True, slots=True)
class StoreRefused(_FailureEvent):
    """What is there does not let the request through; nothing was changed. `reason` is for the user."""


@dataclass(frozen=True, slots=True)
class MirrorAppended(_At):
    """The broker has the row (C9)."""

    job: JobId
    epoch: Epoch
    offset: Offset = Offset(0)  # noqa: RUF009 - a number
    """Where it lies."""


@dataclass(frozen=True, slots=True)
class MirrorFailed(_At):
    """The row may or may not be there; it will be appended again: repeats are harmless (C9)."""

    job: JobId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class PlannedVertex:
    """A vertex of a plan: which service runs it, as how many tasks."""

    id: VertexId
    service: str
    tasks: int


@dataclass(frozen=True, slots=True)
class PlannedEdge:
    """An edge of a plan."""

    id: EdgeId
    sender: VertexId
    receiver: VertexId


@dataclass(frozen=True, slots=True)
class PlannedPipeline:
    """The result of planning a document, as far as the coordinator needs it."""

    document: str
    """Canonical, environment variables put in; workers plan again from it."""
    vertices: tuple[PlannedVertex, ...]
    edges: tuple[PlannedEdge, ...]
    key_groups: int = KEY_GROUPS
    checkpoint_interval_ms: int | None = None
    """The document's; None for the default."""
    names: dict[str, VertexId] = field(default_factory=dict)
    """See `RunningPlan.names`."""
    code: bytes = b""
    """See `RunningPlan.code`."""
    code_digest: str = ""


@dataclass(frozen=True, slots=True)
class PlanMade(_OfOperation):
    """Answer to `MakePlan`."""

    plan: PlannedPipeline


@dataclass(frozen=True, slots=True)
class PlanRefused(_FailureEvent):
    """Answer to `MakePlan`: the document cannot run, or its state cannot be kept."""


@dataclass(frozen=True, slots=True)
class TopicsReady(_OfOperation):
    """Answer to `CreateTopics`."""


@dataclass(frozen=True, slots=True)
class TopicsFailed(_FailureEvent):
    """Answer to `CreateTopics`. `permanent`: the broker refuses, waiting does not help."""

    permanent: bool = False


@dataclass(frozen=True, slots=True)
class BlobsWritten(_OfOperation):
    """Answer to `WriteBlobs`: references in its order."""

    refs: tuple[BlobRef, ...]


@dataclass(frozen=True, slots=True)
class BlobsFailed(_FailureEvent):
    """Answer to `WriteBlobs`: tried again under other names."""


@dataclass(frozen=True, slots=True)
class Deleted(_OfOperation):
    """Answer to the Delete commands."""


@dataclass(frozen=True, slots=True)
class DeletionFailed(_FailureEvent):
    """Answer to the Delete commands: tried again later."""


@dataclass(frozen=True, slots=True)
class StatusFound(_At):
    """The registry has a word about a processor that is another leader's (C8).

    `overtaken`: it lies behind the words of this leader, so those that keep the last word alone have lost them.
    """

    name: ProcessorName
    overtaken: bool


@dataclass(frozen=True, slots=True)
class OutageSeen(_At):
    """The driver cannot reach the broker or the blob store; repeated while it lasts (C10: time-outs during an outage do not count)."""

    what: str = field(default="broker")


CoordinatorEvent = (
    LeadershipTaken
    | LeadershipLost
    | Tick
    | ReportReceived
    | RequestReceived
    | AnswerTold
    | StoreDone
    | StoreStale
    | StoreAmbiguous
    | StoreAway
    | StoreRefused
    | MirrorAppended
    | MirrorFailed
    | PlanMade
    | PlanRefused
    | TopicsReady
    | TopicsFailed
    | BlobsWritten
    | BlobsFailed
    | Deleted
    | DeletionFailed
    | StatusFound
    | OutageSeen
)
