"""What stands in a command's way is said in a sentence; only our own mistakes show a trace."""

import errno
import importlib
import logging
from pathlib import Path
from typing import Self, TextIO

import pytest
import typer
from typer.testing import CliRunner

from tidemark.services.cli import run, view
from tidemark.services.cli.__main__ import app
from tidemark.services.cli.saying import SAID, finish, log_to_file, sentence
from tidemark.services.local.supervisor import LocalCluster, LocalSettings
from tidemark.shared.language.documents import parse
from tidemark.shared.ports.log import LogUnavailable


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LogUnavailable("reader: connecting to a:1: no answer; try again"), "a:1"),
        (OSError(errno.ENOSPC, "No space left on device", "out/demo"), "the disk is full at out/demo: free some space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk is full: free some space"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "p.yaml"), "p.yaml: No such file"),
    ],
)
def test_what_a_person_can_mend_has_a_sentence(
    error: Exception, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names place and remedy, ends with status 1 and shows no trace."""

    async def fail() -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        finish(fail())
    assert ended.value.exit_code == 1
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def _on_a_folder() -> list[str]:
    """The commands that need an installation: those with --data but what starts or makes one."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    found = {name for name, command in group.commands.items() if any("--data" in each.opts for each in command.params)}
    return sorted(found - {"demo", "up", "restore"})


@pytest.mark.parametrize(
    ("command", "place"),
    [(command, "file/below") for command in _on_a_folder()]
    + [(command, "nothing") for command in _on_a_folder() if command != "run"],
)
def test_each_command_says_that_no_installation_is_there(
    command: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line that names the folder or what is in the way, with status 1 and without a trace, before anything is fetched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TIDEMARK_CONTROL", raising=False)
    (tmp_path / "file").touch()
    (tmp_path / "p.yaml").write_text("pipeline: [{$source: {documents: [{a: 1}]}}, {$emit: {path: out, format: json}}]")
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    needed = [each for each in group.commands[command].params if each.required]
    right = {"file": "p.yaml", "epoch": "1", "tasks": "operator=2"}
    given = [right.get(each.name or "", "x") for each in needed]
    done = CliRunner().invoke(app, [command, *given, "--data", place])
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit)
    assert len(done.output.splitlines()) == 1
    assert "Errno" not in done.output
    assert (place if command != "try" else "`tidemark process p.yaml` tries its own input out") in done.output
    assert not (tmp_path / "nothing").exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", sorted(SAID))
def test_each_error_that_has_a_sentence_is_there(name: str) -> None:
    """They are known by name, and a name that nothing has would hide nothing and say nothing."""
    module, _, kind = name.rpartition(".")
    found = getattr(importlib.import_module(module), kind)
    assert issubclass(found, Exception)
    assert f"{found.__module__}.{found.__qualname__}" == name


def test_an_error_made_of_one_that_has_a_sentence_has_it_too() -> None:
    """As those of a broker that is away."""
    assert sentence(type("Away", (LogUnavailable,), {})("away")) == "away"


def test_a_mistake_of_ours_is_not_hidden() -> None:
    """An error without a sentence goes on as it is."""
    assert sentence(KeyError("x")) is None

    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        finish(fail())


async def test_a_disk_that_fills_stops_no_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its state cannot be written, it says so, goes on, and takes it back when it can be written again."""
    cluster = LocalCluster(LocalSettings(data_dir=tmp_path))
    full = OSError(errno.ENOSPC, "No space left on device")

    def refuse(*_: object, **__: object) -> int:
        raise full

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", refuse)
        cluster._write_state()
    assert ["No space left on device" in said for said in cluster.troubles()] == [True]
    cluster._write_state()
    assert cluster.troubles() == []


def test_a_run_says_where_its_results_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files by their folder, topics and tables by their connection; and where dead letters would lie."""
    monkeypatch.setenv("OUT", "/data")
    kafka = {"type": "kafka", "bootstrapServers": "b:1"}
    document = {
        "connections": {
            "out": {"type": "files", "path": "${OUT}"},
            "b": kafka,
            "db": {"type": "sql", "url": "sqlite:///x"},
        },
        "pipeline": [
            {"$source": {"documents": []}},
            {"$emit": {"connectionName": "out", "path": "delays", "format": "json"}},
            {"$emit": {"connectionName": "b", "topic": "t"}},
            {"$emit": {"connectionName": "b", "topic": "$k"}},
            {"$merge": {"into": {"connectionName": "db", "table": "r"}}},
        ],
        "options": {"dlq": {"connectionName": "out", "path": "late"}},
    }
    assert run.outputs(parse(document)) == [
        "results: files in /data/delays",
        "results: topic t of b",
        "results: topics of b, by an expression",
        "results: table r of db",
        "dead letters, if any: files in /data/late",
    ]


def test_a_line_of_figures_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills in the middle of a line leaves the lines before it, and a sentence."""
    path = tmp_path / "progress.jsonl"
    assert view._append(path, '{"a": 1}\n') == ""
    opened = Path.open

    class _Fills:
        def __init__(self, stream: TextIO) -> None:
            self._stream = stream

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self._stream.close()

        def write(self, text: str) -> int:
            self._stream.write(text[:4])
            self._stream.flush()
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda self, mode: _Fills(opened(self, mode)))
        assert "No space left on device" in view._append(path, '{"a": 2}\n')
    assert view._append(path, '{"a": 3}\n') == ""
    assert path.read_text() == '{"a": 1}\n{"a": 3}\n'


def test_what_cannot_be_logged_ends_nothing(tmp_path: Path) -> None:
    """The log's folder is made with its first line; where that is not possible the line is lost, and the command goes on."""
    log_to_file(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    logging.getLogger("asyncio").error("a task failed")
    assert (tmp_path / "run" / "logs" / "cli.log").read_text() == "a task failed\n"
    (tmp_path / "file").touch()
    log_to_file(tmp_path / "file")
    logging.getLogger("asyncio").error("nobody can read this")
