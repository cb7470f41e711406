"""The demo's report: one HTML file from what the demo left in its folder, to be opened anywhere, without a network.

    python -m tidemark.deploy.pipelines.departures.report out/demo

Reads `summary.json`, `counts/` (a Delta table), `alerts.jsonl`, `late.jsonl` and, if it is there,
`progress.jsonl`: one line now and then while the demo ran, `{t, watermark_ms, max_event_ms}`, seconds and milliseconds.
The expectation is not an output of the pipeline; it is computed again from the counts by the pipeline's own computation.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
from deltalake import DeltaTable

from tidemark.deploy.pipelines.departures import plots
from tidemark.deploy.pipelines.departures.zeitgeist import HOUR_MS, ExpectedCounts
from tidemark.shared.computation import Date
from tidemark.shared.computation.harness import Harness

PROGRESS: Final = "progress.jsonl"
REPORT: Final = "report.html"
ALERTS_SHOWN: Final = 15

_ZONE: Final = ZoneInfo("America/New_York")
_PAGE: Final = Template((Path(__file__).parent / "report.html").read_text(encoding="utf-8"))


def build(folder: Path) -> Path:
    """Write `report.html` into the demo's folder; its path. OSError or KeyError if the folder lacks a part."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    data = read(folder)
    page = _PAGE.substitute(
        tiles=_tiles(summary),
        blizzard=plots.week(data, datetime(2013, 2, 5, tzinfo=_ZONE), 7),
        thanksgiving=plots.week(data, datetime(2013, 11, 26, tzinfo=_ZONE), 7),
        year=plots.year(data),
        watermark=plots.watermark(data) or "<p>No progress was recorded in this run.</p>",
        late=plots.late_flights(data),
        late_count=f"{len(data.late):,}",
        alerts=_table(data.alerts),
        alerts_count=f"{len(data.alerts):,}",
    )
    path = folder / REPORT
    path.write_text(page, encoding="utf-8")
    return path


def read(folder: Path) -> plots.Data:
    """The data that the figures show, read from the folder."""
    counts = _counts(folder / "counts")
    progress = folder / PROGRESS
    return plots.Data(
        counts,
        expectations(counts),
        _lines(folder / "alerts.jsonl"),
        [letter["doc"] for letter in _lines(folder / "late.jsonl")],
        _lines(progress) if progress.exists() else [],
    )


def expectations(counts: Mapping[plots.Hour, int]) -> dict[plots.Hour, float]:
    """The expectation that ExpectedCounts gives for each hour, given these counts."""
    model = Harness(ExpectedCounts, key="origin")
    model.record_all(
        ({"origin": origin, "hour": Date(hour), "departures": n}, hour + HOUR_MS - 1)
        for (origin, hour), n in sorted(counts.items(), key=lambda c: (c[0][1], c[0][0]))
    )
    model.end()
    return {(d["origin"], int(d["hour"])): d["expected"] for d in model.documents if "expected" in d}


def _counts(folder: Path) -> dict[plots.Hour, int]:
    table = DeltaTable(folder).to_pyarrow_table()
    hours = table.column("hour").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_pylist()
    keys = zip(table.column("origin").to_pylist(), hours, strict=True)
    return dict(zip(keys, table.column("departures").to_pylist(), strict=True))


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def _tiles(summary: Mapping[str, Any]) -> str:
    """The summary's figures, each with its name; texts and lists stay in the file."""
    tiles = []
    for name, value in summary.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            text = f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:,.2f}"  # noqa: PLR2004
            tiles.append(f'<div class="tile"><b>{text}</b><span>{escape(name.replace("_", " "))}</span></div>')
    return "\n".join(tiles)


def _table(alerts: Sequence[Mapping[str, Any]]) -> str:
    """The alerts that differ most, as rows."""
    rows = []
    for a in sorted(alerts, key=lambda a: (-abs(a["score"]), a["hour"], a["origin"]))[:ALERTS_SHOWN]:
        local = datetime.fromisoformat(a["hour"]).astimezone(_ZONE).strftime("%a %d %b, %H:%M")
        cells = (
            plots.ORIGINS.get(a["origin"], a["origin"]),
            local,
            f"{a['expected']:g}",
            a["actual"],
            f"{a['score']:+.1f}",
        )
        text = "".join(f"<td>{escape(str(c))}</td>" for c in cells)
        cause = f'<td><i style="background:{plots.COLOURS[a["cause"]]}"></i>{escape(a["cause"])}</td>'
        rows.append(f"<tr>{text}{cause}</tr>")
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> int:
    """Build the report of a folder and say where it is."""
    sys.stdout.write(f"{build(Path(arguments[0] if arguments else 'out/demo'))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
