"""Drawn jobs are accused of nothing, and forgeries in what they left are named, or lie where the audit has said that it does not check."""

import logging
from pathlib import Path

import pytest

from tests.harness.drawn_audits.__main__ import verdict_of
from tests.harness.share import share
from tidemark.services.cli.process import quiet


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


@pytest.mark.parametrize("seed", share([201, 8, 15, 18, 20, 24, 31, 32, 38, 39, 49, 57, 61, 70, 138], 4))
def test_an_audit_accuses_no_drawn_job_and_passes_over_no_forgery(seed: int, tmp_path: Path) -> None:
    """`make audits` has more of them."""
    verdict = verdict_of(seed, tmp_path)
    assert verdict.accused == ""
    assert [name for name, what in verdict.forgeries.items() if what == "passed"] == []
    assert not any("$hoppingWindow: how far" in why or "$sessionWindow: how far" in why for why in verdict.unchecked)
