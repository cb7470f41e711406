"""Pipelines drawn at random on a real installation: the short form of `make drawn`."""

from pathlib import Path

import pytest

from tests.harness.drawn_jobs.running import jobs

pytestmark = pytest.mark.e2e

_SEEDS = (23, 27, 83, 97)
"""Few records; among them a registry's forms, MessagePack, a history and a topic then, bounds of tasks, a collection that is asked,
windows on processing time."""


async def test_drawn_jobs_give_what_their_operators_give_alone(tmp_path: Path) -> None:
    """Rows, dead letters and the audit's count, whatever the pipeline, the documents, the producer, the numbers of tasks and the faults."""
    assert await jobs(_SEEDS, tmp_path, at_once=4) == {}
