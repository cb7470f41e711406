"""Checkpoints that wait for no barrier, on processes and a real broker: rows in flight come out once, also over kills.

`python -m tests.e2e.test_unaligned` prints the table of `tests/bench/README.md`.
"""

import asyncio
import json
import random
import signal
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.feed import Fed, feed
from tidemark.services.cli.installation import Installation, installation
from tidemark.services.cli.process import quiet
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StopProcessor

pytestmark = pytest.mark.e2e
NAME = ProcessorName("pressed")
WORKERS = {"coordinator": 1, "source": 1, "operator": 2, "sink": 1, "spark": 0, "control": 0}
RECORDS, PARTITIONS, RECORD_BYTES = 12_000, 2, 200
ASKING_BYTES = 2_000
"""Of a record, where what lies in front of a barrier is to be much more than what a task has already taken from the log."""
STARTING = 1
"""Checkpoints that no figure counts: processes begin, and what is ahead is still little; nor the last, when nothing is ahead any more."""
COMMITS = 3
"""Between two kills."""


def document(timeout_ms: int | None, class_: str, order: str) -> str:
    """Each record gets its number among those of its key; every other record is of a key that takes its time."""
    source = {
        "connectionName": "broker",
        "topic": "in",
        "config": {"auto_offset_reset": "earliest"},
        "schema": {"n": "int", "meter": "string", "junk": "string"},
    }
    checkpoint: dict[str, Any] = {"interval": {"size": 200, "unit": "ms"}}
    if timeout_ms is not None:
        checkpoint["alignmentTimeout"] = {"size": timeout_ms, "unit": "ms"}
    return json.dumps({
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
        "pipeline": [
            {"$source": source},
            {"$compute": {"class": f"tests.harness.computations:{class_}", "key": "$meter", "order": order}},
            {"$project": {"n": 1, "meter": 1, "seen": 1}},
            {"$emit": {"connectionName": "broker", "topic": "out"}},
        ],
        "options": {"checkpoint": checkpoint},
    })  # fmt: skip


def meter_of(number: int) -> str:
    """Half are of one meter."""
    return "m0" if number % 2 else f"m{1 + number % 100}"


def settings(ahead_bytes: int) -> dict[str, str]:
    """Sources may be so far ahead; fetches are small, so that a piece of work is."""
    limits = {"limits": {"ahead_bytes_max": ahead_bytes, "uncommitted_bytes_max": 64 << 20}}
    return {"TIDEMARK_RUNTIME": json.dumps({"engine": "local", "fetch_bytes_max": 16 << 10, **limits})}


Beside = Callable[[Installation], Awaitable[None]]


async def run(
    folder: Path,
    ahead_bytes: int,
    timeout_ms: int | None,
    beside: Beside | None = None,
    asks: bool = False,
    order: str = "eventTime",
) -> list[int]:
    """Feed all, drain, look at what came out; how long the checkpoints took, ms."""
    took: dict[int, int] = {}
    async with installation(folder, settings(ahead_bytes), WORKERS) as there:
        await there.log.create_topic("in", PARTITIONS, {"retention.ms": "-1"})
        await there.log.create_topic("out", 1, {"retention.ms": "-1"})
        junk = random.Random(1)  # what is always the same takes no room on an edge
        records = (
            json.dumps(
                {
                    "n": n,
                    "meter": meter_of(n),
                    "junk": junk.randbytes((ASKING_BYTES if asks else RECORD_BYTES) // 2 - 20).hex(),
                }
            ).encode()
            for n in range(RECORDS)
        )
        rows = [(n % PARTITIONS, b"", record) for n, record in enumerate(records)]
        await feed(there.log, "in", rows, len(rows), 0.0, Fed())
        await there.ensure_started(
            NAME, document(timeout_ms, "Asking" if asks else "Skewed", order), {"source": 1, "operator": 2}
        )
        await there.until_running(NAME)
        if beside is not None:
            await beside(there)
            await there.until_running(NAME)
        await there.client.request(StopProcessor(there.client.unique(), NAME, drain=True))
        async for status in there.client.watch(NAME):
            assert status.state != "FAILED", status.reason
            took.setdefault(status.commits, status.epoch_ms)
            if status.state == "FINISHED":
                break
        found = [json.loads(r.value or b"") async for r in committed_records(there.log, "out")]
    assert Counter(row["n"] for row in found) == Counter(range(RECORDS))
    per_key = Counter(meter_of(n) for n in range(RECORDS))
    counted = Counter((row["meter"], row["seen"]) for row in found)
    assert counted == Counter((meter, seen) for meter, all_ in per_key.items() for seen in range(1, all_ + 1))
    return [ms for _, ms in sorted(took.items()) if ms]


async def test_rows_in_flight_come_out_once_while_operators_and_sources_die(tmp_path: Path) -> None:
    """Each behind a few commits under pressure; every record comes out once, and each key's state has counted each of its records once."""

    async def kills(there: Installation) -> None:
        for place in ("operator-0", "source-0", "operator-1"):
            since: int | None = None
            async for status in there.client.watch(NAME):
                if since is None and status.state == "RUNNING":
                    since = status.commits
                if since is not None and status.commits >= since + COMMITS:
                    break
            there.cluster.kill(place, signal.SIGKILL)

    await run(tmp_path, 256 << 10, 0, kills)


def _table() -> None:
    quiet()
    for ahead_bytes in (1 << 19, 1 << 21, 1 << 23):
        for timeout_ms, order in ((None, "eventTime"), (0, "eventTime"), (0, "arrival")):
            with tempfile.TemporaryDirectory() as folder:
                took = asyncio.run(run(Path(folder), ahead_bytes, timeout_ms, asks=True, order=order))
            took = took[STARTING:-1] or took
            found = f"{len(took)} checkpoints, median {statistics.median(took):.0f} ms, longest {max(took)} ms"
            sys.stdout.write(f"{ahead_bytes} {timeout_ms} {order}: {found}\n")


if __name__ == "__main__":
    _table()
