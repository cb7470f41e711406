"""The manual in `docs/` is current, builds without a warning, and every snippet of it runs.

Those that need a broker: `test_manual_tutorial.py`, `test_manual_python.py`.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from tests.tidy_rules import ROOT
from tidemark.deploy.manual import pages
from tidemark.services.cli.__main__ import app
from tidemark.shared.language.documents import parse
from tidemark.shared.language.documents.load import load
from tidemark.shared.planning import plan_processor

DOCS: Final = ROOT / "docs"
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CONNECTIONS: Final = {
    "kafka": {"type": "kafka", "bootstrapServers": "b:1"},
    "shop": {"type": "sql", "url": "sqlite:///x.db"},
}


def snippets(*languages: str) -> Iterator[Any]:
    """The blocks of all pages, as parameters of a test: page, language and text."""
    for path in sorted(DOCS.rglob("*.md")):
        for number, (language, text) in enumerate(_BLOCK.findall(path.read_text(encoding="utf-8"))):
            if language in languages:
                yield pytest.param(path.name, text, id=f"{path.stem}-{number}")


def test_the_reference_is_what_the_code_says() -> None:
    """`make manual` would change nothing."""
    stale = [name for name, text in pages().items() if (DOCS / name).read_text(encoding="utf-8") != text]
    assert not stale, "run `make manual`"
    assert {f"reference/{path.name}" for path in (DOCS / "reference").iterdir()} == {
        n for n in pages() if n.endswith(".md")
    }


def test_the_manual_builds_without_a_warning(tmp_path: Path) -> None:
    """No link is broken, and no page stands outside the contents."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "tutorial.html").exists()


def test_every_block_is_of_a_kind_that_is_run() -> None:
    """A snippet in another language would be run by nobody."""
    kinds = {
        language for path in DOCS.rglob("*.md") for language, _ in _BLOCK.findall(path.read_text(encoding="utf-8"))
    }
    assert kinds == {"yaml", "python", "sh", "sql"}


@pytest.mark.parametrize(("page", "text"), list(snippets("yaml")))
def test_documents_and_stages_are_valid(page: str, text: str) -> None:
    """A document can be planned as it stands; stages behind a source, with the connections that pages speak of. Nobody is warned."""
    tree, _ = load(text)
    if isinstance(tree, list):
        source = [] if "$source" in tree[0] else [{"$source": {"connectionName": "kafka", "topic": "t"}}]
        sink = [{"$emit": {"path": "out", "format": "json"}}]
        processor = parse({"connections": _CONNECTIONS, "pipeline": source + tree + sink})
    else:
        processor = parse(text)
    assert processor.warnings == (), page
    assert plan_processor(processor).vertices


@pytest.mark.parametrize(
    ("page", "text"), [p for p in snippets("python") if "bootstrap_servers" not in str(p.values[1])]
)
def test_python_runs(page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, and what it asserts holds."""
    monkeypatch.chdir(tmp_path)
    exec(compile(text, page, "exec"), {"__name__": "manual"})


@pytest.mark.parametrize(("page", "text"), list(snippets("sh")))
def test_commands_are_there(page: str, text: str) -> None:
    """Each has the options that it is called with; `make` has the targets."""
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    for line in text.strip().splitlines():
        program, *words = shlex.split(line)
        if program == "export":
            continue
        if program == "make":
            assert set(words) <= targets, f"{page}: {line}"
            continue
        assert program in ("tidemark", ".venv/bin/tidemark"), f"{page}: {line}"
        command = [] if words[0].startswith("-") else words[:1]
        help_ = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
        assert help_.exit_code == 0, f"{page}: {line}"
        assert not [word for word in words if word.startswith("-") and word not in help_.output], f"{page}: {line}"
