"""An audit accuses no target of what it is told to do: refused rows, tombstones, canonical JSON, types that files lose."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.harness.installation import NAME, Installed, installed
from tests.harness.sealing import sealed
from tidemark.services.audit.check import Audited, AuditFailed, NotAuditable, audit
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import KeepCheckpoint, StartProcessor
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import MARKERS_PREFIX

COUNT = 60
RECORDS: list[dict[str, Any]] = [
    {
        "id": n,
        "at": 1_000_000 + 1_000 * n,
        "key": f"k{n % 3}" if n % 7 else n,
        "gone": n % 5 == 0,
        "topic": f"out{n % 2}" if n % 11 else "no name",
        "mixed": [1, "a", None, {"x": 1}, [1, 2], True, 1.5][n % 7],
        "decimal": {"$numberDecimal": "1.10"},
        "oid": {"$oid": "0123456789ab0123456789ab"},
        "date": {"$date": {"$numberLong": str([0, -1, 253402300800000, 1600000000000][n % 4])}},
        "long": {"$numberLong": str(2**53 + n)},
        "double": {"$numberDouble": ["NaN", "Infinity", "-0.0", "1e-7"][n % 4]},
        "binary": {"$binary": {"base64": "/w==", "subType": "00"}},
        "deep": {"a": [{"d": {"$date": {"$numberLong": str(10**14)}}}]},
        "text": "\u00e9\u2028\x00",
    }
    for n in range(COUNT)
]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


async def go_back(it: Installed) -> None:
    """To the checkpoint that was kept."""
    await it.stop()
    await it.client.request(StartProcessor("back", NAME, checkpoint="then"))
    await it.committed()


async def begin_anew(it: Installed, log: Log) -> None:
    """It starts without state, until the earlier job's markers are gone."""
    markers = f"{MARKERS_PREFIX}{it.store.rows[NAME].job}."
    await it.stop()
    await it.start(resume=False)
    while any(topic.startswith(markers) for topic in await log.list_topics()):
        await it.committed(1)


async def audited(
    world: VirtualWorld,
    out: Path,
    emit: dict[str, Any],
    *,
    tampering: bool = False,
    then: dict[str, Any] | None = None,
    anew: bool = False,
    back: bool = False,
) -> Audited:
    """Three parts of the records through a pipeline without windows into one target, and its audit.

    then: what its filter is from the second part on.
    anew: it starts once more without state, and reads all again. back: once more from a checkpoint between two parts.
    """
    source = {
        "connectionName": "broker",
        "topic": "in",
        "config": {"auto_offset_reset": "earliest"},
        "timeField": {"$toDate": "$at"},
        "schema": {"id": "int", "at": "long"},
    }
    document: dict[str, Any] = {
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "memory", "config": {"message_bytes_max": 1_000_000}},
            "files": {
                "type": "files",
                "path": str(out),
                "catalog": {"type": "sql", "uri": f"sqlite:///{out}/catalog.db"},
            },
        },
        "pipeline": [{"$source": source}, {"$match": {}}, {"$emit": emit}],
        "options": {
            "lateness": "split",
            "dlq": {"connectionName": "broker", "topic": "late"},
            "checkpoint": {"interval": {"size": 1, "unit": "second"}},
        },
    }
    async with installed(world.clock, world.executor, settings=RuntimeSettings(engine="local")) as it:
        log = sealed(MemoryLog(it.broker))
        await log.create_topic("in", 2)
        await it.create(document, source=2, sink=2)
        await it.start()
        for first in range(0, COUNT, 20):
            writer = await log.writer("feeder")
            if first and then is not None:
                changed = [document["pipeline"][0], {"$match": then}, document["pipeline"][2]]
                await it.stop()
                await it.modify({**document, "pipeline": changed})
                await it.start()
            for reading in RECORDS[first : first + 20]:
                at = TopicPartition("in", reading["id"] % 2)
                await (await writer.send(at, NewRecord(json.dumps(reading).encode())))
            await writer.close()
            await it.committed()
            if back and not first:
                await it.client.request(KeepCheckpoint("keep", NAME, "then"))
        if back:
            await go_back(it)
        if anew:
            await begin_anew(it, log)
        await it.stop(drain=True)
        if tampering:
            partition = it.broker._topics["out"][0]
            place, record = next(
                (n, s.record) for n, s in enumerate(partition.stored) if s.record and not s.record.value
            )
            partition.stored[place] = partition.stored[place]._replace(record=replace(record, key=b"another"))
        return await audit(NAME, AuditedInstallation(MemoryCommitStore(it.store), it.memory_blobs, log, {}))


def emitted(**more: Any) -> dict[str, Any]:
    return {"connectionName": "broker", "topic": "out", **more}


def filed(format_: str, **more: Any) -> dict[str, Any]:
    return {"connectionName": "files", "path": "out", "format": format_, **more}


TOMBSTONES = emitted(config={"key": "$key", "tombstoneWhen": "$gone"})


@pytest.mark.parametrize(
    ("emit", "refused"),
    [
        (emitted(config={"outputFormat": "canonicalJson"}), 0),
        (TOMBSTONES, 0),
        (emitted(config={"key": "$key", "keyFormat": "string"}), 9),
        (emitted(topic="$topic"), 6),
        (filed("parquet"), 0),
        (filed("parquet", partitionBy=["mixed"]), 17),
        (filed("json", partitionBy=["mixed"]), 17),
        (filed("iceberg"), 0),
        (filed("iceberg", partitionBy=["mixed"]), 17),
        (filed("json") | {"path": {"$concat": ["by/", "$topic"]}}, 0),
        (filed("json", config={"outputFormat": "basicJson", "dateFormat": "ISO8601"}), 0),
    ],
    ids=[
        "canonical",
        "tombstones",
        "keys",
        "topics",
        "parquet",
        "partitioned",
        "folders",
        "iceberg",
        "iceberg-partitioned",
        "computed-folders",
        "basic",
    ],
)
def test_an_audit_expects_what_the_target_takes_and_how_it_looks_there(
    tmp_path: Path, emit: dict[str, Any], refused: int
) -> None:
    """Rows that the target would refuse are dead letters, the others lie there in its own form: nothing is accused."""
    found: Audited = run_virtual(lambda world: audited(world, tmp_path, emit))
    assert (found.records, found.dead_letters) == (COUNT, refused)
    assert sum(found.outputs.values()) == COUNT


def test_a_table_whose_log_was_cut_is_not_vouched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which rows are of which checkpoint is told no more: nothing is accused, and nothing called right."""

    async def after_the_cut(name: ProcessorName, it: AuditedInstallation) -> Audited:
        table = DeltaTable(tmp_path / "out")
        table.create_checkpoint()
        for version in range(table.version()):
            (tmp_path / "out" / "_delta_log" / f"{version:020d}.json").unlink()
        return await whole(name, it)

    whole = audit
    monkeypatch.setitem(globals(), "audit", after_the_cut)
    with pytest.raises(NotAuditable, match="its earlier versions are gone"):
        run_virtual(lambda world: audited(world, tmp_path, filed("parquet")))


def test_a_tombstone_of_another_key_is_noticed(tmp_path: Path) -> None:
    """What has no value is told by its key."""
    with pytest.raises(AuditFailed, match="emit"):
        run_virtual(lambda world: audited(world, tmp_path, TOMBSTONES, tampering=True))


def test_an_audit_knows_what_an_earlier_document_put_out(tmp_path: Path) -> None:
    """It is not kept: nothing is accused, and nothing is vouched for. The same document is no other one."""
    with pytest.raises(NotAuditable, match=r"its document, .* was changed at checkpoint \d+"):
        run_virtual(lambda world: audited(world, tmp_path / "a", emitted(), then={"id": {"$mod": [2, 0]}}))
    found: Audited = run_virtual(lambda world: audited(world, tmp_path / "b", emitted(), then={}))
    assert found.records == COUNT


@pytest.mark.parametrize(
    "emit",
    [emitted(), *(filed(each) for each in ("json", "parquet", "iceberg"))],
    ids=["topic", "files", "table", "iceberg"],
)
def test_an_audit_makes_no_statement_behind_a_going_back(tmp_path: Path, emit: dict[str, Any]) -> None:
    """Positions fall there, which accuses nobody; the last document is the first one's."""
    with pytest.raises(NotAuditable, match="or it went back to a kept one"):
        run_virtual(lambda world: audited(world, tmp_path, emit, back=True))


def test_what_an_earlier_job_put_out_is_not_this_ones(tmp_path: Path) -> None:
    """A start without state takes the earlier job's markers away: its records lie in front of all that the new one wrote."""
    found: Audited = run_virtual(lambda world: audited(world, tmp_path, emitted(), anew=True))
    assert (found.records, sum(found.outputs.values())) == (COUNT, COUNT)
