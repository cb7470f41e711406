"""`tidemark validate` predicts `tidemark run`: what a run on this machine would refuse is found without starting anything."""

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_DOCUMENT = """
connections: {{b: {{type: kafka, bootstrapServers: "{servers}"}}}}
pipeline:
  - $source: {{connectionName: b, topic: t}}
  - $compute: {{class: "{class_}", key: $_id, config: {config}}}
  - {last}
"""
_EMIT = "$emit: {connectionName: b, topic: o}"
_CODE = """
from tidemark.shared.computation import Computation
from dataclasses import dataclass

class Fine(Computation):
    def process(self, key, document, context):
        return []

class Other:
    pass
"""


def _validate(folder: Path, *options: str, **parts: str) -> tuple[int, str]:
    values = {"servers": "b:1", "class_": "mine.code:Fine", "config": "{}", "last": _EMIT, **parts}
    (folder / "p.yaml").write_text(_DOCUMENT.format(**values), encoding="utf-8")
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine" / "code.py").write_text(_CODE, encoding="utf-8")
    (folder / "mine" / "deadly.py").write_text(
        "import os\nprint('last words', flush=True)\nos._exit(7)\n", encoding="utf-8"
    )
    (folder / "mine" / "leaving.py").write_text("raise SystemExit('no')\n", encoding="utf-8")
    command = [sys.executable, "-m", "tidemark.services.cli", "validate", "p.yaml", *options]
    environment = {"PYTHONPATH": str(_ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr + done.stdout


def test_what_a_run_takes_is_valid(tmp_path: Path) -> None:
    """Variables set, class there, config right: no errors."""
    status, said = _validate(tmp_path)
    assert status == 0, said
    assert "3 stages, no errors" in said


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ({"last": "$addFields: {a: 1}"}, "expected $emit or $merge as the last stage"),
        ({"servers": "${NO_SUCH_VARIABLE}"}, "${NO_SUCH_VARIABLE} is not set"),
        ({"class_": "mine.nowhere:Fine"}, "mine.nowhere"),
        ({"class_": "mine.code:Nobody"}, "found nothing of that name"),
        ({"class_": "mine.code:Other"}, "that is no Computation"),
        ({"config": "{speed: 3}"}, "config.speed is not known"),
        ({"class_": "mine.deadly:Fine"}, "ended the process with status 7"),
        ({"class_": "mine.leaving:Fine"}, "mine.leaving:Fine"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value.values()),
)
def test_what_a_run_would_refuse_is_an_error(tmp_path: Path, parts: dict[str, str], wanted: str) -> None:
    """Status 1 and the reason; a class that ends its process ends the child alone."""
    status, said = _validate(tmp_path, **parts)
    assert status == 1, said
    assert wanted in said


def test_elsewhere_this_machine_is_not_looked_at(tmp_path: Path) -> None:
    """With --no-here variables and classes are those of another machine, and a name for the registry is a warning."""
    status, said = _validate(
        tmp_path, "--no-here", servers="${NO_SUCH_VARIABLE}", class_="mine.nowhere:Fine",
        last="$emit: {connectionName: registered, topic: o}",
    )  # fmt: skip
    assert status == 0, said
    assert "warning: connection registered is not in the document" in said
