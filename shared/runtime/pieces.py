"""How much work is done at once where nobody knows what an item costs: a row that expressions go through, a timer's callback."""

from typing import Final

_FIRST: Final = 8
_MOST: Final = 1 << 20
"""Items of a piece: few at first, for an item may take seconds; then as many as its time allows."""
_GROWTH: Final = 4
_PART: Final = 8
"""A piece may take this part of what the work has taken until now: where a call costs more than items, on a machine under load, smaller
pieces would be no faster."""
_LONGEST_MS: Final = 2_000
"""And no longer than this, however long the work takes: a checkpoint is given up after a minute."""


class Pieces:
    """The size of the next piece of some work, by the time that pieces took. A barrier waits for a piece at the most."""

    def __init__(self, least_ms: int) -> None:
        """least_ms: what a piece may take in any case, so that the costs of each call do not count."""
        self.items = _FIRST
        """At most so many in the next piece; at least 1."""
        self._least_ms = least_ms
        self._worked_ms = 0

    def begin(self) -> None:
        """Another work begins; what an item costs stays known."""
        self._worked_ms = 0

    def took(self, items: int, took_ms: int, *, more: bool) -> None:
        """A piece of so many items took so long; whether there were more than it was allowed."""
        most_ms = min(max(self._least_ms, self._worked_ms // _PART), _LONGEST_MS)
        self._worked_ms += took_ms
        if took_ms > most_ms:
            self.items = max(1, min(self.items // 2, items * most_ms // took_ms))
        elif more and 2 * took_ms < most_ms:
            self.items = min((_GROWTH if _GROWTH * took_ms < most_ms else 2) * self.items, _MOST)
