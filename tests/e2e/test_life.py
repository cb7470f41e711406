# ruff: noqa: N802 -- a test carries its rule's name
"""A processor's life on a real broker, by real processes: changed, looked into, asked what holds its watermark back, stopped, dropped."""

import asyncio
import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.feed import Fed, feed
from tidemark.services.cli.installation import Installation, installation
from tidemark.services.cli.remote import Remote, find
from tidemark.services.local.folders import ADDRESS_FILE
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import (
    DropProcessor,
    ModifyProcessor,
    ProcessorStatus,
    Request,
    StartProcessor,
    StopProcessor,
)
from tidemark.shared.ports.log import LogUnavailable, TopicPartition
from tidemark.shared.runtime.client import RequestRefused
from tidemark.shared.runtime.reading import followed

pytestmark = pytest.mark.e2e
LIFE, MEETS = ProcessorName("life"), ProcessorName("meets")
WORKERS = {"coordinator": 1, "source": 1, "operator": 1, "sink": 1, "spark": 0, "control": 1}
T = TypeVar("T")
KEYS = 7
BEGIN_MS = 1_700_000_000_000
"""2023-11-14T22:13:20Z."""


def source(topic: str, **more: Any) -> dict[str, Any]:
    start = {"auto_offset_reset": "earliest"}
    return {
        "$source": {
            "connectionName": "broker",
            "topic": topic,
            "config": start,
            "timeField": {"$toDate": "$at"},
            **more,
        }
    }


def emit(topic: str) -> dict[str, Any]:
    return {"$emit": {"connectionName": "broker", "topic": topic}}


def compute(name: str, key: str = "$k") -> dict[str, Any]:
    return {"$compute": {"class": f"tests.harness.computations:{name}", "key": key, "order": "arrival"}}


def document(*stages: Mapping[str, Any]) -> str:
    return json.dumps({
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
        "pipeline": list(stages),
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    })  # fmt: skip


PLAIN = (source("life"), compute("Marks"), emit("out"))


class There:
    """An installation with topics, and what was sent."""

    def __init__(self, installed: Installation, control: Remote) -> None:
        self.installed = installed
        self.control = control
        self.sent = 0
        self.generation = 0
        """Of the last plan."""

    async def send(self, topic: str, count: int, partition: int = 0, at: int = 0) -> None:
        """So many records with numbers of their own, a tenth of a second apart, acknowledged."""
        rows = [{"k": n % KEYS, "n": n, "at": BEGIN_MS + at + 100 * n} for n in range(self.sent, self.sent + count)]
        records = [(partition, str(row["k"]).encode(), json.dumps(row).encode()) for row in rows]
        await feed(self.installed.log, topic, records, count, 0.0, Fed())
        self.sent += count

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """An answer; outages of the broker, as a loaded machine has them, are waited out. A repeated request is carried out once."""
        async for _ in self.installed.client.heartbeats():
            with contextlib.suppress(LogUnavailable):
                return await ask()
        raise AssertionError("nobody beats")

    async def request(self, request: Request) -> None:
        """RequestRefused."""
        await self.patiently(lambda: self.installed.client.request(request))

    async def statuses(self) -> Mapping[ProcessorName, ProcessorStatus]:
        """All processors."""
        return await self.patiently(self.installed.client.statuses)

    async def rows(self, topic: str) -> list[dict[str, Any]]:
        """What a reader of committed records sees."""

        async def read() -> list[dict[str, Any]]:
            return [json.loads(r.value or b"") async for r in committed_records(self.installed.log, topic)]

        return await self.patiently(read)

    async def until_out(self, topic: str, count: int) -> None:
        """Wait until so many are out."""
        seen = 0
        async for _ in followed(self.installed.log, SystemClock(), TopicPartition(topic, 0), committed_only=True):
            seen += 1
            if seen == count:
                return

    async def modify(self, *stages: Mapping[str, Any]) -> int:
        """Another document, which resumes from the checkpoint; the version of its plan. RequestRefused."""
        client = self.installed.client
        version = (await self.statuses())[LIFE].plan_version
        await self.request(ModifyProcessor(client.unique(), LIFE, document(*stages)))
        return version + 1

    async def modify_running(self, *stages: Mapping[str, Any]) -> None:
        """Another plan, while it runs: a new generation at a checkpoint."""
        version = await self.modify(*stages)
        running = await self.when(LIFE, lambda s: s.plan_version == version and s.state == "RUNNING")
        self.generation = running.generation

    async def start(self, name: ProcessorName) -> None:
        """From its checkpoint, until it runs."""
        request = self.installed.client.unique()
        await self.request(StartProcessor(request, name))
        await self.when(name, lambda s: request in dict(s.answers) and s.state == "RUNNING")

    async def stop(self, name: ProcessorName, *, drain: bool) -> None:
        """Until it has ended, with its input's end or at a checkpoint."""
        request, ended = self.installed.client.unique(), "FINISHED" if drain else "STOPPED"
        await self.request(StopProcessor(request, name, drain))
        await self.when(name, lambda s: request in dict(s.answers) and s.state == ended)

    async def when(self, name: ProcessorName, holds: Callable[[ProcessorStatus], bool]) -> ProcessorStatus:
        async for status in self.installed.client.watch(name):
            assert status.state != "FAILED", status.reason
            if holds(status):
                return status
        raise AssertionError("the registry ended")

    async def asked(self, path: str, enough: Callable[[Any], bool]) -> Any:
        """What the control service answers, once it says enough."""
        async for _ in self.installed.client.heartbeats():
            found = await asyncio.to_thread(self.control.get, path)
            if enough(found):
                return found
        raise AssertionError("nobody beats")


async def lived(folder: Path, story: Callable[[There], Awaitable[None]]) -> None:
    """Tell a story in an installation."""
    async with installation(folder, {}, WORKERS) as installed:
        for topic, partitions in (("life", 2), ("left", 1), ("right", 1), *((t, 1) for t in ("out", "copy", "pairs"))):
            await installed.log.create_topic(topic, partitions, {"retention.ms": "-1"})
        async for _ in installed.client.heartbeats():
            if (folder / ADDRESS_FILE).exists():
                break
        await story(There(installed, find(folder)))


def by_key(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        found[row["k"]].append(row["seen"])
    return found


async def changed_while_it_runs(there: There) -> None:
    """E3: a computation and a sink join and leave; nothing is read again, nothing lost, nothing twice."""
    await there.installed.ensure_started(LIFE, document(*PLAIN), {"operator": 2})
    await there.installed.until_running(LIFE)
    await there.send("life", 140)
    await there.until_out("out", 140)
    await there.modify_running(source("life"), emit("copy"), compute("Adds"), compute("Marks"), emit("out"))
    await there.send("life", 140, partition=1)
    await there.until_out("out", 280)
    await there.modify_running(*PLAIN)
    await there.send("life", 140)
    await there.until_out("out", 420)
    out, copy = await there.rows("out"), await there.rows("copy")
    assert Counter(row["n"] for row in out) == Counter(range(420))
    assert Counter(row["n"] for row in copy) == Counter(range(140, 280)), (
        "the second sink has what came while it was there"
    )
    assert {row["n"] for row in out if row.get("added")} == set(range(140, 280))
    assert by_key(out) == {k: list(range(1, 61)) for k in range(KEYS)}, "counts go on over both changes"


async def looked_into(there: There) -> None:
    """`sample` shows what comes out, `stats` counts it with Atlas' fields: each task as of its last heartbeat."""

    def counted(found: Any) -> bool:
        told = found["stats"]
        offsets = {
            (each["topic"], each["partition"]): (each["currentOffset"], each["checkpointOffset"])
            for each in told["kafkaPartitions"]
        }
        settled = offsets == {("life", 0): (280, 280), ("life", 1): (140, 140)}
        begun_anew = told["generation"] > there.generation  # by an outage: counts are those of the tasks that run
        return bool((told["outputMessageCount"] >= 140 or begun_anew) and settled)

    shown = await there.installed.client.sample(LIFE, 3, wait_ms=5_000)
    assert [set(row) for row in shown] == [{"k", "n", "at", "seen"}] * 3
    stats = (await there.asked(f"/v1/processors/{LIFE}/stats?verbose=true", counted))["stats"]
    assert stats.keys() >= {
        "name", "processorId", "status", "scaleFactor", "inputMessageCount", "inputMessageSize", "outputMessageCount", "outputMessageSize",
        "dlqMessageCount", "dlqMessageSize", "stateSize", "watermark", "operatorStats", "kafkaPartitions",
    }  # fmt: skip
    operator = {"name", "inputMessageCount", "outputMessageCount", "stateSize", "maxMemoryUsage", "executionTimeSecs"}
    assert stats["operatorStats"][0].keys() >= operator


async def culprit(there: There, name: ProcessorName, split: str, last: str) -> dict[str, Any]:
    """What `explain-watermark` names, once it is this split, with its last event and nothing to come: a busy broker says so late."""

    def named(found: Any) -> bool:
        told = found["watermark"]
        step = {} if told["culprit"] is None else told["steps"][told["culprit"]]
        return step.get("split") == split and step["lastEvent"] == last and "no further record" in step["why"]

    told = (await there.asked(f"/v1/processors/{name}/watermark", named))["watermark"]
    found: dict[str, Any] = told["steps"][told["culprit"]]
    return found


async def asked_what_holds_it(there: There) -> None:
    """The partition that is behind is named, and so is a join's slow side: with its last event, since when, and why."""
    found = await culprit(there, LIFE, "life-1", "2023-11-14T22:13:47.900Z")
    assert (found["vertex"], found["task"]) == ("source-1", 0)
    assert found["since"] is not None
    assert "no partitionIdleTimeout" in found["why"]
    within = {"before": {"size": 1, "unit": "second"}, "after": {"size": 1, "unit": "second"}}
    join = {
        "from": [source("right")],
        "leftKey": "$k",
        "rightKey": "$k",
        "within": within,
        "type": "full",
        "as": "right",
    }
    await there.installed.ensure_started(MEETS, document(source("left"), {"$join": join}, emit("pairs")), {})
    await there.installed.until_running(MEETS)
    await there.send("left", 50, at=100_000)
    await there.send("right", 50)
    found = await culprit(there, MEETS, "right-0", "2023-11-14T22:14:11.900Z")
    assert found["since"] is not None


async def stopped_and_changed(there: There) -> None:
    """With drain all comes out and nothing can be resumed; without, it goes on from its checkpoint, changed as far as its state allows."""
    client = there.installed.client
    await there.stop(MEETS, drain=True)
    assert len(await there.rows("pairs")) == 100, "a drain gives what has found no match"
    with pytest.raises(RequestRefused, match="finished and cannot be resumed"):
        await there.request(StartProcessor(client.unique(), MEETS))
    await there.stop(LIFE, drain=False)
    sent = there.sent
    await there.send("life", 70)
    with pytest.raises(RequestRefused, match=r"pipeline\[1\].*key.*resumeFromCheckpoint"):
        await there.modify(source("life"), compute("Marks", "$n"), emit("out"))
    with pytest.raises(RequestRefused, match=r"pipeline\[0\].*source.*resumeFromCheckpoint"):
        await there.modify(source("left"), *PLAIN[1:])
    await there.modify(PLAIN[0], {"$match": {"n": {"$gte": sent + 35}}}, *PLAIN[1:])
    await there.start(LIFE)
    await there.until_out("out", 420 + 35)
    out = await there.rows("out")
    assert Counter(row["n"] for row in out) == Counter([*range(420), *range(sent + 35, sent + 70)])
    assert by_key(out) == {k: list(range(1, 66)) for k in range(KEYS)}, "counts go on behind the checkpoint"


async def dropped(there: There) -> None:
    """What runs is not dropped; what is dropped is gone with all that it had, and its output stays."""
    client = there.installed.client
    with pytest.raises(RequestRefused, match="running: stop it"):
        await there.request(DropProcessor(client.unique(), LIFE))
    await there.stop(LIFE, drain=False)
    jobs = [status.job for status in (await there.statuses()).values()]
    for name in (LIFE, MEETS):
        await there.request(DropProcessor(client.unique(), name))
    assert await there.statuses() == {}
    topics = await there.patiently(there.installed.log.list_topics)
    left = [topic for topic in topics if any(job in topic for job in jobs)]
    assert left == []
    assert len(await there.rows("out")) == 455


def test_E3_a_life_by_real_processes(tmp_path: Path) -> None:
    """Changed while it runs without replay (E3); sampled, counted, asked what holds its watermark back; stopped, changed, dropped."""

    async def story(there: There) -> None:
        await changed_while_it_runs(there)
        await looked_into(there)
        await asked_what_holds_it(there)
        await stopped_and_changed(there)
        await dropped(there)

    asyncio.run(lived(tmp_path, story))
