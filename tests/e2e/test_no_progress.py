# ruff: noqa: N802 -- a test carries its rule's name
"""A processor that fails at the same place each time comes to its end, though checkpoints are taken on the way there."""

import json
from pathlib import Path
from typing import Final

import pytest

from tests.harness.plugins import package
from tests.tidy_rules import ROOT
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import installation
from tidemark.shared.model.ids import ProcessorName

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]
NAME: Final = ProcessorName("stuck")
RECORDS: Final = 100
CODE: Final = f"""
import time
from tidemark.plugins import Batch, Record, Source, Split

class Stuck(Source):
    api = 1
    bounded = False
    opened_s = None

    def splits(self):
        return [Split("a", 0, "of the test")]

    def end(self, split):
        return {RECORDS} + 1

    def read(self, split, position, max_bytes):
        if position < {RECORDS}:
            return Batch([Record(position, b'{{"n": %d}}' % position, 1_000)], position + 1)
        self.opened_s = self.opened_s or time.monotonic()
        if time.monotonic() - self.opened_s < 1.0:
            return Batch([], position)
        raise ValueError("record {RECORDS} is damaged")
"""


async def test_C10_a_record_that_fails_behind_empty_checkpoints_ends_the_processor(tmp_path: Path) -> None:
    """FAILED with the reason, and all that was in front of the record is released, once."""
    entries = {"tidemark.sources": {"stuck": "stuck:Stuck"}}
    folder = package(tmp_path / "stuck", "stuck", entries, CODE)
    environment = {"PYTHONPATH": f"{folder}:{ROOT}"}
    emit = {"connectionName": "k", "topic": "out"}
    document = {
        "connections": {"k": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
        "pipeline": [{"$source": {"plugin": "stuck"}}, {"$emit": emit}],
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    }
    workers = {"coordinator": 1, "source": 1, "operator": 0, "spark": 0, "sink": 1}
    async with installation(tmp_path / "data", environment, workers, plugins=["stuck"]) as there:
        await there.log.create_topic("out", 1)
        await there.ensure_started(NAME, json.dumps(document), {})
        status = await there.until_ended(NAME)
        assert status.state == "FAILED"
        assert "5 generations in a row ended before a checkpoint had read on" in status.reason
        assert f"record {RECORDS} is damaged" in status.reason
        assert status.commits > status.generation, "checkpoints without records came in each generation"
        found = [json.loads(record.value or b"null")["n"] async for record in committed_records(there.log, "out")]
        assert sorted(found) == list(range(RECORDS))
