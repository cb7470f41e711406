"""The house burns down: store, blobs and the broker's data are gone, and an installation made from a backup counts each record once."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tidemark.services.audit.check import audit_local
from tidemark.services.audit.reading import committed_records
from tidemark.services.backup.files import BackupFailed
from tidemark.services.backup.folder import back_up_folder, restore_folder
from tidemark.services.backup.parts import back_up_parts, parts_of, restore_parts
from tidemark.services.cli.installation import Installation, installation
from tidemark.services.local.broker import LocalBroker
from tidemark.services.local.broker_settings import BrokerSettings
from tidemark.services.sink.connectors.released import read_released_rows
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import DropProcessor, KeepCheckpoint, StartProcessor, StopProcessor
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]
NAME = ProcessorName("taxis")
KEYS = 7
RIDES, COUNTS = "rides-backed-up", "counts-backed-up"
"""Topics; no other test has them, for some lie with the session's broker."""
WORKERS = {"source": 1, "operator": 1, "spark": 0, "sink": 1}
ENGINE = '{"engine": "local", "state_inline_bytes_max": 1}'
"""State goes into blobs, however small it is."""


def document(emit: dict[str, Any], cluster: str = "${LOCAL_KAFKA}") -> dict[str, Any]:
    """Counts by key and second."""
    source = {
        "connectionName": "city",
        "topic": RIDES,
        "config": {"auto_offset_reset": "earliest"},
        "timeField": {"$toDate": "$at"},
        "schema": {"at": "long", "k": "int"},
    }
    window = {
        "interval": {"size": 1, "unit": "second"},
        "pipeline": [{"$group": {"_id": "$k", "n": {"$sum": 1}}}],
    }
    return {
        "name": NAME,
        "connections": {"city": {"type": "kafka", "bootstrapServers": cluster}},
        "pipeline": [{"$source": source}, {"$tumblingWindow": window}, {"$emit": emit}],
        "options": {"lateness": "split", "checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    }


async def write(log: Log, first: int, last: int) -> None:
    """Records `first` to `last`, 10 ms of event time apart, over two partitions."""
    writer = await log.writer("feeder")
    for n in range(first, last):
        record = NewRecord(json.dumps({"at": 1_000_000 + 10 * n, "k": n % KEYS}).encode())
        await (await writer.send(TopicPartition(RIDES, n % 2), record))
    await writer.close()


def counted(rows: Iterable[dict[str, Any]]) -> Counter[int]:
    """Of all windows, by key."""
    found: Counter[int] = Counter()
    for row in rows:
        found[row["_id"]] += row["n"]
    return found


@asynccontextmanager
async def flowing(installed: Installation, log: Log, first: int, last: int) -> AsyncIterator[None]:
    """A block during which records come in; it goes on once some checkpoints with them are committed."""
    feeding = asyncio.create_task(write(log, first, last))
    try:
        before = (await installed.client.statuses())[NAME].commits
        async for status in installed.client.watch(NAME):
            assert status.state != "FAILED", status.reason
            if status.commits >= before + 3:
                break
        yield
    finally:
        await feeding


async def drain(installed: Installation, log: Log) -> None:
    """To the end of what is there."""
    ends = await log.end_offsets([TopicPartition(RIDES, n) for n in range(2)])
    until = {f"{place.topic}-{place.partition}": end for place, end in ends.items()}
    await installed.client.request(StopProcessor(installed.client.unique(), NAME, drain=True, until=until))
    status = await installed.until_ended(NAME)
    assert status.state == "FINISHED", status.reason


async def test_a_local_installation_goes_on_from_its_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended in the midst of its work, copied, burnt, restored elsewhere. From the same backup, a second time, nothing is written twice."""
    monkeypatch.setenv("TIDEMARK_RUNTIME", ENGINE)
    data, anew, kept, out = (tmp_path / name for name in ("d", "elsewhere", "backup", "out"))
    text = json.dumps(document({"path": str(out), "format": "json"}))
    async with installation(data, {}, WORKERS) as installed:
        await installed.log.create_topic(RIDES, 2, {"retention.ms": "-1"})
        await installed.ensure_started(NAME, text, {})
        async with flowing(installed, installed.log, 0, 3_000):
            pass  # all are in the topic, and none was drained: windows are open
    made = await back_up_folder(data, kept)
    assert [each.name for each in made.processors] == [NAME]
    shutil.rmtree(data)

    restore_folder(kept, anew)
    async with installation(anew, {}, WORKERS) as installed:
        assert await installed.ensure_started(NAME, text, {}) == "resumed"
        await write(installed.log, 3_000, 4_000)
        await drain(installed, installed.log)
        audited = await audit_local(NAME, anew)
    assert counted(read_released_rows(str(out))) == Counter(n % KEYS for n in range(4_000))
    assert (audited.records, audited.accepted, audited.unchecked) == (4_000, 4_000, ())
    shutil.rmtree(anew)

    before = sorted(map(str, read_released_rows(str(out))))
    restore_folder(kept, anew)
    async with installation(anew, {}, WORKERS) as installed:
        await installed.ensure_started(NAME, text, {})
        status = await installed.until_ended(NAME)
        assert status.state == "FAILED"
        assert "a second time" in status.reason
        assert sorted(map(str, read_released_rows(str(out)))) == before
        await installed.client.request(DropProcessor(installed.client.unique(), NAME))
        assert await installed.ensure_started(NAME, text, {}) == "created"
        await drain(installed, installed.log)
    assert counted(read_released_rows(str(out))) == Counter(
        [n % KEYS for n in range(4_000)] + [n % KEYS for n in range(3_000)]
    )


@asynccontextmanager
async def broker(folder: Path) -> AsyncIterator[str]:
    """One that is no installation's; its address."""
    there = LocalBroker(BrokerSettings(data_dir=folder))
    await there.start()
    try:
        yield there.bootstrap
    finally:
        await there.stop()


def settings_of(data: Path, bootstrap: str) -> dict[str, str]:
    """As the coordinator of the installation on a folder has them."""
    return {
        "TIDEMARK_STORE": f"sqlite:///{data / 'coordinator.db'}",
        "TIDEMARK_BLOBS": str(data / "blobs"),
        "TIDEMARK_KAFKA": bootstrap,
        "TIDEMARK_SIGNING_KEYS_FILE": str(data / "signing.keys"),
    }


async def test_parts_go_on_with_a_new_broker_and_new_keys(
    kafka_broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the installation nothing is left but the last backup: it counts on from there, and goes back to a checkpoint that was kept (C11).

    Source and target are another broker's.
    """
    monkeypatch.setenv("TIDEMARK_RUNTIME", ENGINE)
    data, anew = tmp_path / "d", tmp_path / "elsewhere"
    log = KafkaLog(KafkaSettings(bootstrap=kafka_broker, client="test"))
    for topic, count in ((RIDES, 2), (COUNTS, 1)):
        await log.create_topic(topic, count, {"retention.ms": "-1"})
    text = json.dumps(document({"connectionName": "city", "topic": COUNTS}, kafka_broker))
    async with installation(data, {}, WORKERS) as installed:
        await installed.ensure_started(NAME, text, {})
        monkeypatch.setenv("TIDEMARK_SIGNING_KEYS_FILE", str(data / "signing.keys"))
        async with parts_of(settings_of(data, installed.cluster.bootstrap)) as parts:
            async with flowing(installed, log, 0, 2_000):
                await installed.client.request(KeepCheckpoint(installed.client.unique(), NAME, "early"))
                await back_up_parts(parts, tmp_path / "earlier")
                await installed.until_running(NAME)
            await installed.client.request(StopProcessor(installed.client.unique(), NAME))
            assert (await installed.until_ended(NAME)).state == "STOPPED"
            made = await back_up_parts(parts, tmp_path / "kept")
            assert (await installed.client.statuses())[NAME].state == "STOPPED"
    assert made.processors[0].last > 0
    assert any(file.path.startswith("blobs/") for file in made.files)
    shutil.rmtree(data)

    anew.mkdir()
    monkeypatch.setenv("TIDEMARK_SIGNING_KEYS_FILE", str(anew / "signing.keys"))
    async with broker(anew / "kafka") as bootstrap, parts_of(settings_of(anew, bootstrap)) as parts:
        await restore_parts(parts, tmp_path / "kept")
        with pytest.raises(BackupFailed, match="expected an empty place"):
            await restore_parts(parts, tmp_path / "kept")
    async with installation(anew, {}, WORKERS) as installed:
        assert (await installed.until_ended(NAME)).state == "STOPPED"  # told to the new brokers, by a leader
        assert await installed.ensure_started(NAME, text, {}) == "resumed"
        await write(log, 2_000, 3_000)
        await drain(installed, log)
        found = [record.value or b"" async for record in committed_records(log, COUNTS)]
        assert counted(map(json.loads, found)) == Counter(n % KEYS for n in range(3_000))
        await installed.client.request(StartProcessor(installed.client.unique(), NAME, checkpoint="early"))
        await installed.until_running(NAME)
        await drain(installed, log)
    again = [record.value or b"" async for record in committed_records(log, COUNTS)][len(found) :]
    assert again
    assert not Counter(again) - Counter(found)
    await log.close()
