"""One story: run, audited, forged in some ways and audited again."""

import json
import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.harness.drawn_audits.drawing import TABLE, Story
from tests.harness.installation import NAME, Installed, installed
from tests.harness.sealing import sealed
from tidemark.services.audit.check import Audited, AuditFailed, audit
from tidemark.services.audit.history import NotAuditable
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld
from tidemark.shared.model.messages import ModifyProcessor
from tidemark.shared.ports.log import LogUnavailable, NewRecord, TopicPartition
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.worker import Worker


@dataclass
class Verdict:
    """What audits said of a story."""

    seed: int
    traits: dict[str, str]
    accused: str = ""
    """What the audit took for a difference: there is none."""
    refused: str = ""
    """Why it made no statement at all."""
    unchecked: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    """Outputs with documents that were compared whole."""
    forgeries: dict[str, str] = field(default_factory=dict)
    """By name: accused, unchecked, gone, refused, or passed."""
    records: int = 0

    @property
    def sort(self) -> str:
        """Accused, refused, partly checked, or checked."""
        return "accused" if self.accused else "refused" if self.refused else "partly" if self.unchecked else "checked"


async def judged(world: VirtualWorld, story: Story, out: Path, *, forges: bool = True) -> Verdict:
    """Run it, and audit what it left."""
    async with installed(world.clock, world.executor, settings=RuntimeSettings(engine="local")) as it:
        log = sealed(MemoryLog(it.broker))
        for topic, parts in {**story.parts, "results": 1}.items():
            await log.create_topic(topic, parts)
        _make_table(out)
        await it.create(story.document, NAME, **story.tasks)
        await it.start()
        writer = await log.writer("feeder")
        for number, (topic, part, record, wait_ms) in enumerate(story.feed):
            if number in story.acts:
                await _act(it, story, story.acts[number])
            await world.clock.sleep_ms(wait_ms)
            await (await writer.send(TopicPartition(topic, part), NewRecord(json.dumps(record).encode())))
        await it.committed()
        await it.stop(drain=True)
        await writer.close()
        left = AuditedInstallation(MemoryCommitStore(it.store), it.memory_blobs, log, {})
        verdict = Verdict(story.seed, story.traits)
        try:
            found = await audit(NAME, left)
        except NotAuditable as error:
            verdict.refused = str(error)
            return verdict
        except AuditFailed as error:
            verdict.accused = str(error)
            return verdict
        verdict.records, verdict.unchecked = found.records, found.unchecked
        verdict.checked = tuple(vertex for vertex, count in found.outputs.items() if count)
        if forges:
            for name, forged in _forgeries(story, it.broker, out):
                with forged():
                    verdict.forgeries[name] = await _said(left, found)
        return verdict


async def _said(left: AuditedInstallation, before: Audited) -> str:
    try:
        found = await audit(NAME, left)
    except NotAuditable:
        return "refused"
    except AuditFailed:
        return "accused"
    if found.gone != before.gone:
        return "gone"
    return "unchecked" if found.unchecked else "passed"


def _make_table(out: Path) -> None:
    with sqlite3.connect(out / f"{TABLE}.db") as connection:
        connection.execute(f"CREATE TABLE {TABLE} (id INTEGER PRIMARY KEY, v TEXT)")
        connection.execute("CREATE TABLE looked (id INTEGER PRIMARY KEY, w TEXT)")
    connection.close()


async def _act(it: Installed, story: Story, act: str) -> None:
    match act:
        case "fail":
            worker = it.parts["source"]
            assert isinstance(worker, Worker)
            for hosted in list(worker._tasks.values())[:1]:
                if hosted.driver is not None:
                    hosted.driver.site.fail(LogUnavailable("a hiccup"))
        case "restart":
            await it.stop()
            await it.start()
        case "rescale":
            await it.stop()
            tasks = {service: 1 + count % 3 for service, count in story.tasks.items() if service != "sink"}
            await it.client.request(ModifyProcessor(it.client.unique(), NAME, None, tasks))
            await it.start()
        case "widen":
            it.broker.add_partitions("a", len(it.broker._topics["a"]) + 1)
        case "modify":
            await it.stop()
            document = json.loads(json.dumps(story.document))
            document["options"]["checkpoint"]["interval"]["size"] += 1
            await it.modify(document)
            await it.start()


# --- forgeries ----------------------------------------------------------------------------------------------------------------


def _forgeries(story: Story, broker: MemoryBroker, out: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    rng = random.Random(f"{story.seed} forged")
    results, letters = _places(broker, "results"), _places(broker, "late")
    if results:
        at = rng.choice(results)
        yield "a result altered", lambda: _changed(broker, at, _other(_value(broker, at)))
        yield "a result gone", lambda: _changed(broker, at, None)
        others = [each for each in results if _value(broker, each) != _value(broker, at)]
        if others:
            other = rng.choice(others)
            yield "a result doubled over another", lambda: _changed(broker, at, _value(broker, other))
        yield "a result of nobody", lambda: _added(broker, "results", b'{"_id":"x","n":1}')
        yield "a result once more", lambda: _added(broker, "results", _value(broker, at))
    if letters:
        letter = rng.choice(letters)
        yield "a letter altered", lambda: _changed(broker, letter, _other(_value(broker, letter)))
        yield "a letter gone", lambda: _changed(broker, letter, None)
    if "table" in story.traits["targets"]:
        yield "a row altered", lambda: _row(out, f"UPDATE {TABLE} SET v = 'x' WHERE id = (SELECT max(id) FROM {TABLE})")
        yield "a row gone", lambda: _row(out, f"DELETE FROM {TABLE} WHERE id = (SELECT max(id) FROM {TABLE})")
    if not story.shows:
        return
    read = [each for topic in story.parts for each in _places(broker, topic)]
    for n in range(3):
        taken = rng.choice(read)
        record = json.loads(_value(broker, taken))
        if not record["bad"]:
            yield (
                f"a record counted as another {n}",
                lambda taken=taken, record=record: _changed(  # type: ignore[misc]
                    broker, taken, json.dumps({**record, "v": record["v"] + 1_000, "k": f"{record['k']}'"}).encode()
                ),
            )


Place = tuple[TopicPartition, int]


def _places(broker: MemoryBroker, topic: str) -> list[Place]:
    if topic not in broker._topics:
        return []
    return [
        (TopicPartition(topic, number), at)
        for number, partition in enumerate(broker._topics[topic])
        for at, stored in enumerate(partition.stored)
        if stored.record is not None
    ]


def _value(broker: MemoryBroker, place: Place) -> bytes:
    (topic, number), at = place
    record = broker._topics[topic][number].stored[at].record
    assert record is not None
    assert record.value is not None
    return record.value


def _other(value: bytes) -> bytes:
    """The same with another number in it, if there is one."""
    found = list(re.finditer(rb"(?<=[:\[])\d+", value))
    if not found:
        return b'{"altered":true}'
    return value[: found[-1].start()] + b"7" + value[found[-1].start() :]


@contextmanager
def _changed(broker: MemoryBroker, place: Place, value: bytes | None) -> Iterator[None]:
    (topic, number), at = place
    stored = broker._topics[topic][number].stored
    before = stored[at]
    assert before.record is not None
    record = None if value is None else replace(before.record, value=value)
    stored[at] = before._replace(record=record)
    yield
    stored[at] = before


@contextmanager
def _added(broker: MemoryBroker, topic: str, value: bytes) -> Iterator[None]:
    partition = broker._topics[topic][0]
    before = len(partition.stored)
    broker.append(TopicPartition(topic, 0), [NewRecord(value)])
    yield
    del partition.stored[before:]


@contextmanager
def _row(out: Path, statement: str) -> Iterator[None]:
    path = out / f"{TABLE}.db"
    before = path.read_bytes()
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
    yield
    path.write_bytes(before)
