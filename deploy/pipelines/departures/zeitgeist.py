"""Which hours had fewer departures, or more, than that airport usually has at that hour of the week (after Zeitgeist, MillWheel 2).

Two computations, both keyed by airport and in the order of event time:

    hourly counts ──> ExpectedCounts ──> counts, and the expectation of the next hour ──> SpikeAndDip ──> alerts

- `ExpectedCounts` learns. A timer at the end of each hour takes that hour into the model, counted or not, and gives the expectation
  of the hour that begins. Counts pass through it unchanged.
- `SpikeAndDip` judges. An expectation sets a timer at the last instant of its hour. The timer fires once the watermark says that
  nothing more can come, so that an hour without a count is absent, not merely slow; a topic that stands still
  stops the watermark and raises nothing.

The expectation is the median of the last few weeks' counts at the same hour of the week by the airport's own clock. A single bad (or
good) day does not move a median, so a blizzard is not expected again a week later. The hour of the week is local, because
schedules are: in UTC each clock change would look like a dip and a spike. Until an hour of the week has been seen a few times nothing is
expected of it, and it is not judged.

Order of time, for an hour from T to T + 1 h: expectation at T; count at T + 1 h − 1 ms, its window's last instant; judgement at that same
instant, behind the count (records come first on a tie).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from math import sqrt
from statistics import median
from typing import Final
from zoneinfo import ZoneInfo

from tidemark.shared.computation import Computation, Date, Document, Record, Timer, Timers

HOUR_MS: Final = 3_600_000
HOURS_OF_WEEK: Final = 168


@dataclass(frozen=True, slots=True)
class Learning:
    """How the expectation is learned."""

    zone: str = "America/New_York"
    weeks: int = 5
    """How many of the last weeks count."""
    weeks_min: int = 3
    """How many there must be before anything is expected."""

    def __post_init__(self) -> None:
        if not 1 <= self.weeks_min <= self.weeks:
            raise ValueError(f"weeks_min is between 1 and weeks ({self.weeks}), not {self.weeks_min}")
        _zone(self.zone)


@dataclass(slots=True)
class Model:
    """The counts that one airport's hours of the week usually have."""

    origin: str = ""
    departures: int = 0
    """Counted in the hour that the timer will end."""
    weeks: list[list[int]] = field(default_factory=lambda: [[] for _ in range(HOURS_OF_WEEK)])
    """By hour of the week, Monday 0:00 first: the last counts, oldest first."""


class ExpectedCounts(Computation[Model, Learning]):
    """In: {hour, departures}. Out: the same, and {origin, hour, expected} at the start of each hour that something is expected of."""

    State = Model
    Config = Learning

    def process(self, record: Record, state: Model, timers: Timers) -> Iterator[Document]:
        """A count; the airport's first one starts its clock."""
        state.origin = record.key
        state.departures += record.value["departures"]
        if timers.time_of("hour") is None:
            timers.set("hour", record.value["hour"] + HOUR_MS)
        yield record.value

    def on_timer(self, timer: Timer, state: Model, timers: Timers) -> Iterator[Document]:
        """An hour is over and the next begins."""
        over = state.weeks[hour_of_week(timer.time - HOUR_MS, self.config.zone)]
        over.append(state.departures)
        del over[: -self.config.weeks]
        state.departures = 0
        timers.set("hour", timer.time + HOUR_MS)
        weeks = state.weeks[hour_of_week(timer.time, self.config.zone)]
        if len(weeks) >= self.config.weeks_min:
            yield {"origin": state.origin, "hour": Date(timer.time), "expected": float(median(weeks))}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When an hour is worth an alert."""

    expected_min: float = 5.0
    """An hour without departures is absent if so many were expected; below it silence is nothing special."""
    score_min: float = 2.5
    """Any hour is a dip or a spike if it is so many standard deviations away from the expectation (Poisson: √expected)."""


@dataclass(slots=True)
class OpenHour:
    """The hour that waits for its judgement."""

    origin: str = ""
    hour_ms: int = 0
    expected: float = 0.0
    departures: int = 0


class SpikeAndDip(Computation[OpenHour, Thresholds]):
    """In: counts and expectations of ExpectedCounts. Out: an alert for each hour that differs too much."""

    State = OpenHour
    Config = Thresholds

    def process(self, record: Record, state: OpenHour, timers: Timers) -> None:
        """An expectation opens its hour; a count belongs to the open one."""
        hour = int(record.value["hour"])
        if "expected" in record.value:
            state.origin, state.hour_ms = record.key, hour
            state.expected, state.departures = record.value["expected"], 0
            timers.set("judge", hour + HOUR_MS - 1)
        elif hour == state.hour_ms:
            state.departures += record.value["departures"]

    def on_timer(self, timer: Timer, state: OpenHour, timers: Timers) -> Iterator[Document]:
        """Nothing more can come for the open hour."""
        score = (state.departures - state.expected) / sqrt(max(state.expected, 1.0))
        absent = state.departures == 0 and state.expected >= self.config.expected_min
        if absent or abs(score) >= self.config.score_min:
            yield {
                "kind": "dip" if score < 0 else "spike",
                "origin": state.origin,
                "hour": iso(state.hour_ms),
                "expected": state.expected,
                "actual": state.departures,
                "score": round(score, 3),
                "cause": "absent" if absent else "low" if score < 0 else "high",
            }


def hour_of_week(time_ms: int, zone: str) -> int:
    """0 for the hour after Monday's midnight to 167, on that zone's clock."""
    local = datetime.fromtimestamp(time_ms / 1000, _zone(zone))
    return local.weekday() * 24 + local.hour


def iso(time_ms: int) -> str:
    """ISO 8601 in UTC with a Z, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@cache
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError) as e:
        raise ValueError(f"zone: no time zone {name!r} is known; an example is America/New_York") from e
