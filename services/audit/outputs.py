"""The content of the outputs, by epoch, as readers see it: topics by their markers, files by their manifests.

- Topics are read committed. A marker says where the other records of its transaction lie; the job did not write a record in no marker's
  range. Markers follow the commits one by one, and name the digest of the staged data.
- Files are those that manifests list, checked against digests. A manifest agrees with the commit's handle.
"""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import cast

import pyarrow as pa
from msgspec import structs

from tidemark.services.audit.expected import Line, line_of, line_of_record, table_line
from tidemark.services.audit.history import AuditFailed, Commit, Identity, NotAuditable, ReleaseStep, released_steps
from tidemark.services.audit.reading import committed_records, held_records
from tidemark.services.sink.connectors.destination import Destination, LocalDestination
from tidemark.services.sink.connectors.filerows import encoding_of
from tidemark.services.sink.connectors.kafkamarkers import TOPIC_PREFIX, Marker, WrittenRange, decode_marker, markers_of
from tidemark.services.sink.connectors.manifests import (
    SUMMARY,
    Manifest,
    manifest_name,
    summary_of,
    total_of,
    visible_name,
)
from tidemark.services.sink.connectors.released import (
    Discrepancy,
    ReleasedFile,
    large_files,
    released_files,
    released_manifests,
    small_file_is_gone,
    table_at,
)
from tidemark.services.sink.connectors.staging import FILES, FileList, StagedFile, decode_handle
from tidemark.services.sink.connectors.tablecolumns import RESCUED
from tidemark.services.source.connectors.parquetcells import documents_of_batch
from tidemark.shared.language.expressions.ast import Literal
from tidemark.shared.language.stages import Connection, FileEmit, KafkaEmit
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.formats import FormatError
from tidemark.shared.model.ids import NO_EPOCH, Epoch, JobId, Offset, VertexId
from tidemark.shared.model.values import Document
from tidemark.shared.ports.log import Log, LogError, LogRecord, TopicPartition
from tidemark.shared.ports.sink import Identity as ReleaseIdentity
from tidemark.shared.ports.sink import TargetRefused
from tidemark.shared.runtime.exchange import digest_of


@dataclass(slots=True)
class Output:
    """The output of one sink vertex."""

    lines: dict[Epoch, list[tuple[Line, str]]] = field(default_factory=lambda: defaultdict(list))
    """By epoch: each document with where it lies."""
    released: dict[Identity, Epoch] = field(default_factory=dict)
    """The marker of each release identity."""
    gone: dict[Epoch, str] = field(default_factory=dict)
    """Epochs with missing output, each with the name of the missing part."""
    mixed: set[Epoch] = field(default_factory=set)
    """Epochs with rows in the same files as rows of other such epochs; all together they are at the last."""
    untold: set[Epoch] = field(default_factory=set)
    """Epochs without a trace of their own output: it lies in the target with that of others."""

    def complete(self, commit: Commit, vertex: VertexId) -> bool:
        """Whether every identity of the vertex has released this commit."""
        return all(
            self.released.get(identity, NO_EPOCH) >= commit.epoch for identity in commit.staged if identity[0] == vertex
        )


# --- topics -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VertexReleases:
    """The vertex with the outputs to look at, and the commits that may have been released."""

    job: JobId
    vertex: VertexId
    commits: Sequence[Commit]
    ended: bool
    """Nothing follows: the last commit is final and released. Else output behind the last commit that was read is left alone."""

    def known(self, epoch: int) -> bool:
        """Whether a release of this commit is to be judged."""
        return self.ended or epoch <= self.commits[-1].epoch

    def identities(self) -> list[Identity]:
        """All release identities that the vertex has had."""
        return sorted({identity for commit in self.commits for identity in commit.staged if identity[0] == self.vertex})


async def topic_output(log: Log, stage: KafkaEmit, what: VertexReleases) -> Output:
    """The records of a Kafka sink. AuditFailed at the first that is not as the markers say."""
    output = Output()
    own: list[tuple[WrittenRange, Epoch]] = []
    named = {str(stage.topic.value)} if isinstance(stage.topic, Literal) else set()
    records = {topic: await held_records(log, topic) for topic in sorted(named)}
    for identity in what.identities():
        markers = await _markers(log, markers_of(ReleaseIdentity(what.job, *identity)).topic)
        _marked(identity, markers, what)
        own += [(written, marker.epoch) for marker, _ in markers for written in marker.written]
        output.released[identity] = markers[-1][0].released
    for topic in sorted({written.topic for written, _ in own} - named):
        records[topic] = await held_records(log, topic)
    foreign = await _foreign(log, what, named)
    for topic, found in records.items():
        begins = await _begins(log, topic)
        others = foreign.get(topic, []) if topic in named and foreign is not None else None
        _assign(output, what.vertex, found, [r for r in own if r[0].topic == topic], begins, others)
    return output


def _marked(identity: Identity, markers: Sequence[tuple[Marker, str]], what: VertexReleases) -> None:
    """Markers follow the commits one by one, and name the digest of the staged data."""
    known = {place: marker for marker, place in markers if what.known(marker.epoch)}
    steps = [ReleaseStep(m.epoch, m.predecessor, m.part, m.parts, m.digest == "", place) for place, m in known.items()]
    for step, commit in released_steps(identity, steps, what.commits):
        found, expected = known[step.place].digest, digest_of(commit.staged[identity])
        if found != expected:
            message = (
                f"{step.place}: commit {step.epoch}: the marker has digest {found}, the commit's handle {expected}"
            )
            raise AuditFailed(message)


async def _markers(log: Log, topic: str) -> list[tuple[Marker, str]]:
    partition = TopicPartition(topic, 0)
    if topic not in await log.list_topics():
        message = f"topic {topic}: the markers of this release identity are not there; they stay while the job lives"
        raise NotAuditable(message)
    begin = (await log.begin_offsets([partition]))[partition]
    found: list[tuple[Marker, str]] = []
    async for record in committed_records(log, topic):
        try:
            found.append((decode_marker(partition, record.value or b""), f"topic {topic} offset {record.offset}"))
        except TargetRefused as error:
            message = f"topic {topic} offset {record.offset}: {error}"
            raise AuditFailed(message) from error
    if begin > 0 or not found:
        message = f"topic {topic}: markers below offset {begin} are gone: the sink keeps markers_kept of them"
        raise NotAuditable(message)
    return found


async def _foreign(log: Log, what: VertexReleases, topics: set[str]) -> dict[str, list[WrittenRange]] | None:
    """The ranges that others wrote under markers into these topics: earlier jobs, other sinks. None where some have lost markers."""
    mine = f"{TOPIC_PREFIX}{what.job}.{what.vertex}."
    found: dict[str, list[WrittenRange]] = defaultdict(list)
    for topic in sorted(await log.list_topics()):
        if topic.startswith(TOPIC_PREFIX) and not topic.startswith(mine):
            try:
                if any((await _begins(log, topic)).values()):
                    return None
                async for record in committed_records(log, topic):
                    for written in decode_marker(TopicPartition(topic, 0), record.value or b"").written:
                        if written.topic in topics:
                            found[written.topic].append(written)
            except LogError:
                if topic in await log.list_topics():
                    raise
                return None  # its processor was dropped meanwhile, and its markers went with it
    return found


async def _begins(log: Log, topic: str) -> dict[int, int]:
    partitions = [TopicPartition(topic, number) for number in range((await log.list_topics()).get(topic, 0))]
    return {at.partition: offset for at, offset in (await log.begin_offsets(partitions)).items()}


def _assign(
    output: Output,
    vertex: VertexId,
    records: Sequence[LogRecord],
    own: Sequence[tuple[WrittenRange, Epoch]],
    begins: Mapping[int, int],
    foreign: Sequence[WrittenRange] | None,
) -> None:
    """Each record to the epoch of the range that it lies in; each range is full, but for records that retention has taken.

    foreign: the ranges of others; None: records that are in no range are left alone. So are those in front of all that this job wrote
    into their partition: others may have written them, or an earlier job, together with which its markers went.
    """
    begun: dict[int, int] = {}
    for written, _ in own:
        begun[written.partition] = min(written.first, begun.get(written.partition, written.first))
    owners = _Owners([*own, *((written, None) for written in foreign or ())])
    counts: dict[WrittenRange, int] = defaultdict(int)
    for record in records:
        place = f"topic {record.topic} partition {record.partition} offset {record.offset}"
        owner = owners.find(record)
        if owner is None and (foreign is None or record.offset < begun.get(record.partition, record.offset + 1)):
            continue
        if owner is None:
            message = (
                f"{vertex}: {place}: {(record.value or b'')[:300]!r} is in no release of any job: expected only what "
                "markers tell; a processor that was dropped, or started without state, has left none"
            )
            raise AuditFailed(message)
        written, epoch = owner
        if epoch is not None:
            counts[written] += 1
            output.lines[epoch].append((_json_line(record, place), place))
    for written, epoch in own:
        begin = begins.get(written.partition, 0)
        if written.first < begin:
            output.gone.setdefault(
                epoch, f"topic {written.topic} partition {written.partition}: records below offset {begin} are gone"
            )
        elif counts[written] != written.count:
            message = (
                f"epoch {epoch}, {vertex}: topic {written.topic} partition {written.partition}: expected {written.count} records "
                f"from offset {written.first}, found {counts[written]}"
            )
            raise AuditFailed(message)


class _Owners:
    """Which range an offset lies in. AuditFailed if two claim one."""

    def __init__(self, ranges: Sequence[tuple[WrittenRange, Epoch | None]]) -> None:
        self._by_partition: dict[int, list[tuple[Offset, WrittenRange, Epoch | None]]] = defaultdict(list)
        for written, epoch in ranges:
            self._by_partition[written.partition].append((written.first, written, epoch))
        for partition, entries in self._by_partition.items():
            entries.sort(key=lambda entry: entry[0])
            for before, after in pairwise(entries):
                if before[0] + before[1].count > after[0]:
                    message = (
                        f"topic {after[1].topic} partition {partition} offset {after[0]}: the markers of commits "
                        f"{before[2]} and {after[2]} both claim it"
                    )
                    raise AuditFailed(message)

    def find(self, record: LogRecord) -> tuple[WrittenRange, Epoch | None] | None:
        entries = self._by_partition.get(record.partition, [])
        at = bisect_right(entries, record.offset, key=lambda entry: entry[0]) - 1
        if at < 0 or record.offset >= entries[at][0] + entries[at][1].count:
            return None
        return entries[at][1], entries[at][2]


def _json_line(record: LogRecord, place: str) -> Line:
    try:
        return line_of_record(record.key, record.value)
    except ValueError as error:
        message = f"{place}: expected a JSON document, found {(record.value or b'')[:60]!r}"
        raise AuditFailed(message) from error


# --- files --------------------------------------------------------------------------------------------------------------------


def file_output(stage: FileEmit, connection: Connection | None, what: VertexReleases) -> Output:
    """The rows of a file sink, at a connection with its values put in.

    AuditFailed at the first file or manifest that is not as commits and manifests say.
    """
    root = "" if connection is None else str(connection.settings["path"])
    destination = LocalDestination(Path(root) / stage.file_path, "audit")
    output = Output()
    try:
        summary = destination.read(SUMMARY)
        table = table_at(destination, encoding_of(stage, connection))
        manifests = released_manifests(destination, table=table)
        for identity in what.identities():
            chain = [m for m in manifests if m.identity == str(ReleaseIdentity(what.job, *identity))]
            if table is not None and table.is_cut and not _reaches_back(chain):
                raise NotAuditable(
                    f"{destination.uri('')}: its earlier versions are gone, and with them what tells whose rows are whose"
                )
            _as_committed(destination, identity, [m for m in chain if what.known(m.epoch)], what.commits)
            output.released[identity] = Epoch(chain[-1].epoch) if chain else NO_EPOCH
        if stage.format in ("json", "csv"):
            _summarised(destination, summary, manifests, ended=what.ended)
        mixed = [
            Epoch(m.epoch)
            for m in manifests
            if (m.job, m.vertex) == (what.job, what.vertex) and small_file_is_gone(table, m)
        ]
        if mixed:
            if any(m.files and (m.job, m.vertex) != (what.job, what.vertex) for m in manifests):
                raise NotAuditable(
                    f"{destination.uri('')}: small files of several writers became large ones: whose rows are whose is told no more"
                )
            output.mixed |= set(mixed)
            place = destination.uri("")
            output.lines[max(mixed)] += [
                (line, place) for rows in large_files(destination, table) for line in _table_lines(stage, rows)
            ]
        for released in released_files(destination, job=what.job, table=table):
            if released.manifest.vertex == what.vertex:
                epoch = Epoch(released.manifest.epoch)
                place = destination.uri(released.file.name)
                output.lines[epoch] += [(line, place) for line in _file_lines(stage, released)]
    except (Discrepancy, TargetRefused) as error:
        raise AuditFailed(str(error)) from error
    return output


def _reaches_back(chain: Sequence[Manifest]) -> bool:
    """Whether the manifests of an identity are all that it ever had, each behind the one before."""
    before = [None, *(manifest.epoch for manifest in chain)]
    return bool(chain) and [manifest.predecessor for manifest in chain] == before[:-1]


def _as_committed(
    destination: Destination, identity: Identity, chain: Sequence[Manifest], commits: Sequence[Commit]
) -> None:
    """Manifests follow the commits one by one, and list the staged files."""
    if not chain:
        return
    by_epoch = {manifest.epoch: manifest for manifest in chain}
    steps = [
        ReleaseStep(
            Epoch(m.epoch),
            None if m.predecessor is None else Epoch(m.predecessor),
            1,
            1,
            not m.files,
            _place(destination, m),
        )
        for m in chain
    ]
    for step, commit in released_steps(identity, steps, commits):
        manifest = by_epoch[step.epoch]
        staged = tuple(
            structs.replace(file, name=visible_name(file.name))
            for file in _staged_files(destination, commit.staged[identity])
        )
        if manifest.files != staged:
            different = next((a or b for a, b in _pairs(manifest.files, staged) if a != b), None)
            message = (
                f"{step.place}: lists {len(manifest.files)} files, commit {commit.epoch} staged {len(staged)}; they "
                f"differ at {different}"
            )
            raise AuditFailed(message)
        if manifest.final != commit.row.final:
            message = f"{step.place}: says final={manifest.final}, commit {commit.epoch} says {commit.row.final}"
            raise AuditFailed(message)


def _pairs(
    first: Sequence[StagedFile], second: Sequence[StagedFile]
) -> list[tuple[StagedFile | None, StagedFile | None]]:
    length = max(len(first), len(second))
    padded = [[*files, *[None] * (length - len(files))] for files in (first, second)]
    return list(zip(*padded, strict=True))


def _staged_files(destination: Destination, handle: bytes) -> tuple[StagedFile, ...]:
    files: list[StagedFile] = []
    for part in decode_handle(handle, len(handle)):
        if isinstance(part, StagedFile):
            files.append(part)
        elif isinstance(part, FileList):
            data = destination.read(part.name)
            if data is None or sha256(data).hexdigest() != part.digest:
                message = f"{destination.uri(part.name)}: expected a list of files with digest {part.digest}"
                raise AuditFailed(message)
            try:
                files += FILES.decode(data)
            except FormatError as error:
                raise AuditFailed(f"{destination.uri(part.name)}: {error}") from error
    return tuple(files)


def _summarised(destination: Destination, data: bytes | None, manifests: Sequence[Manifest], *, ended: bool) -> None:
    """`_manifest.json`, read before the manifests, agrees with them up to its markers; it may lag until the end, but not differ."""
    if data is None:
        message = f"{destination.uri(SUMMARY)}: it is not there, although there are {len(manifests)} manifests"
        raise AuditFailed(message)
    try:
        told = json.loads(data)
        markers = dict(told["released"])
        covered = [m for m in manifests if m.epoch <= int(markers.get(m.identity, -1))]
        earlier = {
            identity: total_of(m for m in manifests if m.identity == identity and m.epoch <= int(before["until"]))
            for identity, before in told.get("earlier", {}).items()
        }
    except (ValueError, KeyError, TypeError) as error:
        message = f"{destination.uri(SUMMARY)}: expected a summary of manifests, found something else: {error!r}"
        raise AuditFailed(message) from error
    if summary_of(covered, earlier) != data:
        message = f"{destination.uri(SUMMARY)}: is not what the manifests say up to {markers}; it was changed"
        raise AuditFailed(message)
    if ended and len(covered) < len(manifests):
        message = (
            f"{destination.uri(SUMMARY)}: says {markers} although all is released: there are {len(manifests)} "
            f"manifests, it has {len(covered)}"
        )
        raise AuditFailed(message)


def _place(destination: Destination, manifest: Manifest) -> str:
    return destination.uri(manifest_name(manifest.identity, Epoch(manifest.epoch)))


def _table_lines(stage: FileEmit, table: pa.Table) -> list[Line]:
    documents = [document for batch in table.to_batches() for document in documents_of_batch(batch)]
    for document in documents:
        # Values that no column took are part of the document all the same.
        document.update(cast("Document", parse_json(str(document.pop(RESCUED, None) or "{}"))))
        # A field in a field that divides the table is in the document already.
        for name in stage.partition_by:
            if "." in name:
                document.pop(name, None)
    line = table_line(stage.partition_by)
    return [line(document) for document in documents]


def _file_lines(stage: FileEmit, released: ReleasedFile) -> list[Line]:
    if released.schema is not None:
        return _table_lines(stage, released.table())
    if stage.format == "json":
        return [line_of(json.loads(line)) for line in released.data.split(b"\n") if line]
    message = f"{stage.path}: files of format {stage.format} have lost their types; they cannot be audited"
    raise NotAuditable(message)
