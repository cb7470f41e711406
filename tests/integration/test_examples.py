"""The examples' results, worked out another way over the same data: plain Python, record by record."""

import json
import logging
import re
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from deploy.pipelines.validation.data import lines as readings
from services.cli.in_memory import Outcome
from services.cli.process import Runner, quiet
from shared.language.values import to_json
from shared.model.ids import ProcessorName
from tests.harness.examples import EXAMPLES

MINUTE, HOUR = 60_000, 3_600_000


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """The document as it stands, over its data."""
    quiet(logging.CRITICAL)
    example = EXAMPLES[name]
    example.write(folder)
    monkeypatch.setenv("DATA", str(folder))
    monkeypatch.setenv("OUT", str(folder / "out"))
    outcome, _ = Runner("local").run(json.dumps(example.tree()), ProcessorName(name))
    assert outcome.error is None
    return outcome


def shown(outcome: Outcome) -> list[dict[str, Any]]:
    return [to_json(d, canonical=False) for d in outcome.output]


def ms(shown_date: dict[str, str]) -> int:
    return int(datetime.fromisoformat(shown_date["$date"]).timestamp() * 1000)


def records(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_session_lengths_are_those_of_the_scores_that_were_not_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions by hand over the scores in time; those that were late are at most the declared fraction."""
    outcome = run("sessions", tmp_path, monkeypatch)
    late = Counter(d["doc"]["id"] for d in outcome.letters)
    wanted: dict[tuple[str, int], list[int]] = defaultdict(list)
    for device, fraction in (("mobile", 0.01), ("console", 0.001)):
        scores = records(tmp_path, f"{device}.jsonl")
        missed = sum(late[s["id"]] for s in scores)
        assert missed <= fraction * len(scores) + 10, "the first few records are what the strategy learns from"
        by_user: dict[str, list[int]] = defaultdict(list)
        for score in scores:
            if not late[score["id"]]:
                by_user[score["user"]].append(score["at"])
        for times in by_user.values():
            times.sort()
            begin = 0
            for i in range(1, len(times) + 1):
                if i == len(times) or times[i] - times[i - 1] >= 10 * MINUTE:
                    wanted[(device, times[i - 1] // HOUR * HOUR)].append(times[i - 1] - times[begin])
                    begin = i
    found = {
        (r["device"], ms(r["hour"])): (r["sessions"], r["mean_length_ms"], r["longest_ms"]) for r in shown(outcome)
    }
    assert found == {k: (len(v), pytest.approx(mean(v)), max(v)) for k, v in wanted.items()}


def test_the_second_window_counts_what_the_first_one_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both levels by hand; every click is in both, or late."""
    outcome = run("counts", tmp_path, monkeypatch)
    in_time, highest = Counter[tuple[str, int]](), 0
    late = 0
    for click in records(tmp_path, "clicks.jsonl"):
        minute = click["at"] // MINUTE * MINUTE
        if highest - 9_000 >= minute + MINUTE:
            late += 1
        else:
            in_time[click["user"], minute] += 1
        highest = max(highest, click["at"])
    rows = shown(outcome)
    users = {(r["user"], ms(r["minute"])): r["clicks"] for r in rows if "user" in r}
    assert users == in_time
    assert len(outcome.letters) == late
    minutes = {minute: [(n, u) for (u, m), n in in_time.items() if m == minute] for _, minute in in_time}
    for row in rows:
        if "user" not in row:
            each = minutes.pop(ms(row["minute"]))
            assert (row["users"], row["clicks"]) == (len(each), sum(n for n, _ in each))
            assert row["busiest"] == min(each, key=lambda e: (-e[0], e[1]))[1]
    assert not minutes


def test_every_reading_is_in_a_mean_or_a_dead_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The good ones are averaged, every other kind has a letter with its reason."""
    outcome = run("validation", tmp_path, monkeypatch)
    kinds = Counter(kind for kind, _ in readings(400))
    found = shown(outcome)
    assert sum(r["readings"] for r in found) == kinds["good"]
    by_place: dict[tuple[str, int], list[float]] = defaultdict(list)
    for kind, text in readings(400):
        if kind == "good":
            reading = json.loads(text)
            by_place[reading["sensor"], reading["at"] // MINUTE * MINUTE].append(reading["value"])
    assert {(r["sensor"], ms(r["minute"])): (r["mean"], r["low"], r["high"]) for r in found} == {
        place: (pytest.approx(mean(v)), min(v), max(v)) for place, v in by_place.items()
    }
    stages = Counter(letter["operatorName"] for letter in outcome.letters)
    assert stages["$source"] == kinds["no time"] + kinds["torn"]
    assert stages["$validate"] == kinds.total() - kinds["good"] - stages["$source"]


def test_traffic_is_that_of_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests, errors, bytes and visitors of five minutes, every minute; the failing section is seen."""
    outcome = run("weblog", tmp_path, monkeypatch)
    pattern = re.compile(r'^(\S+) .*\[(.*)\] "GET /(\w*)\S* HTTP/1.1" (\d+) (\d+) "(\w+)" (\d+)$')
    wanted: dict[tuple[str, int], list[tuple[str, int, int, int]]] = defaultdict(list)
    for record in records(tmp_path, "access.jsonl"):
        match = pattern.match(record["line"])
        assert match is not None
        address, stamp, section, status, size, agent, took = match.groups()
        if agent == "crawler":
            continue
        at = int(datetime.strptime(stamp, "%d/%b/%Y:%H:%M:%S %z").timestamp() * 1000)
        first = at // MINUTE * MINUTE
        for begin in range(first - 4 * MINUTE, first + 1, MINUTE):
            wanted[section or "home", begin + 5 * MINUTE].append((address, int(status), int(size), int(took)))
    assert not outcome.letters, "no line is more than twenty seconds behind"
    found = {(r["section"], ms(r["until"])): r for r in shown(outcome)}
    assert found.keys() == wanted.keys()
    for place, row in found.items():
        each = wanted[place]
        assert (row["requests"], row["bytes"]) == (len(each), sum(size for _, _, size, _ in each))
        assert row["errors"] == sum(status >= 500 for _, status, _, _ in each)
        assert row["visitors"] == pytest.approx(len({address for address, *_ in each}), rel=0.05)
        took = sorted(millis for *_, millis in each)
        assert took[0] <= row["median_ms"] <= row["p95_ms"] <= took[-1]
    assert {section for (section, _), row in found.items() if row["errors"]} == {"pay"}
