"""Seeds as tests: which ones, and what is said when one fails."""

from collections.abc import Sequence
from typing import Final

from tests.harness.share import share
from tests.harness.simulation.drawing import SHAPES, Shape
from tests.harness.simulation.story import run
from tests.harness.simulation.writes import WRITES

SEEDS: Final = 300
"""`make simulate` runs these and others; a change in CI every twelfth one of each shape."""


def seeds_of(shapes: Sequence[Shape]) -> list[int]:
    """Those of the first seeds that draw one of these pipelines."""
    return [seed for shape in shapes for seed in share(range(SHAPES.index(shape), SEEDS, len(SHAPES)), 12)]


def held(seed: int) -> None:
    """AssertionError with what was wrong, and the command that shows how it came."""
    verdict = run(seed)
    breaches = "\n".join(verdict.breaches)
    assert not verdict.breaches, (
        f"{verdict.summary}\n{breaches}\nmake simulate SEEDS={seed} ARGS='--shrink --trace' shows how"
    )
    unnamed = set(verdict.writes) - set(WRITES)
    assert not unnamed, f"durable writes that tests/harness/simulation/writes.py does not name: {sorted(unnamed)}"
