"""Something that a processor needs is away for a while: it runs again by itself, and every row is there once (C10).

What is away, for how long, and what `status` says meanwhile is a table in README.md beside this file. Hours pass in virtual time.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.harness.installation import NAME, Installed, installed, released
from tidemark.services.sink.connectors.files import FileSink
from tidemark.services.sink.connectors.kafka import KafkaSink
from tidemark.services.sink.connectors.sql import SqlSink
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.faults import Fault, Faults, Operation
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.ports.blobs import BlobUnavailable
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.sink import TargetUnavailable
from tidemark.shared.runtime.registry import Registry
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.runtime.worker import Worker

TARGETS = {"files": FileSink, "kafka": KafkaSink, "sql": SqlSink}
BACK_MS_MAX = 180_000
"""Longer than the longest wait between two tries, and a generation."""
LOG: Sequence[Operation] = ("admin", "offsets", "fetch", "send", "init", "txn", "commit", "abort")
BROKER = {operation: [operation] for operation in LOG} | {"broker": LOG}
STORE: dict[str, Sequence[Operation]] = {
    "reading": ["store.read"],
    "writing": ["store.write"],
    "store": ["store.read", "store.write"],
}
OF_TARGETS = ("open", "accept", "stage", "release")
OF_BLOBS = ("put", "get", "list", "delete")


@dataclass(frozen=True, slots=True)
class Outage:
    """What is away; `sink`: where the processor writes."""

    what: str
    sink: str
    cut: Callable[[], AbstractContextManager[None]]
    """A context in which it is away."""
    begins: bool = False
    """A task begins anew while it is away."""


@contextmanager
def _refused(operations: Sequence[Operation]) -> Iterator[None]:
    real = Faults.draw

    def draw(faults: Faults, operation: Operation) -> Fault:
        return Fault.REFUSED if operation in operations else real(faults, operation)

    Faults.draw = draw  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Faults.draw = real  # type: ignore[method-assign]


@contextmanager
def _raising(kind: Any, names: Sequence[str], error: type[Exception]) -> Iterator[None]:
    real = {name: getattr(kind, name) for name in names}
    away = True

    def wrapped(name: str) -> Any:
        async def call(*given: Any, **named: Any) -> Any:
            if away:  # whoever has taken hold of the method meanwhile comes through when it is over
                raise error("nobody answers")
            return await real[name](*given, **named)

        return call

    for name in names:
        setattr(kind, name, wrapped(name))
    try:
        yield
    finally:
        away = False
        for name, method in real.items():
            setattr(kind, name, method)


def outages() -> dict[str, Outage]:
    """By name."""
    found = [Outage(_named("broker", name), "kafka", partial(_refused, ops)) for name, ops in BROKER.items()]
    found += [Outage(_named("store", name), "files", partial(_refused, ops)) for name, ops in STORE.items()]
    for sink, kind in TARGETS.items():
        calls = {name: [name] for name in OF_TARGETS} | {sink: OF_TARGETS}
        found += [
            Outage(_named(sink, n), sink, partial(_raising, kind, c, TargetUnavailable)) for n, c in calls.items()
        ]
    calls = {name: [name] for name in OF_BLOBS} | {"blobs": OF_BLOBS}
    found += [
        Outage(_named("blobs", n), "sql", partial(_raising, MemoryBlobs, c, BlobUnavailable)) for n, c in calls.items()
    ]
    begins = [
        replace(outage, what=f"{outage.what}, begins", begins=True)
        for outage in found
        if ":" not in outage.what or outage.what.endswith((": open", ": get", ": init", ": admin", ": offsets"))
    ]
    return {outage.what: outage for outage in (*found, *begins)}


def _named(what: str, name: str) -> str:
    return what if name == what else f"{what}: {name}"


def document(folder: Path, sink: str) -> dict[str, Any]:
    """From a file that grows to a target of this kind, by way of an operator that keeps state."""
    source = {
        "$source": {
            "path": str(folder / "in.json"),
            "format": "json",
            "follow": True,
            "timeField": {"$toDate": {"$toLong": "$t"}},
            "recordId": {"$toString": "$n"},
        }
    }
    ends: dict[str, dict[str, Any]] = {
        "files": {"$emit": {"path": str(folder / "out"), "format": "json"}},
        "kafka": {"$emit": {"connectionName": "k", "topic": "out"}},
        "sql": {"$merge": {"into": {"connectionName": "t", "table": "seen"}, "on": ["n"]}},
    }
    return {
        "connections": {
            "k": {"type": "kafka", "bootstrapServers": "memory:1"},
            "t": {"type": "sql", "url": f"sqlite:///{folder / 'table.db'}"},
        },
        "pipeline": [source, {"$project": {"n": 1}}, ends[sink]],
        "options": {"checkpoint": {"interval": {"size": 1_000, "unit": "ms"}}},
    }


def rows_of(there: Installed, folder: Path, sink: str) -> Counter[int]:
    """What a reader of the target sees, by number."""
    if sink == "files":
        return Counter(row["n"] for row in released(folder / "out"))
    if sink == "kafka":
        return Counter(json.loads(r.value or b"null")["n"] for r in there.broker.dump("out")[0])
    with closing(sqlite3.connect(folder / "table.db")) as table:
        return Counter(n for (n,) in table.execute("SELECT n FROM seen"))


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one outage. Times in virtual ms."""

    during: str
    """State and reason at its end, as a client would be told; of the registry as it was last."""
    back_ms: int
    """From its end to the release of what came during it."""
    generations: int


def endure(outage: Outage, away_ms: int, folder: Path) -> Seen:
    """Run through one. AssertionError where the processor does not go on by itself, or a row is missing or twice."""

    async def main(world: VirtualWorld) -> Seen:
        source = folder / "in.json"
        source.write_text(_row(1))
        if outage.sink == "sql":
            with closing(sqlite3.connect(folder / "table.db")) as table:
                table.execute("CREATE TABLE seen (n BIGINT PRIMARY KEY)")
        settings = RuntimeSettings(engine="local", state_inline_bytes_max=1)  # so that state goes into blobs
        async with installed(world.clock, world.executor, settings=settings) as there:
            there.broker.create_topic("out", 1)
            await there.create(document(folder, outage.sink))
            await there.start()
            await there.committed()
            with outage.cut():
                if outage.begins:
                    _fail_one(there)
                with source.open("a") as more:
                    more.write(_row(2))
                await there.clock.sleep_ms(away_ms)
                told = Registry()
                for record in there.broker.dump(Topics().registry)[0]:
                    told.take(record)
                during = f"{told.statuses[NAME].state}: {told.statuses[NAME].reason}"
            begin_ms = there.clock.monotonic_ms()
            while rows_of(there, folder, outage.sink) != Counter([1, 2]):
                assert there.store.rows[NAME].state != "FAILED", there.store.rows[NAME].reason
                assert there.clock.monotonic_ms() - begin_ms < BACK_MS_MAX, rows_of(there, folder, outage.sink)
                await there.clock.sleep_ms(1_000)
            back_ms = there.clock.monotonic_ms() - begin_ms
            await there.when(lambda status: status.state == "RUNNING" and not status.reason)
            await there.committed()
            assert rows_of(there, folder, outage.sink) == Counter([1, 2])
            return Seen(during, back_ms, there.store.rows[NAME].generation)

    return run_virtual(main)


def _fail_one(there: Installed) -> None:
    """The sink's task."""
    worker = there.parts["sink"]
    assert isinstance(worker, Worker)
    for hosted in worker._tasks.values():
        assert hosted.driver is not None
        hosted.driver._fail(LogUnavailable("a hiccup"))


def _row(number: int) -> str:
    return json.dumps({"n": number, "t": 1_700_000_000_000 + number}) + "\n"
