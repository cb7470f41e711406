"""The ports that a process' settings name."""

import uuid
from pathlib import Path

from tidemark.shared.adapters.blobs import S3Blobs
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.directory_blobs import DirectoryBlobs
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.store_settings import BlobSettings
from tidemark.shared.language.patterns import keep_patterns
from tidemark.shared.ports.blobs import BlobStore
from tidemark.shared.ports.clock import Executor
from tidemark.shared.process.killing import killing_at
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError
from tidemark.shared.process.signing import own_log
from tidemark.shared.process.tracing import traced
from tidemark.shared.runtime.context import Moment, Outside
from tidemark.shared.runtime.topics import Topics


def open_blobs(place: str, executor: Executor, settings: BlobSettings) -> BlobStore:
    """The blob store at `s3://bucket/prefix`, or in a directory."""
    if place.startswith("s3://"):
        return S3Blobs(place, executor, settings)
    return DirectoryBlobs(Path(place), executor, settings)


def make_outside(settings: ProcessSettings) -> Outside:
    """Ports on real clocks, Kafka and the blob store. Connects nothing yet; the loop must run. ProcessSettingsError, SettingsError."""
    if not settings.blobs:
        message = "TIDEMARK_BLOBS is not set; expected a directory or s3://…"
        raise ProcessSettingsError(message)
    keep_patterns(settings.runtime.patterns_kept_max)
    executor = AsyncExecutor(settings.runtime.threads, settings.runtime.calls_waiting_max)
    clock = SystemClock()
    told = [traced(settings.traces, settings.place, clock, executor, _unique)] if settings.traces.url else []
    if settings.kill_at:
        told.append(killing_at(settings.place, settings.kill_at))

    def passing(moment: Moment) -> None:
        for tell in told:
            tell(moment)

    log = own_log(settings)
    return Outside(
        log=log,
        blobs=open_blobs(settings.blobs, executor, settings.blobs_config),
        clock=clock,
        executor=executor,
        topics=Topics(settings.prefix, settings.runtime.samples_kept_ms),
        settings=settings.runtime,
        unique=_unique,
        unreadable=log.unreadable,
        passing=passing,
    )


def _unique() -> str:
    return uuid.uuid4().hex
