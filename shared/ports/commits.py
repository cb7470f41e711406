"""The coordinator's store: one row a processor is the truth (C8). SQLite, PostgreSQL, or memory.

Every change of a processor's row is conditional on `Expected` and touches one row, or raises `Stale`. A connection that broke while
the answer was awaited raises `Ambiguous`: the change may or may not have happened; take leadership anew, then read.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from tidemark.shared.model.checkpoint import CommitRow, LineageEntry
from tidemark.shared.model.ids import NO_LEADER, Epoch, Generation, JobId, LeaderToken
from tidemark.shared.model.processors import Expected, ProcessorRow

__all__ = [
    "Ambiguous",
    "CommitStore",
    "Expected",
    "ProcessorRow",
    "Stale",
    "StoreLost",
    "StoreUnavailable",
    "StoreUnusable",
]


class StoreUnavailable(Exception):
    """The store cannot be reached; nothing was changed."""


class Ambiguous(Exception):
    """The answer to a change was lost: it may or may not have happened (C8)."""


class Stale(Exception):
    """The row was not as expected: somebody else has changed it; nothing was changed."""


class StoreUnusable(Exception):
    """The store must not be used, and waiting changes nothing. The message is a sentence that says what to do."""


class StoreLost(StoreUnusable):
    """The store has lost something that it had confirmed, or cannot be read any more (C8)."""


def counts_fewer(changes: int, confirmed: int) -> str:
    """The sentence where a store counts fewer changes than it has confirmed."""
    return lacks(f"counts {changes} changes, but had confirmed {confirmed}")


def names_earlier(leader: LeaderToken, told: LeaderToken) -> str:
    """The sentence where a store has never named a leader that has told of itself."""
    return lacks(f"names leader {leader} as the last, but leader {told} has told of itself")


def lacks(what: str) -> str:
    """The sentence for a store that contradicts what it was told."""
    return (
        f"the store {what}: it was deleted, or replaced by an older copy, and has lost the processors, connections and commits"
        f" since; nothing was changed. {WHAT_TO_DO}"
    )


WHAT_TO_DO: Final = (
    "Stop, and put its newest backup back in its place (of SQLite without the files …-wal and …-shm of another copy), or begin anew"
    " with another data folder (tidemark run --data) or another prefix of topics (TIDEMARK_PREFIX)"
)


class CommitStore(Protocol):
    """Leadership, processors, lineage, commits, connections."""

    @property
    def changes(self) -> int:
        """How many changes the store has confirmed, as far as this process knows: every call that writes, but `renew`, is one."""
        ...

    async def open(self) -> None:
        """Create the tables that are missing. Check that durability is set as C8 asks."""
        ...

    async def lead(
        self,
        holder: str,
        lease_ms: int,
        now_ms: int,
        told: int = 0,
        led: LeaderToken = NO_LEADER,
        looked_ms: int | None = None,
    ) -> LeaderToken | None:
        """Take leadership if the lease is free, over or ours by name; writes the new token into every processor's row; None if held.

        told, led: the most changes that any leader has told of, and the last leader that has. StoreLost, and nothing is changed,
        where the store counts fewer, or has named none of that number; so in every later call that writes, where it counts fewer
        than `changes`.
        Over: because for `lease_ms` nobody has renewed it, by `looked_ms`; or by `now_ms`, until the candidate has seen it renewed.
        looked_ms: the candidate's monotonic clock; None: `now_ms`, where nobody sets that.
        """
        ...

    async def renew(self, token: LeaderToken, lease_ms: int, now_ms: int) -> bool:
        """Keep the lease; False if it is no longer ours."""
        ...

    async def processors(self) -> list[ProcessorRow]:
        """The rows of all processors."""
        ...

    async def create(self, row: ProcessorRow) -> None:
        """A new row; Stale if the name is taken."""
        ...

    async def update(self, expected: Expected, row: ProcessorRow) -> None:
        """Replace the columns that may change without a commit: desired, state, reason, reserved, failures, plan, extra."""
        ...

    async def new_generation(self, expected: Expected, row: ProcessorRow, entry: LineageEntry) -> None:
        """Write the row with its new generation, and its lineage entry, in one transaction (R1).

        Every column comes from `row`: a start without state (E2) changes `job`, sets `last` to 0, and its entry is the new job's first.
        """
        ...

    async def commit(self, expected: Expected, row: ProcessorRow, commit: CommitRow) -> None:
        """Write the row with `last = commit.epoch`, and the commit row, in one transaction (C8, C9)."""
        ...

    async def drop(self, expected: Expected) -> None:
        """Delete the row and all that belongs to its job."""
        ...

    async def lineage(self, job: JobId) -> list[LineageEntry]:
        """All generations, oldest first."""
        ...

    async def commits(self, job: JobId, after: Epoch) -> list[CommitRow]:
        """Commit rows above `after` that are still kept, oldest first."""
        ...

    async def forget(
        self, leader: LeaderToken, job: JobId, epochs: Sequence[Epoch], generations: Sequence[Generation] = ()
    ) -> None:
        """Let go of commit rows that nothing can resume from or release any more (C11), and of lineage; Stale if another leads."""
        ...

    async def connections(self) -> dict[str, str]:
        """The connection registry: JSON by name."""
        ...

    async def put_connection(self, leader: LeaderToken, name: str, value: str | None) -> None:
        """Write or, with None, delete a connection; Stale if another leads."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
