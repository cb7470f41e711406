"""A seed's story: one job, what is done to its topics, and what must be in its output."""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.harness.drawn_topics.cluster import Cluster, Producers
from tidemark.services.audit.check import Audited, audit_local
from tidemark.services.audit.history import AuditFailed, NotAuditable
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import Installation
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import (
    DropProcessor,
    ModifyProcessor,
    ProcessorStatus,
    StartProcessor,
    StopProcessor,
)
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.runtime.client import RequestRefused

SHAPES: Final = ("copies", "list", "union", "join", "windows")
BEGIN_MS: Final = 1_700_000_000_000
STEP_MS: Final = 20
LARGE_EACH: Final = 10
"""Every so many-th record is large."""
LARGE_BYTES: Final = 900
SMALL_BYTES_MAX: Final = 600
"""`max.message.bytes` of a target that refuses the large ones."""
ENDED: Final = ("FAILED", "STOPPED", "FINISHED")
TOLD_S: Final = 150.0
"""Until something has to have been told: failures in a row, each with its waits."""


def say(line: str) -> None:
    """A line of the run."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Story:
    """One job."""

    seed: int
    there: Installation
    cluster: Cluster
    folder: Path
    alone: bool = True
    """No other story goes on beside it: it may kill the broker."""
    rng: random.Random = field(init=False)
    name: str = field(init=False)
    shape: str = field(init=False)
    idles: bool = field(init=False)
    producers: Producers = field(init=False)
    life: int = 0
    next: int = 0
    there_now: set[int] = field(default_factory=set)
    """Numbers of the records that this life must have put out."""
    perhaps: set[int] = field(default_factory=set)
    """Of these nobody can say: they were deleted with a target, or in front of a life's end."""
    told: list[str] = field(default_factory=list)
    """Patterns, one of which the reason of a failure must have."""
    accusable: list[str] = field(default_factory=list)
    """Patterns of what an audit may accuse, because somebody did it."""
    did: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lives: list[set[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Draw."""
        self.rng = random.Random(f"{self.seed} topics")
        self.name = f"topics-{self.seed}"
        self.shape = self.rng.choice(SHAPES)
        self.idles = self.rng.random() < 0.4
        self.producers = Producers(self.cluster.bootstrap)

    # --- the job ----------------------------------------------------------------------------------------------------------

    @property
    def sources(self) -> list[str]:
        """Topics that are read."""
        both = self.shape in ("list", "union", "join")
        return [f"{self.name}-in", *([f"{self.name}-more"] if both else [])]

    @property
    def out(self) -> str:
        """Where rows go."""
        return f"{self.name}-out"

    @property
    def dlq(self) -> str:
        """Where dead letters go."""
        return f"{self.name}-dlq"

    def document(self) -> dict[str, Any]:
        """Of this life."""
        idle = {"partitionIdleTimeout": {"size": 300, "unit": "ms"}} if self.idles else {}
        watermark = {"strategy": "boundedDisorder", "maxDelay": {"size": 1, "unit": "second"}}

        def source(topic: str | list[str]) -> dict[str, Any]:
            start = {"auto_offset_reset": "earliest"}
            own = {"connectionName": "c", "topic": topic, "config": start, "timeField": {"$toDate": "$at"}}
            return {"$source": {**own, "watermark": watermark, **idle}}

        first, rest = source(self.sources[0]), self.sources[1:]
        middle: list[Any] = []
        match self.shape:
            case "list":
                first = source(self.sources)
            case "union":
                middle = [{"$union": {"pipelines": [[source(rest[0])]]}}]
            case "join":
                day = {"size": 1, "unit": "day"}
                within = {"before": day, "after": day}
                join = {"leftKey": "$i", "rightKey": "$i", "within": within, "type": "left", "as": "other"}
                middle = [{"$join": {"from": [source(rest[0])], **join}}]
            case "windows":
                group = {"$group": {"_id": "$k", "is": {"$push": "$i"}}}
                interval = {"size": 1, "unit": "second"}
                middle = [{"$tumblingWindow": {"interval": interval, "pipeline": [group]}}]
        return {
            "connections": {"c": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
            "pipeline": [
                first,
                *middle,
                {"$addFields": {"life": {"$literal": self.life}}},
                {"$emit": {"connectionName": "c", "topic": self.out}},
            ],
            "options": {
                "checkpoint": {"interval": {"size": self.rng.choice([100, 300, 1000]), "unit": "ms"}},
                "dlq": {"connectionName": "c", "topic": self.dlq},
            },
        }

    def record(self, number: int) -> dict[str, Any]:
        """The record of a number."""
        large = {"pad": "x" * LARGE_BYTES} if number % LARGE_EACH == 0 else {}
        return {"i": number, "k": number % 3, "at": BEGIN_MS + STEP_MS * number, **large}

    async def feed(self, count: int, how: str = "plain", topic: str = "") -> list[int]:
        """So many records, into partitions drawn; their numbers."""
        topic = topic or self.rng.choice(self.sources)
        if self.shape == "join" and topic != self.sources[0]:
            topic = self.sources[0]
        parts = len(await self.cluster.partitions(topic))
        numbers = list(range(self.next, self.next + count))
        self.next += count
        records = [(self.rng.randrange(parts), self.record(n)) for n in numbers]
        match how:
            case "plain":
                await self.producers.send(topic, records)
            case "open":
                await self.producers.leave_open(topic, records)
            case _:
                await self.producers.in_transaction(topic, records, commits=how == "committed")
        if how in ("plain", "committed"):
            self.there_now.update(numbers)
        if self.shape == "join" and how in ("plain", "committed"):
            other = self.sources[1]
            parts = len(await self.cluster.partitions(other))
            await self.producers.send(other, [(self.rng.randrange(parts), self.record(n)) for n in numbers])
        return numbers

    # --- the processor ----------------------------------------------------------------------------------------------------

    @property
    def id(self) -> ProcessorName:
        """Its name."""
        return ProcessorName(self.name)

    async def until(self, *states: str) -> ProcessorStatus:
        """Wait for one of these states."""
        async with asyncio.timeout(TOLD_S):
            async for status in self.there.client.watch(self.id):
                if status.state in states:
                    return status
        raise AssertionError("the registry ended")

    async def begin(self) -> None:
        """Topics, and the job."""
        for topic in self.sources:
            await self.cluster.make(topic, self.rng.choice([1, 2, 3]))
        await self.cluster.make(self.out, self.rng.choice([1, 3]))
        await self.cluster.make(self.dlq, 1)
        tasks = {service: self.rng.choice([1, 2]) for service in ("source", "operator", "sink")}
        await self.feed(self.rng.choice([5, 50, 300]))
        await self.there.ensure_started(self.id, json.dumps(self.document()), tasks)
        await self.until("RUNNING", "FAILED")

    async def stop(self) -> None:
        """Stop it, if it runs."""
        with contextlib.suppress(RequestRefused):
            await self.there.client.request(StopProcessor(self.there.client.unique(), self.id))
        await self.until(*ENDED)

    async def start(self, *, resume: bool = True) -> None:
        """Start it."""
        await self.there.client.request(StartProcessor(self.there.client.unique(), self.id, resume))

    async def anew(self) -> None:
        """A new life: what lies in the topics is its input."""
        self.lives.append(set(self.there_now))
        self.life += 1
        self.perhaps.clear()
        self.told.clear()
        for topic in self.sources:
            await self.producers.fence(topic)
            if not await self.cluster.partitions(topic):
                await self.cluster.make(topic, self.rng.choice([1, 2, 3]))
        for topic in (self.out, self.dlq):
            if not await self.cluster.partitions(topic):
                await self.cluster.make(topic, 2)
        here = Counter[int]()
        for topic in self.sources[: 1 if self.shape == "join" else 2]:
            async for record in committed_records(self.there.log, topic):
                here[json.loads(record.value or b"")["i"]] += 1
        self.there_now = set(here)
        change = ModifyProcessor(self.there.client.unique(), self.id, json.dumps(self.document()), None, False)
        await self.there.client.request(change)
        await self.start(resume=False)
        status = await self.until("RUNNING", "FAILED")
        if "drop the processor and create it again" in status.reason:
            await self.there.client.request(DropProcessor(self.there.client.unique(), self.id))
            await self.there.ensure_started(self.id, json.dumps(self.document()), {})
            await self.until("RUNNING", "FAILED")

    async def kill(self, place: str = "") -> None:
        """One of the processes."""
        places = self.there.cluster.pids()
        place = place or self.rng.choice(sorted(p for p in places if p not in ("broker", "spark-0")))
        self.did.append(f"kill {place}")
        with contextlib.suppress(ProcessLookupError, KeyError):
            os.kill(places[place], signal.SIGKILL)

    async def rescale(self) -> None:
        """Other numbers of tasks."""
        tasks = {service: self.rng.choice([1, 2, 3]) for service in ("source", "operator", "sink")}
        with contextlib.suppress(RequestRefused):
            await self.there.client.request(ModifyProcessor(self.there.client.unique(), self.id, None, tasks))

    # --- what must hold ---------------------------------------------------------------------------------------------------

    def fault(self, text: str) -> None:
        """Something is not as it must be."""
        self.wrong.append(text)
        say(f"  {self.name}: FAULT {text}")

    async def failed(self, status: ProcessorStatus, *, begins: bool = True) -> None:
        """It is FAILED: the reason says so, nothing is there twice, and it begins anew."""
        say(f"  {self.name}: FAILED: {status.reason[:400]}")
        if not any(re.search(each, status.reason) for each in self.told):
            self.fault(f"failed for another reason than {self.told}: {status.reason}")
        await self.compare(complete=False)
        await self.audit()
        if begins:
            await self.anew()

    async def compare(self, *, complete: bool) -> None:
        """Each record of this life at most once; complete: exactly once."""
        rows, letters = Counter[int](), Counter[int]()
        async for record in committed_records(self.there.log, self.out):
            row = json.loads(record.value or b"null")
            if isinstance(row, dict) and row.get("life") == self.life:
                rows.update(row["is"] if "is" in row else [row["i"]])
                if (
                    self.shape == "join"
                    and complete
                    and len(row["other"] if isinstance(row["other"], list) else [1]) != 1
                ):
                    self.fault(f"a row without its other: {row}")
        async for record in committed_records(self.there.log, self.dlq):
            letter = json.loads(record.value or b"null")
            doc = letter.get("doc", letter.get("fullDocument", {}))
            doc = json.loads(doc) if isinstance(doc, str) else doc
            letters.update(doc["is"] if "is" in doc else [doc["i"]])
        twice = sorted(n for n, count in rows.items() if count > 1)
        foreign = sorted(set(rows) - self.there_now - self.perhaps)
        missing = sorted(self.there_now - set(rows) - set(letters) - self.perhaps)
        if twice:
            self.fault(f"life {self.life}: {len(twice)} twice: {twice[:8]}")
        if foreign:
            self.fault(f"life {self.life}: {len(foreign)} that are none of its input: {foreign[:8]}")
        if missing and complete:
            self.fault(f"life {self.life}: {len(missing)} of {len(self.there_now)} missing: {missing[:8]}")
        if complete:
            say(
                f"  {self.name}: {len(self.there_now)} records, {len(rows)} in rows, {len(letters)} letters; {self.did}"
            )

    async def _audited(self) -> Audited:
        """Once more where a broker was away for long: another story may have killed it."""
        try:
            return await audit_local(self.id, self.folder)
        except LogUnavailable:
            await self.cluster.answers()
            return await audit_local(self.id, self.folder)

    async def audit(self) -> None:
        """It finds no discrepancy but those that somebody has made."""
        try:
            found = await self._audited()
        except NotAuditable as error:
            say(f"  {self.name}: not audited: {str(error)[:300]}")
        except AuditFailed as error:
            if not any(re.search(each, str(error)) for each in self.accusable):
                self.fault(f"audit: {error}")
            say(f"  {self.name}: audit accuses: {str(error)[:300]}")
        else:
            say(f"  {self.name}: audited {found.records} records")
