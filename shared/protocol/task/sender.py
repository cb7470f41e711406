"""The sending side of a task: seq, epoch and watermark on every partition of its out edges (F1, F3, F4, F7, F8)."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from tidemark.shared.model.checkpoint import OutputState
from tidemark.shared.model.frames import BarrierFrame, Body, DataFrame, EndFrame, Header, WatermarkFrame
from tidemark.shared.model.ids import FIRST_OFFSET, EdgeId, Epoch, Generation, Incarnation, JobId, Offset, Seq, TaskId
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.protocol.errors import LocalError, require
from tidemark.shared.protocol.task.commands import Send


@dataclass(slots=True)
class _Unread:
    """A frame that the receiver has not yet taken (F7)."""

    seq: Seq
    size_bytes: int
    offset: Offset | None = None


@dataclass(slots=True)
class PartitionSender:
    """One partition of an out edge."""

    next_seq: Seq
    watermark_ms: int = MIN_TIME
    """The highest that a frame on this partition has said."""
    idle: bool = False
    acked_seq: int = -1
    unacked: deque[_Unread] = field(default_factory=deque)
    """The part of `unread` whose offset is not known yet."""
    unread: deque[_Unread] = field(default_factory=deque)
    """`ahead_bytes_max` and one piece of work: no input is taken before it is read (F7)."""
    unread_bytes: int = 0
    read_offset: Offset = FIRST_OFFSET

    @staticmethod
    def restored(
        next_seq: Seq, watermark_ms: int, unread_bytes: int, last_offset: Offset, *, idle: bool
    ) -> "PartitionSender":
        """The sender of a snapshot. Frames that its receiver had not taken count on (F7): else each generation could add as much again."""
        ahead = [_Unread(Seq(next_seq - 1), unread_bytes, last_offset)] if unread_bytes else []
        return PartitionSender(next_seq, watermark_ms, idle, unread=deque(ahead), unread_bytes=unread_bytes)


@dataclass(slots=True)
class OutputEdge:
    """An out edge."""

    edge: EdgeId
    incarnation: Incarnation
    partitions: list[PartitionSender]


@dataclass(slots=True)
class Sender:
    """Makes frames. `epoch` is 1 + the last barrier written, or 1 + restored_from (F3)."""

    job: JobId
    generation: Generation
    task: TaskId
    epoch: Epoch
    edges: dict[EdgeId, OutputEdge]
    ahead_bytes_max: int
    """W of F7."""
    uncommitted_bytes_max: int
    """V of F8; counts for sources."""
    watermark_ms: int = MIN_TIME
    idle: bool = False
    ended: bool = False
    """END has been sent (E1)."""
    uncommitted_bytes: dict[Epoch, int] = field(default_factory=dict)

    def _header(self, output: OutputEdge, partition: PartitionSender, watermark_ms: int) -> Header:
        header = Header(
            self.job, output.incarnation, self.generation, self.task, partition.next_seq, self.epoch, watermark_ms
        )
        partition.next_seq = Seq(partition.next_seq + 1)
        partition.watermark_ms = max(partition.watermark_ms, watermark_ms)
        return header

    def _every(self) -> Iterator[tuple[OutputEdge, int, PartitionSender]]:
        for output in self.edges.values():
            for index, partition in enumerate(output.partitions):
                yield output, index, partition

    def data(
        self, edge: EdgeId, partition_index: int, batches: Sequence[tuple[tuple[Body, ...], int]]
    ) -> Iterator[Send]:
        """Frames of rows for one partition; only the last says the new watermark, which takes effect behind them all (F4).

        batches: (bodies, size in bytes) a frame.
        """
        if self.ended:
            message = f"{self.task}: rows for edge {edge} partition {partition_index} behind END (E1)"
            raise LocalError(message)
        output = self.edges[edge]
        partition = output.partitions[partition_index]
        partition.idle = False
        for number, (bodies, size_bytes) in enumerate(batches, start=1):
            watermark_ms = self.watermark_ms if number == len(batches) else partition.watermark_ms
            frame = DataFrame(self._header(output, partition, watermark_ms), bodies)
            entry = _Unread(frame.header.seq, size_bytes)
            partition.unacked.append(entry)
            partition.unread.append(entry)
            partition.unread_bytes += size_bytes
            self.uncommitted_bytes[self.epoch] = self.uncommitted_bytes.get(self.epoch, 0) + size_bytes
            yield Send(edge, partition_index, frame)

    def holds_news(self) -> bool:
        """Whether some partition does not know the watermark or the idleness yet."""
        return not self.ended and any(
            p.watermark_ms < self.watermark_ms or p.idle != self.idle for _, _, p in self._every()
        )

    def watermarks(self) -> Iterator[Send]:
        """WATERMARK to every partition that does not know the watermark or the idleness yet; none behind END."""
        if self.ended:
            return
        for output, index, partition in self._every():
            if partition.watermark_ms < self.watermark_ms or partition.idle != self.idle:
                partition.idle = self.idle
                yield Send(
                    output.edge, index, WatermarkFrame(self._header(output, partition, self.watermark_ms), self.idle)
                )

    def introduce(self, output: OutputEdge, *, ended: bool) -> Iterator[Send]:
        """R4: the first frames on an edge with a new incarnation: WATERMARK (value, idle), and END if this sender had ended."""
        for index, partition in enumerate(output.partitions):
            partition.idle = self.idle
            yield Send(
                output.edge, index, WatermarkFrame(self._header(output, partition, self.watermark_ms), self.idle)
            )
            if ended:
                yield Send(output.edge, index, EndFrame(self._header(output, partition, self.watermark_ms)))

    def barriers(self, epoch: Epoch, committed: Epoch) -> Iterator[Send]:
        """BARRIER to every partition; later frames are of epoch + 1 (F3)."""
        if epoch < self.epoch:
            message = f"{self.task}: BARRIER {epoch} after epoch {self.epoch - 1} had been ended"
            raise LocalError(message)
        self.epoch = epoch
        for output, index, partition in self._every():
            yield Send(output.edge, index, BarrierFrame(self._header(output, partition, self.watermark_ms), committed))
        self.epoch = Epoch(epoch + 1)

    def ends(self) -> Iterator[Send]:
        """END to every partition (E1)."""
        self.ended = True
        for output, index, partition in self._every():
            yield Send(output.edge, index, EndFrame(self._header(output, partition, self.watermark_ms)))

    def acked(self, edge: EdgeId, partition_index: int, seq: Seq, offset: Offset) -> None:
        """The broker has the frame."""
        partition = self.edges[edge].partitions[partition_index]
        if seq <= partition.acked_seq:
            message = f"{self.task}: edge {edge} partition {partition_index}: seq {seq} acknowledged after {partition.acked_seq}"
            raise LocalError(message)
        partition.acked_seq = seq
        while partition.unacked and partition.unacked[0].seq <= seq:
            partition.unacked.popleft().offset = offset
        self._forget_read(partition)

    def read_up_to(self, edge: EdgeId, partition_index: int, offset: Offset) -> None:
        """The receiver has taken all below `offset` (F7); reports may repeat or come late."""
        partition = self.edges[edge].partitions[partition_index]
        partition.read_offset = max(partition.read_offset, offset)
        self._forget_read(partition)

    @staticmethod
    def _forget_read(partition: PartitionSender) -> None:
        unread = partition.unread
        while unread and unread[0].offset is not None and unread[0].offset < partition.read_offset:
            partition.unread_bytes -= unread.popleft().size_bytes

    def all_acked(self, behind: Sequence[tuple[EdgeId, int, Seq]]) -> bool:
        """Whether the broker has every frame below these seqs."""
        return all(self.edges[edge].partitions[index].acked_seq >= seq - 1 for edge, index, seq in behind)

    def next_seqs(self) -> tuple[tuple[EdgeId, int, Seq], ...]:
        """The next seq of every partition now."""
        return tuple((output.edge, index, partition.next_seq) for output, index, partition in self._every())

    def committed(self, epoch: Epoch) -> None:
        """Checkpoint `epoch` is committed: frames sent up to its barrier no longer count (F8)."""
        for done in [e for e in self.uncommitted_bytes if e <= epoch]:
            del self.uncommitted_bytes[done]

    def held_back_by_receivers(self) -> bool:
        """F7: more than W bytes ahead of the slowest reader of some edge."""
        return any(partition.unread_bytes > self.ahead_bytes_max for _, _, partition in self._every())

    def held_back_by_commits(self) -> bool:
        """F8: more than V bytes sent since the last commit."""
        return sum(self.uncommitted_bytes.values()) > self.uncommitted_bytes_max

    def with_unread(self, outputs: Sequence[OutputState]) -> tuple[OutputState, ...]:
        """A snapshot's outputs, and the bytes of them that are unread now that the broker has them all (F7)."""
        return tuple(
            structs.replace(state, unread=unread) if any(size for size, _ in unread) else state
            for state in outputs
            for unread in [tuple(self._unread_of(state))]
        )

    def _unread_of(self, state: OutputState) -> Iterator[tuple[int, Offset]]:
        for partition, behind in zip(self.edges[EdgeId(state.edge)].partitions, state.next_seq, strict=True):
            entries = [entry for entry in partition.unread if entry.seq < behind]
            last = entries[-1].offset if entries else None
            yield sum(entry.size_bytes for entry in entries), last or FIRST_OFFSET

    def state(self) -> tuple[OutputState, ...]:
        """The next seqs, for the snapshot."""
        return tuple(
            OutputState(o.edge, o.incarnation, tuple(p.next_seq for p in o.partitions)) for o in self.edges.values()
        )

    def validate(self) -> None:
        """Raise LocalError where the sender contradicts itself."""
        for output, index, partition in self._every():
            claims = {
                "unread bytes are those of the unread frames": partition.unread_bytes
                == sum(entry.size_bytes for entry in partition.unread),
                "what the broker has not is unread": list(partition.unacked)
                == [entry for entry in partition.unread if entry.offset is None],
                "nothing is acknowledged before it is sent": partition.acked_seq < partition.next_seq,
                "no partition is told a watermark beyond the task's": partition.watermark_ms <= self.watermark_ms,
            }
            require(f"{self.task}: edge {output.edge} partition {index}", claims)
        newest = max(self.uncommitted_bytes, default=self.epoch)
        require(str(self.task), {"bytes are counted for epochs that have begun (F8)": newest <= self.epoch})
