"""Three processors on a cluster of another version or with other settings, with kills; the outputs are an oracle's and the audit's.

`theirs`: the installation keeps its own topics on a broker of ours, and documents name the user's cluster. `whole`: everything is
on the user's cluster, as an installation that is pointed at it.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from unittest.mock import patch

from tests.harness.clusters.broker import AnyBroker
from tests.harness.clusters.granting import Right, grant
from tidemark.services.audit.check import audit_local
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import Installation, installation
from tidemark.services.local.broker_settings import BrokerSettings, Port
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition
from tidemark.shared.runtime.client import RequestRefused
from tidemark.shared.runtime.reading import patiently

WORKERS: Final = {"coordinator": 1, "source": 1, "operator": 1, "sink": 1, "spark": 0, "control": 0}
KILLED: Final = ("source-0", "sink-0", "coordinator-0", "operator-0")
NAMES: Final = ("copy", "windows", "join")
PARTITIONS: Final = 2
START_MS: Final = 1_700_000_000_000
STEP_MS: Final = 100
WINDOW_MS: Final = 10_000
KEYS: Final = 7
ENDED_S: Final = 180.0
"""Within so long all three have drained, behind the last kill."""

Where = Literal["theirs", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A user's cluster, and how a document reaches it."""

    version: str
    where: Where = "theirs"
    properties: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """Of the documents' connection."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Settings of the user's topics; others are the cluster's defaults."""
    records: int = 3_000
    kills: int = 3
    ports: tuple[int, int] = (0, 0)
    """Of the user's broker and its controller; 0: any."""
    address: str = ""
    """Where documents reach it; by default where everybody does."""
    rights: tuple[Right, ...] = ()
    """Of its user; none: everything."""
    quota: str = ""
    """Of each client of the user's cluster: `producer_byte_rate=20000,consumer_byte_rate=20000`."""
    idle_ms: int = 0
    """Nothing is sent for so long, in the middle."""
    broken: bool = False
    """Whether the user's broker is killed, too."""


def say(text: str) -> None:
    """A line of the run."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def record(n: int) -> bytes:
    """The n-th one: of a key and a time; each hundredth is no document."""
    if n % 100 == 99:
        return b"{broken"
    return json.dumps({"n": n, "key": f"k{n % KEYS}", "at": START_MS + n * STEP_MS, "pad": "x" * 100}).encode()


def _source(topic: str) -> dict[str, Any]:
    return {
        "connectionName": "theirs",
        "topic": topic,
        "config": {"auto_offset_reset": "earliest"},
        "timeField": {"$toDate": "$at"},
        "schema": {"n": "long", "key": "string", "at": "long", "pad": "string"},
    }


def document(name: str, cluster: Cluster) -> str:
    """Of one of the three."""
    group = {"_id": "$key", "count": {"$sum": 1}, "sum": {"$sum": "$n"}}
    interval = {"size": WINDOW_MS, "unit": "ms"}
    join = {
        "from": [{"$source": _source("clocks")}],
        "leftKey": "$key",
        "rightKey": "$key",
        "within": {"before": interval},
        "type": "left",
        "as": "other",
    }
    middle: dict[str, list[dict[str, Any]]] = {
        "copy": [{"$match": {"$expr": {"$ne": [{"$mod": ["$n", 3]}, 0]}}}, {"$addFields": {"double": {"$multiply": ["$n", 2]}}}],
        "windows": [{"$tumblingWindow": {"interval": interval, "pipeline": [{"$group": group}]}}],
        "join": [{"$join": join}, {"$project": {"n": 1, "other": "$other.n"}}],
    }  # fmt: skip
    emit = {"connectionName": "theirs", "topic": f"{name}-out"}
    return json.dumps({
        "connections": {"theirs": {"type": "kafka", "bootstrapServers": _shown(cluster), "config": dict(cluster.config)}},
        "pipeline": [{"$source": _source("events")}, *middle[name], {"$emit": emit}],
        "options": {
            "lateness": "split",
            "checkpoint": {"interval": {"size": 500, "unit": "ms"}},
            "dlq": {"connectionName": "theirs", "topic": f"{name}-dlq"},
        },
    })  # fmt: skip


def wanted(name: str, records: int) -> Counter[tuple[Any, ...]]:
    """The output, without the product."""
    good = [n for n in range(records) if n % 100 != 99]
    if name == "copy":
        return Counter((n, 2 * n) for n in good if n % 3)
    if name == "windows":
        groups: dict[tuple[int, str], list[int]] = {}
        for n in good:
            groups.setdefault(((START_MS + n * STEP_MS) // WINDOW_MS, f"k{n % KEYS}"), []).append(n)
        return Counter((key, len(ns), sum(ns)) for (_, key), ns in groups.items())
    found: Counter[tuple[Any, ...]] = Counter()
    clocks = [n for n in good if n % 10 == 0]
    for n in good:
        pairs = [m for m in clocks if m % KEYS == n % KEYS and 0 <= (n - m) * STEP_MS <= WINDOW_MS]
        found.update((n, m) for m in pairs)
        if not pairs:
            found[n, None] += 1
    return found


def row_of(name: str, row: dict[str, Any]) -> tuple[Any, ...]:
    """A row of the output, as `wanted` has it."""
    if name == "copy":
        return row["n"], row["double"]
    return (row["_id"], row["count"], row["sum"]) if name == "windows" else (row["n"], row.get("other"))


@asynccontextmanager
async def theirs(cluster: Cluster, folder: Path) -> AsyncIterator[AnyBroker]:
    """The user's broker, started; gone at the end."""
    port, controller = map(Port, cluster.ports)
    settings = BrokerSettings(
        data_dir=folder / "theirs", overrides=cluster.properties, port=port, controller_port=controller
    )
    broker = AnyBroker(cluster.version, settings)
    try:
        address = await broker.start()
        if cluster.quota:
            words = ("--alter", "--add-config", cluster.quota, "--entity-type", "clients", "--entity-default")
            await broker.tool("kafka.admin.ConfigCommand", "--bootstrap-server", address, *words)
        yield broker
    finally:
        broker.end()


class _Whole(AnyBroker):
    """The broker of an installation that lies whole on the user's cluster."""

    async def stop(self) -> None:
        """ZooKeeper, too."""
        await super().stop()
        self.end()


@asynccontextmanager
async def _standing(cluster: Cluster, folder: Path, address: str) -> AsyncIterator[Installation]:
    environment = {
        "TIDEMARK_RUNTIME": json.dumps({"engine": "local"}),
        "TIDEMARK_EXTRA": "{}",
    }
    if cluster.where == "theirs":
        async with installation(folder, {**environment, "THEIRS": address}, WORKERS) as there:
            yield there
        return

    def made(settings: BrokerSettings) -> AnyBroker:
        properties = {**settings.overrides, **cluster.properties}
        return _Whole(cluster.version, replace(settings, overrides=properties))

    with patch("tidemark.services.local.supervisor.LocalBroker", made):
        async with installation(folder, {**environment, "THEIRS": ""}, WORKERS) as there:
            yield there


async def run(cluster: Cluster, folder: Path, seed: int = 1) -> list[str]:
    """What did not hold; nothing where all is as it must be."""
    if cluster.where == "theirs":
        async with (
            theirs(cluster, folder) as broker,
            _standing(cluster, folder / "run", cluster.address or broker.bootstrap) as there,
        ):
            return await _story(cluster, there, folder / "run", broker, seed)
    async with _standing(cluster, folder / "run", "") as there:
        return await _story(cluster, there, folder / "run", None, seed)


async def _story(cluster: Cluster, there: Installation, folder: Path, broker: AnyBroker | None, seed: int) -> list[str]:
    chance = random.Random(seed)
    address = broker.bootstrap if broker else there.cluster.bootstrap
    log = KafkaLog(KafkaSettings(bootstrap=address, client="user", message_bytes_max=2_000))  # fits small topics, too
    try:
        await grant(address, cluster.rights)
        for topic, partitions in _topics().items():
            await log.create_topic(topic, partitions, cluster.topics)
        half = cluster.records // 2
        await _send(log, 0, half)
        for name in NAMES:
            await there.ensure_started(ProcessorName(name), document(name, cluster), {})
        for name in NAMES:
            await there.until_running(ProcessorName(name))
        await SystemClock().sleep_ms(cluster.idle_ms)
        quiet = asyncio.Lock()
        sending = asyncio.create_task(_slowly(log, half, cluster.records, quiet))
        for _ in range(cluster.kills):
            await SystemClock().sleep_ms(chance.randint(1_000, 3_000))
            if cluster.broken and broker is not None and chance.random() < 0.5:
                async with quiet:
                    broker.kill()
                    await broker.start()
                    await patiently(SystemClock(), partial(log.topic_rules, ["events"]))  # with ZooKeeper, not at once
                continue
            kill(there, chance.choice(KILLED))
        await sending
        wrong = [said for name in NAMES for said in await ended(cluster, there, log, folder, ProcessorName(name))]
    finally:
        await log.close()
    return wrong


def _shown(cluster: Cluster) -> str:
    return "${LOCAL_KAFKA}" if cluster.where == "whole" else "${THEIRS}"


def _topics() -> dict[str, int]:
    made = {"events": PARTITIONS, "clocks": 1}
    for name in NAMES:
        made |= {f"{name}-out": PARTITIONS, f"{name}-dlq": 1}
    return made


async def _send(log: Log, first: int, end: int) -> None:
    writer = await log.writer("feeder")
    sent = []
    for n in range(first, end):
        at = TopicPartition("events", n % PARTITIONS)
        sent.append(await writer.send(at, NewRecord(record(n), key=b"%d" % n)))
        if n % 10 == 0:
            sent.append(await writer.send(TopicPartition("clocks", 0), NewRecord(record(n), key=b"%d" % n)))
    await asyncio.gather(*sent)
    await writer.close()


async def _slowly(log: Log, first: int, end: int, quiet: asyncio.Lock) -> None:
    """In pieces, a producer each; the broker is not killed meanwhile: what a producer sent then may be there or not."""
    size = max(1, (end - first) // 20)
    for begin in range(first, end, size):
        async with quiet:
            await _send(log, begin, min(begin + size, end))
        await SystemClock().sleep_ms(200)


def kill(there: Installation, place: str) -> None:
    """The process of a place, if it runs."""
    with contextlib.suppress(ProcessLookupError, KeyError):
        os.kill(there.cluster.pids()[place], signal.SIGKILL)


async def ended(cluster: Cluster, there: Installation, log: Log, folder: Path, name: ProcessorName) -> list[str]:
    """The processor drains: what differs from the oracle, and what the audit says."""
    try:
        async with asyncio.timeout(ENDED_S):
            with contextlib.suppress(RequestRefused):  # it has failed
                await there.client.request(StopProcessor(there.client.unique(), name, drain=True))
            status = await there.until_ended(name)
    except TimeoutError:
        status = (await there.client.statuses())[name]
        return [f"{name}: not ended: {status.state} {status.reason}"]
    if status.state != "FINISHED":
        return [f"{name}: {status.state}: {status.reason}"]
    rows = [json.loads(r.value or b"") async for r in committed_records(log, f"{name}-out")]
    found, right = Counter(row_of(name, row) for row in rows), wanted(name, cluster.records)
    wrong = []
    if found != right:
        wrong.append(f"{name}: more {(found - right).most_common(3)}, missing {(right - found).most_common(3)}")
    letters = [r async for r in committed_records(log, f"{name}-dlq")]
    if len(letters) != cluster.records // 100:
        wrong.append(f"{name}: {len(letters)} dead letters of {cluster.records // 100}")
    try:
        await audit_local(name, folder)
    except Exception as error:  # noqa: BLE001 - whatever the audit finds is told
        wrong.append(f"{name}: audit: {type(error).__name__}: {error}")
    return wrong
