"""Quotas of a namespace, raised and lowered on an installation of real processes while records flow, with kills in between.

A seed draws the processors, the quotas and their order, and what is killed. After each change the sources' shares follow within seconds,
what they take stays within the quota and uses it, no processor begins anew, creates, starts and rescales are refused where the figures
say so; at the end each processor's output is the oracle's, and the audit agrees. `python -m tests.harness.quotas 0-9` runs seeds.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final, cast

from tidemark.services.audit.check import audit_local
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import (
    SHARE,
    CreateProcessor,
    DropProcessor,
    StartProcessor,
    StopProcessor,
    TaskBeat,
)
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.client import RequestRefused

WORKERS: Final = {"control": 1, "source": 1, "operator": 1, "sink": 1, "spark": 0}
RECORD: Final = 200
"""Bytes of a record's value."""
WAITING: Final = 15_000
"""Records of each processor that has to wait, at the least, when a quota begins to be looked at: more than its share of that time."""
RATES: Final = (None, 20_000, 50_000, 120_000, 300_000)
PARTITIONS: Final = 2
FOLLOWED_S: Final = 20.0
"""Within so long the sources have shares of the new quota: a leader that was killed is replaced when its lease ends."""
HELD_S: Final = 8.0
"""A quota is looked at for so long once it holds."""
USED: Final = 0.7
"""Of a quota that part is used at the least, while all have records that wait."""


def say(text: str) -> None:
    """A line of the run."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Flow:
    """A processor with its records."""

    name: ProcessorName
    counts: bool
    """It counts windows; the others copy."""
    sources: int
    records: int = 0

    @property
    def document(self) -> str:
        """Its own topics on the installation's broker."""
        source = {
            "connectionName": "broker",
            "topic": f"{self.name}-in",
            "config": {"auto_offset_reset": "earliest"},
            "timeField": {"$toDate": "$at"},
            "schema": {"n": "long", "key": "string", "at": "long"},
        }
        group = {"_id": "$key", "count": {"$sum": 1}, "sum": {"$sum": "$n"}}
        window = {"interval": {"size": 10, "unit": "second"}, "pipeline": [{"$group": group}]}
        middle: list[Any] = [{"$tumblingWindow": window}] if self.counts else [{"$project": {"n": 1}}]
        pipeline = [{"$source": source}, *middle, {"$emit": {"connectionName": "broker", "topic": f"{self.name}-out"}}]
        return json.dumps({
            "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
            "pipeline": pipeline,
            "options": {"lateness": "split", "checkpoint": {"interval": {"size": 500, "unit": "ms"}}},
        })  # fmt: skip

    def record(self, n: int) -> bytes:
        """The n-th one."""
        return json.dumps({"n": n, "key": f"k{n % 5}", "at": 100 * n}).ljust(RECORD).encode()

    def wanted(self) -> Counter[tuple[Any, ...]]:
        """The output, without the product."""
        if not self.counts:
            return Counter((n,) for n in range(self.records))
        groups: dict[tuple[int, str], list[int]] = defaultdict(list)
        for n in range(self.records):
            groups[100 * n // 10_000, f"k{n % 5}"].append(n)
        return Counter((key, len(ns), sum(ns)) for (_, key), ns in groups.items())

    def found(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """A row of the output, as `wanted` has it."""
        return (row["_id"], row["count"], row["sum"]) if self.counts else (row["n"],)


@dataclass(slots=True)
class Ledger:
    """What sources of the namespace said, with the loop's time when it was heard."""

    said: list[tuple[float, TaskBeat]] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep(self, there: Installation) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        async for heard in there.client.heartbeats():
            self.said += [(loop.time(), beat) for beat in heard.tasks if beat.vertex.startswith("source")]
            self.more.set()

    async def next(self) -> None:
        """Wait for the next beat of a worker."""
        self.more.clear()
        await self.more.wait()

    def last(self, at: float) -> dict[tuple[str, int, int], TaskBeat]:
        """Of each task of `a`, by processor, generation and index, what it said last before this time."""
        return {(b.name, b.generation, b.index): b for t, b in self.said if t <= at and b.name.startswith("a.")}

    def taken(self, since: float, until: float) -> int:
        """Bytes in between."""
        before = self.last(since)
        return sum(
            b.counters.get("inBytes", 0) - (before[key].counters.get("inBytes", 0) if key in before else 0)
            for key, b in self.last(until).items()
        )

    def shares(self, at: float, generations: dict[ProcessorName, int]) -> list[int] | None:
        """Of the sources that run; None while one has not spoken."""
        last = self.last(at)
        found = [
            b.counters.get(SHARE, 0) for (name, g, _), b in last.items() if generations.get(ProcessorName(name)) == g
        ]
        return (
            found
            if found and {n for n, g, _ in last if generations.get(ProcessorName(n)) == g} >= generations.keys()
            else None
        )


@dataclass(slots=True)
class Story:
    """One seed on one installation."""

    seed: int
    folder: Path
    rng: random.Random = field(init=False)
    wrong: list[str] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    flows: list[Flow] = field(init=False)
    spare: Flow = field(init=False)
    coordinators: int = field(init=False)
    most: int | None = None
    """The quota of bytes that was drawn last."""

    def __post_init__(self) -> None:
        """Draw the processors."""
        self.rng = rng = random.Random(self.seed)
        self.coordinators = rng.randint(1, 2)
        self.flows = [
            Flow(ProcessorName(f"a.p{n}"), rng.random() < 0.5, rng.randint(1, PARTITIONS))
            for n in range(rng.randint(2, 3))
        ]
        self.flows.append(Flow(ProcessorName("b.free"), False, 1))
        self.spare = Flow(ProcessorName("a.spare"), False, 1)

    async def run(self, steps: int) -> list[str]:
        """What did not hold."""
        environment = {"TIDEMARK_RUNTIME": json.dumps({"engine": "local"}), "TIDEMARK_EXTRA": "{}"}
        async with installation(self.folder, environment, {**WORKERS, "coordinator": self.coordinators}) as there:
            for flow in (*self.flows, self.spare):
                for topic, partitions in ((f"{flow.name}-in", PARTITIONS), (f"{flow.name}-out", 1)):
                    await there.log.create_topic(topic, partitions, {"retention.ms": "-1"})
            for flow in self.flows:
                await self._fill(there, flow)
            keeping = asyncio.create_task(self.ledger.keep(there))
            first = self._draw(bytes_per_s=50_000)
            await self._change(there, first, signal.SIGTERM)
            for flow in self.flows:
                await there.ensure_started(flow.name, flow.document, {"source": flow.sources})
            for flow in self.flows:
                await there.until_running(flow.name)
            await there.client.request(CreateProcessor(there.client.unique(), self.spare.name, self.spare.document))
            quota = first
            for step in range(steps):
                quota = await self._step(there, step, quota)
            await self._change(there, {"namespace": "a"}, signal.SIGTERM)
            for flow in self.flows:
                await self._end(there, flow)
            keeping.cancel()
        return self.wrong

    async def _fill(self, there: Installation, flow: Flow) -> None:
        """So many more records."""
        writer = await there.log.writer(f"feeder-{flow.name}")
        numbers = range(flow.records, flow.records + WAITING)
        places = [TopicPartition(f"{flow.name}-in", n % PARTITIONS) for n in numbers]
        sent = [await writer.send(at, NewRecord(flow.record(n))) for at, n in zip(places, numbers, strict=True)]
        await asyncio.gather(*sent)
        await writer.close()
        flow.records += WAITING

    def _draw(self, **given: Any) -> dict[str, Any]:
        drawn = {
            "bytes_per_s": self.rng.choice([rate for rate in RATES if rate != self.most]),
            "processors": self.rng.choice([None, 1, len(self.flows), len(self.flows) + 1]),
            "tasks": self.rng.choice([None, 2, 8, 40]),
            **given,
        }
        if given:
            drawn |= {"processors": None, "tasks": None}
        self.most = drawn["bytes_per_s"]
        return {"namespace": "a", **{name: value for name, value in drawn.items() if value is not None}}

    async def _change(self, there: Installation, quota: dict[str, Any], number: signal.Signals) -> None:
        """The coordinators begin with another quota, one after the other, as a deployment does it."""
        environment = cast("dict[str, str]", there.cluster.settings.environment)
        environment["TIDEMARK_EXTRA"] = json.dumps({"quotas": [quota]})
        for n in range(self.coordinators):
            place = f"coordinator-{n}"
            before = there.cluster.pids()[place]
            os.kill(before, number)
            async with asyncio.timeout(FOLLOWED_S):
                while there.cluster.pids().get(place, before) == before:
                    await self.ledger.next()

    async def _step(self, there: Installation, step: int, before: dict[str, Any]) -> dict[str, Any]:
        quota, loop = self._draw(), asyncio.get_running_loop()
        how = self.rng.choice([signal.SIGTERM, signal.SIGKILL])
        killed = self.rng.choice(["", "", "control-0", "source-0", "source-0"])
        generations = await self._generations(there)
        if self.rng.random() < 0.25:
            await self._change(there, self._draw(), how)
            quota = self._draw()
        await self._change(there, quota, how)
        began = loop.time()
        if killed:
            await asyncio.sleep(self.rng.random() * 3)
            with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
                os.kill(there.cluster.pids()[killed], signal.SIGKILL)
        if killed == "source-0":
            generations = await self._restarted(there, generations)
        most = quota.get("bytes_per_s")
        followed = await self._followed(began, most, generations)
        told = f"{self.seed}.{step} {before} -> {quota}, {self.coordinators} x {how.name}, kill {killed or 'nothing'}"
        if followed is None:
            shares = self.ledger.shares(loop.time(), generations)
            self.wrong.append(f"{told}: no shares of the new quota after {FOLLOWED_S:.0f} s: {shares}")
            followed = loop.time() - began
        await self._refused(there, quota, told)
        for flow in self.flows:
            if self._left(loop.time(), flow) < WAITING:
                await self._fill(there, flow)
        since = loop.time()
        await asyncio.sleep(HELD_S)
        took = self.ledger.taken(since, loop.time()) / HELD_S
        say(f"{told}: followed after {followed:.1f} s, {took:,.0f} bytes/s of {most}")
        if most is not None:
            if took > most * (1 + 2 / HELD_S):
                self.wrong.append(f"{told}: {took:,.0f} bytes/s")
            if took < most * USED:
                self.wrong.append(f"{told}: only {took:,.0f} bytes/s, though all have records that wait")
            await self._says(most, told)
        now = await self._generations(there)
        if now != generations:
            self.wrong.append(f"{told}: generations {generations} became {now}")
        return quota

    async def _followed(self, began: float, most: int | None, generations: dict[ProcessorName, int]) -> float | None:
        """After how many seconds the sources have shares of this quota."""
        loop = asyncio.get_running_loop()
        mine = {name: g for name, g in generations.items() if name.startswith("a.")}
        while loop.time() < began + FOLLOWED_S:
            shares = self.ledger.shares(loop.time(), mine)
            if shares is not None:
                total = sum(shares)
                if (most is None and not total) or (
                    most is not None and all(shares) and 0.9 * most <= total <= most + len(shares)
                ):
                    return loop.time() - began
            await self.ledger.next()
        return None

    def _left(self, at: float, flow: Flow) -> int:
        """Records that the processor has not read, by what its sources said last."""
        said = [beat for when, beat in self.ledger.said if beat.name == flow.name and when <= at]
        read: dict[str, int] = {
            what: json.loads(text)["position"]
            for beat in said
            for what, text in beat.details.items()
            if what.startswith("split:")
        }
        return flow.records - sum(read.values())

    async def _generations(self, there: Installation) -> dict[ProcessorName, int]:
        statuses = await there.client.statuses()
        return {flow.name: statuses[flow.name].generation for flow in self.flows}

    async def _restarted(self, there: Installation, before: dict[ProcessorName, int]) -> dict[ProcessorName, int]:
        """All have begun anew behind the source that was killed."""

        async def one(flow: Flow) -> int:
            async for status in there.client.watch(flow.name):
                if status.state == "RUNNING" and status.generation > before[flow.name]:
                    return status.generation
            raise AssertionError("the registry ended")

        async with asyncio.timeout(60):
            found = await asyncio.gather(*map(one, self.flows))
        return {flow.name: generation for flow, generation in zip(self.flows, found, strict=True)}

    async def _refused(self, there: Installation, quota: dict[str, Any], told: str) -> None:
        """A create, a start and a rescale are refused if, and only if, the figures say so."""
        statuses = await there.client.statuses()
        mine = [status for status in statuses.values() if status.name.startswith("a.")]
        runs = {status.name: len(status.tasks) for status in mine if status.state == "RUNNING"}
        extra = ProcessorName("a.extra")
        asked = await self._asked(there, CreateProcessor(there.client.unique(), extra, self.spare.document))
        self._expect(asked, f"{told}: create", quota.get("processors"), len(mine) + 1)
        if not asked:
            await there.client.request(DropProcessor(there.client.unique(), extra))
        asked = await self._asked(there, StartProcessor(there.client.unique(), self.spare.name))
        self._expect(asked, f"{told}: start", quota.get("tasks"), sum(runs.values()) + 2)
        if not asked:
            await there.until_running(self.spare.name)
            await there.client.request(StopProcessor(there.client.unique(), self.spare.name))
            await there.until_ended(self.spare.name)

    def _expect(self, refused: str, what: str, most: int | None, wanted: int) -> None:
        if bool(refused) != (most is not None and wanted > most):
            self.wrong.append(f"{what}: {wanted} of {most}: {refused or 'not refused'}")

    async def _asked(self, there: Installation, request: Any) -> str:
        try:
            await there.client.request(request)
        except RequestRefused as error:
            return str(error)
        return ""

    async def _says(self, most: int, told: str) -> None:
        """`stats` has the quota, and calls nobody slow who waits for it."""
        name, loop = self.flows[0].name, asyncio.get_running_loop()
        until = loop.time() + HELD_S
        while True:
            stats = json.loads(await self._stats(name, "--json"))["stats"]
            (source,) = [o for o in stats["operatorStats"] if o["service"] == "source"]
            share, held_s = source["quotaBytesPerSecond"] or 0, source["heldByQuotaSecs"]
            right = 0 < share <= most + PARTITIONS and held_s and stats["diagnosis"] in ("held by its quota", "in time")
            if right or loop.time() > until:
                break
        say(f"    {name}: {stats['diagnosis']}, {share} bytes/s, held {held_s} s")
        if not right:
            self.wrong.append(f"{told}: stats of {name}: {stats['diagnosis']}, {source}")
        shown = await self._stats(name)
        if f"quota {share:,} bytes/s, waited for it " not in shown:
            self.wrong.append(f"{told}: stats of {name}: {shown}")

    async def _stats(self, name: ProcessorName, *more: str) -> str:
        words = ("-m", "tidemark.services.cli", "stats", name, "--data", str(self.folder), *more)
        process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0, words
        return out.decode()

    async def _end(self, there: Installation, flow: Flow) -> None:
        await there.client.request(StopProcessor(there.client.unique(), flow.name, drain=True))
        status = await there.until_ended(flow.name)
        if status.state != "FINISHED":
            self.wrong.append(f"{flow.name}: {status.state}: {status.reason}")
            return
        rows = [json.loads(r.value or b"") async for r in committed_records(there.log, f"{flow.name}-out")]
        found, wanted = Counter(map(flow.found, rows)), flow.wanted()
        if found != wanted:
            self.wrong.append(
                f"{flow.name}: more {(found - wanted).most_common(3)}, missing {(wanted - found).most_common(3)}"
            )
        audited = await audit_local(flow.name, self.folder)
        if audited.records != flow.records:
            self.wrong.append(f"{flow.name}: the audit has {audited.records} records of {flow.records}")


async def told(seed: int, folder: Path, steps: int = 6) -> list[str]:
    """A seed's story; what did not hold."""
    return await Story(seed, folder).run(steps)


def main() -> int:
    """Seeds from the command line: `3` or `0-9`."""
    first, _, last = sys.argv[1].partition("-")
    bad = 0
    for seed in range(int(first), int(last or first) + 1):
        with tempfile.TemporaryDirectory() as folder:
            wrong = asyncio.run(told(seed, Path(folder)))
        say("\n  ".join([f"seed {seed}: {'holds' if not wrong else 'does not hold'}", *wrong]))
        bad += bool(wrong)
    return bad


if __name__ == "__main__":
    sys.exit(main())
