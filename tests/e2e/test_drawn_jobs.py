"""Pipelines drawn at random on a real installation: the short form of `make drawn`."""

from pathlib import Path

import pytest

from tests.harness.drawn_jobs.running import jobs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


async def test_drawn_jobs_give_what_their_operators_give_alone(tmp_path: Path) -> None:
    """Rows, dead letters and the audit's count, whatever the pipeline, the documents, the producer and the numbers of tasks."""
    assert await jobs(range(1, 4), tmp_path, at_once=3) == {}
