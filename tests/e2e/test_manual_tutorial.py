"""The tutorial of the manual, word by word: its producer, its table, its document, its commands, its result."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.harness.postgres import postgres
from tests.tidy_rules import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.postgres]


def _blocks(language: str) -> list[str]:
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def _table() -> list[tuple[str, ...]]:
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    rows = [
        tuple(cell.strip() for cell in line.strip("| ").split("|"))
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    return rows[2:]


def test_the_tutorial_holds(kafka_broker: str, tmp_path: Path) -> None:
    """Who does what it says sees what it shows."""
    (produce,), (create, select), (document,) = _blocks("python"), _blocks("sql"), _blocks("yaml")
    (tmp_path / "takings.yaml").write_text(document)
    with postgres() as url:
        environment = {**os.environ, "KAFKA": kafka_broker, "DATABASE": url}
        subprocess.run([sys.executable, "-c", produce], check=True, env=environment, cwd=tmp_path)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(create.encode())
        for words in (["check", "takings.yaml"], ["run", "takings.yaml"]):
            assert f"tidemark {' '.join(words)}\n" in _blocks("sh")
            command = [sys.executable, "-m", "tidemark.services.cli", *words]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        with psycopg.connect(url) as connection:
            found = [tuple(map(str, row)) for row in connection.execute(select.encode())]
        assert found == _table()
        _goes_on(document, produce, environment, url, tmp_path)


def _goes_on(document: str, produce: str, environment: dict[str, str], url: str, folder: Path) -> None:
    """Without `until`, by the name that the page gives: processes are killed while more orders come, and each counts once."""
    assert "name it `takings-live`" in (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    live = document.replace("      until: latest\n", "").replace("name: takings", "name: takings-live")
    (folder / "takings.yaml").write_text(live)
    more = produce.replace("await admin.create_topics", "0 and await admin.create_topics").replace(
        'f"2026-01-01T00:{n // 2:02}', 'f"2026-01-01T{n // 120:02}:{n // 2 % 60:02}'
    )
    tidemark = [sys.executable, "-m", "tidemark.services.cli"]
    at = {"cwd": folder, "env": environment, "text": True}
    run = subprocess.Popen([*tidemark, "run", "takings.yaml"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **at)  # type: ignore[call-overload]
    orders, killed, told = iter((range(20, 200), range(200, 300), range(300, 400))), set[str](), ""
    try:
        for line in run.stdout:
            told += line
            if "RUNNING" not in line:
                continue
            if (some := next(orders, None)) is not None:
                text = more.replace("range(20)", repr(some))
                subprocess.run([sys.executable, "-c", text], check=True, **at)  # type: ignore[call-overload]
                listed = subprocess.run([*tidemark, "ps"], check=True, capture_output=True, **at).stdout  # type: ignore[call-overload]
                for service, pid in re.findall(r"^\S+ +(source|sink|spark) +(\d+)", listed, flags=re.MULTILINE):
                    if service not in killed:
                        killed.add(service)
                        os.kill(int(pid), signal.SIGKILL)
                        break
            with psycopg.connect(url) as connection:
                counted = "SELECT sum(orders), sum(amount) FROM takings WHERE minute < '2026-01-01T03:00:00Z'"
                if connection.execute(counted).fetchone() == (360, sum(range(360))):
                    break
        else:
            raise AssertionError(told)
    finally:
        run.send_signal(signal.SIGINT)
        told += run.communicate(timeout=60)[0]
    assert killed == {"source", "sink", "spark"}, told
