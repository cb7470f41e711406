"""A sink's connector: stages an epoch's output durably, releases it once the checkpoint is committed (protocol, section 6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import pyarrow as pa

from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.failures import Lasting, Outage
from tidemark.shared.model.ids import Epoch, JobId, VertexId


class TargetUnavailable(Outage):
    """The target is away; waiting may help (C10: does not count)."""

    kind: ClassVar[Literal["target", "blobs"]] = "target"
    """The side that does not answer during an outage, as `Wait` reports it."""


class StagedUnavailable(TargetUnavailable):
    """The blob store, in which output is staged, is away; waiting may help."""

    kind = "blobs"


class TargetDenied(Exception):
    """The target refuses the client: a password, a user. It is no outage: the task fails, and after some tries the processor (C10)."""


class TargetRefused(Lasting):
    """The target refuses for good at release: the processor is FAILED, naming epoch and record (S6)."""


class ReleaseGap(Exception):
    """The target's marker stands below the predecessor that the row names: an earlier commit comes first; nothing is written (S2)."""


class MarkerAhead(Lasting):
    """The target's marker stands above the checkpoint that is being restored. Both numbers are named, nothing is written (S2)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Under which output is staged and released (S1)."""

    job: JobId
    vertex: VertexId
    index: int

    def __str__(self) -> str:
        """As markers, transactional ids and file names carry it."""
        return f"{self.job}.{self.vertex}.{self.index}"


@dataclass(frozen=True, slots=True)
class Rejected:
    """Rows that the target would refuse, found before staging (S6)."""

    row: int
    reason: str


class SinkPort(Protocol):
    """One task's output to one target.

    `accept` and `stage` come one at a time, in the order of the epochs; so do `release` and `skip`. After `open` the two go on side by
    side: a release that waits for its target must not keep later epochs from being staged.
    """

    @property
    def place(self) -> str:
        """The target, as errors and waits name it; it has no secret."""
        ...

    async def open(self, identity: Identity, restored_from: Epoch, *, joins: bool = False) -> Epoch:
        """Fence earlier holders of the identity, read its marker, return it (S1, S3); a new identity writes marker `restored_from` (S2).

        `joins`: the previous generation did not have the identity (new, or retired before): a marker that it left behind
        is raised to `restored_from`. Without it an identity that is restored has a marker: TargetRefused if it is gone.
        Raises MarkerAhead, TargetUnavailable, TargetRefused.
        """
        ...

    async def accept(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """Take rows into the current epoch; bounded memory: spills to staged parts. Returns the rows it did not take."""
        ...

    async def stage(self, epoch: Epoch, committed: Epoch) -> bytes:
        """Make the accepted rows durable, never yet visible to readers; the handle (b"" if there is nothing).

        The handle covers everything staged after checkpoint `committed` (C5): an epoch whose checkpoint was aborted is released
        with the next one that is committed, so the sink keeps staged rows until a commit covers it.
        """
        ...

    async def release(self, row: MirrorRow, staged: bytes) -> None:
        """Make a committed epoch's output visible, exactly once, if the marker is its predecessor; quietly nothing if it is at or above."""
        ...

    async def skip(self, row: MirrorRow, staged: bytes) -> int:
        """As `release`, but pass over the records that the target refuses, by a user's order (S6). Returns their number.

        The target decides how finely: records, or the part, file or batch that one of them is in.
        """
        ...

    async def close(self) -> None:
        """Let go; stages and releases nothing."""
        ...
