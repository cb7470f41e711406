"""One split of a source task: its state beside its records, and the reports of it to others."""

from dataclasses import dataclass, field
from typing import Final, Self

from tidemark.shared.model.checkpoint import KnownSplit, SplitStand
from tidemark.shared.model.held import SplitHeld
from tidemark.shared.model.ids import Epoch, Offset, SplitId
from tidemark.shared.model.splits import Noted, Status
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.protocol.watermarks import InputProgress

_NEVER: Final = Offset(-1)


@dataclass(slots=True)
class Split:
    """A split that the processor's row lists (I1), from when the task was told of it."""

    known: KnownSplit
    position: Offset
    """All below has been taken."""
    progress: InputProgress = field(default_factory=InputProgress)
    """Its watermark by the document's strategy; idle (W4); ended: read to its end (E1)."""
    opened: bool = False
    """It is being read."""
    at_end_since_ms: int | None = None
    """Monotonic; None: it is not known to be at its end."""
    more: bool = False
    idled: Offset = _NEVER
    """The position at which it was idle last; in a restored split, of this generation alone."""
    away: bool = False
    """See `Noted`: its rows say so until it has caught up."""
    returned: Epoch | None = None
    """The epoch whose frames report the return; None: they are yet to be sent, or all receivers have read them."""
    catch_up_ms: int | None = None
    since_ms: int = 0
    """Since when the watermark stands where it does, UTC."""
    checkpoint: Offset | None = None
    """The position of a committed checkpoint."""
    changed: bool = True
    """Since the last snapshot."""
    check: str = ""
    """Of the records that were taken, where they lie in files; "" where nobody took it."""

    @classmethod
    def restored(
        cls, known: KnownSplit, checkpoint: Offset | None, watermark_ms: int, noted: Noted, now_ms: int, *, first: bool
    ) -> Self:
        """The split of a snapshot; one that the snapshot does not name starts at its beginning. now_ms: UTC.

        first: there is no snapshot, and receivers begin with it. Else such a split is away, for they have gone ahead of it (W4).
        """
        progress = InputProgress(watermark_ms, idle=noted.status == "idle", ended=noted.status == "finished")
        position = known.begin if checkpoint is None else checkpoint
        idled = position if progress.idle else _NEVER
        since_ms = (
            now_ms if watermark_ms > MIN_TIME else 0
        )  # no snapshot has the time: the restore is the earliest known
        return cls(
            known,
            position,
            progress,
            idled=idled,
            away=noted.away or (checkpoint is None and not first),
            catch_up_ms=noted.catch_up_ms,
            since_ms=since_ms,
            checkpoint=checkpoint,
        )

    @property
    def status(self) -> Status:
        """As it is noted and shown."""
        return "finished" if self.progress.ended else "idle" if self.progress.idle else "active"

    def advance(self, position: Offset) -> None:
        """All below has been taken, as far as the split goes."""
        reached = position if self.known.end is None else min(position, self.known.end)
        if reached > self.position:
            self.position, self.changed = reached, True

    def raise_to(self, watermark_ms: int, now_ms: int) -> None:
        """Its records have brought it there; now_ms: UTC."""
        self.changed = True
        if watermark_ms > self.progress.watermark_ms:
            self.progress.raise_to(watermark_ms)
            self.since_ms = now_ms

    def become(self, status: Status) -> None:
        """Idle (W4), ended (E1), or back: receivers may have gone ahead of it, by other splits or other tasks."""
        if self.progress.ended or status == self.status:
            return
        if self.progress.idle and status == "active":
            self.away, self.returned, self.catch_up_ms = True, None, None
        self.progress.idle, self.progress.ended = status == "idle", status == "finished"
        if self.progress.idle:
            self.idled = self.position
        self.changed = True

    def catch_up(self, task_ms: int) -> None:
        """The split is away no longer once it has reached the watermark that receivers reported, and the task's own."""
        if self.away and self.catch_up_ms is not None and self.progress.watermark_ms >= max(self.catch_up_ms, task_ms):
            self.away, self.catch_up_ms, self.changed = False, None, True

    def end(self, named: int | None, there: Offset | None) -> KnownSplit:
        """Where a drain ends the split (I3): at the user's offset, else at the current end; never before the position that was read."""
        end = self.known.end  # it may be bounded already
        if named is not None:
            end = Offset(max(named, self.position))
        elif end is None and there is not None:
            end = Offset(max(there, self.position))
        return KnownSplit(self.known.ordinal, self.known.origin, self.known.begin, end)

    def stand(self, name: SplitId) -> SplitStand:
        """As an acknowledgement has it (C2)."""
        return SplitStand(name, self.position, self.known.begin, self.status, self.idled, self.check)

    def held(self, timeout_ms: int | None, now_ms: int) -> SplitHeld:
        """The split as heartbeats report it, without the strategy's part. timeout_ms: of idleness; now_ms: monotonic."""
        waits = self.at_end_since_ms is not None and timeout_ms is not None
        return SplitHeld(
            position=self.position,
            watermark=self.progress.watermark_ms,
            status=self.status,
            checkpoint=self.checkpoint,
            until=self.known.end,
            atEnd=self.at_end_since_ms is not None,
            more=self.more,
            finished=self.progress.ended,
            away=self.away,
            since=self.since_ms,
            idleTimeout=timeout_ms,
            idleIn=max(0, (self.at_end_since_ms or 0) + (timeout_ms or 0) - now_ms) if waits else None,
        )
