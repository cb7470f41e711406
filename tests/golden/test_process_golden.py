"""Whole pipelines, tried out by the product's own command on the local engine: `golden/process/cases.jsonl`."""

import logging
from typing import Any

import pytest

from services.cli.process import Runner, quiet, run_case
from tests.harness.process_cases import difference, read_lines


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in read_lines()])
def test_case_comes_out_as_expected(case: dict[str, Any]) -> None:
    """Output, dead letters and errors of a case are those that it expects."""
    result = run_case(Runner("local"), case)
    assert difference(case, result) is None
