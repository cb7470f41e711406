"""Traffic as applications make it: when records come and happened, where to, under which keys, how packed, and what is between them."""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

_BUSY_S: Final = 2.0
_SILENT_S: Final = 3.0
_DISORDER_MS: Final = 3_000
_SPREAD: Final = 7_919
"""A prime: neighbours are far from each other."""
_ODD_EVERY: Final = 100
_ODD_MS: Final = {"past": -700_000_000_000, "ahead": 86_400_000, "late": -60_000}
_GAP_EVERY: Final = 1_500
_GAP_MS: Final = 86_400_000
_HOT_EVERY: Final = 10
_GROUPS: Final = 1_000
_LARGE: Final = b',"large":"%b"' % (b"x" * 300_000)

Times = Literal["now", "disorder", "past", "late", "ahead", "gaps"]


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
    keys: Literal["none", "few", "many", "odd"] = "none"
    """Of records in the topic. `few`: ten; `many`: each has its own; `odd`: its own, which is no UTF-8."""
    times: Times = "now"
    """The event time: when the record is made; up to three seconds before; of one in a hundred years or a minute before, or a day later.
    `gaps`: a day passes behind each 1,500 records."""
    groups: Literal["even", "one", "hot", "each"] = "even"
    """What windows and computations group by. `even`: a thousand; `one`: a single one; `hot`: one that has nine of ten records, and a
    thousand; `each`: each record its own."""
    repeats_every: int = 0
    """Behind one record in so many comes one again that was sent up to 5,000 records before; 0: none."""
    tombstones_every: int = 0
    """Behind one record in so many comes one without a value; 0: none."""
    aborted_every: int = 0
    """One transaction in so many is aborted, and its records are sent once more; 0: none."""

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

    def more(self, number: int, made_ms: int) -> bytes:
        """Fields of this record beside those of all: the event time is `at`, where it is not the time at which the record was made."""
        large = _LARGE if self.large_every and number % self.large_every == self.large_every - 1 else b""
        at = b"" if self.times == "now" else b',"at":%d' % self._at_ms(number, made_ms)
        group = b"" if self.groups == "even" else b',"group":"group-%d"' % self._group(number)
        return large + at + group

    def _at_ms(self, number: int, made_ms: int) -> int:
        match self.times:
            case "disorder":
                return made_ms - number * _SPREAD % _DISORDER_MS
            case "gaps":
                return made_ms + number // _GAP_EVERY * _GAP_MS
        return made_ms + (_ODD_MS[self.times] if number % _ODD_EVERY == _ODD_EVERY - 1 else 0)

    def _group(self, number: int) -> int:
        match self.groups:
            case "one":
                return 0
            case "hot":
                return number % _GROUPS if number % _HOT_EVERY == 0 else 1
        return number

    def key(self, number: int) -> bytes | None:
        """The key of this record in the topic."""
        match self.keys:
            case "none":
                return None
            case "few":
                return b"key-%d" % (number % 10)
            case "many":
                return b"key-%d" % number
            case "odd":
                return b"\xff\xfe%d" % number


EVEN: Final = Traffic()
