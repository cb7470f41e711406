"""Checks what the departures demo left in its folder against the raw data and the oracle, never against its own figures alone.

    python -m tests.oracle.check_demo out/demo [DAYS]

Each `check_…` function takes a `Demo` and returns a sentence that says what it found right, or raises `Wrong` with the first
discrepancy. `check_all` runs them all. `check_same_alerts` and `check_control` compare a held-back and a control run with it. The order of
each partition is the feed's; who has read the topic itself gives its records instead (`Demo.read(folder, partitions)`).
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.oracle import departures as oracle
from tidemark.deploy.pipelines.departures.data import PARTITIONS, Feed, Gap, departures

ALERT_FIELDS: Final = {"kind", "origin", "hour", "expected", "actual", "score", "cause"}
LATE_REASON: Final = "Input document arrived late."
ALERTS_MAX: Final = 1500

ABSENT_EXPLAINED: Final = {
    (
        "EWR",
        "2013-11-29T01:00:00Z",
    ): "Thanksgiving, 28 November, 20:00: nothing was scheduled, on other Thursdays about 20",
    (
        "LGA",
        "2013-11-29T01:00:00Z",
    ): "Thanksgiving, 28 November, 20:00: nothing was scheduled, on other Thursdays about 9",
    (
        "LGA",
        "2013-11-29T02:00:00Z",
    ): "Thanksgiving, 28 November, 21:00: nothing was scheduled, on other Thursdays about 12",
}
"""Hours called absent in which nothing was cancelled: nothing had been scheduled, and only the calendar knew why."""

SPIKES_BY_HAND: Final = {
    ("LGA", "2013-12-01T00:00:00Z"): (3.0, 18),
    ("JFK", "2013-06-23T01:00:00Z"): (3.0, 15),
}
"""(origin, hour): (expected, actual), read off the raw table.

LaGuardia, Saturday 30 November 19:00, the way home from Thanksgiving: 18 departures of nine carriers; on the five Saturdays before
4, 3, 3, 3, 4. Kennedy, Saturday 22 June 21:00, the summer timetable (ten of B6 alone): 15; before 3, 2, 3, 3, 7.
"""


class Wrong(AssertionError):
    """The first discrepancy."""


def feed_of(partitions: int = PARTITIONS, without: tuple[Gap, ...] = (), days: int | None = None) -> Feed:
    """The feed, not made again for who asks for the same, by whatever form of call; a year has 70 MB."""
    return _feed(partitions, without, days)


@lru_cache(maxsize=1)
def _feed(partitions: int, without: tuple[Gap, ...], days: int | None) -> Feed:
    return departures(partitions, without=without, days=days)


def settled_feed(
    partitions: int = PARTITIONS, without: tuple[Gap, ...] = (), days: int | None = None
) -> oracle.Settled:
    """What the oracle makes of the feed, once a process. Not to be changed."""
    return _settled(partitions, without, days)


@cache
def _settled(partitions: int, without: tuple[Gap, ...], days: int | None) -> oracle.Settled:
    return oracle.settle([[value for _, value in p] for p in _feed(partitions, without, days).partitions])


def ensure(condition: object, message: str) -> None:
    if not condition:
        raise Wrong(message)


@dataclass(frozen=True)
class Demo:
    """What the demo left, and what it was fed."""

    folder: Path
    summary: dict[str, Any]
    counts: dict[oracle.Hour, int]
    """From the table, as any reader finds it."""
    alerts: list[dict[str, Any]]
    late: list[dict[str, Any]]
    """Dead letters, whole."""
    settled: oracle.Settled
    flights: pd.DataFrame
    without: Sequence[Gap] = ()
    """What was taken out of the feed, as a control."""
    days: int | None = None
    """Of the year, from its first on, that were fed; None: all of them."""

    @staticmethod
    def read(
        folder: Path,
        partitions: Sequence[Sequence[bytes]] | None = None,
        without: Sequence[Gap] = (),
        days: int | None = None,
    ) -> "Demo":
        """Read a folder. `partitions`: the values of the source topic in order; by default those of the feed, less those `without`."""
        for name in ("summary.json", "alerts.jsonl", "late.jsonl", "report.html"):
            ensure((folder / name).is_file(), f"{folder / name} is not there")
        summary = json.loads((folder / "summary.json").read_text())
        if partitions is None:
            settled = settled_feed(int(summary.get("partitions", PARTITIONS)), tuple(without), days)
        else:
            settled = oracle.settle(partitions)
        return Demo(
            folder,
            summary,
            released_counts(folder / "counts"),
            _lines(folder / "alerts.jsonl"),
            _lines(folder / "late.jsonl"),
            settled,
            oracle.scheduled_flights(),
            without,
            days,
        )

    def fed_hour(self, hour_ms: int) -> bool:
        """Whether an hour is of the days that were fed."""
        return self.days is None or hour_ms < _first_ms(self.days)

    @property
    def late_ids(self) -> list[str]:
        return [letter["doc"]["id"] for letter in self.late]


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def released_counts(folder: Path) -> dict[oracle.Hour, int]:
    """Departures by (origin, hour): the table's rows, which are those of all files in its folder."""
    ensure(DeltaTable.is_deltatable(str(folder)), f"{folder} is not a table that is there")
    counts: dict[oracle.Hour, int] = {}
    try:
        tables = [DeltaTable(folder).to_pyarrow_table()]
        plain = pq.read_table(folder).num_rows
    except (OSError, ValueError) as error:
        raise Wrong(f"counts: {error}") from error
    ensure(plain == tables[0].num_rows, f"counts: the table has {tables[0].num_rows} rows, the folder's files {plain}")
    for table in tables:
        ensure({"origin", "hour", "departures"} <= set(table.column_names), f"counts has columns {table.column_names}")
        hours = table.column("hour").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_pylist()
        rows = zip(table.column("origin").to_pylist(), hours, table.column("departures").to_pylist(), strict=True)
        for origin, hour, n in rows:
            ensure((origin, hour) not in counts, f"{origin} {oracle.iso(hour)} is counted in two rows")
            counts[origin, hour] = int(n)
    return counts


# --- the checks -------------------------------------------------------------------------------------------


def check_counts(demo: Demo) -> str:
    """Counts equal those that pandas computes from the raw data less the late flights."""
    expected = oracle.counts_of(_fed(demo), demo.late_ids)
    _same("counts", demo.counts, expected)
    _same("counts by the partitions' order", demo.counts, demo.settled.counts)
    return f"{len(demo.counts)} hourly counts equal pandas' of the raw data less the late flights"


def check_sums(demo: Demo) -> str:
    """Counts + late + duplicates = sent, as the oracle has them and as the summary says."""
    counted, late, sent = sum(demo.counts.values()), len(demo.late), demo.settled.sent
    duplicates = demo.settled.duplicates
    ensure(
        counted + late + duplicates == sent, f"{counted} counted + {late} late + {duplicates} duplicates ≠ {sent} sent"
    )
    found = {"sent": sent, "counted": counted, "late": late, "duplicates": duplicates, "alerts": len(demo.alerts)}
    for name, value in found.items():
        ensure(demo.summary.get(name) == value, f"summary.json says {name} {demo.summary.get(name)}, it is {value}")
    ensure(int(demo.summary["epochs"]) > 0, "summary.json names no epochs")
    return f"{counted} counted + {late} late + {duplicates} duplicates = {sent} sent"


def check_late(demo: Demo) -> str:
    """Late are those and only those whose partition was past their hour; each is there once, with reason and window."""
    repeated = [i for i, n in Counter(demo.late_ids).items() if n > 1]
    ensure(not repeated, f"{repeated[:1]} is in late.jsonl twice")
    proofs = {f.id: f for f in demo.settled.late}
    missing, extra = proofs.keys() - set(demo.late_ids), set(demo.late_ids) - proofs.keys()
    ensure(not missing, f"{sorted(missing)[:1]} was late and is not in late.jsonl ({len(missing)} in all)")
    ensure(not extra, f"{sorted(extra)[:1]} is in late.jsonl and was not late ({len(extra)} in all)")
    for letter in demo.late:
        proof = proofs[letter["doc"]["id"]]
        ensure(proof.watermark_ms >= proof.window_end_ms, f"{proof.id}: not late")
        ensure(oracle.utc_ms(letter["doc"]["scheduled"]) == proof.event_ms, f"{proof.id}: not its scheduled time")
        ensure(letter["errInfo"]["reason"] == LATE_REASON, f"{proof.id}: reason {letter['errInfo']['reason']!r}")
        missed = [_ms(t) for t in letter.get("missedWindowStartTimes", [])]
        ensure(missed == [proof.window_end_ms - oracle.HOUR_MS], f"{proof.id}: missed windows {missed}")
    share = len(proofs) / (demo.settled.sent - demo.settled.duplicates)
    ensure(0.0001 <= share <= 0.02, f"{share:.4%} are late; between 0.01 % and 2 % should be")
    return f"{len(proofs)} late flights ({share:.3%}), each proved from its partition's order"


def check_alerts(demo: Demo) -> str:
    """The alerts are those that the oracle derives from the counts, each once, with all their fields."""
    for alert in demo.alerts:
        ensure(alert.keys() >= ALERT_FIELDS, f"an alert lacks {sorted(ALERT_FIELDS - alert.keys())}: {alert}")
    found = {(a["origin"], a["hour"]): {f: a[f] for f in ALERT_FIELDS} for a in demo.alerts}
    ensure(len(found) == len(demo.alerts), "an hour has two alerts")
    _same("alerts", found, {(a["origin"], a["hour"]): a for a in oracle.alerts(demo.counts)})
    ensure(len(found) <= ALERTS_MAX, f"{len(found)} alerts, at most {ALERTS_MAX} are useful")
    kinds = Counter(a["cause"] for a in demo.alerts)
    return f"{len(found)} alerts: {kinds['absent']} absent, {kinds['low']} low, {kinds['high']} high"


def check_absences(demo: Demo) -> str:
    """All absences of the days that were fed are found (the year has 32); at most five others, each explained; none with departures.

    Hours of gaps have a check of their own (`check_control`).
    """
    year = oracle.absences(demo.flights)
    ensure(len(year) == 32, f"the raw data has {len(year)} absences, not 32")
    must = {(o, oracle.iso(h)) for o, h in year if demo.fed_hour(h)}
    gaps = {(gap.origin, oracle.iso(hour)) for gap in demo.without for hour in _hours(gap)}
    absent = {(a["origin"], a["hour"]) for a in demo.alerts if a["cause"] == "absent"} - gaps
    ensure(must <= absent, f"not found as absent: {sorted(must - absent)}")
    others = absent - must
    ensure(
        others <= ABSENT_EXPLAINED.keys(),
        f"called absent and not explained: {sorted(others - ABSENT_EXPLAINED.keys())}",
    )
    departed = {(o, oracle.iso(h)) for o, h in oracle.counts_of(demo.flights)}
    ensure(not absent & departed, f"called absent although flights departed: {sorted(absent & departed)}")
    reasons = "; ".join(f"{o} {h} ({ABSENT_EXPLAINED[o, h]})" for o, h in sorted(others))
    return f"all {len(must)} absences found; {len(others)} others, explained: {reasons or 'none'}"


def check_spikes(demo: Demo) -> str:
    """The spikes that were checked by hand are there, as they were read off the raw table."""
    found = {(a["origin"], a["hour"]): (a["expected"], a["actual"]) for a in demo.alerts if a["kind"] == "spike"}
    spikes = {key: figures for key, figures in SPIKES_BY_HAND.items() if demo.fed_hour(oracle.utc_ms(key[1]))}
    for key, figures in spikes.items():
        ensure(found.get(key) == figures, f"spike {key}: expected and actual {found.get(key)}, by hand {figures}")
    return f"{len(spikes)} spikes as checked by hand"


def check_report(demo: Demo) -> str:
    """The report is one file that needs no other and no network, and has its plots."""
    html = (demo.folder / "report.html").read_text(encoding="utf-8")
    outside = re.findall(r"(?:src|href|xlink:href|action)\s*=\s*[\"'](?!data:|#)([^\"']+)", html)
    outside += re.findall(r"url\(\s*[\"']?(?!data:|#)([^)\"']+)", html)
    ensure(not outside, f"report.html refers to {outside[:3]}")
    ensure(
        "<script" not in html or "src=" not in html.split("<script", 1)[1].split(">", 1)[0],
        "report.html loads a script",
    )
    plots = html.count("<svg") + html.count("data:image/")
    ensure(plots >= 4, f"report.html has {plots} plots")
    return f"report.html: {plots} plots, nothing from outside"


CHECKS: Final[tuple[Callable[[Demo], str], ...]] = (
    check_counts,
    check_sums,
    check_late,
    check_alerts,
    check_absences,
    check_spikes,
    check_report,
)


def check_all(
    folder: Path,
    partitions: Sequence[Sequence[bytes]] | None = None,
    without: Sequence[Gap] = (),
    days: int | None = None,
) -> list[str]:
    """Everything about one run; `Wrong` at the first discrepancy. The arguments are those of `Demo.read`."""
    demo = Demo.read(folder, partitions, without, days)
    return [check(demo) for check in CHECKS]


def check_same_alerts(folder: Path, other: Path) -> str:
    """Two runs, of which one was held back, restarted or spread otherwise, gave the same set of alerts."""
    first, second = (sorted(json.dumps(a, sort_keys=True) for a in _lines(f / "alerts.jsonl")) for f in (folder, other))
    difference = sorted(set(first) ^ set(second))
    ensure(first == second, f"{len(difference)} alerts differ, the first: {difference[:1]}")
    return f"{len(first)} alerts in both"


def check_control(folder: Path, gap: Gap, days: int | None = None) -> str:
    """A run without the flights of a gap calls each of its hours absent in which five or more were expected, and there are some."""
    demo = Demo.read(folder, without=[gap], days=days)
    usual = {(h.origin, h.hour_ms): h.expected for h in oracle.judged(demo.settled.counts)}
    hours = [h for h in _hours(gap) if (usual.get((gap.origin, h)) or 0) >= oracle.EXPECTED_MIN]
    ensure(hours, f"in {gap} nothing was expected: choose another one")
    absent = {(a["origin"], a["hour"]) for a in demo.alerts if a["cause"] == "absent"}
    for hour in hours:
        ensure(
            (gap.origin, oracle.iso(hour)) in absent,
            f"{gap.origin} {oracle.iso(hour)}: its flights were removed, and no dip was raised",
        )
    return f"{len(hours)} hours without flights, each a dip"


# --- helpers ----------------------------------------------------------------------------------------------


def _first_ms(day: int) -> int:
    """When a day of the year begins in New York, counted from 0."""
    return int((datetime(2013, 1, 1, tzinfo=oracle.NEW_YORK) + timedelta(days=day)).timestamp() * 1000)


def _hours(gap: Gap) -> range:
    """The hours of a gap, ms."""
    start_ms, end_ms = (int(t.timestamp() * 1000) for t in (gap.start, gap.end))
    return range(start_ms, end_ms, oracle.HOUR_MS)


def _fed(demo: Demo) -> pd.DataFrame:
    """The flights that were sent: all of the year, but for a control run."""
    fed = demo.settled.counted_ids | {f.id for f in demo.settled.late}
    return demo.flights[demo.flights.id.isin(fed)]


def _same(what: str, found: dict[Any, Any], expected: dict[Any, Any]) -> None:
    for key in sorted(found.keys() | expected.keys()):
        if found.get(key) != expected.get(key):
            place = (key[0], oracle.iso(key[1])) if isinstance(key[1], int) else key
            raise Wrong(f"{what}: at {place} expected {expected.get(key)}, found {found.get(key)}")


def _ms(value: Any) -> int:
    """A date in relaxed extended JSON."""
    text = value["$date"] if isinstance(value, dict) else value
    return int(pd.Timestamp(text).timestamp() * 1000)


def main(arguments: Sequence[str]) -> int:
    """Print what was found; 1 at the first discrepancy."""
    try:
        days = int(arguments[1]) if len(arguments) > 1 else None
        for line in check_all(Path(arguments[0] if arguments else "out/demo"), days=days):
            sys.stdout.write(f"right: {line}\n")
    except Wrong as wrong:
        sys.stdout.write(f"WRONG: {wrong}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
