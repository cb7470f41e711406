"""`tidemark audit NAME`: was every record counted once? Computed again from the source topic and the bytes of the outputs.

Nothing of the system's own counts is believed. The document is run again over the records of the source topic up to where the last
commit says that it was read (recompute.py); what it gives must be what the outputs hold, as readers see them: files by manifests, with
digests, topics read committed. The first difference is named, with the epoch that released it where the output tells.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from services.cli.collect import committed_records
from services.cli.recompute import Recomputed, SplitRecords, recompute
from services.local.supervisor import LocalCluster, LocalSettings, is_running, read_environment, read_state
from services.sink.connectors.destination import LocalDestination
from services.sink.connectors.released import Discrepancy, released_files
from services.source.body import SplitPosition
from shared.adapters.commit_store import SqlCommitStore
from shared.adapters.directory_blobs import DirectoryBlobs
from shared.adapters.executor import AsyncExecutor
from shared.adapters.kafka_log import KafkaLog
from shared.adapters.kafka_settings import KafkaSettings
from shared.language.documents import KafkaDlq, Processor, parse, resolve
from shared.language.expressions.ast import Literal
from shared.language.stages import FileEmit, KafkaEmit, KafkaSource
from shared.language.values import to_json
from shared.model.checkpoint import CommitRow
from shared.model.ids import Epoch, JobId, ProcessorName, SplitId, VertexId
from shared.operators.batches import documents_of
from shared.planning import DeadLetterHead, WriteHead, plan_processor
from shared.ports.blobs import BlobError, BlobStore
from shared.ports.log import TopicPartition
from shared.runtime.state import load_parts

_POSITION = "position|split:"
_LATE = "Input document arrived late."
Line = str
"""A document as canonical JSON text: what is compared."""


class AuditFailed(Exception):
    """The first discrepancy, or why nothing can be audited."""


@dataclass(frozen=True, slots=True)
class Actual:
    """What an output holds: each document with where it lies."""

    lines: Sequence[tuple[Line, str]]
    by_epoch: Mapping[int, int] = field(default_factory=dict)
    """Rows by the epoch that released them, where the output tells."""


@dataclass(frozen=True, slots=True)
class Audited:
    """The result, for people and programs."""

    records: int
    duplicates: int
    late: int
    dead_letters: int
    accepted: int
    outputs: Mapping[str, int]
    epochs: Mapping[str, Mapping[int, int]]


async def audit(
    name: ProcessorName, store: SqlCommitStore, blobs: BlobStore, log: KafkaLog, environment: Mapping[str, str]
) -> Audited:
    """Audit a processor. Raises AuditFailed with the first discrepancy."""
    row = next((r for r in await store.processors() if r.name == name), None)
    if row is None:
        message = f"no processor {name!r} in this installation"
        raise AuditFailed(message)
    commits = await store.commits(row.job, Epoch(0))
    if not commits:
        message = f"{name} has committed nothing yet; there is nothing to audit"
        raise AuditFailed(message)
    plan = msgspec.msgpack.decode(row.plan)
    processor = parse(plan["document"])
    env = {**os.environ, **environment}
    splits = await _source(processor, commits[-1], log, blobs)
    topics = processor.source.topics if isinstance(processor.source, KafkaSource) else ()
    topic = topics[0] if len(topics) == 1 else None
    done = recompute(processor, splits, name, topic, ended=commits[-1].final)
    actual = await _outputs(processor, row.job, log, env)
    for vertex, found in actual.items():
        _same(vertex, done.outputs[vertex], found)
    return _account(done, actual)


def _account(done: Recomputed, actual: Mapping[VertexId, Actual]) -> Audited:
    letters = done.outputs.get(VertexId("dlq"), [])
    late = sum(1 for letter in letters if letter["errInfo"]["reason"] == _LATE)
    accepted = done.records - done.duplicates - len(letters)
    return Audited(
        records=done.records,
        duplicates=done.duplicates,
        late=late,
        dead_letters=len(letters) - late,
        accepted=accepted,
        outputs={vertex: len(found.lines) for vertex, found in actual.items()},
        epochs={vertex: found.by_epoch for vertex, found in actual.items()},
    )


async def audit_local(name: ProcessorName, data_dir: Path) -> Audited:
    """Audit a processor of this machine, whether it runs or not: without a broker, one is started on the folder for the time."""
    store = SqlCommitStore(f"sqlite:///{(data_dir / 'coordinator.db').resolve()}")
    blobs = DirectoryBlobs(data_dir / "blobs", AsyncExecutor())
    environment = read_environment(data_dir)
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
    log = KafkaLog(KafkaSettings(bootstrap=bootstrap, client="tidemark-audit"))
    try:
        return await audit(name, store, blobs, log, {**environment, "KAFKA": bootstrap})
    finally:
        await log.close()
        await store.close()
        if cluster is not None:
            await cluster.stop()


# --- what went in ---------------------------------------------------------------------------------------------------------


async def _source(processor: Processor, commit: CommitRow, log: KafkaLog, blobs: BlobStore) -> list[SplitRecords]:
    """The records of the source's splits, up to the positions in the last commit."""
    stage = processor.source
    if not isinstance(stage, KafkaSource):
        message = f"{stage.path}: only Kafka sources can be read again for an audit"
        raise AuditFailed(message)
    splits = []
    for split, position in sorted((await _positions(commit, blobs)).items()):
        topic, _, number = split.rpartition("-")
        partition = TopicPartition(topic, int(number))
        ordinal = int(number) * len(stage.topics) + stage.topics.index(topic)
        records = [r async for r in committed_records(log, topic, partition.partition) if r.offset < position.next]
        if records and records[0].offset != 0:
            message = f"topic {topic} partition {number}: records below offset {records[0].offset} are gone; expected offset 0"
            raise AuditFailed(message)
        splits.append(
            SplitRecords(
                split,
                ordinal,
                [r.offset for r in records],
                [r.timestamp_ms for r in records],
                [r.value for r in records],
                [r.key for r in records],
            )
        )
    return splits


async def _positions(commit: CommitRow, blobs: BlobStore) -> dict[SplitId, SplitPosition]:
    """Where the commit says that each split stands. AuditFailed if its state is not as its digests say."""
    try:
        parts = await load_parts(blobs, commit.tasks, lambda part: part.startswith(_POSITION))
    except BlobError as error:
        message = f"commit {commit.epoch}: {error}"
        raise AuditFailed(message) from error
    return {
        SplitId(part.removeprefix(_POSITION)): msgspec.msgpack.decode(data, type=SplitPosition)
        for part, data in parts.items()
    }


# --- what came out --------------------------------------------------------------------------------------------------------


async def _outputs(
    processor: Processor, job: JobId, log: KafkaLog, environment: Mapping[str, str]
) -> dict[VertexId, Actual]:
    found: dict[VertexId, Actual] = {}
    for vertex in plan_processor(processor, engine="local").vertices:
        match vertex.head:
            case WriteHead(KafkaEmit(topic=Literal(topic))):
                found[vertex.id] = await _topic(log, str(topic))
            case WriteHead(FileEmit() as stage):
                found[vertex.id] = _files(processor, stage, job, environment)
            case DeadLetterHead(KafkaDlq(topic=topic)):
                found[vertex.id] = await _topic(log, topic)
            case WriteHead() | DeadLetterHead():
                message = f"{vertex.id}: outputs of {vertex.label} cannot be audited"
                raise AuditFailed(message)
    return found


async def _topic(log: KafkaLog, topic: str) -> Actual:
    lines = []
    async for record in committed_records(log, topic):
        place = f"topic {topic} partition {record.partition} offset {record.offset}"
        try:
            lines.append((_line(json.loads(record.value or b"null")), place))
        except ValueError as error:
            message = f"{place}: expected a JSON document, found {(record.value or b'')[:60]!r}"
            raise AuditFailed(message) from error
    return Actual(lines)


def _files(processor: Processor, stage: FileEmit, job: JobId, environment: Mapping[str, str]) -> Actual:
    root = ""
    if stage.connection_name is not None:
        root = str(resolve(processor.connections[stage.connection_name], environment).settings["path"])
    folder = Path(root) / stage.file_path
    lines: list[tuple[Line, str]] = []
    by_epoch: Counter[int] = Counter()
    try:
        for released in released_files(LocalDestination(folder, "audit"), job=job):
            place = f"{folder / released.file.name} (epoch {released.manifest.epoch})"
            for document in _documents(stage, released.data):
                lines.append((_line(to_json(document)), place))
                by_epoch[released.manifest.epoch] += 1
    except Discrepancy as error:
        raise AuditFailed(str(error)) from error
    return Actual(lines, dict(sorted(by_epoch.items())))


def _documents(stage: FileEmit, data: bytes) -> list[Any]:
    if stage.format == "parquet":
        table = pq.read_table(pa.BufferReader(data))
        return [d for batch in table.to_batches() for d in documents_of(batch)]
    if stage.format == "json":
        return [json.loads(line) for line in data.splitlines()]
    message = f"{stage.path}: files of format {stage.format} have lost their types; they cannot be audited"
    raise AuditFailed(message)


# --- the comparison ---------------------------------------------------------------------------------------------------------


def _line(tree: Any) -> Line:
    return json.dumps(tree, sort_keys=True, ensure_ascii=False)


def _same(vertex: VertexId, expected: Sequence[Any], actual: Actual) -> None:
    """Both as multisets. AuditFailed names the first document that is missing, repeated or altered."""
    left = Counter(_line(json.loads(json.dumps(to_json(d)))) for d in expected)
    for line, place in actual.lines:
        if left[line] == 0:
            times = sum(1 for other, _ in actual.lines if other == line)
            why = f"is there {times} times" if times > 1 else "follows from no input"
            message = f"{vertex}: {place}: {line[:300]} {why}"
            raise AuditFailed(message)
        left[line] -= 1
    missing = next((line for line, count in left.items() if count), None)
    if missing is not None:
        message = f"{vertex}: missing from the output: {missing[:300]}"
        raise AuditFailed(message)
