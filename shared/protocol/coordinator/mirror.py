"""Copying commit rows into the `commits` topic: in order, each only after the previous was acknowledged (C9)."""

from collections import deque
from dataclasses import dataclass, field

from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.ids import NO_EPOCH, Epoch, Offset
from tidemark.shared.protocol.errors import LocalError

NO_OFFSET = Offset(0)


@dataclass(slots=True)
class Mirror:
    """The rows that the mirror of one job has and lacks. Bounded: commits that are not mirrored are not released (C11)."""

    appended: Epoch = NO_EPOCH
    """The highest row that the broker has."""
    lacking: deque[MirrorRow] = field(default_factory=deque)
    """Commits that no sink has released yet: `unreleased_max` holds checkpoints back (C11)."""
    under_way: bool = False
    retry_at_ms: int = 0
    rows: deque[tuple[Epoch, Offset]] = field(default_factory=deque)
    """Where rows lie that somebody may still have to read, in the order of commits: bounded like the commits that wait (C11)."""
    trimmed: Offset = NO_OFFSET
    """Below it records were let go of."""

    @property
    def caught_up(self) -> bool:
        """The mirror has every commit."""
        return not self.lacking

    def add(self, row: MirrorRow) -> None:
        """Add a commit whose row the mirror lacks; in the order of commits."""
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

    def acknowledged(self, epoch: Epoch, offset: Offset) -> None:
        """The broker has the row; an answer to something else changes nothing."""
        if self.under_way and self.lacking[0].epoch == epoch:
            self.under_way = False
            self.appended = self.lacking.popleft().epoch
            self.rows.append((epoch, offset))

    def begin(self, needed: Epoch, known: Offset) -> Offset:
        """The offset from which a reader that needs commit `needed` and later ones must begin. known: the last such answer."""
        while len(self.rows) > 1 and self.rows[0][0] < needed:
            self.rows.popleft()
        return self.rows[0][1] if self.rows and self.rows[0][0] <= needed else known

    def to_trim(self, begin: Offset, rows_kept: int) -> Offset | None:
        """The offset below which rows may go; None for nothing new. Only audits use those, each from where the last one ended.

        begin: durable, so a leader or a sink begins there or behind it. rows_kept: so many of the newest rows stay for audits.
        """
        newest = self.rows[-1][1] if self.rows else begin
        before = Offset(min(begin, newest - rows_kept))
        return before if before > self.trimmed else None

    def failed(self, epoch: Epoch, retry_at_ms: int) -> None:
        """Whether the broker has the row is not known: append it again, later."""
        if self.under_way and self.lacking[0].epoch == epoch:
            self.under_way = False
            self.retry_at_ms = retry_at_ms
