"""`tidemark up` stays: runs on its folder use it, and end nothing but their own processor."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]
_COMMAND = [sys.executable, "-m", "tidemark.services.cli"]


def _tidemark(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_COMMAND, *words], cwd=folder, capture_output=True, text=True, check=False)


@contextmanager
def _begun(folder: Path, said: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """A command that goes on, once it has said something; ended by its signal at the end."""
    process = subprocess.Popen(
        [*_COMMAND, *words], cwd=folder, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "300"}
    )
    assert process.stderr is not None
    try:
        heard = []
        for line in process.stderr:
            heard.append(line)
            if said in line:
                break
        else:
            raise AssertionError("".join(heard))
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)


def _document(name: str, *, follow: bool) -> str:
    source = {"path": f"{name}*.json", "format": "json", "follow": follow}
    return json.dumps(
        {"name": name, "pipeline": [{"$source": source}, {"$emit": {"path": f"out/{name}", "format": "json"}}]}
    )


def test_a_run_uses_it_and_ends_nothing_of_others(tmp_path: Path) -> None:
    """One that finishes, and one that is interrupted: another processor runs on, and so does the installation until its own end."""
    for name in ("stays", "ends", "interrupted"):
        (tmp_path / f"{name}.yaml").write_text(_document(name, follow=name != "ends"))
        (tmp_path / f"{name}-1.json").write_text('{"a": 1}\n')
    with _begun(tmp_path, "it stays until Ctrl-C", "up", "--data", "d") as up:
        assert _tidemark(tmp_path, "create", "stays.yaml", "--start", "--data", "d").returncode == 0
        ended = _tidemark(tmp_path, "run", "ends.yaml", "--data", "d")
        assert ended.returncode == 0, ended.stderr
        assert "ends: FINISHED" in ended.stderr
        with _begun(tmp_path, "RUNNING", "run", "interrupted.yaml", "--data", "d") as run:
            pass
        assert run.returncode == 0
        listed = _tidemark(tmp_path, "processors", "--json", "--data", "d")
        states = {each["name"]: each["state"] for each in json.loads(listed.stdout)["processors"]}
        assert states == {"stays": "RUNNING", "ends": "FINISHED", "interrupted": "STOPPED"}
        assert up.poll() is None
    assert up.returncode == 0
    assert "does not answer" in _tidemark(tmp_path, "processors", "--data", "d").stderr


def test_it_says_where_its_broker_is_and_a_run_what_it_doubts(tmp_path: Path) -> None:
    """The broker under the name that documents have for it; a slip that leaves a document valid, before anything runs."""
    (tmp_path / "doubt.yaml").write_text(
        "pipeline:\n  - $source: {documents: [{a: 1}]}\n  - $addFields:\n      note: x,\n  - $emit: {path: out, format: json}\n"
    )
    with _begun(tmp_path, " (${LOCAL_KAFKA} in documents)", "up", "--data", "d"):
        done = _tidemark(tmp_path, "run", "doubt.yaml", "--data", "d")
    assert done.returncode == 0, done.stderr
    warned, _, ran = done.stderr.partition("FINISHED")
    assert "warning: pipeline[1].$addFields.note (line 4): x, ends with ','" in warned, done.stderr
    assert "warning" not in ran


def test_a_run_says_what_is_missing_before_a_task_starts(tmp_path: Path) -> None:
    """A variable that the installation may open and has not, and a topic of its broker: with the place, and nothing is left there."""
    broker = {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}
    place = {"type": "files", "path": "${NOT_SET_HERE}"}
    documents = {
        "topic": ({"connectionName": "c", "topic": "nowhere"}, {"path": "out", "format": "json"}, broker),
        "variable": ({"documents": [{"a": 1}]}, {"connectionName": "c", "path": "out", "format": "json"}, place),
    }
    for name, (source, emit, connection) in documents.items():
        document = {"name": name, "connections": {"c": connection}, "pipeline": [{"$source": source}, {"$emit": emit}]}
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    with _begun(tmp_path, "it stays until Ctrl-C", "up", "--data", "d", "--variable", "NOT_SET_HERE"):
        for name, says in (("topic", "the topic nowhere is not in the cluster"), ("variable", "NOT_SET_HERE")):
            done = _tidemark(tmp_path, "run", f"{name}.json", "--data", "d")
            assert done.returncode == 1
            assert says in done.stderr, done.stderr
            assert "FAILED" not in done.stderr, done.stderr
        listed = json.loads(_tidemark(tmp_path, "processors", "--json", "--data", "d").stdout)
        assert listed["processors"] == []


def test_what_is_stored_can_be_looked_at(tmp_path: Path) -> None:
    """Topics, dead letters and checkpoints of an installation that runs, and a try-out on a topic's newest records, junk counted."""
    emit = {"connectionName": "b", "topic": "t"}
    broker = {"b": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}", "config": {"emit_topic_partitions": 2}}}
    lines = [{"n": 1}, {"n": 5}, {"n": 9}]
    (tmp_path / "in.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    check = {"$validate": {"validator": {"$expr": {"$lt": ["$n", 9]}}, "validationAction": "dlq"}}
    feed = {
        "name": "feed",
        "connections": broker,
        "pipeline": [{"$source": {"path": "in.json", "format": "json"}}, check, {"$emit": emit}],
        "options": {"dlq": {"path": "bad"}},
    }
    (tmp_path / "feed.json").write_text(json.dumps(feed))
    trial = {
        "connections": broker,
        "pipeline": [{"$source": emit}, {"$set": {"m": {"$multiply": ["$n", 2]}}}, {"$emit": {**emit, "topic": "u"}}],
    }
    (tmp_path / "trial.json").write_text(json.dumps(trial))
    with _begun(tmp_path, "it stays until Ctrl-C", "up", "--data", "d"):
        ended = _tidemark(tmp_path, "run", "feed.json", "--data", "d")
        assert ended.returncode == 0, ended.stderr
        listed = json.loads(_tidemark(tmp_path, "topics", "--data", "d", "--json").stdout)
        assert [each["topic"] for each in listed if each["partitions"] == 2] == ["t"]
        (letter,) = _tidemark(tmp_path, "dlq", "feed", "--data", "d").stdout.splitlines()
        assert json.loads(letter)["doc"] == {"n": 9}
        kept = json.loads(_tidemark(tmp_path, "checkpoints", "feed", "--data", "d", "--json").stdout)
        assert kept[-1]["final"]
        tried = _tidemark(tmp_path, "try", "trial.json", "--sample", "5", "--data", "d")
        found = sorted(json.loads(line)["m"] for line in tried.stdout.splitlines())
        assert (found, tried.returncode) == ([2, 10], 0), tried.stderr
        assert "2 records; 2 out" in tried.stderr
