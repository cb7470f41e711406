# ruff: noqa: N802 -- a test carries its rule's name
"""What may happen to a source's topics and folders beside the processor: it is noticed, named, and where that can be, read."""

import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed, released
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.settings import RuntimeSettings

Story = Callable[[Installed], Coroutine[Any, Any, None]]
LOOK_MS = 2_000


def tell(story: Story) -> None:
    """On virtual time."""
    settings = RuntimeSettings(engine="local", splits_interval_ms=LOOK_MS)

    async def main(world: VirtualWorld) -> None:
        few = CoordinatorSettings(adopt_wait_ms=100, failures_max=2)
        async with installed(world.clock, world.executor, settings=settings, coordinator=few) as there:
            await story(there)

    run_virtual(main)


def document(source: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Everything that the source gives, into a folder."""
    time = {"timeField": {"$toDate": "$at"}, "schema": {"at": "long", "n": "int"}}
    return {
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
        "pipeline": [{"$source": {**source, **time}}, {"$emit": {"path": str(folder), "format": "json"}}],
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    }


TOPIC = {"connectionName": "broker", "topic": "t", "config": {"auto_offset_reset": "latest"}}


def line(number: int) -> bytes:
    """A record."""
    return json.dumps({"at": 1_000 * number, "n": number}).encode()


async def write(there: Installed, partition: int, numbers: Sequence[int]) -> None:
    """Records into a partition of the topic."""
    writer = await MemoryLog(there.broker).writer("feeder")
    for number in numbers:
        await (await writer.send(TopicPartition("t", partition), NewRecord(line(number))))
    await writer.close()


@pytest.mark.parametrize("tasks", [1, 2])
def test_W2_a_partition_that_comes_while_the_processor_runs_is_read_from_its_first_record(
    tmp_path: Path, tasks: int
) -> None:
    """Also what was written before it was noticed, and once only: over a stop and a start, and to the end of a drain."""

    async def story(there: Installed) -> None:
        there.broker.create_topic("t", 1)
        await there.create(document(TOPIC, tmp_path), source=tasks)
        await there.start()
        await write(there, 0, range(5))
        there.broker.add_partitions("t", 3)
        await write(there, 1, range(10, 15))
        await there.clock.sleep_ms(2 * LOOK_MS)
        await write(there, 2, range(20, 25))
        await there.committed()
        await there.stop()
        assert sorted(d["n"] for d in released(tmp_path)) == [*range(5), *range(10, 15), *range(20, 25)]
        await write(there, 1, range(15, 18))
        await there.start()
        until = {"t-0": Offset(5), "t-1": Offset(8), "t-2": Offset(5)}
        await there.client.request(StopProcessor(there.client.unique(), NAME, drain=True, until=until))
        await there.when(lambda status: status.state == "FINISHED")
        assert sorted(d["n"] for d in released(tmp_path)) == [*range(5), *range(10, 18), *range(20, 25)]

    tell(story)


def test_a_file_that_comes_into_a_folder_that_is_followed_is_read(tmp_path: Path) -> None:
    """Without an order among files each is a split, and new ones are noticed as partitions are."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_bytes(line(1) + b"\n")
    source = {"path": str(tmp_path / "in" / "*.json"), "format": "json", "ordered": False, "follow": True}

    async def story(there: Installed) -> None:
        await there.create(document(source, tmp_path / "out"))
        await there.start()
        await there.committed()
        (tmp_path / "in" / "b.json").write_bytes(line(2) + b"\n")
        await there.clock.sleep_ms(2 * LOOK_MS)
        await there.committed()
        await there.stop()

    tell(story)
    assert sorted(d["n"] for d in released(tmp_path / "out")) == [1, 2]


def test_retention_that_overtook_a_stopped_processor_is_said_with_its_place(tmp_path: Path) -> None:
    """FAILED, with topic, partition, both offsets and what to do; nothing is skipped silently."""

    async def story(there: Installed) -> None:
        there.broker.create_topic("t", 1)
        await there.create(document(TOPIC, tmp_path))
        await there.start()
        await write(there, 0, range(5))
        await there.committed()
        await there.stop()
        await write(there, 0, range(5, 20))
        await there.outside.log.delete_records({TopicPartition("t", 0): Offset(12)})
        with pytest.raises(
            AssertionError, match=r"topic t partition 0: offset 5 .* begins at 12: 7 offsets .* start without state"
        ):
            await there.start()
        assert sorted(d["n"] for d in released(tmp_path)) == list(range(5))

    tell(story)


def test_I2_a_later_file_of_a_sequence_that_was_replaced_fails_the_processor_with_its_name(tmp_path: Path) -> None:
    """The processor's row knows the first file alone; what the others are known by stands in the snapshot."""
    (folder := tmp_path / "in").mkdir()
    for begin, name in enumerate("abc"):
        (folder / f"{name}.json").write_bytes(b"".join(line(100 * begin + n) + b"\n" for n in range(5)))
    source = {"path": str(folder / "*.json"), "format": "json", "follow": True}

    async def story(there: Installed) -> None:
        await there.create(document(source, tmp_path / "out"))
        await there.start()
        await there.committed()
        await there.stop()
        (folder / "c.json").write_bytes(b"".join(line(n) + b"\n" for n in range(900, 920)))
        with pytest.raises(AssertionError, match=r"c\.json: its first 5 records .* start without state"):
            await there.start()

    tell(story)
    assert len(released(tmp_path / "out")) == 15
