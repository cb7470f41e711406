"""Of an installation elsewhere, whose parts its settings name: store (SQLite, PostgreSQL), blobs (folder, S3) and the brokers.

Its processors are stopped for the time of the copy, so that their last checkpoints are aligned and released by all sinks: no frame is under
way, and no sink has anything to release. What state depends on is then the store's rows, the blobs, and of the topics the mirrors of
commits, the markers of releases and how far letters were redriven. Edges are made anew by the restore (R4), under any prefix, in any
cluster.
"""

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from tidemark.services.audit.reading import committed_records
from tidemark.services.backup.files import Backup, BackupFailed, BackupWriter, chunks_of, listing, read_backup
from tidemark.services.backup.rows import (
    Tables,
    check_whole,
    commits_of,
    keep_wanted,
    processors_of,
    read_tables,
    with_processors,
    write_tables,
)
from tidemark.services.local.folders import STORE
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.commit_store import SqlCommitStore
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.model.formats import TOPIC_COPY, Codec
from tidemark.shared.model.ids import Offset, ProcessorName
from tidemark.shared.model.messages import ProcessorStatus, StartProcessor, StopProcessor
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.ports.blobs import BlobError, BlobStore, BlobUnavailable
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition
from tidemark.shared.process.outside import open_blobs
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError, read_settings
from tidemark.shared.process.signing import own_log
from tidemark.shared.protocol.coordinator.checkpoints import is_aligned
from tidemark.shared.protocol.coordinator.plans import rebound
from tidemark.shared.protocol.coordinator.record import decode_kept, decode_plan, encode_kept, encode_plan
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.topics import KEPT, MARKERS_PREFIX, TOLD_CONFIG, Topics
from tidemark.shared.wire.seals import HEADER

Copied = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]
"""A record: key, value, headers, without its seal, which names the topic."""
COPIES: Final[Codec[list[Copied]]] = Codec(TOPIC_COPY, list[Copied])
REDRIVES: Final = "redrives"
_OWN: Final = "topics/own/"
"""Copies of topics below the installation's prefix, named without it."""
_TARGETS: Final = "topics/markers/"
"""Copies of topics of release markers, named without their prefix."""
_RECORDS: Final = 1_000
"""In a file of copies."""
_RUNS: Final = ("STARTING", "RUNNING")
_ENDED: Final = ("CREATED", "STOPPED", "FINISHED", "FAILED")


@dataclass(frozen=True, slots=True)
class BackupParts:
    """The parts of an installation that a backup has."""

    store: str
    """The store's URL."""
    blobs: BlobStore
    log: Log
    topics: Topics
    client: Client


@asynccontextmanager
async def parts_of(environment: Mapping[str, str]) -> AsyncIterator[BackupParts]:
    """Those that the settings of a coordinator name. ProcessSettingsError."""
    settings = read_settings({"TIDEMARK_PLACE": "backup", **environment})
    for name, value in (("STORE", settings.store), ("BLOBS", settings.blobs)):
        if not value:
            raise ProcessSettingsError(f"TIDEMARK_{name} is not set; expected that of the installation's coordinator")
    async with _opened(settings) as parts:
        yield parts


@asynccontextmanager
async def _opened(settings: ProcessSettings) -> AsyncIterator[BackupParts]:
    log, topics = own_log(settings), Topics(settings.prefix)
    client = Client(log, topics, SystemClock(), _unique, settings.runtime)
    executor = AsyncExecutor(settings.runtime.threads, settings.runtime.calls_waiting_max)
    try:
        yield BackupParts(
            settings.store, open_blobs(settings.blobs, executor, settings.blobs_config), log, topics, client
        )
    finally:
        await log.close()
        await executor.close()


# --- backup -----------------------------------------------------------------------------------------------------------------


async def back_up_parts(parts: BackupParts, target: Path) -> Backup:
    """Stop the processors, copy, and start again those that ran. BackupFailed; what the parts raise."""
    client, stopped = parts.client, list[ProcessorName]()
    with BackupWriter(target) as out:
        try:
            for name, status in (await client.statuses()).items():
                if status.state in _RUNS:
                    await client.request(StopProcessor(client.unique(), name))
                    stopped.append(name)
            for name in await client.statuses():
                _released(await _ended(client, name))
            tables = await _copied_rows(parts.store, out)
            await _copy_blobs(parts.blobs, out)
            rows = processors_of(tables)
            await _copy_topics(parts, rows, out)
        finally:
            for name in stopped:
                if (await _ended(client, name)).state == "STOPPED":
                    await client.request(StartProcessor(client.unique(), name))
        check_whole(tables, out.files(), target)
        return out.finish(lambda files: listing("parts", rows, files, parts.topics.prefix))


async def _ended(client: Client, name: ProcessorName) -> ProcessorStatus:
    async for status in client.watch(name):
        if status.state in _ENDED:
            return status
    raise BackupFailed(f"{name}: the registry ended")


def _released(status: ProcessorStatus) -> None:
    """BackupFailed for a processor with output that is committed and not yet visible."""
    if status.released < status.last:
        raise BackupFailed(
            f"{status.name}: expected that all committed output is released, found {status.state} with commit {status.last} and releases"
            f" up to {status.released} ({status.reason or 'no reason told'}): start it and let it stop, or drop it"
        )


async def _copied_rows(url: str, out: BackupWriter) -> Tables:
    store = SqlCommitStore(url)
    try:
        await store.open()  # looks through all rows: damage is told now
    finally:
        await store.close()
    tables = keep_wanted(read_tables(url))
    for row in processors_of(tables):
        last = commits_of(tables, row).get(row.last)
        if last is not None and not is_aligned(last):
            raise BackupFailed(
                f"{row.name}: expected a checkpoint that waited for all barriers, found {row.state} with commit {row.last}, of which"
                " frames are under way: start it and let it stop, or drop it"
            )
    write_tables(f"sqlite:///{out.path_of(STORE).resolve()}", tables)
    out.add_written(STORE)
    return tables


async def _copy_blobs(blobs: BlobStore, out: BackupWriter) -> None:
    """All. Those of checkpoints that are given up may go meanwhile: `check_whole` knows which are needed."""
    for name in await blobs.list(""):
        try:
            data = await blobs.read_note(name)
        except BlobUnavailable:
            raise
        except BlobError:
            continue
        out.add(f"blobs/{name}", (data,))


async def _copy_topics(parts: BackupParts, rows: list[ProcessorRow], out: BackupWriter) -> None:
    own = [*(parts.topics.commits(row.job) for row in rows), f"{parts.topics.prefix}.{REDRIVES}"]
    markers = tuple(parts.topics.markers(row.job) for row in rows)
    for topic in sorted(await parts.log.list_topics()):
        if topic in own:
            await _copy_topic(parts.log, topic, f"{_OWN}{topic.removeprefix(f'{parts.topics.prefix}.')}", out)
        elif markers and topic.startswith(markers):
            await _copy_topic(parts.log, topic, f"{_TARGETS}{topic.removeprefix(MARKERS_PREFIX)}", out)


async def _copy_topic(log: Log, topic: str, name: str, out: BackupWriter) -> None:
    """Of the one partition that these topics have."""
    number, records = 0, list[Copied]()
    async for record in committed_records(log, topic):
        headers = tuple(header for header in record.headers if header[0] != HEADER)
        records.append((record.key, record.value, headers))
        if len(records) == _RECORDS:
            out.add(f"{name}/{number:08}", (COPIES.encode(records),))
            number, records = number + 1, []
    out.add(f"{name}/{number:08}", (COPIES.encode(records),))


# --- restore ----------------------------------------------------------------------------------------------------------------


async def restore_parts(parts: BackupParts, source: Path) -> Backup:
    """Fill an empty store, blob store and prefix of topics: first what rows refer to, the rows last. BackupFailed."""
    found = read_backup(source)
    if found.kind != "parts":
        raise BackupFailed(
            f"{source}: expected a backup of an installation elsewhere, found one of a local installation's folder: restore it without"
            " TIDEMARK_STORE, with --data"
        )
    tables = read_tables(f"sqlite:///{(source / STORE).resolve()}")
    check_whole(tables, {file.path: file for file in found.files}, source)
    await _check_free(parts)
    rows = with_processors(tables, lambda row: _anew(row, parts.topics.prefix))
    copies = [file.path for file in found.files]
    for name in (path.removeprefix("blobs/") for path in copies if path.startswith("blobs/")):
        await parts.blobs.put(name, b"".join(chunks_of(source / "blobs" / name)))
    await _write_topics(parts, source, sorted(path for path in copies if path.startswith("topics/")))
    write_tables(parts.store, rows)
    return found


async def _check_free(parts: BackupParts) -> None:
    """BackupFailed if blobs or topics of an installation are there: a leader would take them for its own, or for a later copy's."""
    if names := await parts.blobs.list(""):
        where = parts.blobs.uri(names[0])
        raise BackupFailed(
            f"blobs: expected an empty place, found {len(names)}, the first {where}; name another in TIDEMARK_BLOBS"
        )
    prefix = f"{parts.topics.prefix}."
    own = [
        topic
        for topic in sorted(await parts.log.list_topics())
        if topic.startswith(prefix) and not topic.startswith(MARKERS_PREFIX)
    ]
    if own:
        raise BackupFailed(
            f"topics: expected none below {prefix!r}, found {len(own)}, the first {own[0]}: they tell of another copy of the store; name"
            " another prefix in TIDEMARK_PREFIX, or delete them"
        )


def _anew(row: ProcessorRow, prefix: str) -> ProcessorRow:
    """A row whose edges and mirror are new: nothing of them was copied, and nothing was under way."""
    plan, kept = decode_plan(row.plan), decode_kept(row.extra)
    bound = structs.replace(rebound(plan, row.name, _unique, prefix).plan, since=plan.since)
    kept = structs.replace(kept, obsolete_topics=(), unwanted_topics=(), mirror=Offset(0))
    return structs.replace(row, plan=encode_plan(bound), extra=encode_kept(kept))


async def _write_topics(parts: BackupParts, source: Path, files: list[str]) -> None:
    """Markers that the cluster still has are newer, or the same, and stay as they are."""
    there = set(await parts.log.list_topics())
    writer = await parts.log.writer("restore")
    try:
        for file in files:
            name = file.rpartition("/")[0]
            own = name.startswith(_OWN)
            topic = (
                f"{parts.topics.prefix}.{name.removeprefix(_OWN)}"
                if own
                else f"{MARKERS_PREFIX}{name.removeprefix(_TARGETS)}"
            )
            if topic in there:
                continue
            await parts.log.create_topic(topic, 1, _config(name) if own else TOLD_CONFIG)
            for key, value, headers in COPIES.decode(b"".join(chunks_of(source / file))):
                await (await writer.send(TopicPartition(topic, 0), NewRecord(value, key, headers)))
    finally:
        await writer.close()


def _config(name: str) -> dict[str, Any]:
    return dict(KEPT) if name == f"{_OWN}{REDRIVES}" else dict(TOLD_CONFIG)


def _unique() -> str:
    return uuid.uuid4().hex
