"""The work of the `tidemark departures` commands (departures_commands.py): the year of departures on an installation elsewhere."""

import os
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

from tidemark.deploy.pipelines.departures.data import PARTITIONS, departures
from tidemark.services.cli.demo import DOCUMENT, NAME, TOPIC, DemoFailed, collect, topics_of, write_summary
from tidemark.services.cli.feed import Fed, feed
from tidemark.services.cli.installation import make_topics
from tidemark.services.cli.remote import find, path_of
from tidemark.services.cli.saying import finish
from tidemark.services.local.folders import RUN
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.messages import ProcessorStatus
from tidemark.shared.ports.log import Log, TopicPartition
from tidemark.shared.process.settings import read_settings
from tidemark.shared.process.signing import own_log
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.topics import Topics

_IDLE = ("CREATED", "STOPPED", "FAILED")
_PLACE = "TIDEMARK_PLACE"


@asynccontextmanager
async def _kafka() -> AsyncIterator[tuple[Log, Client]]:
    """The cluster that the environment names. ProcessSettingsError names a missing setting."""
    settings = read_settings({_PLACE: "departures", **os.environ})
    log = own_log(settings)
    try:
        yield log, Client(log, Topics(settings.prefix), SystemClock(), lambda: uuid.uuid4().hex, settings.runtime)
    finally:
        await log.close()


def start(parallelism: Mapping[str, int]) -> None:
    """Make the topics, register the processor, start it."""

    async def topics() -> None:
        async with _kafka() as (log, _):
            await make_topics(log, topics_of(PARTITIONS))

    finish(topics())
    remote = find(RUN)
    known = {p["name"]: p["state"] for p in remote.get("/v1/processors")["processors"]}
    if NAME not in known:
        body = {"name": NAME, "document": DOCUMENT.read_text(encoding="utf-8"), "parallelism": dict(parallelism)}
        remote.send("POST", "/v1/processors", {**body, "start": True})
        sys.stdout.write(f"{NAME}: created and started\n")
    elif known[NAME] in _IDLE:
        remote.send("POST", path_of(NAME, "start"), {"resume": True})
        sys.stdout.write(f"{NAME}: was {known[NAME]}, started\n")
    else:
        sys.stdout.write(f"{NAME}: is {known[NAME]}\n")


def feed_year(seconds: float, until: float) -> None:
    """Send the events of the first part of the year that the topic does not hold yet, in order, as if the whole took so many seconds."""

    async def work() -> None:
        async with _kafka() as (log, _):
            sent, there = await feed_rest(log, seconds, until)
        sys.stdout.write(f"{TOPIC}: {sent} events sent, {there} were there\n")

    finish(work())


async def feed_rest(log: Log, seconds: float, until: float) -> tuple[int, int]:
    """Send the first part of the year, less the events that each partition holds: how many were sent, and how many were there.

    The year has one order, and the topic holds nothing else. So a partition's end offset tells which of its events comes next.
    """
    year = departures()
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    ends = await log.end_offsets(partitions)
    before = dict.fromkeys(range(PARTITIONS), 0)
    rest = []
    for partition, key, value in islice(year.in_order(), round(year.sent * until)):
        before[partition] += 1
        if before[partition] > ends[partitions[partition]]:
            rest.append((partition, key, value))
    if rest:
        await feed(log, TOPIC, rest, len(rest), seconds * len(rest) / year.sent, Fed())
    return len(rest), sum(ends.values())


def drain() -> None:
    """End the input where the topic ends now, close all windows, wait until everything is released."""

    async def work() -> None:
        async with _kafka() as (log, client):
            if (await client.statuses())[NAME].state != "FINISHED":
                ends = await log.end_offsets([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
                until = {f"{TOPIC}-{p.partition}": offset for p, offset in ends.items()}
                find(RUN).send("POST", path_of(NAME, "stop"), {"drain": True, "until": until})
            status = await _finished(client)
        sys.stdout.write(f"{NAME}: {status.state} after {status.commits} commits\n")

    finish(work())


async def _finished(client: Client) -> ProcessorStatus:
    async for status in client.watch(NAME):
        if status.state == "FINISHED":
            return status
        if status.state == "FAILED":
            message = f"{NAME} is FAILED: {status.reason}"
            raise DemoFailed(message)
    message = "the registry ended"
    raise RuntimeError(message)


def collect_year(out: Path) -> None:
    """Write alerts, late flights, the figures and the report beside the counts, as `tidemark demo` leaves them."""

    async def work() -> None:
        async with _kafka() as (log, client):
            status = (await client.statuses())[NAME]
            write_summary(out, await collect(log, out, PARTITIONS, status))

    finish(work())
    from tidemark.deploy.pipelines.departures.report import build  # as in demo.py

    build(out)
    sys.stdout.write((out / "summary.json").read_text())
