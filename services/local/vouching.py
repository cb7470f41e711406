"""The process that starts a worker's process tells the coordinator that it runs, and at once when it has ended (R1).

The worker cannot do it itself: if code holds its interpreter, or all cores are busy, its heartbeats stay away though nothing
has happened to it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import psutil
import structlog

from tidemark.shared.model.ids import WorkerIncarnation
from tidemark.shared.model.messages import Alive, Deregister, Report
from tidemark.shared.ports.log import Log, LogError, NewRecord, TopicPartition
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import encode_message

_log = structlog.get_logger()
_VOUCHES: Final = 3
"""In the time that makes a worker silent: one that comes late loses none."""
_NOT_RUNNING: Final = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class Voucher:
    """Of the workers that one process has started. `living`: those that run now."""

    def __init__(
        self, log: Log, topics: Topics, settings: RuntimeSettings, living: Callable[[], Sequence[WorkerIncarnation]]
    ) -> None:
        self._log = log
        self._topic = TopicPartition(topics.reports, 0)
        self._settings = settings
        self._living = living

    async def run(self) -> None:
        """Tell of them for ever, each third of the time that makes them silent; outages are waited out."""
        while True:
            try:
                writer = await self._log.writer("supervisor-alive")
                try:
                    while True:
                        if living := tuple(self._living()):
                            await (await writer.send(self._topic, self._record(Alive(living))))
                        await asyncio.sleep(self._settings.heartbeat_timeout_ms / _VOUCHES / 1000)
                finally:
                    await writer.close()
            except LogError as error:
                _log.info("supervisor.untold", reason=str(error), how="workers' own heartbeats tell")
                await asyncio.sleep(self._settings.retry_ms / 1000)

    async def ended(self, worker: WorkerIncarnation, status: int) -> None:
        """Where another worker has room its tasks go on there at once: nobody waits for heartbeats, or for this one's next process."""
        try:
            writer = await self._log.writer("supervisor")
            try:
                said = self._record(Deregister(worker, f"has ended with status {status}"))
                await (await writer.send(self._topic, said))
            finally:
                await writer.close()
        except LogError as error:
            _log.info("supervisor.untold", worker=worker, reason=str(error), how="its heartbeats' absence tells")

    def _record(self, report: Report) -> NewRecord:
        return NewRecord(encode_message(report, self._settings.wire))


class Started(Protocol):
    """A process that this one has started, or had started."""

    @property
    def pid(self) -> int:
        """The process' id."""
        ...

    @property
    def returncode(self) -> int | None:
        """Its status; none while it runs."""
        ...


def runs(process: Started) -> bool:
    """Whether it has not ended, and was not stopped (SIGSTOP)."""
    if process.returncode is not None:
        return False
    try:
        return psutil.Process(process.pid).status() not in _NOT_RUNNING
    except psutil.NoSuchProcess:
        return False
