"""A store that falls back to an older copy of itself, as behind a fail-over to a replica that lags; and its operator.

A coordinator that ends because the store has lost something says which copy must come back: the operator puts the other one in its place,
the newest where the older one was refused, and the older one again where leaders have told of more in it.
"""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidemark.shared.adapters.memory_commit_store import MemoryCommitState
from tidemark.shared.model.ids import NO_LEADER

if TYPE_CHECKING:
    from tests.harness.simulation.world import SimWorld

EVERY_MS: Final = 5
KEPT: Final = 100
HEARD_MS: Final = 1_000
"""Within which the operator hears all that is said of a copy."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What the store had, and what the watcher had seen of it."""

    at_ms: int
    state: MemoryCommitState
    seen: Any


class Copies:
    """Of a world's store: as it lately was, and behind a fall the one that is not in place."""

    def __init__(self, world: "SimWorld") -> None:
        self._world = world
        self._lately: deque[Copy] = deque(maxlen=KEPT)
        self._other: Copy | None = None
        self._put_ms = 0
        self._fallen_to = (NO_LEADER, 0)
        """The leader of the copy that the store fell back to, and its changes."""

    async def keep(self) -> None:
        """Copy it whenever it has changed."""
        while True:
            if not self._lately or self._lately[-1].state.changes != self._world.store.changes:
                self._lately.append(self._taken())
            await self._world.clock.sleep_ms(EVERY_MS)

    def fall_back(self, changes: int) -> None:
        """The store is as it was so many changes ago, or as the oldest copy is; once."""
        if self._other is not None or not self._lately:
            return
        newest = self._taken()
        left = newest.state.changes - changes
        older = next((copy for copy in reversed(self._lately) if copy.state.changes <= left), self._lately[0])
        self._other = newest
        lost = newest.state.changes - older.state.changes
        self._world.say(f"the store falls back to {older.at_ms} ms: {lost} changes are lost")
        self._fallen_to = (older.state.token, older.state.changes)
        self._put(older)

    def in_force(self) -> MemoryCommitState:
        """What decisions rest on: the newest, until the older one is led or changed by a leader that heard of no loss.

        What was asked for before the fall still happens.
        """
        store = self._world.store
        untouched = self._fallen_to == (store.token, store.changes)
        return self._other.state if self._other is not None and untouched else store

    def put_other_back(self) -> None:
        """By the operator: whoever led said that what is in place has lost something. Two that say it of one copy mean one thing."""
        now_ms = self._world.now_ms()
        if self._other is not None and now_ms - self._put_ms > HEARD_MS:
            other, self._other = self._other, self._taken()
            self._world.say(f"the operator puts the copy of {other.at_ms} ms in its place")
            self._put(other)

    def _taken(self) -> Copy:
        world, store = self._world, self._world.store
        state = MemoryCommitState(
            store.holder,
            store.token,
            store.expires_ms,
            store.changes,
            dict(store.rows),
            {job: list(entries) for job, entries in store.lineage.items()},
            {job: dict(commits) for job, commits in store.commits.items()},
            {name: list(jobs) for name, jobs in store.jobs.items()},
            dict(store.connections),
        )
        return Copy(world.now_ms(), state, world.watcher.seen_of_the_store())

    def _put(self, copy: Copy) -> None:
        store, state = self._world.store, copy.state
        store.holder, store.token, store.expires_ms = state.holder, state.token, state.expires_ms
        store.changes, store.rows, store.lineage = state.changes, state.rows, state.lineage
        store.jobs, store.connections = state.jobs, state.connections
        store.put_commits(state.commits)
        self._world.watcher.see_again(copy.seen)
        self._put_ms = self._world.now_ms()
