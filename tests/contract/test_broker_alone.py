"""A broker that is started alone on an installation's folder, as an audit does."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tidemark.services.local.supervisor import BROKER, SET_BACK_MS, LocalCluster, LocalSettings, read_environment
from tidemark.shared.adapters.clock import SystemClock

pytestmark = pytest.mark.kafka


async def test_what_names_in_documents_stood_for_stays(tmp_path: Path) -> None:
    """The next audit resolves `${OUT}` as the run did."""
    (tmp_path / "environment.json").write_text(json.dumps({"OUT": "/out"}))
    cluster = LocalCluster(LocalSettings(data_dir=tmp_path, workers={}))
    await cluster.start()
    await cluster.stop()
    assert read_environment(tmp_path) == {"OUT": "/out"}


class SetClock(SystemClock):
    """A clock that is set by hand; who sleeps by it is woken by `looked`."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self._wakes: asyncio.Queue[None] = asyncio.Queue()
        self._woken = False

    def now_ms(self) -> int:
        """See `Clock`."""
        return super().now_ms() + self.ahead_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        """See `Clock`."""
        if self._woken:
            self._wakes.task_done()
        self._woken = True
        await self._wakes.get()

    async def looked(self) -> None:
        """The sleeper has woken, and sleeps again."""
        self._wakes.put_nowait(None)
        await self._wakes.join()


async def test_a_broker_of_which_the_clock_is_set_back_is_started_again(tmp_path: Path) -> None:
    """It measures by that clock when to connect again, to its own controller too, and took no topic until the clock was there again."""
    clock, ended = SetClock(), list[tuple[str, int]]()
    again = asyncio.Event()

    def on_restart(place: str, status: int) -> None:
        ended.append((place, status))
        again.set()

    cluster = LocalCluster(LocalSettings(data_dir=tmp_path, workers={}), on_restart, clock)
    await cluster.start()
    for set_by_ms in (3_600_000, -SET_BACK_MS + 1_000):
        clock.ahead_ms += set_by_ms
        await clock.looked()
    assert ended == []
    clock.ahead_ms -= SET_BACK_MS + 1_000
    await clock.looked()
    await again.wait()
    assert ended == [(BROKER, -signal.SIGKILL)]
    await cluster.stop()
