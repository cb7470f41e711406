# ruff: noqa: N802 -- a test carries its rule's name
"""A drain on a real broker, by real processes, with one of them killed between the request and the next checkpoint (I3)."""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tidemark.services.audit.check import Audited, audit_local
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.feed import Fed, feed
from tidemark.services.cli.installation import installation
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StopProcessor

pytestmark = pytest.mark.e2e
NAME = ProcessorName("drained")
WORKERS = {"coordinator": 1, "source": 1, "operator": 0, "sink": 1, "spark": 0, "control": 0}
RECORDS = 30_000


def document() -> str:
    """Checkpoints are so seldom that none comes before the drain's."""
    start: dict[str, Any] = {"auto_offset_reset": "earliest"}
    return json.dumps({
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
        "pipeline": [
            {"$source": {"connectionName": "broker", "topic": "in", "config": start, "schema": {"n": "int"}}},
            {"$emit": {"connectionName": "broker", "topic": "out"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 25, "unit": "second"}}},
    })  # fmt: skip


@pytest.mark.parametrize("victim", ["source-0", "sink-0", "coordinator-0"])
async def test_I3_a_process_killed_behind_a_drain_loses_nothing(tmp_path: Path, victim: str) -> None:
    """All that had been written comes out once, and what came later does not; the audit says the same."""
    async with installation(tmp_path, {}, WORKERS) as installed:
        await installed.log.create_topic("in", 2, {"retention.ms": "-1"})
        await installed.log.create_topic("out", 1, {"retention.ms": "-1"})
        await installed.ensure_started(NAME, document(), {})
        await installed.until_running(NAME)
        values = [(n % 2, b"k", json.dumps({"n": n}).encode()) for n in range(RECORDS)]
        await feed(installed.log, "in", values, RECORDS, 0.0, Fed())
        await installed.client.request(StopProcessor(installed.client.unique(), NAME, drain=True))
        installed.cluster.kill(victim, signal.SIGKILL)
        async for status in installed.client.watch(NAME):
            assert status.state != "FAILED", status.reason
            if status.state == "FINISHED":
                break
        await feed(installed.log, "in", [(0, b"k", b'{"n": -1}')], 1, 0.0, Fed())
        rows = Counter([json.loads(r.value or b"")["n"] async for r in committed_records(installed.log, "out")])
        assert rows == Counter(range(RECORDS))
        found: Audited = await audit_local(NAME, tmp_path)
        assert (found.records, found.accepted) == (RECORDS, RECORDS)
        assert found.unread == ("topic in partition 0: offsets 15000 to 15000, behind its end",)
