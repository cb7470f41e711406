"""Which runs of a snapshot are written anew: of rows that a task has in memory, of which a run is written once and never changed.

Rules (for waiting rows of a computation, and rows of a join):

- RS1 Each run has at least twice as many rows as the one behind it: those that would not become one with it.
- RS2 Where fewer than half of the rows in runs are there, all that are there become one run.

So of n rows there are log2(n) + 1 runs at the most, a row is written again as often as its run is merged, and no more than half of what
lies in runs is gone. A merge reads nothing.
"""

from collections.abc import Sequence
from typing import Final

_AS_LARGE: Final = 2


def runs_kept(sizes: Sequence[int], new: int, there: int) -> int:
    """How many of the first runs stay, by their numbers of rows; the rows of the others become one run with the new ones.

    there: how many rows there are, the new ones among them.
    """
    if sum(sizes) + new > _AS_LARGE * there:
        return 0
    kept = len(sizes)
    while kept and sizes[kept - 1] < _AS_LARGE * new:
        kept -= 1
        new += sizes[kept]
    return kept
