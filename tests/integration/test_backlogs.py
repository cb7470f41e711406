# ruff: noqa: N802 -- a test carries its rule's name
"""A backlog takes the time of its work, and no timer's: on virtual time, where work takes none, four times as much takes no longer.

By the real services, on memory. So an interval is found that bounds what flows between two of its ticks, which a busy machine hides.
"""

import json
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.protocol.task.start import TaskLimits
from tidemark.shared.runtime.settings import RuntimeSettings

AHEAD_BYTES = 64_000
"""W: many of it are a small backlog here."""
SETTINGS = RuntimeSettings(
    engine="local", inline_bytes_max=8_000, fetch_bytes_max=16_000, limits=TaskLimits(ahead_bytes_max=AHEAD_BYTES)
)
RECORD_BYTES, BEGIN_MS = 1_000, 1_700_000_000_000
COMPUTATION = {"$compute": {"class": "tests.harness.computations:Marks", "key": "$k"}}
GROUP = {"$group": {"_id": "$k", "n": {"$sum": 1}, "junk": {"$last": "$junk"}}}
SHAPES: dict[str, list[dict[str, Any]]] = {
    "map": [{"$addFields": {"twice": {"$multiply": ["$n", 2]}}}],
    "computation": [COMPUTATION],
    "computation by arrival": [{"$compute": {**COMPUTATION["$compute"], "order": "arrival"}}],
    "two computations": [COMPUTATION, COMPUTATION],
    "window": [{"$tumblingWindow": {"interval": {"size": 100, "unit": "ms"}, "pipeline": [GROUP]}}],
}


def _document(shape: str) -> dict[str, Any]:
    source = {
        "connectionName": "broker", "topic": "in", "config": {"auto_offset_reset": "earliest"},
        "timeField": {"$toDate": "$at"},
    }  # fmt: skip
    return {
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
        "pipeline": [{"$source": source}, *SHAPES[shape], {"$emit": {"connectionName": "broker", "topic": "out"}}],
        "options": {"checkpoint": {"interval": {"size": 1, "unit": "second"}}},
    }


async def _fill(there: Installed, partitions: int, records: int) -> None:
    for topic in ("in", "out"):
        there.broker.create_topic(topic, partitions)
    writer = await there.outside.log.writer("feeder")
    for number in range(records):
        record = {"at": BEGIN_MS + 10 * number, "n": number, "k": number % 50}
        record["junk"] = "x" * (RECORD_BYTES - len(json.dumps(record)))  # type: ignore[assignment]
        place = TopicPartition("in", number % partitions)
        await (await writer.send(place, NewRecord(json.dumps(record).encode())))
    await writer.close()


async def _drain(world: VirtualWorld, shape: str, partitions: int, records: int, tasks: int) -> int:
    coordinator = CoordinatorSettings(adopt_wait_ms=100)
    async with installed(world.clock, world.executor, settings=SETTINGS, coordinator=coordinator) as there:
        await _fill(there, partitions, records)
        await there.create(_document(shape), source=tasks, sink=tasks)
        began_ms = world.clock.monotonic_ms()
        await there.start()
        until = {f"in-{n}": Offset(records // partitions) for n in range(partitions)}
        await there.client.request(StopProcessor(there.client.unique(), NAME, drain=True, until=until))
        status = await there.when(lambda status: status.state == "FINISHED")
        took_ms = world.clock.monotonic_ms() - began_ms
        assert status.generation == 1, "something failed in between"
        ends = await there.outside.log.end_offsets([TopicPartition("out", n) for n in range(partitions)])
        assert sum(ends.values()) >= (records if shape == "map" else 1)
        return took_ms


@pytest.mark.parametrize(
    ("shape", "partitions", "tasks"),
    [("map", 1, 1), *((shape, 4, 2) for shape in SHAPES)],
)
def test_F7_no_timer_bounds_what_flows(shape: str, partitions: int, tasks: int) -> None:
    """Read positions told at an interval alone let no more than W pass in each."""
    some, more = (
        run_virtual(lambda world: _drain(world, shape, partitions, times * AHEAD_BYTES // RECORD_BYTES, tasks))  # noqa: B023
        for times in (4, 16)
    )
    assert more == some
