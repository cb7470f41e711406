"""The demo's report and the demo's checker, on a folder as the demo leaves it."""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.oracle import check_demo
from tests.oracle import departures as oracle
from tidemark.deploy.pipelines.departures import report
from tidemark.deploy.pipelines.departures.data import PARTITIONS, Gap

DAYS = 45
"""Enough to learn what is usual, and the blizzard; the year is checked in `golden` and by the demo itself."""


def leave(folder: Path, without: tuple[Gap, ...] = ()) -> Path:
    """A folder as the demo leaves it, by the oracle; less its report, of which each takes seconds."""
    feed, settled = check_demo.feed_of(PARTITIONS, without, DAYS), check_demo.settled_feed(PARTITIONS, without, DAYS)
    alerts = oracle.alerts(settled.counts)
    folder.mkdir(parents=True, exist_ok=True)
    rows = sorted(settled.counts.items(), key=lambda c: c[0][1])
    for part in (rows[:1000], rows[1000:]):
        table = pa.table({
            "origin": [o for (o, _), _ in part],
            "hour": pa.array([h for (_, h), _ in part], pa.timestamp("ms", "UTC")),
            "departures": pa.array([n for _, n in part], pa.int32()),
        })  # fmt: skip
        write_deltalake(folder / "counts", table, mode="append")
    letters = [
        {
            "doc": json.loads(feed.partitions[f.partition][f.position][1]),
            "errInfo": {"reason": "Input document arrived late."},
            "missedWindowStartTimes": [{"$date": oracle.iso(f.window_end_ms - oracle.HOUR_MS)}],
        }
        for f in settled.late
    ]
    marks = [1_357_000_000_000 + i * 10**9 for i in range(6)]
    progress = [
        {"t": 5.0 + i, "max_event_ms": m if i else 0, "watermark_ms": -(2**63) if i < 2 else m - 18_000_000}
        for i, m in enumerate(marks)
    ]
    summary = {
        "sent": settled.sent,
        "counted": settled.counted,
        "late": len(letters),
        "duplicates": settled.duplicates,
        "alerts": len(alerts),
        "epochs": 31,
        "events/s": 12345.6,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    for name, lines in (("alerts", alerts), ("late", letters), ("progress", progress)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = leave(tmp_path_factory.mktemp("demo") / "out")
    report.build(folder)
    return folder


def test_a_right_demo_passes_every_check(demo: Path) -> None:
    """What the oracle itself left is found right, report included."""
    found = check_demo.check_all(demo, days=DAYS)
    assert len(found) == len(check_demo.CHECKS)
    assert check_demo.main([str(demo), str(DAYS)]) == 0


def change_lines(name: str, change: Callable[[list[Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / name
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        change(lines)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return apply


def change_json(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return apply


def change_count(folder: Path) -> None:
    table = DeltaTable(folder / "counts").to_pyarrow_table()
    counts = table.column("departures").to_pylist()
    counts[100] += 1
    changed = table.set_column(2, "departures", pa.array(counts, pa.int32()))
    shutil.rmtree(folder / "counts")
    write_deltalake(folder / "counts", changed)


def repeat_file(folder: Path) -> None:
    """For who reads the folder's files."""
    path = min((folder / "counts").glob("*.parquet"))
    shutil.copy(path, path.with_name("again.parquet"))


def load_from_outside(folder: Path) -> None:
    path = folder / "report.html"
    path.write_text(path.read_text().replace("</main>", '<img src="//example.org/x.png"></main>'))


WRONGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a count": (change_count, "counts: at"),
    "a file": (lambda f: min((f / "counts").glob("*.parquet")).write_bytes(b"PAR1"), "counts: "),
    "a file twice": (repeat_file, "the folder's files"),
    "a late flight lost": (change_lines("late.jsonl", lambda x: x.pop()), "counts: at"),
    "a late flight twice": (change_lines("late.jsonl", lambda x: x.append(x[0])), "≠|twice"),
    "a late flight's reason": (change_lines("late.jsonl", lambda x: x[0]["errInfo"].update(reason="")), "reason"),
    "an alert lost": (change_lines("alerts.jsonl", lambda x: x.pop(0)), "alerts"),
    "an alert twice": (change_lines("alerts.jsonl", lambda x: x.append(x[0])), "alerts"),
    "an alert's score": (change_lines("alerts.jsonl", lambda x: x[0].update(score=0)), "alerts: at"),
    "the summary": (change_json("summary.json", lambda s: s.update(duplicates=1)), "summary"),
    "the report": (load_from_outside, "refers to"),
    "a part": (lambda f: (f / "late.jsonl").unlink(), "is not there"),
}


@pytest.mark.parametrize("name", WRONGS)
def test_a_wrong_demo_is_found_out(name: str, demo: Path, tmp_path: Path) -> None:
    """Each kind of damage makes the check fail with a message that names it."""
    damage, says = WRONGS[name]
    folder = tmp_path / "out"
    shutil.copytree(demo, folder)
    damage(folder)
    with pytest.raises(check_demo.Wrong, match=says):
        check_demo.check_all(folder, days=DAYS)


def test_held_back_and_control_runs_are_compared(demo: Path, tmp_path: Path) -> None:
    """The same alerts in another order are the same; a control run has a dip for each hour that was emptied."""
    other = tmp_path / "held"
    shutil.copytree(demo, other)
    change_lines("alerts.jsonl", lambda x: x.reverse())(other)
    assert "alerts in both" in check_demo.check_same_alerts(demo, other)
    gap = Gap("JFK", datetime(2013, 2, 5, 12, tzinfo=UTC), datetime(2013, 2, 5, 15, tzinfo=UTC))
    control = leave(tmp_path / "control", (gap,))
    shutil.copy(demo / "report.html", control)
    assert check_demo.check_control(control, gap, DAYS).startswith("3 hours")
    with pytest.raises(check_demo.Wrong, match="differ"):
        check_demo.check_same_alerts(demo, control)


def test_the_report_has_its_figures_and_nothing_from_outside(demo: Path) -> None:
    """Five figures inline, no address of any host, and the summary's numbers."""
    html = (demo / "report.html").read_text()
    assert html.count("<svg") == 5
    assert "http" not in html
    assert "12,346" in html
    assert len(html) < 3_000_000


def test_a_run_without_a_progress_series_still_has_a_report(demo: Path, tmp_path: Path) -> None:
    """The figure of the watermark is left out with a sentence that says why."""
    folder = tmp_path / "out"
    shutil.copytree(demo, folder)
    (folder / "progress.jsonl").unlink()
    html = report.build(folder).read_text()
    assert "No progress was recorded" in html
    assert html.count("<svg") == 4
