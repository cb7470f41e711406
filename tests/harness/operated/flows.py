"""The processors of a walk: their documents, the records that they are sent, and what they must have written."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import aiokafka
from aiokafka.structs import TopicPartition

PARTITIONS: Final = 2
KEYS: Final = 5
STEP_MS: Final = 100
"""Between the event times of two records."""
WINDOW_MS: Final = 10_000
LATE_FROM: Final = 600
"""Records before this one are never late: a late one needs a window before it that has closed."""
LATE_EACH: Final = 50
LATE_MS: Final = 40_000
BAD_EACH: Final = 7
"""Every so many-th record of `letters` does not pass its schema."""
BEGIN_MS: Final = 1_700_000_000_000
SHARED: Final = "shared"
"""The connection of the registry that `copies` names."""
Kind = Literal["counts", "copies", "letters"]
Row = tuple[Any, ...]
Rows = dict[str, Counter[Row]]
"""By topic."""


@dataclass(slots=True)
class Life:
    """From a start without state, or from a kept checkpoint, to the next such one, by what its topics had when it ended."""

    ends: dict[str, int]
    """Rows of each topic, those of earlier lives among them."""
    sent: int
    drained: bool
    """All that was sent was taken: everything must be there, else what is there must be right."""
    path: Rows = field(default_factory=dict)
    """What had come out up to the kept checkpoint that it began from."""
    slack: Rows = field(default_factory=dict)
    """Of this it is not known on which side of that checkpoint it came out."""


@dataclass(slots=True)
class Flow:
    """A processor with its topics."""

    name: str
    kind: Kind
    sent: int = 0
    held: bool = False
    """It drains, or is compared: nothing is sent."""
    version: int = 0
    lives: list[Life] = field(default_factory=list)
    path: Rows = field(default_factory=dict)
    slack: Rows = field(default_factory=dict)
    """Of the present life, as in `Life`."""
    unaligned: bool = False
    """Some document of it let tasks wait for barriers for a time only."""
    scales: bool = False
    """Some document of it had numbers of tasks that follow the load."""

    @property
    def topic(self) -> str:
        """Where its records come from."""
        return f"{self.name}-in"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Its output, then its dead letters if it has any."""
        return (f"{self.name}-out",) if self.kind == "copies" else (f"{self.name}-out", f"{self.name}-dlq")

    def document(self, interval_ms: int = 400, connection: str = "") -> dict[str, Any]:
        """The document of its present version."""
        broker = connection or (SHARED if self.kind == "copies" else "broker")
        source = {
            "connectionName": broker,
            "topic": self.topic,
            "config": {"auto_offset_reset": "earliest"},
            "timeField": {"$toDate": "$at"},
            "schema": {"n": "long", "key": "string", "at": "long"},
            "watermark": {"strategy": "boundedDisorder", "maxDelay": {"size": 1, "unit": "second"}},
        }
        group = {"_id": "$key", "count": {"$sum": 1}, "sum": {"$sum": "$n"}}
        interval = {"size": WINDOW_MS // 1_000, "unit": "second"}
        middles: dict[Kind, dict[str, Any]] = {
            "counts": {"$tumblingWindow": {"interval": interval, "pipeline": [{"$group": group}]}},
            "copies": {"$project": {"n": 1}},
            "letters": {
                "$validate": {
                    "validator": {"$expr": {"$ne": [{"$mod": ["$n", BAD_EACH]}, 0]}},
                    "validationAction": "dlq",
                }
            },
        }
        emit = {"connectionName": broker, "topic": self.outputs[0]}
        options: dict[str, Any] = {
            "lateness": "split",
            "checkpoint": {"interval": {"size": interval_ms, "unit": "ms"}},
        }
        if self.kind != "copies":
            options["dlq"] = {"connectionName": broker, "topic": self.outputs[1]}
        own = {} if broker == SHARED else {broker: {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}}
        return {
            "name": self.name,
            "connections": own,
            "pipeline": [{"$source": source}, middles[self.kind], {"$addFields": {"v": self.version}}, {"$emit": emit}],
            "options": options,
        }

    def late(self, n: int) -> bool:
        """Whether the n-th record comes behind the end of its window."""
        return self.kind == "counts" and n >= LATE_FROM and n % LATE_EACH == 0

    def record(self, n: int) -> bytes:
        """The n-th one."""
        at = BEGIN_MS + STEP_MS * n - (LATE_MS if self.late(n) else 0)
        return json.dumps({"n": n, "key": f"k{n % KEYS}", "at": at}).encode()

    def wanted(self, sent: int) -> dict[str, Counter[Row]]:
        """By topic, of so many records whose input has ended: without the product."""
        numbers = range(sent)
        if self.kind == "copies":
            return {self.outputs[0]: Counter((n,) for n in numbers)}
        out, dead = self.outputs
        if self.kind == "letters":
            return {
                out: Counter((n,) for n in numbers if n % BAD_EACH),
                dead: Counter((n,) for n in numbers if n % BAD_EACH == 0),
            }
        groups: dict[tuple[int, int], list[int]] = {}
        for n in numbers:
            if not self.late(n):
                groups.setdefault((STEP_MS * n // WINDOW_MS, n % KEYS), []).append(n)
        counted = Counter((f"k{key}", len(ns), sum(ns)) for (_, key), ns in groups.items())
        return {out: counted, dead: Counter((n,) for n in numbers if self.late(n))}

    def found(self, topic: str, value: bytes) -> Row:
        """A record of an output, as `wanted` has it."""
        row = json.loads(value)
        if topic == self.outputs[0]:
            return (row["_id"], row["count"], row["sum"]) if self.kind == "counts" else (row["n"],)
        doc = row["doc"]
        return ((json.loads(doc) if isinstance(doc, str) else doc)["n"],)

    def close(self, ends: dict[str, int], *, drained: bool) -> None:
        """The present life has ended."""
        self.lives.append(Life(ends, self.sent, drained, self.path, self.slack))
        self.path, self.slack = {}, {}

    def passed(self, rows: dict[str, list[Row]]) -> Rows:
        """The rows of the present life, and of the checkpoint that it began from."""
        begun = self.lives[-1].ends if self.lives else {}
        return added(self.path, {topic: Counter(found[begun.get(topic, 0) :]) for topic, found in rows.items()})

    def wrong(self, rows: dict[str, list[Row]]) -> list[str]:
        """What each life has too much, or too little."""
        found, begun = [], dict.fromkeys(self.outputs, 0)
        for number, life in enumerate(self.lives):
            wanted = self.wanted(life.sent)
            for topic in self.outputs:
                have = Counter(rows[topic][begun[topic] : life.ends[topic]]) + life.path.get(topic, Counter())
                more, less = have - wanted[topic], wanted[topic] - have - life.slack.get(topic, Counter())
                told = f"{topic}, life {number} of {len(self.lives)}, {life.sent} sent, drained {life.drained}"
                if more:
                    found.append(f"{told}: {sum(more.values())} more: {more.most_common(3)}")
                if less and life.drained:
                    found.append(f"{told}: {sum(less.values())} missing: {sorted(less)[:3]}")
            begun = life.ends
        return found


def added(some: Rows, more: Rows) -> Rows:
    """Both together."""
    return {topic: some.get(topic, Counter()) + more.get(topic, Counter()) for topic in {**some, **more}}


async def read(bootstrap: str, topics: Iterable[str], partitions: int = 1) -> dict[str, list[bytes]]:
    """The committed records of these topics."""
    found: dict[str, list[bytes]] = {topic: [] for topic in topics}
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    await consumer.start()
    try:
        places = [TopicPartition(topic, number) for topic in found for number in range(partitions)]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        ends = await consumer.end_offsets(places)
        async with asyncio.timeout(120):
            while any([await consumer.position(place) < ends[place] for place in places]):
                for place, records in (await consumer.getmany(timeout_ms=200)).items():
                    found[place.topic] += [record.value for record in records]
    finally:
        await consumer.stop()
    return found
