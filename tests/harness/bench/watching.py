"""Beside a run: what its processes use (CPU, memory), and where the time goes."""

import asyncio
import contextlib
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

_SAMPLE_S = 1.0
_PROFILE_HZ = 100
_LINES = 15
_ALL = 0.9


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def label(process: psutil.Process) -> str:
    """`java` or `python`: a Spark stage has both."""
    return "java" if "java" in process.name() else "python"


def pin(pids: Iterable[int], cores: Iterable[int]) -> None:
    """Bind processes, all their threads and what they start to these cores."""
    for pid in pids:
        for process in family(pid):
            for thread in process.threads():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, set(cores))


@dataclass
class Usage:
    """What a run used."""

    cpu_s: dict[str, float] = field(default_factory=dict)
    """By place and kind of process."""
    peak_rss_mib: float = 0.0
    """Of all processes together, broker included; pages that processes share count for each."""


class Meter:
    """Samples the processes at these places until it is left."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self.usage = Usage()
        self._before: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._before = self._cpu()
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        after = self._cpu()
        self.usage.cpu_s = {name: round(s - self._before.get(name, 0.0), 2) for name, s in after.items()}

    async def _sample(self) -> None:
        while True:
            total = 0
            for pid in self._pids.values():
                for process in family(pid):
                    with contextlib.suppress(psutil.Error):
                        total += process.memory_info().rss
            self.usage.peak_rss_mib = max(self.usage.peak_rss_mib, total / 2**20)
            await asyncio.sleep(_SAMPLE_S)

    def _cpu(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for place, pid in self._pids.items():
            for process in family(pid):
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    name = f"{place} {label(process)}"
                    found[name] = found.get(name, 0.0) + times.user + times.system
        return found


class Profiler:
    """Samples the Python processes with py-spy, if it is installed; stacks and their weights by place."""

    def __init__(self, pids: Mapping[str, int], folder: Path, seconds: int) -> None:
        self._pids = pids
        self._folder = folder
        self._seconds = seconds
        self._running: dict[str, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> Self:
        beside = Path(sys.executable).with_name("py-spy")
        spy = str(beside) if beside.exists() else shutil.which("py-spy")
        if spy is None:
            return self
        self._folder.mkdir(parents=True, exist_ok=True)
        for place, pid in self._pids.items():
            command = [spy, "record", "-r", str(_PROFILE_HZ), "-d", str(self._seconds), "-f", "raw"]
            command += ["-s"] if place.startswith("spark") else []
            self._running[place] = await asyncio.create_subprocess_exec(
                *command, "-o", str(self._folder / f"{place}.txt"), "-p", str(pid),
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(2)
            await process.wait()

    def shown(self) -> dict[str, list[str]]:
        """By place: the product's and libraries' functions by the share of samples that they are on the stack of."""
        return {place: _shares(self._folder / f"{place}.txt") for place in self._running}


def _shares(path: Path) -> list[str]:
    if not path.exists():
        return []
    inside: Counter[str] = Counter()
    itself: Counter[str] = Counter()
    total = 0
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        total += int(count)
        itself[frames[-1]] += int(count)
        for frame in set(frames):
            inside[frame] += int(count)
    # What every sample is inside of says nothing.
    rows = [f"{n / total:6.1%} of {total}  {frame}" for frame, n in inside.most_common(_LINES * 2) if n < _ALL * total]
    own = [f"{n / total:6.1%} itself  {frame}" for frame, n in itself.most_common(_LINES)]
    return [*rows, *own]
