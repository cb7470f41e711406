"""An audit of documents in which streams meet: drawn ones, with joins, unions and windows in front of and behind them.

Streams may come from one topic; records are late by their own split, or by the pace of the others. An audit accuses none of these runs,
and where it leaves nothing unchecked it finds a record that does not follow.
"""

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, installed
from tests.harness.sealing import sealed
from tests.harness.share import share
from tidemark.services.audit.check import Audited, AuditFailed, audit
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import VertexId
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.settings import RuntimeSettings

COUNT = 90
PARTITIONS = {"a": 1, "b": 2}
SWITCH_MS = 1_000_000 + 400 * COUNT // 2
TICKS = "tests.harness.computations:Ticks"
DRAWS = share(range(40), 5)
Stages = list[dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


def _seconds(size: int) -> dict[str, Any]:
    return {"size": size, "unit": "second"}


def _source(chance: random.Random, topic: str) -> dict[str, Any]:
    more: dict[str, Any] = {"recordId": "$id"} if chance.random() < 0.3 else {}
    if chance.random() < 0.2:
        more["partitionIdleTimeout"] = {"size": 400, "unit": "ms"}
    config = {"auto_offset_reset": "earliest"}
    time = {"$toDate": {"$toLong": {"$cond": ["$bad", "no time", "$at"]}}}
    return {"$source": {"connectionName": "broker", "topic": topic, "config": config, "timeField": time, **more}}


def _window(chance: random.Random) -> dict[str, Any]:
    sums = [{"$group": {"_id": "$k", "n": {"$sum": 1}, "k": {"$first": "$k"}}}]
    late = {"allowedLateness": _seconds(chance.choice([0, 2]))}
    if chance.random() < 0.3:
        return {"$sessionWindow": {"partitionBy": "$k", "gap": _seconds(2), "pipeline": sums, **late}}
    return {"$tumblingWindow": {"interval": _seconds(chance.choice([1, 5])), "pipeline": sums, **late}}


def _between(chance: random.Random) -> Stages:
    """What a stream goes through before it meets another one."""
    return chance.choice(
        [
            [],
            [],
            [{"$match": {"$expr": {"$ne": [{"$mod": ["$id", 5]}, 1]}}}],
            [{"$addFields": {"x": {"$toInt": {"$cond": ["$odd", "odd", "1"]}}}}],
            [_window(chance)],
            [{"$compute": {"class": TICKS, "key": "$k"}}],
        ]
    )


def _meeting(chance: random.Random) -> Stages:
    """A join or a union with one or two streams, and what stands behind it."""
    if chance.random() < 0.4:
        streams = [[_source(chance, chance.choice("ab")), *_between(chance)] for _ in range(chance.choice([1, 1, 2]))]
        return [{"$union": {"pipelines": streams}}, *chance.choice([[], [_window(chance)]])]
    join = {
        "from": [_source(chance, chance.choice("ab")), *_between(chance)],
        "leftKey": "$k",
        "rightKey": "$k",
        "type": chance.choice(["inner", "left", "right", "full"]),
        "within": {"before": _seconds(chance.choice([1, 3])), "after": _seconds(chance.choice([1, 2]))},
        "as": "r",
    }
    behind = [[], [{"$addFields": {"k": {"$ifNull": ["$k", "$r.k"]}}}, _window(chance)]]
    return [{"$join": join}, *chance.choice(behind)]


def _document(chance: random.Random, out: Path, stages: Stages) -> dict[str, Any]:
    unaligned = {"alignmentTimeout": {"size": 1, "unit": "ms"}} if chance.random() < 0.15 else {}
    return {
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "memory"},
            "out": {"type": "files", "path": str(out)},
        },
        "pipeline": [*stages, {"$emit": {"connectionName": "broker", "topic": "results"}}],
        "options": {
            "dlq": {"connectionName": "broker", "topic": "late"},
            "checkpoint": {"interval": _seconds(1), **unaligned},
            "lateness": "split" if chance.random() < 0.7 else "merged",
        },
    }


def _feed(chance: random.Random) -> list[tuple[TopicPartition, dict[str, Any]]]:
    """Records and their places. Times rise, but for one record in ten."""
    found = []
    for number in range(COUNT):
        at = 1_000_000 + 400 * number - (40_000 if chance.random() < 0.1 else 0)
        odd, bad = chance.random() < 0.05, chance.random() < 0.05
        record = {"id": chance.randrange(COUNT), "k": chance.choice("xyz"), "at": at, "odd": odd, "bad": bad}
        topic = chance.choice("ab")
        found.append((TopicPartition(topic, chance.randrange(PARTITIONS[topic])), record))
    return found


async def _audited(
    world: VirtualWorld, seed: int, stages: Stages, out: Path, there: str = "", *, forged: bool
) -> Audited:
    """Records one after the other, and the audit of what came out.

    there: topics with records that are there before the start. forged: somebody adds a document to what came out.
    """
    chance = random.Random(seed)
    document, feed = _document(chance, out, stages), _feed(random.Random(seed))
    async with installed(world.clock, world.executor, settings=RuntimeSettings(engine="local")) as it:
        log = sealed(MemoryLog(it.broker))
        for topic, parts in {**PARTITIONS, "results": 1}.items():
            await log.create_topic(topic, parts)
        writer = await log.writer("feeder")
        for at, record in feed:
            if at.topic in there:
                await (await writer.send(at, NewRecord(json.dumps(record).encode())))
        await it.create(document, source=chance.choice([1, 1, 2]), operator=chance.choice([1, 2]))
        await it.start()
        for at, record in feed:
            if at.topic not in there:
                await (await writer.send(at, NewRecord(json.dumps(record).encode())))
                await world.clock.sleep_ms(chance.choice([0, 10, 130, 130, 1_500 if chance.random() < 0.2 else 10]))
        await it.committed()
        await it.stop(drain=True)
        if forged:
            await (await writer.send(TopicPartition("results", 0), NewRecord(b'{"forged": 1}')))
        await writer.close()
        return await audit(NAME, AuditedInstallation(MemoryCommitStore(it.store), it.memory_blobs, log, {}))


@pytest.mark.parametrize("seed", DRAWS)
def test_a_drawn_document_in_which_streams_meet_is_audited(seed: int, tmp_path: Path) -> None:
    """Nothing is accused; if nothing is left unchecked, what does not follow is found."""
    chance = random.Random(seed)
    stages = [_source(chance, chance.choice("ab")), *_between(chance), *_meeting(chance)]
    found: Audited = run_virtual(lambda world: _audited(world, seed, stages, tmp_path / "a", forged=False))
    assert found.records >= COUNT // 3
    # What lies in front of all that a job wrote is not the job's.
    if not found.unchecked and found.outputs[VertexId("emit-1")]:
        with pytest.raises(AuditFailed, match="forged"):
            run_virtual(lambda world: _audited(world, seed, stages, tmp_path / "b", forged=True))


@pytest.mark.parametrize("seed", DRAWS[:4])
def test_a_past_and_a_stream_are_audited(seed: int, tmp_path: Path) -> None:
    """Records on the other side of `switchAt` are left to the other source, and no account counts them."""
    chance = random.Random(seed)
    past, then = (_source(random.Random(0), topic)["$source"] for topic in "ab")
    switched = {"history": {**past, "until": "latest"}, "then": then, "switchAt": {"$date": SWITCH_MS}}
    stages = [{"$source": switched}, _window(chance)]
    found: Audited = run_virtual(lambda world: _audited(world, seed, stages, tmp_path, "a", forged=False))
    own = [r for at, r in _feed(random.Random(seed)) if r["bad"] or (r["at"] < SWITCH_MS) == (at.topic == "a")]
    assert found.records == len(own)
    assert found.dead_letters == sum(record["bad"] for record in own)
    assert found.accepted + found.late == len(own) - found.dead_letters
