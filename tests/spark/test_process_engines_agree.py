"""Both engines give the same: windows drawn at random, tried out on Arrow and on Spark; and Spark what an oracle says of scripts."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.drawn_scripts import difference as scripted
from tests.harness.process_cases import difference
from tests.harness.random_pipelines import case
from tests.harness.share import share
from tidemark.services.cli.process import Runner, quiet, run_case, runner

pytestmark = pytest.mark.spark
_SEEDS = share(range(12), 3)


@pytest.fixture(scope="module")
def spark() -> Iterator[Runner]:
    quiet(logging.CRITICAL)
    with runner("spark") as found:
        yield found


@pytest.mark.parametrize("seed", _SEEDS)
def test_engines_agree(spark: Runner, seed: int) -> None:
    """Output and dead letters of a random pipeline are the same, row for row, whichever engine runs its windows."""
    drawn = case(seed)
    here, there = run_case(Runner("local"), drawn), run_case(spark, drawn)
    assert (here["error"], there["error"]) == (None, None)
    expected: dict[str, Any] = {**drawn, "expected": here["output"], "dlq": _timeless(here["dlq"]), "order": "any"}
    # A window that stays empty has nothing to run on Spark, so that no job is asked for here.
    assert difference(expected, {**there, "engine": "any"}) is None


@pytest.mark.parametrize("seed", share(range(60), 12))
def test_windows_over_a_script_give_on_spark_what_its_steps_say(spark: Runner, seed: int) -> None:
    """Rows and late records of every kind of window, by both times, with timers of idleness and lookups inside."""
    assert scripted(seed, spark) is None


def _timeless(letters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the wall clock's time, which is that of the run where no script sets it."""
    return [{name: value for name, value in letter.items() if name != "dlqTime"} for letter in letters]
