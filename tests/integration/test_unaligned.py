# ruff: noqa: N802 -- a test carries its rule's name
"""Back-pressure: the time of a checkpoint grows with what lies in front of barriers, and not where nobody waits for them (C13).

By the real services, on memory and virtual time. `python -m tests.integration.test_unaligned` prints the table of `tests/bench/README.md`.
"""

import asyncio
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.harness.installation import NAME, Installed, installed, released
from tests.integration.test_pressure import RECORDS, SETTINGS, Slowed, _fill, document
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.protocol.task.start import TaskLimits

SLOW_MS = 150
"""Of one of two tasks of a computation, for each batch of rows."""
AHEAD_BYTES = (12_000, 48_000, 192_000)
"""How far a source may be ahead: what lies in front of a barrier."""


async def _times(there: Installed, into: list[int]) -> None:
    """Of each checkpoint the time from its start to its commit, ms, as the registry tells it."""
    commits = 0
    async for status in there.client.watch(NAME):
        if status.commits > commits:
            commits = status.commits
            into.append(status.epoch_ms)


async def checkpoints(world: VirtualWorld, folder: Path, ahead_bytes: int, timeout_ms: int | None) -> list[int]:
    """How long each took until all records were out, ms."""
    found: list[int] = []
    limits = TaskLimits(ahead_bytes_max=ahead_bytes, uncommitted_bytes_max=2**30)
    async with installed(
        world.clock,
        world.executor,
        settings=replace(SETTINGS, limits=limits),
        coordinator=CoordinatorSettings(adopt_wait_ms=100, epoch_target_ms=600_000),
        wrap=lambda service: Slowed(service, _slow),
    ) as there:
        await _fill(there)
        made = document(folder)
        if timeout_ms is not None:
            made["options"]["checkpoint"]["alignmentTimeout"] = {"size": timeout_ms, "unit": "ms"}
        await there.create(made, operator=2)
        await there.start()
        watching = asyncio.ensure_future(_times(there, found))
        drain = StopProcessor(there.client.unique(), NAME, drain=True, until={"t-0": Offset(RECORDS)})
        await there.client.request(drain)
        status = await there.when(lambda status: status.state == "FINISHED")
        watching.cancel()
        assert status.generation == 1, "something failed in between"
    assert sorted(d["n"] for d in released(folder)) == list(range(RECORDS))
    return found


def _slow(context: object, call: str) -> int:
    vertex, index = context.vertex, context.assign.index  # type: ignore[attr-defined]
    return SLOW_MS if vertex.service == "operator" and index == 0 and call == "apply" else 0


def longest_ms(folder: Path, ahead_bytes: int, timeout_ms: int | None) -> int:
    """The longest of the checkpoints."""
    return max(run_virtual(lambda world: checkpoints(world, folder, ahead_bytes, timeout_ms)))


def test_C13_checkpoints_are_as_fast_under_pressure_as_a_batch(tmp_path: Path) -> None:
    """With four times the backlog they take longer where barriers are waited for; else as long as one batch. All comes out once."""
    few, many = AHEAD_BYTES[:2]
    aligned = [longest_ms(tmp_path / f"aligned-{size}", size, None) for size in (few, many)]
    cut = [longest_ms(tmp_path / f"cut-{size}", size, 0) for size in (few, many)]
    assert aligned[1] > 2 * aligned[0]
    assert max(cut) < 4 * SLOW_MS
    assert aligned[0] > max(cut)


def test_C13_a_time_out_bounds_the_wait(tmp_path: Path) -> None:
    """Barriers are waited for so long, and no longer; where they come in time the checkpoint is an aligned one."""
    waits_ms = 1_000
    assert longest_ms(tmp_path, AHEAD_BYTES[1], waits_ms) < waits_ms + 4 * SLOW_MS


def _table() -> None:
    quiet()
    for size in AHEAD_BYTES:
        for timeout_ms in (None, 1_000, 0):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder)
                found = run_virtual(lambda world: checkpoints(world, path, size, timeout_ms))  # noqa: B023
            median = statistics.median(found)
            line = f"{size} {timeout_ms}: {len(found)} checkpoints, median {median} ms, longest {max(found)} ms"
            sys.stdout.write(line + "\n")


if __name__ == "__main__":
    _table()
