"""One job under all that a machine may have otherwise, at once: the short form of `make machines`."""

from pathlib import Path

import pytest

from tests.harness.machines import HAZARDS, possible, run, together

pytestmark = [pytest.mark.e2e, pytest.mark.spark]


def test_a_job_is_right_under_all_hazards_at_once(tmp_path: Path) -> None:
    """Of two that exclude each other, the first."""
    assert run(together(possible(HAZARDS)), tmp_path / "machine") == ""
