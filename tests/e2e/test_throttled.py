"""A slow target or a skewed key slows the source, and nothing else: memory stays flat, checkpoints go on, and all comes out."""

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import psutil
import psycopg
import pytest

from tests.harness.postgres import postgres
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.model.ids import Offset, ProcessorName
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.ports.log import NewRecord, TopicPartition

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
NAME, TOPIC = ProcessorName("throttled"), "readings"
WORKERS = {"coordinator": 1, "source": 1, "operator": 2, "sink": 1, "spark": 0}
PARTITIONS, KEYS = 2, 100
AHEAD_BYTES, UNCOMMITTED_BYTES = 512 << 10, 1 << 20
QUEUES_BYTES = UNCOMMITTED_BYTES + 2 * AHEAD_BYTES
"""What may be under way: a commit's worth of the source, and W on each of two edges."""
TURNOVERS = 12
RECORD_BYTES = 200
RECORDS = TURNOVERS * QUEUES_BYTES // RECORD_BYTES
GROWTH_MAX = 1.1
"""Of the last third over the first."""
ROW_SLEEP_S = 0.0002
SETTINGS = {
    "engine": "local",
    "fetch_bytes_max": 128 << 10,
    "limits": {"ahead_bytes_max": AHEAD_BYTES, "uncommitted_bytes_max": UNCOMMITTED_BYTES},
}


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of a database with a table for the rows."""
    with postgres() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE seen (id bigint PRIMARY KEY, meter text, seen bigint, junk text)")
        yield url


def slow_down(url: str) -> None:
    """Let the table take its time over each row."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN PERFORM pg_sleep({ROW_SLEEP_S}); RETURN NEW; END $$"
        )
        connection.execute("CREATE TRIGGER slow BEFORE INSERT ON seen FOR EACH ROW EXECUTE FUNCTION slow()")


def document(url: str, computation: str) -> str:
    """Readings, counted by meter, into the table."""
    source = {
        "connectionName": "broker",
        "topic": TOPIC,
        "config": {"auto_offset_reset": "earliest"},
        "timeField": {"$toDate": "$at"},
        "schema": {"id": "long", "meter": "string", "at": "long", "junk": "string"},
    }
    merge = {"into": {"connectionName": "table", "table": "seen"}, "on": ["id"], "whenMatched": "replace"}
    return json.dumps({
        "name": NAME,
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"},
            "table": {"type": "sql", "url": url},
        },
        "pipeline": [
            {"$source": source},
            {"$compute": {"class": f"tests.harness.computations:{computation}", "key": "$meter"}},
            {"$project": {"id": 1, "meter": 1, "seen": 1, "junk": 1}},
            {"$merge": merge},
        ],
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    })  # fmt: skip


def meter_of(number: int) -> str:
    """Every other record is of one meter."""
    return "m0" if number % 2 else f"m{number % KEYS}"


async def fill(there: Installation) -> dict[str, Offset]:
    """All records, before anything reads them; where each partition ends."""
    await there.log.create_topic(TOPIC, PARTITIONS, {"retention.ms": "-1"})
    writer = await there.log.writer("feeder")
    sent: list[Any] = []
    until = dict.fromkeys((f"{TOPIC}-{number}" for number in range(PARTITIONS)), Offset(0))
    for number in range(RECORDS):
        reading = {"id": number, "meter": meter_of(number), "at": 100 * number}
        reading["junk"] = "x" * (RECORD_BYTES - len(json.dumps(reading)) - 12)
        place = TopicPartition(TOPIC, number % PARTITIONS)
        sent.append(await writer.send(place, NewRecord(json.dumps(reading).encode())))
        until[f"{TOPIC}-{place.partition}"] = Offset(until[f"{TOPIC}-{place.partition}"] + 1)
        if len(sent) == 5_000:
            await asyncio.gather(*sent)
            sent.clear()
    await asyncio.gather(*sent)
    await writer.close()
    return until


async def sampled(there: Installation, ended: "asyncio.Task[Any]") -> dict[str, list[int]]:
    """Resident bytes of every process, at each heartbeat, until the processor has ended."""
    found: dict[str, list[int]] = defaultdict(list)
    async for _ in there.client.heartbeats():
        for place, pid in there.cluster.pids().items():
            found[place].append(psutil.Process(pid).memory_info().rss)
        if ended.done():
            break
    return found


async def run(folder: Path, url: str, computation: str) -> tuple[int, dict[str, list[int]]]:
    """Fill, run to the end; how many commits there were, and the samples."""
    environment = {"TIDEMARK_RUNTIME": json.dumps(SETTINGS)}
    async with installation(folder, environment, WORKERS) as there:
        until = await fill(there)
        await there.ensure_started(NAME, document(url, computation), {"source": 1, "operator": 2, "sink": 1})
        await there.until_running(NAME)
        await there.client.request(StopProcessor(there.client.unique(), NAME, drain=True, until=until))
        ended = asyncio.create_task(there.until_ended(NAME))
        samples = await sampled(there, ended)
        status = await ended
        assert status.state == "FINISHED", f"{status.state}: {status.reason}"
        assert status.generation == 1, "something failed in between"
        return status.commits, samples


@pytest.mark.parametrize("slow", ["target", "key"])
def test_what_is_slow_keeps_memory_flat(tmp_path: Path, database: str, slow: str) -> None:
    """Over a dozen turnovers of all queues no process takes a tenth more in the last third than in the first."""
    if slow == "target":
        slow_down(database)
    commits, samples = asyncio.run(run(tmp_path / "data", database, "Skewed" if slow == "key" else "Marks"))
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT count(*), count(DISTINCT id), sum(id), max(seen) FROM seen").fetchone()
    of_one = sum(meter_of(number) == "m0" for number in range(RECORDS))
    assert found == (RECORDS, RECORDS, RECORDS * (RECORDS - 1) // 2, of_one)
    assert commits >= TURNOVERS
    grown = {place: _growth(place, sizes) for place, sizes in samples.items()}
    assert max(grown.values()) <= GROWTH_MAX, grown


def _growth(place: str, sizes: list[int]) -> float:
    """The last third over the first; told with the means of tenths, MiB."""
    third, tenth = len(sizes) // 3, len(sizes) // 10
    growth = mean(sizes[-third:]) / mean(sizes[:third])
    course = " ".join(f"{mean(sizes[n * tenth : (n + 1) * tenth]) / 2**20:.0f}" for n in range(10))
    sys.stdout.write(f"{place:14} {len(sizes):4} samples, x {growth:.3f}: {course} MiB\n")
    return growth
