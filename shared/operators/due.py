"""Which keys of a task have something to apply, and when.

- DU1 A key is noted under one time or none; noting it again forgets what was noted before.
- DU2 What is kept is bounded by the keys that are noted: of what was forgotten no more than as much again waits to be thrown away.
"""

import heapq
from typing import Final

from tidemark.shared.model.time import MAX_TIME

_SLACK: Final = 64


class Due:
    """Keys by their times, ms."""

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[bytes, int] = {}
        self._heap: list[tuple[int, bytes]] = []
        """Entries whose key has another time by now are passed over."""

    def __len__(self) -> int:
        """Entries in memory, forgotten ones included."""
        return len(self._heap)

    def note(self, key: bytes, time_ms: int | None) -> None:
        """When the key next has something to apply; None for never."""
        if time_ms is None:
            self._times.pop(key, None)
        elif self._times.get(key) != time_ms:
            self._times[key] = time_ms
            heapq.heappush(self._heap, (time_ms, key))
        if len(self._heap) > 2 * len(self._times) + _SLACK:  # DU2
            self._heap = [(at_ms, noted) for noted, at_ms in self._times.items()]
            heapq.heapify(self._heap)

    def first_ms(self) -> int:
        """The earliest time; MAX_TIME where no key is noted."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else MAX_TIME

    def take(self, below_ms: int) -> list[bytes]:
        """The keys noted for a time below this, in the order of their bytes; they are noted no more."""
        taken = []
        while self._heap and self._heap[0][0] < below_ms:
            time_ms, key = heapq.heappop(self._heap)
            if self._times.get(key) == time_ms:
                del self._times[key]
                taken.append(key)
        return sorted(taken)

    def keys(self) -> set[bytes]:
        """All that are noted."""
        return set(self._times)
