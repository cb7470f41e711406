"""An audit of documents in which streams meet: drawn ones, with joins, unions and windows in front of and behind them.

Streams may come from one topic; records are late by their own split, or by the pace of the others. An audit accuses none of these runs,
and where it leaves nothing unchecked it finds a record that does not follow.
"""

import json
import logging
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.harness.installation import NAME, installed
from tests.harness.sealing import KEYS, sealed
from tests.harness.share import share
from tidemark.services.audit.check import Audited, AuditFailed, NotAuditable, audit
from tidemark.services.audit.checkpoint import AuditCheckpoint, last_checkpoint
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.process import quiet
from tidemark.services.sink.connectors.kafkamarkers import decode_marker, markers_of
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset, VertexId
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.ports.sink import Identity
from tidemark.shared.protocol.coordinator.record import decode_plan
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.wire.messages import decode_stands

COUNT = 90
PARTITIONS = {"a": 1, "b": 2}
BEGIN_MS = 1_000_000
IDLE_MS = 400
SWITCH_MS = BEGIN_MS + 400 * COUNT // 2
TICKS = "tests.harness.computations:Ticks"
DRAWS = share(range(40), 16)
Stages = list[dict[str, Any]]
Feed = list[tuple[TopicPartition, dict[str, Any], int]]
"""Where a record goes, the record, and the pause behind it, ms."""


class Story(NamedTuple):
    """A document, its records in order, and numbers of tasks."""

    document: dict[str, Any]
    feed: Feed
    tasks: dict[str, int]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


def _seconds(size: int) -> dict[str, Any]:
    return {"size": size, "unit": "second"}


def _source(chance: random.Random, topic: str) -> dict[str, Any]:
    more: dict[str, Any] = {"recordId": "$id"} if chance.random() < 0.3 else {}
    if chance.random() < 0.2:
        more["partitionIdleTimeout"] = {"size": IDLE_MS, "unit": "ms"}
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


def _document(out: Path, stages: Stages, **options: Any) -> dict[str, Any]:
    return {
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "memory"},
            "out": {"type": "files", "path": str(out)},
        },
        "pipeline": [*stages, {"$emit": {"connectionName": "broker", "topic": "results"}}],
        "options": {"dlq": {"connectionName": "broker", "topic": "late"}, **options},
    }


def _drawn(seed: int, out: Path, stages: Stages) -> Story:
    """The stages with options, records and numbers of tasks by chance. Times rise, but for one record in ten."""
    chance = random.Random(seed)
    checkpoint = {"interval": _seconds(1)}
    if chance.random() < 0.15:
        checkpoint["alignmentTimeout"] = {"size": 1, "unit": "ms"}
    lateness = "split" if chance.random() < 0.7 else "merged"
    feed: Feed = []
    for number in range(COUNT):
        at = BEGIN_MS + 400 * number - (40_000 if chance.random() < 0.1 else 0)
        odd, bad = chance.random() < 0.05, chance.random() < 0.05
        record = {"id": chance.randrange(COUNT), "k": chance.choice("xyz"), "at": at, "odd": odd, "bad": bad}
        topic = chance.choice("ab")
        pause_ms = chance.choice([0, 10, 130, 130, 1_500 if chance.random() < 0.2 else 10])
        feed.append((TopicPartition(topic, chance.randrange(PARTITIONS[topic])), record, pause_ms))
    tasks = {"source": chance.choice([1, 1, 2]), "operator": chance.choice([1, 2])}
    return Story(_document(out, stages, checkpoint=checkpoint, lateness=lateness), feed, tasks)


@asynccontextmanager
async def _ran(
    world: VirtualWorld, story: Story, there: str = "", audits: Collection[int] = ()
) -> AsyncIterator[AuditedInstallation]:
    """Records one after the other, up to the end.

    there: topics with records that are there before the start. audits: behind these records there is an audit, which goes on from the last.
    """
    async with installed(world.clock, world.executor, settings=RuntimeSettings(engine="local")) as it:
        log = sealed(MemoryLog(it.broker))
        for topic, parts in {**PARTITIONS, "results": 1}.items():
            await log.create_topic(topic, parts)
        writer = await log.writer("feeder")
        for at, record, _ in story.feed:
            if at.topic in there:
                await (await writer.send(at, NewRecord(json.dumps(record).encode())))
        await it.create(story.document, NAME, **story.tasks)
        await it.start()
        left = AuditedInstallation(MemoryCommitStore(it.store), it.memory_blobs, log, {}, keys=KEYS)
        for number, (at, record, pause_ms) in enumerate(story.feed):
            if at.topic not in there:
                await (await writer.send(at, NewRecord(json.dumps(record).encode())))
                await world.clock.sleep_ms(pause_ms)
            if number in audits:
                with suppress(NotAuditable):  # nothing is committed yet, or what is cannot be judged before the end
                    await audit(NAME, left, resumes=True)
        await it.committed()
        await it.stop(drain=True)
        await writer.close()
        yield left


async def _forge(left: AuditedInstallation) -> None:
    """Somebody adds a document to what came out."""
    writer = await left.log.writer("forger")
    await (await writer.send(TopicPartition("results", 0), NewRecord(b'{"forged": 1}')))
    await writer.close()


async def _audited(world: VirtualWorld, story: Story, *, there: str = "", forged: bool = False) -> Audited:
    """The audit of a story, at its end."""
    async with _ran(world, story, there) as left:
        if forged:
            await _forge(left)
        return await audit(NAME, left)


@pytest.mark.parametrize("seed", DRAWS)
def test_a_drawn_document_in_which_streams_meet_is_audited(seed: int, tmp_path: Path) -> None:
    """Nothing is accused; if nothing is left unchecked, what does not follow is found."""
    chance = random.Random(seed)
    stages = [_source(chance, chance.choice("ab")), *_between(chance), *_meeting(chance)]
    story = _drawn(seed, tmp_path, stages)
    found: Audited = run_virtual(lambda world: _audited(world, story))
    assert found.records >= COUNT // 3
    # What lies in front of all that a job wrote is not the job's.
    if not found.unchecked and found.outputs[VertexId("emit-1")]:
        with pytest.raises(AuditFailed, match="forged"):
            run_virtual(lambda world: _audited(world, story, forged=True))


@pytest.mark.parametrize("seed", DRAWS[:4])
def test_a_past_and_a_stream_are_audited(seed: int, tmp_path: Path) -> None:
    """Records on the other side of `switchAt` are left to the other source, and no account counts them."""
    past, then = (_source(random.Random(0), topic)["$source"] for topic in "ab")
    switched = {"history": {**past, "until": "latest"}, "then": then, "switchAt": {"$date": SWITCH_MS}}
    story = _drawn(seed, tmp_path, [{"$source": switched}, _window(random.Random(seed))])
    found: Audited = run_virtual(lambda world: _audited(world, story, there="a"))
    own = [r for at, r, _ in story.feed if r["bad"] or (r["at"] < SWITCH_MS) == (at.topic == "a")]
    assert found.records == len(own)
    assert found.dead_letters == sum(record["bad"] for record in own)
    assert found.accepted + found.late == len(own) - found.dead_letters


def test_rows_of_a_window_are_not_accused_where_its_source_was_idle(tmp_path: Path) -> None:
    """They come to a join that has gone on meanwhile, and between two checkpoints nobody notes that."""
    left, right = (_source(random.Random(0), topic) for topic in "ba")
    right["$source"]["partitionIdleTimeout"] = {"size": IDLE_MS, "unit": "ms"}
    sums = [{"$group": {"_id": "$k", "k": {"$first": "$k"}, "n": {"$sum": 1}}}]
    window = {"$tumblingWindow": {"interval": _seconds(1), "allowedLateness": 0, "pipeline": sums}}
    within = {"before": _seconds(2), "after": _seconds(2)}
    join = {"from": [right, window], "leftKey": "$k", "rightKey": "$k", "type": "full", "within": within, "as": "r"}

    def row(topic: str, partition: int, at_ms: int, pause_ms: int) -> tuple[TopicPartition, dict[str, Any], int]:
        return TopicPartition(topic, partition), {"id": at_ms, "k": "x", "at": BEGIN_MS + at_ms}, pause_ms

    feed = [row("a", 0, 0, 100), row("b", 0, 0, 10), row("b", 1, 0, 3_500)]  # a checkpoint
    feed += [row("b", n % 2, 500 * n, 20) for n in range(60)]
    feed += [row("a", 0, 5_000, 100), row("b", 0, 31_000, 10), row("b", 1, 31_000, 10)]
    options = {"checkpoint": {"interval": _seconds(3)}, "lateness": "split"}
    story = Story(_document(tmp_path, [left, {"$join": join}], **options), feed, {"source": 1, "operator": 1})
    found: Audited = run_virtual(lambda world: _audited(world, story))
    assert any("$join: how far other splits were" in why for why in found.unchecked)


# --- audits that go on where the last one ended -------------------------------------------------------------------------------


class Resumed(NamedTuple):
    """Three audits of one end, and what the last of those on the way had covered."""

    whole: Audited
    behind: Audited
    aged: Audited
    covered: AuditCheckpoint | None


async def _age(left: AuditedInstallation, last: AuditCheckpoint) -> None:
    """Time takes what this checkpoint covers: of mirror, markers, sources and outputs."""
    job = last.commit.job
    before = {TopicPartition(left.topics.commits(job), 0): Offset(last.offset + 1)}
    for stand in (stand for source in last.commit.sources for stand in decode_stands(source.positions)):
        topic, _, partition = stand.split.rpartition("-")
        at = TopicPartition(topic, int(partition))
        before[at] = min(before.get(at, stand.next), stand.next)
    for vertex, output in last.outputs.items():
        for topic, partitions in output.topics.items():
            before |= {TopicPartition(topic, number): kept.next for number, kept in partitions.items()}
        for name, epoch in output.markers.items():
            at = markers_of(Identity(job, vertex, int(name.rpartition("/")[2])))
            records = [record async for record in committed_records(left.log, at.topic)]
            before[at] = next(r.offset for r in records if decode_marker(at, r.value or b"").epoch >= epoch)
    await left.log.delete_records(before)


async def _resumed(world: VirtualWorld, story: Story, audits: Collection[int], there: str) -> Resumed:
    async with _ran(world, story, there, audits) as left:
        row = await left.row_of(NAME)
        plan = decode_plan(row.plan)
        last = await last_checkpoint(row.job, plan, left.blobs, KEYS)
        behind, whole = await audit(NAME, left, resumes=True), await audit(NAME, left)
        if last is None:
            return Resumed(whole, behind, whole, last)
        await _age(left, last)
        aged = await audit(NAME, left)
        await _forge(left)
        if not aged.unchecked and aged.outputs[VertexId("emit-1")]:
            with pytest.raises(AuditFailed, match="forged"):
                await audit(NAME, left, resumes=True)
        await left.blobs.delete(await left.blobs.list(f"{row.job}/audit/"))
        with pytest.raises(NotAuditable, match="are gone"):
            await audit(NAME, left)
        return Resumed(whole, behind, aged, last)


@pytest.mark.parametrize("seed", DRAWS)
def test_an_audit_goes_on_where_the_last_one_ended(seed: int, tmp_path: Path) -> None:
    """It finds what an audit from the begin finds; also when all that the last one covered is gone."""
    chance = random.Random(seed)
    stages = [
        _source(chance, chance.choice("ab")),
        *_between(chance),
        *chance.choice([_meeting(chance), [_window(chance)]]),
    ]
    story = _drawn(seed, tmp_path, stages)
    audits = chance.sample(range(10, COUNT), chance.choice([1, 2, 5]))
    found: Resumed = run_virtual(lambda world: _resumed(world, story, audits, ""))
    whole = found.whole
    for later in (found.behind, found.aged):
        assert (later.records, later.duplicates, later.waiting) == (whole.records, whole.duplicates, whole.waiting)
        assert later.before.epochs + len(later.epochs) == len(whole.epochs)
        assert later.accepted + later.late + later.duplicates + later.dead_letters == later.records
        # Where moments decided something later, an audit from the begin says nothing of what it found before that.
        assert bool(later.unchecked) == bool(whole.unchecked)
        if not whole.unchecked:
            assert (later.late, later.dead_letters, later.outputs) == (whole.late, whole.dead_letters, whole.outputs)
