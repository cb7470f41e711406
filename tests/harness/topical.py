"""A control service and a coordinator on topics of their own of a real broker: commands by topic, answers and events."""

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from services.control.agents import Agents
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

TOKEN = "a-token-of-the-tests"
DOCUMENT = {
    "pipeline": [{"$source": {"path": "in.json", "format": "json"}}, {"$emit": {"path": "o", "format": "json"}}]
}


@dataclass
class Topical:
    """What a test speaks to."""

    log: KafkaLog
    topics: Topics
    store: MemoryCommitState
    service: ControlService

    @property
    def agents(self) -> Agents:
        """The service's."""
        assert self.service.agents is not None
        return self.service.agents

    async def command(self, value: bytes) -> None:
        """Onto the topic of commands."""
        writer = await self.log.writer("test")
        await (await writer.send(TopicPartition(self.topics.control_commands, 0), NewRecord(value)))
        await writer.close()

    async def create(self, name: str, request: str) -> None:
        """The command to create a processor."""
        command = {"command": "create", "name": name, "request": request, "document": DOCUMENT}
        await self.command(json.dumps(command).encode())

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
        """So many events of a type."""
        return [json.loads(record.value or b"") for record in await self.until(self.topics.events, count, kind)]

    async def until_agents_run(self) -> None:
        """Commands are taken."""
        while self.agents.state != "running":
            await SystemClock().sleep_ms(50)


@asynccontextmanager
async def topical(kafka: KafkaSettings) -> AsyncIterator[Topical]:
    """Started, and stopped at the end; nothing may have broken."""
    topics = Topics(f"tm-{uuid.uuid4().hex[:8]}")
    clock, executor = SystemClock(), AsyncExecutor()

    def unique() -> str:
        return uuid.uuid4().hex

    runtime = RuntimeSettings(engine="local")
    outside = Outside(KafkaLog(kafka), MemoryBlobs(executor), clock, executor, topics, runtime, unique)
    store = MemoryCommitState()
    machine = CoordinatorMachine(CoordinatorSettings(topic_prefix=topics.prefix), unique)
    planner = partial(plan_for_coordinator, "local")
    coordinator = CoordinatorDriver("c", outside, MemoryCommitStore(store), planner, machine)
    control = ControlSettings(port=0, engine="local", command_timeout_ms=5_000)
    service = ControlService(KafkaLog(kafka), topics, clock, executor, control, TOKEN, kafka)
    errors: list[BaseException] = []
    running = [executor.spawn(part.run(), "part", errors.append) for part in (coordinator, service)]
    log = KafkaLog(replace(kafka, client="test"))
    await service.client.ready(60_000)
    there = Topical(log, topics, store, service)
    await there.until_agents_run()
    yield there
    for part in (service, coordinator):
        part.stop()
    for handle in running:
        await handle.join()
    await log.close()
    assert errors == []
