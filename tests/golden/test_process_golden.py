"""Whole pipelines, tried out by the product's own command on the local engine: `golden/process/cases.jsonl`."""

import logging
from typing import Any, Final

import pytest

from tests.harness.process_cases import difference, has_window, read_lines
from tests.harness.share import share
from tidemark.services.cli.process import Runner, quiet, run_case

LONG: Final = 100
"""Steps of a script, each an epoch of its own; so many of one take longer than all short ones together."""


def cases() -> list[Any]:
    """All in their order; in CI one of four long ones with a window: each goes through many epochs of the same code."""
    lines = read_lines()
    long = [case["id"] for case in lines if has_window(case) and steps(case) >= LONG]
    return [pytest.param(case, id=case["id"]) for case in lines if case["id"] not in {*long} - {*share(long, 4)}]


def steps(case: dict[str, Any]) -> int:
    """Of its source's script; 0 without one."""
    source = case["pipeline"][0].get("$source")
    return len(source.get("script", ())) if isinstance(source, dict) else 0


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


@pytest.mark.parametrize("case", cases())
def test_case_comes_out_as_expected(case: dict[str, Any]) -> None:
    """Output, dead letters and errors of a case are those that it expects."""
    result = run_case(Runner("local"), case)
    assert difference(case, result) is None


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        ([{"a": 1}], [{"a": 1.0}], True),
        ([{"a": 1}], [{"a": True}], False),
        ([{"a": 1}], [{"a": 1, "b": None}], False),
        ([{"a": [1, 2]}], [{"a": [2, 1]}], False),
        ([{"a": 1}, {"a": 2}], [{"a": 2}, {"a": 1}], True),
        ([{"a": 1}, {"a": 1}], [{"a": 1}, {"a": 2}], False),
        ([{"a": {"$date": "2024-01-01T00:00:00Z"}}], [{"a": 1704067200000}], False),
        ([{"a": {"$numberDouble": "NaN"}}], [{"a": {"$numberDecimal": "NaN"}}], True),
    ],
)
def test_comparison_sees_what_differs(wanted: list[Any], got: list[Any], same: bool) -> None:
    """Numbers are equal as numbers; types, fields, the order in arrays and how often a document comes all count."""
    result = {"output": got, "dlq": [], "error": None, "engine": "local", "spark_jobs": 0}
    assert (difference({"pipeline": [], "expected": wanted, "order": "any"}, result) is None) == same
