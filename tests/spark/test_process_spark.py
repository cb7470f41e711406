"""Whole pipelines whose windows run on Spark: a selection of `golden/process/cases.jsonl`; `make cases` runs all of them."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.process_cases import difference, has_window, read_lines
from tidemark.services.cli.process import Runner, quiet, run_case, runner

pytestmark = pytest.mark.spark
_STEPS_MAX = 14
"""Longer scripts take long: an epoch a step."""
_SELECTED = 25
_NAMED = ("union-window", "union-of-windows", "join-behind-windows", "join-unmatched-come-out-by-the-watermark")
"""Streams that meet before, behind and between windows."""


def _selection() -> list[dict[str, Any]]:
    """Cases with windows and short scripts, spread evenly over all of them."""
    windows = [case for case in read_lines() if has_window(case) and _steps(case) <= _STEPS_MAX]
    chosen = windows[:: max(1, len(windows) // _SELECTED)]
    return chosen + [case for case in windows if case["id"] in _NAMED and case not in chosen]


def _steps(case: dict[str, Any]) -> int:
    source = case["pipeline"][0]["$source"]
    return len(source.get("script", source.get("documents", ())))


@pytest.fixture(scope="module")
def running() -> Iterator[Runner]:
    quiet(logging.CRITICAL)
    with runner("spark") as found:
        yield found


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in _selection()])
def test_window_runs_on_spark_and_comes_out_as_expected(running: Runner, case: dict[str, Any]) -> None:
    """The same output as on the local engine, and Spark has run jobs for it."""
    assert difference(case, run_case(running, case)) is None
