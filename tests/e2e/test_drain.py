# ruff: noqa: N802 -- a test carries its rule's name
"""A drain on a real broker, by real processes, with each of them killed once between the request and the next checkpoint (I3)."""

import json
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tidemark.services.audit.check import Audited, audit_local
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.feed import Fed, feed
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StopProcessor

pytestmark = pytest.mark.e2e
WORKERS = {"coordinator": 1, "source": 1, "operator": 0, "sink": 1, "spark": 0, "control": 0}
RECORDS = 30_000


@dataclass(frozen=True)
class Drained:
    """A processor of its own, with topics of its own, and the place that is killed."""

    victim: str

    @property
    def name(self) -> ProcessorName:
        """Of the processor."""
        return ProcessorName(f"drained-{self.victim}")

    def topic(self, side: str) -> str:
        """Where it reads (in), where it writes (out)."""
        return f"{side}-{self.victim}"

    def document(self) -> str:
        """Checkpoints are so seldom that none comes before the drain's."""
        start: dict[str, Any] = {"auto_offset_reset": "earliest"}
        source = {"connectionName": "broker", "topic": self.topic("in"), "config": start, "schema": {"n": "int"}}
        return json.dumps({
            "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
            "pipeline": [{"$source": source}, {"$emit": {"connectionName": "broker", "topic": self.topic("out")}}],
            "options": {"checkpoint": {"interval": {"size": 25, "unit": "second"}}},
        })  # fmt: skip


async def drained(installed: Installation, made: Drained) -> None:
    """All that had been written comes out once, and what came later does not; the audit says the same."""
    came, came_out = made.topic("in"), made.topic("out")
    await installed.log.create_topic(came, 2, {"retention.ms": "-1"})
    await installed.log.create_topic(came_out, 1, {"retention.ms": "-1"})
    await installed.ensure_started(made.name, made.document(), {})
    await installed.until_running(made.name)
    values = [(n % 2, b"k", json.dumps({"n": n}).encode()) for n in range(RECORDS)]
    await feed(installed.log, came, values, RECORDS, 0.0, Fed())
    await installed.client.request(StopProcessor(installed.client.unique(), made.name, drain=True))
    installed.cluster.kill(made.victim, signal.SIGKILL)
    async for status in installed.client.watch(made.name):
        assert status.state != "FAILED", status.reason
        if status.state == "FINISHED":
            break
    await feed(installed.log, came, [(0, b"k", b'{"n": -1}')], 1, 0.0, Fed())
    rows = Counter([json.loads(r.value or b"")["n"] async for r in committed_records(installed.log, came_out)])
    assert rows == Counter(range(RECORDS))
    found: Audited = await audit_local(made.name, installed.cluster.settings.data_dir)
    assert (found.records, found.accepted) == (RECORDS, RECORDS)
    assert found.unread == (f"topic {came} partition 0: offsets 15000 to 15000, behind its end",)


async def test_I3_a_process_killed_behind_a_drain_loses_nothing(tmp_path: Path) -> None:
    """Of a source, a sink, and the coordinator, one after the other: see `drained`."""
    async with installation(tmp_path, {}, WORKERS) as installed:
        for victim in ("source-0", "sink-0", "coordinator-0"):
            await drained(installed, Drained(victim))
