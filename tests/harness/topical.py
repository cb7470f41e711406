"""A control service and a coordinator on topics of their own of a real broker: commands by topic, answers and events.

The service is a process, as it runs: what its library leaves on a loop, and its threads, end with it, and hold up no test.
"""

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from tests.harness.sealing import KEY, sealed
from tidemark.services.control.agents import HEADER, signature
from tidemark.services.coordinator.planning import plan_for_coordinator
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.adapters.memory_commit_store import MemoryCommitState, MemoryCommitStore
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import Log, LogRecord, NewRecord, TopicPartition
from tidemark.shared.process.allowed import OWNER
from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings, Quota
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.context import Outside
from tidemark.shared.runtime.coordinator import CoordinatorDriver
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics

TOKEN = "a-token-of-the-tests"
DOCUMENT = {
    "pipeline": [{"$source": {"path": "in.json", "format": "json"}}, {"$emit": {"path": "o", "format": "json"}}]
}


def soon() -> str:
    """A minute from now."""
    return datetime.fromtimestamp(SystemClock().now_ms() / 1000 + 60, UTC).isoformat()


@dataclass
class Topical:
    """What a test speaks to."""

    log: Log
    topics: Topics
    store: MemoryCommitState
    process: asyncio.subprocess.Process
    url: str
    session: ClientSession

    def crash_agents(self) -> None:
        """Break the agents' library, with a RuntimeError "made by the test"."""
        self.process.send_signal(signal.SIGUSR1)

    async def agents(self) -> str:
        """Their state, as the service tells it."""
        assert self.process.returncode is None, "the service has ended"
        async with self.session.get(f"{self.url}/readyz") as answer:
            return str(json.loads(await answer.read())["agents"])

    async def command(self, value: bytes) -> None:
        """Onto the topic of commands, signed."""
        await self.put(value, signature(TOKEN, self.topics.control_commands, value))

    async def put(self, value: bytes, signed: str | None) -> None:
        """Onto the topic of commands, with this in the header of its signature."""
        writer = await self.log.writer("test")
        at = TopicPartition(self.topics.control_commands, 0)
        headers = () if signed is None else ((HEADER, signed.encode()),)
        await (await writer.send(at, NewRecord(value, headers=headers)))
        await writer.close()

    async def create(self, name: str, request: str) -> None:
        """The command to create a processor."""
        command = {"command": "create", "name": name, "request": request, "document": DOCUMENT, "expires": soon()}
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

    async def until_agents(self, enough: Callable[[str], bool]) -> str:
        """Their state, once it is as asked."""
        while not enough(state := await self.agents()):
            await SystemClock().sleep_ms(20)
        return state


@asynccontextmanager
async def topical(kafka: KafkaSettings, folder: Path) -> AsyncIterator[Topical]:
    """Started, and stopped at the end; nothing may have broken. The service's log is in the folder."""
    topics = Topics(f"tm-{uuid.uuid4().hex[:8]}")
    clock, executor = SystemClock(), AsyncExecutor()

    def unique() -> str:
        return uuid.uuid4().hex

    runtime = RuntimeSettings(engine="local")
    outside = Outside(
        sealed(KafkaLog(kafka), prefix=topics.prefix), MemoryBlobs(executor), clock, executor, topics, runtime, unique
    )
    store = MemoryCommitState()
    decisions = CoordinatorSettings(topic_prefix=topics.prefix, quotas=(Quota("small", processors=1, tasks=0),))
    machine = CoordinatorMachine(decisions, unique)
    planner = partial(plan_for_coordinator, "local", allowed=OWNER)
    coordinator = CoordinatorDriver("c", outside, MemoryCommitStore(store), planner, machine)
    errors: list[BaseException] = []
    running = executor.spawn(coordinator.run(), "coordinator", errors.append)
    log = sealed(KafkaLog(replace(kafka, client="test")), prefix=topics.prefix)
    await Client(log, topics, clock, unique).ready(60_000)
    process = await _started(kafka, topics, folder)
    try:
        url = await _address(process, folder)
        async with ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            there = Topical(log, topics, store, process, url, session)
            await there.until_agents(lambda state: state == "running")
            yield there
        assert process.returncode is None, "the service has ended"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        coordinator.stop()
        await running.join()
        await log.close()
    assert errors == []


async def _started(kafka: KafkaSettings, topics: Topics, folder: Path) -> asyncio.subprocess.Process:
    extra = {"port": 0, "engine": "local", "command_timeout_ms": 5_000, "address_file": str(folder / "address.json")}
    environment = {
        **os.environ,
        "TIDEMARK_KAFKA": kafka.bootstrap,
        "TIDEMARK_PREFIX": topics.prefix,
        "TIDEMARK_PLACE": "control-0",
        "TIDEMARK_SIGNING_KEYS": KEY,
        "TIDEMARK_TOKEN": TOKEN,
        "TIDEMARK_EXTRA": json.dumps(extra),
    }
    with (folder / "control.log").open("wb") as said:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.harness.crashing_control", env=environment, stdout=said, stderr=said
        )


async def _address(process: asyncio.subprocess.Process, folder: Path) -> str:
    """Where it listens, once it does."""
    while not (folder / "address.json").exists():
        assert process.returncode is None, (folder / "control.log").read_text()
        await SystemClock().sleep_ms(20)
    return str(json.loads((folder / "address.json").read_text())["url"])
