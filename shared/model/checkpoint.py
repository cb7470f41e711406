"""Parts of a checkpoint: state handles, a task's snapshot, a commit row (protocol, section 4).

These lie in SQL and in blobs for long, so they are msgspec structs with defaults for fields that come later. Defaults are not written:
a new field changes the bytes, and so the digest, of no row that was written before.
"""

from collections.abc import Iterable

from msgspec import Struct

from tidemark.shared.model.ids import Epoch, Generation, JobId, Offset, Seq, SplitId, StatePart, VertexId


class BlobRef(Struct, frozen=True, omit_defaults=True):
    """A durable object in the blob store."""

    name: str
    size_bytes: int
    digest: str
    """SHA-256, hex."""


class ChannelState(Struct, frozen=True, omit_defaults=True):
    """A receiver's knowledge of one sender on one of its partitions (C6), and with it the channel's state (C13).

    Where `last_barrier` is below the checkpoint, the frames from `next_seq` up to the checkpoint's barrier are in flight: they lie in the
    log from the partition's `resume_offset` on, and are applied after a restore.
    """

    sender_vertex: VertexId
    sender_index: int
    next_seq: Seq
    """The first frame that is not part of the snapshot."""
    last_barrier: Epoch
    """Of the last barrier in front of `next_seq`."""
    watermark_ms: int
    idle: bool
    ended: bool


class InputState(Struct, frozen=True, omit_defaults=True):
    """Where a receiver resumes on its partition of one edge."""

    edge: str
    incarnation: str
    resume_offset: Offset
    channels: tuple[ChannelState, ...]


class OutputState(Struct, frozen=True, omit_defaults=True):
    """Where a sender resumes on one edge: its next seq by partition, counted behind BARRIER n (F1)."""

    edge: str
    incarnation: str
    next_seq: tuple[Seq, ...]
    unread: tuple[tuple[int, Offset], ...] = ()
    """By partition, the frames that its receiver had not taken (F7): their bytes, offset of the last. Empty where there were none."""


class TaskProtocolState(Struct, frozen=True, omit_defaults=True):
    """The protocol's own part of a task's snapshot."""

    inputs: tuple[InputState, ...] = ()
    outputs: tuple[OutputState, ...] = ()
    input_watermark_ms: int = -(2**63)
    output_watermark_ms: int = -(2**63)
    idle: bool = False
    ended: bool = False
    processing_time_ms: int = 0


class PartHandle(Struct, frozen=True, omit_defaults=True):
    """One state part: inline in the commit row (small), or a range of a blob that holds the changes of one checkpoint."""

    part: StatePart
    inline: bytes | None = None
    blob: BlobRef | None = None
    offset: int = 0
    """First byte in the blob."""
    length: int = 0
    """Bytes in the blob."""


class TaskHandle(Struct, frozen=True, omit_defaults=True):
    """A task's acknowledgement: enough to restore the task, and for a sink to release the epochs that it staged."""

    vertex: VertexId
    index: int
    protocol: TaskProtocolState
    parts: tuple[PartHandle, ...] = ()
    blobs: tuple[BlobRef, ...] = ()
    """Blobs that the parts' content refers to (segments of a manifest): reachable while this checkpoint is retained."""
    staged: bytes = b""
    """A sink's handle of the epoch's staged output, opaque; b"" for an epoch without output and for other tasks."""
    positions: bytes = b""
    """Where a source's splits stood at its barrier (`tidemark.shared.wire.messages`: tuple of SplitStand); b"" for other tasks."""
    listed: BlobRef | None = None
    """The parts by reference: a blob with their list (`shared.runtime.state`), one of `blobs`; `parts` is empty then."""
    between: bool = False
    """Since the last committed checkpoint it has judged rows by where the watermark stood at another time than at a committed barrier."""


def state_bytes(parts: Iterable[PartHandle], blobs: Iterable[BlobRef]) -> int:
    """The size of a task's state: its parts, and blobs that hold none of them (parts that a blob lists count as their blobs)."""
    holders: set[str] = set()
    size = 0
    for part in parts:
        size += len(part.inline) if part.inline is not None else part.length
        if part.blob is not None:
            holders.add(part.blob.name)
    return size + sum(blob.size_bytes for blob in blobs if blob.name not in holders)


class SplitStand(Struct, frozen=True, omit_defaults=True):
    """A split's position when its task wrote the barrier (C2). Records below `next` are of this checkpoint or an earlier one."""

    split: SplitId
    next: Offset
    begin: Offset
    """Where the split began in the life of the job."""
    status: str
    """active, idle or finished (W3, E1): at the barrier."""
    idled: Offset | None = None
    """The position at which its task last saw it idle (W4), -1 for never; None: not noted. With the positions and statuses of all barriers,
    all that bounds the receivers' watermarks."""
    check: str = ""
    """Of the records below `next` (`services.source.taken`), where they lie in files; "" where nobody took it."""


class KnownSplit(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A split of a source as the processor's row lists it: durable before a record of it is read (I1)."""

    ordinal: int
    origin: str
    """The thing that the split is a part of: a topic's id, a file's first bytes. Positions mean something there and nowhere else (I2)."""
    begin: Offset
    """Where the job begins to read it."""
    end: Offset | None = None
    """The first position that is not read; None: it ends by itself, or not at all (I3)."""


class CommitRow(Struct, frozen=True, omit_defaults=True):
    """A committed checkpoint (C9). `predecessor` is the checkpoint committed before it, 0 for none."""

    job: JobId
    epoch: Epoch
    predecessor: Epoch
    generation: Generation
    tasks: tuple[TaskHandle, ...]
    final: bool = False
    """Every task had ended: nothing follows."""


class ReleaseHandle(Struct, frozen=True, omit_defaults=True):
    """One sink task's part of a mirrored commit, which sinks read from the `commits` topic."""

    vertex: VertexId
    index: int
    staged: bytes
    digest: str


class SourceHandle(Struct, frozen=True, omit_defaults=True):
    """One source task's part of a mirrored commit, for tools that check what a checkpoint covers."""

    vertex: VertexId
    index: int
    positions: bytes
    """As in the TaskHandle."""
    digest: str


class VertexReached(Struct, frozen=True, array_like=True):
    """How far time had come at a vertex when its tasks took an aligned checkpoint, for tools that compute its output again."""

    vertex: VertexId
    watermark_ms: int
    """The input watermark of its tasks; of a source what its tasks together had promised (W3)."""


class MirrorRow(Struct, frozen=True, omit_defaults=True):
    """A commit row as the `commits` topic has it: the sinks' handles and the sources' positions, without state (C9)."""

    job: JobId
    epoch: Epoch
    predecessor: Epoch
    generation: Generation
    handles: tuple[ReleaseHandle, ...]
    final: bool = False
    sources: tuple[SourceHandle, ...] = ()
    digest: str = ""
    """SHA-256 of the commit row's bytes, hex."""
    reached: tuple[VertexReached, ...] = ()
    """Empty where a checkpoint was not aligned, and in rows of earlier releases."""
    between: tuple[VertexId, ...] = ()
    """Vertices of which a task has judged rows at other times than at these barriers, too (`TaskHandle.between`)."""


class LineageEntry(Struct, frozen=True, omit_defaults=True):
    """One generation: from which checkpoint it was restored, and by which version of the plan it runs."""

    generation: Generation
    restored_from: Epoch
    plan_version: int
