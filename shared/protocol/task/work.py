"""The work that a task machine has under way and before it.

It has at most one piece of work at a time, from its command to the driver's answer; an agenda of the next items; and at most one snapshot
that is taken but not yet acknowledged.
"""

from dataclasses import dataclass

from tidemark.shared.model.checkpoint import TaskProtocolState
from tidemark.shared.model.ids import EdgeId, Epoch, Seq
from tidemark.shared.protocol.task.events import FrameRead, StateDurable
from tidemark.shared.protocol.task.receiver import ChannelReceiver, InputPartition, WaitingFrame


@dataclass(frozen=True, slots=True)
class Applying:
    """Rows of a frame; its watermark counts once they have been applied (F4)."""

    channel: ChannelReceiver
    watermark_ms: int


@dataclass(frozen=True, slots=True)
class Advancing:
    """The input watermark; `final`: all inputs have ended (E1)."""

    final: bool


@dataclass(frozen=True, slots=True)
class Firing:
    """Work that is due by processing time."""


@dataclass(frozen=True, slots=True)
class Flushing:
    """The end of an epoch; `committed` as the checkpoint's start command named it (C5)."""

    epoch: Epoch
    committed: Epoch


@dataclass(frozen=True, slots=True)
class Copying:
    """A snapshot that is being taken."""

    epoch: Epoch
    committed: Epoch


Work = Applying | Advancing | Firing | Flushing | Copying


@dataclass(frozen=True, slots=True)
class Regate:
    """A frame that waited for a checkpoint which has ended (C4)."""

    partition: InputPartition
    waiting: WaitingFrame


@dataclass(frozen=True, slots=True)
class HeardStart:
    """The coordinator's word to take a checkpoint, and when it was heard by the monotonic clock (C2, C13)."""

    epoch: Epoch
    committed: Epoch
    since_ms: int


AgendaItem = FrameRead | Regate


@dataclass(slots=True)
class PendingAck:
    """A snapshot that has been taken: waits for its state to be durable and its frames to be at the broker (C7)."""

    epoch: Epoch
    protocol: TaskProtocolState
    behind: tuple[tuple[EdgeId, int, Seq], ...]
    """Seqs that the broker must have all below of, by edge and partition."""
    durable: StateDurable | None = None
