"""An audit of splits that fall idle and come back: it accuses no output of what that moment decided, and still checks all the rest.

A seed draws the partitions, how they pause and how far apart their times are, the stages, and the interval of checkpoints.
"""

import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed
from tests.harness.sealing import sealed
from tests.harness.share import share
from tidemark.services.audit import check
from tidemark.services.audit.check import Audited, AuditFailed, audit
from tidemark.services.audit.history import Commit
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.audit.settings import AuditSettings
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.ports.log import LogUnavailable, NewRecord, TopicPartition
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.worker import Worker

IDLE_MS = 400
BEGIN_MS = 1_000_000
SUMS = [{"$group": {"_id": "$k", "n": {"$sum": 1}}}]
STAGES: dict[str, dict[str, Any]] = {
    "tumbling": {"$tumblingWindow": {"interval": {"size": 2, "unit": "second"}, "pipeline": SUMS}},
    "hopping": {
        "$hoppingWindow": {
            "interval": {"size": 4, "unit": "second"},
            "hopSize": {"size": 1, "unit": "second"},
            "pipeline": SUMS,
        }
    },
    "documents": {
        "$tumblingWindow": {
            "interval": {"size": 1, "unit": "second"},
            "pipeline": [{"$sort": {"id": 1}}, {"$limit": 3}, {"$project": {"id": 1}}],
        }
    },
    "session": {"$sessionWindow": {"gap": {"size": 1, "unit": "second"}, "partitionBy": "$k", "pipeline": SUMS}},
    "compute": {"$compute": {"class": "tests.harness.computations:Marks", "key": "$k"}},
}
LATENESS_MS = (0, 1_000, 3_000)


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


class Drawn:
    """The story of a seed."""

    def __init__(self, seed: int, *, tame: bool = False) -> None:
        rng = self.rng = random.Random(seed)
        self.parts = rng.randint(2, 4)
        self.sources = rng.randint(1, self.parts)
        self.stage = rng.choice(sorted(STAGES))
        self.lateness = rng.choice(("split", "merged"))
        self.allowed_ms = rng.choice(LATENESS_MS)
        self.interval_ms = rng.choice((100, 300, 1_000, 3_000))
        self.ids = rng.random() < 0.25
        self.fails = rng.random() < 0.3
        self.apart_ms = rng.choice((0, 500, 5_000))
        self.unaligned = rng.random() < 0.15
        self.tame = tame
        """No record is older than one before it, in whichever partition, and epochs are short: nothing can be late."""
        if tame:
            self.interval_ms, self.unaligned = 100, False

    def records(self) -> Iterator[tuple[int, dict[str, Any], int]]:
        """Partition, record, and the wait before it, ms. Partitions pause, and come back at the time that they had, or at the others'."""
        rng = self.rng
        times = [BEGIN_MS + rng.randint(0, self.apart_ms) for _ in range(self.parts)]
        away = dict.fromkeys(range(self.parts), 0)
        for number in range(100):
            part = rng.choice([part for part in away if away[part] <= 0] or list(away))
            for other in away:
                away[other] -= 1
            if rng.random() < 0.1:
                away[part] = rng.randint(5, 30)
                if rng.random() < 0.5:
                    times[part] = max(times)
            if self.tame:
                times[part] = max(times)
            times[part] += rng.randint(0, 600)
            late_ms = rng.randint(0, 2_000) if rng.random() < 0.1 and not self.tame else 0
            wait_ms = rng.choice((10, 50, 50, 50, 3 * IDLE_MS if rng.random() < 0.1 else 50))
            yield part, {"id": number, "k": f"k{number % 3}", "at": times[part] - late_ms}, wait_ms

    def document(self, out: Path) -> dict[str, Any]:
        """From a topic through the stage to another; the source's rows also to files."""
        stage = json.loads(json.dumps(STAGES[self.stage]))
        (body,) = stage.values()
        if self.stage != "compute":
            body["allowedLateness"] = {"size": self.allowed_ms, "unit": "ms"}
        checkpoint: dict[str, Any] = {"interval": {"size": self.interval_ms, "unit": "ms"}}
        if self.unaligned:
            checkpoint["alignmentTimeout"] = {"size": 1, "unit": "ms"}
        source = {
            "connectionName": "broker",
            "topic": "in",
            "config": {"auto_offset_reset": "earliest"},
            "timeField": {"$toDate": {"$toLong": "$at"}},
            "partitionIdleTimeout": {"size": IDLE_MS, "unit": "ms"},
            **({"recordId": "$id"} if self.ids else {}),
        }
        return {
            "connections": {
                "broker": {"type": "kafka", "bootstrapServers": "memory"},
                "out": {"type": "files", "path": str(out)},
            },
            "pipeline": [
                {"$source": source},
                {"$emit": {"connectionName": "out", "path": "raw", "format": "json"}},
                stage,
                {"$emit": {"connectionName": "broker", "topic": "results"}},
            ],
            "options": {
                "dlq": {"connectionName": "broker", "topic": "late"},
                "checkpoint": checkpoint,
                "lateness": self.lateness,
            },
        }


async def told(world: VirtualWorld, drawn: Drawn, out: Path, forged: str) -> Audited:
    """The audit of a story; forged: a topic to which somebody adds a record afterwards, which a second audit has to name."""
    async with installed(world.clock, world.executor, settings=RuntimeSettings(engine="local")) as it:
        log = sealed(MemoryLog(it.broker))
        await log.create_topic("in", drawn.parts)
        await log.create_topic("results", 1)
        await it.create(drawn.document(out), source=drawn.sources)
        await it.start()
        writer = await log.writer("feeder")
        for number, (part, record, wait_ms) in enumerate(drawn.records()):
            if drawn.fails and number == 50:
                _fail_a_source(it)
            await world.clock.sleep_ms(wait_ms)
            await (await writer.send(TopicPartition("in", part), NewRecord(json.dumps(record).encode())))
        await it.committed()
        await it.stop(drain=True)
        left = AuditedInstallation(MemoryCommitStore(it.store), it.memory_blobs, log, {})
        found = await audit(NAME, left)
        if forged:
            await (await writer.send(TopicPartition(forged, 0), NewRecord(b'{"forged": 1}')))
            with pytest.raises(AuditFailed, match="forged"):
                await audit(NAME, left)
        await writer.close()
        return found


def _fail_a_source(it: Installed) -> None:
    worker = it.parts["source"]
    assert isinstance(worker, Worker)
    for hosted in list(worker._tasks.values())[:1]:
        if hosted.driver is not None:
            hosted.driver.site.fail(LogUnavailable("a hiccup"))


@pytest.mark.parametrize("seed", share([2, 3, 6, 11, 13, 18, 21, 23, 33, 50, 57, 89, 91], 6))
def test_what_idleness_decided_is_not_accused(tmp_path: Path, seed: int) -> None:
    """An output is computed again, or the audit says why not; the source's own rows always are."""
    found = run_virtual(lambda world: told(world, Drawn(seed), tmp_path, ""))
    assert found.records == 100
    assert any(vertex.startswith("emit-1") for vertex in found.outputs), found.outputs
    assert all("was late" in why for why in found.unchecked), found.unchecked


def test_pieces_of_an_audit_end_where_nothing_came_out_of_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one does not, rows that came out before they were expected are found with those of the epochs behind it."""
    asked: list[Commit | None] = []
    piece = check._piece

    async def noted(*args: Any) -> Any:
        asked.append(args[-1])
        return await piece(*args)

    monkeypatch.setattr(check, "audit_settings", lambda: AuditSettings(piece_records=30))
    monkeypatch.setattr(check, "_piece", noted)
    found = run_virtual(lambda world: told(world, Drawn(11), tmp_path, ""))
    assert found.records == 100
    assert sorted({epoch.epoch for epoch in found.epochs}) == [epoch.epoch for epoch in found.epochs]
    assert len(asked) > 2


@pytest.mark.parametrize("seed", [1, 7, 11])
def test_what_idleness_cannot_have_decided_is_compared(tmp_path: Path, seed: int) -> None:
    """Where splits come back behind nobody, nothing is left unchecked, and a record that does not follow is named."""
    assert run_virtual(lambda world: told(world, Drawn(seed, tame=True), tmp_path, "results")).unchecked == ()
