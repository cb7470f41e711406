"""Task counts and processes change how the work is spread, and nothing that comes out."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.faults import until
from tests.e2e.jobs import departures_job, run_job
from tests.harness.share import CI
from tidemark.services.audit.check import audit_local
from tidemark.services.cli.installation import Installation
from tidemark.shared.model.ids import Place, VertexId
from tidemark.shared.model.messages import ModifyProcessor

pytestmark = pytest.mark.e2e


def test_three_tasks_of_each_kind_in_processes_of_their_own_put_out_what_one_does(tmp_path: Path) -> None:
    """Six weeks with the blizzard in them, three sources, operators and sinks apart, three tasks on one Spark.

    For each epoch what one task computes, and no more.
    """
    tasks = dict.fromkeys(("source", "operator", "spark", "sink"), 3)
    job = departures_job(42, workers=3, tasks=tasks)
    ran = asyncio.run(run_job(job, tmp_path / "data", tmp_path / "out", seconds=6.0))
    hosts = {(vertex, place) for vertex, _, place in ran.status.tasks if vertex != "window-1"}
    assert all(len({place for v, place in hosts if v == vertex}) == 3 for vertex, _ in hosts), f"not spread: {hosts}"
    audited = asyncio.run(audit_local(job.name, tmp_path / "data"))
    assert audited.records == len(job.order)
    assert audited.waiting == ()
    assert any(b'"absent"' in alert for alert in ran.contents.topics["departures.alerts"]), "the blizzard was not seen"


def test_windows_go_with_their_keys_when_spark_tasks_change(tmp_path: Path) -> None:
    """Two tasks, then three, then one, and SIGKILL to the last (at a desk to each): every window comes out once, as of one task."""
    tasks = {"source": 2, "operator": 2, "sink": 2, "spark": 2}
    days, seconds, numbers = (14, 6.0, [3, 1]) if CI else (42, 12.0, [2, 3, 1])
    job = departures_job(days, tasks=tasks)
    seen: list[tuple[int, int]] = []

    async def hold(there: Installation, sent: int) -> None:
        if len(seen) == len(numbers) or sent < (len(seen) + 1) * len(job.order) // (len(numbers) + 1):
            return
        number = numbers[len(seen)]
        request = ModifyProcessor(there.client.unique(), job.name, None, {**tasks, "spark": number})
        await there.client.request(request)
        status = await until(there, lambda s: s.state == "RUNNING" and stages(s.tasks) == number)
        seen.append((number, status.generation))
        status = await until(there, lambda s: s.commits >= status.commits + 1)
        if CI and len(seen) < len(numbers):
            return
        there.cluster.kill("spark-0", signal.SIGKILL)
        await until(there, lambda s: s.generation > status.generation and s.commits > status.commits + 1)

    ran = asyncio.run(run_job(job, tmp_path / "data", tmp_path / "out", seconds=seconds, hold=hold))
    assert [number for number, _ in seen] == numbers
    assert ran.status.generation >= seen[-1][1] + 1
    audited = asyncio.run(audit_local(job.name, tmp_path / "data"))
    assert audited.records == len(job.order)
    assert audited.waiting == ()


def stages(tasks: Sequence[tuple[VertexId, int, Place]]) -> int:
    """How many tasks windows have."""
    return sum(vertex == "window-1" for vertex, _, _ in tasks)
