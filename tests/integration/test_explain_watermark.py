"""`explain-watermark` over a running processor: from the sink through a window to the split that is waited for."""

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from typer.testing import CliRunner

from tests.harness.installation import Installed, installed
from tests.harness.sealing import sealed
from tidemark.services.cli.__main__ import app
from tidemark.services.cli.process import quiet
from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.runtime.settings import RuntimeSettings

TOKEN = "a-token-of-the-tests"


def document(folder: Path) -> dict[str, Any]:
    """Two files, each a split, one of which is an hour behind; a window that keeps open for five minutes."""
    for name, at in (("a", "2024-01-01T10:00:00Z"), ("b", "2024-01-01T11:00:00Z")):
        (folder / f"{name}.json").write_text(json.dumps({"at": at}) + "\n")
    source = {
        "path": str(folder / "*.json"),
        "format": "json",
        "ordered": False,
        "follow": True,
        "timeField": {"$toDate": "$at"},
    }
    window = {
        "interval": {"size": 1, "unit": "hour"},
        "allowedLateness": {"size": 5, "unit": "minute"},
        "pipeline": [{"$group": {"_id": None, "n": {"$sum": 1}}}],
    }
    return {
        "pipeline": [
            {"$source": source},
            {"$tumblingWindow": window},
            {"$emit": {"path": str(folder / "out"), "format": "json"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 50, "unit": "ms"}}},
    }


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Installed, str]]:
    """The processor at work, and the control service's address."""
    quiet(logging.CRITICAL)
    clock, executor = SystemClock(), AsyncExecutor()
    settings = RuntimeSettings(engine="local", heartbeat_interval_ms=50)
    async with installed(clock, executor, settings=settings) as there:
        control = ControlSettings(port=0, engine="local", agents=False)
        service = ControlService(sealed(MemoryLog(there.broker)), there.outside.topics, clock, executor, control, TOKEN)
        serving = executor.spawn(service.run(), "control", _raise)
        await service.serving.wait()
        await there.create(document(tmp_path))
        await there.start()
        yield there, service.url
        service.stop()
        await serving.join()


def _raise(error: BaseException) -> None:
    raise error


async def test_the_split_that_is_waited_for_is_named(
    running: tuple[Installed, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over REST the way is told as data, and the command says it in words: vertex, task, split, last event, since when and why."""
    there, url = running
    await there.committed(3)
    told: dict[str, Any] = {"steps": []}
    async with ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        name = next(iter(await there.client.statuses()))
        while not told["steps"] or told["watermark"] is None or "no further record" not in told["steps"][-1]["why"]:
            async with session.get(f"{url}/v1/processors/{name}/watermark") as answer:
                told = (await answer.json())["watermark"]
    split = told["steps"][told["culprit"]]
    assert (split["vertex"], split["task"], split["lastEvent"]) == ("source-1", 0, "2024-01-01T10:00:00.000Z")
    assert split["split"].endswith("a.json")
    assert split["keepsMillis"] == 3_600_000
    assert split["since"] is not None
    assert "no further record" in split["why"]
    assert any("allowed lateness" in step["why"] and step["keepsMillis"] == 300_000 for step in told["steps"])
    monkeypatch.setenv("TIDEMARK_CONTROL", url)
    monkeypatch.setenv("TIDEMARK_TOKEN", TOKEN)
    said = await AsyncExecutor().blocking(lambda: CliRunner().invoke(app, ["explain-watermark", name]).stdout)
    assert said.startswith("watermark 2024-01-01T09:55:00.000Z: split "), said
    assert "last event 2024-01-01T10:00:00.000Z" in said
