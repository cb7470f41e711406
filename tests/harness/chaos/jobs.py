"""What runs under faults: a job that goes on from round to round, and one that each round begins anew and drains.

A record has a number of its own, and all that comes out says whose numbers it is made of. So what must come out follows from
what the source topic holds, without knowing anything of how it was computed (oracle.py).
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.ports.log import Log, LogError, NewRecord, TopicPartition

STEADY = ProcessorName("steady")
ROUND_MS = 600_000
"""Event time between the begins of two rounds: all windows of one are closed when the next one's first records are there."""
STEP_MS = 50
"""Event time between two records."""
DELAY_S = 10
JOINED_S = 20
"""Rows of some hundred records wait in a join."""
LATE_MS = 400_000
"""So far back that a window is closed, whatever its split's watermark is within a round."""
PARTITIONS = 3
_REPEATED, _LATE = 0.03, 0.01
_RECENT = 60
"""A record that is sent again is one of so many last ones."""
_SLICES_PER_S = 5
_RETRY_S = 0.5


@dataclass(frozen=True)
class Sent:
    """A record to send."""

    partition: int
    id: str
    key: str
    at_ms: int
    late: bool = False

    def value(self) -> bytes:
        """As it is written."""
        return json.dumps({"id": self.id, "k": self.key, "at": self.at_ms}).encode()


@dataclass(frozen=True)
class Job:
    """A processor, its source, and where its output lies."""

    name: ProcessorName
    document: str
    partitions: int
    tasks: dict[str, int]
    topic: str | None = None
    """Of its output."""
    letters: str | None = None
    folder: Path | None = None
    table: Path | None = None
    """A SQLite file with a table `seen`."""
    middle: str = "plain"
    """What its records go through: "plain", "marks" (a computation numbers the records of each key), "window" or "join"."""
    wholly: bool = True
    """Whether an id counts once, however often it was sent."""

    @property
    def source(self) -> str:
        """The topic that it reads."""
        return f"{self.name}.in"


def _source(name: str, **more: Any) -> dict[str, Any]:
    watermark = {"strategy": "boundedDisorder", "maxDelay": {"size": DELAY_S, "unit": "second"}}
    return {
        "$source": {
            "connectionName": "broker",
            "topic": f"{name}.in",
            "config": {"auto_offset_reset": "earliest"},
            "timeField": {"$toDate": "$at"},
            "schema": {"id": "string", "k": "string", "at": "long"},
            "watermark": watermark,
            **more,
        }
    }


WINDOW = {
    "$tumblingWindow": {
        "interval": {"size": 10, "unit": "second"},
        "allowedLateness": {"size": 0, "unit": "second"},
        "pipeline": [{"$group": {"_id": "$k", "n": {"$sum": 1}, "ids": {"$push": "$id"}}}],
    }
}


def _document(name: str, out: Path, interval_ms: int, *stages: dict[str, Any], letters: bool = True) -> str:
    queue = {"dlq": {"connectionName": "broker", "topic": f"{name}.late"}} if letters else {}
    return json.dumps({
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"},
            "files": {"type": "files", "path": str(out)},
            "table": {"type": "sql", "url": f"sqlite:///{out / name}.db"},
        },
        "pipeline": list(stages),
        "options": {"lateness": "split", "checkpoint": {"interval": {"size": interval_ms, "unit": "ms"}}, **queue},
    })  # fmt: skip


def _to_topic(name: str) -> dict[str, Any]:
    return {"$emit": {"connectionName": "broker", "topic": f"{name}.out"}}


def _to_files(name: str, form: str) -> dict[str, Any]:
    return {"$emit": {"connectionName": "files", "path": name, "format": form}}


def steady(out: Path) -> Job:
    """Windows on Spark behind a shuffle by record id, into a table and a topic, with dead letters."""
    stages = (_source(STEADY, recordId="$id"), WINDOW, _to_files(STEADY, "parquet"), _to_topic(STEADY))
    tasks = {"source": 2, "operator": 2, "sink": 2}
    return Job(
        STEADY, _document(STEADY, out, 500, *stages), PARTITIONS, tasks, f"{STEADY}.out", f"{STEADY}.late", out / STEADY, middle="window"
    )  # fmt: skip


def _joined_with_itself(source: dict[str, Any]) -> list[dict[str, Any]]:
    """Each record meets those of its key; it goes on with itself alone."""
    within = {"size": JOINED_S, "unit": "second"}
    return [
        {
            "$join": {
                "from": [source],
                "leftKey": "$k",
                "rightKey": "$k",
                "within": {"before": within, "after": within},
                "type": "inner",
                "as": "other",
            }
        },
        {"$match": {"$expr": {"$eq": ["$id", "$other.id"]}}},
        {"$project": {"id": 1, "k": 1}},
    ]


def drawn(chance: random.Random, number: int, out: Path) -> Job:
    """A pipeline by chance: with computation, window, join or none of them, one to three kinds of sink, any number of tasks."""
    name = ProcessorName(f"drained-{number}")
    middle = chance.choice(["plain", "marks", "window", "join"])
    partitions = chance.randint(1, 4)
    # A join would make pairs of a record that came twice.
    scope = chance.choice(["source", "split"] if middle == "join" else [None, None, "source", "split"])
    ids = {} if scope is None else {"recordId": "$id", "recordIdScope": scope}
    targets = chance.sample(["topic", "files", "table"], chance.randint(1, 3))
    if middle == "window" and "table" in targets:
        targets = ["topic", "files"]
    order = chance.choice(["arrival", "eventTime"])
    made: dict[str, list[dict[str, Any]]] = {
        "plain": [{"$addFields": {"twice": {"$concat": ["$id", "$id"]}}}],
        "marks": [{"$compute": {"class": "tests.harness.computations:Marks", "key": "$k", "order": order}}],
        "window": [WINDOW],
        "join": _joined_with_itself(_source(name, **ids)),
    }
    # Parquet wants types, and a computation's are not declared.
    form = chance.choice(["json", "parquet"]) if middle != "marks" else "json"
    ends = {
        "topic": _to_topic(name),
        "files": _to_files(name, form),
        "table": {"$merge": {"into": {"connectionName": "table", "table": "seen"}, "on": ["id"]}},
    }
    stages = [_source(name, **ids), *made[middle]]
    if "table" in targets:
        # The last of a stage's way: what the table has no columns for.
        stages.append({"$project": {"id": 1, "k": 1, **({"seen": 1} if middle == "marks" else {})}})
    stages += [ends[target] for target in targets]
    tasks = {"source": chance.randint(1, 2), "operator": chance.randint(1, 3), "sink": chance.randint(1, 2)}
    return Job(
        name,
        _document(name, out, chance.choice([200, 500, 2_000]), *stages, letters=middle == "window"),
        partitions,
        tasks,
        topic=f"{name}.out" if "topic" in targets else None,
        letters=f"{name}.late" if middle == "window" else None,
        folder=out / name if "files" in targets else None,
        table=out / f"{name}.db" if "table" in targets else None,
        middle=middle,
        wholly=scope is not None,
    )


def records(job: Job, chance: random.Random, number: int, count: int) -> Iterator[Sent]:
    """Of one round, in the order of sending: a little out of order, and for the steady job some late, and some again elsewhere."""
    begin_ms = 1_000_000_000 + number * ROUND_MS
    last: list[Sent] = []
    for n in range(count):
        partition, key = chance.randrange(job.partitions), f"k{chance.randrange(20)}"
        at_ms = begin_ms + n * STEP_MS
        late = False
        if job.name == STEADY:
            late = number > 0 and chance.random() < _LATE
            at_ms -= LATE_MS if late else chance.randrange(2_000)
        sent = Sent(partition, f"{number}-{n}", key, at_ms, late)
        yield sent
        last = [*last[-_RECENT:], sent]
        if job.name == STEADY and chance.random() < _REPEATED:
            again = chance.choice(last)
            yield Sent((again.partition + 1) % job.partitions, again.id, again.key, again.at_ms, again.late)
    if job.name == STEADY:
        for partition in range(job.partitions):  # closes this round's windows, and is itself of the next
            yield Sent(partition, f"{number}-closes-{partition}", "closes", begin_ms + ROUND_MS - DELAY_S * 1_000)


@dataclass
class Feeder:
    """Sends at a pace; what the broker may or may not have is sent again, for whoever knows ids."""

    log: Log
    job: Job
    sent: int = 0
    again: int = 0
    """Slices that were sent again."""
    late: set[str] = field(default_factory=set)

    async def feed(self, rows: Iterator[Sent], per_s: float) -> None:
        """All of them, acknowledged."""
        loop, began, before = asyncio.get_running_loop(), asyncio.get_running_loop().time(), self.sent
        async for slice_ in _slices(rows, max(1, round(per_s / _SLICES_PER_S))):
            self.late |= {row.id for row in slice_ if row.late}
            await self._send(slice_)
            self.sent += len(slice_)
            await asyncio.sleep(max(0.0, began + (self.sent - before) / per_s - loop.time()))

    async def _send(self, rows: list[Sent]) -> None:
        while True:
            try:
                writer = await self.log.writer("chaos-feeder")
                try:
                    asked = [
                        await writer.send(
                            TopicPartition(self.job.source, row.partition), NewRecord(row.value(), row.key.encode())
                        )
                        for row in rows
                    ]
                    for answer in asked:
                        await answer
                finally:
                    with suppress(LogError):
                        await writer.close()
            except LogError:
                self.again += 1
                await asyncio.sleep(_RETRY_S)
            else:
                return


async def _slices(rows: Iterator[Sent], size: int) -> AsyncIterator[list[Sent]]:
    held: list[Sent] = []
    for row in rows:
        held.append(row)
        if len(held) >= size:
            yield held
            held = []
    if held:
        yield held
