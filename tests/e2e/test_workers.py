"""The worked example of slots, by a real supervisor and real processes: workers come when no slot is free, and go when they are empty."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import CreateProcessor, ProcessorStatus, StartProcessor, StopProcessor

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]
SERVICES = {"coordinator": 1, "source": 1, "sink": 1, "operator": 0, "spark": 0}


@dataclass
class Story:
    """Processors proc01, proc02, … with one source task and one sink task each."""

    there: Installation
    folder: Path

    async def start(self, *numbers: int) -> None:
        """Create those that are not there; start them, in order; wait until all run."""
        client, known = self.there.client, await self.there.client.statuses()
        asked = []
        for number in numbers:
            name = _name(number)
            if name not in known:
                await client.request(CreateProcessor(client.unique(), name, json.dumps(self._document(name))))
            asked.append(client.unique())
            await client.request(StartProcessor(asked[-1], name))
        for number, request in zip(numbers, asked, strict=True):
            await self._when(number, request, "RUNNING")

    async def stop(self, number: int) -> None:
        """Stop it at a checkpoint."""
        request = self.there.client.unique()
        await self.there.client.request(StopProcessor(request, _name(number)))
        await self._when(number, request, "STOPPED")

    async def places(self, number: int) -> set[str]:
        """Of the workers that host it."""
        return {str(place) for _, _, place in (await self.there.client.statuses())[_name(number)].tasks}

    async def until_gone(self, places: set[str]) -> None:
        """Wait until the supervisor has ended the processes at these places."""
        async for _ in self.there.client.heartbeats():
            if not places & self.there.cluster.pids().keys():
                return

    async def until_said(self, place: str, *events: str) -> None:
        """Wait until the process at a place has logged these."""
        log = self.there.cluster.settings.data_dir / "logs" / f"{place}.log"
        async for _ in self.there.client.heartbeats():
            if all(event in log.read_text() for event in events):
                return

    async def until_running(self, number: int) -> None:
        """Wait for a second generation that runs."""
        async for status in self.there.client.watch(_name(number)):
            if status.state == "RUNNING" and status.generation > 1:
                return

    async def _when(self, number: int, request: str, state: str) -> ProcessorStatus:
        async for status in self.there.client.watch(_name(number)):
            assert status.state != "FAILED", status.reason
            if status.state == state and request in dict(status.answers):
                return status
        raise AssertionError("the registry ended")

    def _document(self, name: ProcessorName) -> dict[str, object]:
        source = {"$source": {"path": str(self.folder / "in.json"), "format": "json", "follow": True}}
        return {"pipeline": [source, {"$emit": {"path": str(self.folder / name), "format": "json"}}]}


def _name(number: int) -> ProcessorName:
    return ProcessorName(f"proc{number:02}")


def _workers(number: int) -> set[str]:
    return {f"source-{number}", f"sink-{number}"}


async def test_workers_come_and_go_with_processors(tmp_path: Path) -> None:
    """Eight fill two workers; a ninth makes a third; a tenth goes there too; both stopped, it goes; the ninth takes a free slot.

    A worker that is told to end says so and leaves in good order; what it hosted goes on.
    """
    (tmp_path / "in.json").write_text('{"n": 1}\n')
    environment = {
        "TIDEMARK_RUNTIME": json.dumps({"engine": "local", "slots": 4}),
        "TIDEMARK_EXTRA": json.dumps({"retire_idle_ms": 500, "adopt_wait_ms": 1_000}),
    }
    async with installation(tmp_path / "data", environment, SERVICES) as there:
        story = Story(there, tmp_path)
        await story.start(*range(1, 9))
        assert [await story.places(n) for n in range(1, 9)] == [_workers(0)] * 4 + [_workers(1)] * 4
        await story.start(9)
        assert await story.places(9) == _workers(2)
        await story.stop(3)
        await story.start(10)
        assert await story.places(10) == _workers(2)
        await story.stop(10)
        await story.stop(9)
        await story.until_gone(_workers(2))
        await story.start(9)
        assert await story.places(9) == _workers(0)
        assert _workers(0) | _workers(1) <= there.cluster.pids().keys()
        there.cluster.kill("source-1", signal.SIGTERM)
        await story.until_said("source-1", "worker.leaves", "process.stopped")
        await story.until_running(5)
