"""Audits and redrives by REST, of topics that another cluster than the installation's has."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import Installation, installation
from tidemark.services.cli.remote import Remote, RemoteFailed, find, path_of
from tidemark.services.local.folders import ADDRESS_FILE
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition
from tidemark.shared.runtime.topics import Topics

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]
NAME = ProcessorName("taxis")
WORKERS = {"source": 1, "operator": 1, "spark": 0, "sink": 1, "control": 1}
AUDIT, REDRIVE = path_of(NAME, "audit"), path_of(NAME, "redrive")


@dataclass(frozen=True)
class City:
    """A cluster that is no installation's, with the topics of the document."""

    cluster: str
    log: Log
    rides: str
    counts: str
    late: str

    async def write(self, *seconds: int) -> None:
        """Ten rides in each of these seconds, in this order."""
        writer = await self.log.writer("feeder")
        for second in seconds:
            for n in range(10):
                record = NewRecord(json.dumps({"at": 1_000_000 + 1_000 * second + n, "k": n % 3}).encode())
                await (await writer.send(TopicPartition(self.rides, 0), record))
        await writer.close()


def document(city: City) -> dict[str, Any]:
    """Counts by key and second; letters and counts go where the rides come from."""
    source = {
        "connectionName": "city",
        "topic": city.rides,
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
        "connections": {"city": {"type": "kafka", "bootstrapServers": city.cluster}},
        "pipeline": [
            {"$source": source},
            {"$tumblingWindow": window},
            {"$emit": {"connectionName": "city", "topic": city.counts}},
        ],
        "options": {
            "lateness": "split",
            "dlq": {"connectionName": "city", "topic": city.late},
            "checkpoint": {"interval": {"size": 300, "unit": "ms"}},
        },
    }


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


@pytest_asyncio.fixture
async def city(kafka_broker: str, unique_name: Callable[[str], str]) -> AsyncIterator[City]:
    """See `City`."""
    log = KafkaLog(KafkaSettings(bootstrap=kafka_broker, client="test"))
    made = City(kafka_broker, log, *map(unique_name, ("rides", "counts", "late")))
    for topic in (made.rides, made.counts, made.late):
        await log.create_topic(topic, 1, {"retention.ms": "-1"})
    yield made
    await log.close()


async def begun_anew(installed: Installation, settings: dict[str, Any]) -> None:
    """Another control service, with these settings, in the place of the one that ran."""
    cluster = installed.cluster
    cluster.settings = replace(cluster.settings, environment={"TIDEMARK_EXTRA": json.dumps(settings)})
    await cluster.remove("control-0")
    (cluster.settings.data_dir / ADDRESS_FILE).unlink()
    cluster.add("control", "control-0")


async def test_a_control_service_audits_and_redrives(
    city: City, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its verdict outlives it; the next one audits what came since by itself."""
    monkeypatch.setenv("TIDEMARK_RUNTIME", '{"engine": "local"}')
    data = tmp_path / "d"
    async with installation(data, {}, WORKERS) as installed:
        await installed.ensure_started(NAME, json.dumps(document(city)), {})
        await city.write(*range(20), 3, 5)
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
        assert (done["letters"], done["corrections"], done["topic"]) == (20, 6, f"{city.late}.corrections")
        assert f"{city.late}.corrections" in await city.log.list_topics()

        await begun_anew(installed, {"audit_interval_ms": 1000})
        remote = await served(data, installed)
        assert (await asyncio.to_thread(remote.get, REDRIVE))["verdict"]["letters"] == 20
        kept = (await asyncio.to_thread(remote.get, AUDIT))["verdict"]
        assert kept["epoch"] >= first["epoch"]
        await city.write(20, 21)
        await committed(installed)
        released = (await installed.client.statuses())[NAME].released
        later = await ended(remote, installed, released)
        assert (later["outcome"], later["records"]) == ("held", 240)
        assert any("as an earlier audit found it" in note for note in later["notes"])
        told = [json.loads(r.value or b"") async for r in committed_records(installed.log, Topics().events)]
        assert {"held", "done"} <= {event["outcome"] for event in told if event["type"] == "verdict"}
