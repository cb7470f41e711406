"""Computations, stateless chains, joins and lookups under every fault: see README.md beside. A seed is a run."""

import pytest

from tests.harness.simulation.drawing import SHAPES
from tests.harness.simulation.seeds import held, seeds_of


@pytest.mark.parametrize("seed", seeds_of(SHAPES[4:]))
def test_what_rows_release_is_the_oracles_whatever_befalls_them(seed: int) -> None:
    """The seed's pipeline gives what the oracle says, each once, in order; nothing needed is deleted, and it comes to its end."""
    held(seed)
