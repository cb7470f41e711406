"""The report's figures, as inline SVG: departures against expectation, alerts marked; watermark; late flights.

Colours mean the same in all of them: blue is departures, grey the expectation, red an hour without any departure,
orange too few, green too many.
"""

import io
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import matplotlib as mpl
from matplotlib import dates
from matplotlib import figure as figures

ORIGINS: Final = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}
COLOURS: Final = {"absent": "#c62828", "low": "#ef8a17", "high": "#2e8b57"}
NAMES: Final = {"absent": "absent: none departed", "low": "low", "high": "high"}
_COUNTED: Final = "#1f5fa8"
_EXPECTED: Final = "#8a94a0"
_INK: Final = "#2a2f36"
_HOUR_MS: Final = 3_600_000
_ZONE: Final = ZoneInfo("America/New_York")
_ENDS_OF_TIME: Final = 2**62
"""No date is so far from 1970: a watermark beyond is the one before any record, or behind the last."""
# The library's annotations know nothing of dates on axes; these names are untyped on purpose.
mdates: Final[Any] = dates
Figure: Final[Any] = figures.Figure
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "departures",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b8c0c8",
    "axes.labelcolor": _INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "xtick.color": "#5a636d",
    "ytick.color": "#5a636d",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8ebee",
    "legend.frameon": False,
}

Hour = tuple[str, int]
"""(origin, start of the hour, UTC ms)."""


@dataclass(frozen=True, slots=True)
class Data:
    """The data that the figures show."""

    counts: Mapping[Hour, int]
    expected: Mapping[Hour, float]
    alerts: Sequence[Mapping[str, Any]]
    late: Sequence[Mapping[str, Any]]
    """The documents of the late flights."""
    progress: Sequence[Mapping[str, Any]]
    """Seconds `t`, `watermark_ms` and `max_event_ms` (both may be null), in order."""


def week(data: Data, first: datetime, days: int) -> str:
    """Departures by hour against the expectation, an airport a row, over some days that begin at `first` (New York)."""
    start_ms = int(first.timestamp() * 1000)
    hours = [start_ms + h * _HOUR_MS for h in range(days * 24)]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10.5, 6.6), layout="constrained")
        rows = figure.subplots(3, 1, sharex=True)
        for axes, (origin, name) in zip(rows, ORIGINS.items(), strict=True):
            times = [_local(h) for h in hours]
            actual = [data.counts.get((origin, h), 0) for h in hours]
            axes.bar(times, actual, width=1 / 24, align="edge", color=_COUNTED, alpha=0.85, label="departed")
            expected = [data.expected.get((origin, h), float("nan")) for h in hours]
            axes.step(times, expected, where="post", color=_EXPECTED, linewidth=1.4, label="expected")
            _mark_hours(axes, [a for a in data.alerts if a["origin"] == origin], hours)
            axes.set_title(f"{name} ({origin})")
            axes.set_xlim(times[0], times[-1] + timedelta(hours=1))
            axes.set_ylabel("an hour")
            axes.xaxis.set_major_locator(mdates.DayLocator(tz=_ZONE))
            axes.xaxis.set_major_formatter(mdates.DateFormatter("%a %d %b", tz=_ZONE))
        _legend(figure, rows)
        return _svg(figure)


def year(data: Data) -> str:
    """Departures by day against the expectation, an airport a row; below each its alerts."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10.5, 7.2), layout="constrained")
        rows = figure.subplots(3, 1, sharex=True)
        for axes, (origin, name) in zip(rows, ORIGINS.items(), strict=True):
            days, actual = _by_day(data.counts, origin)
            known, expected = _by_day(data.expected, origin)
            axes.plot(days, actual, color=_COUNTED, linewidth=1.2, label="departed")
            axes.plot(known, expected, color=_EXPECTED, linewidth=1.2, label="expected")
            for i, cause in enumerate(("high", "low", "absent")):
                at = [_when(a) for a in data.alerts if a["origin"] == origin and a["cause"] == cause]
                axes.plot(
                    at,
                    [-18.0 - 22 * i] * len(at),
                    "|",
                    color=COLOURS[cause],
                    markersize=7,
                    markeredgewidth=1.6,
                    label=NAMES[cause],
                )
            axes.set_title(f"{name} ({origin})")
            axes.set_ylim(-80, 400)
            axes.set_yticks([0, 100, 200, 300, 400])
            axes.set_ylabel("a day")
            axes.xaxis.set_major_locator(mdates.MonthLocator(tz=_ZONE))
            axes.xaxis.set_major_formatter(mdates.DateFormatter("%b", tz=_ZONE))
        _legend(figure, rows)
        return _svg(figure)


def watermark(data: Data) -> str | None:
    """Highest event time and watermark while the demo ran, and the distance between them; None without a series."""
    points = [p for p in data.progress if p.get("max_event_ms") and _is_known(p.get("watermark_ms"))]
    if len(points) < 2:  # noqa: PLR2004 - no line has fewer
        return None
    seconds = [p["t"] - data.progress[0]["t"] for p in points]
    # The times of the last events would be the same as the highest ones, but for the delays.
    highest = list(itertools.accumulate((p["max_event_ms"] for p in points), max))
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10.5, 5.2), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
        events = [_local(ms) for ms in highest]
        marks = [_local(p["watermark_ms"]) for p in points]
        above.plot(seconds, events, color=_COUNTED, linewidth=1.5, label="highest event time")
        above.step(seconds, marks, where="post", color=COLOURS["low"], linewidth=1.5, label="watermark")
        above.yaxis.set_major_formatter(mdates.DateFormatter("%d %b", tz=_ZONE))
        above.set_title("Event time against running time")
        above.legend(loc="upper left")
        lag = [(ms - p["watermark_ms"]) / _HOUR_MS for ms, p in zip(highest, points, strict=True)]
        below.step(seconds, lag, where="post", color=_INK, linewidth=1.2)
        below.set_ylim(bottom=0)
        below.set_title("The watermark's distance, hours of event time")
        below.set_xlabel("seconds since the start")
        return _svg(figure)


def late_flights(data: Data) -> str:
    """Late flights: when they should have left, and how long after that they did."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10.5, 3.8), layout="constrained")
        when, how = figure.subplots(1, 2, width_ratios=[3, 1], sharey=True)
        hours: list[float] = []
        for origin, marker in zip(ORIGINS, "os^", strict=True):
            flights = [d for d in data.late if d["origin"] == origin]
            at = [_parse(d["scheduled"]) for d in flights]
            delays = [d["delay_min"] / 60 for d in flights]
            hours += delays
            when.plot(at, delays, marker, markersize=4, alpha=0.7, linestyle="none", label=ORIGINS[origin])
        when.set_xlim(datetime(2013, 1, 1, tzinfo=_ZONE), datetime(2014, 1, 1, tzinfo=_ZONE))
        when.xaxis.set_major_locator(mdates.MonthLocator(tz=_ZONE))
        when.xaxis.set_major_formatter(mdates.DateFormatter("%b", tz=_ZONE))
        when.set_ylabel("hours behind schedule")
        when.set_ylim(0, max([*hours, 6.0]) * 1.08)
        when.legend(loc="upper right", ncols=3)
        how.hist(hours or [0.0], bins=range(25), orientation="horizontal", color=_COUNTED, alpha=0.85)
        how.set_xlabel("late flights")
        return _svg(figure)


# --- helpers ----------------------------------------------------------------------------------------------


def _is_known(watermark_ms: int | None) -> bool:
    """Neither the watermark before any nor the one after the last."""
    return watermark_ms is not None and abs(watermark_ms) < _ENDS_OF_TIME


def _mark_hours(axes: Any, alerts: Iterable[Mapping[str, Any]], hours: Sequence[int]) -> None:
    shown = set(hours)
    for cause, colour in COLOURS.items():
        marked = [a for a in alerts if a["cause"] == cause and round(_when(a).timestamp() * 1000) in shown]
        middles = [_when(a) + timedelta(minutes=30) for a in marked]
        heights = [max(a["actual"], a["expected"]) + 2.5 for a in marked]
        symbol = "^" if cause == "high" else "v"
        axes.plot(middles, heights, symbol, color=colour, markersize=5, linestyle="none", label=NAMES[cause])


def _legend(figure: Any, rows: Sequence[Any]) -> None:
    handles: dict[str, Any] = {}
    for axes in rows:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=len(handles))


def _by_day(values: Mapping[Hour, float], origin: str) -> tuple[list[datetime], list[float]]:
    """Sums of the New York days that have any value."""
    sums: dict[datetime, float] = {}
    for (o, hour), value in values.items():
        if o == origin:
            day = _local(hour).replace(hour=0)
            sums[day] = sums.get(day, 0.0) + value
    days = sorted(sums)
    return days, [sums[d] for d in days]


def _local(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, _ZONE)


def _parse(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).astimezone(_ZONE)


def _when(alert: Mapping[str, Any]) -> datetime:
    return _parse(alert["hour"])


def _svg(figure: Any) -> str:
    """The figure as an element to stand in HTML: no prologue, no metadata, no name of a host."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
