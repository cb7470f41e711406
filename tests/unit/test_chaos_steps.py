"""A run under faults whose installation hangs: its own words come, at whichever step it hangs, and whoever is asked for them."""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.harness.chaos.faults import Faults
from tests.harness.chaos.rounds import Measure, Piece
from tests.harness.chaos.steps import Steps, Wrong
from tidemark.services.cli.installation import Begun, Installation
from tidemark.services.local.supervisor import LocalCluster, LocalSettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.topics import Topics

WORKERS = {"coordinator": 1, "source": 1}
HANGS_S = 20.0
"""A run whose steps have tenths of a second would have ended long before."""


class Started(Installation):
    """Somebody starts processors there, and nobody answers what comes then."""

    async def ensure_started(self, name: ProcessorName, document: str, parallelism: Mapping[str, int]) -> Begun:
        """At once."""
        del name, document, parallelism
        return "created"


@dataclass
class Empty:
    """A world of topics, in which no process runs."""

    installed: Installation
    cluster: LocalCluster
    folder: Path
    disks: Mapping[str, Any] = field(default_factory=dict)

    def shares(self) -> str:
        """Of nobody."""
        return ""

    def disarm(self) -> None:
        """Nobody is armed."""

    def kill(self, place: str) -> None:
        """Nobody is there."""


async def _ended(run: Awaitable[Any]) -> str:
    """What it says of what is wrong."""
    task = asyncio.ensure_future(run)
    await asyncio.wait({task}, timeout=HANGS_S)
    assert task.done(), f"it hangs: {task}"
    error = task.exception()
    assert isinstance(error, Wrong), error
    return str(error)


@pytest.mark.parametrize(
    ("kind", "step"), [(Installation, "the start of steady"), (Started, "feeding drained-0 and draining it")]
)
async def test_a_request_that_nobody_answers_ends_a_run(kind: type[Installation], step: str, tmp_path: Path) -> None:
    """Its words name the step, its time, and the line at which it waits."""
    clock, topics, cluster = SystemClock(), Topics(), LocalCluster(LocalSettings(data_dir=tmp_path, workers=WORKERS))
    log = MemoryLog(MemoryBroker(clock))
    for topic in topics.plain():
        await log.create_topic(topic, 1)
    client = Client(log, topics, clock, lambda: uuid.uuid4().hex)
    world = Empty(kind(cluster, log, client), cluster, tmp_path)
    piece = Piece(world, 1, Measure(0, 0.1, 0.1), lambda _: None, Faults("1", WORKERS, disks=False))  # type: ignore[arg-type]
    said = await _ended(piece.run(0, 1))
    await piece.close()
    assert re.match(rf"{step} takes more than 0\.[12] s: it waits at .*rounds\.py:\d+ in ", said), said


async def test_words_come_though_nobody_tells_them_and_nothing_can_be_cancelled() -> None:
    """What hangs holds on to its task, and whoever is asked how things stand hangs, too."""
    until = asyncio.Event()

    async def deaf() -> str:
        while not until.is_set():
            try:
                await until.wait()
            except asyncio.CancelledError:
                continue
        return ""

    steps = Steps("waiting", 0.0, deaf, gives_s=0.0)
    assert "how things stand was not answered" in await _ended(steps.followed(deaf()))
    until.set()
