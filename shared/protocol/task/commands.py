"""Commands of the task machine to its driver. Frozen; to be carried out in order.

Work commands carry a ticket: the driver answers each with one event of the same ticket, and the machine starts no other work until
then. All other commands have no answer, or one that comes much later (BrokerAcked, StateDurable).
"""

from dataclasses import dataclass

from tidemark.shared.model.checkpoint import BlobRef, PartHandle, TaskProtocolState
from tidemark.shared.model.frames import Body, Frame
from tidemark.shared.model.ids import EdgeId, Epoch, Offset


@dataclass(frozen=True, slots=True)
class Apply:
    """Work: give rows to the operators."""

    ticket: int
    edge: EdgeId
    bodies: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class Advance:
    """Work: the input watermark is now this, ms. MAX_TIME is the end of input: give out all that is left, for END follows.

    A step task runs its last step here, not at Flush (E1). Where a watermark lets much come due, the body may do a piece of it: then the
    same command follows, until `Done` says that nothing is left.
    """

    ticket: int
    watermark_ms: int


@dataclass(frozen=True, slots=True)
class FireProcessingTime:
    """Work: processing time is now this, ms."""

    ticket: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Work: epoch `epoch` is complete; give out the rows held for batching; a step task runs its step (P1)."""

    ticket: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Work, answered by SnapshotTaken: copy the state; then make it durable beside and say StateDurable (C6, C7)."""

    ticket: int
    epoch: Epoch
    committed: Epoch
    """The last committed checkpoint as the start command named it: the ack holds all that was staged or changed after it (C5)."""


@dataclass(frozen=True, slots=True)
class Send:
    """Write a frame to a partition, in the order of these commands (F2)."""

    edge: EdgeId
    partition: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class Seek:
    """Read the task's partition of an in edge again from here (C4); frames of it that were read ahead must not come any more."""

    edge: EdgeId
    offset: Offset


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Checkpoint `epoch` is complete here (C7): report it with the handle made of this and the durable state."""

    epoch: Epoch
    protocol: TaskProtocolState
    parts: tuple[PartHandle, ...]
    blobs: tuple[BlobRef, ...]
    staged: bytes
    listed: BlobRef | None = None
    """As in `StateDurable`: the handle has this instead of the parts."""


@dataclass(frozen=True, slots=True)
class AskCheckpoint:
    """Ask the coordinator for a checkpoint before its time (F8)."""


@dataclass(frozen=True, slots=True)
class StopAsZombie:
    """A newer generation is at work: stop at once, write nothing more (L2)."""

    seen_generation: int


@dataclass(frozen=True, slots=True)
class InputEnded:
    """END has been sent everywhere; only barriers go on (E1)."""


Command = (
    Apply
    | Advance
    | FireProcessingTime
    | Flush
    | TakeSnapshot
    | Send
    | Seek
    | Acknowledge
    | AskCheckpoint
    | StopAsZombie
    | InputEnded
)
