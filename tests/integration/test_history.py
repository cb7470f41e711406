# ruff: noqa: N802 -- a test carries its rule's name
"""A past in files, then a topic, as one source: exact where one ends and the other goes on (LANGUAGE.md, history)."""

import json
from collections.abc import Callable, Collection, Coroutine, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed, released
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.body import ReadingBody, TaskBody
from tidemark.shared.runtime.context import AssignedTask, Service
from tidemark.shared.runtime.settings import RuntimeSettings

SWITCH = 30
"""The number of the first record that is the topic's; a record's event time is its number in seconds."""
WINDOW: dict[str, Any] = {
    "$tumblingWindow": {
        "interval": {"size": 10, "unit": "second"},
        "allowedLateness": {"size": 0, "unit": "second"},
        "pipeline": [{"$group": {"_id": None, "n": {"$sum": 1}, "first": {"$min": "$n"}}}],
    }
}


class Broken(Exception):
    """What ends a task."""


class Breaking:
    """A service whose reading tasks break at these fetches, counted over all tasks and generations."""

    def __init__(self, service: Service, at: Collection[int], fetches: "count[int]") -> None:
        self._service = service
        self._at = at
        self._fetches = fetches

    @property
    def name(self) -> str:
        """The service's."""
        return self._service.name

    async def build(self, context: AssignedTask) -> TaskBody:
        """Its body, which breaks when it has read and has not taken what it read."""
        body = await self._service.build(context)
        if isinstance(body, ReadingBody):
            fetch = body.fetch

            async def broken(**how: Any) -> Any:
                found = await fetch(**how)
                if next(self._fetches) in self._at:
                    raise Broken
                return found

            setattr(body, "fetch", broken)  # noqa: B010 -- a method is replaced
        return body

    async def close(self) -> None:
        """The service's."""
        await self._service.close()


def tell(story: Callable[[Installed], Coroutine[Any, Any, None]], breaks: Collection[int] = ()) -> None:
    """On virtual time; source tasks break at these fetches."""
    fetches = count(1)
    fetch_bytes = (
        1 if breaks else RuntimeSettings().fetch_bytes_max
    )  # tasks break between fetches, which one would be else

    async def main(world: VirtualWorld) -> None:
        patient = CoordinatorSettings(adopt_wait_ms=100, failures_max=50)
        async with installed(
            world.clock,
            world.executor,
            settings=RuntimeSettings(engine="local", fetch_bytes_max=fetch_bytes),
            coordinator=patient,
            wrap=lambda service: Breaking(service, breaks, fetches),
        ) as there:
            await story(there)

    run_virtual(main)
    assert next(fetches) > max(breaks, default=0)


def document(folder: Path, *stages: dict[str, Any]) -> dict[str, Any]:
    """Files up to the switch, then the topic; all that comes, into a folder."""
    time = {"timeField": {"$toDate": "$at"}, "schema": {"at": "long", "n": "int"}}
    source = {
        "history": {"path": str(folder / "past" / "*.json"), "format": "json", **time},
        "then": {"connectionName": "broker", "topic": "t", **time},
        "switchAt": {"$date": "1970-01-01T00:00:30Z"},
    }
    return {
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
        "pipeline": [{"$source": source}, *stages, {"$emit": {"path": str(folder / "out"), "format": "json"}}],
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    }


def line(number: int) -> bytes:
    """A record."""
    return json.dumps({"at": 1_000 * number, "n": number}).encode()


def past(folder: Path) -> None:
    """Five files, with some records that the topic has, too."""
    (folder / "past").mkdir()
    for file in range(5):
        lines = [line(number) + b"\n" for number in range(8 * file, 8 * file + 8)]
        (folder / "past" / f"{file}.json").write_bytes(b"".join(lines))


async def write(there: Installed, numbers: Sequence[int], partitions: int = 2) -> None:
    """Records into the topic, each with its event time as its own."""
    writer = await MemoryLog(there.broker).writer("feeder")
    for n in numbers:
        await (await writer.send(TopicPartition("t", n % partitions), NewRecord(line(n), timestamp_ms=1_000 * n)))
    await writer.close()


async def drain(there: Installed) -> None:
    """To the end of what is there."""
    await there.client.request(StopProcessor(there.client.unique(), NAME, drain=True))
    await there.when(lambda status: status.state == "FINISHED")


@pytest.mark.parametrize("breaks", [(), *((n,) for n in range(1, 12)), (2, 4, 6, 8), (3, 5, 9, 14)])
@pytest.mark.parametrize("tasks", [1, 2])
def test_W2_D16_each_record_comes_once_wherever_a_task_breaks(
    tmp_path: Path, tasks: int, breaks: tuple[int, ...]
) -> None:
    """The past and the topic overlap by twenty seconds; windows on both sides of the switch are whole, and come once."""
    past(tmp_path)

    async def story(there: Installed) -> None:
        there.broker.create_topic("t", 2)
        await write(there, range(20, 50))
        await there.create(document(tmp_path, WINDOW), source=tasks)
        await there.start()
        await write(there, range(50, 60))
        await there.committed()
        await drain(there)

    tell(story, breaks)
    assert sorted((d["first"], d["n"]) for d in released(tmp_path / "out")) == [(10 * i, 10) for i in range(6)]


def test_W2_D16_a_silent_topic_does_not_hold_up_the_past(tmp_path: Path) -> None:
    """All windows before the switch come out though no partition of the topic has a record; none behind it does."""
    past(tmp_path)

    async def story(there: Installed) -> None:
        there.broker.create_topic("t", 2)
        await there.create(document(tmp_path, WINDOW))
        await there.start()
        await there.committed(5)
        assert sorted((d["first"], d["n"]) for d in released(tmp_path / "out")) == [(0, 10), (10, 10), (20, 10)]
        await write(there, range(30, 40))
        await there.committed(3)
        assert len(released(tmp_path / "out")) == 3
        await write(there, range(40, 42))
        await there.committed(3)

    tell(story)
    assert sorted((d["first"], d["n"]) for d in released(tmp_path / "out")) == [(10 * i, 10) for i in range(4)]


def test_D16_a_drain_while_the_past_is_read_ends_behind_both(tmp_path: Path) -> None:
    """Ordered at once: the past ends by itself, the topic where it stood, over a break, too."""
    past(tmp_path)

    async def story(there: Installed) -> None:
        there.broker.create_topic("t", 2)
        await write(there, range(30, 45))
        await there.create(document(tmp_path))
        await there.start()
        await drain(there)

    tell(story, (4,))
    assert sorted(d["n"] for d in released(tmp_path / "out")) == list(range(45))


def test_D16_a_stop_and_a_start_change_nothing_and_another_switch_is_refused(tmp_path: Path) -> None:
    """The switch is part of the source: records already read were divided by it."""
    past(tmp_path)

    async def story(there: Installed) -> None:
        there.broker.create_topic("t", 2)
        await write(there, range(25, 40))
        await there.create(document(tmp_path))
        await there.start()
        await there.stop()
        other = document(tmp_path)
        other["pipeline"][0]["$source"]["switchAt"] = {"$date": "1970-01-01T00:00:31Z"}
        with pytest.raises(Exception, match=r"\$source has changed"):
            await there.modify(other)
        await there.start()
        await write(there, range(40, 50))
        await there.committed()
        await drain(there)

    tell(story)
    assert sorted(d["n"] for d in released(tmp_path / "out")) == list(range(50))
