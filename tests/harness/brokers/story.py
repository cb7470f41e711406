"""A seed's story: a cluster, one job, what happens to the brokers, and what must be in its output."""

import asyncio
import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from tests.harness.brokers.cluster import Brokers, Fronting
from tests.harness.clusters.jobs import (
    KILLED,
    NAMES,
    PARTITIONS,
    WORKERS,
    Cluster,
    Where,
    document,
    ended,
    kill,
    record,
    say,
)
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import Installation, installation
from tidemark.services.local.jars import KAFKA_VERSION
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.ports.log import LogUnavailable, NewRecord, TopicPartition

GOES_ON_S: Final = 150.0
"""Within so long, once the cluster can, the job has committed again."""
_PIECE: Final = 20
"""Records in one transaction of the feeder's."""
_TRY_S: Final = 0.5
_BETWEEN_S: Final = 0.4
"""Between two pieces, while something happens to the brokers."""


@dataclass(slots=True)
class Story:
    """One job on one cluster."""

    seed: int
    folder: Path
    rng: random.Random
    where: Where
    name: ProcessorName
    replicas: int
    in_sync: int
    records: int
    guarded: bool = False
    """TLS, a password, and a user of few rights."""
    config: dict[str, Any] = field(default_factory=dict)
    """Of the documents' connection."""
    away: set[int] = field(default_factory=set)
    """Brokers that stay away."""
    did: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    brokers: Brokers = field(init=False)
    there: Installation = field(init=False)
    fed: int = 0
    slow: bool = False

    def fault(self, text: str) -> None:
        """Something is not as it must be."""
        self.wrong.append(text)
        say(f"  {self.seed}: FAULT {text}")

    @property
    def shape(self) -> str:
        """In a word."""
        guarded = " guarded" if self.guarded else ""
        return f"{self.where}{guarded} {self.name} {self.replicas}/{self.in_sync}"

    @property
    def topics(self) -> dict[str, int]:
        """The user's."""
        return {"events": PARTITIONS, "clocks": 1, f"{self.name}-out": PARTITIONS, f"{self.name}-dlq": 1}

    @property
    def settings(self) -> dict[str, str]:
        """Of these topics."""
        return {"cleanup.policy": "delete", "retention.ms": "-1", "min.insync.replicas": str(self.in_sync)}

    @property
    def cluster(self) -> Cluster:
        """As the jobs of other clusters have it."""
        return Cluster(version=KAFKA_VERSION, where=self.where, config=self.config, records=self.records)

    def log(self) -> KafkaLog:
        """The user's."""
        inner = ",".join(node.bootstrap for node in self.brokers.nodes.values())
        return KafkaLog(
            KafkaSettings(bootstrap=inner, client="user", request_timeout_ms=5_000, delivery_timeout_ms=20_000)
        )

    # --- the user ---------------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Topics, some records, the job."""
        for topic, partitions in self.topics.items():
            await self.brokers.asking.make(topic, partitions, self.replicas, self.settings)
        await self.feed(self.records // 4)
        await self.there.ensure_started(self.name, document(self.name, self.cluster), {})
        await self.goes_on()

    async def feed(self, until: int) -> None:
        """Records up to this one, a piece in a transaction; each is there once, whatever happens to the brokers."""
        while self.fed < until:
            log = self.log()
            try:
                await self._feed(log, until)
            except LogUnavailable:
                await asyncio.sleep(_TRY_S)
            finally:
                await log.close()

    async def _feed(self, log: KafkaLog, until: int) -> None:
        writer = await log.transactional_writer("feeder")  # fences: what was on its way is decided behind it
        there = {json.loads(r.key or b"") async for r in committed_records(log, "events")}
        self.fed = max(there, default=-1) + 1
        while self.fed < until:
            piece = range(self.fed, min(self.fed + _PIECE, until))
            transaction = await writer.begin()
            for n in piece:
                made = NewRecord(record(n), key=b"%d" % n)
                await transaction.send_batch(TopicPartition("events", n % PARTITIONS), [made])
                if n % 10 == 0:
                    await transaction.send_batch(TopicPartition("clocks", 0), [made])
            await transaction.commit()
            self.fed = piece.stop
            if self.slow:
                await asyncio.sleep(_BETWEEN_S)

    async def keep_feeding(self) -> None:
        """All records; slowly, as long as `slow`."""
        self.slow = True
        await self.feed(self.records)

    # --- the job ----------------------------------------------------------------------------------------------------------

    async def goes_on(self, more: int = 2) -> bool:
        """Wait until it has committed so many times more; whether it does."""
        loop = asyncio.get_running_loop()
        began, first, status = loop.time(), None, None
        try:
            async with asyncio.timeout(GOES_ON_S):
                async for status in self.there.client.watch(self.name):
                    first = status.commits if first is None else first
                    if status.state == "FAILED":
                        self.fault(f"FAILED: {status.reason}")
                        return False
                    if status.state == "RUNNING" and status.commits >= first + more:
                        say(f"  {self.seed}: goes on after {loop.time() - began:.1f} s")
                        return True
        except TimeoutError:
            self.fault(f"does not go on: {status and (status.state, status.commits, status.reason)}")
        return False

    async def says(self, pattern: str) -> None:
        """Wait until the job waits, and says so."""
        status = None
        try:
            async with asyncio.timeout(GOES_ON_S):
                async for status in self.there.client.watch(self.name):
                    if re.search(pattern, status.reason):
                        return
        except TimeoutError:
            self.fault(f"it does not say {pattern}: {status and status.reason}")

    async def meanwhile(self, *, can: bool) -> None:
        """While a broker is away: one of the processes may end, too; where the cluster can without the broker, the job goes on."""
        if self.rng.random() < 0.5:
            place = self.rng.choice(KILLED)
            self.did.append(f"kill {place}")
            kill(self.there, place)
        if can and self.replicas > self.in_sync:
            await self.goes_on()

    async def end(self) -> None:
        """Drain: the output, dead letters and the audit are compared."""
        log = self.log()
        try:
            self.wrong += await ended(self.cluster, self.there, log, self.folder / "run", self.name)
            keys = Counter([json.loads(r.key or b"") async for r in committed_records(log, "events")])
            if keys != Counter(range(self.records)):
                self.fault("the source has not what was sent: the harness is at fault")
            if not self.away:
                await self.own_topics()
        finally:
            await log.close()

    async def own_topics(self) -> None:
        """None of the product's has fewer replicas than the cluster gives."""
        for part in await self.brokers.asking.parts():
            if part.topic.startswith("tidemark.") and len(part.replicas) < min(3, len(self.brokers.nodes)):
                self.fault(f"{part.topic} has replicas {part.replicas} alone")


def drawn(seed: int, folder: Path, records: int) -> Story:
    """A story of this seed."""
    rng = random.Random(f"{seed} brokers")
    where: Where = rng.choice(["theirs", "whole"])
    replicas = rng.choice([1, 2, 3, 3, 3])
    return Story(
        seed=seed,
        folder=folder,
        rng=rng,
        where=where,
        name=ProcessorName(rng.choice(NAMES)),
        replicas=replicas,
        in_sync=rng.choice([1, 2]) if replicas == 3 else 1,
        records=records,
        guarded=where == "theirs" and rng.random() < 0.5,
    )


@asynccontextmanager
async def standing(story: Story) -> AsyncIterator[None]:
    """The installation, for the time of a block."""
    environment = {"TIDEMARK_RUNTIME": json.dumps({"engine": "local"}), "TIDEMARK_EXTRA": "{}"}
    environment["THEIRS"] = "" if story.where == "whole" else story.brokers.bootstrap
    fronted = patch("tidemark.services.local.supervisor.LocalBroker", lambda _: Fronting(story.brokers))
    with fronted if story.where == "whole" else contextlib.nullcontext():
        async with installation(story.folder / "run", environment, WORKERS) as there:
            story.there = there
            yield
