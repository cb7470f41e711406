# ruff: noqa: N802 -- a test carries its rule's name
"""A wall clock that was years ahead for a while: windows of processing time go on when it is right again."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import installed, released
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.settings import RuntimeSettings

_MINUTES_MS = 60_000


def document(folder: Path) -> dict[str, Any]:
    """Counts of each second of processing time, with the numbers that are counted."""
    group = {"$group": {"_id": None, "ids": {"$push": "$n"}}}
    return {
        "connections": {"k": {"type": "kafka", "bootstrapServers": "memory:1"}},
        "pipeline": [
            {"$source": {"connectionName": "k", "topic": "in", "config": {"auto_offset_reset": "earliest"}}},
            {
                "$tumblingWindow": {
                    "interval": {"size": 1, "unit": "second"},
                    "boundary": "processingTime",
                    "pipeline": [group],
                }
            },
            {"$emit": {"path": str(folder / "out"), "format": "json"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 500, "unit": "ms"}}},
    }


@pytest.mark.parametrize("ahead_ms", [90 * _MINUTES_MS, 12 * 366 * 24 * 60 * _MINUTES_MS])
def test_W5_windows_of_processing_time_go_on_when_a_clock_that_was_ahead_is_put_right(
    tmp_path: Path, ahead_ms: int
) -> None:
    """Rows that come behind it are counted within seconds, each once, however far ahead the clock was."""

    async def main(world: VirtualWorld) -> list[int]:
        async def feed(number: int) -> None:
            writer = await there.outside.log.writer("feeder")
            await (await writer.send(TopicPartition("in", 0), NewRecord(json.dumps({"n": number}).encode())))
            await writer.close()
            await world.clock.sleep_ms(3_000)

        async with installed(
            world.clock,
            world.executor,
            services=("source", "operator", "sink"),
            settings=RuntimeSettings(engine="local"),
        ) as there:
            there.broker.create_topic("in", 1)
            await there.create(document(tmp_path))
            await there.start()
            await there.committed()
            await feed(1)
            world.clock.shift(ahead_ms)
            await feed(2)
            world.clock.shift(-ahead_ms)
            for n in (3, 4, 5):
                await feed(n)
            await world.clock.sleep_ms(5_000)
            return sorted(n for row in released(tmp_path / "out") for n in row["ids"])

    assert [n for n in run_virtual(main, start_ms=1_700_000_000_000) if n != 2] == [1, 3, 4, 5]
