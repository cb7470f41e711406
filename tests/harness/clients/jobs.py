"""Processors over topics that clients filled: each committed record comes once, as a result or a dead letter, for every reader."""

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.harness.clients.drawing import coded
from tests.harness.clients.oracle import TARGET_BYTES_MAX, expected
from tests.harness.clients.running import Row, consumed, ran
from tests.harness.clients.standing import Brokers, ends_of, make
from tests.harness.clusters.jobs import WORKERS
from tidemark.services.audit.check import audit_local
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.ids import ProcessorName

READERS: Final = ("librdkafka", "franz", "sarama", "kafkajs")
"""Of the targets, beside Java's. kafkago shows the markers of transactions as records, and rskafka stops at them."""
TARGET_PARTITIONS: Final = 5
WINDOW_MS: Final = 3_600_000
ENDED_S: Final = 120.0
Place = tuple[str, int, int]


@dataclass(slots=True)
class Found:
    """What did not hold, in sentences."""

    wrong: list[str] = field(default_factory=list)

    def same(self, what: str, found: Any, right: Any) -> None:
        """Both are equal."""
        if found != right:
            self.wrong.append(f"{what}: found {str(found)[:300]}, expected {str(right)[:300]}")


def document(address: str, topics: list[str], name: str, middle: list[dict[str, Any]], emit: dict[str, Any]) -> str:
    """A processor's, over all of these topics to their ends."""
    source = {
        "connectionName": "theirs",
        "topic": topics,
        "config": {"startAt": "earliest"},
        "until": "latest",
        "watermark": {"strategy": "boundedDisorder", "maxDelay": {"size": 40_000, "unit": "day"}},
    }
    return json.dumps({
        "connections": {"theirs": {"type": "kafka", "bootstrapServers": address}},
        "pipeline": [{"$source": source}, *middle, {"$emit": {"connectionName": "theirs", "topic": f"{name}-out", **emit}}],
        "options": {
            "dlq": {"connectionName": "theirs", "topic": f"{name}-dlq"},
            "checkpoint": {"interval": {"size": 300, "unit": "ms"}},
        },
    })  # fmt: skip


async def run(there: Installation, folder: Path, name: str, text: str, found: Found, *, kills: int = 0) -> None:
    """Run it to its end, with kills of its sink, and audit it."""
    await there.ensure_started(ProcessorName(name), text, {})
    for _ in range(kills):
        await SystemClock().sleep_ms(700)
        with contextlib.suppress(ProcessLookupError, KeyError):
            os.kill(there.cluster.pids()["sink-0"], signal.SIGKILL)
    try:
        async with asyncio.timeout(ENDED_S):
            status = await there.until_ended(ProcessorName(name))
    except TimeoutError:
        status = (await there.client.statuses())[ProcessorName(name)]
    if status.state != "FINISHED":
        found.wrong.append(f"{name}: {status.state} {status.reason}")
        return
    try:
        await audit_local(ProcessorName(name), folder)
    except Exception as error:  # noqa: BLE001 - whatever the audit finds is told
        found.wrong.append(f"{name}: audit: {type(error).__name__}: {error}")


def _place(source: dict[str, Any]) -> Place:
    return source["topic"], source["partition"], source["offset"]


def compare_copies(found: Found, rows: dict[str, list[Row]], out: list[Row], letters: list[Row]) -> None:
    """Each record once, where it belongs."""
    good, dead = expected(rows, TARGET_BYTES_MAX)
    came: dict[Place, dict[str, Any]] = {}
    for row in out:
        made = json.loads(row.value or b"")
        place = _place(made.pop("s"))
        if place in came:
            found.wrong.append(f"{place} came twice")
        came[place] = made
    told = Counter(_place(json.loads(row.value or b"")["_stream_meta"]["source"]) for row in letters)
    unlike = [place for place in good.keys() & came.keys() if good[place] != came[place]]
    for place in unlike[:3]:
        found.same(f"{place}", came[place], good[place])
    values = {(topic, r.partition, r.offset): r.value for topic, some in rows.items() for r in some}
    for place in sorted(told.keys() - dead)[:5]:
        found.wrong.append(f"a dead letter instead of a document: {(values[place] or b'')[:100]!r}")
    for place in sorted(dead & came.keys())[:5]:
        found.wrong.append(f"a document instead of a dead letter: {(values[place] or b'')[:100]!r}")
    found.same("documents that came too much", sorted(came.keys() - good.keys())[:3], [])
    found.same("documents that are missing", sorted(good.keys() - came.keys())[:3], [])
    found.same("dead letters", sorted((told - Counter(dead)).items())[:3], [])
    found.same("missing dead letters", sorted((Counter(dead) - told).items())[:3], [])


def compare_windows(found: Found, rows: dict[str, list[Row]], out: list[Row]) -> None:
    """The counts of each hour and topic."""
    good, _ = expected(rows)
    times = {(topic, r.partition, r.offset): r.time_ms or 0 for topic, some in rows.items() for r in some}
    right = Counter((topic, times[topic, p, o] // WINDOW_MS * WINDOW_MS) for topic, p, o in good)
    came: Counter[tuple[str, int]] = Counter()
    for row in out:
        made = json.loads(row.value or b"")
        came[made["_id"], int(made["at"])] += made["n"]
    found.same("windows that came too much", (came - right).most_common(5), [])
    found.same("windows that are missing", (right - came).most_common(5), [])


async def story(
    brokers: Brokers, address: str, rows: dict[str, list[Row]], folder: Path, tag: str, kinds: tuple[str, ...] = ()
) -> list[str]:
    """A copy and windows over these topics, with each format of keys; their outputs read by each client. What did not hold."""
    found, topics = Found(), list(rows)
    stage = {"$addFields": {"s": {"$meta": "stream.source"}}}
    group = {"_id": "$s.topic", "n": {"$sum": 1}}
    interval = {"size": WINDOW_MS, "unit": "ms"}
    window = {"$tumblingWindow": {"interval": interval, "pipeline": [{"$group": group}]}}
    begin = {"$addFields": {"at": {"$toLong": {"$meta": "stream.window.start"}}}}
    headers = {"topic": "$s.topic", "empty": "", "binary": "$s.key"}
    emits: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
        "copy": ([stage], {"config": {"key": "$s.topic", "keyFormat": "string", "headers": headers}}),
        "window": ([stage, window, begin], {}),
        "json": ([stage], {"config": {"key": {"a": "$s.offset", "b": "$s.topic"}, "keyFormat": "json"}}),
        "long": ([stage], {"config": {"key": {"$toLong": "$s.offset"}, "keyFormat": "long"}}),
        "int": ([stage], {"config": {"key": {"$toInt": "$s.offset"}, "keyFormat": "int"}}),
        "double": ([stage], {"config": {"key": {"$toDouble": "$s.offset"}, "keyFormat": "double"}}),
        "binData": ([stage], {"config": {"key": "$s.key", "keyFormat": "binData"}}),
    }
    environment = {"TIDEMARK_RUNTIME": json.dumps({"engine": "local"}), "TIDEMARK_EXTRA": "{}"}
    async with installation(folder, environment, WORKERS) as there:
        for kind, (middle, emit) in emits.items():
            if kinds and kind not in kinds:
                continue
            name = f"{kind}-{tag}"
            await make(address, f"{name}-out", {}, TARGET_PARTITIONS)
            await make(address, f"{name}-dlq", {}, 1)
            text = document(address, topics, name, middle, emit)
            await run(there, folder, name, text, found, kills=2 if kind == "copy" else 0)
            out = await targets_of(brokers, address, f"{name}-out", found, all_readers=kind in ("copy", "binData"))
            await _partitioned(brokers, name, out, found)
            letters = await consumed(
                "librdkafka", brokers.built, address, f"{name}-dlq", await ends_of(address, f"{name}-dlq", 1)
            )
            if kind == "window":
                compare_windows(found, rows, out)
            else:
                compare_copies(found, rows, out, letters)
    return found.wrong


async def targets_of(brokers: Brokers, address: str, topic: str, found: Found, *, all_readers: bool) -> list[Row]:
    """The committed records of a target as Java reads them; the others read the same."""
    ends = await ends_of(address, topic, TARGET_PARTITIONS)
    right = await consumed("java", brokers.built, address, topic, ends)
    for reader in READERS if all_readers else ():
        try:
            rows = await consumed(reader, brokers.built, address, topic, ends)
        except Exception as error:  # noqa: BLE001 - a reader that fails is a finding
            found.wrong.append(f"{topic}: {reader}: {error}")
            continue
        if [_plain(row) for row in rows] != [_plain(row) for row in right]:
            pairs = [p for p in zip(rows, right, strict=False) if _plain(p[0]) != _plain(p[1])]
            found.wrong.append(f"{topic}: {reader} reads {len(rows)} of {len(right)} records; {str(pairs[:1])[:400]}")
    return right


def _plain(row: Row) -> tuple[Any, ...]:
    """Headers in the order of names: some clients keep them in a map. An empty value of one is null for some."""
    return row.partition, row.offset, row.time_ms, row.key, row.value, sorted((n, v or b"") for n, v in row.headers)


async def _partitioned(brokers: Brokers, name: str, out: list[Row], found: Found) -> None:
    """Keys lie where Java's producer would put them."""
    keyed = [row for row in out if row.key is not None]
    asked: list[dict[str, Any]] = [
        {"bootstrap": "", "partitions": TARGET_PARTITIONS},
        *({"k": coded(row.key)} for row in keyed),
    ]
    right = await ran("java", brokers.built, "partitions", asked)
    found.same(f"{name}: partitions of keys", [r.partition for r in keyed], right)
