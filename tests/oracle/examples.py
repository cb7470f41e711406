"""The examples' results, worked out another way over the same data: plain Python, record by record, or pandas.

Each takes the folder with the data, the rows and the dead letters, as relaxed JSON, and fails at the first that is not right.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import Any, Final

import pandas as pd
import pytest

from tests.oracle.departures import settle

MINUTE, HOUR = 60_000, 3_600_000
HOUR_TABLE = pd.Timedelta(hours=1)
Rows = Sequence[Mapping[str, Any]]


def ms(shown_date: Mapping[str, str]) -> int:
    """Of a date as it is shown."""
    return int(datetime.fromisoformat(shown_date["$date"]).timestamp() * 1000)


def records(folder: Path, name: str) -> list[dict[str, Any]]:
    """The documents of a file."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def check_sessions(folder: Path, rows: Rows, letters: Rows) -> None:
    """Sessions by hand over the scores in time; those that were late are at most the declared fraction."""
    late = Counter(d["doc"]["id"] + str(d["doc"]["at"]) for d in letters)
    wanted: dict[tuple[str, int], list[int]] = defaultdict(list)
    for device, fraction in (("mobile", 0.01), ("console", 0.001)):
        scores = records(folder, f"{device}.jsonl")
        missed = sum(s["id"] + str(s["at"]) in late for s in scores)
        assert missed <= fraction * len(scores) + 10, "the first few records are what the strategy learns from"
        by_user: dict[str, list[int]] = defaultdict(list)
        for score in scores:
            if score["id"] + str(score["at"]) not in late:
                by_user[score["user"]].append(score["at"])
        for times in by_user.values():
            times.sort()
            begin = 0
            for i in range(1, len(times) + 1):
                if i == len(times) or times[i] - times[i - 1] >= 10 * MINUTE:
                    wanted[(device, times[i - 1] // HOUR * HOUR)].append(times[i - 1] - times[begin])
                    begin = i
    found = {(r["device"], ms(r["hour"])): (r["sessions"], r["mean_length_ms"], r["longest_ms"]) for r in rows}
    assert len(found) == len(rows)
    assert found == {k: (len(v), pytest.approx(mean(v)), max(v)) for k, v in wanted.items()}


def check_counts(folder: Path, rows: Rows, letters: Rows) -> None:
    """Both levels by hand; every click is in both, or late."""
    in_time, highest = Counter[tuple[str, int]](), 0
    late = 0
    for click in records(folder, "clicks.jsonl"):
        minute = click["at"] // MINUTE * MINUTE
        if highest - 9_000 >= minute + MINUTE:
            late += 1
        else:
            in_time[click["user"], minute] += 1
        highest = max(highest, click["at"])
    users = {(r["user"], ms(r["minute"])): r["clicks"] for r in rows if "user" in r}
    assert users == in_time
    assert len(letters) == late
    minutes: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for (user, minute), n in in_time.items():
        minutes[minute].append((n, user))
    for row in rows:
        if "user" not in row:
            each = minutes.pop(ms(row["minute"]))
            assert (row["users"], row["clicks"]) == (len(each), sum(n for n, _ in each))
            assert row["busiest"] == min(each, key=lambda e: (-e[0], e[1]))[1]
    assert not minutes


def check_validation(folder: Path, rows: Rows, letters: Rows) -> None:
    """The good ones are averaged, every other kind has a letter of the stage that refused it."""
    by_place: dict[tuple[str, int], list[float]] = defaultdict(list)
    refused = Counter[str]()
    for line in (folder / "readings.jsonl").read_text().splitlines():
        try:
            reading = json.loads(line)
        except ValueError:
            refused["$source"] += 1
            continue
        value = reading["value"]
        if type(reading["at"]) is not int:
            refused["$source"] += 1
        elif isinstance(value, str) or not -60 <= value <= 60 or reading.get("unit") != "C":
            refused["$validate"] += 1
        else:
            by_place[reading["sensor"], reading["at"] // MINUTE * MINUTE].append(value)
    assert Counter(letter["operatorName"] for letter in letters) == refused
    assert {(r["sensor"], ms(r["minute"])): (r["readings"], r["mean"], r["low"], r["high"]) for r in rows} == {
        place: (len(v), pytest.approx(mean(v)), min(v), max(v)) for place, v in by_place.items()
    }


def check_weblog(folder: Path, rows: Rows, letters: Rows) -> None:
    """Requests, errors, bytes and visitors of five minutes, every minute; the failing section is seen."""
    pattern = re.compile(r'^(\S+) .*\[(.*)\] "GET /(\w*)\S* HTTP/1.1" (\d+) (\d+) "(\w+)" (\d+)$')
    wanted: dict[tuple[str, int], list[tuple[str, int, int, int]]] = defaultdict(list)
    for record in records(folder, "access.jsonl"):
        match = pattern.match(record["line"])
        assert match is not None
        address, stamp, section, status, size, agent, took = match.groups()
        if agent == "crawler":
            continue
        at = int(datetime.strptime(stamp, "%d/%b/%Y:%H:%M:%S %z").timestamp() * 1000)
        first = at // MINUTE * MINUTE
        for begin in range(first - 4 * MINUTE, first + 1, MINUTE):
            wanted[section or "home", begin + 5 * MINUTE].append((address, int(status), int(size), int(took)))
    assert not letters, "no line is more than twenty seconds behind"
    found = {(r["section"], ms(r["until"])): r for r in rows}
    assert found.keys() == wanted.keys()
    for place, row in found.items():
        each = wanted[place]
        assert (row["requests"], row["bytes"]) == (len(each), sum(size for _, _, size, _ in each))
        assert row["errors"] == sum(status >= 500 for _, status, _, _ in each)
        assert row["visitors"] == pytest.approx(len({address for address, *_ in each}), rel=0.05)
        took = sorted(millis for *_, millis in each)
        assert took[0] <= row["median_ms"] <= row["p95_ms"] <= took[-1]
    assert {section for (section, _), row in found.items() if row["errors"]} == {"pay"}


def _kind(row: pd.Series) -> str:
    """The weather of a departure, in the document's words."""
    if row["_merge"] == "left_only":
        return "unknown"
    if row["visib"] < 3:
        return "fog or snow"
    if row["precip"] > 0:
        return "rain"
    return "wind" if row["wind_speed"] >= 20 else "fair"


def weather_by_pandas(folder: Path) -> tuple[dict[tuple[str, str, str], tuple[int, float, int]], int]:
    """(departures, mean delay, those of an hour and more) by day, airport and weather; how many departures were late."""
    flights = pd.read_json(folder / "departures.jsonl", lines=True)
    flights["scheduled"] = pd.to_datetime(flights["scheduled"])
    before = flights["scheduled"].cummax().shift()
    late = flights["scheduled"] < before - 5 * HOUR_TABLE
    flights = flights[~late].assign(hour=lambda f: f["scheduled"].dt.floor("h"))
    measured = pd.read_json(folder / "measurements.jsonl", lines=True)
    measured["hour"] = pd.to_datetime(measured["hour"])
    merged = flights.merge(measured, on=["origin", "hour"], how="left", indicator=True)
    merged["weather"] = merged.apply(_kind, axis=1)
    day = (merged["scheduled"] - 5 * HOUR_TABLE).dt.floor("D") + 5 * HOUR_TABLE
    merged["day"] = day.dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    groups = merged.groupby(["day", "origin", "weather"])["delay_min"]
    found = groups.agg(["count", "mean", lambda d: int((d >= 60).sum())])
    return {key: (int(row.iloc[0]), float(row.iloc[1]), int(row.iloc[2])) for key, row in found.iterrows()}, int(
        late.sum()
    )


def check_weather(folder: Path, rows: Rows, letters: Rows) -> None:
    """Every departure is counted once with the weather of its hour, and those behind the watermark are dead letters."""
    got: dict[tuple[str, str, str], Any] = {
        (r["day"]["$date"], r["origin"], r["weather"]): (r["departures"], pytest.approx(r["mean_delay_min"]), r["late"])
        for r in rows
    }
    wanted, late = weather_by_pandas(folder)
    assert len(got) == len(rows)
    assert got == wanted
    assert len(letters) == late > 0
    assert {weather for _, _, weather in wanted} >= {"fair", "rain", "fog or snow", "unknown"}


def check_departures(folder: Path, rows: Rows, letters: Rows) -> None:
    """Hourly counts and late flights are those that each partition's order settles."""
    settled = settle([path.read_bytes().splitlines() for path in sorted(folder.glob("departures-*.jsonl"))])
    counts = {(r["origin"], ms(r["hour"])): r["departures"] for r in rows if "departures" in r}
    assert counts == settled.counts
    assert Counter(letter["doc"]["id"] for letter in letters) == Counter(late.id for late in settled.late)


CHECKS: Final[Mapping[str, Callable[[Path, Rows, Rows], None]]] = {
    "departures": check_departures,
    "weather": check_weather,
    "sessions": check_sessions,
    "counts": check_counts,
    "validation": check_validation,
    "weblog": check_weblog,
}
"""By example."""
