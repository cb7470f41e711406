"""`tidemark demo`: a year of New York departures through every part of the system."""

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from deploy.pipelines.departures.data import PARTITIONS, Feed, departures
from services.cli.collect import committed_records, write_lines
from services.cli.feed import Fed, feed
from services.cli.installation import Installation, installation
from services.cli.view import Seen, View
from services.sink.connectors.released import read_released
from shared.model.ids import ProcessorName
from shared.model.messages import ProcessorStatus, StopProcessor

NAME = ProcessorName("departures")
TOPIC, ALERTS, LATE = "departures", "departures.alerts", "departures.late"
_DOCUMENT = Path(__file__).resolve().parents[2] / "deploy" / "pipelines" / "departures" / "pipeline.yaml"


class DemoFailed(Exception):
    """The processor did not finish: says its state and the reason."""


async def demo(
    out: Path, data_dir: Path, seconds: float, parallelism: Mapping[str, int], partitions: int = PARTITIONS
) -> None:
    """Feed the year over so many seconds, drain, collect the outputs below `out`. Starts from nothing each time."""
    console = Console(stderr=True)
    environment = {"OUT": str(out.resolve())}  # noqa: ASYNC240 - before anything runs beside
    for folder in (out, data_dir):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    year = departures(partitions)
    async with installation(data_dir, environment) as installed:
        log = installed.log
        for topic, count in ((TOPIC, partitions), (ALERTS, 1), (LATE, 1)):
            await log.create_topic(topic, count, {"retention.ms": "-1"})
        await installed.ensure_started(NAME, _DOCUMENT.read_text(), parallelism)
        view = View(installed, NAME, ALERTS, out / "progress.jsonl")
        showing = asyncio.create_task(view.run())
        began = time.monotonic()
        try:
            status = await _feed_and_drain(installed, year, seconds, view.seen)
        finally:
            showing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await showing
        took = time.monotonic() - began
        if status.state != "FINISHED":
            message = f"{NAME} is {status.state}: {status.reason}; logs are in {data_dir / 'logs'}"
            raise DemoFailed(message)
        await _collect(installed, out, year, status, took)
    console.print((out / "summary.json").read_text())
    console.print(f"report: {out / 'report.html'}")


async def _feed_and_drain(installed: Installation, year: Feed, seconds: float, seen: Seen) -> ProcessorStatus:
    """Send everything, then end the input at what the broker acknowledged last."""
    fed: Fed = seen.fed
    await feed(installed.log, TOPIC, year.in_order(), year.sent, seconds, fed)
    until = {f"{TOPIC}-{partition}": offset for partition, offset in fed.acked.items()}
    await installed.client.request(StopProcessor(installed.client.unique(), NAME, drain=True, until=until))
    return await installed.until_ended(NAME)


async def _collect(installed: Installation, out: Path, year: Feed, status: ProcessorStatus, took: float) -> None:
    alerts = await write_lines(installed.log, ALERTS, out / "alerts.jsonl")
    late = await write_lines(installed.log, LATE, out / "late.jsonl")
    counts = read_released(str(out / "counts"))
    counted = sum(counts.column("departures").to_pylist())
    sent = 0
    repeats = 0
    seen: set[tuple[int, str]] = set()
    async for record in committed_records(installed.log, TOPIC):
        sent += 1
        key = (record.partition, json.loads(record.value or b"{}")["id"])
        repeats += key in seen
        seen.add(key)
    summary = {
        "sent": sent,
        "counted": counted,
        "late": late,
        "duplicates": repeats,
        "alerts": alerts,
        "epochs": status.commits,
        "events_per_s": round(sent / took),
        "seconds": round(took, 1),
        "partitions": len(year.partitions),
        "generations": status.generation,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
