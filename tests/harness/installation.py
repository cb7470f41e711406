"""An installation in one process, on a log and a store in memory: coordinator, workers, a client; files in and out are real.

On virtual time a story of minutes takes a moment; on the machine's time it stands beside servers that are asked over sockets.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.harness.raw_log import LogRawReader
from tests.harness.sealing import sealed
from tidemark.services.coordinator.planning import plan_for_coordinator
from tidemark.services.operator.service import OperatorService
from tidemark.services.operator.shelved import in_temporary_files
from tidemark.services.sink.connecting import RealSinks
from tidemark.services.sink.connectors.released import read_released_rows
from tidemark.services.sink.service import SinkService
from tidemark.services.sink.settings import SinkSettings
from tidemark.services.source.connecting import RealSources, records_of
from tidemark.services.source.connectors.kafka import KafkaConnector, KafkaSourceSettings
from tidemark.services.source.service import SourceService
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.directory_blobs import DirectoryBlobs
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_commit_store import MemoryCommitState, MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.stages import Connection, KafkaSource, Source
from tidemark.shared.model.ids import Place, ProcessorName, WorkerIncarnation
from tidemark.shared.model.messages import (
    CreateProcessor,
    DropProcessor,
    ModifyProcessor,
    ProcessorStatus,
    StartProcessor,
    StopProcessor,
)
from tidemark.shared.ports.blobs import BlobStore
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.registry import SchemaRegistry
from tidemark.shared.ports.source import SourcePort
from tidemark.shared.process.allowed import OWNER, Allowed
from tidemark.shared.process.connections import Connections
from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.context import Outside, Service
from tidemark.shared.runtime.coordinator import CoordinatorDriver
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.runtime.worker import Worker

NAME = ProcessorName("story")
READY_MS = 60_000


@dataclass
class Installed:
    """What a story works with."""

    outside: Outside
    broker: MemoryBroker
    blobs: BlobStore
    store: MemoryCommitState
    client: Client
    clock: Clock
    parts: Mapping[str, CoordinatorDriver | Worker]
    """By service."""

    @property
    def memory_blobs(self) -> MemoryBlobs:
        """The blobs of an installation that has no folder for them."""
        assert isinstance(self.blobs, MemoryBlobs)
        return self.blobs

    async def create(self, document: dict[str, Any], name: ProcessorName = NAME, **tasks: int) -> None:
        """A processor of this document."""
        await self.client.request(CreateProcessor(self.client.unique(), name, json.dumps(document), tasks))

    async def start(self, name: ProcessorName = NAME, *, resume: bool = True) -> None:
        """Start it and wait until it runs."""
        request = self.client.unique()
        await self.client.request(StartProcessor(request, name, resume))
        await self.when(lambda s: request in dict(s.answers) and s.state == "RUNNING", name)

    async def stop(self, name: ProcessorName = NAME, *, drain: bool = False) -> ProcessorStatus:
        """Stop it and wait until it has ended."""
        request = self.client.unique()
        await self.client.request(StopProcessor(request, name, drain))
        return await self.when(lambda s: request in dict(s.answers) and s.state in ("STOPPED", "FINISHED"), name)

    async def modify(self, document: dict[str, Any], name: ProcessorName = NAME, *, resume: bool = True) -> None:
        """Give it another document; RequestRefused."""
        change = ModifyProcessor(self.client.unique(), name, json.dumps(document), None, resume)
        await self.client.request(change)

    async def drop(self, name: ProcessorName = NAME) -> None:
        """Forget it."""
        await self.client.request(DropProcessor(self.client.unique(), name))

    async def when(self, enough: Callable[[ProcessorStatus], bool], name: ProcessorName = NAME) -> ProcessorStatus:
        """Wait until a status is as asked."""
        async for status in self.client.watch(name):
            if enough(status):
                return status
            assert status.state != "FAILED", status.reason
        raise AssertionError("the registry ended")

    async def committed(self, more: int = 2, name: ProcessorName = NAME) -> None:
        """Wait for so many further checkpoints: what was there before is in them."""
        first = (await self.client.statuses())[name]
        await self.when(lambda status: status.commits >= first.commits + more, name)


class MemoryConnections(Connections):
    """Every Kafka connection leads to the installation's log in memory."""

    def __init__(
        self, place: str, log: MemoryLog, registry: SchemaRegistry | None = None, allowed: Allowed | None = None
    ) -> None:
        super().__init__(place, allowed=allowed)
        self._log = log
        self._registry = registry

    def log(self, connection: Connection) -> MemoryLog:  # type: ignore[override]
        """The one log."""
        return self._log

    def registry(self, connection: Connection) -> SchemaRegistry:  # type: ignore[override]
        """The one registry."""
        return self._registry or super().registry(connection)

    async def close(self) -> None:
        """The log is the installation's."""


class MemorySources(RealSources):
    """Real sources, with the reader that reads any log."""

    def __init__(self, connections: MemoryConnections) -> None:
        super().__init__(connections)
        self._memory = connections

    async def connect(self, outside: Outside, processor: Processor, stage: Source) -> SourcePort:
        """See `RealSources.connect`."""
        if not isinstance(stage, KafkaSource):
            return await super().connect(outside, processor, stage)
        log = self._memory.log(self._memory.get(processor, stage.connection_name))
        settings = KafkaSourceSettings(topics=stage.topics, start_at=stage.start_at, until=stage.until)
        records = records_of(self._memory, processor, stage, outside.executor)
        return KafkaConnector(settings, log, LogRawReader(log), outside.clock, records)


def released(folder: Path) -> list[dict[str, Any]]:
    """What a file sink has published, as documents."""
    return read_released_rows(str(folder))


@asynccontextmanager
async def installed(
    clock: Clock,
    executor: Executor,
    *,
    services: Sequence[str] = ("source", "operator", "sink"),
    coordinator: CoordinatorSettings | None = None,
    settings: RuntimeSettings | None = None,
    sinks: SinkSettings | None = None,
    wrap: Callable[[Service], Service] = lambda service: service,
    spark: Callable[[], Service] | None = None,
    folder: Path | None = None,
    broker: MemoryBroker | None = None,
    store: MemoryCommitState | None = None,
    numbers_from: int = 1,
    registry: SchemaRegistry | None = None,
    allowed: Allowed | None = None,
) -> AsyncIterator[Installed]:
    """Start everything, stop it at the end; what broke is raised there. `wrap`: what a test makes of a service.

    `broker`, `store`: what an earlier installation left, whose names are made of numbers below `numbers_from`.

    `spark`: the service of stages, where windows run on it; its executors read blobs as files, so these lie in `folder`.
    """
    broker = broker or MemoryBroker(clock)
    numbers = itertools.count(numbers_from)
    blobs = MemoryBlobs(executor) if folder is None else DirectoryBlobs(folder, executor, fsync=False)
    store = store or MemoryCommitState()

    def unique() -> str:
        return f"{next(numbers):032x}"

    of_workers = settings or RuntimeSettings(engine="local")
    outside = Outside(sealed(MemoryLog(broker)), blobs, clock, executor, Topics(), of_workers, unique)
    machine = CoordinatorMachine(coordinator or CoordinatorSettings(adopt_wait_ms=100), unique)
    planner = partial(plan_for_coordinator, of_workers.engine, allowed=OWNER)

    def own() -> Outside:
        log = sealed(MemoryLog(broker))
        return replace(outside, log=log, unreadable=log.unreadable)

    def reach(place: str) -> MemoryConnections:
        return MemoryConnections(place, MemoryLog(broker), registry, allowed)

    made: dict[str, Callable[[], Service]] = {
        "source": lambda: SourceService(MemorySources(reach("source"))),
        "operator": lambda: OperatorService(Connections("operator"), shelve=in_temporary_files),
        "sink": lambda: SinkService(RealSinks(reach("sink"), sinks)),
    }
    if spark is not None:
        made["spark"] = spark
    parts: dict[str, CoordinatorDriver | Worker] = {
        "coordinator": CoordinatorDriver("c", own(), MemoryCommitStore(store), planner, machine),
        **{s: Worker(Place(f"{s}-0"), WorkerIncarnation(unique()), wrap(made[s]()), own()) for s in services},
    }
    running = [asyncio.ensure_future(part.run()) for part in parts.values()]
    client = Client(outside.log, outside.topics, clock, unique)
    try:
        await client.ready(READY_MS)
        yield Installed(outside, broker, blobs, store, client, clock, parts)
    finally:
        for part in parts.values():
            part.stop()
        for task in running:
            await task
        await outside.log.close()
        if isinstance(blobs, MemoryBlobs):
            await blobs.close()
