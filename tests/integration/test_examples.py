"""The examples as they stand, tried out over little data: their results are those that are worked out another way."""

import json
import logging
from pathlib import Path

import pytest

from tests.harness.examples import EXAMPLES
from tests.oracle.examples import CHECKS
from tidemark.services.cli.process import Runner, quiet
from tidemark.shared.language.values import to_json
from tidemark.shared.model.ids import ProcessorName


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ("departures", "weather")])
def test_an_example_gives_what_is_worked_out_another_way(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record is in the rows where it belongs, or a dead letter."""
    quiet(logging.CRITICAL)
    example = EXAMPLES[name]
    example.write(tmp_path)
    monkeypatch.setenv("DATA", str(tmp_path))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    outcome, _ = Runner("local").run(json.dumps(example.tree()), ProcessorName(name))
    assert outcome.error is None
    rows, letters = ([to_json(d, canonical=False) for d in found] for found in (outcome.output, outcome.letters))
    CHECKS[name](tmp_path, rows, letters)
