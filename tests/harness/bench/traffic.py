"""Traffic as applications make it: when records come, to which partitions, how large, packed how, and in transactions or not."""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

_BUSY_S: Final = 2.0
_SILENT_S: Final = 3.0
_LARGE: Final = b',"large":"%b"' % (b"x" * 300_000)


@dataclass(frozen=True)
class Traffic:
    """An even stream of small records over all partitions, where nothing else is said."""

    shape: Literal["steady", "bursts", "pauses", "ramp"] = "steady"
    """`bursts`: the records of a second come at its beginning. `pauses`: two seconds of records, three of silence. `ramp`: from nothing to
    twice the rate."""
    skew: Literal["even", "some", "zipf", "one"] = "even"
    """`some`: a quarter of the partitions have all records; `zipf`: the n-th has 1/n of the first's."""
    compression: str | None = None
    transaction_ms: int = 0
    """How long a transaction of the producer is open; 0: it has none."""
    large_every: int = 0
    """One record in so many has 300 KB; 0: none."""

    def due(self, seconds: float, pace: float, count: int) -> int:
        """How many records were made so many seconds after the first, at so many a second in the mean."""
        whole, rest = divmod(seconds, _BUSY_S + _SILENT_S)
        busy_s = (whole * _BUSY_S + min(rest, _BUSY_S)) * (_BUSY_S + _SILENT_S) / _BUSY_S
        made = {
            "steady": seconds * pace,
            "bursts": (int(seconds) + 1) * pace,
            "pauses": busy_s * pace,
            "ramp": (seconds * pace) ** 2 / count,
        }
        return min(count, int(made[self.shape]))

    def weights(self, partitions: int) -> npt.NDArray[np.float64]:
        """The part of the records that each partition gets."""
        ranks = np.arange(1, partitions + 1)
        weights: npt.NDArray[np.float64] = {
            "even": np.ones(partitions),
            "some": np.where(ranks <= max(1, partitions // 4), 1.0, 0.0),
            "zipf": 1.0 / ranks,
            "one": np.where(ranks == 1, 1.0, 0.0),
        }[self.skew]
        chosen: npt.NDArray[np.float64] = weights / weights.sum()
        return chosen

    def more(self, number: int) -> bytes:
        """Fields of this record beside those of all."""
        return _LARGE if self.large_every and number % self.large_every == self.large_every - 1 else b""


EVEN: Final = Traffic()
