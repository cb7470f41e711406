"""The contract of computations finds what it is for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from tidemark import Computation, NoConfig, Record, Timer, Timers
from tidemark.testing import ComputationContract


@dataclass
class Seen:
    n: int = 0


class Right(Computation[Seen, NoConfig]):
    """The number of a key's records, ten behind the last."""

    State = Seen

    def process(self, record: Record, state: Seen, timers: Timers) -> Any:
        state.n += 1
        timers.set("end", record.timestamp + 10)

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Any:
        del timer, timers
        yield {"n": state.n}
        state.n = 0


class Forgets(Right):
    """Counts beside its state."""

    def __init__(self, config: NoConfig) -> None:
        super().__init__(config)
        self.counts: dict[Any, int] = {}

    def process(self, record: Record, state: Seen, timers: Timers) -> Any:
        super().process(record, state, timers)
        state.n = self.counts[record.key] = self.counts.get(record.key, 0) + 1


class Shares(Right):
    """Counts all keys of all objects together."""

    total: ClassVar[int] = 0

    def process(self, record: Record, state: Seen, timers: Timers) -> Any:
        super().process(record, state, timers)
        Shares.total += 1
        state.n = Shares.total


class Batched(Right):
    """Tells how many records came together, which is chance."""

    batch_schema = pa.schema([("n", pa.int64())])

    def process_batch(self, batch: pa.RecordBatch, state: Seen, timers: Timers) -> pa.RecordBatch:
        del state, timers
        counts = pa.array([batch.num_rows] * batch.num_rows, pa.int64())
        return pa.RecordBatch.from_arrays([counts, batch.column("timestamp")], names=["n", "timestamp"])


class Silent(Right):
    """Gives nothing."""

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Any:
        """Nothing."""


class Contract(ComputationContract):
    __test__ = False
    key = "k"
    records = tuple(
        ({"k": key, "n": n}, at) for n, (key, at) in enumerate([("a", 3), ("b", 1), ("a", 2), ("a", 20), ("b", 9)])
    )


def of(computation: type[Computation[Any, Any]]) -> Contract:
    suite = Contract()
    suite.plugin = computation  # type: ignore[misc]
    return suite


RESTART = ComputationContract.test_a_restart_changes_nothing
ALONE = ComputationContract.test_a_key_knows_nothing_of_others
PACE = ComputationContract.test_the_pace_changes_nothing


def test_a_computation_that_keeps_to_its_state_passes() -> None:
    """All of it."""
    for test in (RESTART, ALONE, PACE):
        test(of(Right))


@pytest.mark.parametrize(
    ("computation", "test", "says"),
    [
        (Forgets, RESTART, "a restart behind record"),
        (Shares, ALONE, "without the others"),
        (Silent, RESTART, "nothing comes out"),
        (Batched, PACE, "no watermark before the end"),
    ],
)
def test_one_that_does_not_is_told(
    computation: type[Computation[Any, Any]], test: Callable[[Any], None], says: str
) -> None:
    """By the first difference."""
    with pytest.raises(AssertionError, match=says):
        test(of(computation))
