# ruff: noqa: N802 -- a test carries its rule's name
"""A slow sink, a slow step, a skewed key: each slows the source, and nothing else; queues stay within their bounds over many turnovers.

By the real services, on memory and virtual time; `tests/e2e/test_throttled.py` has the same on processes, and looks at their memory.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed, released
from tidemark.services.sink.service import SinkService
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.protocol.task.start import TaskLimits
from tidemark.shared.runtime.body import ReceivingBody, TaskBody
from tidemark.shared.runtime.context import AssignedTask, Service
from tidemark.shared.runtime.coordinator import CoordinatorDriver
from tidemark.shared.runtime.driver import TaskDriver
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.worker import Worker

AHEAD, UNCOMMITTED, PIECE = 24_000, 32_000, 16_000
"""Bytes: W, V, and the most that one take of the source may add before it looks again."""
RECORDS, RECORD_BYTES, UNRELEASED = 2_900, 200, 4
SETTINGS = RuntimeSettings(
    engine="local",
    inline_bytes_max=4_000,
    fetch_bytes_max=4_000,
    limits=TaskLimits(ahead_bytes_max=AHEAD, uncommitted_bytes_max=UNCOMMITTED),
)


@dataclass
class Most:
    """The highest that was seen of each queue, over all tasks."""

    unread: int = 0
    uncommitted: int = 0
    frames: int = 0
    snapshots: int = 0
    outbox: int = 0
    unreleased: int = 0
    commits: list[int] = field(default_factory=list)

    async def watch(self, there: Installed) -> None:
        """Look every few milliseconds, until cancelled."""
        while True:
            for part in there.parts.values():
                if isinstance(part, Worker):
                    for hosted in part._tasks.values():
                        if hosted.driver is not None:
                            self._see(hosted.driver)
                else:
                    self._see_coordinator(part)
            await there.clock.sleep_ms(20)

    def _see(self, driver: TaskDriver) -> None:
        sender = driver.machine.sender
        self.unread = max([self.unread, *(partition.unread_bytes for _, _, partition in sender._every())])
        self.uncommitted = max(self.uncommitted, sum(sender.uncommitted_bytes.values()))
        self.frames = max(self.frames, len(driver.frames._frames))
        self.snapshots = max(self.snapshots, len(driver._epochs_to_store))
        self.outbox = max(self.outbox, driver._outbox.backlog())

    def _see_coordinator(self, driver: CoordinatorDriver) -> None:
        machine = driver._machine.processors.get(NAME)
        if machine is not None:
            self.unreleased = max(self.unreleased, len(machine.state.unreleased()))
            self.commits.append(machine.state.row.last)


Slow = Callable[[AssignedTask, str], int]
"""How long a call of a task takes, ms."""


class Slowed:
    """A service whose tasks take their time."""

    def __init__(self, service: Service, slow: Slow) -> None:
        self._service = service
        self._slow = slow

    @property
    def name(self) -> str:
        """The service's."""
        return self._service.name

    async def build(self, context: AssignedTask) -> TaskBody:
        """Its body, with waits before calls."""
        body = await self._service.build(context)
        for call in ("apply", "flush") if isinstance(body, ReceivingBody) else ("flush",):
            setattr(body, call, _waiting(getattr(body, call), context.outside.clock, self._slow(context, call)))
        if isinstance(self._service, SinkService):
            make: Any = body._make  # type: ignore[attr-defined]

            def made(*identity: Any) -> Any:
                sink = make(*identity)
                sink.release = _waiting(sink.release, context.outside.clock, self._slow(context, "release"))
                return sink

            body._make = made  # type: ignore[attr-defined]
        return body

    async def close(self) -> None:
        """The service's."""
        await self._service.close()


def _waiting(call: Callable[..., Awaitable[Any]], clock: Clock, wait_ms: int) -> Callable[..., Awaitable[Any]]:
    async def waits(*given: Any) -> Any:
        if wait_ms:
            await clock.sleep_ms(wait_ms)
        return await call(*given)

    return waits


SLOW: dict[str, Slow] = {
    "sink": lambda _context, call: 500 if call == "release" else 0,
    "step": lambda context, call: 600 if context.vertex.service == "operator" and call == "flush" else 0,
    "key": lambda context, call: (
        150 if context.vertex.service == "operator" and context.assign.index == 0 and call == "apply" else 0
    ),
}


def document(folder: Path) -> dict[str, Any]:
    """Records with keys, counted, to files."""
    source = {
        "connectionName": "broker", "topic": "t", "config": {"auto_offset_reset": "earliest"},
        "timeField": {"$toDate": "$at"}, "schema": {"at": "long", "k": "int", "n": "int"},
    }  # fmt: skip
    return {
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
        "pipeline": [
            {"$source": source},
            {"$compute": {"class": "tests.harness.computations:Marks", "key": "$k"}},
            {"$emit": {"path": str(folder), "format": "json"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 100, "unit": "ms"}}},
    }


async def _fill(there: Installed) -> None:
    """All records before anything reads; one key in two is the same."""
    there.broker.create_topic("t", 1)
    writer = await there.outside.log.writer("feeder")
    for number in range(RECORDS):
        record = {"at": 10 * number, "n": number, "k": 0 if number % 2 else number % 50}
        record["junk"] = "x" * (RECORD_BYTES - len(json.dumps(record)))  # type: ignore[assignment]
        await (await writer.send(TopicPartition("t", 0), NewRecord(json.dumps(record).encode())))
    await writer.close()


async def _run(world: VirtualWorld, folder: Path, slow: Slow) -> tuple[Most, int]:
    """To the end; what was seen, and how long it took, ms."""
    most = Most()
    coordinator = CoordinatorSettings(adopt_wait_ms=100, unreleased_max=UNRELEASED)
    async with installed(
        world.clock,
        world.executor,
        settings=SETTINGS,
        coordinator=coordinator,
        wrap=lambda service: Slowed(service, slow),
    ) as there:
        await _fill(there)
        await there.create(document(folder), operator=2)
        watching = asyncio.ensure_future(most.watch(there))
        began_ms = world.clock.monotonic_ms()
        await there.start()
        drain = StopProcessor(there.client.unique(), NAME, drain=True, until={"t-0": Offset(RECORDS)})
        await there.client.request(drain)
        status = await there.when(lambda status: status.state == "FINISHED")
        watching.cancel()
        assert status.generation == 1, "something failed in between"
        return most, world.clock.monotonic_ms() - began_ms


@pytest.fixture(scope="module")
def free_ms(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How long it takes where nothing is slow."""
    folder = tmp_path_factory.mktemp("free")
    _, took_ms = run_virtual(lambda world: _run(world, folder, lambda _context, _call: 0))
    return took_ms


@pytest.mark.parametrize("which", SLOW)
def test_F7_F8_C11_what_is_slow_slows_the_source_and_nothing_else(tmp_path: Path, which: str, free_ms: int) -> None:
    """Ten turnovers of the queues: all within their bounds, the source waits, commits go on, every record comes out once."""
    assert RECORDS * RECORD_BYTES > 10 * (AHEAD + UNCOMMITTED)
    most, took_ms = run_virtual(lambda world: _run(world, tmp_path, SLOW[which]))
    assert took_ms > 2 * free_ms, f"{took_ms} ms and {free_ms} ms: nothing was slow"
    assert most.unread <= AHEAD + PIECE
    assert most.uncommitted <= UNCOMMITTED + PIECE
    assert max(most.unread / AHEAD, most.uncommitted / UNCOMMITTED, most.unreleased / UNRELEASED) >= 1, (
        "it never pressed"
    )
    assert most.frames <= SETTINGS.fetch_records_max
    assert most.snapshots <= SETTINGS.snapshots_waiting_max
    assert most.outbox <= (AHEAD + PIECE) // 100, "frames of a hundred bytes at the least"
    assert most.unreleased <= UNRELEASED + 1
    third = len(most.commits) // 3
    assert most.commits[0] < most.commits[third] < most.commits[2 * third] < most.commits[-1], "checkpoints stood still"
    found = released(tmp_path)
    assert sorted(d["n"] for d in found) == list(range(RECORDS))
    assert max(d["seen"] for d in found if d["k"] == 0) == sum(1 for d in found if d["k"] == 0)
