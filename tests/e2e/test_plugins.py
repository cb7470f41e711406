"""A package with plug-ins, installed as its users would, runs as a job of real processes, which are killed: each document comes once."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tidemark_shelf.file import Place, ShelfFile

from tests.tidy_rules import ROOT
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import installation
from tidemark.services.sink.connectors.released import read_released_rows
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.client import RequestRefused

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]
NAME = ProcessorName("shelves")
SHELVES, EACH, ROUNDS = 3, 200, 3


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, installed from a copy of its sources, without a network."""
    folder = tmp_path_factory.mktemp("plugins")
    shutil.copytree(ROOT / "deploy" / "plugins" / "shelf", folder / "shelf")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(folder / "site")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(folder / "shelf")], check=True)
    return folder / "site"


def _fill(file: Path, numbers: range) -> None:
    with closing(sqlite3.connect(file)) as db, db:
        rows = [(f"shelf-{n % SHELVES}", n, json.dumps({"n": n} if n % 100 else {"none": n})) for n in numbers]
        db.executemany("INSERT INTO documents (shelf, added_ms, document) VALUES (?, ?, ?)", rows)


def _name(file: Path) -> None:
    """Some numbers have a name, which a lookup finds."""
    opened = ShelfFile(Place(str(file)))
    with opened.changed() as db:
        rows = [("names", json.dumps({"of": n, "name": f"n{n}"})) for n in range(0, EACH, 2)]
        db.executemany("INSERT INTO documents (shelf, added_ms, document) VALUES (?, 0, ?)", rows)
    opened.close()


def _read(file: Path) -> list[int]:
    if not file.exists():
        return []
    with closing(sqlite3.connect(file)) as db:
        there = db.execute("SELECT name FROM sqlite_master WHERE name = 'documents'").fetchall()
        rows = db.execute("SELECT document FROM documents").fetchall() if there else []
    found = [json.loads(document) for (document,) in rows]
    for each in found:
        named = each["n"] < EACH and each["n"] % 2 == 0
        assert [one["name"] for one in each["named"]] == ([f"n{each['n']}"] if named else [])
    return [each["n"] for each in found]


def test_the_examples_own_suite_passes_where_it_is_installed(site: Path, tmp_path: Path) -> None:
    """With pytest alone, as its author runs it."""
    shutil.copy(ROOT / "deploy" / "plugins" / "shelf" / "tests" / "test_shelf.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "test_shelf.py"]
    environment = {**os.environ, "PYTHONPATH": f"{site}:{ROOT}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


async def test_each_document_comes_once_though_workers_are_killed(site: Path, tmp_path: Path) -> None:
    """Source, lookup and sink are killed while they work; a document that the sink refuses is a dead letter."""
    given, taken = tmp_path / "from.db", tmp_path / "onto.db"
    ShelfFile(Place(str(given))).close()
    _fill(given, range(EACH))
    names = tmp_path / "names.db"
    _name(names)
    document = json.dumps(
        {
            "name": NAME,
            "connections": {
                name: {"type": "plugin", "plugin": "shelf", "config": {"file": f"${{{name}}}"}}
                for name in ("FROM", "ONTO", "NAMES")
            },
            "pipeline": [
                {"$source": {"plugin": "shelf", "connectionName": "FROM"}},
                {
                    "$lookup": {
                        "from": {"plugin": "shelf", "connectionName": "NAMES", "config": {"shelf": "names"}},
                        "localField": "n",
                        "foreignField": "of",
                        "as": "named",
                    }
                },
                {"$emit": {"plugin": "shelf", "connectionName": "ONTO", "config": {"shelf": "out", "needs": "n"}}},
            ],
            "options": {
                "checkpoint": {"interval": {"size": 200, "unit": "ms"}},
                "dlq": {"path": str(tmp_path / "letters")},
            },
        }
    )
    environment = {"FROM": str(given), "ONTO": str(taken), "NAMES": str(names), "PYTHONPATH": f"{site}:{ROOT}"}
    killed: list[str] = []
    workers = {"coordinator": 1, "source": 2, "operator": 2, "spark": 0, "sink": 2}
    async with installation(tmp_path / "data", environment, workers, plugins=["shelf"]) as installed:
        await installed.ensure_started(NAME, document, {"source": 2, "operator": 2, "sink": 2})
        await installed.until_running(NAME)
        for number in range(1, ROUNDS + 1):
            before = len(_read(taken))
            _fill(given, range(EACH * number, EACH * (number + 1)))
            async for _ in installed.client.heartbeats():
                if len(_read(taken)) > before:
                    break
            for place in list(installed.cluster.pids()):
                if place.partition("-")[0] in ("source", "operator", "sink") and place.endswith(str(number % 2)):
                    installed.cluster.kill(place, signal.SIGKILL)
                    killed.append(place)
        await installed.client.request(StopProcessor(installed.client.unique(), NAME, drain=True))
        async with asyncio.timeout(120):
            status = await installed.until_ended(NAME)
    assert status.state == "FINISHED", status.reason
    assert set(killed) == {f"{service}-{n}" for service in ("source", "operator", "sink") for n in (0, 1)}
    count = EACH * (ROUNDS + 1)
    assert sorted(_read(taken)) == [n for n in range(count) if n % 100]
    letters = read_released_rows(str(tmp_path / "letters"))
    assert len(letters) == count // 100
    assert all("has no field n" in str(each) for each in letters)


async def test_a_topic_is_read_and_written_in_a_plugins_format(site: Path, tmp_path: Path) -> None:
    """Records, keys and documents that are none of it are dead letters; the others come once, in the format."""
    labels = {"plugin": "labels"}
    topic = {"connectionName": "broker", "format": labels}
    start = {"startAt": "earliest", "keyFormat": labels}
    key = {"key": {"$meta": "stream.source.key"}, "keyFormat": labels}
    document = json.dumps(
        {
            "name": NAME,
            "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
            "pipeline": [
                {"$source": {**topic, "topic": "given", "config": start, "until": "latest"}},
                {"$set": {"place": {"$cond": [{"$eq": ["$n", "2"]}, 7, "$place"]}}},
                {"$emit": {**topic, "topic": "taken", "config": key}},
            ],
            "options": {"dlq": {"path": str(tmp_path / "letters")}},
        }
    )
    workers = {"coordinator": 1, "source": 1, "operator": 0, "spark": 0, "sink": 1}
    environment = {"PYTHONPATH": f"{site}:{ROOT}"}
    async with installation(tmp_path / "data", environment, workers, plugins=["labels"]) as installed:
        await installed.log.create_topic("given", 1)
        writer = await installed.log.writer("test")
        for value in (b"n=1;place=a", b"none", b"n=2;place=b", b"n=3;place=c"):
            await (await writer.send(TopicPartition("given", 0), NewRecord(value, b"of=" + value[2:3])))
        await (await writer.send(TopicPartition("given", 0), NewRecord(b"n=4;place=d", b"key")))
        await writer.close()
        await installed.ensure_started(NAME, document, {})
        status = await installed.until_ended(NAME)
        taken = [(record.value, record.key) async for record in committed_records(installed.log, "taken")]
    assert status.state == "FINISHED", status.reason
    reasons = sorted(str(letter["errInfo"]) for letter in read_released_rows(str(tmp_path / "letters")))
    assert sorted(taken) == [(b"n=1;place=a", b"of=1"), (b"n=3;place=c", b"of=3")], reasons
    assert len(reasons) == 3
    assert any("its key: " in each for each in reasons)
    assert "expected name=value" in "".join(reasons)
    assert "place: expected a text" in "".join(reasons)


async def test_what_is_not_allowed_or_not_installed_fails_at_once(tmp_path: Path) -> None:
    """A plug-in that nobody has named is refused with the document; one that is not there fails its processor, after one try."""

    def document(plugin: str) -> str:
        source = {"$source": {"documents": [{"a": 1}]}}
        return json.dumps({"pipeline": [source, {"$emit": {"plugin": plugin}}]})

    workers = {"coordinator": 1, "source": 1, "operator": 0, "spark": 0, "sink": 1}
    async with installation(tmp_path / "data", {}, workers, plugins=["nowhere"]) as installed:
        with pytest.raises(
            RequestRefused, match=r"\$emit: plug-in 'secret': expected nowhere \(plugins of TIDEMARK_ALLOW"
        ):
            await installed.ensure_started(ProcessorName("refused"), document("secret"), {})
        await installed.ensure_started(NAME, document("nowhere"), {})
        status = await installed.until_ended(NAME)
    assert (status.state, status.generation) == ("FAILED", 1)
    assert "sink nowhere: no package that is installed here has it" in status.reason
