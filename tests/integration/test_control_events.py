"""What happens to a processor, as the events topic tells it to other systems; on virtual time, beside real coordinator and workers."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from tests.harness.audited import PER_PART, READINGS, document, feed
from tests.harness.installation import NAME, Installed, installed
from tests.harness.sealing import sealed
from tidemark.services.cli.process import quiet
from tidemark.services.control.events import Events
from tidemark.services.control.readmodel import ReadModel
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.messages import StartProcessor, StopProcessor


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


class Telling:
    """The events of a control service; several on one topic are replicas, or one after another."""

    def __init__(self, there: Installed, world: VirtualWorld, late_fraction: float) -> None:
        log, topics = sealed(MemoryLog(there.broker)), there.outside.topics
        settings = ControlSettings(late_fraction_max=late_fraction, late_records_min=PER_PART)
        self.events = Events(log, topics, world.clock, settings)
        self.model = ReadModel(log, topics, world.clock, on_status=self.events.status)
        self._world = world

    async def begin(self) -> None:
        handles = self.model.start(self._world.executor, _raise)
        self._handles = [*handles, *self.events.start(self._world.executor, self.model, _raise)]
        while not self.model.ready():
            await self._world.clock.sleep_ms(10)

    async def end(self) -> None:
        for handle in self._handles:
            handle.cancel()
        for handle in self._handles:
            await handle.join()


def _raise(error: BaseException) -> None:
    raise error


def told(there: Installed, kind: str) -> list[dict[str, Any]]:
    """The events of a type, so far."""
    stored = there.broker._topics[there.outside.topics.events][0].stored
    found = [(s.record.key, json.loads(s.record.value or b"")) for s in stored if s.record is not None]
    assert all(key == event["processor"].encode() for key, event in found)
    return [event for _, event in found if event["type"] == kind]


async def until(world: VirtualWorld, what: str, reached: Callable[[], object]) -> None:
    """Wait a minute of virtual time for it at most."""
    for _ in range(600):
        if reached():
            return
        await world.clock.sleep_ms(100)
    message = f"{what} was never told"
    raise AssertionError(message)


def test_states_commits_and_too_much_late_data_are_told(tmp_path: Path) -> None:
    """Each state in its order with the one before, each commit once, an alert when too large a part came late; a drop, too.

    A service that starts tells again what the registry still holds, under the same ids, so that repeats can be dropped.
    """

    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as there:
            log = sealed(MemoryLog(there.broker))
            await log.create_topic("readings", 2)
            telling = Telling(there, world, late_fraction=0.01)
            await telling.begin()
            await there.create(document(tmp_path), source=2, operator=2, sink=2)
            await there.start()
            for begin in range(0, len(READINGS), PER_PART):
                await feed(log, READINGS[begin : begin + PER_PART])
                await there.committed()
            await until(world, "an alert", lambda: told(there, "alert"))
            ended = await there.stop(drain=True)
            await until(world, "the end", lambda: told(there, "state")[-1]["state"] == "FINISHED")
            await until(world, "the last commit", lambda: told(there, "commit")[-1]["epoch"] == ended.last)
            first = told(there, "state")
            await telling.end()
            again = Telling(there, world, late_fraction=0.01)
            await again.begin()
            last = [first[-1] | {"time": ANY}]
            await until(world, "the states again", lambda: told(there, "state")[len(first) :][-1:] == last)
            await there.drop()
            await until(world, "the drop", lambda: told(there, "state")[-1]["state"] == "DROPPED")
            await again.end()

            names = [event["state"] for event in first]
            assert (names[0], names[-1]) == ("CREATED", "FINISHED")
            assert names.index("STARTING") < names.index("RUNNING") < names.index("FINISHED")
            assert [event["before"] for event in first[1:]] == names[:-1]
            *repeated, dropped = told(there, "state")[len(first) :]
            assert {event["id"] for event in repeated} <= {event["id"] for event in first}
            assert (dropped["state"], dropped["before"]) == ("DROPPED", "FINISHED")
            epochs = [event["epoch"] for event in told(there, "commit")]
            assert list(dict.fromkeys(epochs)) == sorted(set(epochs)), "commits are told out of order"
            assert len(set(epochs)) >= len(READINGS) // PER_PART
            (alert,) = told(there, "alert")
            assert (alert["processor"], alert["what"], alert["allowed"]) == (NAME, "late data", 0.01)
            assert alert["fraction"] > 0.01

    run_virtual(main)


def test_late_data_within_the_setting_raise_no_alert(tmp_path: Path) -> None:
    """The same readings under a wider setting: states and commits are told, and no alert."""

    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as there:
            log = sealed(MemoryLog(there.broker))
            await log.create_topic("readings", 2)
            telling = Telling(there, world, late_fraction=0.5)
            await telling.begin()
            await there.create(document(tmp_path))
            await there.start()
            await feed(log, READINGS)
            await there.committed(10)
            await telling.end()
            assert told(there, "commit") != []
            assert told(there, "alert") == []

    run_virtual(main)


def test_every_change_of_state_has_an_id_of_its_own(tmp_path: Path) -> None:
    """Also where a state comes again in one generation: who drops repeats by id loses no change, and a service that starts repeats ids."""

    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as there:
            log = sealed(MemoryLog(there.broker))
            await log.create_topic("readings", 2)
            telling = Telling(there, world, late_fraction=0.5)
            await telling.begin()
            await there.create(document(tmp_path))
            for _ in range(2):
                await there.start()
                await there.committed()
                await there.stop()
            await there.start()
            await there.client.request(StopProcessor("stop", NAME))
            await there.client.request(StartProcessor("go-on", NAME))
            await there.stop()
            await until(
                world, "the last stop", lambda: [e["state"] for e in told(there, "state")].count("STOPPED") == 3
            )
            first = told(there, "state")
            await telling.end()
            again = Telling(there, world, late_fraction=0.5)
            await again.begin()
            await until(world, "the states again", lambda: len(told(there, "state")) == 2 * len(first))
            await again.end()
            assert [event["before"] for event in first[1:]] == [event["state"] for event in first[:-1]]
            assert len({event["id"] for event in first}) == len(first)
            assert [event["state"] for event in first].count("STOPPING") == 4
            assert [event["id"] for event in told(there, "state")] == 2 * [event["id"] for event in first]

    run_virtual(main)
