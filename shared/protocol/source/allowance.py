"""The bytes that a source task may take: its share of what its namespace may take in a second (E4).

A bucket that holds a second of the share at the most. It may be overdrawn by one row, which cannot be divided, and is paid back before
the next: so every row comes through at any share. Input that waits for it is not lost and not idle (W4): the source stands as before a
slow receiver.
"""

from dataclasses import dataclass
from typing import Final

from tidemark.shared.protocol.errors import require

_PIECE: Final = 10
"""Nothing is taken before a tenth of a second of the share is there: single rows are slow."""
_S: Final = 1_000
"""Of milliseconds."""


@dataclass(slots=True)
class Allowance:
    """Of one source task. Times are monotonic, ms; bytes are those of records' values."""

    bytes_per_s: int = 0
    """0: it may take what it likes."""
    _room: float = 0.0
    """Bytes that may be taken now; below 0 after a row that was larger."""
    _at_ms: int = 0

    def told(self, bytes_per_s: int, now_ms: int) -> None:
        """The coordinator has given another share. A first one begins empty."""
        self._fill(now_ms)
        self.bytes_per_s = bytes_per_s
        self._room = min(self._room, float(bytes_per_s))

    def wait_ms(self, now_ms: int) -> int:
        """How long until something may be taken; 0: now."""
        self._fill(now_ms)
        short = self.bytes_per_s / _PIECE - self._room
        return 0 if not self.bytes_per_s or short <= 0 else max(1, int(short * _S / self.bytes_per_s))

    @property
    def room_bytes(self) -> int | None:
        """How many may be taken now; None: what it likes. A first row is taken even if it is larger."""
        return max(0, int(self._room)) if self.bytes_per_s else None

    def took(self, size_bytes: int, now_ms: int) -> None:
        """So many were taken."""
        if self.bytes_per_s:
            self._fill(now_ms)
            self._room -= size_bytes

    def _fill(self, now_ms: int) -> None:
        span_ms, self._at_ms = max(0, now_ms - self._at_ms), now_ms
        self._room = min(float(self.bytes_per_s), self._room + span_ms * self.bytes_per_s / _S)

    def validate(self, task: str) -> None:
        """Raise LocalError where it contradicts itself."""
        require(task, {"a bucket holds a second at the most (E4)": self._room <= self.bytes_per_s})
