"""A small pipeline that has run to its end in one process, kept so that each test audits a copy of what it left."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.harness.installation import NAME, installed
from tests.harness.sealing import KEYS, sealed
from tidemark.services.audit.check import Audited, audit
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_commit_store import MemoryCommitState, MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import Log, LogRecord, NewRecord, TopicPartition
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.wire.seals import HEADER

PER_PART = 60
READINGS: list[dict[str, Any]] = [
    {"id": n, "meter": f"m{n % 5}", "at": 1_000_000 + 1_000 * (n - (700 if n % 31 == 30 else n * 7 % 20)), "wh": n}
    for n in range(1_000, 1_000 + 5 * PER_PART)
]
"""In five parts, each of them in an epoch of its own at least; out of order, and every 31st too late."""


TABLE = "latest"
"""The last window of each meter: several of them in an epoch."""


def document(out: Path) -> dict[str, Any]:
    return {
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "memory"},
            "out": {"type": "files", "path": str(out)},
        },
        "pipeline": [
            {
                "$source": {
                    "connectionName": "broker",
                    "topic": "readings",
                    "config": {"auto_offset_reset": "earliest"},
                    "timeField": {"$toDate": "$at"},
                    "schema": {"id": "int", "meter": "string", "at": "long", "wh": "int"},
                    "recordId": "$id",
                    "recordIdHorizon": {"size": 1, "unit": "hour"},
                    "watermark": {"strategy": "boundedDisorder", "maxDelay": {"size": 20, "unit": "second"}},
                }
            },
            {
                "$tumblingWindow": {
                    "interval": {"size": 10, "unit": "second"},
                    "allowedLateness": {"size": 0, "unit": "second"},
                    "pipeline": [{"$group": {"_id": "$meter", "wh": {"$sum": "$wh"}}}],
                }
            },
            {"$emit": {"connectionName": "out", "path": "usage", "format": "parquet"}},
            {"$emit": {"connectionName": "broker", "topic": "usage", "config": {"key": "$_id", "keyFormat": "string"}}},
            {"$emit": {"connectionName": "out", "path": "lines", "format": "json"}},
        ],
        "options": {
            "lateness": "split",
            "dlq": {"connectionName": "broker", "topic": "late"},
            "checkpoint": {"interval": {"size": 1, "unit": "second"}},
        },
    }


def merging(out: Path) -> dict[str, Any]:
    """The same, and a table besides."""
    made = document(out)
    made["connections"]["table"] = {"type": "sql", "url": f"sqlite:///{out}/{TABLE}.db"}
    made["pipeline"].append({"$merge": {"into": {"connectionName": "table", "table": TABLE}, "whenMatched": "replace"}})
    return made


def collecting(out: Path, url: str) -> dict[str, Any]:
    """The same, and a collection of MongoDB besides."""
    made = document(out)
    made["connections"]["collection"] = {"type": "mongodb", "url": url}
    into = {"connectionName": "collection", "db": "audited", "coll": TABLE}
    made["pipeline"].append({"$merge": {"into": into, "whenMatched": "replace"}})
    return made


def make_table(out: Path) -> None:
    """The target of `merging`, empty."""
    with sqlite3.connect(out / f"{TABLE}.db") as connection:
        connection.execute(f"CREATE TABLE {TABLE} (_id TEXT PRIMARY KEY, wh INTEGER)")
    connection.close()


@dataclass
class Story:
    """A pipeline that has run to its end, and what an audit reads of it."""

    broker: MemoryBroker
    store: MemoryCommitState
    blobs: MemoryBlobs
    out: Path
    log: Log

    async def audit(self) -> Audited:
        return await audit(NAME, self.installation())

    def installation(self) -> AuditedInstallation:
        """What it left, to be read."""
        return AuditedInstallation(MemoryCommitStore(self.store), self.blobs, self.log, {})

    # --- where things lie -------------------------------------------------------------------------------------------------

    @property
    def job(self) -> str:
        return self.store.rows[NAME].job

    def files(self) -> list[Path]:
        """Of the table."""
        return sorted(self.out.glob("usage/*.parquet"))

    def manifests(self) -> list[Path]:
        """Of the JSON lines."""
        return [p for p in sorted(self.out.glob("lines/_manifests/*/*.json")) if json.loads(p.read_text())["files"]]

    def table_commits(self) -> list[Path]:
        """The table's log, as far as it adds files."""
        return [p for p in sorted(self.out.glob("usage/_delta_log/*.json")) if '"add"' in p.read_text()]

    def records(self, topic: str, partition: int = 0) -> list[LogRecord]:
        stored = self.broker._topics[topic][partition].stored
        return [s.record for s in stored if s.record is not None]

    def rewrite(self, topic: str, offset: int, value: bytes | None) -> None:
        """A record is another one from now on, at its place, sealed if it was: whoever did it has the key. None: it is gone."""
        partition = self.broker._topics[topic][0]
        at = offset - partition.start
        entry = partition.stored[at]
        assert entry.record is not None
        if value is None:
            partition.stored[at] = entry._replace(record=None)
            return
        others = tuple(header for header in entry.record.headers if header[0] != HEADER)
        seal = (HEADER, KEYS.seal((topic, 0), entry.record.key, value, others))
        headers = others if others == entry.record.headers else (*others, seal)
        partition.stored[at] = entry._replace(record=replace(entry.record, value=value, headers=headers))

    def tampered(self, statement: str) -> None:
        """Run a statement on the table."""
        with sqlite3.connect(self.out / f"{TABLE}.db") as connection:
            assert connection.execute(statement).rowcount == 1
        connection.close()

    async def append(self, topic: str, value: bytes) -> Offset:
        writer = await self.log.writer("tamper")
        offset = await (await writer.send(TopicPartition(topic, 0), NewRecord(value)))
        await writer.close()
        return offset


@dataclass
class Saved:
    """All that a finished run has left: each test gets a copy, the files at the place that the document names."""

    out: Path
    files: dict[Path, bytes]
    topics: dict[str, Any]
    ids: dict[str, str]
    store: MemoryCommitState
    blobs: dict[str, bytes]


async def feed(log: Log, part: list[dict[str, Any]]) -> None:
    """Readings, the first three of them again at the end."""
    writer = await log.writer("feeder")
    sent = []
    for reading in [*part, *part[:3]]:
        at = TopicPartition("readings", int(reading["meter"][1:]) % 2)
        sent.append(await writer.send(at, NewRecord(json.dumps(reading).encode())))
    await asyncio.gather(*sent)
    await writer.close()


async def finished_run(
    world: VirtualWorld,
    out: Path,
    *,
    merges: bool = False,
    collection: str | None = None,
    stages: Sequence[dict[str, Any]] = (),
) -> Saved:
    """Five parts through two tasks of each kind, state in blobs; then the input ends.

    stages: in place of the window, where there are any. merges: into a table, too, by one task: on virtual time nobody waits for
    another's lock. collection: the url of a server of MongoDB, for a collection instead.
    """
    settings = RuntimeSettings(engine="local", state_inline_bytes_max=1)
    made = merging(out) if merges else document(out) if collection is None else collecting(out, collection)
    if stages:
        made["pipeline"][1:2] = stages
    if merges:
        make_table(out)
    async with installed(world.clock, world.executor, settings=settings) as it:
        log = sealed(MemoryLog(it.broker))
        await log.create_topic("readings", 2)
        await it.create(made, source=2, operator=2, sink=1 if merges else 2)
        await it.start()
        for first in range(0, len(READINGS), PER_PART):
            await feed(log, READINGS[first : first + PER_PART])
            await it.committed()
        await it.stop(drain=True)
        kept = it.memory_blobs
        blobs = {name: kept._fs.cat_file(kept._path(name)) for name in await kept.list("")}
        files = {path: path.read_bytes() for path in out.glob("**/*") if path.is_file()}
        return Saved(out, files, deepcopy(it.broker._topics), dict(it.broker._ids), deepcopy(it.store), blobs)


def run(saved: Saved, then: Callable[[Story], Any]) -> Any:
    """Something on a copy of what the run has left."""

    async def main(world: VirtualWorld) -> Any:
        for path in saved.out.glob("**/*"):
            if path.is_file():
                path.unlink()
        for path, data in saved.files.items():
            path.write_bytes(data)
        broker = MemoryBroker(world.clock)
        broker._topics, broker._ids = deepcopy(saved.topics), dict(saved.ids)
        blobs = MemoryBlobs(world.executor)
        for name, data in saved.blobs.items():
            await blobs.put(name, data)
        try:
            return await then(Story(broker, deepcopy(saved.store), blobs, saved.out, sealed(MemoryLog(broker))))
        finally:
            await blobs.close()

    return run_virtual(main)
