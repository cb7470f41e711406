"""A job over real processes: a document with its input, and what came out, as a reader sees it."""

import json
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tidemark.deploy.pipelines.departures.data import Feed, departures
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.demo import ALERTS, LATE, NAME, TOPIC, own_document
from tidemark.services.cli.feed import Fed, feed
from tidemark.services.cli.installation import Installation, installation
from tidemark.services.sink.connectors.released import read_released_rows
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import ProcessorStatus, StopProcessor

Pair = tuple[bytes, bytes]
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


async def run_job(
    job: Job,
    data_dir: Path,
    out: Path,
    *,
    seconds: float = 10.0,
    hold: Callable[[Installation, int], Awaitable[None]] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ran:
    """Feed, drain, collect. hold: awaited before each slice with the number of records sent so far. environment: of the processes."""
    for folder in (data_dir, out):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    async with installation(data_dir, {"OUT": str(out.resolve()), **(environment or {})}, job.workers) as installed:
        for topic, count in ((job.topic, len(job.partitions)), *((topic, 1) for topic in job.topics)):
            await installed.log.create_topic(topic, count, {"retention.ms": "-1"})
        await installed.ensure_started(job.name, job.document, job.tasks)
        await installed.until_running(job.name)
        fed = Fed()
        held = None if hold is None else partial(hold, installed)
        await feed(installed.log, job.topic, job.order, len(job.order), seconds, fed, held)
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
