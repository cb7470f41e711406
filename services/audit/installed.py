"""An installation for audits and redrives of its processors: its store, blobs and topics, and the clusters that documents name."""

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidemark.services.audit.history import AuditFailed, NotAuditable
from tidemark.services.audit.patient import PatientLog
from tidemark.services.local.folders import BROKER_VARIABLE, chosen
from tidemark.services.local.supervisor import (
    KEYS_FILE,
    LocalCluster,
    LocalSettings,
    is_running,
    open_log,
    read_environment,
    read_state,
)
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.commit_store import SqlCommitStore
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.store_settings import BlobSettings
from tidemark.shared.adapters.virtual import InlineExecutor
from tidemark.shared.language.documents import InvalidDocument, Processor
from tidemark.shared.language.stages import FileEmit
from tidemark.shared.model.failures import WrongSetup
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.ports.blobs import BlobStore
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.commits import CommitStore
from tidemark.shared.ports.log import Log
from tidemark.shared.process.allowed import OWNER
from tidemark.shared.process.connections import Connections
from tidemark.shared.process.outside import open_blobs
from tidemark.shared.process.settings import ProcessSettingsError, read_settings
from tidemark.shared.process.signing import FILE_VARIABLE, own_log, read_keys
from tidemark.shared.process.values import SecretValues
from tidemark.shared.runtime.sealed_log import SealedLog
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.seals import SealKeys

STORE_VARIABLE: Final = "TIDEMARK_STORE"
"""Where it is set, the environment names an installation, as its coordinator's does."""


@dataclass(frozen=True, slots=True)
class AuditedInstallation:
    """The parts of an installation that an audit reads."""

    store: CommitStore
    blobs: BlobStore
    log: Log
    """Of the installation's own topics."""
    environment: Mapping[str, str]
    topics: Topics = field(default_factory=Topics)
    connections: Connections | None = None
    """Of documents; None: those to topics lead to `log`, and all others anywhere."""
    keys: SealKeys | None = None
    """Of the installation's own records."""
    executor: Executor = field(default_factory=InlineExecutor)
    """An audit is one thread."""
    clock: Clock = field(default_factory=SystemClock)

    @property
    def reach(self) -> Connections:
        """To what documents name; without rights of its own, anywhere."""
        return self.connections or Connections("audit", allowed=OWNER, values=self.environment)

    @staticmethod
    @contextmanager
    def permitted(place: str) -> Iterator[None]:
        """NotAuditable where the installation's settings, or its secrets, do not lead there."""
        try:
            yield
        except (WrongSetup, InvalidDocument, ProcessSettingsError) as error:
            raise NotAuditable(f"{place}: {error}") from error

    async def row_of(self, name: ProcessorName) -> ProcessorRow:
        """A processor's row in the store. AuditFailed if no processor has that name."""
        rows = await self.store.processors()
        found = next((row for row in rows if row.name == name), None)
        if found is None:
            there = ", ".join(sorted(row.name for row in rows)) or "none"
            raise AuditFailed(f"no processor {name!r} in this installation; it has {there}")
        return found

    def log_at(self, processor: Processor, name: str) -> Log:
        """The cluster that a connection leads to. NotAuditable where this process may not, or cannot, go there."""
        if self.connections is None or self.keys is None:
            return self.log
        with self.permitted(f"connections.{name}"):
            log = self.connections.log(self.connections.get(processor, name))
        # One of the installation's topics may lie there, too.
        return PatientLog(SealedLog(log, self.keys, self.topics.prefix))

    def check_place(self, processor: Processor, stage: FileEmit) -> None:
        """NotAuditable for files where documents of this installation may not go."""
        if self.connections is not None:
            with self.permitted(stage.path):
                self.connections.place_of(processor, stage.connection_name, stage.file_path, stage.path)

    def refusal(self, processor: Processor, name: str) -> str:
        """Why this process may not use a connection; "" if it may."""
        try:
            if self.connections is not None:
                with self.permitted(f"connections.{name}"):
                    self.connections.get(processor, name)
        except NotAuditable as error:
            return str(error)
        return ""


@asynccontextmanager
async def local_installation(data_dir: Path) -> AsyncIterator[AuditedInstallation]:
    """The installation in a folder of this machine: without a broker, one is started on it for the time."""
    store = SqlCommitStore(f"sqlite:///{(data_dir / 'coordinator.db').resolve()}")
    environment = read_environment(data_dir)
    blobs = open_blobs(environment.get("TIDEMARK_BLOBS", str(data_dir / "blobs")), AsyncExecutor(), BlobSettings())
    cluster: LocalCluster | None = None
    try:
        state = read_state(data_dir)
        running = is_running(state)
    except FileNotFoundError:
        state, running = {}, False
    if running:
        bootstrap = str(state["kafka"])
    else:
        cluster = LocalCluster(LocalSettings(data_dir=data_dir, workers={}))
        bootstrap = await cluster.start()
    # The owner runs the audit: it may use all of the environment, and its secrets.
    values = {**os.environ, **environment, BROKER_VARIABLE: bootstrap}
    log = open_log(data_dir, bootstrap, "audit", values)
    keys, topics = (
        read_keys({**values, FILE_VARIABLE: str(data_dir / KEYS_FILE)}),
        Topics(values.get("TIDEMARK_PREFIX", "tidemark")),
    )
    connections = Connections("audit", allowed=OWNER, values=SecretValues(values, tuple(values)))
    try:
        yield AuditedInstallation(store, blobs, log, connections.values, topics, connections, keys)
    finally:
        await connections.close()
        await log.close()
        await store.close()
        if cluster is not None:
            await cluster.stop()


@asynccontextmanager
async def installation_of(environment: Mapping[str, str]) -> AsyncIterator[AuditedInstallation]:
    """The one that a process' settings name; its rights are those of a worker. ProcessSettingsError."""
    settings = read_settings({"TIDEMARK_PLACE": "audit", **environment})
    if not settings.blobs:
        raise ProcessSettingsError("TIDEMARK_BLOBS is not set; expected that of the installation's coordinator")
    executor = AsyncExecutor(settings.runtime.threads, settings.runtime.calls_waiting_max)
    store, topics = SqlCommitStore(settings.store, settings.store_config), Topics(settings.prefix)
    log, connections = own_log(settings), Connections("audit", settings.runtime.connections_max)
    try:
        blobs = open_blobs(settings.blobs, executor, settings.blobs_config)
        keys = read_keys(environment)
        yield AuditedInstallation(store, blobs, log, connections.values, topics, connections, keys)
    finally:
        await connections.close()
        await log.close()
        await store.close()
        await executor.close()


@asynccontextmanager
async def read(data: Path | None) -> AsyncIterator[AuditedInstallation]:
    """TIDEMARK_STORE and the other settings of a coordinator, where no folder is named. NoInstallation; ProcessSettingsError."""
    if data is None and os.environ.get(STORE_VARIABLE):
        async with installation_of(os.environ) as installed:
            yield installed
    else:
        async with local_installation(chosen(data)) as installed:
            yield installed
