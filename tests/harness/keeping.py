"""What processes keep in memory and on the brokers, counted: after many epochs not more than after few.

    make keeping COMMITS=1000,100000

Objects are counted, not bytes: all that can be reached from a coordinator or a worker, but for what stands for the outside (the brokers'
records, the store's rows, blobs). Three processors share the workers: a window to a topic, documents to files, keyed rows to a table.
"""

import argparse
import asyncio
import gc
import logging
import sys
import time
import types
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa
import structlog

from tests.harness.installation import Installed, installed
from tidemark.services.sink.connecting import RealSinks
from tidemark.services.sink.connectors import kafka
from tidemark.services.sink.service import SinkService
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.context import Service
from tidemark.shared.runtime.settings import RuntimeSettings

KEYS = 8
MIRROR_ROWS_KEPT = 50
MARKERS_KEPT = 50
VOLUME_MANIFESTS = 10
TRIM_EVERY = 10


@dataclass(frozen=True, slots=True)
class Kept:
    """After so many commits of each processor."""

    commits: int
    objects: dict[str, Counter[str]]
    """Of each process, by type."""
    records: Counter[str]
    """On the brokers, by topic; those that the user's documents read and write are not among them."""
    rows: int
    """In the store: of processors, lineage and commits."""
    blobs: int
    manifests: int
    """That lie loose at the file sink's destination."""


def _documents(folder: Path) -> dict[str, dict[str, Any]]:
    topics = {"k": {"type": "kafka", "bootstrapServers": "memory:1"}}
    source = {"$source": {"connectionName": "k", "topic": "in", "timeField": {"$toDate": "$at"}}}
    window = {
        "$tumblingWindow": {
            "interval": {"size": 2, "unit": "second"},
            "pipeline": [{"$group": {"_id": "$k", "n": {"$sum": 1}}}],
        }
    }
    files = {"f": {"type": "files", "path": str(folder)}}
    table = {"t": {"type": "sql", "url": f"sqlite:///{folder}/target.db"}}
    return {
        "window": {
            "connections": topics,
            "pipeline": [source, window, {"$emit": {"connectionName": "k", "topic": "out"}}],
        },
        "files": {
            "connections": topics | files,
            "pipeline": [source, {"$emit": {"connectionName": "f", "path": "out", "format": "json"}}],
        },
        "table": {
            "connections": topics | table,
            "pipeline": [
                source,
                {"$project": {"k": 1, "at": 1}},
                {"$merge": {"into": {"connectionName": "t", "table": "rows"}, "on": ["k"]}},
            ],
        },
    }


def reachable(roots: Iterable[object], outside: Iterable[object]) -> Counter[str]:
    """Objects that can be reached from these, by type, not through what stands for the outside, nor through code."""
    seen = {id(thing) for thing in outside}
    found: Counter[str] = Counter()
    waiting = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, (type, types.ModuleType, types.CodeType, types.BuiltinFunctionType)):
            continue
        seen.add(id(thing))
        found[f"{type(thing).__module__}.{type(thing).__qualname__}"] += 1
        if isinstance(thing, types.FunctionType):
            waiting += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]  # not the module's globals
        else:
            waiting += gc.get_referents(thing)
    return found


async def _fed(there: Installed) -> None:
    """A few records a second, for ever."""
    number = 0
    while True:
        at_ms = there.clock.now_ms()
        for key in range(KEYS):
            number += 1
            value = f'{{"k": "k{key}", "n": {number}, "at": {at_ms}}}'.encode()
            there.broker.append(TopicPartition("in", 0), [NewRecord(value)])
        end = there.broker.end(TopicPartition("in", 0))
        if end > 1_000:  # what lies there is the user's; the simulation keeps little of it
            there.broker.delete_records(TopicPartition("in", 0), type(end)(end - 1_000))
        await there.clock.sleep_ms(1_000)


async def _kept(there: Installed, folder: Path, commits: int) -> Kept:
    gc.collect()
    outside = [
        there.broker,
        there.store,
        there.blobs,
        there.clock,
        there.outside.executor,
        asyncio.get_running_loop(),
        there,
    ]
    outside += [there.parts, *there.parts.values()]
    objects = {}
    for name, part in there.parts.items():
        others = [thing for thing in outside if thing is not part]
        objects[name] = reachable([part], others)
    mine = asyncio.current_task()
    running = [task for task in asyncio.all_tasks() if task is not mine]
    objects["all"] = reachable([*there.parts.values(), *running], [*outside[: -len(there.parts) - 1], mine, objects])
    records: Counter[str] = Counter()
    for topic, partitions in there.broker.topics().items():
        if topic in ("in", "out"):
            continue
        ats = [TopicPartition(topic, at) for at in range(partitions)]
        if topic in (there.outside.topics.registry, there.outside.topics.connections):
            records[topic] = len(
                {record.key for part in there.broker.dump(topic).values() for record in part}
            )  # brokers compact it
        else:
            records[topic] = sum(there.broker.end(at) - there.broker.begin(at) for at in ats)
    store = there.store
    return Kept(
        commits,
        objects,
        records,
        len(store.rows) + sum(map(len, store.lineage.values())) + sum(map(len, store.commits.values())),
        len(await there.blobs.list("")),
        len(list((folder / "out" / "_manifests").rglob("*.json"))),
    )


def _with_small_bounds(service: Service) -> Service:
    """Bounds that a short run reaches."""
    if isinstance(service, SinkService):
        sinks = service._connectors
        assert isinstance(sinks, RealSinks)
        files = replace(sinks._settings.files, volume_manifests=VOLUME_MANIFESTS)
        topics = replace(sinks._settings.kafka, markers_kept=MARKERS_KEPT)
        sinks._settings = replace(sinks._settings, files=files, kafka=topics)
    return service


def kept(commits: Iterable[int]) -> list[Kept]:
    """What is kept after so many commits of each processor, one run."""

    async def main(world: VirtualWorld) -> list[Kept]:
        with TemporaryDirectory() as name:
            folder = Path(name)
            engine = sa.create_engine(f"sqlite:///{folder}/target.db")
            with engine.begin() as connection:
                connection.exec_driver_sql("create table rows (k text primary key, at integer)")
            engine.dispose()
            coordinator = CoordinatorSettings(
                adopt_wait_ms=100, mirror_rows_kept=MIRROR_ROWS_KEPT, cleanup_interval_ms=2_000
            )
            settings = RuntimeSettings(engine="local", topics_kept_ms=20_000)
            async with installed(
                world.clock, world.executor, coordinator=coordinator, settings=settings, wrap=_with_small_bounds
            ) as there:
                there.broker.create_topic("in", 1)
                there.broker.create_topic("out", 1)
                feeding = asyncio.ensure_future(_fed(there))
                documents = _documents(folder)
                for processor, document in documents.items():
                    await there.create({"name": processor, **document}, ProcessorName(processor))
                    await there.start(ProcessorName(processor))
                found = []
                for wanted in commits:
                    for processor in documents:
                        await there.when(lambda s, n=wanted: s.commits >= n, ProcessorName(processor))  # type: ignore[misc]
                    found.append(await _kept(there, folder, wanted))
                feeding.cancel()
                return found

    with patch.object(kafka, "_TRIM_EVERY", TRIM_EVERY):
        return run_virtual(main)


def growth(few: Kept, many: Kept, at_least: int) -> dict[str, int]:
    """Types and topics of which there are so many more, by process. Not integers: small ones are one object however often they are kept."""
    found = {
        f"{process}: {kind}": count - few.objects[process][kind]
        for process, kinds in many.objects.items()
        for kind, count in kinds.items()
        if kind != "builtins.int"
    }
    found |= {f"topic {topic}": count - few.records[topic] for topic, count in many.records.items()}
    found |= {
        "rows": many.rows - few.rows,
        "blobs": many.blobs - few.blobs,
        "manifests": many.manifests - few.manifests,
    }
    return {what: more for what, more in sorted(found.items(), key=lambda item: -item[1]) if more >= at_least}


def main() -> None:
    """Print what is kept, and what has grown."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", default="1000,100000")
    options = parser.parse_args()
    began = time.monotonic()
    few, many = kept(map(int, options.commits.split(",")))
    for each in (few, many):
        objects = {process: kinds.total() for process, kinds in each.objects.items()}
        sys.stdout.write(
            f"{each.commits} commits: objects {objects}, records {each.records.total()}, rows {each.rows}, blobs {each.blobs},"
            f" manifests {each.manifests}\n"
        )
    sys.stdout.write(f"grown by 20 and more: {growth(few, many, 20)}\n{time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
