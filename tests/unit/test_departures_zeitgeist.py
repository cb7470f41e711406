"""Expectation and detector over the departures: they alert as the oracle does, whatever the interleaving, the pauses and the restarts."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.harness.share import CI
from tests.oracle import departures as oracle
from tests.oracle.check_demo import settled_feed
from tidemark.deploy.pipelines.departures.data import Gap, departures
from tidemark.deploy.pipelines.departures.zeitgeist import ExpectedCounts, SpikeAndDip, hour_of_week
from tidemark.shared.computation import ConfigError, make_computation
from tidemark.shared.computation.harness import Chain, Harness
from tidemark.shared.model.values import Date

HOUR_MS = oracle.HOUR_MS


def chain(zone: str = "America/New_York") -> Chain:
    return Chain([
        Harness(ExpectedCounts, key="origin", config={"zone": zone}),
        Harness(SpikeAndDip, key="origin"),
    ])  # fmt: skip


@dataclass(frozen=True)
class Split:
    """A partition as the windows see it: (event time, origin) of each event, less late ones and repeats, and its highest event time."""

    events: list[tuple[int, str, bool]]


def splits_of(partitions: list[list[bytes]]) -> tuple[list[Split], oracle.Settled]:
    settled = oracle.settle(partitions)
    late = {(f.partition, f.position) for f in settled.late}
    splits = []
    for p, values in enumerate(partitions):
        seen: set[bytes] = set()
        events = []
        for i, value in enumerate(values):
            at = value.index(b'"scheduled":"') + 13
            origin = value[value.index(b'"origin":"') + 10 :][:3].decode()
            counts = (p, i) not in late and value not in seen
            seen.add(value)
            events.append((oracle.utc_ms(value[at : at + 20].decode()), origin, counts))
        splits.append(Split(events))
    return splits, settled


@pytest.fixture(scope="module")
def winter() -> tuple[list[Split], oracle.Settled]:
    """The first 45 days: enough to learn, and the blizzard."""
    return splits_of([[v for _, v in p] for p in departures(days=45).partitions])


Steps = Iterator[tuple[int, int]]
"""(split, how many of its events are read) one after the other."""


def run(splits: list[Split], steps: Callable[[list[int]], Steps], restart_every: int = 0) -> list[dict[str, Any]]:
    """Read the splits in that interleaving; windows close by the merged watermark; the chain gets counts and watermarks."""
    target = chain()
    places = [0] * len(splits)
    marks: list[int | None] = [None] * len(splits)
    windows: dict[tuple[str, int], int] = {}
    merged = None

    def close(below: int | None) -> None:
        for origin, hour in sorted(k for k in windows if below is None or k[1] + HOUR_MS <= below):
            document = {"origin": origin, "hour": Date(hour), "departures": windows.pop((origin, hour))}
            target.record(document, hour + HOUR_MS - 1)

    for n, (split, count) in enumerate(steps([len(s.events) for s in splits])):
        for at, origin, counts in splits[split].events[places[split] : places[split] + count]:
            if counts:
                key = (origin, at // HOUR_MS * HOUR_MS)
                windows[key] = windows.get(key, 0) + 1
            marks[split] = max(marks[split] or at - oracle.MAX_DELAY_MS, at - oracle.MAX_DELAY_MS)
        places[split] += count
        known = [m for m in marks if m is not None]
        if len(known) == len(splits) and min(known) != merged:
            merged = min(known)
            close(merged)
            target.watermark(merged)
        if restart_every and n % restart_every == restart_every - 1:
            target.restart()
    close(None)
    target.end()
    return sorted(target.documents, key=lambda a: (a["hour"], a["origin"]))


def all_at_once(lengths: list[int]) -> Steps:
    yield from enumerate(lengths)


def one_split_after_the_other(lengths: list[int]) -> Steps:
    for split, length in reversed(list(enumerate(lengths))):
        for start in range(0, length, 500):
            yield split, min(500, length - start)


def seeded(seed: int, most: int) -> Callable[[list[int]], Steps]:
    def steps(lengths: list[int]) -> Steps:
        rng = random.Random(seed)
        left = list(lengths)
        while any(left):
            split = rng.choices(range(len(left)), weights=[n + 1 if n else 0 for n in left])[0]
            count = min(left[split], rng.randint(1, most))
            left[split] -= count
            yield split, count

    return steps


INTERLEAVINGS = {
    "all at once": (all_at_once, 0),
    "one split after the other": (one_split_after_the_other, 0),
    "small steps": (seeded(1, 40), 0),
    "large steps, restarts": (seeded(2, 4000), 3),
    "small steps, restarts": (seeded(3, 100), 50),
}


@pytest.mark.parametrize("name", INTERLEAVINGS)
def test_alerts_do_not_depend_on_interleaving_or_restarts(
    name: str, winter: tuple[list[Split], oracle.Settled]
) -> None:
    """Whatever the partitions' interleaving, the epochs' size and the restarts, the alerts are the oracle's."""
    splits, settled = winter
    steps, restart_every = INTERLEAVINGS[name]
    alerts = run(splits, steps, restart_every)
    assert alerts == oracle.alerts(settled.counts)
    assert sum(a["cause"] == "absent" for a in alerts) == 31


def test_a_year_s_alerts_are_the_oracle_s() -> None:
    """Over the whole year (in CI its first quarter) the computations find what the oracle finds; all 32 absences among it."""
    settled = settled_feed(days=90 if CI else None)
    target = chain()
    at = None
    for (origin, hour), n in sorted(settled.counts.items(), key=lambda c: (c[0][1], c[0][0])):
        if hour != at:
            at = hour
            target.watermark(hour)
        target.record({"origin": origin, "hour": Date(hour), "departures": n}, hour + HOUR_MS - 1)
    target.end()
    alerts = sorted(target.documents, key=lambda a: (a["hour"], a["origin"]))
    assert alerts == oracle.alerts(settled.counts)


def test_a_topic_that_stands_still_raises_nothing() -> None:
    """While the watermark stands nothing is judged, however long; the hour is judged when it moves."""
    target = chain()
    monday = 1_362_978_000_000  # 2013-03-11T05:00:00Z
    week = 168 * HOUR_MS
    for i in range(5):
        start = monday + i * week
        target.watermark(start)
        target.record({"origin": "EWR", "hour": Date(start), "departures": 10}, start + HOUR_MS - 1)
    last = monday + 5 * week
    target.watermark(last + HOUR_MS - 1)
    assert target.documents == []
    target.watermark(last + HOUR_MS)
    assert [(a["cause"], a["hour"]) for a in target.documents] == [("absent", oracle.iso(last))]


def test_the_control_raises_dips() -> None:
    """Without the flights of one airport on one June morning exactly those hours become absent."""
    gap = Gap("EWR", datetime(2013, 6, 4, 12, tzinfo=UTC), datetime(2013, 6, 4, 16, tzinfo=UTC))
    control, plain = (settled_feed(without=gaps, days=170) for gaps in ((gap,), ()))
    absent = [
        {(a["origin"], a["hour"]) for a in oracle.alerts(s.counts) if a["cause"] == "absent"} for s in (control, plain)
    ]
    assert absent[0] - absent[1] == {("EWR", f"2013-06-04T{h}:00:00Z") for h in (12, 13, 14, 15)}


def test_the_clock_changes_are_no_dips() -> None:
    """The hour of the week is New York's: a schedule that follows the clock there raises nothing at the changes, on UTC hours it does."""
    alerts = {}
    for zone in ("America/New_York", "UTC"):
        target = chain(zone)
        start = 1_360_000_800_000 // HOUR_MS * HOUR_MS
        for hour in range(start, start + 9 * 168 * HOUR_MS, HOUR_MS):
            if 6 <= hour_of_week(hour, "America/New_York") % 24 <= 21:
                target.watermark(hour)
                target.record({"origin": "JFK", "hour": Date(hour), "departures": 12}, hour + HOUR_MS - 1)
        alerts[zone] = len(target.documents)
    assert alerts["America/New_York"] == 0
    assert alerts["UTC"] >= 20


def test_a_dip_is_not_learned() -> None:
    """A week after a day without departures the usual count is expected still: nothing is a spike for being back."""
    target = chain()
    for week in range(6):
        hour = 1_362_978_000_000 + week * 168 * HOUR_MS
        target.watermark(hour)
        if week != 4:
            target.record({"origin": "EWR", "hour": Date(hour), "departures": 20}, hour + HOUR_MS - 1)
    target.end()
    assert [(a["kind"], a["expected"], a["actual"]) for a in target.documents] == [("dip", 20.0, 0)]


@pytest.mark.parametrize("config", [{"weeks": 2}, {"weeks_min": 0}, {"zone": "Mars/Base"}])
def test_a_config_that_makes_no_sense_is_refused(config: dict[str, Any]) -> None:
    """Settings that contradict one another, or a zone that is none, are an error before anything runs."""
    with pytest.raises(ConfigError):
        make_computation(ExpectedCounts, config)
