"""The timers of one key, as its computation sees them, and in what order they are due.

Rules:

- A name stands for one timer of the key: setting it again replaces the one before.
- A timer whose time has passed when it is set fires at once, with the time of the record or timer that set it. With `order: eventTime`
  passed means before the record or timer that is being applied, whatever the watermark; so it does not
  depend on how far the watermark happens to be.
- Timers of one time fire in the order of (time they were set for, name).
"""

import heapq
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidemark.shared.computation.problems import TimerError
from tidemark.shared.computation.records import Domain
from tidemark.shared.language.limits import DEFAULTS
from tidemark.shared.model.time import MAX_TIME, MIN_TIME

_SLACK: Final = 16
_NO_NAMES: Final[dict[str, "PendingTimer"]] = {}
_NONE: Final[list["PendingTimer"]] = []
_NO_CHANGES: Final[list[tuple[str, "PendingTimer | None"]]] = []
"""Of keys that have never had a timer, which are many: containers of their own would be most of a key. Nothing is put into them."""
NAME_MAX: Final = 200
"""Characters of a timer's name."""


class PendingTimer(NamedTuple):
    """A timer that is set."""

    due_ms: int
    """It fires when the watermark is above this (event time) or processing time has reached it."""
    time_ms: int
    """The time for which the timer was set."""
    name: str
    domain: Domain
    output_ms: int
    """The time of the documents that it yields; for processing time the least such time."""


class Timers:
    """The timers of a key. Made by the operator; a computation uses `set`, `cancel` and `time_of`."""

    __slots__ = ("_behind_ms", "_clock_heap", "_heap", "_most", "_now_ms", "_pending", "_undo")

    def __init__(self, pending: Iterable[PendingTimer] = (), most: int = DEFAULTS.timers_max) -> None:
        """`most`: timers that may be pending."""
        self._most = most
        self._pending: dict[str, PendingTimer] = _NO_NAMES
        self._heap: list[PendingTimer] = _NONE
        """By event time; what is no longer pending is passed over."""
        self._clock_heap: list[PendingTimer] = _NONE
        """By processing time."""
        self._undo: list[tuple[str, PendingTimer | None]] = _NO_CHANGES
        """Timers that the callback has set or cancelled, by name: the timer that was there before."""
        if given := {p.name: p for p in pending}:
            self._open(given)
        self._now_ms = MIN_TIME
        self._behind_ms: int | None = None

    def set(self, name: str, time: int, domain: Domain = "event") -> None:
        """Set the timer of this name to `time`, UTC ms; TimerError for a bad name or time, or one too many."""
        _check(name, time, domain)
        if len(self._pending) >= self._most and name not in self._pending:
            raise TimerError(
                f"timer {name!r}: this key has {self._most} timers already, and more are not allowed; set fewer, or "
                "options.limits.timersPerKey"
            )
        if self._pending is _NO_NAMES:
            self._open({})
        self._undo.append((name, self._pending.get(name)))
        self._add(self._timed(name, int(time), domain))

    def cancel(self, name: str) -> None:
        """Forget the timer of this name, if there is one."""
        if name in self._pending:
            self._undo.append((name, self._pending.pop(name)))

    def time_of(self, name: str) -> int | None:
        """The time for which the pending timer of this name is set, ms; None if there is none."""
        pending = self._pending.get(name)
        return None if pending is None else pending.time_ms

    # --- for the operator -----------------------------------------------------------------------------------

    def begin(self, now_ms: int, watermark_ms: int | None) -> None:
        """Set the time of later calls, which `undo` takes back.

        watermark_ms: with `order: arrival`, times below it have passed; None: `now_ms` decides.
        """
        self._undo.clear()
        self._now_ms = now_ms
        self._behind_ms = watermark_ms

    def first(self, domain: Domain) -> PendingTimer | None:
        """The pending timer that is due first."""
        heap = self._heap if domain == "event" else self._clock_heap
        while heap and self._pending.get(heap[0].name) is not heap[0]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def take(self, pending: PendingTimer) -> None:
        """The timer fires: it is pending no more."""
        if self._pending.get(pending.name) is pending:
            del self._pending[pending.name]

    def is_pending(self, pending: PendingTimer) -> bool:
        """Whether this very timer is pending still, neither cancelled nor set anew."""
        return self._pending.get(pending.name) is pending

    def all(self) -> list[PendingTimer]:
        """All that are pending, in the order in which they are due."""
        return sorted(self._pending.values())

    def undo(self) -> None:
        """Exactly those are pending that were when the callback began."""
        if not self._undo:
            return
        for name, before in reversed(self._undo):
            if before is None:
                self._pending.pop(name, None)
            else:
                self._pending[name] = before
        self._undo.clear()
        self._order()

    @property
    def ever(self) -> bool:
        """Whether there has been a timer."""
        return self._pending is not _NO_NAMES

    def __len__(self) -> int:
        return len(self._pending)

    def _timed(self, name: str, time_ms: int, domain: Domain) -> PendingTimer:
        if domain == "processing":
            return PendingTimer(time_ms, time_ms, name, domain, self._now_ms)
        if self._behind_ms is None:
            due_ms = max(time_ms, self._now_ms)
            return PendingTimer(due_ms, time_ms, name, domain, due_ms)
        passed = time_ms < self._behind_ms
        return PendingTimer(time_ms, time_ms, name, domain, self._now_ms if passed else time_ms)

    def _add(self, pending: PendingTimer) -> None:
        self._pending[pending.name] = pending
        heap = self._heap if pending.domain == "event" else self._clock_heap
        heapq.heappush(heap, pending)
        if len(heap) > 2 * len(self._pending) + _SLACK:
            # A timer that is set again and again leaves one behind each time: they go when they are as many as those that count.
            self._order()

    def _open(self, pending: dict[str, PendingTimer]) -> None:
        self._pending, self._undo = pending, []
        self._order()

    def _order(self) -> None:
        self._heap = [p for p in self._pending.values() if p.domain == "event"]
        self._clock_heap = [p for p in self._pending.values() if p.domain != "event"]
        heapq.heapify(self._heap)
        heapq.heapify(self._clock_heap)


def _check(name: object, time: object, domain: object) -> None:
    """TimerError for wrong arguments that types alone do not keep out: users' code is often not checked."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX:
        raise TimerError(f"a timer's name is a text of 1 to {NAME_MAX} characters, not {name!r}")
    if not isinstance(time, int) or isinstance(time, bool) or not MIN_TIME < time < MAX_TIME:
        raise TimerError(f"timer {name!r}: its time is an integer of milliseconds since 1970, not {time!r}")
    if domain not in ("event", "processing"):
        raise TimerError(f"timer {name!r}: its domain is 'event' or 'processing', not {domain!r}")
