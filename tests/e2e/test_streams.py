"""Streams that meet, by real processes over a real broker: a union joined with a third stream, what it gives looked up in a database."""

import asyncio
import contextlib
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.faults import Kill, orders
from tests.oracle.joins import Row, joined, on_time
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.feed import Fed, feed
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.ids import Offset, ProcessorName
from tidemark.shared.model.messages import ProcessorStatus, StopProcessor
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.runtime.reading import followed

pytestmark = pytest.mark.e2e
NAME = ProcessorName("streams")
DELAY_MS, BEFORE_MS, AFTER_MS = 3_000, 1_000, 4_000
CUSTOMERS = 20
WORKERS = {"coordinator": 1, "source": 1, "operator": 1, "sink": 1, "spark": 0}
Splits = list[list[Row]]


def stream(chance: random.Random, count: int, first: int) -> Splits:
    """Rows of two partitions, one a tenth of a second, out of order and some of them late."""
    splits: Splits = [[], []]
    for number in range(count):
        late_ms = chance.choices((chance.randrange(2_500), 9_000), (98, 2))[0]
        split = chance.randrange(2)
        row = Row(split, len(splits[split]), max(0, 100 * number - late_ms), chance.randrange(60), first + number)
        splits[split].append(row)
    return splits


def document(database: Path) -> dict[str, Any]:
    """The pipeline: two topics flow together, meet a third, and know their customers."""

    def source(topic: str) -> dict[str, Any]:
        strategy = {"strategy": "boundedDisorder", "maxDelay": {"size": DELAY_MS, "unit": "ms"}}
        return {"$source": {
            "connectionName": "broker", "topic": topic, "config": {"auto_offset_reset": "earliest"},
            "timeField": {"$toDate": "$at"}, "schema": {"at": "long", "k": "int", "v": "int"}, "watermark": strategy,
        }}  # fmt: skip

    within = {"before": {"size": BEFORE_MS, "unit": "ms"}, "after": {"size": AFTER_MS, "unit": "ms"}}
    joining = {
        "from": [source("paid")],
        "leftKey": "$k",
        "rightKey": "$k",
        "within": within,
        "type": "full",
        "as": "paid",
    }
    asking = {
        "from": {"connectionName": "db", "table": "customer"},
        "localField": "k",
        "foreignField": "id",
        "as": "customer",
    }
    return {
        "name": NAME,
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"},
            "db": {"type": "sql", "url": f"sqlite:///{database}"},
        },
        "pipeline": [
            source("shop"),
            {"$union": {"pipelines": [[source("web"), {"$addFields": {"web": True}}]]}},
            {"$join": joining},
            {"$cachedLookup": {**asking, "ttl": {"size": 1, "unit": "ms"}}},
            {"$emit": {"connectionName": "broker", "topic": "seen"}},
            {"$emit": {"connectionName": "broker", "topic": "out"}},
        ],
        "options": {
            "lateness": "split",
            "dlq": {"connectionName": "broker", "topic": "late"},
            "checkpoint": {"interval": {"size": 300, "unit": "ms"}},
        },
    }  # fmt: skip


async def run(folder: Path, streams: Mapping[str, Splits], kills: Sequence[Kill]) -> dict[str, list[dict[str, Any]]]:
    """Feed, drain; what the output topics hold, read committed."""
    text = json.dumps(document(folder / "customers.db"))
    environment = {"TIDEMARK_KILL_AT": orders(kills, folder)}
    tasks = {"source": 2, "operator": 2, "sink": 1}
    async with installation(folder / "data", environment, WORKERS) as there:
        for topic, count in (*((topic, 2) for topic in streams), ("seen", 1), ("out", 1), ("late", 1)):
            await there.log.create_topic(topic, count, {"retention.ms": "-1"})
        await there.ensure_started(NAME, text, tasks)
        await there.until_running(NAME)
        killed = asyncio.create_task(_until_killed(there, folder, kills))
        renaming = asyncio.create_task(_renamed(there, folder / "customers.db"))
        told = await asyncio.gather(*(_feed(there, topic, splits, killed) for topic, splits in streams.items()))
        until = {name: offset for each in told for name, offset in each.items()}
        await there.client.request(StopProcessor(there.client.unique(), NAME, drain=True, until=until))
        status: ProcessorStatus = await there.until_ended(NAME)
        renaming.cancel()
        assert status.state == "FINISHED", f"{status.state}: {status.reason}"
        found = ("out", "late", "seen")
        return {t: [json.loads(r.value or b"") async for r in committed_records(there.log, t)] for t in found}


async def _renamed(there: Installation, database: Path) -> None:
    """At every heartbeat all customers have another name: whoever asks again gets another answer."""
    async for _ in there.client.heartbeats():
        _rename(database)


def _rename(database: Path) -> None:
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as opened, opened:
        opened.execute("UPDATE customer SET name = name || '/'")


async def _until_killed(there: Installation, folder: Path, kills: Sequence[Kill]) -> None:
    """And something has come out, which knows its customers by the names that they had."""
    async for _ in there.client.heartbeats():
        if all(kill.record(folder).exists() for kill in kills):
            break
    async for _ in followed(there.log, SystemClock(), TopicPartition("out", 0), committed_only=True):
        _rename(folder / "customers.db")
        return


async def _feed(there: Installation, topic: str, splits: Splits, killed: asyncio.Task[None]) -> dict[str, Offset]:
    """Half of the rows, and the rest once the processes that are to be killed have been, and customers were renamed."""
    rows = sorted((row for split in splits for row in split), key=lambda row: row.value)
    records = [
        (r.split, str(r.key).encode(), json.dumps({"at": r.time_ms, "k": r.key, "v": r.value}).encode()) for r in rows
    ]
    fed = Fed()

    async def hold(sent: int) -> None:
        if sent >= len(records) // 2:
            await asyncio.shield(killed)

    await feed(there.log, topic, records, len(records), 5.0, fed, hold)
    return {f"{topic}-{partition}": offset for partition, offset in fed.acked.items()}


def test_three_topics_and_a_database_meet_exactly_once_through_kills(tmp_path: Path) -> None:
    """Pairs, rows without a match, late rows and customers are the oracle's, each once, though operators and sources are killed.

    Customers' names change all the time, so that a lookup that is done again gives another answer. Yet of each row there is one answer, and
    both sinks have it: an effect outside never has an input that a replay changes.
    """
    chance = random.Random(7)
    streams = {name: stream(chance, 400, first) for first, name in ((0, "shop"), (10_000, "web"), (20_000, "paid"))}
    with sqlite3.connect(tmp_path / "customers.db") as database:
        database.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT)")
        database.executemany("INSERT INTO customer VALUES (?, ?)", [(i, f"c{i}") for i in range(CUSTOMERS)])
    kills = [Kill("operator-0", "snapshot-taken", 9), Kill("source-0", "state-durable", 14)]
    found = asyncio.run(run(tmp_path, streams, kills))
    assert all(kill.record(tmp_path).exists() for kill in kills), "a process was not killed"

    timely = {name: on_time(splits, DELAY_MS) for name, splits in streams.items()}
    # Rows of the two left streams are told apart by their values: the oracle knows a row by (split, position).
    left = [Row(r.value, 0, r.time_ms, r.key, r.value) for name in ("shop", "web") for r in timely[name][0]]
    pairs = joined(left, timely["paid"][0], BEFORE_MS, AFTER_MS, "full")
    out = found["out"]
    assert Counter((d.get("v"), d["paid"] and d["paid"]["v"]) for d in out) == Counter((p.left, p.right) for p in pairs)
    assert len({p.right for p in pairs if p.left is None}) > 10
    assert len({p.left for p in pairs if p.right is None}) > 10
    for d in out:
        known = d.get("k", CUSTOMERS) < CUSTOMERS
        assert [(c["id"], c["name"].partition("/")[0]) for c in d["customer"]] == (
            [(d["k"], f"c{d['k']}")] if known else []
        )
        assert d.get("web", False) == (d.get("v", 0) >= 10_000)
    assert Counter(map(_as_text, found["seen"])) == Counter(map(_as_text, out)), "the two sinks saw different answers"
    assert len({c["name"] for d in out for c in d["customer"]}) > CUSTOMERS, "no name has changed in time"
    late = Counter(row.value for _, rows in timely.values() for row in rows)
    assert Counter(letter["doc"]["v"] for letter in found["late"]) == late
    assert len(late) > 5
    topics = {letter["doc"]["v"] // 10_000: letter["_stream_meta"]["source"].get("topic") for letter in found["late"]}
    assert set(topics) == {0, 1, 2}


def _as_text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True)
