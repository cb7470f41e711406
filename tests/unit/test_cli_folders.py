"""A command that names no folder means the installation that was used last; one that is refused leaves nothing behind."""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidemark.services.cli.demo import DemoFailed, DemoSettings, demo
from tidemark.services.cli.installation import until_control_answers
from tidemark.services.cli.run import run
from tidemark.services.local.folders import ADDRESS_FILE, DEMO, RUN, NoInstallation, chosen
from tidemark.shared.language.problems import InvalidDocument


def _make(folder: Path, written_at: int) -> None:
    folder.mkdir(parents=True)
    store = folder / "coordinator.db"
    store.touch()
    os.utime(store, (written_at, written_at))


def test_the_last_used_one_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the folders of run and demo the one written last; a folder that is named wins."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoInstallation, match="tidemark demo"):
        chosen(None)
    _make(DEMO, 2)
    assert chosen(None) == DEMO
    _make(RUN, 1)
    assert chosen(None) == DEMO
    os.utime(RUN / "coordinator.db", (3, 3))
    assert chosen(None) == RUN
    (DEMO / "coordinator.db-wal").touch()
    assert chosen(None) == DEMO, "a commit lies in the log until the file is written"
    (DEMO / "coordinator.db-wal").unlink()
    (DEMO / "coordinator.db-wal").symlink_to("gone")
    (DEMO / "coordinator.db-shm").touch()
    assert chosen(None) == RUN, "the log may go while it is looked at; who only reads writes into the index of the log"
    assert chosen(DEMO) == DEMO


def test_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    """Nothing is started or made in a folder that a person mistyped."""
    with pytest.raises(NoInstallation, match=str(tmp_path)):
        chosen(tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_up_says_that_it_stays_when_control_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address is there before it has read the topics: who asked it then was told that brokers are away. Another one does not count."""
    asked: list[str] = []

    async def readiness(request: web.Request) -> web.Response:
        asked.append(request.path)
        found = {
            "place": "Kafka",
            "expectation": "the brokers to answer",
            "finding": "the registry is still being read",
        }
        return web.json_response({"error": found} if len(asked) < 3 else {}, status=503 if len(asked) < 3 else 200)

    app = web.Application()
    app.router.add_get("/readyz", readiness)
    monkeypatch.setenv("TIDEMARK_CONTROL", "http://127.0.0.1:1")
    async with TestServer(app) as server:
        (tmp_path / "token").write_text("t")
        address = {"url": str(server.make_url("")).rstrip("/"), "token_file": str(tmp_path / "token")}
        (tmp_path / ADDRESS_FILE).write_text(json.dumps(address))
        await until_control_answers(tmp_path)
    assert asked == ["/readyz"] * 3


def _all(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize(
    ("out", "data"), [("out", "others"), ("others", "data"), ("out", "others/file"), ("others/file", "data")]
)
def test_a_demo_that_is_refused_for_one_folder_makes_and_empties_no_other(tmp_path: Path, out: str, data: str) -> None:
    """Whichever of the two holds what no demo wrote, or is none."""
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "file").write_text("mine")
    before = _all(tmp_path)
    with pytest.raises((DemoFailed, NotADirectoryError), match="file"):
        asyncio.run(demo(DemoSettings(out=tmp_path / out, data_dir=tmp_path / data)))
    assert _all(tmp_path) == before


def _demo(folder: Path, tasks: dict[str, int]) -> Coroutine[Any, Any, object]:
    return demo(DemoSettings(out=folder / "out", data_dir=folder / "data", parallelism=tasks))


def _run(folder: Path, tasks: dict[str, int]) -> Coroutine[Any, Any, object]:
    file = folder / "p.json"
    file.write_text(
        '{"pipeline": [{"$source": {"documents": [{"a": 1}]}}, {"$emit": {"path": "o", "format": "json"}}]}'
    )
    return run(file, folder / "data", tasks)


@pytest.mark.parametrize("command", [_demo, _run])
@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ({"source": 0}, r"tasks\.source: expected 1 to 128 tasks, found 0"),
        ({"sink": 129}, "found 129"),
        ({"sinc": 1}, r"no vertex or service sinc .*did you mean sink"),
    ],
)
def test_numbers_of_tasks_that_cannot_be_are_told_before_anything_starts(
    tmp_path: Path,
    command: Callable[[Path, dict[str, int]], Coroutine[Any, Any, object]],
    tasks: dict[str, int],
    said: str,
) -> None:
    """The coordinator would tell them, too, seconds later, with an installation on the folder."""
    asked = command(tmp_path, tasks)
    before = _all(tmp_path)
    with pytest.raises(InvalidDocument, match=said):
        asyncio.run(asked)
    assert _all(tmp_path) == before
