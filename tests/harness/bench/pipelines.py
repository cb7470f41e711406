"""The shipped examples with more data, through a real installation: events a second, and every result checked."""

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tests.harness.bench.watching import Meter
from tests.harness.examples import FOLDER
from tests.oracle.examples import CHECKS
from tidemark.deploy.pipelines.counts import data as counts
from tidemark.deploy.pipelines.departures.data import departures
from tidemark.deploy.pipelines.sessions import data as sessions
from tidemark.deploy.pipelines.validation import data as validation
from tidemark.deploy.pipelines.weather import data as weather
from tidemark.deploy.pipelines.weblog import data as weblog
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.demo import own_document
from tidemark.services.cli.feed import Fed, feed
from tidemark.services.cli.installation import Installation
from tidemark.services.sink.connectors.released import read_released, read_released_rows
from tidemark.shared.model.ids import ProcessorName

TOPIC: Final = "departures"
_LATE: Final = "departures.late"


def _flights(folder: Path, share: float) -> None:
    """The year's flights, or of its first days, by partition."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, records in enumerate(departures(days=max(2, round(365 * share))).partitions):
        (folder / f"departures-{number}.jsonl").write_bytes(b"".join(value + b"\n" for _, value in records))


@dataclass(frozen=True)
class Pipeline:
    """An example; `write(folder, share)` writes so much of its data, 1 for all that the bench takes."""

    name: str
    write: Callable[[Path, float], object]
    outputs: tuple[str, ...]
    letters: str


PIPELINES: Final = (
    Pipeline("departures", _flights, ("counts",), ""),
    Pipeline("weather", lambda f, share: weather.write(f, max(2, round(365 * share))), ("delays",), "late"),
    Pipeline("sessions", lambda f, share: sessions.write(f, round(900 * share)), ("lengths",), "late"),
    Pipeline("counts", lambda f, share: counts.write(f, round(400_000 * share)), ("users", "all"), "late"),
    Pipeline("validation", lambda f, share: validation.write(f, round(200_000 * share)), ("means",), "letters"),
    Pipeline("weblog", lambda f, share: weblog.write(f, round(100_000 * share)), ("traffic",), "letters"),
)  # fmt: skip


@dataclass
class Carried:
    """What was found."""

    name: str
    events: int
    seconds: float
    """From the start of the sources until the last result is released."""
    events_per_s: float
    rows: int
    letters: int
    commits: int
    cpu_s: dict[str, float] = field(default_factory=dict)


async def carried(installed: Installation, pipeline: Pipeline, folder: Path, share: float) -> Carried:
    """Run one over its data; AssertionError if a result is wrong."""
    data, out = folder / "in" / pipeline.name, folder / "out" / pipeline.name
    pipeline.write(data, share)
    events = sum(path.read_bytes().count(b"\n") for path in data.iterdir())
    text = own_document(FOLDER / pipeline.name / "pipeline.yaml")
    text = text.replace("${DATA}", str(data)).replace("${OUT}", str(out))
    if pipeline.name == TOPIC:
        await _fed(installed, data)
        text = text.replace("topic: departures\n", "topic: departures\n      until: latest\n", 1)
    name = ProcessorName(f"{pipeline.name}-{uuid.uuid4().hex[:6]}")
    async with AsyncExitStack() as stack:
        meter = await stack.enter_async_context(Meter(installed.cluster.pids()))
        await installed.ensure_started(name, text, {})
        await installed.until_running(name)
        began = time.monotonic()
        status = await installed.until_ended(name)
        seconds = time.monotonic() - began
    assert status.state == "FINISHED", f"{name} is {status.state}: {status.reason}"
    rows, letters = await _results(installed, pipeline, out)
    CHECKS[pipeline.name](data, rows, letters)
    rate = round(events / seconds)
    return Carried(
        pipeline.name, events, round(seconds, 2), rate, len(rows), len(letters), status.commits, meter.usage.cpu_s
    )


async def _fed(installed: Installation, data: Path) -> None:
    """The flights in their topic, all before the start."""
    parts = [path.read_bytes().splitlines() for path in sorted(data.iterdir())]
    for topic, count in ((TOPIC, len(parts)), ("departures.alerts", 1), (_LATE, 1)):
        await installed.log.create_topic(topic, count, {"retention.ms": "-1"})
    records = [(number, b"", value) for number, part in enumerate(parts) for value in part]
    await feed(installed.log, TOPIC, records, len(records), 0.0, Fed())


async def _results(
    installed: Installation, pipeline: Pipeline, out: Path
) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    if pipeline.name == TOPIC:
        table = read_released(str(out / "counts")).to_pylist()
        shown = [
            {n: {"$date": v.isoformat()} if isinstance(v, datetime) else v for n, v in row.items()} for row in table
        ]
        return shown, [json.loads(record.value or b"{}") async for record in committed_records(installed.log, _LATE)]
    rows = [row for output in pipeline.outputs for row in read_released_rows(str(out / output))]
    return rows, read_released_rows(str(out / pipeline.letters))


def table(found: Sequence[Carried]) -> str:
    """The figures for people."""
    lines = [f"{'pipeline':<12} {'events':>8} {'events/s':>9} {'s':>6} {'rows':>7} {'letters':>7} commits  CPU seconds"]
    for f in found:
        cpu = ", ".join(f"{place} {s:g}" for place, s in sorted(f.cpu_s.items(), key=lambda item: -item[1]) if s >= 0.1)
        lines.append(
            f"{f.name:<12} {f.events:>8,} {f.events_per_s:>9,.0f} {f.seconds:>6.1f} {f.rows:>7,} {f.letters:>7,} {f.commits:>7}  {cpu}"
        )
    return "\n".join(lines)
