"""The number of tasks follows the load within the document's bounds: tenfold load and back, on a real broker, each record once."""

import asyncio
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import ProcessorStatus, StopProcessor
from tidemark.shared.ports.log import NewRecord, TopicPartition

pytestmark = [pytest.mark.long, pytest.mark.timeout(420)]
NAME, TOPIC, OUTPUT = ProcessorName("followed"), "readings", "seen"
WORKERS = {"coordinator": 1, "control": 1, "source": 1, "operator": 1, "sink": 1, "spark": 0}
PARTITIONS, KEYS = 2, 100
CALM_PER_S, BUSY_PER_S = 10, 100
"""Records a second. A task takes 20 ms for each, so one is enough for the one, and three for the other."""
DOCUMENT = json.dumps({
    "name": NAME,
    "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
    "pipeline": [
        {
            "$source": {
                "connectionName": "broker",
                "topic": TOPIC,
                "config": {"auto_offset_reset": "earliest"},
                "timeField": {"$toDate": "$at"},
                "schema": {"id": "long", "meter": "string", "at": "long"},
            }
        },
        {"$compute": {"class": "tests.harness.computations:Slow", "key": "$meter"}},
        {"$emit": {"connectionName": "broker", "topic": OUTPUT}},
    ],
    "options": {"tasks": {"operator": {"max": 4}}, "checkpoint": {"interval": {"size": 500, "unit": "ms"}}},
})  # fmt: skip
SETTINGS = {"scale_after_ms": 12_000, "scale_up_ms": 2_000, "scale_down_ms": 8_000}


class Feed:
    """Records at a rate that changes."""

    def __init__(self, there: Installation) -> None:
        self.there = there
        self.per_s = CALM_PER_S
        self.sent = 0
        self.ended = False

    async def run(self) -> None:
        """Ten times a second, until it has ended."""
        writer = await self.there.log.writer("feeder")
        loop = asyncio.get_running_loop()
        turn = loop.time()
        while not self.ended:
            sent = []
            for _ in range(self.per_s // 10):
                at = TopicPartition(TOPIC, self.sent % PARTITIONS)
                record = {"id": self.sent, "meter": f"m{self.sent % KEYS}", "at": self.sent}
                sent.append(await writer.send(at, NewRecord(json.dumps(record).encode())))
                self.sent += 1
            await asyncio.gather(*sent)
            turn += 0.1
            await asyncio.sleep(max(0, turn - loop.time()))
        await writer.close()


async def until(there: Installation, count: int, *, least: bool) -> ProcessorStatus:
    """Wait until it runs with at least, or exactly, so many tasks of the computation."""
    async for status in there.client.watch(NAME):
        assert status.state != "FAILED", status.reason
        tasks = sum(status.services.get(vertex) == "operator" for vertex, _, _ in status.tasks)
        if status.state == "RUNNING" and (tasks >= count if least else tasks == count):
            return status
    raise AssertionError("the registry ended")


def told(since: float, what: str) -> None:
    sys.stdout.write(f"{asyncio.get_running_loop().time() - since:6.1f} s {what}\n")


async def run(folder: Path) -> tuple[int, list[dict[str, Any]], ProcessorStatus]:
    """How many records were sent, what came out, and the last status."""
    environment = {"TIDEMARK_EXTRA": json.dumps(SETTINGS), "TIDEMARK_RUNTIME": json.dumps({"engine": "local"})}
    async with installation(folder, environment, WORKERS) as there:
        since = asyncio.get_running_loop().time()
        await there.log.create_topic(TOPIC, PARTITIONS)
        await there.log.create_topic(OUTPUT, 1)
        await there.ensure_started(NAME, DOCUMENT, {})
        feed = Feed(there)
        feeding = asyncio.create_task(feed.run())
        await until(there, 1, least=False)
        told(since, f"runs with one task, {feed.sent:,} records sent")
        feed.per_s = BUSY_PER_S
        status = await until(there, 3, least=True)
        told(since, f"generation {status.generation} runs with more tasks, {feed.sent:,} records sent")
        feed.per_s = CALM_PER_S
        status = await until(there, 1, least=False)
        told(since, f"generation {status.generation} runs with one task, {feed.sent:,} records sent")
        feed.ended = True
        await feeding
        await there.client.request(StopProcessor(there.client.unique(), NAME, drain=True))
        status = await there.until_ended(NAME)
        told(since, f"{status.state}, {status.reason or 'no trouble'}")
        found = [json.loads(record.value or b"") async for record in committed_records(there.log, OUTPUT)]
        return feed.sent, found, status


def test_tasks_follow_the_load_and_no_record_is_lost(tmp_path: Path) -> None:
    """One task, then at least three, then one again; every record came out once, and each key's state went along."""
    sent, found, status = asyncio.run(run(tmp_path / "data"))
    assert status.state == "FINISHED", status.reason
    assert sorted(each["id"] for each in found) == list(range(sent))
    seen: dict[str, list[int]] = defaultdict(list)
    for each in found:
        seen[each["meter"]].append(each["seen"])
    assert {meter: sorted(counts) for meter, counts in seen.items()} == {
        meter: list(range(1, len(counts) + 1)) for meter, counts in seen.items()
    }
