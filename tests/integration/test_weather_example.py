"""The example of two streams joined, on its first weeks: what `tidemark process` gives is what pandas' merge and groupby give."""

import json
import logging
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from deploy.pipelines.weather.data import write
from services.cli.__main__ import app
from services.cli.process import Runner, quiet
from shared.language.values import to_json
from shared.model.ids import ProcessorName

DOCUMENT = Path(__file__).parents[2] / "deploy" / "pipelines" / "weather" / "pipeline.yaml"
DAYS = 14
DAY, HOUR = pd.Timedelta(days=1), pd.Timedelta(hours=1)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The two streams, where the document looks for them."""
    write(tmp_path, DAYS)
    monkeypatch.setenv("DATA", str(tmp_path))
    monkeypatch.setenv("OUT", str(tmp_path))
    quiet(logging.CRITICAL)
    return tmp_path


def kind(row: pd.Series) -> str:
    """The weather of a departure, in the document's words."""
    if row["_merge"] == "left_only":
        return "unknown"
    if row["visib"] < 3:
        return "fog or snow"
    if row["precip"] > 0:
        return "rain"
    return "wind" if row["wind_speed"] >= 20 else "fair"


def by_pandas(data: Path) -> tuple[dict[tuple[str, str, str], tuple[int, float, int]], int]:
    """(departures, mean delay, those of an hour and more) by day, airport and weather; how many departures were late."""
    flights = pd.read_json(data / "departures.jsonl", lines=True)
    flights["scheduled"] = pd.to_datetime(flights["scheduled"])
    before = flights["scheduled"].cummax().shift()
    late = flights["scheduled"] < before - 5 * HOUR
    flights = flights[~late].assign(hour=lambda f: f["scheduled"].dt.floor("h"))
    measured = pd.read_json(data / "measurements.jsonl", lines=True)
    measured["hour"] = pd.to_datetime(measured["hour"])
    merged = flights.merge(measured, on=["origin", "hour"], how="left", indicator=True)
    merged["weather"] = merged.apply(kind, axis=1)
    merged["day"] = ((merged["scheduled"] - 5 * HOUR).dt.floor("D") + 5 * HOUR).dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    groups = merged.groupby(["day", "origin", "weather"])["delay_min"]
    found = groups.agg(["count", "mean", lambda d: int((d >= 60).sum())])
    return {key: (int(row.iloc[0]), float(row.iloc[1]), int(row.iloc[2])) for key, row in found.iterrows()}, int(
        late.sum()
    )


def test_the_example_gives_what_a_merge_gives(data: Path) -> None:
    """Every departure is counted once with the weather of its hour, and those behind the watermark are dead letters."""
    outcome, _ = Runner("local").run(DOCUMENT.read_text(), ProcessorName("weather"))
    assert outcome.error is None
    rows: list[dict[str, Any]] = [to_json(d, canonical=False) for d in outcome.output]
    got: dict[tuple[str, str, str], Any] = {
        (r["day"]["$date"], r["origin"], r["weather"]): (r["departures"], pytest.approx(r["mean_delay_min"]), r["late"])
        for r in rows
    }
    wanted, late = by_pandas(data)
    assert len(got) == len(rows)
    assert got == wanted
    assert len(outcome.letters) == late > 0
    assert {weather for _, _, weather in wanted} >= {"fair", "rain", "fog or snow", "unknown"}


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
