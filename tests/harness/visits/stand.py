"""A control service before a drawn installation: it can be restarted at its address, and its brokers can be away."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from tests.harness.console import token_of
from tests.harness.installation import MemoryConnections
from tests.harness.sealing import sealed
from tests.harness.visits.shapes import Shape
from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.faults import Fault, Faults, Operation
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.ids import Epoch, Place, WorkerIncarnation
from tidemark.shared.model.messages import AbortCheckpoint, CommitHint, Heartbeat, ProcessorStatus, StartCheckpoint
from tidemark.shared.ports.clock import Handle
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.reading import up_to_now
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import decode_report, encode_message

TOPICS: Final = Topics()
USERS: Final = ("viewer", "operator", "admin", "viewer@a", "operator@a", "admin@b")
"""By their rights."""
FOREVER_MS: Final = 3_600_000
"""The forged workers beat once: they are heard of as long as a walk lasts."""


class Counting(Faults):
    """The way to the brokers, which can be cut; it counts the questions of the kinds that a page asks."""

    asked = 0

    def draw(self, operation: Operation) -> Fault:
        """See `Faults`. Readers that follow a topic fetch and ask where it ends, whatever pages do."""
        self.asked += operation == "admin"
        return super().draw(operation)


@dataclass
class Stand:
    """What visitors stand before."""

    shape: Shape
    folder: Path
    broker: MemoryBroker
    faults: Counting = field(default_factory=Counting)
    """Of the service's way to its brokers."""
    port: int = 0
    look_ms: int = 100
    """Between two looks at all processors."""
    service: ControlService | None = None
    outer: str = ""
    """The address of what lies between browsers and the service; "": nothing."""
    _running: Handle | None = None

    @property
    def url(self) -> str:
        """The console's address."""
        return self.outer or f"http://127.0.0.1:{self.port}"

    @property
    def asked(self) -> int:
        """How many requests have gone to the coordinator."""
        return self.broker.end(TopicPartition(TOPICS.requests, 0))

    async def requests(self) -> list[str]:
        """The ids of the requests that have gone to the coordinator."""
        log, partition = sealed(MemoryLog(self.broker)), TopicPartition(TOPICS.requests, 0)
        found = []
        async for record in up_to_now(log, partition, RuntimeSettings()):
            told = decode_report(record.value or b"", RuntimeSettings().wire)
            found.append(str(getattr(told, "request", "")))
        await log.close()
        return found

    def grant(self, *users: str) -> None:
        """These users are there, and no others."""
        lines = (f"{u} {u} {sha256(token_of(u).encode()).hexdigest()}\n" for u in users)
        (self.folder / "users").write_text("".join(lines))

    async def start(self) -> None:
        """Serve, with all of the installation known."""
        clock, executor = SystemClock(), AsyncExecutor()
        settings = ControlSettings(
            port=self.port, engine="local", logs=str(self.folder), agents=False, users_file=str(self.folder / "users"),
            look_ms=self.look_ms,
            command_timeout_ms=200, silent_ms_max=FOREVER_MS, shown_ms_max=500, retry_ms=50, stop_timeout_ms=200,
        )  # fmt: skip
        log = sealed(MemoryLog(self.broker, self.faults))
        self.service = service = ControlService(log, TOPICS, clock, executor, settings, token_of(""))
        service.commands.connect_briefly = lambda: MemoryConnections("control", MemoryLog(self.broker, self.faults))
        self._running = executor.spawn(service.run(), "control", _raise)
        await service.serving.wait()
        while not self.faults.away and not service.model.ready():
            await clock.sleep_ms(5)
        await self._tell_beats()

    async def stop(self) -> None:
        """Nothing listens any more."""
        if self.service is not None and self._running is not None:
            self.service.stop()
            await self._running.join()
            self.service = None

    async def tell(self, status: ProcessorStatus | None, name: str = "") -> None:
        """The coordinator tells another status; None: the processor of this name is dropped."""
        log = sealed(MemoryLog(self.broker))
        writer = await log.writer("coordinator")
        value = None if status is None else encode_message(status)
        key = (name if status is None else status.name).encode()
        await (await writer.send(TopicPartition(TOPICS.registry, 0), NewRecord(value, key)))
        await log.close()

    async def _tell_beats(self) -> None:
        """Reports and commands are read from their end on, so they come when the service is there."""
        log = sealed(MemoryLog(self.broker))
        writer = await log.writer("workers")
        for service in ("source", "operator", "sink") if self.shape.beats else ():
            own = {s.job: s.services for s in self.shape.statuses}
            tasks = tuple(b for b in self.shape.beats if own[b.job].get(b.vertex) == service)
            beat = Heartbeat(WorkerIncarnation(f"i-{service}"), Place(f"{service}-0"), service, 999, 7, "host", tasks)
            await (await writer.send(TopicPartition(TOPICS.reports, 0), NewRecord(encode_message(beat), b"")))
        for status in self.shape.statuses[:3]:
            for number in range(1, 20):
                epoch, of = Epoch(number), (status.job, status.generation)
                end = AbortCheckpoint(*of, epoch) if number % 5 == 0 else CommitHint(*of, epoch)
                for told in (StartCheckpoint(*of, epoch, Epoch(number - 1)), end):
                    await (await writer.send(TopicPartition(TOPICS.commands, 0), NewRecord(encode_message(told), b"")))
        await log.close()
        known = self.service.model if self.service is not None else None
        while known is not None and self.shape.beats and not known.workers and not self.faults.away:
            await SystemClock().sleep_ms(5)


@asynccontextmanager
async def stand(shape: Shape, folder: Path, look_ms: int = 100) -> AsyncIterator[Stand]:
    """All of it; it ends behind."""
    broker = MemoryBroker(SystemClock())
    log = sealed(MemoryLog(broker))
    for topic in (*TOPICS.plain(), TOPICS.works, "clicks", "counts", *{"refused", *shape.letters}):
        await log.create_topic(topic, 1)
    writer = await log.writer("coordinator")
    for status in shape.statuses:
        await (
            await writer.send(
                TopicPartition(TOPICS.registry, 0), NewRecord(encode_message(status), status.name.encode())
            )
        )
    for name, connection in shape.connections.items():
        value = msgspec.json.encode(connection)
        await (
            await writer.send(TopicPartition(TOPICS.connections, 0), NewRecord(value, name.encode(errors="replace")))
        )
    for topic, letters in shape.letters.items():
        for each in letters:
            await (await writer.send(TopicPartition(topic, 0), NewRecord(each)))
    await log.close()
    (folder / "source-0.log").write_bytes(b"\n".join([*shape.lines, b""]))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    there = Stand(shape, folder, broker, port=port, look_ms=look_ms)
    there.grant(*USERS)
    await there.start()
    try:
        yield there
    finally:
        there.faults.calm()
        await there.stop()


def _raise(error: BaseException) -> None:
    raise error
