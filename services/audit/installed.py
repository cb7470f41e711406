"""An installation for audits and redrives of its processors: its store, blobs and topics."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.services.audit.history import AuditFailed
from tidemark.services.local.address import BROKER_VARIABLE
from tidemark.services.local.supervisor import (
    LocalCluster,
    LocalSettings,
    is_running,
    open_log,
    read_environment,
    read_state,
)
from tidemark.shared.adapters.commit_store import SqlCommitStore
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.store_settings import BlobSettings
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.ports.blobs import BlobStore
from tidemark.shared.ports.commits import CommitStore
from tidemark.shared.ports.log import Log
from tidemark.shared.process.outside import open_blobs
from tidemark.shared.process.values import Values
from tidemark.shared.runtime.topics import Topics


@dataclass(frozen=True, slots=True)
class AuditedInstallation:
    """The parts of an installation that an audit reads."""

    store: CommitStore
    blobs: BlobStore
    log: Log
    environment: Mapping[str, str]
    topics: Topics = field(default_factory=Topics)

    async def row_of(self, name: ProcessorName) -> ProcessorRow:
        """A processor's row in the store. AuditFailed if no processor has that name."""
        rows = await self.store.processors()
        found = next((row for row in rows if row.name == name), None)
        if found is None:
            there = ", ".join(sorted(row.name for row in rows)) or "none"
            raise AuditFailed(f"no processor {name!r} in this installation; it has {there}")
        return found


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
    try:
        yield AuditedInstallation(store, blobs, log, Values(values, tuple(values)))
    finally:
        await log.close()
        await store.close()
        if cluster is not None:
            await cluster.stop()


# --- the input ------------------------------------------------------------------------------------------------------------
