"""The receiving side of a task: one partition of each in edge, a channel for each sender of it.

Rules kept here: F1 (seq: repeat, gap), F3 (a frame's epoch), L1, L2, C3 (nothing of epoch > n before snapshot n), C4 (never pause a
shared partition: buffer, then leave in the log and seek back), C5 (the end of an epoch), W3 (by `tidemark.shared.protocol.watermarks`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidemark.shared.model.checkpoint import ChannelState, InputState
from tidemark.shared.model.frames import BarrierFrame, Frame
from tidemark.shared.model.ids import FIRST_SEQ, NO_EPOCH, EdgeId, Epoch, Incarnation, Offset, Seq, TaskId
from tidemark.shared.protocol.errors import PeerError, require
from tidemark.shared.protocol.lineage import Lineage, Verdict
from tidemark.shared.protocol.watermarks import InputProgress


@dataclass(slots=True)
class ChannelReceiver:
    """The receiver's knowledge of one sender on one partition."""

    sender: TaskId
    next_seq: Seq
    restored_seq: Seq
    last_barrier: Epoch
    """Of the frames accepted so far, those that wait included: the next are of epoch `last_barrier + 1` (F3)."""
    progress: InputProgress = field(default_factory=InputProgress)
    taken_seq: Seq = FIRST_SEQ
    """The seq behind the last frame that was delivered; a snapshot holds it (F1)."""
    taken_barrier: Epoch = NO_EPOCH
    """The last barrier that was delivered."""
    blocked: bool = False
    """Its barrier of the checkpoint being aligned has come: later frames wait (C3)."""


@dataclass(frozen=True, slots=True)
class WaitingFrame:
    """A frame that has passed the lineage and seq checks and waits for its epoch (C4)."""

    offset: Offset
    frame: Frame
    size_bytes: int


@dataclass(slots=True)
class InputPartition:
    """The task's partition of one in edge."""

    edge: EdgeId
    incarnation: Incarnation
    channels: dict[TaskId, ChannelReceiver]
    next_offset: Offset
    waiting: list[WaitingFrame] = field(default_factory=list)
    left_behind: Offset | None = None
    """The first frame that did not fit into the buffer (C4)."""

    def resume_offset(self) -> Offset:
        """The first record that is not part of the snapshot now taken."""
        candidates = [self.next_offset]
        if self.waiting:
            candidates.append(self.waiting[0].offset)
        if self.left_behind is not None:
            candidates.append(self.left_behind)
        return min(candidates)

    def state(self) -> InputState:
        """The state as the snapshot holds it: seqs counted behind the last delivered frame (F1, C6)."""
        return InputState(
            edge=self.edge,
            incarnation=self.incarnation,
            resume_offset=self.resume_offset(),
            channels=tuple(
                ChannelState(
                    sender_vertex=c.sender.vertex,
                    sender_index=c.sender.index,
                    next_seq=c.taken_seq,
                    last_barrier=c.taken_barrier,
                    watermark_ms=c.progress.watermark_ms,
                    idle=c.progress.idle,
                    ended=c.progress.ended,
                )
                for c in self.channels.values()
            ),
        )

    def validate(self, aligning: Epoch | None) -> None:
        """Raise LocalError if the partition contradicts itself, or the checkpoint that is being aligned."""
        offsets = [w.offset for w in self.waiting]
        channels = self.channels.values()
        claims = {
            "frames wait in the order of the log": offsets == sorted(set(offsets)),
            "what waits was read": not offsets or offsets[-1] < self.next_offset,
            "what waits comes before what is left": self.left_behind is None
            or not offsets
            or offsets[-1] < self.left_behind,
            "what is left was read": self.left_behind is None or self.left_behind < self.next_offset,
            "frames wait and are left only for a checkpoint": aligning is not None
            or not (offsets or self.left_behind is not None or any(c.blocked for c in channels)),
            "a frame waits only for a checkpoint, and where its channel is blocked": (
                aligning is not None and all(self.channels[w.frame.header.sender].blocked for w in self.waiting)
            )
            or not self.waiting,
            "seqs go up": all(max(c.restored_seq, c.taken_seq) <= c.next_seq for c in channels),
        }
        require(f"edge {self.edge}", claims)


@dataclass(frozen=True, slots=True)
class Deliver:
    """The frame counts and its epoch is open."""

    channel: ChannelReceiver
    frame: Frame


@dataclass(frozen=True, slots=True)
class DropFrame:
    """The frame does not count (L1) or was seen before (F1); it is counted."""

    why: str


@dataclass(frozen=True, slots=True)
class WaitFrame:
    """The frame waits, in the buffer or in the log. `ends`: it is a barrier that ends the epoch being aligned (C5)."""

    ends: Epoch | None


@dataclass(frozen=True, slots=True)
class Zombie:
    """The frame shows that a newer generation is at work (L2)."""

    generation: int


Admission = Deliver | DropFrame | WaitFrame | Zombie


def _place(partition: InputPartition, offset: Offset, frame: Frame) -> str:
    h = frame.header
    return f"edge {partition.edge} offset {offset}: frame seq {h.seq} epoch {h.epoch} generation {h.generation} of {h.sender}"


@dataclass(slots=True)
class Receiver:
    """All inputs of a task. `aligning` is the checkpoint whose barriers are being collected; None between."""

    lineage: Lineage
    partitions: dict[EdgeId, InputPartition]
    waiting_bytes_max: int
    waiting_bytes: int = 0
    aligning: Epoch | None = None
    ended_up_to: Epoch = NO_EPOCH
    """Checkpoints up to here have ended here: snapshot taken, aborted, or overtaken by a later barrier (C5)."""

    def channels(self) -> Iterator[ChannelReceiver]:
        """Every channel of every input."""
        for partition in self.partitions.values():
            yield from partition.channels.values()

    def admit(self, edge: EdgeId, offset: Offset, frame: Frame, size_bytes: int) -> Admission:
        """Judge a frame as read from the log: lineage first, then seq, then its epoch."""
        partition = self.partitions[edge]
        if offset < partition.next_offset:
            return DropFrame("reread")
        partition.next_offset = Offset(offset + 1)
        header = frame.header
        match self.lineage.judge(header.generation, header.epoch):
            case Verdict.ZOMBIE:
                return Zombie(header.generation)
            case Verdict.DISCARDED:
                return DropFrame("discarded_by_lineage")
            case Verdict.COUNTS:
                pass
        channel = partition.channels.get(header.sender)
        if channel is None or header.edge != partition.incarnation:
            known = f"{sorted(map(str, partition.channels))} on {partition.incarnation}"
            message = f"{_place(partition, offset, frame)}: expected one of {known}"
            raise PeerError(message)
        if partition.left_behind is not None and channel.blocked:
            return WaitFrame(self._ended_by(frame))
        if not self._in_sequence(partition, channel, offset, frame):
            return DropFrame("repeated")
        return self._accept(partition, channel, WaitingFrame(offset, frame, size_bytes))

    def _in_sequence(self, partition: InputPartition, channel: ChannelReceiver, offset: Offset, frame: Frame) -> bool:
        """F1: False for a repeat; PeerError for a gap, or for a repeat that only a wrongly restored sender could write."""
        header = frame.header
        if header.seq < channel.next_seq:
            if header.seq < channel.restored_seq and header.generation > self.lineage.snapshot_generation:
                message = (
                    f"{_place(partition, offset, frame)}: a sender restored from the same checkpoint goes on at seq "
                    f"{channel.restored_seq}; its state and ours are of different checkpoints"
                )
                raise PeerError(message)
            return False
        if header.seq > channel.next_seq:
            missing = header.seq - channel.next_seq
            message = (
                f"{_place(partition, offset, frame)}: expected seq {channel.next_seq}; {missing} frames are missing"
            )
            raise PeerError(message)
        barrier = isinstance(frame, BarrierFrame)
        if (header.epoch <= channel.last_barrier) if barrier else (header.epoch != channel.last_barrier + 1):
            message = f"{_place(partition, offset, frame)}: its sender's last barrier was {channel.last_barrier} (F3)"
            raise PeerError(message)
        return True

    def _accept(self, partition: InputPartition, channel: ChannelReceiver, candidate: WaitingFrame) -> Admission:
        """C3, C4 on a frame that counts: deliver it; where its channel's barrier has come, let it wait in the buffer or in the log."""
        if channel.blocked and self.waiting_bytes + candidate.size_bytes > self.waiting_bytes_max:
            partition.left_behind = candidate.offset
            return WaitFrame(self._ended_by(candidate.frame))
        header = candidate.frame.header
        channel.next_seq = Seq(header.seq + 1)
        if isinstance(candidate.frame, BarrierFrame):
            channel.last_barrier = header.epoch
        return self.gate(partition, candidate)

    def gate(self, partition: InputPartition, candidate: WaitingFrame) -> Admission:
        """Deliver an accepted frame, or let it wait for its epoch (again)."""
        channel = partition.channels[candidate.frame.header.sender]
        if not channel.blocked:
            channel.taken_seq = Seq(candidate.frame.header.seq + 1)
            return Deliver(channel, candidate.frame)
        partition.waiting.append(candidate)
        self.waiting_bytes += candidate.size_bytes
        return WaitFrame(self._ended_by(candidate.frame))

    def _ended_by(self, frame: Frame) -> Epoch | None:
        """C5: BARRIER m > n ends n on being read, also while it waits or is left behind."""
        if isinstance(frame, BarrierFrame) and self.aligning is not None and frame.header.epoch > self.aligning:
            return self.aligning
        return None

    def barrier(self, channel: ChannelReceiver, epoch: Epoch) -> Epoch | None:
        """BARRIER `epoch` has been delivered. Returns the checkpoint that it ended, if any; look at `aligned` next."""
        channel.taken_barrier = epoch
        ended = None
        if epoch <= self.ended_up_to:
            return None
        if self.aligning is not None:
            if epoch < self.aligning:
                return None
            if epoch > self.aligning:
                ended = self.aligning
                self.ended_up_to = ended
                self._unblock()
        self.aligning = epoch
        channel.blocked = True
        return ended

    def cut(self, epoch: Epoch) -> bool:
        """C13: the frames of `epoch` that have not come from the channels are their state. False if it has ended here, or has not begun.

        Every channel waits until the snapshot is taken, as behind a barrier; a checkpoint that was being aligned has ended.
        """
        if epoch <= self.ended_up_to or (self.aligning is not None and epoch < self.aligning):
            return False
        if self.aligning is not None and self.aligning < epoch:
            self.ended_up_to = self.aligning
        self.aligning = epoch
        for channel in self.channels():
            channel.blocked = True
        return True

    def passed(self, edge: EdgeId) -> Epoch:
        """All frames of an edge up to this epoch have been delivered."""
        return min(channel.taken_barrier for channel in self.partitions[edge].channels.values())

    def aligned(self) -> Epoch | None:
        """The checkpoint to take: its barrier has come from every sender on every partition (C3), or is not waited for (C13)."""
        return self.aligning if self.aligning is not None and all(c.blocked for c in self.channels()) else None

    def end(self, epoch: Epoch) -> bool:
        """Checkpoint `epoch` has ended here; True if it was being aligned, and frames that waited may go on."""
        self.ended_up_to = max(self.ended_up_to, epoch)
        if self.aligning is None or self.aligning > epoch:
            return False
        self._unblock()
        return True

    def _unblock(self) -> None:
        self.aligning = None
        for channel in self.channels():
            channel.blocked = False

    def take_waiting(self) -> list[tuple[InputPartition, WaitingFrame]]:
        """Hand out the frames that waited, by partition and in order; to be gated again, each in its turn."""
        handed = [(partition, candidate) for partition in self.partitions.values() for candidate in partition.waiting]
        for partition in self.partitions.values():
            partition.waiting.clear()
        self.waiting_bytes = 0
        return handed

    def take_left_behind(self) -> list[tuple[EdgeId, Offset]]:
        """Where to seek back to (C4), for each partition that left frames in the log."""
        seeks = []
        for partition in self.partitions.values():
            if partition.left_behind is not None:
                seeks.append((partition.edge, partition.left_behind))
                partition.next_offset = partition.left_behind
                partition.left_behind = None
        return seeks

    def validate(self) -> None:
        """Raise LocalError where the receiver contradicts itself."""
        held = sum(w.size_bytes for partition in self.partitions.values() for w in partition.waiting)
        claims = {
            "the bytes that wait are counted": held == self.waiting_bytes,
            "no more waits than may (C4)": held <= self.waiting_bytes_max,
        }
        require(f"{held} bytes wait, {self.waiting_bytes} counted, {self.waiting_bytes_max} allowed", claims)
        for partition in self.partitions.values():
            partition.validate(self.aligning)
