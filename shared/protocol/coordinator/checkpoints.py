"""One checkpoint in flight: its number, its acknowledgements, its commit row (C1, C5, C7, C9, C10).

Only a commit gives a `CommitPermit`. Mirror rows, hints and deletions are made from one, so none of them can go before the commit.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from msgspec import msgpack, structs

from tidemark.shared.model.checkpoint import (
    BlobRef,
    CommitRow,
    MirrorRow,
    PartHandle,
    ReleaseHandle,
    SourceHandle,
    TaskHandle,
    VertexReached,
)
from tidemark.shared.model.ids import NO_EPOCH, Epoch, Generation, JobId, TaskId, VertexId
from tidemark.shared.protocol.coordinator.commands import BlobWanted, OpId
from tidemark.shared.protocol.errors import LocalError
from tidemark.shared.protocol.watermarks import InputProgress, combined_watermark

_encode = msgpack.Encoder().encode


@dataclass(slots=True)
class Numbers:
    """A reserved block of checkpoint numbers, (given, end] still to be given out; empty until this term reserves one (C1)."""

    given: Epoch = NO_EPOCH
    end: Epoch = NO_EPOCH

    @property
    def empty(self) -> bool:
        """Whether a block must be reserved first."""
        return self.given >= self.end

    def take(self) -> Epoch:
        """The next number."""
        if self.empty:
            raise LocalError("a checkpoint number was taken beyond the reserved block (C1)")
        self.given = Epoch(self.given + 1)
        return self.given


_MIRRORED_BYTES = 256
"""Size of a task's part in a row of the mirror, without staged output and split positions: names and a digest."""


@dataclass(slots=True)
class Flight:
    """A checkpoint that has been started and neither committed nor aborted."""

    epoch: Epoch
    committed: Epoch
    """p, the last committed one when this was started: the commit requires that it still is (C5)."""
    started_ms: int
    tasks: frozenset[TaskId]
    asked: bool = False
    """A source has asked for it."""
    acks: dict[TaskId, TaskHandle] = field(default_factory=dict)
    moving: OpId | None = None
    """State is being moved into blobs (C7)."""
    moves: tuple[TaskId, ...] = ()
    retry_at_ms: int = 0

    @property
    def complete(self) -> bool:
        """Every task has acknowledged."""
        return len(self.acks) == len(self.tasks)

    def acknowledge(self, task: TaskId, handle: TaskHandle) -> None:
        """Take an acknowledgement; a repeat, or one of a task that takes no part, changes nothing."""
        if task in self.tasks:
            self.acks.setdefault(task, handle)

    def inline_bytes(self) -> int:
        """State that the commit row would hold inline. Staged output of sinks stays inline; it is small by its nature."""
        return sum(inline_bytes(h) for h in self.acks.values())

    def mirrored_bytes(self) -> int:
        """The size that the row of the mirror would have, about (C9)."""
        return sum(len(h.staged) + len(h.positions) + _MIRRORED_BYTES for h in self.acks.values())

    def to_move(self, limit_bytes: int) -> tuple[TaskId, ...]:
        """The tasks with the most inline state, as few as bring the sum under the limit (C7)."""
        excess = self.inline_bytes() - limit_bytes
        moves = []
        for task, handle in sorted(self.acks.items(), key=lambda item: (-inline_bytes(item[1]), item[0])):
            if excess <= 0:
                break
            moves.append(task)
            excess -= inline_bytes(handle)
        return tuple(moves)

    def moved(self, refs: tuple[BlobRef, ...]) -> None:
        """The blobs of `moves` are durable."""
        for task, ref in zip(self.moves, refs, strict=True):
            self.acks[task] = unpack_into(self.acks[task], ref)
        self.moving = None
        self.moves = ()

    def commit_row(self, job: JobId, generation: Generation) -> CommitRow:
        """The row that is to be committed (C9)."""
        handles = tuple(self.acks[t] for t in sorted(self.acks))
        final = all(h.protocol.ended for h in handles)
        return CommitRow(job, self.epoch, self.committed, generation, handles, final)


def is_aligned(commit: CommitRow) -> bool:
    """Whether no channel has state in it (C13)."""
    return all(barrier >= commit.epoch for barrier in _barriers(commit))


def taken_up_to(commits: Iterable[CommitRow], last: Epoch) -> Epoch:
    """The last epoch of which no channel carries a frame in any of these commits (C13): segments up to it are read no more (C12)."""
    return min([last, *(barrier for commit in commits for barrier in _barriers(commit) if barrier < commit.epoch)])


def _barriers(commit: CommitRow) -> Iterator[Epoch]:
    """Of each channel, the last barrier before the frames that the snapshot has not taken; behind END there are barriers alone (E1)."""
    for handle in commit.tasks:
        for state in handle.protocol.inputs:
            yield from (channel.last_barrier for channel in state.channels if not channel.ended)


def inline_bytes(handle: TaskHandle) -> int:
    """Of one task's state, bytes."""
    return sum(len(p.inline) for p in handle.parts if p.inline is not None)


def pack(handle: TaskHandle, job: JobId, generation: Generation, epoch: Epoch, unique: str) -> BlobWanted:
    """One blob with all inline parts of a task, end to end, under a name that no other attempt can have (C7, C12)."""
    name = f"{job}/{handle.vertex}/{generation}/{epoch}/inline-{handle.index}-{unique}"
    return BlobWanted(name, b"".join(p.inline for p in handle.parts if p.inline is not None))


def unpack_into(handle: TaskHandle, ref: BlobRef) -> TaskHandle:
    """The handle with its inline parts replaced by ranges of the blob that `pack` made."""
    at = 0
    parts = []
    for part in handle.parts:
        if part.inline is None:
            parts.append(part)
            continue
        parts.append(PartHandle(part.part, blob=ref, offset=at, length=len(part.inline)))
        at += len(part.inline)
    return structs.replace(handle, parts=tuple(parts))


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """Proof that a checkpoint is committed: the row as the store has it. Only `of_done` and `of_read` make one."""

    row: CommitRow

    @staticmethod
    def of_done(row: CommitRow) -> "CommitPermit":
        """The store has answered that the commit is durable."""
        return CommitPermit(row)

    @staticmethod
    def of_read(row: CommitRow) -> "CommitPermit":
        """The row was read from the store."""
        return CommitPermit(row)

    def mirror_row(self, sinks: frozenset[VertexId]) -> MirrorRow:
        """The row that sinks and audits read: sinks' handles and sources' positions with digests, without state (C9)."""
        handles = tuple(
            ReleaseHandle(h.vertex, h.index, h.staged, sha256(h.staged).hexdigest())
            for h in self.row.tasks
            if h.vertex in sinks
        )
        sources = tuple(
            SourceHandle(h.vertex, h.index, h.positions, sha256(h.positions).hexdigest())
            for h in self.row.tasks
            if h.positions
        )
        r = self.row
        digest, reached = sha256(_encode(r)).hexdigest(), _reached(r, sinks)
        between = tuple(sorted({h.vertex for h in r.tasks if h.between and h.protocol.inputs} - sinks))
        return MirrorRow(
            r.job, r.epoch, r.predecessor, r.generation, handles, r.final, sources, digest, reached, between
        )


def _reached(commit: CommitRow, sinks: frozenset[VertexId]) -> tuple[VertexReached, ...]:
    """Of the vertices in front of the sinks; none where tasks of one have come unequally far, which barriers do not allow (C3)."""
    if not is_aligned(commit):
        return ()
    found = []
    for vertex in sorted({h.vertex for h in commit.tasks} - sinks):
        tasks = [h for h in commit.tasks if h.vertex == vertex]
        if any(h.protocol.inputs for h in tasks):
            watermarks = {h.protocol.input_watermark_ms for h in tasks}
        else:
            told = [InputProgress(h.protocol.output_watermark_ms, h.protocol.idle, h.protocol.ended) for h in tasks]
            watermarks = {combined_watermark(told)}
        if len(watermarks) > 1:
            return ()
        found.append(VertexReached(vertex, watermarks.pop()))
    return tuple(found)
