"""Rules for a change of a processor's row, for every store: a caller that breaks one has a bug. Also when a lease is over."""

from dataclasses import dataclass

from tidemark.shared.model.checkpoint import CommitRow, LineageEntry
from tidemark.shared.model.ids import LeaderToken
from tidemark.shared.model.processors import Expected, ProcessorRow


@dataclass(slots=True)
class LeaseWatch:
    """Another's lease, as one candidate has seen it.

    A lease ends at a time of its holder's clock. Where that is ahead of the candidate's, the lease of a holder that is gone would
    last for as long as the clocks differ: so one that nobody has renewed for its length, by the candidate's monotonic clock alone, is
    over, too. Where it is behind, or the candidate's clock is set, the lease of a holder that lives would be over: so its end counts
    only until the candidate has seen it renewed.

    One look counts for half a lease at most, however long ago the one before was: where the candidate, or the store, stood still, a
    holder that stood still with it has time to renew. Two looks that far apart are enough.
    """

    token: int = 0
    expires_ms: int = 0
    unrenewed_ms: float = 0
    """For how long nobody has renewed it, as far as looks count."""
    looked_ms: int | None = None
    lives: bool = False
    """The candidate has seen a renewal, or a new leader."""

    def over(
        self, token: LeaderToken, expires_ms: int, lease_ms: int, now_ms: int, looked_ms: int | None = None
    ) -> bool:
        """Whether it may be taken now. lease_ms: of all coordinators; now_ms, looked_ms: the candidate's wall clock and monotonic clock.

        Without a monotonic clock the wall clock counts, where nobody sets it.
        """
        looked_ms = now_ms if looked_ms is None else looked_ms
        changed = (token, expires_ms) != (self.token, self.expires_ms)
        before_ms, self.looked_ms = self.looked_ms, looked_ms
        self.lives = self.lives or (changed and before_ms is not None)
        if changed:
            self.token, self.expires_ms, self.unrenewed_ms = token, expires_ms, 0
        elif before_ms is not None:
            self.unrenewed_ms += min(looked_ms - before_ms, lease_ms / 2)
        return self.unrenewed_ms >= lease_ms or (expires_ms <= now_ms and not self.lives)


def check_update(expected: Expected, row: ProcessorRow) -> None:
    """An update leaves leader, generation and last as they are."""
    _check_kept(expected, row)
    if (row.generation, row.last) != (expected.generation, expected.last):
        raise ValueError(
            f"processor {expected.name}: an update keeps generation {expected.generation} and last {expected.last},"
            f" found {row.generation} and {row.last}; use new_generation or commit"
        )


def check_new_generation(expected: Expected, row: ProcessorRow, entry: LineageEntry) -> None:
    """A new generation is higher, its lineage entry speaks of it, and it is restored from the row's last commit."""
    _check_kept(expected, row)
    if row.generation <= expected.generation:
        raise ValueError(
            f"processor {expected.name}: expected a generation above {expected.generation}, found {row.generation}"
        )
    if (entry.generation, entry.restored_from) != (row.generation, row.last):
        raise ValueError(
            f"processor {expected.name}: the lineage entry says generation {entry.generation} from"
            f" {entry.restored_from}, the row generation {row.generation} from {row.last}"
        )


def check_commit(expected: Expected, row: ProcessorRow, commit: CommitRow) -> None:
    """A commit follows its predecessor, in the same job and generation, and the row names it as its last (C9)."""
    _check_kept(expected, row)
    found = (row.generation, row.last, commit.job, commit.predecessor)
    wanted = (expected.generation, commit.epoch, row.job, expected.last)
    if found != wanted or commit.epoch <= expected.last:
        raise ValueError(
            f"processor {expected.name}: a commit of {commit.epoch} behind {expected.last} in generation"
            f" {expected.generation} of job {row.job} has (generation, last, job, predecessor) = {wanted},"
            f" found {found}"
        )


def _check_kept(expected: Expected, row: ProcessorRow) -> None:
    if (row.name, row.leader) != (expected.name, expected.leader):
        raise ValueError(
            f"processor {expected.name}: a change keeps name and leader {expected.leader}, found {row.name} and"
            f" {row.leader}"
        )


def stale(expected: Expected) -> str:
    """The message for a row that is not as expected."""
    return (
        f"processor {expected.name}: expected leader {expected.leader}, generation {expected.generation} and last"
        f" {expected.last}; the row says otherwise: read it, and stop if another leads"
    )


def leads_no_longer(leader: LeaderToken, found: LeaderToken) -> str:
    """The message for a change that hangs on no row, from a leader of before."""
    return f"leader {leader} no longer leads, {found} does: stop"
