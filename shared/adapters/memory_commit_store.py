"""The coordinator's store in memory, for simulation and trial: several clients share one `MemoryCommitState`.

With faults, a change may be refused, or its answer lost. Then it has happened, or happens a little later
unless a take-over of leadership comes first and voids it, as with a database whose connection broke.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from tidemark.shared.adapters.commit_rules import (
    LeaseWatch,
    check_commit,
    check_new_generation,
    check_update,
    leads_no_longer,
    stale,
)
from tidemark.shared.adapters.faults import Fault, Faults
from tidemark.shared.model.checkpoint import CommitRow, LineageEntry
from tidemark.shared.model.ids import NO_LEADER, Epoch, Generation, JobId, LeaderToken, ProcessorName
from tidemark.shared.model.processors import Expected, ProcessorRow
from tidemark.shared.ports.commits import Ambiguous, Stale, StoreLost, StoreUnavailable, counts_fewer, names_earlier

T = TypeVar("T")


@dataclass(slots=True)
class MemoryCommitState:
    """The content of the store."""

    holder: str = ""
    token: LeaderToken = NO_LEADER
    expires_ms: int = 0
    changes: int = 0
    rows: dict[ProcessorName, ProcessorRow] = field(default_factory=dict)
    lineage: dict[JobId, list[LineageEntry]] = field(default_factory=dict)
    commits: dict[JobId, dict[Epoch, CommitRow]] = field(default_factory=dict)
    jobs: dict[ProcessorName, list[JobId]] = field(default_factory=dict)
    connections: dict[str, str] = field(default_factory=dict)


class MemoryCommitStore:
    """`CommitStore` on a shared state."""

    def __init__(self, state: MemoryCommitState | None = None, faults: Faults | None = None) -> None:
        self._state = state or MemoryCommitState()
        self._faults = faults or Faults()
        self._late: set[asyncio.Task[None]] = set()
        self._lease = LeaseWatch()
        self.changes = 0
        """The number of changes that this client knows to be confirmed."""

    async def open(self) -> None:
        """Nothing is to be made, nothing is durable."""

    async def close(self) -> None:
        """There is nothing to release; changes that are on their way arrive."""

    # --- leadership

    async def lead(
        self,
        holder: str,
        lease_ms: int,
        now_ms: int,
        told: int = 0,
        led: LeaderToken = NO_LEADER,
        looked_ms: int | None = None,
    ) -> LeaderToken | None:
        """Take leadership if the lease is free, over or ours by name; every row gets the new token."""

        def take() -> LeaderToken | None:
            state = self._state
            if state.changes < told:
                raise StoreLost(counts_fewer(state.changes, told))
            if state.token < led:
                raise StoreLost(names_earlier(state.token, led))
            over = self._lease.over(state.token, state.expires_ms, lease_ms, now_ms, looked_ms)
            if state.holder not in ("", holder) and not over:
                return None
            state.holder, state.expires_ms = holder, now_ms + lease_ms
            state.token = LeaderToken(state.token + 1)
            state.rows = {name: replace(row, leader=state.token) for name, row in state.rows.items()}
            state.changes += 1
            return state.token

        return await self._change(take, counts=False)

    async def renew(self, token: LeaderToken, lease_ms: int, now_ms: int) -> bool:
        """Keep the lease; False if it is no longer ours."""

        def keep() -> bool:
            if self._state.token != token:
                return False
            self._state.expires_ms = now_ms + lease_ms
            return True

        return await self._change(keep, counts=False)

    # --- processors

    async def processors(self) -> list[ProcessorRow]:
        """All rows, by name."""
        await self._read()
        return [self._state.rows[name] for name in sorted(self._state.rows)]

    async def create(self, row: ProcessorRow) -> None:
        """A new row; Stale if the name is taken, or another leads."""

        def insert() -> None:
            self._require_leader(row.leader)
            if row.name in self._state.rows:
                raise Stale(f"processor {row.name}: the name is taken")
            self._state.rows[row.name] = row
            self._state.jobs.setdefault(row.name, []).append(row.job)

        await self._change(insert)

    async def update(self, expected: Expected, row: ProcessorRow) -> None:
        """Replace the columns that may change without a commit."""
        check_update(expected, row)
        await self._change(lambda: self._write(expected, row))

    async def new_generation(self, expected: Expected, row: ProcessorRow, entry: LineageEntry) -> None:
        """Write the row and its lineage entry (R1)."""
        check_new_generation(expected, row, entry)

        def begin() -> None:
            self._write(expected, row)
            self._state.lineage.setdefault(row.job, []).append(entry)
            jobs = self._state.jobs.setdefault(row.name, [])
            if row.job not in jobs:
                jobs.append(row.job)

        await self._change(begin)

    async def commit(self, expected: Expected, row: ProcessorRow, commit: CommitRow) -> None:
        """Write the row and the commit row (C8, C9)."""
        check_commit(expected, row, commit)

        def write() -> None:
            self._write(expected, row)
            self._state.commits.setdefault(row.job, {})[commit.epoch] = commit

        await self._change(write)

    async def drop(self, expected: Expected) -> None:
        """Delete the row and all that belongs to its jobs."""

        def delete() -> None:
            self._require(expected)
            del self._state.rows[expected.name]
            for job in self._state.jobs.pop(expected.name, []):
                self._state.lineage.pop(job, None)
                self._state.commits.pop(job, None)

        await self._change(delete)

    def _require_leader(self, leader: LeaderToken) -> None:
        if leader != self._state.token:
            raise Stale(leads_no_longer(leader, self._state.token))

    def _require(self, expected: Expected) -> None:
        row = self._state.rows.get(expected.name)
        if row is None or Expected(row.name, row.leader, row.generation, row.last) != expected:
            raise Stale(stale(expected))

    def _write(self, expected: Expected, row: ProcessorRow) -> None:
        self._require(expected)
        self._state.rows[row.name] = row

    # --- rows of a job, and connections

    async def lineage(self, job: JobId) -> list[LineageEntry]:
        """All generations, oldest first."""
        await self._read()
        return sorted(self._state.lineage.get(job, []), key=lambda entry: entry.generation)

    async def commits(self, job: JobId, after: Epoch) -> list[CommitRow]:
        """Commit rows above `after` that are still kept, oldest first."""
        await self._read()
        kept = self._state.commits.get(job, {})
        return [kept[epoch] for epoch in sorted(kept) if epoch > after]

    async def forget(
        self, leader: LeaderToken, job: JobId, epochs: Sequence[Epoch], generations: Sequence[Generation] = ()
    ) -> None:
        """Let go of commit rows, and of entries of the lineage."""

        def forget() -> None:
            self._require_leader(leader)
            for epoch in epochs:
                self._state.commits.get(job, {}).pop(epoch, None)
            gone = frozenset(generations)
            self._state.lineage[job] = [e for e in self._state.lineage.get(job, []) if e.generation not in gone]

        await self._change(forget)

    async def connections(self) -> dict[str, str]:
        """The connection registry."""
        await self._read()
        return dict(sorted(self._state.connections.items()))

    async def put_connection(self, leader: LeaderToken, name: str, value: str | None) -> None:
        """Write or delete a connection."""

        def put() -> None:
            self._require_leader(leader)
            if value is None:
                self._state.connections.pop(name, None)
            else:
                self._state.connections[name] = value

        await self._change(put)

    # --- faults

    async def _read(self) -> None:
        await self._faults.pause()
        if self._faults.draw("store.read") is not Fault.NONE:
            raise StoreUnavailable("the store did not answer; try again")

    async def _change(self, write: Callable[[], T], *, counts: bool = True) -> T:
        counted = 0

        def change() -> T:
            nonlocal counted
            if self._state.changes < self.changes:
                raise StoreLost(counts_fewer(self._state.changes, self.changes))
            result = write()
            self._state.changes += counts
            counted = self._state.changes
            return result

        await self._faults.pause()
        fault = self._faults.draw("store.write")
        if fault is Fault.REFUSED:
            raise StoreUnavailable("the store cannot be reached; nothing was changed, try again")
        if fault is Fault.LOST_ANSWER and not self._faults.coin():
            task = asyncio.get_running_loop().create_task(self._arrive(change), name="store.late", context=Context())
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            raise Ambiguous("the store did not answer: take leadership anew, then read")
        result = change()
        await self._faults.pause()
        if fault is Fault.LOST_ANSWER:
            raise Ambiguous("the store did not answer: take leadership anew, then read")
        self.changes = max(self.changes, counted)
        return result

    async def _arrive(self, change: Callable[[], object]) -> None:
        """A change of a client that has given up; nobody hears whether it was still possible."""
        await self._faults.pause()
        try:
            change()
        except Stale:
            return
