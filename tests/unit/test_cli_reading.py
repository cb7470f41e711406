"""What a person gets wrong with a command's file or a connection's address is said with place, expectation, finding and a remedy."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner

from tidemark.services.cli.__main__ import app
from tidemark.services.cli.reading import NoDocument, read_document
from tidemark.services.cli.run import check_surroundings
from tidemark.services.sink.connectors.sql import engine_at
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.ports.sink import TargetRefused
from tidemark.shared.process.connections import NoFileSystem, filesystem_at

OK = "pipeline: [{$source: {documents: [{a: 1}]}}]"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "meters.yaml").write_text(OK)
    (tmp_path / "binary.yaml").write_bytes(b"ab\xff")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("metres.yaml", "metres.yaml: expected a processor's document, YAML or JSON, found no such file; did you mean meters.yaml?"),
        ("other.yaml", "found no such file; there are binary.yaml, meters.yaml in ."),
        ("away/p.yaml", "found no such file; there is no folder away"),
        (".", "found a folder; there are binary.yaml, meters.yaml in ."),
        ("binary.yaml", "binary.yaml: expected a processor's document, YAML or JSON in UTF-8, found byte 255 at 2: save it as UTF-8 text"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["process", "validate", "explain", "run", "create"])
def test_a_file_that_is_no_document_is_said_in_a_sentence(folder: Path, command: str, name: str, says: str) -> None:
    """By every command that takes one, without a trace and before anything runs."""
    with pytest.raises(NoDocument) as raised:
        read_document(Path(name))
    assert says in str(raised.value)
    done = CliRunner().invoke(app, [command, name])
    assert done.exit_code == 1
    assert "Traceback" not in done.output
    assert not (folder / ".tidemark").exists()
    if command in ("process", "validate", "explain"):
        assert says in done.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the document is empty; it needs pipeline"),
        ("hello", "an object with pipeline: a list of stages; found a text"),
        ("[1]", "an object with pipeline: a list of stages; found a list"),
        ("pipeline:\n  - {a: [\n", "line 3: not YAML"),
        ("name: x", "line 1: the document needs pipeline"),
        ("pipeline: [{$source: {}}]", "or script. Accepted: script"),
    ],
)
def test_what_is_wrong_with_a_whole_document(text: str, says: str) -> None:
    """With its line where it has one; no place is left empty, and sentences end before the accepted values are listed."""
    with pytest.raises(InvalidDocument) as raised:
        parse(text)
    assert says in str(raised.value)
    assert not str(raised.value).startswith((" ", ":"))


def test_a_document_that_cannot_be_planned_starts_nothing(folder: Path) -> None:
    """`run` says so before there is a broker."""
    done = CliRunner().invoke(app, ["run", "meters.yaml"])
    assert done.exit_code == 1
    assert "expected $emit or $merge as the last stage" in done.output
    assert not (folder / ".tidemark").exists()


def test_what_cannot_be_read_is_said_before_anything_or_write_before_it_runs(folder: Path) -> None:
    """A path that nothing matches is no empty stream, and a file for dead letters is opened first."""
    (folder / "files.yaml").write_text("pipeline: [{$source: {path: 'in/*.json', format: json}}]")
    nothing = CliRunner().invoke(app, ["process", "files.yaml"])
    assert nothing.exit_code == 1
    said = f"pipeline[0].$source.path: expected at least one file that matches {folder}/in/*.json, found none"
    assert said in nothing.output
    (folder / "emits.yaml").write_text(
        "pipeline: [{$source: {path: 'in/*.json', format: json}}, {$emit: {path: out, format: json}}]"
    )
    nothing = CliRunner().invoke(app, ["run", "emits.yaml"])
    assert nothing.exit_code == 1
    assert said in nothing.output
    assert not (folder / ".tidemark" / "run" / "kafka").exists()
    away = CliRunner().invoke(app, ["process", "meters.yaml", "--dlq", "away/letters.json"])
    assert away.exit_code == 1
    assert away.output == "away/letters.json: No such file or directory\n"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("mysql://h/d", "found one of mysql"),
        ("nonsense-hunter2", "found no address of a database; it is not shown here"),
    ],
)
def test_an_address_of_no_database_is_said(url: str, found: str) -> None:
    """With what is expected; it may hold a password and is not shown."""
    with pytest.raises(
        TargetRefused, match=r"expected postgresql://user:password@host/database or sqlite:///path"
    ) as raised:
        engine_at(url)
    assert found in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_an_address_of_no_file_system_is_said() -> None:
    """With the stage, and without the password that it may hold; the connection's config reaches one that there is."""
    with pytest.raises(
        NoFileSystem, match=r"^pipeline\[1\]\.\$emit: nopro://u:\*\*\*@x/y: expected a path, or a URL of"
    ) as raised:
        filesystem_at("nopro://u:hunter2@x/y", "pipeline[1].$emit", {})
    assert "hunter2" not in str(raised.value)
    config: dict[str, Any] = {"endpoint": "e", "skip_instance_cache": True}
    filesystem, path = filesystem_at("memory://x/y", "here", config)
    assert isinstance(filesystem, MemoryFileSystem)
    assert filesystem.storage_options == {"endpoint": "e"}
    assert path == "/x/y"


def test_what_a_document_refers_to_is_looked_for_before_anything_starts(folder: Path) -> None:
    """A variable that is not set, and a connection that a new installation cannot have, are named at once."""
    emits = "pipeline: [{$source: {documents: [{a: 1}]}}, {$emit: {connectionName: out, path: out, format: json}}]"
    unset = "connections: {out: {type: files, path: '${NOWHERE_SET}'}, unused: {type: files, path: '${NOR_THIS}'}}\n"
    (folder / "unset.yaml").write_text(unset + emits)
    done = CliRunner().invoke(app, ["run", "unset.yaml"])
    assert (done.exit_code, done.output) == (1, "connections.out.path: ${NOWHERE_SET} is not set in the environment\n")
    assert not (folder / ".tidemark" / "run" / "kafka").exists()
    broker = "connections: {k: {type: kafka, bootstrapServers: '${LOCAL_KAFKA}'}}\n"
    away = (
        "pipeline: [{$source: {connectionName: away, path: x, format: json}}, {$emit: {connectionName: k, topic: t}}]"
    )
    with pytest.raises(InvalidDocument, match="connections: away is not in the document"):
        asyncio.run(check_surroundings(parse(broker + away)))
    told = (
        "pipeline: [{$source: {connectionName: k, topic: s, schemaRegistry: {connectionName: gone}}},"
        " {$emit: {connectionName: k, topic: t}}]"
    )
    with pytest.raises(InvalidDocument, match="connections: gone is not in the document"):
        asyncio.run(check_surroundings(parse(broker + told)))


def test_who_has_read_enough_is_told_nothing(folder: Path) -> None:
    """`tidemark process … | head` ends without a word when `head` does."""
    rows = ", ".join(["{a: 1}"] * 20_000)
    (folder / "many.yaml").write_text(f"pipeline: [{{$source: {{documents: [{rows}]}}}}]")
    command = [sys.executable, "-m", "tidemark.services.cli", "process", "many.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b'{"a":1}\n'
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize(("command", "option"), [("dlq", "--limit"), ("try", "--sample")])
def test_so_many_newest_records_fit_no_memory(folder: Path, command: str, option: str) -> None:
    """A number beyond the machine's is a usage that is none, and no defect with a trace."""
    done = CliRunner().invoke(app, [command, "meters.yaml", option, "9" * 20, "--data", str(folder)])
    assert (done.exit_code, "1000000" in done.output) == (2, True), done.output
