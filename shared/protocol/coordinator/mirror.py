"""Copying commit rows into the `commits` topic: in order, each only after the previous was acknowledged (C9)."""

from collections import deque
from dataclasses import dataclass, field

from shared.model.checkpoint import MirrorRow
from shared.model.ids import NO_EPOCH, Epoch
from shared.protocol.errors import LocalError


@dataclass(slots=True)
class Mirror:
    """What the mirror of one job has and lacks. Bounded: commits that are not mirrored are not released (C11)."""

    appended: Epoch = NO_EPOCH
    """The highest row that the broker has."""
    lacking: deque[MirrorRow] = field(default_factory=deque)
    """Commits that no sink has released yet: `unreleased_max` holds checkpoints back (C11)."""
    under_way: bool = False
    retry_at_ms: int = 0

    @property
    def caught_up(self) -> bool:
        """The mirror has every commit."""
        return not self.lacking

    def add(self, row: MirrorRow) -> None:
        """A commit whose row the mirror lacks; in the order of commits."""
        newest = self.lacking[-1].epoch if self.lacking else self.appended
        if row.epoch <= newest:
            raise LocalError(f"mirror row {row.epoch} of job {row.job} was added behind {newest} (C9)")
        self.lacking.append(row)

    def next(self, now_ms: int) -> MirrorRow | None:
        """The row to append now, if any."""
        if self.under_way or not self.lacking or now_ms < self.retry_at_ms:
            return None
        self.under_way = True
        return self.lacking[0]

    def acknowledged(self, epoch: Epoch) -> None:
        """The broker has the row; an answer to something else changes nothing."""
        if self.under_way and self.lacking[0].epoch == epoch:
            self.under_way = False
            self.appended = self.lacking.popleft().epoch

    def failed(self, epoch: Epoch, retry_at_ms: int) -> None:
        """Whether the broker has the row is not known: append it again, later."""
        if self.under_way and self.lacking[0].epoch == epoch:
            self.under_way = False
            self.retry_at_ms = retry_at_ms
