"""Schedules in a running installation, on virtual time: beside a live topic, with another timetable, and in an audit."""

import json
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed, released
from tests.harness.sealing import sealed
from tidemark.services.audit.check import audit
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.ports.log import NewRecord, TopicPartition

START_MS = int(datetime.fromisoformat("2026-11-29T10:00:30+00:00").timestamp() * 1000)
MINUTE_MS = 60_000
DAILY = {"cron": "0 6 * * *", "timezone": "Europe/Berlin"}
TOPIC = {"connectionName": "broker", "topic": "in", "config": {"auto_offset_reset": "earliest"}}
COUNTS = {
    "$tumblingWindow": {
        "interval": {"size": 1, "unit": "minute"},
        "pipeline": [{"$group": {"_id": {"$meta": "stream.window.start"}, "n": {"$sum": 1}}}],
    }
}
Story = Callable[[Installed], Awaitable[None]]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


def tell(story: Story) -> None:
    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as there:
            await story(there)

    run_virtual(main, start_ms=START_MS)


def _document(out: Path, pipeline: list[Any], **options: Any) -> dict[str, Any]:
    return {
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
        "pipeline": [*pipeline, {"$emit": {"path": str(out), "format": "json"}}],
        "options": {"checkpoint": {"interval": {"size": 5, "unit": "second"}}, **options},
    }


async def _feed(there: Installed, minutes: int) -> None:
    """A record every ten seconds, of the time at which it is written."""
    log = sealed(MemoryLog(there.broker))
    writer = await log.writer("feeder")
    for _ in range(minutes * 6):
        value = json.dumps({"at": there.clock.now_ms()}).encode()
        await (await writer.send(TopicPartition("in", 0), NewRecord(value)))
        await there.clock.sleep_ms(10_000)
    await writer.close()


@pytest.mark.parametrize("lateness", ["merged", "split"])
@pytest.mark.parametrize("first", ["topic", "schedule"])
def test_it_holds_nobody_between_two_instants(tmp_path: Path, first: str, lateness: str) -> None:
    """A daily schedule beside a live topic: windows of minutes close as minutes pass, and an audit finds what it computes."""
    sources = [TOPIC, DAILY] if first == "topic" else [DAILY, TOPIC]
    union = {"$union": {"pipelines": [[{"$source": sources[1]}]]}}

    async def story(there: Installed) -> None:
        log = sealed(MemoryLog(there.broker))
        await log.create_topic("in", 1)
        await there.create(_document(tmp_path / "out", [{"$source": sources[0]}, union, COUNTS], lateness=lateness))
        await there.start()
        await _feed(there, 4)
        await there.committed()
        found = [row["n"] for row in released(tmp_path / "out")]
        assert len(found) >= 3
        assert set(found[1:]) == {6}
        await there.stop(drain=True)
        told = await audit(NAME, AuditedInstallation(MemoryCommitStore(there.store), there.memory_blobs, log, {}))
        assert told.records == 24
        assert not told.unchecked

    tell(story)


def test_another_timetable_begins_where_the_checkpoint_stands(tmp_path: Path) -> None:
    """Instants of the new one from then on: those of the old one are not told again, those that passed before are not told late."""

    def document(cron: str, **zone: str) -> dict[str, Any]:
        return _document(tmp_path / "out", [{"$source": {"cron": cron, **zone}}, COUNTS])

    async def story(there: Installed) -> None:
        await there.create(document("2,35 * * * *"))
        await there.start()
        await there.clock.sleep_ms(5 * MINUTE_MS)
        await there.committed()
        await there.modify(document("*/2 * * * *"))
        await there.clock.sleep_ms(4 * MINUTE_MS)
        await there.stop()
        await there.clock.sleep_ms(3 * MINUTE_MS)
        await there.modify(document("43 15 * * *", timezone="+05:30"))
        await there.start()
        await there.clock.sleep_ms(2 * MINUTE_MS)
        await there.committed()
        found = [row["_id"]["$date"][11:16] for row in released(tmp_path / "out")]
        assert found == ["10:02", "10:06", "10:08", "10:13"]

    tell(story)
