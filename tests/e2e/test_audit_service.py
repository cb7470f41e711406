"""Audits and redrives by REST, of topics that another cluster than the installation's has."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import Installation, installation
from tidemark.services.cli.remote import Remote, RemoteFailed, find, path_of
from tidemark.services.local.address import ADDRESS_FILE
from tidemark.services.local.broker import LocalBroker
from tidemark.services.local.broker_settings import BrokerSettings
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition
from tidemark.shared.runtime.topics import Topics

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]
NAME = ProcessorName("taxis")
WORKERS = {"source": 1, "operator": 1, "spark": 0, "sink": 1, "control": 1}
AUDIT, REDRIVE = path_of(NAME, "audit"), path_of(NAME, "redrive")


def document(cluster: str) -> dict[str, Any]:
    """Counts by key and second; letters and counts go where the rides come from."""
    source = {
        "connectionName": "city",
        "topic": "rides",
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
        "pipeline": [
            {"$source": source},
            {"$tumblingWindow": window},
            {"$emit": {"connectionName": "city", "topic": "counts"}},
        ],
        "options": {
            "lateness": "split",
            "dlq": {"connectionName": "city", "topic": "late"},
            "checkpoint": {"interval": {"size": 300, "unit": "ms"}},
        },
    }


async def write(log: Log, *seconds: int) -> None:
    """Ten rides in each of these seconds, in this order."""
    writer = await log.writer("feeder")
    for second in seconds:
        for n in range(10):
            record = NewRecord(json.dumps({"at": 1_000_000 + 1_000 * second + n, "k": n % 3}).encode())
            await (await writer.send(TopicPartition("rides", 0), record))
    await writer.close()


async def committed(installed: Installation) -> None:
    """All that was written before lies in a checkpoint, and that is released."""
    first = (await installed.client.statuses())[NAME].commits
    async for status in installed.client.watch(NAME):
        assert status.state != "FAILED", status.reason
        if status.commits >= first + 3:
            return


async def served(data: Path, installed: Installation) -> Remote:
    """The control service of the installation on a folder, once it knows the processor."""
    async for _ in installed.client.heartbeats():
        if (data / ADDRESS_FILE).exists():
            remote = find(data)
            with suppress(RemoteFailed):  # it reads what there is
                await asyncio.to_thread(remote.get, AUDIT)
                return remote
    raise AssertionError("no heartbeats any more")


async def ended(remote: Remote, installed: Installation, epoch: int = 0) -> dict[str, Any]:
    """The verdict of an audit behind this checkpoint, once there is one."""
    async for _ in installed.client.heartbeats():
        found = await asyncio.to_thread(remote.get, AUDIT)
        if not found["running"] and found["verdict"] and found["verdict"]["epoch"] > epoch:
            return dict(found["verdict"])
        assert not found["verdict"] or found["verdict"]["outcome"] in ("held", "away"), found
    raise AssertionError("no heartbeats any more")


@asynccontextmanager
async def city(folder: Path) -> AsyncIterator[tuple[str, Log]]:
    """A cluster that is no installation's, with the topics of the document."""
    there = LocalBroker(BrokerSettings(data_dir=folder))
    await there.start()
    log = KafkaLog(KafkaSettings(bootstrap=there.bootstrap, client="test"))
    for topic in ("rides", "counts", "late"):
        await log.create_topic(topic, 1, {"retention.ms": "-1"})
    try:
        yield there.bootstrap, log
    finally:
        await log.close()
        await there.stop()


async def test_a_control_service_audits_and_redrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its verdict outlives it; the next one audits what came since by itself."""
    monkeypatch.setenv("TIDEMARK_RUNTIME", '{"engine": "local"}')
    data = tmp_path / "d"
    async with city(tmp_path / "city") as (cluster, log):
        text = json.dumps(document(cluster))
        async with installation(data, {}, WORKERS) as installed:
            await installed.ensure_started(NAME, text, {})
            await write(log, *range(20), 3, 5)
            await committed(installed)
            remote = await served(data, installed)
            begun = await asyncio.to_thread(remote.send, "POST", AUDIT)
            assert begun["running"]
            with pytest.raises(RemoteFailed, match="one that began at"):
                await asyncio.to_thread(remote.send, "POST", AUDIT)
            first = await ended(remote, installed)
            assert (first["outcome"], first["records"], first["late"]) == ("held", 220, 20)
            assert first["outputs"]["emit-1"] == 3 * 16  # the watermark is behind the newest ride
            done = await asyncio.to_thread(remote.send, "POST", REDRIVE)
            assert (done["letters"], done["corrections"], done["topic"]) == (20, 6, "late.corrections")
            assert "late.corrections" in await log.list_topics()

        async with installation(data, {"TIDEMARK_EXTRA": '{"audit_interval_ms": 1000}'}, WORKERS) as installed:
            remote = await served(data, installed)
            assert (await asyncio.to_thread(remote.get, REDRIVE))["verdict"]["letters"] == 20
            kept = (await asyncio.to_thread(remote.get, AUDIT))["verdict"]
            assert kept["epoch"] >= first["epoch"]
            await write(log, 20, 21)
            await committed(installed)
            released = (await installed.client.statuses())[NAME].released
            later = await ended(remote, installed, released)
            assert (later["outcome"], later["records"]) == ("held", 240)
            told = [json.loads(r.value or b"") async for r in committed_records(installed.log, Topics().events)]
            assert {"held", "done"} <= {event["outcome"] for event in told if event["type"] == "verdict"}
