"""The manual's page on Python and its notebook, as a reader runs them: with a broker, services and Spark of their own."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.tidy_rules import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.spark]


def _shown(cell: Any) -> list[str]:
    """What a cell prints and gives back, without what goes to standard error."""
    return [
        output.get("text") or output["data"]["text/plain"]
        for output in cell.get("outputs", ())
        if output.get("name") != "stderr"
    ]


def test_the_notebook_shows_what_it_says(tmp_path: Path) -> None:
    """Every cell runs in a fresh folder, and gives what is kept with it."""
    notebook = nbformat.read(ROOT / "docs/files/notebook.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    kept = [_shown(cell) for cell in notebook.cells]
    assert sum(map(bool, kept)) > 5
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [_shown(cell) for cell in notebook.cells] == kept


def test_a_pipeline_runs_from_python(tmp_path: Path) -> None:
    """The page's own program, and what it asserts."""
    text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    [program] = [block for block in re.findall(r"(?ms)^```python\n(.*?)^```$", text) if "tidemark.run(" in block]
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
