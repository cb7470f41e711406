# ruff: noqa: N802 -- a test carries its rule's name
"""A job, or a session, that takes long on a real Spark: the source waits within the bounds of the settings, and nothing else breaks.

The step is held where it begins, on its thread, until the source has stopped and the worker has told many times that it lives: that is
longer than the coordinator waits for a silent worker. `integration/test_pressure.py` has the same on virtual time, for the local engine.
"""

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed, released
from tidemark.services.cli.process import quiet
from tidemark.services.source.body import SourceTaskBody
from tidemark.services.spark.service import KeptSession, SparkService
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.step import Times
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.protocol.task.start import TaskLimits
from tidemark.shared.runtime.coordinator import CoordinatorDriver
from tidemark.shared.runtime.driver import TaskDriver
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.worker import Worker
from tidemark.spark_stages.manifest import StageState, StateSegment
from tidemark.spark_stages.step import SparkResult, SparkStep

pytestmark = pytest.mark.spark
RECORDS, KEYS, WINDOW_MS, STEP_MS = 20_000, 500, 10_000, 10
AHEAD, UNCOMMITTED, PIECE, GROUPS = 96_000, 64_000, 48_000, 300
"""Bytes: W, V, and what one take of the source may add; partials that it holds for its barrier."""
HELD_STEPS, BEATS, FEW_BEATS, SILENT_MS, BEAT_MS = 3, 40, 5, 3_000, 100
"""The first step is held for more beats than a silent worker is waited for."""
SETTINGS = RuntimeSettings(
    engine="spark",
    inline_bytes_max=8_000,
    fetch_bytes_max=16_000,
    held_groups_max=GROUPS,
    heartbeat_interval_ms=BEAT_MS,
    heartbeat_timeout_ms=SILENT_MS,
    limits=TaskLimits(ahead_bytes_max=AHEAD, uncommitted_bytes_max=UNCOMMITTED),
)


@dataclass
class Gate:
    """Holds the first steps that have something to do, each until it is let go."""

    held: int = 0
    waits: threading.Event = field(default_factory=threading.Event)
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def pass_through(self, *, arrived: bool) -> None:
        """On the step's thread."""
        if arrived and self.held < HELD_STEPS:
            self.held += 1
            self.waits.set()
            assert self.go.acquire(timeout=120), "nobody let the step go"

    def let_go(self) -> None:
        """The step that waits."""
        self.waits.clear()
        self.go.release()


@dataclass
class HeldStep:
    """A step behind the gate."""

    step: SparkStep
    gate: Gate

    def __call__(
        self, state: StageState, added: Sequence[StateSegment], times: Times, prefix: str, *, arrived: bool
    ) -> SparkResult:
        """See `SparkStep.__call__`."""
        self.gate.pass_through(arrived=arrived)
        return self.step(state, added, times, prefix, arrived=arrived)


class HeldService(SparkService):
    """The service of stages, with such steps."""

    def __init__(self, session: KeptSession, gate: Gate) -> None:
        super().__init__(session, keeps=True)
        self._gate = gate

    def make(self, plan: WindowPlan, root: str, operators: TaskContext, key_groups: int) -> Any:
        """See `SparkService.make`."""
        return HeldStep(super().make(plan, root, operators, key_groups), self._gate)


class LateService(SparkService):
    """The service of stages, on a session that is not there before somebody lets it go."""

    def __init__(self, session: KeptSession) -> None:
        super().__init__(session, keeps=True)
        self.go = threading.Event()

    def make(self, plan: WindowPlan, root: str, operators: TaskContext, key_groups: int) -> SparkStep:
        """See `SparkService.make`."""
        assert self.go.wait(timeout=120), "nobody let the session go"
        return super().make(plan, root, operators, key_groups)


@pytest.fixture(scope="module")
def session() -> Iterator[KeptSession]:
    quiet(logging.CRITICAL)
    kept = KeptSession("local[2]")
    kept.get()
    yield kept
    kept.stop()


def document(folder: Path) -> dict[str, Any]:
    """Records of many keys, counted and summed by window."""
    source = {
        "connectionName": "broker", "topic": "t", "config": {"auto_offset_reset": "earliest"},
        "timeField": {"$toDate": "$at"}, "schema": {"at": "long", "k": "int", "n": "int"},
    }  # fmt: skip
    group = {"$group": {"_id": "$k", "count": {"$sum": 1}, "sum": {"$sum": "$n"}}}
    window = {"interval": {"size": WINDOW_MS, "unit": "ms"}, "pipeline": [group]}
    return {
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
        "pipeline": [{"$source": source}, {"$tumblingWindow": window}, {"$emit": {"path": str(folder), "format": "json"}}],
        "options": {"checkpoint": {"interval": {"size": 100, "unit": "ms"}}},
    }  # fmt: skip


async def fill(there: Installed) -> None:
    """All records before anything reads."""
    there.broker.create_topic("t", 1)
    writer = await there.outside.log.writer("feeder")
    for number in range(RECORDS):
        record = {"at": STEP_MS * number, "n": number, "k": number % KEYS, "junk": "x" * 100}
        await (await writer.send(TopicPartition("t", 0), NewRecord(json.dumps(record).encode())))
    await writer.close()


def source_of(there: Installed) -> TaskDriver:
    """The source's driver."""
    worker = there.parts["source"]
    assert isinstance(worker, Worker)
    (driver,) = [hosted.driver for hosted in worker._tasks.values()]
    assert driver is not None
    return driver


def position_of(driver: TaskDriver) -> int:
    """How far it has taken its split."""
    assert isinstance(driver.body, SourceTaskBody)
    (split,) = driver.body.input.splits.values()
    return split.position


def committed(there: Installed) -> int:
    """The last checkpoint."""
    coordinator = there.parts["coordinator"]
    assert isinstance(coordinator, CoordinatorDriver)
    return coordinator._machine.processors[NAME].state.row.last


async def while_held(there: Installed, gate: Gate, wanted: int) -> tuple[int, int]:
    """A step is held: the source stops, and stands still for so many beats; where it stands, and how many bytes it has under way."""
    while not gate.waits.is_set():
        await there.clock.sleep_ms(10)
    driver = source_of(there)
    while driver.machine.may_read():
        await there.clock.sleep_ms(10)
    stands, last = position_of(driver), committed(there)
    beats = 0
    async for heartbeat in there.client.heartbeats():
        beats += heartbeat.service == "spark"
        if beats == wanted:
            break
    assert position_of(driver) == stands, "it took more input while nothing was committed"
    status = (await there.client.statuses())[NAME]
    assert (status.state, status.generation, committed(there)) == ("RUNNING", 1, last)
    return stands, sum(driver.machine.sender.uncommitted_bytes.values())


async def test_F8_a_slow_spark_job_slows_the_source_and_nothing_else(session: KeptSession, tmp_path: Path) -> None:
    """It stops at V while a step runs, checkpoints go on at the steps' rate, no worker is given up, and every record is counted once."""
    gate = Gate()
    # An epoch may take minutes (F9): on a slow machine the source would else stop for its time, before V.
    coordinator = CoordinatorSettings(
        adopt_wait_ms=100, heartbeat_timeout_ms=SILENT_MS, epoch_target_ms=180_000, checkpoint_timeout_ms=600_000
    )
    assert BEATS * BEAT_MS > SILENT_MS
    async with installed(
        SystemClock(),
        AsyncExecutor(),
        services=("source", "spark", "sink"),
        coordinator=coordinator,
        settings=SETTINGS,
        spark=lambda: HeldService(session, gate),
        folder=tmp_path / "blobs",
    ) as there:
        await fill(there)
        await there.create(document(tmp_path / "out"))
        await there.start()
        stood: list[tuple[int, int]] = []
        for number in range(HELD_STEPS):
            stood.append(await while_held(there, gate, FEW_BEATS if number else BEATS))
            gate.let_go()
        drain = StopProcessor(there.client.unique(), NAME, drain=True, until={"t-0": Offset(RECORDS)})
        await there.client.request(drain)
        status = await there.when(lambda status: status.state == "FINISHED")
    positions = [position for position, _ in stood]
    assert 0 < positions[0] <= positions[1] < positions[2] < RECORDS, positions
    assert all(UNCOMMITTED < size <= UNCOMMITTED + PIECE for _, size in stood), stood
    assert status.generation == 1, status.reason
    assert status.commits > HELD_STEPS
    found = released(tmp_path / "out")
    assert sum(row["count"] for row in found) == RECORDS
    assert sum(row["sum"] for row in found) == RECORDS * (RECORDS - 1) // 2
    assert len(found) == RECORDS * STEP_MS // WINDOW_MS * KEYS


async def test_C10_a_session_that_starts_slowly_is_no_failure(session: KeptSession, tmp_path: Path) -> None:
    """More checkpoints time out than a generation may have in a row: the status says why, and the processor goes on in the same one."""
    late = LateService(session)
    coordinator = CoordinatorSettings(
        adopt_wait_ms=100, checkpoint_interval_ms=100, checkpoint_timeout_ms=5_000, checkpoint_timeouts_max=1
    )
    async with installed(
        SystemClock(),
        AsyncExecutor(),
        services=("source", "spark", "sink"),
        coordinator=coordinator,
        settings=SETTINGS,
        spark=lambda: late,
        folder=tmp_path / "blobs",
    ) as there:
        await fill(there)
        await there.create(document(tmp_path / "out"))
        await there.start()
        driver = there.parts["coordinator"]
        assert isinstance(driver, CoordinatorDriver)
        status = await there.when(lambda status: "starting Spark" in status.reason)
        while driver._machine.processors[NAME].state.numbers.given < 3:
            await there.clock.sleep_ms(100)
        assert (status.state, status.commits) == ("RUNNING", 0)
        late.go.set()
        drain = StopProcessor(there.client.unique(), NAME, drain=True, until={"t-0": Offset(RECORDS)})
        await there.client.request(drain)
        status = await there.when(lambda status: status.state == "FINISHED")
    assert status.generation == 1, status.reason
    assert sum(row["count"] for row in released(tmp_path / "out")) == RECORDS
