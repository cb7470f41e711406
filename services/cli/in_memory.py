"""An installation in one process: the same coordinator, workers, drivers and machines, on adapters in memory and on virtual time.

For trying a pipeline out and for tests. Nothing waits in real time: only timers advance the clock. When a script sets the wall clock,
it stands still there, so that the script decides processing time.
"""

import asyncio
import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidemark.services.cli.settings import cli_settings
from tidemark.services.coordinator.planning import plan_for_coordinator
from tidemark.services.operator.service import OperatorService
from tidemark.services.operator.shelved import in_temporary_files
from tidemark.services.sink.connectors.memory import MemorySink, MemoryTarget
from tidemark.services.sink.service import SinkService
from tidemark.services.source.connecting import given_documents, own_documents, plugin_source, timetable_of
from tidemark.services.source.connectors.timed import TimedConnector
from tidemark.services.source.filesources import file_source
from tidemark.services.source.service import SourceService
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.directory_blobs import DirectoryBlobs
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import SimulationStuck, VirtualWorld, run_virtual
from tidemark.shared.language.documents import Processor, all_stages
from tidemark.shared.language.stages import (
    ChangesSource,
    ChangeStreamSource,
    DocumentsSource,
    FileSource,
    Https,
    KafkaSource,
    PluginSource,
    SampleSource,
    ScheduleSource,
    ScriptSource,
    Source,
)
from tidemark.shared.language.stages.sources.files import no_file
from tidemark.shared.language.stages.sources.script import ProcessingTimeStep
from tidemark.shared.model.ids import Place, ProcessorName, VertexId, WorkerIncarnation
from tidemark.shared.model.messages import CreateRunning, TaskFailed
from tidemark.shared.model.values import Document
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.planning import DeadLetterHead, Engine, Head
from tidemark.shared.ports.blobs import BlobStore
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.log import Log, LogUnavailable, TopicPartition
from tidemark.shared.ports.sink import SinkPort
from tidemark.shared.ports.source import SourcePort
from tidemark.shared.process.allowed import OWNER
from tidemark.shared.process.connections import Connections
from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.client import Client, RequestRefused
from tidemark.shared.runtime.context import AssignedTask, Outside, Service
from tidemark.shared.runtime.coordinator import CoordinatorDriver
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.runtime.worker import Worker
from tidemark.shared.wire.messages import decode_report

_FETCH_RECORDS = 100
"""Reports of a try-out that are looked at together, until the first failure."""
_FETCH_MS = 10_000
"""Virtual time."""


class CannotTryOut(Exception):
    """The pipeline needs a real installation. The message names the stage and the remedy."""


class ProcessFailed(Exception):
    """The processor has failed: the reason."""


@dataclass(slots=True)
class StepClock:
    """The wall clock of a try-out: virtual time, or the time that a script has set, where it then stands still."""

    inner: Clock
    set_ms: int | None = None

    def now_ms(self) -> int:
        """The time that a step has set; before that the inner clock's. UTC, ms."""
        return self.inner.now_ms() if self.set_ms is None else self.set_ms

    def monotonic_ms(self) -> int:
        """The inner clock's virtual time, ms."""
        return self.inner.monotonic_ms()

    async def sleep_ms(self, duration_ms: int) -> None:
        """Wait on the inner clock, in virtual ms."""
        await self.inner.sleep_ms(duration_ms)

    def set(self, time_ms: int) -> None:
        """Go to this time; never back (W5)."""
        self.set_ms = time_ms if self.set_ms is None else max(self.set_ms, time_ms)


@dataclass(frozen=True, slots=True)
class TryOutSources:
    """`SourceConnectors` for sources of documents and files. Files that grow, and plug-ins, end where they end now."""

    clock: StepClock
    connections: Connections
    rows: Sequence[Document] | None = None

    async def connect(self, outside: Outside, processor: Processor, stage: Source) -> SourcePort:
        """See `SourceConnectors.connect`. CannotTryOut for a topic."""
        match stage:
            case DocumentsSource() if self.rows is not None and stage.path == processor.sources[0].path:
                return given_documents(processor, self.rows, outside.clock)
            case DocumentsSource() | ScriptSource():
                return own_documents(processor, stage, outside.clock)
            case FileSource():
                try:
                    source = await file_source(self.connections, outside, processor, replace(stage, follow=False))
                    there = await source.look()
                except LogUnavailable as error:  # as for plug-ins
                    raise CannotTryOut(str(error)) from error
                if not there:
                    raise CannotTryOut(no_file(stage.path, self.connections.files_of(processor, stage)[1]))
                return source
            case SampleSource() | ScheduleSource():
                rows = _SAMPLE_ROWS if isinstance(stage, SampleSource) else _INSTANTS
                return TimedConnector(timetable_of(stage), outside.clock, ends_after=rows)
            case KafkaSource():
                raise CannotTryOut(_NO_BROKER.format(path=stage.path))
            case ChangesSource():
                raise CannotTryOut(_NO_SLOT.format(path=stage.path))
            case ChangeStreamSource():
                raise CannotTryOut(_NO_STREAM.format(path=stage.path))
            case PluginSource():
                asked = plugin_source(
                    self.connections, processor, stage, outside.executor, outside.clock, ends_now=True
                )
                try:
                    await asked.splits()
                except LogUnavailable as error:  # to wait on virtual time would not wait for it
                    raise CannotTryOut(str(error)) from error
                return asked

    def set_time(self, time_ms: int) -> None:
        """See `SourceConnectors.set_time`."""
        self.clock.set(time_ms)

    async def close(self) -> None:
        """Nothing is open."""


_SAMPLE_ROWS: Final = 600
"""Of a sample stream, which has no end: a minute."""
_INSTANTS: Final = 10
"""Of a schedule, which has no end: the next ones, without waiting for them."""
_NO_BROKER = (
    "{path}: a topic cannot be tried out without a broker; give documents, script or path, or use `tidemark run`"
)
_NO_SLOT = "{path}: a try-out reads no replication slot, where time is not real; give documents or script, or use `tidemark run`"
_NO_STREAM = (
    "{path}: a try-out reads no change stream, where time is not real; give documents or script, or use `tidemark run`"
)
_NO_SERVER = (
    "{path}: a server is not asked in a try-out, where time is not real; leave the stage out, or use `tidemark run`"
)


@dataclass(slots=True)
class Collected:
    """`SinkConnectors` into memory, and the rows released there."""

    output: MemoryTarget = field(default_factory=MemoryTarget)
    letters: MemoryTarget = field(default_factory=MemoryTarget)

    def make(self, context: AssignedTask, processor: Processor, head: Head, vertex: VertexId, index: int) -> SinkPort:
        """See `SinkConnectors.make`."""
        return MemorySink(self.letters if isinstance(head, DeadLetterHead) else self.output)

    async def close(self) -> None:
        """Nothing is open."""

    def rows(self) -> int:
        """How many documents have come out so far."""
        return sum(batch.num_rows for batch in self.output.batches())

    def letter_rows(self) -> int:
        """How many dead letters have come so far."""
        return sum(batch.num_rows for batch in self.letters.batches())


@dataclass(frozen=True, slots=True)
class TryOut:
    """The pipeline to run, and how far to run it."""

    processor: Processor
    document: str
    name: ProcessorName
    engine: Engine = "local"
    limit: int | None = None
    """Stop once so many documents have come out."""
    service: Callable[[], Service] | None = None
    """Makes the service of Spark stages; asked for with `engine: spark`."""
    rows: Sequence[Document] | None = None
    """Read in place of the documents of the first source: a document is as small as an assignment, rows need not be."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Documents in the order of their release."""

    output: list[Document]
    letters: list[Document]
    error: str | None = None


def try_out(what: TryOut) -> Outcome:
    """Run a processor until its input ends, it fails, or the limit is reached. Blocks; the loop is its own."""
    start_ms = time.time_ns() // 1_000_000
    collected = Collected()
    error: str | None = None
    try:
        run_virtual(partial(_run, what, collected), start_ms=start_ms)
    except (CannotTryOut, ProcessFailed, RequestRefused, SimulationStuck) as failure:
        error = str(failure)
    output = _documents(collected.output.batches())
    return Outcome(output[: what.limit], _documents(collected.letters.batches()), error)


def _documents(batches: list[pa.RecordBatch]) -> list[Document]:
    return [document for batch in batches for document in documents_of(batch)]


async def _run(what: TryOut, collected: Collected, world: VirtualWorld) -> None:
    sources = what.processor.sources
    for source in sources:
        if isinstance(source, KafkaSource):
            raise CannotTryOut(_NO_BROKER.format(path=source.path))
    for stage in all_stages(what.processor.pipeline):
        if isinstance(stage, Https):
            raise CannotTryOut(_NO_SERVER.format(path=stage.path))
    clock = StepClock(world.clock)
    scripts = [source.script for source in sources if isinstance(source, ScriptSource)]
    told = [next((s.time_ms for s in script if isinstance(s, ProcessingTimeStep)), None) for script in scripts]
    if any(time_ms is not None for time_ms in told):
        clock.set(min(time_ms for time_ms in told if time_ms is not None))
    broker = MemoryBroker(world.clock)
    numbers = itertools.count(1)
    with _blob_folder(what.engine) as folder:
        blobs: BlobStore = (
            MemoryBlobs(world.executor) if folder is None else DirectoryBlobs(folder, world.executor, fsync=False)
        )
        outside = Outside(
            log=MemoryLog(broker),
            blobs=blobs,
            clock=clock,
            executor=world.executor,
            topics=Topics(),
            settings=RuntimeSettings(engine=what.engine, collects=True),
            unique=lambda: f"{next(numbers):08x}",
        )
        services: list[Service] = [
            SourceService(TryOutSources(clock, Connections("process", allowed=OWNER, values=os.environ), what.rows)),
            OperatorService(Connections("process", allowed=OWNER, values=os.environ), shelve=in_temporary_files),
            SinkService(collected),
        ]
        if what.service is not None:
            services.append(what.service())
        await _Installation(outside, broker, world, services).run(what, collected)
        if isinstance(blobs, MemoryBlobs):
            await blobs.close()


@contextlib.contextmanager
def _blob_folder(engine: Engine) -> Iterator[Path | None]:
    """Spark's executors read files; everything else may lie in memory."""
    if engine == "local":
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tidemark-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class _Installation:
    """Coordinator and workers of one run."""

    def __init__(self, outside: Outside, broker: MemoryBroker, world: VirtualWorld, services: list[Service]) -> None:
        self._outside = outside
        self._world = world
        self._log: Log = outside.log
        machine = CoordinatorMachine(CoordinatorSettings(), outside.unique)
        planner = partial(plan_for_coordinator, outside.settings.engine, collects=True)
        # The coordinator's lease is on virtual time, even where a script sets the wall clock. It has its own log, because it closes it.
        own = replace(outside, log=MemoryLog(broker), clock=world.clock)
        self._coordinator = CoordinatorDriver("process", own, MemoryCommitStore(), planner, machine)
        self._workers = [
            Worker(Place(f"{service.name}-0"), WorkerIncarnation(outside.unique()), service, outside)
            for service in services
        ]
        self._client = Client(outside.log, outside.topics, world.clock, outside.unique)

    async def run(self, what: TryOut, collected: Collected) -> None:
        """Until the end. ProcessFailed, RequestRefused."""
        parts: list[CoordinatorDriver | Worker] = [self._coordinator, *self._workers]
        running = [asyncio.ensure_future(part.run()) for part in parts]
        following = [
            asyncio.ensure_future(self._finished(what, collected)),
            asyncio.ensure_future(self._first_failure()),
        ]
        try:
            done, _ = await asyncio.wait([*running, *following], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in following:
                task.cancel()
            for part in parts:
                part.stop()
            await asyncio.gather(*running, *following, return_exceptions=True)

    async def _finished(self, what: TryOut, collected: Collected) -> None:
        client = self._client
        await client.ready(cli_settings().ready_ms_max)
        await client.request(CreateRunning(client.unique(), what.name, what.document))
        most = cli_settings().collected_rows_max
        async for status in client.watch(what.name):
            if collected.rows() + collected.letter_rows() > most:
                raise ProcessFailed(
                    f"more than {most} documents and dead letters have come out; take fewer in, or raise collected_rows_max in TIDEMARK_CLI"
                )
            if status.state == "FAILED":
                raise ProcessFailed(status.reason)
            if status.state == "FINISHED" or (what.limit is not None and collected.rows() >= what.limit):
                return

    async def _first_failure(self) -> None:
        """Nothing here fails by accident, so that trying again, as a real installation does, would change nothing."""
        reports = TopicPartition(self._outside.topics.reports, 0)
        await self._client.ready(cli_settings().ready_ms_max)
        reader = await self._log.reader()
        await reader.assign(await self._log.begin_offsets([reports]))
        while True:
            for record in await reader.fetch(_FETCH_RECORDS, _FETCH_MS):
                report = decode_report(record.value or b"")
                if isinstance(report, TaskFailed):
                    raise ProcessFailed(f"{report.vertex}: {report.reason}")
