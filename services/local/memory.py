"""How much memory a tree of processes takes: pages that several share are counted once (proportional set size, PSS)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

SAMPLE_S = 1.0
"""How often a measurement looks."""


def resident_bytes(pids: Sequence[int]) -> int:
    """PSS of these processes and all below them; of a process that has just ended, nothing."""
    found: dict[int, int] = {}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                found[each.pid] = _pss(each.pid)
        except psutil.NoSuchProcess:
            continue
    return sum(found.values())


def _pss(pid: int) -> int:
    """Of one process, bytes: one line of a file that the kernel sums up."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    kib = next((line.split()[1] for line in lines if line.startswith("Pss:")), "0")
    return int(kib) * 1024


@dataclass(slots=True)
class PeakMemory:
    """The highest sum seen, sampled once a second: a peak between two samples may be missed."""

    pid: int
    """The root of the tree."""
    bytes: int = 0
    samples: int = 0

    async def watch(self) -> None:
        """Sample until cancelled; off the loop, for the kernel takes some milliseconds for each process."""
        while True:
            self.bytes = max(self.bytes, await asyncio.to_thread(resident_bytes, [self.pid]))
            self.samples += 1
            await asyncio.sleep(SAMPLE_S)
