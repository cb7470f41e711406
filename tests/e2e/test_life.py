# ruff: noqa: N802 -- a test carries its rule's name
"""A processor's life on a real broker, by real processes: changed while it runs, looked into, and asked what holds its watermark back."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from services.cli.collect import committed_records
from services.cli.feed import Fed, feed
from services.cli.installation import Installation, installation
from services.cli.remote import Remote, find
from services.local.supervisor import ADDRESS_FILE
from shared.model.ids import ProcessorName
from shared.model.messages import ModifyProcessor, ProcessorStatus, StopProcessor

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
LIFE, MEETS = ProcessorName("life"), ProcessorName("meets")
WORKERS = {"coordinator": 1, "source": 1, "operator": 1, "sink": 1, "spark": 0, "control": 1}
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


def compute(name: str) -> dict[str, Any]:
    return {"$compute": {"class": f"tests.harness.computations:{name}", "key": "$k", "order": "arrival"}}


def document(*stages: Mapping[str, Any]) -> str:
    return json.dumps({
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "${KAFKA}"}},
        "pipeline": list(stages),
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    })  # fmt: skip


class There:
    """An installation with topics, and what was sent."""

    def __init__(self, installed: Installation, control: Remote) -> None:
        self.installed = installed
        self.control = control
        self.sent = 0

    async def send(self, topic: str, count: int, partition: int = 0, at: int = 0) -> None:
        """So many records with numbers of their own, a tenth of a second apart, acknowledged."""
        rows = [{"k": n % KEYS, "n": n, "at": BEGIN_MS + at + 100 * n} for n in range(self.sent, self.sent + count)]
        records = [(partition, str(row["k"]).encode(), json.dumps(row).encode()) for row in rows]
        await feed(self.installed.log, topic, records, count, 0.0, Fed())
        self.sent += count

    async def rows(self, topic: str) -> list[dict[str, Any]]:
        """What a reader of committed records sees."""
        return [json.loads(r.value or b"") async for r in committed_records(self.installed.log, topic)]

    async def until_out(self, topic: str, count: int) -> None:
        """Wait until so many are out; a heartbeat is a moment to look."""
        async for _ in self.installed.client.heartbeats():
            if len(await self.rows(topic)) >= count:
                return

    async def modify(self, *stages: Mapping[str, Any]) -> None:
        """Another plan, while it runs: a new generation at a checkpoint."""
        client = self.installed.client
        version = (await client.statuses())[LIFE].plan_version
        await client.request(ModifyProcessor(client.unique(), LIFE, document(*stages)))
        await self.when(LIFE, lambda s: s.plan_version == version + 1 and s.state == "RUNNING")

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
    plain = (source("life"), compute("Marks"), emit("out"))
    await there.installed.ensure_started(LIFE, document(*plain), {"operator": 2})
    await there.installed.until_running(LIFE)
    await there.send("life", 140)
    await there.until_out("out", 140)
    await there.modify(source("life"), emit("copy"), compute("Adds"), compute("Marks"), emit("out"))
    await there.send("life", 140, partition=1)
    await there.until_out("out", 280)
    await there.modify(*plain)
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
    """`sample` shows what comes out, `stats` counts it with Atlas' fields."""

    def counted(found: Any) -> bool:
        told = found["stats"]
        settled = all(each["checkpointOffset"] == each["currentOffset"] for each in told["kafkaPartitions"])
        return bool(told["outputMessageCount"] >= 140 and settled)

    shown = await there.installed.client.sample(LIFE, 3, wait_ms=5_000)
    assert [set(row) for row in shown] == [{"k", "n", "at", "seen"}] * 3
    stats = (await there.asked(f"/v1/processors/{LIFE}/stats?verbose=true", counted))["stats"]
    assert stats.keys() >= {
        "name", "processorId", "status", "scaleFactor", "inputMessageCount", "inputMessageSize", "outputMessageCount", "outputMessageSize",
        "dlqMessageCount", "dlqMessageSize", "stateSize", "watermark", "operatorStats", "kafkaPartitions",
    }  # fmt: skip
    operator = {"name", "inputMessageCount", "outputMessageCount", "stateSize", "executionTimeSecs"}
    assert stats["operatorStats"][0].keys() >= operator
    partitions = stats["kafkaPartitions"]
    offsets = {each["partition"]: (each["currentOffset"], each["checkpointOffset"]) for each in partitions}
    assert offsets == {"life-0": (280, 280), "life-1": (140, 140)}


async def culprit(there: There, name: ProcessorName, split: str) -> dict[str, Any]:
    """What `explain-watermark` names, once it is this split."""

    def named(found: Any) -> bool:
        told = found["watermark"]
        return told["culprit"] is not None and told["steps"][told["culprit"]]["split"] == split

    told = (await there.asked(f"/v1/processors/{name}/watermark", named))["watermark"]
    found: dict[str, Any] = told["steps"][told["culprit"]]
    return found


async def asked_what_holds_it(there: There) -> None:
    """The partition that is behind is named, and so is a join's slow side, with what the join itself keeps back."""
    found = await culprit(there, LIFE, "life-1")
    assert (found["vertex"], found["lastEvent"]) == ("source-1", "2023-11-14T22:13:47.900Z")
    assert found["since"] is not None
    assert "no further record" in found["why"]
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
    found = await culprit(there, MEETS, "right-0")
    assert found["lastEvent"] == "2023-11-14T22:14:11.900Z"
    assert found["why"]


def test_E3_a_life_by_real_processes(tmp_path: Path) -> None:
    """Changed while it runs without replay (E3); sampled and counted; asked what holds its watermark back; stopped."""

    async def story(there: There) -> None:
        await changed_while_it_runs(there)
        await looked_into(there)
        await asked_what_holds_it(there)
        client = there.installed.client
        for name in (LIFE, MEETS):
            await client.request(StopProcessor(client.unique(), name, drain=False, until={}))
            await there.when(name, lambda s: s.state == "STOPPED")

    asyncio.run(lived(tmp_path, story))
