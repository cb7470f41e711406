"""The tutorial of the manual, word by word: its producer, its table, its document, its commands, its result."""

import os
import re
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
