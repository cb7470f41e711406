"""An audit computes ids and metadata that a pipeline has made again."""

import logging
from pathlib import Path
from typing import Any

from tests.harness.audited import READINGS, Story, finished_run, run
from tidemark.services.audit.check import Audited
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.virtual import run_virtual

STAGES: list[dict[str, Any]] = [
    {"$setStreamMeta": {"stream.meter": "$meter", "stream.id": {"$toString": {"$createUUID": {}}}}},
    {"$set": {"parts": [1, 1]}},
    {"$unwind": "$parts"},
    {"$set": {"uuid": {"$toString": {"$createUUID": {}}}}},
    {
        "$tumblingWindow": {
            "interval": {"size": 10, "unit": "second"},
            "allowedLateness": {"size": 0, "unit": "second"},
            "pipeline": [
                {
                    "$group": {
                        "_id": {"$meta": "stream.meter"},
                        "wh": {"$sum": "$wh"},
                        "ids": {"$min": {"$meta": "stream.id"}},
                        "uuids": {"$min": "$uuid"},
                    }
                }
            ],
        }
    },
]


def test_what_a_pipeline_makes_of_records_is_made_again(tmp_path: Path) -> None:
    """Two tasks of each kind wrote it in epochs; the audit, alone and in its own batches, finds the same bytes."""
    quiet(logging.CRITICAL)
    saved = run_virtual(lambda world: finished_run(world, tmp_path, stages=STAGES))

    async def then(told: Story) -> Audited:
        return await told.audit()

    found: Audited = run(saved, then)
    assert found.records == len(READINGS) + 15
    assert sum(found.outputs.values()) > 100
