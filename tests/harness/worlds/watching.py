"""What users are shown while clocks and networks are bad: no figure is below nothing; no process is busy, or talks, for waiting."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import psutil

from tests.harness.worlds.world import BadWorld
from tidemark.services.cli.remote import RemoteFailed, find
from tidemark.services.local.supervisor import BROKER

_LOOK_S: Final = 2.0
LINES_MAX: Final = 300
"""Of trouble, in one process' log of a story of some minutes: one that tells of each try in vain has thousands."""
_WORK: Final = '"level": "info"'
"""In a line that tells of work."""
LAG_MS_MAX: Final = 600_000
"""A lag that is shown when all is right again: above it, a clock that was wrong is still in it."""
BUSY_MAX: Final = 0.5
"""Of a core, over the whole story: the jobs take a tenth of that."""

YOUNG_S: Final = 60.0
"""A process that has hardly begun has loaded its modules, and no more."""


class Watcher:
    """Looks again and again, as the console does."""

    def __init__(self, world: BadWorld) -> None:
        self._world = world
        self.wrong: list[str] = []
        self.looks = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for name, found in await asyncio.to_thread(self._stats):
                self.looks += 1
                self.wrong += [f"{name}: {path} is {value}" for path, value in _numbers(found) if value < 0]

    def _stats(self) -> list[tuple[str, Any]]:
        with suppress(RemoteFailed, OSError, ValueError, KeyError):  # it cannot be asked now
            service = find(self._world.folder / "data")
            names = [each["name"] for each in service.get("/v1/processors")["processors"]]
            return [(name, service.get(f"/v1/processors/{name}/stats?verbose=true")) for name in names]
        return []

    async def judged(self) -> list[str]:
        """Sentences on what is wrong, once all is right again."""
        wrong = sorted(set(self.wrong))
        for name, found in await asyncio.to_thread(self._stats):
            wrong += [
                f"{name}: {path} is {value} when all is right"
                for path, value in _numbers(found)
                if path.endswith("LagMillis") and "event" not in path and value > LAG_MS_MAX
            ]
        for log in sorted((self._world.folder / "data" / "logs").glob("*.log")):
            lines = [line for line in log.read_text(errors="replace").splitlines() if _WORK not in line]
            if len(lines) > LINES_MAX:
                wrong.append(f"{log.name} has {len(lines)} lines of trouble, the last {lines[-1][:300]}")
        for place, pid in self._world.cluster.pids().items():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                spent_s, age_s = sum(process.cpu_times()[:2]), time.time() - process.create_time()
                if place != BROKER and age_s > YOUNG_S and spent_s > BUSY_MAX * age_s:
                    wrong.append(f"{place} took {spent_s:.0f} s of a core in {age_s:.0f} s")
        return wrong


def _numbers(found: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """All of a document, but event times."""
    if isinstance(found, dict):
        for name, value in found.items():
            yield from _numbers(value, f"{path}.{name}")
    elif isinstance(found, list):
        for each in found:
            yield from _numbers(each, path)
    elif isinstance(found, int | float) and not isinstance(found, bool):
        yield path, found
