"""An audit of what came of files: they are read again as long as they hold what the job has read, and named where they do not."""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.harness.installation import NAME, installed
from tests.harness.sealing import KEYS, sealed
from tidemark.services.audit.check import Audited, AuditFailed, NotAuditable, audit
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import VertexId
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.settings import RuntimeSettings

COUNT = 60
FILES = 3
SWITCH_MS = 2_000_000
ROWS: list[dict[str, Any]] = [
    {"id": n, "k": f"k{n % 3}", "at": 1_000_000 + 1_000 * (n - (100 if n % 13 == 12 else 0)), "n": n * n}
    for n in range(COUNT)
]
WINDOW: dict[str, Any] = {
    "$tumblingWindow": {
        "interval": {"size": 10, "unit": "second"},
        "allowedLateness": {"size": 0, "unit": "second"},
        "pipeline": [{"$group": {"_id": "$k", "n": {"$sum": "$n"}}}],
    }
}
Change = Callable[[Path], None]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


def write(folder: Path, form: str) -> None:
    """The rows in files of a form, or as a table."""
    folder.mkdir(exist_ok=True)
    for number in range(FILES):
        rows = ROWS[number * COUNT // FILES : (number + 1) * COUNT // FILES]
        name = folder / f"part-{number}"
        if form == "json":
            name.with_suffix(".json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif form == "csv":
            lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
            name.with_suffix(".csv").write_text("\n".join(lines) + "\n")
        elif form == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), name.with_suffix(".parquet"))
        else:
            write_deltalake(folder, pa.Table.from_pylist(rows), mode="append")


def source(folder: Path, form: str, **more: Any) -> dict[str, Any]:
    path, format_ = (str(folder), "parquet") if form == "delta" else (f"{folder}/*.{form}", form)
    schema = {"id": "int", "k": "string", "at": "long", "n": "int"}
    return {"path": path, "format": format_, "timeField": {"$toDate": "$at"}, "schema": schema, **more}


async def told(
    world: VirtualWorld,
    read: dict[str, Any],
    change: Callable[[], None] = lambda: None,
    *,
    forged: str = "",
    restarts: bool = False,
    between: Callable[[], None] = lambda: None,
    letters: bool = True,
) -> Audited:
    """What an audit says of a run over files, behind a change of them, or of what came out. between: a stop and a start."""
    document = {
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
        "pipeline": [{"$source": read}, WINDOW, {"$emit": {"connectionName": "broker", "topic": "out"}}],
        "options": {
            "lateness": "split",
            **({"dlq": {"connectionName": "broker", "topic": "late"}} if letters else {}),
            "checkpoint": {"interval": {"size": 1, "unit": "second"}},
        },
    }
    settings = RuntimeSettings(engine="local", fetch_bytes_max=300)
    async with installed(world.clock, world.executor, settings=settings) as it:
        log = sealed(MemoryLog(it.broker))
        await it.create(document, source=2)
        if "then" in read:
            await log.create_topic("then", 1)
            writer = await log.writer("feeder")
            for n in range(10):
                record = {"k": "k", "at": SWITCH_MS + 1_000 * n, "n": n}
                await (await writer.send(TopicPartition("then", 0), NewRecord(json.dumps(record).encode())))
            await writer.close()
        await it.start()
        if restarts:
            await it.committed()
            await it.stop()
            between()
            await it.start()
        if read.get("follow") or "then" in read:
            await it.committed()
            await it.stop(drain=True)
        else:
            await it.when(lambda status: status.state == "FINISHED")
        change()
        if forged:
            partition = it.broker._topics["out"][0]
            at, entry = next((n, e) for n, e in enumerate(partition.stored) if e.record and e.record.value)
            lost = None if forged == "lost" else entry.record
            assert lost is None or lost.value is not None
            partition.stored[at] = entry._replace(record=lost)
            if forged == "doubled":
                writer = await log.writer("forger")
                await (await writer.send(TopicPartition("out", 0), NewRecord(lost.value if lost else b"")))
                await writer.close()
            elif lost is not None and lost.value is not None:
                value = lost.value.replace(b'"n":', b'"n":1')
                partition.stored[at] = entry._replace(record=replace(lost, value=value))
        left = AuditedInstallation(MemoryCommitStore(it.store), it.memory_blobs, log, {}, keys=KEYS)
        return await audit(NAME, left)


def test_files_without_records_in_front_are_no_ground_to_judge_nothing(tmp_path: Path) -> None:
    """The job has gone past them before the first record came."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "0.json").touch()
    read = source(folder, "json", follow=True)
    found = run_virtual(lambda world: told(world, read, restarts=True, between=lambda: write(folder, "json")))
    assert (found.records, found.unchecked) == (COUNT, ())


FORMS = [
    ("json", {}),
    ("json", {"ordered": False}),
    ("json", {"follow": True}),
    ("csv", {}),
    ("parquet", {}),
    ("parquet", {"ordered": False}),
    ("delta", {}),
    ("delta", {"ordered": False}),
]


@pytest.mark.parametrize(("form", "more"), FORMS, ids=[f"{form}{''.join(more)}" for form, more in FORMS])
def test_what_came_of_files_is_accounted_for(form: str, more: dict[str, Any], tmp_path: Path) -> None:
    """Each record once, over a restart, too, where the source goes on."""
    write(tmp_path / "in", form)
    read = source(tmp_path / "in", form, **more)
    found: Audited = run_virtual(lambda world: told(world, read, restarts=bool(more.get("follow"))))
    assert (found.records, found.unchecked) == (COUNT, ())
    assert found.outputs[VertexId("emit-1")] > 5


@pytest.mark.parametrize("forged", ["lost", "doubled", "changed"])
@pytest.mark.parametrize("form", ["json", "csv", "parquet", "delta"])
def test_what_does_not_follow_from_files_is_found(form: str, forged: str, tmp_path: Path) -> None:
    """One record that is lost, doubled or changed at the target."""
    write(tmp_path / "in", form)
    read = source(tmp_path / "in", form)
    with pytest.raises(AuditFailed) as error:
        run_virtual(lambda world: told(world, read, forged=forged))
    assert not isinstance(error.value, NotAuditable)


def _changed_inside(file: Path) -> None:
    before = file.stat()
    file.write_text(file.read_text().replace('"n": 361', '"n": 362'))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _shortened(file: Path) -> None:
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


CHANGES: dict[str, Change] = {
    "changed inside": _changed_inside,
    "shorter": _shortened,
    "gone": Path.unlink,
}


@pytest.mark.parametrize("more", [{}, {"ordered": False}], ids=["ordered", "split"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_not_what_was_read_is_named(change: str, more: dict[str, Any], tmp_path: Path) -> None:
    """No discrepancy of the job's: the file is named, and what is not judged."""
    write(tmp_path / "in", "json")
    file = tmp_path / "in" / "part-0.json"
    read = source(tmp_path / "in", "json", **more)
    with pytest.raises(NotAuditable, match=r"part-(0|1\.json, .*part-2)\.json.*not judged"):
        run_virtual(lambda world: told(world, read, lambda: CHANGES[change](file)))


def test_the_time_of_a_files_change_counts_where_it_is_an_arrival(tmp_path: Path) -> None:
    """Dead letters have the time of a file's change: a file that was touched is another one there, and the same without them."""
    write(tmp_path / "in", "json")
    file = tmp_path / "in" / "part-0.json"
    read = source(tmp_path / "in", "json")
    assert run_virtual(lambda world: told(world, read, lambda: os.utime(file, (5, 5)), letters=False)).records == COUNT
    with pytest.raises(
        NotAuditable, match=r"part-0\.json.*: it was changed since the job read it, and with it the time"
    ):
        run_virtual(lambda world: told(world, read, lambda: os.utime(file, (6, 6))))


def test_a_history_of_files_and_a_stream_are_audited(tmp_path: Path) -> None:
    """Each record is in the account of its side."""
    write(tmp_path / "in", "json")
    then = {"connectionName": "broker", "topic": "then", "timeField": {"$toDate": "$at"}}
    read = {"history": source(tmp_path / "in", "json"), "then": then, "switchAt": {"$date": SWITCH_MS}}
    assert run_virtual(lambda world: told(world, read)).records == COUNT + 10
