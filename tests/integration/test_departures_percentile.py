"""The percentile strategy on the year of departures: it keeps to what it declares, and does not wait for every straggler."""

from datetime import datetime

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from tests.oracle.check_demo import feed_of
from tidemark.shared.language.stages import BoundedDisorder, Percentile
from tidemark.shared.operators.watermarks import SplitClock, advance, watermark_of

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def splits() -> list[npt.NDArray[np.int64]]:
    """Scheduled times of each partition's flights, in the order in which they left, without repeats."""
    found = []
    for records in feed_of().partitions:
        flights = [msgspec.json.decode(value) for _, value in records]
        times = {f["id"]: int(datetime.fromisoformat(f["scheduled"]).timestamp() * 1000) for f in flights}
        found.append(np.array(list(times.values()), dtype=np.int64))
    return found


def behind(times_ms: npt.NDArray[np.int64], before_ms: npt.NDArray[np.int64]) -> float:
    """Counted one by one: the fraction of the records that came behind the watermark that was there."""
    late: int = sum(t < w for t, w in zip(times_ms.tolist(), before_ms.tolist(), strict=True))
    return late / len(times_ms)


@pytest.mark.parametrize("window_days", [1, 7])
@pytest.mark.parametrize("fraction", [0.1, 0.01, 0.001])
def test_every_split_of_the_year_keeps_to_the_declared_fraction(
    splits: list[npt.NDArray[np.int64]], fraction: float, window_days: int
) -> None:
    """At most the declared fraction of each split's flights is behind its watermark, and the report says exactly how many."""
    for times in splits:
        clock = SplitClock()
        before = advance(clock, times, Percentile(fraction, window_days * DAY_MS))
        achieved = behind(times, before)
        assert achieved <= fraction
        assert clock.late / clock.seen == pytest.approx(achieved)
        assert achieved > fraction / 2, "it holds back just enough, not all that it could"


def test_it_waits_less_than_a_delay_that_nobody_misses(splits: list[npt.NDArray[np.int64]]) -> None:
    """With one flight in a hundred late, the watermark is on average several times nearer than with the delay that covers all."""
    times = splits[0]
    held = advance(SplitClock(), times, Percentile(0.01, 7 * DAY_MS))
    highest = np.maximum.accumulate(times)
    all_of_it = int((highest - times).max())
    covers = advance(SplitClock(), times, BoundedDisorder(all_of_it))
    assert behind(times, covers) == 0
    assert float((highest[1:] - held[1:]).mean()) < all_of_it / 3


def test_cuts_change_nothing(splits: list[npt.NDArray[np.int64]]) -> None:
    """The same watermarks in batches of any size, and with the state written and read between them."""
    times = splits[3]
    strategy = Percentile(0.02, DAY_MS)
    whole = SplitClock()
    expected = advance(whole, times, strategy)
    clock, found, at = SplitClock(), [], 0
    sizes = np.random.default_rng(5).integers(1, 900, size=len(times))
    for size in sizes.tolist():
        found.append(advance(clock, times[at : at + size], strategy))
        clock = msgspec.msgpack.decode(msgspec.msgpack.encode(clock), type=SplitClock)
        at += size
        if at >= len(times):
            break
    assert np.array_equal(np.concatenate(found), expected)
    assert watermark_of(clock, strategy) == watermark_of(whole, strategy)
