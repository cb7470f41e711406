"""Which windows a time belongs to: tumbling and hopping, vectorised. Sessions are in `sessions.py`.

Windows are [start, end), begin at k · hop + offset, and are aligned to 1970 whatever their size (D5, D7). Clock logic (what is late,
what closes) is not here.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tidemark.shared.language.stages import HoppingWindow, TumblingWindow

Int64s = npt.NDArray[np.int64]

EVENT_TIME_LIMIT_MS: Final = 2**61
"""Event times lie strictly within ± this, so that no sum with a duration leaves 64 bits."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Rows and their windows: row `rows[i]` belongs to [starts[i], starts[i] + size). Shape (m,) each, grouped by row, starts ascending."""

    rows: Int64s
    starts: Int64s
    size_ms: int
    in_gaps: int
    """Rows that belong to no window: a hop above the size leaves gaps."""

    @property
    def ends(self) -> Int64s:
        """Exclusive ends, ms; shape (m,)."""
        return self.starts + self.size_ms


def assign(times_ms: Int64s, window: TumblingWindow | HoppingWindow) -> Assignment:
    """The windows of each time; shape (n,) in, about n · size / hop out."""
    size, hop, offset = window.interval_ms, window.hop_size_ms, window.offset_ms
    last = (times_ms - offset) // hop * hop + offset
    rows = np.arange(len(times_ms), dtype=np.int64)
    if size == hop:
        return Assignment(rows, last, size, 0)
    per_row = -(-size // hop)
    back = np.arange(per_row - 1, -1, -1, dtype=np.int64) * hop
    starts = last[:, None] - back[None, :]
    inside = starts + size > times_ms[:, None]
    index, _ = np.nonzero(inside)
    return Assignment(index.astype(np.int64), starts[inside], size, int((~inside.any(axis=1)).sum()))
