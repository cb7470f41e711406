"""Task counts and processes change how the work is spread, and nothing that comes out."""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.jobs import departures_job, run_job
from tidemark.services.audit.check import audit_local

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_three_tasks_of_each_kind_in_processes_of_their_own_put_out_what_one_does(tmp_path: Path) -> None:
    """Six weeks with the blizzard in them, three sources, operators and sinks apart: for each epoch what one task computes, and no more."""
    tasks = dict.fromkeys(("source", "operator", "sink"), 3)
    job = departures_job(42, workers=3, tasks=tasks)
    ran = asyncio.run(run_job(job, tmp_path / "data", tmp_path / "out", seconds=6.0))
    hosts = {(vertex, place) for vertex, _, place in ran.status.tasks if vertex != "window-1"}
    assert all(len({place for v, place in hosts if v == vertex}) == 3 for vertex, _ in hosts), f"not spread: {hosts}"
    audited = asyncio.run(audit_local(job.name, tmp_path / "data"))
    assert audited.records == len(job.order)
    assert audited.waiting == ()
    assert any(b'"absent"' in alert for alert in ran.contents.topics["departures.alerts"]), "the blizzard was not seen"
