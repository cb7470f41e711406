"""When a sink releases (S1, S2): the chain of commits against the marker of one release identity.

One machine an identity. Rows of the mirror may be repeated and may begin anywhere; they are taken in the order of commits, and each only
when the marker is its predecessor.
"""

from collections import deque
from dataclasses import dataclass, field

from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.ids import NO_EPOCH, Epoch, JobId
from tidemark.shared.protocol.errors import LocalError, PeerError


@dataclass(frozen=True, slots=True)
class ReleaseNow:
    """Release this row's output of the identity; answer with `released`."""

    row: MirrorRow


@dataclass(slots=True)
class ReleaseMachine:
    """Between the marker that the target holds and the commits that the mirror tells."""

    job: JobId
    marker: Epoch
    waiting_max: int = 10_000
    waiting: deque[MirrorRow] = field(default_factory=deque)
    """`commits_waiting_max`; before that `unreleased_max` holds checkpoints back."""
    releasing: MirrorRow | None = None
    seen: Epoch = NO_EPOCH

    def mirrored(self, row: MirrorRow) -> ReleaseNow | None:
        """A row of the mirror has been read. One of another job is nothing to this output (C9)."""
        if row.job != self.job:
            return None
        if row.epoch <= max(self.marker, self.seen):
            return None
        if len(self.waiting) >= self.waiting_max:
            message = f"{len(self.waiting)} commits wait for their release; the coordinator should hold checkpoints back (C11)"
            raise LocalError(message)
        self.seen = row.epoch
        self.waiting.append(row)
        return self._next()

    def released(self, epoch: Epoch) -> ReleaseNow | None:
        """The target's marker now stands at `epoch`."""
        if self.releasing is None or self.releasing.epoch != epoch:
            message = f"release of {epoch} reported, but {self.releasing} is under way"
            raise LocalError(message)
        self.releasing = None
        self.marker = epoch
        return self._next()

    def _next(self) -> ReleaseNow | None:
        if self.releasing is not None or not self.waiting:
            return None
        row = self.waiting[0]
        if row.predecessor != self.marker:
            message = (
                f"commit {row.epoch} follows {row.predecessor}, but the marker of this output stands at {self.marker}: "
                "a commit is missing from the mirror, or the output belongs to another life of the processor (S2)"
            )
            raise PeerError(message)
        self.releasing = self.waiting.popleft()
        return ReleaseNow(self.releasing)
