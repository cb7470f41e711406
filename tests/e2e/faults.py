"""What the end-to-end tests do to a running installation, and what they watch meanwhile."""

import asyncio
import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.services.cli.demo import ALERTS, LATE, NAME
from tidemark.services.cli.installation import Installation
from tidemark.services.cli.view import SeenReports
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.messages import ProcessorStatus
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.runtime.reading import followed


@dataclass(frozen=True)
class Kill:
    """SIGKILL at the nth time that the process at a place passes a phase."""

    place: str
    phase: str
    nth: int

    def order(self, folder: Path) -> str:
        """As TIDEMARK_KILL_AT has it."""
        return f"{self.place}={self.phase}:{self.nth}:{self.record(folder)}"

    def record(self, folder: Path) -> Path:
        """Where the dying process notes it."""
        return folder / f"{self.place}-{self.phase}-{self.nth}.json"


def orders(kills: Sequence[Kill], folder: Path) -> str:
    """TIDEMARK_KILL_AT for all of them."""
    return ";".join(kill.order(folder) for kill in kills)


@dataclass
class Reader:
    """Reads the topics of the outputs all the time, read committed, and the commits of the table."""

    folder: Path
    records: dict[str, list[tuple[int, bytes | None]]] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)

    async def run(self, installed: Installation, _seen: SeenReports) -> None:
        """Read until cancelled."""
        await asyncio.gather(*(self._topic(installed, topic) for topic in (ALERTS, LATE)), self._files(installed))

    async def _topic(self, installed: Installation, topic: str) -> None:
        seen = self.records.setdefault(topic, [])
        async for r in followed(installed.log, SystemClock(), TopicPartition(topic, 0), committed_only=True):
            seen.append((r.offset, r.value))

    async def _files(self, installed: Installation) -> None:
        async for _ in installed.client.heartbeats():
            for path in sorted((self.folder / "counts" / "_delta_log").glob("*.json")):
                data = path.read_bytes()
                if self.manifests.setdefault(str(path), data) != data:
                    self.changed.append(str(path))


async def until(installed: Installation, reached: Callable[[ProcessorStatus], bool]) -> ProcessorStatus:
    """Wait for a status of the processor."""
    async for status in installed.client.watch(NAME):
        if reached(status):
            return status
    message = "the registry ended"
    raise AssertionError(message)


async def kill(installed: Installation, place: str) -> None:
    """SIGKILL of the process at a place. One that was killed a moment ago is there again after a while; this waits for it."""
    if place not in installed.cluster.pids():
        async for _ in installed.client.heartbeats():
            if place in installed.cluster.pids():
                break
    installed.cluster.kill(place, signal.SIGKILL)


async def pause_past_the_heartbeat(installed: Installation, place: str) -> None:
    """SIGSTOP until the coordinator has given the worker up, then SIGCONT: the process comes back as a zombie."""
    before = await until(installed, lambda status: status.state == "RUNNING")
    pid = installed.cluster.pids()[place]
    installed.cluster.kill(place, signal.SIGSTOP)
    await until(installed, lambda status: status.generation > before.generation)
    if installed.cluster.pids().get(place) == pid:
        installed.cluster.kill(place, signal.SIGCONT)


def lines(path: Path) -> list[dict[str, object]]:
    """A file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]
