"""`tidemark demo`: a year of New York departures through every part of the system."""

import asyncio
import contextlib
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tidemark.deploy.pipelines.departures.data import Feed, departures
from tidemark.services.audit.reading import committed_records, write_lines
from tidemark.services.cli.feed import Fed, feed
from tidemark.services.cli.installation import Installation, installation, make_topics
from tidemark.services.cli.tasks import check_tasks
from tidemark.services.cli.view import ProcessorView, SeenReports
from tidemark.services.local.broker_settings import FREE_PORT
from tidemark.services.local.folders import BROKER_VARIABLE, DEMO
from tidemark.services.sink.connectors.released import read_released
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import ProcessorStatus, StopProcessor
from tidemark.shared.planning import plan_processor
from tidemark.shared.ports.log import Log
from tidemark.shared.process.settings import read_runtime

SAMPLE_S = 1.0
"""How often a measurement looks."""


def resident_bytes(pids: Sequence[int]) -> int:
    """PSS of these processes and all below them; of a process that has just ended, nothing."""
    found: dict[int, int] = {}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                found[each.pid] = _pss(each)
        except psutil.NoSuchProcess:
            continue
    return sum(found.values())


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


@dataclass(slots=True)
class PeakMemory:
    """The highest sum seen, sampled once a second: a peak between two samples may be missed."""

    pid: int
    """The root of the tree."""
    bytes: int = 0
    samples: int = 0

    async def watch(self) -> None:
        """Sample until cancelled; off the loop, for the kernel takes some milliseconds for each process."""
        while True:
            self.bytes = max(self.bytes, await asyncio.to_thread(resident_bytes, [self.pid]))
            self.samples += 1
            await asyncio.sleep(SAMPLE_S)


NAME = ProcessorName("departures")
TOPIC, ALERTS, LATE = "departures", "departures.alerts", "departures.late"
DOCUMENT = Path(__file__).resolve().parents[2] / "deploy" / "pipelines" / "departures" / "pipeline.yaml"


_MARK = ".tidemark-demo"
"""Marks a folder that a demo made: its content may be deleted."""
_RESULTS = frozenset(
    ("summary.json", "counts", "alerts.jsonl", "late.jsonl", "progress.jsonl", "report.html", "_manifest.json")
)


class DemoFailed(Exception):
    """The processor did not finish: says its state and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The settings of one run over the departures."""

    out: Path
    """Where the results go; emptied first."""
    data_dir: Path
    """Broker, state and logs; emptied first."""
    port: int = FREE_PORT
    """The broker's, on loopback."""
    seconds: float = 25.0
    """How long the feed takes."""
    parallelism: Mapping[str, int] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
    """Processes of services that are to have more than one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to every process'."""
    beside: Callable[[Installation, SeenReports], Awaitable[None]] | None = None
    """Runs beside the feed, and ends before the drain: faults, for tests."""
    hold: Callable[[int], Awaitable[None]] | None = None
    """Awaited by the feed, with the number of events sent so far."""


def _check_ours(folder: Path, ours: Collection[str] | None) -> None:
    """DemoFailed if the folder holds files of others. `ours`: names that a demo writes; None: all names."""
    found = [path.name for path in folder.iterdir()] if folder.exists() else []
    others = [] if ours is None or _MARK in found else sorted(set(found) - set(ours))
    if others:
        raise DemoFailed(f"{folder} holds {others[0]}, which no demo wrote; name another folder, or empty this one")


def _empty(folder: Path) -> None:
    """Make the folder empty, with the mark."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / _MARK).touch()


def _prepare(settings: DemoSettings) -> None:
    """Empty both folders, or leave all as it is where something cannot be: DemoFailed, InvalidDocument, NotADirectoryError."""
    check_tasks(plan_processor(parse(own_document()), engine=read_runtime(os.environ).engine), settings.parallelism)
    _check_ours(settings.out, _RESULTS)
    # A run's folder has the same entries: by its mark a demo's is told from it.
    _check_ours(settings.data_dir, None if settings.data_dir.resolve() == DEMO.resolve() else frozenset({"logs"}))
    _empty(settings.out)
    _empty(settings.data_dir)


async def demo(settings: DemoSettings, year: Feed | None = None) -> ProcessorStatus:
    """Feed the year, drain, collect the outputs. DemoFailed if the processor does not finish."""
    _prepare(settings)
    year = year or departures()
    environment = {"OUT": str(settings.out.resolve()), **settings.environment}
    memory = PeakMemory(os.getpid())
    async with (
        alongside(memory.watch()),
        installation(settings.data_dir, environment, settings.workers, settings.port) as installed,
    ):
        await make_topics(installed.log, topics_of(len(year.partitions)))
        await installed.ensure_started(NAME, own_document(), settings.parallelism)
        view = ProcessorView(installed, NAME, ALERTS, settings.out / "progress.jsonl")
        async with alongside(view.run()):
            await installed.until_running(NAME)
            began = time.monotonic()
            status = await _feed_and_drain(installed, year, settings, view.seen)
        took = time.monotonic() - began
        if status.state != "FINISHED":
            message = f"{NAME} is {status.state}: {status.reason}; logs are in {settings.data_dir / 'logs'}"
            raise DemoFailed(message)
        summary = await collect(installed.log, settings.out, len(year.partitions), status, took)
        write_summary(settings.out, {**summary, "peak_memory_bytes": memory.bytes})
    from tidemark.deploy.pipelines.departures.report import (
        build,  # plots take a while to load: no other command waits for them
    )

    await asyncio.to_thread(build, settings.out)
    return status


def own_document(file: Path = DOCUMENT) -> str:
    """The document with the broker that the demo starts: `KAFKA` of this environment does not count."""
    return file.read_text(encoding="utf-8").replace("${KAFKA}", f"${{{BROKER_VARIABLE}}}")


def topics_of(partitions: int) -> dict[str, int]:
    """The topics that the document reads and writes, with their partitions. partitions: of the departures."""
    return {TOPIC: partitions, ALERTS: 1, LATE: 1}


@asynccontextmanager
async def alongside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs the work until the block ends. An error of the work is raised at the end."""
    running = asyncio.create_task(work)
    try:
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def _feed_and_drain(
    installed: Installation, year: Feed, settings: DemoSettings, seen: SeenReports
) -> ProcessorStatus:
    """Send everything, then end the input at the last offsets that the broker acknowledged."""
    fed: Fed = seen.fed
    feeding = feed(installed.log, TOPIC, year.in_order(), year.sent, settings.seconds, fed, settings.hold)
    if settings.beside is None:
        await feeding
    else:
        await asyncio.gather(feeding, settings.beside(installed, seen))
    until = {f"{TOPIC}-{partition}": offset for partition, offset in fed.acked.items()}
    await installed.client.request(StopProcessor(installed.client.unique(), NAME, drain=True, until=until))
    return await installed.until_ended(NAME)


async def collect(
    log: Log, out: Path, partitions: int, status: ProcessorStatus, seconds: float | None = None
) -> dict[str, Any]:
    """Write the output topics beside the files, as readers of committed records see them; the figures of the run.

    seconds: how long it took; None: from the first record of the source topic to the last.
    """
    alerts = await write_lines(log, ALERTS, out / "alerts.jsonl")
    late = await write_lines(log, LATE, out / "late.jsonl")
    counts = read_released(str(out / "counts"))
    counted = sum(counts.column("departures").to_pylist())
    repeats = 0
    seen: set[tuple[int, str]] = set()
    times_ms: list[int] = []
    async for record in committed_records(log, TOPIC):
        times_ms.append(record.timestamp_ms)
        key = (record.partition, json.loads(record.value or b"{}")["id"])
        repeats += key in seen
        seen.add(key)
    sent = len(times_ms)
    took = seconds if seconds is not None else max(1, max(times_ms) - min(times_ms)) / 1000
    return {
        "sent": sent,
        "counted": counted,
        "late": late,
        "duplicates": repeats,
        "alerts": alerts,
        "epochs": status.commits,
        "events/s": round(sent / took),
        "seconds": round(took, 1),
        "partitions": partitions,
        "generations": status.generation,
    }


def write_summary(out: Path, summary: Mapping[str, object]) -> None:
    """The figures beside the results."""
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
