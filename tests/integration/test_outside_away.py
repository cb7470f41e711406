"""What a source, a table or a server does not answer is told while it is waited for, and so is a server that never answers (C10)."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed, released
from tidemark.services.operator.tables.sql import SqlTable
from tidemark.services.sink.connectors.files import FileSink
from tidemark.services.source.connectors.files import FileConnector
from tidemark.shared.adapters.http import AioHttpClient
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.messages import StartProcessor
from tidemark.shared.model.records import RawBatch
from tidemark.shared.ports.http import HttpAnswer, HttpRequest, ServerAway
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.tables import TableUnavailable
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings

Away = Callable[[], bool]


def document(folder: Path, *middle: dict[str, Any]) -> dict[str, Any]:
    return {
        "connections": {
            "d": {"type": "sql", "url": f"sqlite:///{folder / 't.db'}"},
            "h": {"type": "https", "url": "https://example.com"},
        },
        "pipeline": [
            {"$source": {"path": str(folder / "in.json"), "format": "json", "follow": True}},
            *middle,
            {"$emit": {"path": str(folder / "out"), "format": "json"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    }


def _source(patch: pytest.MonkeyPatch, away: Away) -> list[dict[str, Any]]:
    fetch = FileConnector.fetch

    async def fetched(self: FileConnector, max_bytes: int, timeout_ms: int) -> Sequence[RawBatch]:
        if away():
            raise LogUnavailable("nobody answers")
        return await fetch(self, max_bytes, timeout_ms)

    patch.setattr(FileConnector, "fetch", fetched)
    return []


def _table(patch: pytest.MonkeyPatch, away: Away) -> list[dict[str, Any]]:
    async def find(*_: Any) -> Sequence[Any]:
        if away():
            raise TableUnavailable("nobody answers")
        return []

    patch.setattr(SqlTable, "find", find)
    table = {"connectionName": "d", "table": "t"}
    return [
        {"$lookup": {"from": table, "localField": "n", "foreignField": "n", "as": "x"}},
        {"$project": {"_id": 0, "n": 1}},
    ]


def _server(patch: pytest.MonkeyPatch, away: Away) -> list[dict[str, Any]]:
    async def ask(_: AioHttpClient, request: HttpRequest) -> HttpAnswer:
        if away():
            raise ServerAway("nobody answers")
        return HttpAnswer(204, "", b"")

    patch.setattr(AioHttpClient, "ask", ask)
    return [{"$https": {"connectionName": "h", "as": "x"}}]


PARTS: Mapping[str, Any] = {
    "source-1/0 waits, reading: ": _source,
    "lookup-1/0 waits, asking: pipeline[1].$lookup: ": _table,
    "https-1/0 waits, asking: pipeline[1].$https: connection h: ": _server,
}


@pytest.mark.parametrize("said", PARTS)
def test_what_lies_outside_and_is_away_is_named_while_it_is(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running processor says at once which task waits for what; behind it the reason is gone, and nothing was lost."""
    gone = False
    middle = PARTS[said](monkeypatch, lambda: gone)
    (tmp_path / "in.json").write_text(json.dumps({"n": 1}) + "\n")

    async def main(world: VirtualWorld) -> None:
        nonlocal gone
        async with installed(world.clock, world.executor) as there:
            await there.create(document(tmp_path, *middle))
            await there.start()
            await there.committed()
            gone = True
            with (tmp_path / "in.json").open("a") as more:
                more.write(json.dumps({"n": 2}) + "\n")
            status = await there.when(lambda status: bool(status.reason))
            assert (status.state, status.reason) == ("RUNNING", f"task {said}nobody answers")
            gone = False
            await there.when(lambda status: status.state == "RUNNING" and not status.reason)
            await _until_out(there, tmp_path / "out", 2)

    run_virtual(main)


async def _until_out(there: Installed, folder: Path, count: int) -> None:
    while len(released(folder)) < count:
        await there.committed()
    assert [row["n"] for row in released(folder)] == list(range(1, count + 1))


def test_a_target_that_never_answers_is_named_and_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for longer than checkpoints may take, with the place and since when; then the same generation goes on."""
    (tmp_path / "in.json").write_text(json.dumps({"n": 1}) + "\n")
    stage, answers, silent = FileSink.stage, asyncio.Event(), False

    async def staged(sink: FileSink, epoch: Epoch, committed: Epoch) -> bytes:
        if silent:
            await answers.wait()
        return await stage(sink, epoch, committed)

    monkeypatch.setattr(FileSink, "stage", staged)

    async def main(world: VirtualWorld) -> None:
        nonlocal silent
        soon = CoordinatorSettings(adopt_wait_ms=100, checkpoint_timeout_ms=12_000)
        async with installed(world.clock, world.executor, coordinator=soon) as there:
            await there.create(document(tmp_path))
            await there.client.request(StartProcessor(there.client.unique(), NAME))
            await there.committed()
            silent = True
            with (tmp_path / "in.json").open("a") as more:
                more.write(json.dumps({"n": 2}) + "\n")
            status = await there.when(lambda status: bool(status.reason))
            assert status.state == "RUNNING"
            assert "waits, staging" in status.reason
            assert f"{tmp_path / 'out'}: no answer, or a slow one, since " in status.reason
            await there.clock.sleep_ms(40_000)
            silent = False
            answers.set()
            await _until_out(there, tmp_path / "out", 2)
            assert (await there.client.statuses())[NAME].generation == status.generation

    run_virtual(main)
