"""Two coordinators, workers, store, mirror and clock act at random; the rules hold after every event, and in the end all goes on.

The judge (`tests.unit.protocol_coordinator_judge`) watches what reaches the outside; `invariants.violations` is asked after every event.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.property.protocol_coordinator_chaos import Chaos, Choose, simulate

T = TypeVar("T")
SEEDS = 12
STEPS = 250


def _by(data: Any) -> Choose:
    def choose(among: Sequence[T], /) -> T:
        index: int = data.draw(st.integers(0, len(among) - 1))
        return among[index]

    return choose


class Coordination(RuleBasedStateMachine):
    """The world at random."""

    def __init__(self) -> None:
        super().__init__()
        self.chaos = Chaos()

    @initialize(parallelism=st.sampled_from([{}, {"sink": 2}, {"operator": 2}]))
    def begin(self, parallelism: dict[str, int]) -> None:
        """A processor runs."""
        self.chaos.begin(parallelism)

    @rule(data=st.data(), times=st.integers(1, 6))
    def carry_out(self, data: Any, times: int) -> None:
        """A coordinator's commands are carried out."""
        self.chaos.carry_out(_by(data), times)

    @rule(data=st.data(), times=st.integers(1, 8))
    def hear_and_obey(self, data: Any, times: int) -> None:
        """Reports and commands arrive; something may come late."""
        self.chaos.hear(_by(data), times)
        self.chaos.obey(_by(data), times)
        self.chaos.carry_out_late(_by(data))

    @rule(data=st.data())
    def time_passes(self, data: Any) -> None:
        """The clock goes on, sinks release."""
        self.chaos.time_passes(_by(data))
        self.chaos.release(_by(data))

    @rule(data=st.data(), times=st.integers(1, 6))
    def well(self, data: Any, times: int) -> None:
        """For a while all but everything works."""
        self.chaos.well(_by(data), times)

    @rule(data=st.data())
    def trouble(self, data: Any) -> None:
        """Something breaks."""
        self.chaos.trouble(_by(data))

    @rule(data=st.data())
    def user(self, data: Any) -> None:
        """Somebody asks for something."""
        self.chaos.user(_by(data))

    def teardown(self) -> None:
        """All goes on in the end."""
        if self.chaos.world.store.rows:
            self.chaos.end()


Coordination.TestCase.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCoordination = Coordination.TestCase
TestCoordination.__doc__ = "No interleaving of two coordinators, workers, store, mirror, clock and users breaks a rule."


@pytest.mark.parametrize("seed", range(SEEDS))
def test_long_runs(seed: int) -> None:
    """No rule breaks in a long run, and in the end every processor comes to what was asked."""
    chaos = simulate(seed, STEPS)
    assert chaos.world.judge.outputs
