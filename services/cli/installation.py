"""A local installation for the time of a command: broker, processes, a client."""

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from services.cli.settings import cli_settings
from services.local.broker_settings import FREE_PORT, Port
from services.local.supervisor import LocalCluster, LocalSettings
from shared.adapters.clock import SystemClock
from shared.adapters.kafka_log import KafkaLog
from shared.adapters.kafka_settings import KafkaSettings
from shared.model.ids import ProcessorName
from shared.model.messages import CreateProcessor, ProcessorStatus, StartProcessor
from shared.runtime.client import Client
from shared.runtime.topics import Topics


@dataclass(frozen=True, slots=True)
class Installation:
    """What a command works with."""

    cluster: LocalCluster
    log: KafkaLog
    client: Client

    async def ensure_started(self, name: ProcessorName, document: str, parallelism: Mapping[str, int]) -> None:
        """Create the processor if it is not there, and start it if it does not run: a second run goes on with the first."""
        known = await self.client.statuses()
        if name not in known:
            create = CreateProcessor(self.client.unique(), name, document, dict(parallelism))
            await self.client.request(create)
        if name not in known or known[name].state in ("CREATED", "STOPPED", "FAILED"):
            await self.client.request(StartProcessor(self.client.unique(), name))

    async def until_running(self, name: ProcessorName) -> None:
        """Wait until all tasks have restored and sources may read; returns, too, when the processor has failed."""
        async for status in self.client.watch(name):
            if status.state in ("RUNNING", "FAILED"):
                return

    async def until_ended(self, name: ProcessorName) -> ProcessorStatus:
        """Wait until the processor has finished, stopped or failed."""
        async for status in self.client.watch(name):
            if status.state in ("FINISHED", "STOPPED", "FAILED"):
                return status
        message = "the registry ended"
        raise RuntimeError(message)


@asynccontextmanager
async def installation(
    data_dir: Path,
    environment: Mapping[str, str],
    workers: Mapping[str, int] | None = None,
    port: int = FREE_PORT,
) -> AsyncIterator[Installation]:
    """Start everything on this folder; stop it at the end. BrokerError says what stands in the way."""
    settings = LocalSettings(data_dir=data_dir, environment=dict(environment), port=Port(port))
    if workers:
        settings = replace(settings, workers={**settings.workers, **workers})
    cluster = LocalCluster(settings)
    try:
        bootstrap = await cluster.start()
        log = KafkaLog(KafkaSettings(bootstrap=bootstrap, client="tidemark-cli"))
        client = Client(log, Topics(), SystemClock(), lambda: uuid.uuid4().hex, cluster.runtime())
        try:
            await client.ready(cli_settings().ready_ms_max)
            yield Installation(cluster, log, client)
        finally:
            await log.close()
    finally:
        await cluster.stop()
