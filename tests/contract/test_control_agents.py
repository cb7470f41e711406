"""Commands and events on topics of a real broker: what comes by topic is what comes by REST, and nothing that fails is lost."""

import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from services.control.service import ControlService
from services.control.settings import ControlSettings
from services.coordinator.planning import plan_for_coordinator
from shared.adapters.blobs import MemoryBlobs
from shared.adapters.clock import SystemClock
from shared.adapters.executor import AsyncExecutor
from shared.adapters.kafka_log import KafkaLog
from shared.adapters.kafka_settings import KafkaSettings
from shared.adapters.memory_commit_store import MemoryCommitState, MemoryCommitStore
from shared.model.ids import Offset
from shared.ports.log import LogRecord, NewRecord, TopicPartition
from shared.protocol.coordinator.machine import CoordinatorMachine
from shared.protocol.coordinator.settings import CoordinatorSettings
from shared.runtime.context import Outside
from shared.runtime.coordinator import CoordinatorDriver
from shared.runtime.settings import RuntimeSettings
from shared.runtime.topics import Topics

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]
DOCUMENT = {
    "pipeline": [{"$source": {"path": "in.json", "format": "json"}}, {"$emit": {"path": "o", "format": "json"}}]
}


@dataclass
class Topical:
    """A control service and a coordinator on topics of their own."""

    log: KafkaLog
    topics: Topics
    store: MemoryCommitState
    service: ControlService

    async def command(self, value: bytes) -> None:
        writer = await self.log.writer("test")
        await (await writer.send(TopicPartition(self.topics.control_commands, 0), NewRecord(value)))
        await writer.close()

    async def until(self, topic: str, count: int, kind: str = "") -> list[LogRecord]:
        """So many records of a topic; of events, those of a type."""
        found: list[LogRecord] = []
        reader = await self.log.reader()
        await reader.assign({TopicPartition(topic, 0): Offset(0)})
        while len(found) < count:
            for record in await reader.fetch(100, 200):
                if not kind or json.loads(record.value or b"")["type"] == kind:
                    found.append(record)  # noqa: PERF401 - awaits in between
        await reader.close()
        return found

    async def events(self, kind: str, count: int) -> list[dict[str, Any]]:
        return [json.loads(record.value or b"") for record in await self.until(self.topics.events, count, kind)]


@pytest.fixture
def bootstrap(kafka_broker: str) -> str:
    """Not async: the session's broker starts in a loop of its own."""
    return kafka_broker


@pytest.fixture
async def topical(bootstrap: str) -> AsyncIterator[Topical]:
    topics = Topics(f"tm-{uuid.uuid4().hex[:8]}")
    clock, executor, kafka = SystemClock(), AsyncExecutor(), KafkaSettings(bootstrap=bootstrap)

    def unique() -> str:
        return uuid.uuid4().hex

    runtime = RuntimeSettings(engine="local")
    outside = Outside(KafkaLog(kafka), MemoryBlobs(executor), clock, executor, topics, runtime, unique)
    store = MemoryCommitState()
    machine = CoordinatorMachine(CoordinatorSettings(topic_prefix=topics.prefix), unique)
    planner = partial(plan_for_coordinator, "local")
    coordinator = CoordinatorDriver("c", outside, MemoryCommitStore(store), planner, machine)
    control = ControlSettings(port=0, engine="local", command_timeout_ms=5_000)
    service = ControlService(KafkaLog(kafka), topics, clock, executor, control, "a-token-of-the-tests", kafka)
    errors: list[BaseException] = []
    running = [executor.spawn(part.run(), "part", errors.append) for part in (coordinator, service)]
    log = KafkaLog(replace(kafka, client="test"))
    await service.client.ready(60_000)
    while service.agents is None or service.agents.state != "running":
        await clock.sleep_ms(50)
    yield Topical(log, topics, store, service)
    for part in (service, coordinator):
        part.stop()
    for handle in running:
        await handle.join()
    await log.close()
    assert errors == []


async def test_commands_by_topic_are_carried_out_once_and_answered(topical: Topical, tmp_path: Path) -> None:
    """A command is answered on the events topic, beside the state that it led to; a repeat is answered and not carried out again.

    What does not decode, is refused or is wrong goes to the dead letters with its reason, and the next command is taken.
    """
    create = {"command": "create", "name": "p", "request": "r1", "document": DOCUMENT}
    bad = json.dumps(
        {"command": "create", "name": "q", "request": "r2", "document": {"pipeline": [{"$sauce": {}}]}}
    ).encode()
    for value in (json.dumps(create).encode(), b"\xffno json", bad, json.dumps(create).encode()):
        await topical.command(value)
    await topical.command(json.dumps({"command": "start", "name": "nobody", "request": "r3"}).encode())
    await topical.command(json.dumps({"command": "drop", "name": "p", "request": "r4"}).encode())
    answers = await topical.events("answer", 6)
    place = f"{topical.topics.control_commands}-0-1"
    assert [(a["id"], a["done"]) for a in answers] == [
        ("r1", True),
        (place, False),
        ("r2", False),
        ("r1", True),
        ("r3", False),
        ("r4", True),
    ]
    dead = await topical.until(topical.topics.control_dead_letters, 3)
    reasons = [dict(record.headers)["reason"].decode() for record in dead]
    assert [record.value for record in dead][:2] == [b"\xffno json", bad]
    assert [
        "malformed" in reasons[0].lower() or "utf-8" in reasons[0].lower(),
        "$sauce" in reasons[1],
        "no processor" in reasons[2],
    ] == [True] * 3
    states = await topical.events("state", 1)
    assert (states[0]["processor"], states[0]["state"]) == ("p", "CREATED")
    assert topical.store.rows == {}
