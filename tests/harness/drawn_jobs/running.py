"""Drawn jobs on an installation of real processes."""

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Final

import aiokafka

from tests.harness.drawn_jobs.comparing import compared
from tests.harness.drawn_jobs.drawing import drawn
from tests.harness.drawn_jobs.job import FORMS, SENSORS, Job, Places, say
from tests.harness.drawn_jobs.judged import judged
from tests.harness.drawn_jobs.servers import Breaking, Told, Weather
from tests.harness.drawn_jobs.timed import Timed
from tests.harness.mongodb.servers import mongodb
from tests.harness.postgres import postgres
from tests.harness.registry import Registry
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.adapters.mongodb import client_at
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import (
    CreateProcessor,
    DropProcessor,
    ModifyProcessor,
    StartProcessor,
    StopProcessor,
)
from tidemark.shared.runtime.client import RequestRefused

WORKERS: Final = {"coordinator": 1, "source": 1, "operator": 1, "sink": 1, "spark": 1, "control": 1}
_SCALING: Final = {"scale_after_ms": 2_000, "scale_up_ms": 500, "scale_down_ms": 1_000, "scale_lag_ms": 100}
SETTINGS: Final = {"TIDEMARK_EXTRA": json.dumps(_SCALING)}
_FAULTS: Final = {"told": 0.03, "registry": 0.3, "mongodb": 0.5}
"""Of a hundred requests so many fail; a way to MongoDB breaks so often in a second."""
_OF_REGISTRIES: Final = ("500", "429", "503", "half", "closed", "page", "missing")
_TOPICS: Final = ("topic", "packed", "registered")
"""Origins of records that are sent to a topic alone."""
_PIECES: Final = 20
"""Of records that come bit by bit; files behind them have later names."""
_REQUEST: Final = 2_000_000
"""Bytes that a producer may send at once."""


async def run(there: Installation, folder: Path, job: Job) -> list[str]:
    """What differs; nothing where all is as it must be."""
    await begin(there, job, disturbed=True)
    return await finish(there, folder, job)


async def begin(there: Installation, job: Job, *, disturbed: bool, running: Callable[[], object] | None = None) -> None:
    """The job runs, and has the records in front of its middle. disturbed: while things happen. running: called before they are sent."""
    name = ProcessorName(job.name)
    topics = {f"{name}-in": job.partitions, f"{name}-others": 1, f"{name}-out": job.outputs, f"{name}-dlq": 1}
    for topic, partitions in topics.items():
        await there.log.create_topic(topic, partitions, {"retention.ms": "-1"})
    job.prepare()
    first, second = job.halves()
    if job.origin in ("files", "history"):
        job.put(0, first)
    if job.origin == "files":
        job.put(1, second)
    if job.origin == "changes":
        await asyncio.to_thread(job.insert, first)
    async with _producer(there, job) as out:
        if job.early and job.origin == "history":
            await _sent(out, f"{name}-in", job.sent(second), job.partition_of)
        if disturbed:
            await there.ensure_started(name, json.dumps(job.document()), job.parallelism)
        else:  # by requests that each version knows: it may be an older one
            made = CreateProcessor(there.client.unique(), name, json.dumps(job.document()), dict(job.parallelism))
            await there.client.request(made)
            await there.client.request(StartProcessor(there.client.unique(), name))
        if running is not None:
            await _until(there, name, "RUNNING", "FAILED", "FINISHED")
            await asyncio.to_thread(running)
        await _sent(out, f"{name}-others", [json.dumps(each).encode() for each in job.others], _first)
        await asyncio.gather(_come(out, job, first), *([_disturbed(there, job)] if disturbed else []))


async def finish(there: Installation, folder: Path, job: Job) -> list[str]:
    """The other records come, and the job drains: what differs."""
    name, second = ProcessorName(job.name), job.halves()[1]
    if job.origin in _TOPICS or (job.origin == "history" and not job.early):
        async with _producer(there, job) as out:
            await _sent(out, f"{name}-in", job.sent(second), job.partition_of)
    if job.origin == "growing":
        job.put(_PIECES, second)
    if job.origin == "changes":
        await asyncio.to_thread(job.insert, second)
    if await _until(there, name, "RUNNING", "FAILED", "FINISHED") == "RUNNING":
        # Files that were there at the start end by themselves, beside a second stream or just before they are told to.
        with contextlib.suppress(RequestRefused):
            await there.client.request(StopProcessor(there.client.unique(), name, drain=True))
        if job.last:
            _kill(there, random.Random(job.name))
    status = await there.until_ended(name)
    if status.state != "FINISHED":
        return [f"{status.state}: {status.reason}"]
    return await (judged(there, folder, job) if isinstance(job, Timed) else compared(there, folder, job))


def _producer(there: Installation, job: Job) -> aiokafka.AIOKafkaProducer:
    bootstrap = there.cluster.bootstrap
    return aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=_REQUEST, **job.settings)


async def _come(out: aiokafka.AIOKafkaProducer, job: Job, values: list[bytes]) -> None:
    """Records come at once, or bit by bit while what happens in the middle happens."""
    pieces = _PIECES if job.slowly else 1
    size = -(-len(values) // pieces)
    for number in range(pieces):
        some = values[number * size : (number + 1) * size]
        if job.origin in _TOPICS:
            await _sent(out, f"{job.name}-in", job.sent(some), job.partition_of)
        if job.origin == "growing":
            job.put(number, some)
        if job.slowly:
            await asyncio.sleep(job.pause_s * len(job.between) / pieces)


async def _sent(
    out: aiokafka.AIOKafkaProducer, topic: str, values: list[bytes], partition_of: Callable[[int, bytes], int]
) -> None:
    records = ((partition_of(place, value), value) for place, value in enumerate(values))
    await asyncio.gather(*[await out.send(topic, value, partition=partition) for partition, value in records])


def _first(place: int, value: bytes) -> int:
    return 0


async def _until(there: Installation, name: ProcessorName, *states: str) -> str:
    async for status in there.client.watch(name):
        if status.state in states:
            return status.state
    message = "the registry ended"
    raise RuntimeError(message)


async def _disturbed(there: Installation, job: Job) -> None:
    """What happens in the middle, each some time after what was before it."""
    name, chooser = ProcessorName(job.name), random.Random(job.name)
    for what in job.between:
        if await _until(there, name, "RUNNING", "FAILED", "FINISHED") != "RUNNING":
            return
        await asyncio.sleep(chooser.random() * job.pause_s)
        with contextlib.suppress(RequestRefused):  # it has ended
            match what:
                case "kill":
                    _kill(there, chooser)
                case "modify" | "rescale" | "both":
                    await _modify(there, job, chooser, what)
                case _:
                    await there.client.request(StopProcessor(there.client.unique(), name))
                    if (await there.until_ended(name)).state == "STOPPED":
                        if what == "resize":
                            await _modify(there, job, chooser, "rescale")
                        await there.client.request(StartProcessor(there.client.unique(), name))
        await asyncio.sleep(chooser.random() * job.pause_s)


def _kill(there: Installation, chooser: random.Random) -> None:
    # Not the broker: a producer's own records may be lost with it, by its settings.
    places = {place: pid for place, pid in there.cluster.pids().items() if place != "broker"}
    with contextlib.suppress(ProcessLookupError):  # another job's kill was first
        os.kill(places[chooser.choice(sorted(places))], signal.SIGKILL)


async def _modify(there: Installation, job: Job, chooser: random.Random, what: str) -> None:
    changed = None if what == "rescale" else json.dumps(job.changed(chooser))
    tasks = None if what == "modify" else {service: chooser.choice([1, 2]) for service in job.parallelism}
    try:
        await there.client.request(ModifyProcessor(there.client.unique(), ProcessorName(job.name), changed, tasks))
    except RequestRefused as error:
        say(f"{job.name}: not changed: {error}")


async def jobs(seeds: Iterable[int], folder: Path, at_once: int, focus: str = "") -> dict[int, list[str]]:
    """Each seed's job on an installation of their own: what differs, of those where something does. focus: see `drawn`."""
    turn, wrong, targets = asyncio.Semaphore(at_once), {}, folder / "targets"
    targets.mkdir()

    async def one(there: Installation, seed: int, places: Places) -> None:
        async with turn:
            job = drawn(seed, places, focus)
            found = await run(there, folder, job)
            if found:
                wrong[seed] = found
                say("\n  ".join([f"{job.name} differs:", *found, json.dumps(job.document())]))
            await there.client.request(DropProcessor(there.client.unique(), ProcessorName(job.name)))
            await asyncio.to_thread(job.clear)

    async with (
        servers(targets) as places,
        installation(folder, SETTINGS, WORKERS) as there,
    ):
        await asyncio.gather(*(one(there, seed, places) for seed in seeds))
    return wrong


@contextlib.asynccontextmanager
async def servers(folder: Path) -> AsyncIterator[Places]:
    """What the jobs' connections name, each with faults of its own."""
    told = await Told(Weather(1, _FAULTS["told"])).start()
    registry = await Registry(weather=Weather(2, _FAULTS["registry"], _OF_REGISTRIES)).start()
    numbers = {form: registry.add("readings", schema, kind) for form, (kind, schema) in FORMS.items()}
    try:
        with postgres(logical=True) as url, mongodb() as servers:
            with client_at(servers.replicas, 10_000) as client:
                client["drawn"]["sensors"].insert_many(SENSORS)
            breaking = Breaking(servers.replicas, 3, _FAULTS["mongodb"])
            try:
                yield Places(folder, url, servers.replicas, registry.url, numbers, breaking.passage.url, told, breaking)
            finally:
                breaking.close()
                counts = {"told": told.weather.counts, "registry": registry.weather and registry.weather.counts}
                say(f"faults: {counts}, {breaking.broken} of the way to MongoDB; {told.requests} requests")
    finally:
        await registry.stop()
        await told.stop()
