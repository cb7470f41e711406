"""Jobs for runs with faults: a document with its input, run over real processes, and what came out, as a reader sees it."""

import asyncio
import contextlib
import json
import random
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

from tidemark.deploy.pipelines.departures.data import Feed, departures
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.demo import ALERTS, LATE, NAME, TOPIC, own_document
from tidemark.services.cli.feed import Fed, feed
from tidemark.services.cli.installation import Installation, installation
from tidemark.services.sink.connectors.released import read_released_rows
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import ProcessorStatus, StopProcessor

Pair = tuple[bytes, bytes]
_METERS = Path(__file__).with_name("meters.yaml")
SPREAD = {"source": 2, "operator": 2, "sink": 2}


@dataclass(frozen=True)
class Job:
    """What to run on what."""

    name: ProcessorName
    document: str
    topic: str
    partitions: Sequence[Sequence[Pair]]
    """Keys and values of each partition of the topic, in order."""
    order: Sequence[tuple[int, bytes, bytes]]
    """The same as (partition, key, value), in the order of sending."""
    topics: Sequence[str]
    """Outputs, one partition each."""
    folder: str
    """Output files, below the folder `OUT`."""
    workers: Mapping[str, int]
    """Processes of each service."""
    tasks: Mapping[str, int] = field(default_factory=lambda: SPREAD)


@dataclass(frozen=True)
class Contents:
    """What a job put out: values of each topic and rows of the files, sorted, for order is not a promise between tasks."""

    topics: Mapping[str, list[bytes]]
    rows: list[str]


@dataclass(frozen=True)
class Ran:
    """A run that has finished."""

    status: ProcessorStatus
    contents: Contents


def departures_job(days: int, workers: int = 1, tasks: Mapping[str, int] = SPREAD) -> Job:
    """The demo's pipeline over the first days of the year; `workers` processes of each service but Spark's."""
    year: Feed = departures(days=days)
    each = {"coordinator": 1, "source": workers, "operator": workers, "spark": 1, "sink": workers}
    return Job(
        NAME, own_document(), TOPIC, year.partitions, list(year.in_order()), (ALERTS, LATE), "counts", each, tasks
    )


def meters_job(records: int, seed: int, workers: int = 1) -> Job:
    """Readings of two hundred meters over some hours: out of order, some late, some repeated; each key has state and a timer."""
    chance = random.Random(seed)
    order: list[tuple[int, bytes, bytes]] = []
    for number in range(records):
        meter = f"m{chance.randrange(200):03d}"
        delay_ms = chance.choices((chance.randrange(50_000), 400_000), (995, 5))[0]
        at_ms = max(0, 1_000 * number - delay_ms)
        reading = {"id": number, "meter": meter, "at": at_ms, "wh": chance.randrange(1_000)}
        row = crc32(meter.encode()) % 3, meter.encode(), json.dumps(reading).encode()
        order += [row] * (2 if chance.random() < 0.01 else 1)
    partitions: list[list[Pair]] = [[], [], []]
    for partition, key, value in order:
        partitions[partition].append((key, value))
    each = {"coordinator": 1, "source": workers, "operator": workers, "sink": workers}
    name = ProcessorName("meters")
    topics = ("meters.usage", "meters.late")
    return Job(name, _METERS.read_text(), "meters", partitions, order, topics, "quiet", each)


Beside = Callable[[Installation], Awaitable[None]]
Hold = Callable[[int], Awaitable[None]]


async def run_job(
    job: Job,
    data_dir: Path,
    out: Path,
    *,
    seconds: float = 10.0,
    environment: Mapping[str, str] | None = None,
    workers: Mapping[str, int] | None = None,
    beside: Beside | None = None,
    hold: Hold | None = None,
) -> Ran:
    """Feed, drain, collect. `beside` runs beside the feed and ends before the drain; `hold` is awaited by the feed (`feed`)."""
    for folder in (data_dir, out):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    # So few that most meters lie in RocksDB while they are quiet.
    few = json.dumps({"keys_in_memory": 40})
    surroundings = {"OUT": str(out.resolve()), "TIDEMARK_RUNTIME": few, **(environment or {})}
    exactly = {
        **dict.fromkeys(("coordinator", "source", "operator", "spark", "sink"), 0),
        **job.workers,
        **(workers or {}),
    }
    async with installation(data_dir, surroundings, exactly) as installed:
        for topic, count in ((job.topic, len(job.partitions)), *((topic, 1) for topic in job.topics)):
            await installed.log.create_topic(topic, count, {"retention.ms": "-1"})
        await installed.ensure_started(job.name, job.document, job.tasks)
        await installed.until_running(job.name)
        fed = Fed()
        feeding = asyncio.create_task(feed(installed.log, job.topic, job.order, len(job.order), seconds, fed, hold))
        try:
            if beside is not None:
                await beside(installed)
            await feeding
        finally:
            feeding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feeding
        until = {f"{job.topic}-{partition}": offset for partition, offset in fed.acked.items()}
        await installed.client.request(StopProcessor(installed.client.unique(), job.name, drain=True, until=until))
        status = await installed.until_ended(job.name)
        assert status.state == "FINISHED", f"{job.name} is {status.state}: {status.reason}; logs in {data_dir / 'logs'}"
        return Ran(status, await contents_of(job, installed, out))


async def contents_of(job: Job, installed: Installation, out: Path) -> Contents:
    """Topics read committed, files by their manifests."""
    topics = {
        topic: sorted([record.value or b"" async for record in committed_records(installed.log, topic)])
        for topic in job.topics
    }
    rows = sorted(json.dumps(row, sort_keys=True, default=str) for row in read_released_rows(str(out / job.folder)))
    return Contents(topics, rows)


def same(expected: Contents, found: Contents) -> None:
    """AssertionError names the first difference, and how many there are."""
    for topic, values in expected.topics.items():
        _same(topic, _timeless(values), _timeless(found.topics[topic]))
    _same("files", expected.rows, found.rows)


def _timeless(values: Sequence[bytes]) -> list[str]:
    """Without the time at which the broker took the source's record: that is another one in each run."""
    documents = [json.loads(value) for value in values]
    for document in documents:
        document.pop("dlqTime", None)
    return sorted(json.dumps(document, sort_keys=True) for document in documents)


def _same(what: str, expected: Sequence[str], found: Sequence[str]) -> None:
    if list(expected) == list(found):
        return
    missing, extra = list(expected), []
    for item in found:
        if item in missing:
            missing.remove(item)
        else:
            extra.append(item)
    message = f"{what}: {len(expected)} expected, {len(found)} found; missing {len(missing)}: {missing[:2]}, besides {extra[:2]}"
    raise AssertionError(message)
