# ruff: noqa: N802 -- a test carries its rule's name
"""Partitions are added to a topic that has come far: each of their records is in a window, or a dead letter says that it was late (W4).

A seed draws when they come and how far behind the others their records are, the tasks, the stages and the interval of checkpoints.
"""

import json
import logging
import random
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed
from tests.harness.sealing import sealed
from tidemark.services.audit.check import Audited, audit
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.ports.log import LogUnavailable, NewRecord, TopicPartition
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.worker import Worker

RECORDS = 120
LOOK_MS = 300
IDLE_MS = 400
SECOND = {"size": 1, "unit": "second"}
SUMS = [{"$group": {"_id": "$k", "n": {"$sum": 1}}}]
PUSHED = [{"$group": {"_id": "$k", "ids": {"$push": "$id"}}}, {"$set": {"n": {"$size": "$ids"}}}]
WINDOWS: dict[str, dict[str, Any]] = {
    "sums": {"$tumblingWindow": {"interval": SECOND, "pipeline": SUMS}},
    "arrays": {"$tumblingWindow": {"interval": SECOND, "pipeline": PUSHED}},
    "rows": {"$tumblingWindow": {"interval": SECOND, "pipeline": [{"$project": {"n": {"$literal": 1}}}]}},
    "sessions": {"$sessionWindow": {"gap": SECOND, "partitionBy": "$k", "pipeline": SUMS}},
}


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


class Drawn:
    """The story of a seed."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.parts, self.added = rng.randint(1, 2), rng.randint(1, 3)
        self.sources = rng.randint(1, self.parts + self.added)
        self.window = rng.choice(sorted(WINDOWS))
        self.lateness = rng.choice(("split", "merged"))
        self.allowed_ms = rng.choice((0, 1_000))
        self.interval_ms = rng.choice((100, 300, 1_000))
        self.behind_ms = rng.choice((0, 1_500, 20_000))
        """The added partitions begin so far behind the others."""
        self.idles = rng.random() < 0.5
        self.ids = rng.random() < 0.25
        self.fails_at = rng.choice((None, RECORDS // 2, RECORDS // 2 + 1, RECORDS // 2 + 10))

    def document(self) -> dict[str, Any]:
        """From a topic through the window to another."""
        window = json.loads(json.dumps(WINDOWS[self.window]))
        (body,) = window.values()
        body["allowedLateness"] = {"size": self.allowed_ms, "unit": "ms"}
        source = {
            "connectionName": "broker",
            "topic": "in",
            "config": {"auto_offset_reset": "earliest"},
            "timeField": {"$toDate": {"$toLong": "$at"}},
            **({"partitionIdleTimeout": {"size": IDLE_MS, "unit": "ms"}} if self.idles else {}),
            **({"recordId": "$id"} if self.ids else {}),
        }
        return {
            "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
            "pipeline": [{"$source": source}, window, {"$emit": {"connectionName": "broker", "topic": "results"}}],
            "options": {
                "dlq": {"connectionName": "broker", "topic": "late"},
                "checkpoint": {"interval": {"size": self.interval_ms, "unit": "ms"}},
                "lateness": self.lateness,
            },
        }


async def told(world: VirtualWorld, drawn: Drawn) -> tuple[int, int, Audited]:
    """Records in windows, dead letters, and the audit."""
    settings = RuntimeSettings(engine="local", splits_interval_ms=LOOK_MS)
    async with installed(world.clock, world.executor, settings=settings) as it:
        log, rng = sealed(MemoryLog(it.broker)), drawn.rng
        await log.create_topic("in", drawn.parts)
        await log.create_topic("results", 1)
        await log.create_topic("late", 1)
        await it.create(drawn.document(), source=drawn.sources)
        await it.start()
        writer = await log.writer("feeder")
        times = [1_000_000] * drawn.parts
        for number in range(RECORDS):
            if number == RECORDS // 2:
                it.broker.add_partitions("in", drawn.parts + drawn.added)
                times += [max(0, max(times) - drawn.behind_ms)] * drawn.added
            if number == drawn.fails_at:
                _fail_a_source(it)
            part = rng.randrange(len(times))
            times[part] += rng.randint(0, 400)
            record = {"id": number, "k": f"k{number % 3}", "at": times[part]}
            await world.clock.sleep_ms(rng.choice((10, 50, 200)))
            await (await writer.send(TopicPartition("in", part), NewRecord(json.dumps(record).encode())))
        await it.committed()
        await it.stop(drain=True)
        await writer.close()
        rows = [json.loads(record.value or b"") for record in it.broker.dump("results")[0]]
        audited = await audit(NAME, AuditedInstallation(MemoryCommitStore(it.store), it.memory_blobs, log, {}))
        return sum(row["n"] for row in rows), len(it.broker.dump("late")[0]), audited


def _fail_a_source(it: Installed) -> None:
    worker = it.parts["source"]
    assert isinstance(worker, Worker)
    for hosted in worker._tasks.values():
        if hosted.driver is not None:
            hosted.driver.site.fail(LogUnavailable("a hiccup"))


def check(seed: int) -> None:
    """No record is dropped with a count alone, and the audit accuses nothing."""
    counted, letters, audited = run_virtual(lambda world: told(world, Drawn(seed)))
    assert counted + letters == RECORDS, (counted, letters)
    assert audited.records == RECORDS


@pytest.mark.parametrize("seed", [6, 18, 19, 22, 33])
def test_W4_records_of_added_partitions_are_in_a_window_or_a_letter(seed: int) -> None:
    """Also where a source failed between the listing of a partition and its first record."""
    check(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(150))
def test_W4_records_of_partitions_added_in_any_way_are_in_a_window_or_a_letter(seed: int) -> None:
    """Whatever the seed draws."""
    check(seed)
