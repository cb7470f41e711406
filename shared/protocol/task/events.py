"""Events of a task. Frozen; the driver hands them in one at a time; a work command is answered by exactly one `Done`."""

from dataclasses import dataclass

from tidemark.shared.model.checkpoint import BlobRef, PartHandle
from tidemark.shared.model.frames import Body, Frame
from tidemark.shared.model.ids import NO_EPOCH, EdgeId, Epoch, Offset, Seq


@dataclass(frozen=True, slots=True)
class Emission:
    """Rows for one partition of one out edge, encoded or durable by reference."""

    edge: EdgeId
    partition: int
    bodies: tuple[Body, ...]
    size_bytes: int
    """Of the data, those in segments included (F8)."""


@dataclass(frozen=True, slots=True)
class FrameRead:
    """The next record of the task's partition of an in edge."""

    edge: EdgeId
    offset: Offset
    frame: Frame
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Done:
    """A work command (Apply, Advance, FireProcessingTime, Flush) has been carried out."""

    ticket: int
    emissions: tuple[Emission, ...]
    output_watermark_ms: int
    next_processing_ms: int
    batching: bool = False
    """Rows are held until the epoch ends: the task is not idle (W3)."""
    unfinished: bool = False
    """Of an Advance: a piece of it is done, and it is to be given again, with the same watermark."""


@dataclass(frozen=True, slots=True)
class Produced:
    """A source has read and processed input. `idle`: all of its splits are; `ended`: all have ended (E1)."""

    emissions: tuple[Emission, ...]
    output_watermark_ms: int
    idle: bool
    ended: bool
    taken_rows: int = 0
    """Rows that were taken of the input."""
    held_rows: int = 0
    """Held for the next barrier (F9)."""


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """Answer to TakeSnapshot: the state has been copied, and processing may go on."""

    ticket: int


@dataclass(frozen=True, slots=True)
class StateDurable:
    """The state of snapshot `epoch` is durable (C7)."""

    epoch: Epoch
    parts: tuple[PartHandle, ...]
    blobs: tuple[BlobRef, ...]
    staged: bytes
    listed: BlobRef | None = None
    """Where the list of the parts lies, which is too large for an acknowledgement."""


@dataclass(frozen=True, slots=True)
class BrokerAcked:
    """The broker has a frame (acks=all); in order of seq for each partition."""

    edge: EdgeId
    partition: int
    seq: Seq
    offset: Offset


@dataclass(frozen=True, slots=True)
class ReadUpTo:
    """The receiver of a partition of an out edge has taken all below `offset` from the log (F7)."""

    edge: EdgeId
    partition: int
    offset: Offset


@dataclass(frozen=True, slots=True)
class CheckpointStarted:
    """The coordinator starts checkpoint `epoch`; `committed` is the last committed one.

    aligned: channels must have no state in it, for something changes behind it (C13, R4).
    """

    epoch: Epoch
    committed: Epoch
    aligned: bool = False


@dataclass(frozen=True, slots=True)
class SourcesStarted:
    """Sources may take input. Carries the time that an epoch may take behind its barrier, and rows of the first one (F9)."""

    target_ms: int
    first_rows: int


@dataclass(frozen=True, slots=True)
class EpochTook:
    """How long an epoch took from its start until it was released, and a later one that takes too long until now (F9)."""

    epoch: Epoch
    took_ms: int
    late: Epoch = NO_EPOCH
    late_ms: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """The coordinator has given up checkpoint `epoch`."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """Checkpoint `epoch` is committed, as a hint or the mirror told (C9)."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class InputHeld:
    """The coordinator holds checkpoints back until sinks have released (C11): a source waits too (F8)."""

    held: bool


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time goes on: wall clock, ms (W5 makes it never fall)."""

    now_ms: int
    monotonic_ms: int = 0


Event = (
    FrameRead
    | Done
    | Produced
    | SnapshotTaken
    | StateDurable
    | BrokerAcked
    | ReadUpTo
    | CheckpointStarted
    | SourcesStarted
    | EpochTook
    | CheckpointAborted
    | CheckpointCommitted
    | InputHeld
    | Ticked
)
