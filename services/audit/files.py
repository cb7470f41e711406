"""The files of a sink, as readers see them: those that manifests list, checked against digests.

A manifest agrees with the commit's handle. All is read before the commits are: the system may go on meanwhile, and its tables make small
files into large ones and delete them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, cast

import pyarrow as pa
from msgspec import structs

from tidemark.services.audit.expected import Line, line_of, table_line
from tidemark.services.audit.history import (
    AuditFailed,
    Identity,
    NotAuditable,
    PastGone,
    ReleaseStep,
    released_steps,
)
from tidemark.services.audit.outputs import KeptOutput, Output, VertexReleases
from tidemark.services.audit.rowsums import NO_ROWS, RowSum
from tidemark.services.sink.connectors.destination import Destination, LocalDestination
from tidemark.services.sink.connectors.filerows import encoding_of
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
from tidemark.services.sink.connectors.tablereleases import ReadTable
from tidemark.services.source.connectors.parquetcells import documents_of_batch
from tidemark.shared.language.stages import Connection, FileEmit
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.formats import FormatError
from tidemark.shared.model.ids import NO_EPOCH, Epoch, JobId, VertexId
from tidemark.shared.model.values import Document
from tidemark.shared.ports.sink import Identity as ReleaseIdentity
from tidemark.shared.ports.sink import TargetRefused

_LOOKS: Final = 5
"""At a table that changes while its files are read."""


@dataclass(slots=True)
class FilesRead:
    """Of one sink vertex, as of one moment, and behind what an earlier audit saw."""

    stage: FileEmit
    destination: Destination
    before: KeptOutput
    summary: bytes | None
    manifests: list[Manifest] = field(default_factory=list)
    """The manifests of all writers."""
    is_cut: bool = False
    """Earlier versions of the table are gone."""
    output: Output = field(default_factory=Output)
    """Its rows."""
    until: Epoch | None = None
    """The last epoch of the piece that is looked at."""
    owed: RowSum = NO_ROWS
    """The rows that earlier pieces expect in files with rows of several epochs."""


def read_files(
    stage: FileEmit,
    connection: Connection | None,
    job: JobId,
    vertex: VertexId,
    before: KeptOutput,
    *,
    until: Epoch | None = None,
    owed: RowSum = NO_ROWS,
) -> FilesRead:
    """Read a file sink's output, at a connection with its values put in; until, owed: as in `FilesRead`.

    AuditFailed at the first file that is not as manifests say: seen twice, where there is a table that may have changed meanwhile.
    """
    root = "" if connection is None else str(connection.settings["path"])
    destination = LocalDestination(Path(root) / stage.file_path, "audit")
    encoding = encoding_of(stage, connection)
    try:
        summary = destination.read(SUMMARY)
        table, looks = table_at(destination, encoding), 1
        while True:
            try:
                read = FilesRead(stage, destination, before, summary, until=until, owed=owed)
                return _read(read, table, job, vertex)
            except Discrepancy:
                earlier, table = table, table_at(destination, encoding)
                if earlier is None or table is None or table.live == earlier.live or looks == _LOOKS:
                    raise
                looks += 1
    except (Discrepancy, TargetRefused) as error:
        raise AuditFailed(str(error)) from error


def _read(read: FilesRead, table: ReadTable | None, job: JobId, vertex: VertexId) -> FilesRead:
    read.manifests = released_manifests(read.destination, table=table)
    own = [m for m in read.manifests if (m.job, m.vertex) == (job, vertex)]
    seen = {m.identity: -1 if (last := read.before.marker((vertex, m.index))) is None else last for m in own}
    if table is not None:
        read.is_cut = table.is_cut
        new = [m for m in own if m.epoch > seen[m.identity] and (read.until is None or m.epoch <= read.until)]
        mixed = {Epoch(m.epoch) for m in new if small_file_is_gone(table, m)}
        read.output.mixed, read.output.last_mixed = mixed, max(mixed, default=NO_EPOCH)
        if read.until is None:
            alone = all((m.job, m.vertex) == (job, vertex) or not m.files for m in read.manifests)
            _read_large(read, table, alone=alone)
    for released in released_files(read.destination, job=job, table=table, since=seen, until=read.until):
        if released.manifest.vertex == vertex:
            epoch = Epoch(released.manifest.epoch)
            place = read.destination.uri(released.file.name)
            lines = _file_lines(read.stage, released)
            read.output.texts[epoch] += [(line, place) for line in lines]
            if table is not None:
                read.output.files[released.file.name] = (epoch, RowSum.of(lines))
    return read


def _read_large(read: FilesRead, table: ReadTable, *, alone: bool) -> None:
    """The files with rows of several epochs, where such have come since the last audit. alone: no other one wrote the table."""
    known = read.before.files
    gone = known.keys() - table.live.keys()
    found = large_files(read.destination, table, known)
    output = read.output
    if not output.mixed and not gone and not found and not read.owed.rows:
        return
    place = read.destination.uri("")
    if not alone:
        raise NotAuditable(
            f"{place}: small files of several writers became large ones: whose rows are whose is told no more"
        )
    output.gone_files = frozenset(gone)
    for name, rows in found.items():
        lines = _table_lines(read.stage, rows)
        output.large += [(line, place) for line in lines]
        output.files[name] = (output.last_mixed, RowSum.of(lines))
    output.earlier = sum((known[name] for name in gone), read.owed)


def file_output(read: FilesRead, what: VertexReleases) -> Output:
    """The rows of a file sink. AuditFailed at the first manifest that is not as commits say."""
    destination, output = read.destination, read.output
    for identity in what.identities():
        last = what.marker(identity)
        chain = [m for m in read.manifests if m.identity == str(ReleaseIdentity(what.job, *identity))]
        if read.is_cut and not _reaches_back(chain, last):
            raise PastGone(
                f"{destination.uri('')}: its earlier versions are gone, and with them what tells whose rows are whose"
            )
        since = [m for m in chain if last is None or m.epoch > last]
        try:
            _as_committed(destination, identity, [m for m in since if what.known(m.epoch)], what)
        except TargetRefused as error:
            raise AuditFailed(str(error)) from error
        output.released[identity] = Epoch(chain[-1].epoch) if chain else last or NO_EPOCH
        output.steps[identity] = [Epoch(m.epoch) for m in since]
    if read.stage.format in ("json", "csv") and what.until is None:
        _summarised(destination, read.summary, read.manifests, ended=what.ended)
    return output


def _reaches_back(chain: Sequence[Manifest], last: Epoch | None) -> bool:
    """Whether the manifests of an identity are all behind the last one that an earlier audit saw, each behind the one before."""
    since = [manifest for manifest in chain if last is None or manifest.epoch > last]
    before = [last, *(manifest.epoch for manifest in since)]
    return (bool(since) or last is not None) and [manifest.predecessor for manifest in since] == before[:-1]


def _as_committed(
    destination: Destination, identity: Identity, chain: Sequence[Manifest], what: VertexReleases
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
    for step, commit in released_steps(identity, steps, what.commits, what.marker(identity)):
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
