"""An audit goes on where the last one ended, at every kind of target: also where small files became large ones in between."""

import asyncio
import gc
import itertools
import json
import logging
import random
import sqlite3
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.harness.installation import NAME, Installed, installed
from tests.harness.sealing import KEYS, sealed
from tests.harness.share import share
from tidemark.services.audit import check
from tidemark.services.audit.check import Audited, AuditFailed, NotAuditable, audit
from tidemark.services.audit.checkpoint import AuditCheckpoint
from tidemark.services.audit.history import pieces_of
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.audit.settings import AuditSettings
from tidemark.services.cli.process import quiet
from tidemark.services.sink.connectors.files import FileSinkSettings
from tidemark.services.sink.connectors.manifests import Manifest
from tidemark.services.sink.connectors.tablereleases import TableReleases
from tidemark.services.sink.settings import SinkSettings
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import VertexId
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition
from tidemark.shared.ports.sink import TargetUnavailable
from tidemark.shared.runtime.topics import MARKERS_PREFIX

PART = 12
TARGETS: dict[str, dict[str, Any]] = {
    "topic": {"connectionName": "broker", "topic": "out"},
    "topics": {"connectionName": "broker", "topic": {"$concat": ["out-", "$k"]}},
    "lines": {"connectionName": "files", "path": "out", "format": "json"},
    "delta": {"connectionName": "files", "path": "out", "format": "parquet"},
    "parted": {"connectionName": "files", "path": "out", "format": "parquet", "partitionBy": ["k"]},
    "iceberg": {"connectionName": "files", "path": "out", "format": "iceberg"},
    "table": {"into": {"connectionName": "table", "table": "Rows"}, "on": "k", "whenMatched": "merge"},
}


def drawn_for(targets: Iterable[str]) -> Sequence[tuple[str, int]]:
    """Targets and seeds; in CI a share in which each target is there: fewer members are left out at a time than it has seeds."""
    return share(list(itertools.product(targets, range(6))), 10)


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


def _document(out: Path, emit: dict[str, Any], *, windows: bool) -> dict[str, Any]:
    source = {
        "connectionName": "broker",
        "topic": "in",
        "config": {"auto_offset_reset": "earliest"},
        "timeField": {"$toDate": {"$toLong": "$at"}},
    }
    sums = {"$group": {"_id": "$id", "id": {"$first": "$id"}, "k": {"$first": "$k"}, "n": {"$sum": 1}}}
    window = {"$tumblingWindow": {"interval": {"size": 3, "unit": "second"}, "pipeline": [sums]}}
    files = {"path": str(out), "catalog": {"type": "sql", "uri": f"sqlite:///{out}/catalog.db"}}
    return {
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "memory"},
            "files": {"type": "files", **files},
            "table": {"type": "sql", "url": f"sqlite:///{out}/table.db"},
        },
        "pipeline": [
            {"$source": source},
            *([window] if windows else [{"$project": {"id": 1, "k": 1}}]),
            {"$merge" if "into" in emit else "$emit": emit},
        ],
        "options": {
            "lateness": "split",
            "dlq": {"connectionName": "broker", "topic": "late"},
            "checkpoint": {"interval": {"size": 1, "unit": "second"}},
        },
    }


@asynccontextmanager
async def _fed(
    world: VirtualWorld,
    document: dict[str, Any],
    parts: Sequence[int],
    audits: Collection[int],
    tasks: int,
    compact_releases: int = 3,
) -> AsyncIterator[tuple[Installed, AuditedInstallation]]:
    """Parts of records, each behind the commits of the one before; audits: behind these parts, each from where the last one ended."""
    sinks = SinkSettings(files=FileSinkSettings(compact_releases=compact_releases))
    async with installed(world.clock, world.executor, sinks=sinks) as it:
        log = sealed(MemoryLog(it.broker))
        await log.create_topic("in", 2)
        await it.create(document, source=tasks, sink=tasks)
        await it.start()
        left = AuditedInstallation(MemoryCommitStore(it.store), it.memory_blobs, log, {}, keys=KEYS)
        for part in parts:
            writer = await log.writer("feeder")
            for n in range(part * PART, (part + 1) * PART):
                late = 60_000 if n % 10 == 7 else 0
                record = {"id": n, "k": "xyz"[n % 3], "at": 1_000_000 + 700 * n - late}
                await (await writer.send(TopicPartition("in", n % 2), NewRecord(json.dumps(record).encode())))
            await writer.close()
            await it.committed()
            if part in audits:
                await audit(NAME, left, resumes=True)
        yield it, left


def _same(found: Audited, whole: Audited) -> None:
    for name in ("records", "accepted", "late", "duplicates", "dead_letters", "outputs", "unchecked", "gone"):
        assert getattr(found, name) == getattr(whole, name), name


@pytest.mark.parametrize(("target", "seed"), drawn_for(TARGETS))
def test_it_finds_what_an_audit_from_the_begin_finds(target: str, seed: int, tmp_path: Path) -> None:
    """Whenever the earlier ones were, and while it runs or behind its end."""
    chance = random.Random(seed)
    count, tasks = chance.choice([5, 9]), chance.choice([1, 2])
    audits = chance.sample(range(count - 1), chance.choice([1, 2, 4]))
    document = _document(tmp_path, TARGETS[target], windows=chance.random() < 0.5)
    # A compaction takes the earlier versions of a table of Iceberg, and with them what tells whose rows are whose.
    releases = 1_000 if target == "iceberg" else 3
    if target == "table":
        tasks = 1  # on virtual time nobody waits for another's lock
        with closing(sqlite3.connect(tmp_path / "table.db")) as connection:
            connection.execute("CREATE TABLE Rows (k TEXT PRIMARY KEY, _id INTEGER, id INTEGER, n INTEGER)")

    async def main(world: VirtualWorld) -> list[Audited]:
        async with _fed(world, document, range(count), audits, tasks, releases) as (it, left):
            found = [await audit(NAME, left, resumes=True), await audit(NAME, left)]
            await it.stop(drain=True)
            return [*found, await audit(NAME, left, resumes=True), await audit(NAME, left)]

    running, then, ended, whole = run_virtual(main)
    assert running.records == then.records == count * PART
    assert running.before.epochs > 0
    assert running.accepted > 0
    _same(running, then)  # one more epoch may have been committed in between
    _same(ended, whole)
    assert ended.before.epochs + len(ended.epochs) == whole.before.epochs + len(whole.epochs)


def _in_pieces(monkeypatch: pytest.MonkeyPatch, records: int) -> list[int]:
    """Audits go in pieces of so many records from now on; how many pieces each had."""
    counts: list[int] = []

    def noted(*args: Any) -> Any:
        found = pieces_of(*args)
        counts.append(len(found) + 1)
        return found

    monkeypatch.setattr(check, "audit_settings", lambda: AuditSettings(piece_records=records))
    monkeypatch.setattr(check, "pieces_of", noted)
    return counts


@pytest.mark.parametrize(("target", "seed"), drawn_for(TARGETS))
def test_in_pieces_it_finds_what_it_finds_as_a_whole(
    target: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their size, while it runs and behind its end; also where small files become large ones between two pieces."""
    chance = random.Random(100 + seed)
    count, tasks = chance.choice([5, 9]), chance.choice([1, 2])
    document = _document(tmp_path, TARGETS[target], windows=chance.random() < 0.5)
    releases = 1_000 if target == "iceberg" else chance.choice([3, 8])
    if target == "table":
        tasks = 1
        with closing(sqlite3.connect(tmp_path / "table.db")) as connection:
            connection.execute("CREATE TABLE Rows (k TEXT PRIMARY KEY, _id INTEGER, id INTEGER, n INTEGER)")

    async def main(world: VirtualWorld) -> list[tuple[Audited, Audited]]:
        found = []

        async def both(left: AuditedInstallation) -> tuple[Audited, Audited]:
            with monkeypatch.context() as patched:
                counts = _in_pieces(patched, chance.choice([1, PART, 3 * PART]))
                pieces = await audit(NAME, left)
                assert counts[0] > 1
            return pieces, await audit(NAME, left)

        async with _fed(world, document, range(count), (), tasks, releases) as (it, left):
            found.append(await both(left))
            await it.stop(drain=True)
            found.append(await both(left))
        return found

    for pieces, whole in run_virtual(main):
        _same(pieces, whole)
        for found, same in zip(pieces.epochs, whole.epochs, strict=False):
            # It may have been released meanwhile, and rows in files together count as those of the last epoch of a piece.
            assert replace(found, outputs={}, released=True) == replace(same, outputs={}, released=True)


def test_of_the_pieces_before_none_stays_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But the checkpoint that the next one goes on from: each holds the state of all operators, and the rows of a table."""
    held: list[int] = []
    piece = check._piece

    async def noted(*args: Any) -> Any:
        gc.collect()
        held.append(sum(type(each) is AuditCheckpoint for each in gc.get_objects()))
        return await piece(*args)

    monkeypatch.setattr(check, "_piece", noted)
    counts = _in_pieces(monkeypatch, PART // 2)

    async def main(world: VirtualWorld) -> None:
        document = _document(tmp_path, TARGETS["topic"], windows=True)
        async with _fed(world, document, range(6), (), 1) as (_, left):
            gc.collect()
            assert not any(type(each) is AuditCheckpoint for each in gc.get_objects())
            await audit(NAME, left)

    run_virtual(main)
    assert counts[0] == len(held) > 3
    assert max(held) == 1


@pytest.mark.parametrize("pieces", [0, PART])
def test_a_row_that_was_changed_in_a_large_file_is_noticed(
    pieces: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that an earlier audit had seen in a small file, or that an earlier piece expects."""
    if pieces:
        _in_pieces(monkeypatch, pieces)

    async def main(world: VirtualWorld) -> None:
        document = _document(tmp_path, TARGETS["delta"], windows=False)
        async with _fed(world, document, range(6), [1], 1) as (it, left):
            await it.stop(drain=True)
            files = [path for path in tmp_path.rglob("*.parquet") if pq.read_metadata(path).num_rows > PART]
            assert files, "nothing was compacted"
            for path in files:
                table = pq.read_table(path)
                at = table.schema.get_field_index("id")
                ids = [-1 if id_ == 5 else id_ for id_ in table.column("id").to_pylist()]
                pq.write_table(table.set_column(at, table.schema.field("id"), [ids]), path)
            with pytest.raises(AuditFailed, match="the rows are not those that an earlier audit saw"):
                await audit(NAME, left, resumes=True)

    run_virtual(main)


@pytest.mark.parametrize("change", ["append", "delete"])
def test_what_others_make_of_a_large_file_is_noticed(change: str, tmp_path: Path) -> None:
    """Behind the last audit, in a table whose small files had become large ones in front of it."""

    async def main(world: VirtualWorld) -> None:
        document = _document(tmp_path, TARGETS["delta"], windows=False)
        async with _fed(world, document, range(6), [3], 1) as (it, left):
            await it.stop(drain=True)
            assert (await audit(NAME, left, resumes=True)).before.epochs > 0
            table = DeltaTable(tmp_path / "out")
            if change == "delete":
                assert table.delete("id = 5")["num_deleted_rows"] == 1
            else:
                rows = pa.Table.from_pylist([{"id": 777, "k": "x"}], schema=pa.schema(table.schema().to_arrow()))
                write_deltalake(tmp_path / "out", rows, mode="append")
            with pytest.raises(AuditFailed, match="lie in files together"):
                await audit(NAME, left, resumes=True)

    run_virtual(main)


def test_a_table_that_gave_no_answer_once_is_judged_by_the_next_audit(tmp_path: Path) -> None:
    """None goes on from an audit that could not read it."""
    with closing(sqlite3.connect(tmp_path / "table.db")) as connection:
        connection.execute("CREATE TABLE Rows (k TEXT PRIMARY KEY, _id INTEGER, id INTEGER, n INTEGER)")

    async def main(world: VirtualWorld) -> tuple[Audited, Audited]:
        document = _document(tmp_path, TARGETS["table"], windows=False)
        async with _fed(world, document, range(2), (), 1) as (it, left):
            await it.stop(drain=True)
            with closing(sqlite3.connect(tmp_path / "table.db", isolation_level=None)) as connection:
                connection.execute("BEGIN EXCLUSIVE")
                first = await audit(NAME, left, resumes=True)
                connection.execute("ROLLBACK")
            return first, await audit(NAME, left, resumes=True)

    first, then = run_virtual(main)
    assert ["the database gave no answer" in why for why in first.unchecked] == [True]
    assert (then.unchecked, then.outputs[VertexId("emit-1")]) == ((), 2 * PART)


def test_rows_of_a_half_released_commit_in_a_large_file_are_no_discrepancy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task's target is away, another one's release makes files large: an audit says to come again, and then all holds."""
    away, publish = {1}, TableReleases.publish

    def published(releases: Any, manifest: Manifest) -> None:
        if manifest.index in away:
            raise TargetUnavailable("away")
        publish(releases, manifest)

    async def main(world: VirtualWorld) -> tuple[list[str], Audited]:
        document, said = _document(tmp_path, TARGETS["delta"], windows=False), list[str]()
        async with _fed(world, document, range(2), (1,), 2) as (it, left):
            monkeypatch.setattr(TableReleases, "publish", published)
            writer = await MemoryLog(it.broker).writer("feeder")
            for n in range(100, 160):
                record = {"id": n, "k": "xyz"[n % 3], "at": 1_000_000 + 700 * n}
                await (await writer.send(TopicPartition("in", n % 2), NewRecord(json.dumps(record).encode())))
                await world.clock.sleep_ms(200)
                if n % 7 == 0:
                    try:
                        await audit(NAME, left, resumes=n % 2 > 0)
                    except NotAuditable as error:
                        said.append(str(error))
            away.clear()
            await it.stop(drain=True)
            return said, await audit(NAME, left, resumes=True)

    said, found = run_virtual(main)
    assert said
    assert all("not released everywhere yet, lie in files together" in each for each in said)
    assert found.records == 2 * PART + 60


def test_a_processor_that_is_dropped_while_an_audit_reads_is_none_of_its_business(tmp_path: Path) -> None:
    """Whichever look at the topics is the last that sees its markers."""

    class Drops:
        def __init__(self, log: Log, broker: MemoryBroker, topic: str, at: int) -> None:
            self._log, self._broker, self._topic, self._left = log, broker, topic, at

        def __getattr__(self, name: str) -> Any:
            return getattr(self._log, name)

        async def list_topics(self) -> Any:
            found, self._left = await self._log.list_topics(), self._left - 1
            if self._left == 0:
                self._broker.delete_topic(self._topic)
            return found

    async def main(world: VirtualWorld) -> None:
        document, topic = _document(tmp_path, TARGETS["topic"], windows=False), f"{MARKERS_PREFIX}zother.emit-1.0"
        async with _fed(world, document, range(2), (), 1) as (it, left):
            await it.stop(drain=True)
            for at in range(1, 25):
                it.broker.create_topic(topic, 1)
                drops: Any = Drops(left.log, it.broker, topic, at)
                assert (await audit(NAME, replace(left, log=drops))).records == 2 * PART
                it.broker.delete_topic(topic)

    run_virtual(main)


def test_a_checkpoint_that_was_not_sealed_here_is_not_believed(tmp_path: Path) -> None:
    """Somebody who reaches the blobs, and has no key, changes nothing that an audit says."""

    async def main(world: VirtualWorld) -> tuple[Audited, Audited]:
        document = _document(tmp_path, TARGETS["topic"], windows=False)
        async with _fed(world, document, range(4), [1], 1) as (it, left):
            await it.stop(drain=True)
            job = it.store.rows[NAME].job
            (name,) = await left.blobs.list(f"{job}/audit/")
            data = await left.blobs.read_note(name)
            believed = await audit(NAME, left, resumes=True)
            await left.blobs.delete(await left.blobs.list(f"{job}/audit/"))
            forged = data.replace(b"emit-1/0", b"emit-1/1")
            assert forged != data
            await left.blobs.put(name, forged)
            return believed, await audit(NAME, left, resumes=True)

    believed, alone = run_virtual(main)
    assert believed.before.epochs > 0
    assert alone.before.epochs == 0
    assert alone.outputs[VertexId("emit-1")] == believed.outputs[VertexId("emit-1")] == 4 * PART


class SlowLog:
    """A log of which each call takes its time, up to some seconds."""

    def __init__(self, log: Log, clock: Clock, seed: int) -> None:
        self._log, self._clock, self._chance = log, clock, random.Random(seed)

    def __getattr__(self, name: str) -> Any:
        async def called(*args: Any, **more: Any) -> Any:
            if self._chance.random() < 0.2:
                await self._clock.sleep_ms(self._chance.choice([300, 1_500, 4_000]))
            return await getattr(self._log, name)(*args, **more)

        return called


@pytest.mark.parametrize(("target", "seed"), drawn_for(["topic", "topics", "lines", "delta"]))
def test_what_is_released_while_an_audit_reads_is_none_of_its_findings(target: str, seed: int, tmp_path: Path) -> None:
    """The system goes on between any two of its looks; nothing is accused."""
    document = _document(tmp_path, TARGETS[target], windows=False)

    async def feed(world: VirtualWorld, it: Installed) -> None:
        writer = await MemoryLog(it.broker).writer("feeder")
        for n in range(1_000):
            record = {"id": n, "k": "xyz"[n % 3], "at": 1_000_000 + 700 * n}
            await (await writer.send(TopicPartition("in", n % 2), NewRecord(json.dumps(record).encode())))
            await world.clock.sleep_ms(100)

    async def main(world: VirtualWorld) -> list[Audited]:
        async with _fed(world, document, range(1), (), 1) as (it, left):
            slow: Any = SlowLog(left.log, world.clock, seed)
            feeding = asyncio.ensure_future(feed(world, it))
            found = [await audit(NAME, replace(left, log=slow), resumes=n % 2 > 0) for n in range(4)]
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            return found

    found = run_virtual(main)
    assert found[0].records < found[-1].records
