"""The example of two streams joined, on its first weeks: what `tidemark process` gives is what pandas' merge and groupby give."""

import json
import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.oracle.examples import check_weather
from tidemark.deploy.pipelines.weather.data import write
from tidemark.services.cli.__main__ import app
from tidemark.services.cli.process import Runner, quiet
from tidemark.shared.language.values import to_json
from tidemark.shared.model.ids import ProcessorName

DOCUMENT = Path(__file__).parents[2] / "deploy" / "pipelines" / "weather" / "pipeline.yaml"
DAYS = 14


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The two streams, where the document looks for them."""
    write(tmp_path, DAYS)
    monkeypatch.setenv("DATA", str(tmp_path))
    monkeypatch.setenv("OUT", str(tmp_path))
    quiet(logging.CRITICAL)
    return tmp_path


def test_the_example_gives_what_a_merge_gives(data: Path) -> None:
    """Every departure is counted once with the weather of its hour, and those behind the watermark are dead letters."""
    outcome, _ = Runner("local").run(DOCUMENT.read_text(), ProcessorName("weather"))
    assert outcome.error is None
    rows, letters = ([to_json(d, canonical=False) for d in found] for found in (outcome.output, outcome.letters))
    check_weather(data, rows, letters)


def test_explain_shows_both_inputs_of_the_join(data: Path) -> None:
    """The stages of the joined pipeline stand below the join; its edges are by key, each with its side."""
    shown = CliRunner().invoke(app, ["explain", str(DOCUMENT)]).stdout
    for line in (
        "pipeline[1].$join: reads origin",
        "  pipeline[1].$join.from[0].$source: reads origin, hour",
        "source-1 → join-1: by key, as left",
        "source-2 → join-1: by key, as right",
        "$join left: pairs, left ones alone, right from 3599999 ms before to 0 ms after left",
        "aggregated before the shuffle, by states of accumulators in join-1",
    ):
        assert line in shown, f"{line!r} is not in\n{shown}"
    assert json.loads((data / "measurements.jsonl").read_text().splitlines()[0])["origin"] == "EWR"
