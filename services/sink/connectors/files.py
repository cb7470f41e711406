"""The file sink: Parquet, JSON lines or CSV, on a directory or an object store (protocol, S2 and S4).

An epoch's rows are written at the destination below `_staged`, under immutable, attempt-unique names. A release gives each file its visible
name by a rename (a copy on object stores), and then says that it is released: in a table by the commit that adds the files and has the
marker (`tablereleases`), else by one manifest for each (identity, checkpoint) that is created complete and only if absent. No fence: a
zombie can only release a commit that exists, in the same words as its successor, and write files that nothing names.

Which staged files may be removed (C12): a file's label is the last epoch that its writer had staged, or had been restored from. If a
checkpoint r is committed and released (marker ≥ r), then a file with a label below r that still lies below `_staged` is in no commit,
present or to come (a released file has another name; manifests list the files that an earlier version released). Its writer's generation
either committed r, then it staged r and the file is in a commit up to r or in none; or it ended before r was committed,
then it commits nothing more; or it was restored from r or later, then the label is not below r. This holds for every writer that
removes, also a zombie that opens late with an old r, so it needs no fence. Files of a generation that ended since r wait for the next.
"""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import structlog

from tidemark.services.sink.connectors.destination import Destination, sha256
from tidemark.services.sink.connectors.filerows import Encoding, Fit, RowBuffer
from tidemark.services.sink.connectors.formats import SUFFIXES
from tidemark.services.sink.connectors.manifests import (
    EPOCH_DIGITS,
    STAGED,
    STAGED_SUFFIX,
    Manifest,
    ManifestStore,
    Releases,
    visible_name,
)
from tidemark.services.sink.connectors.markers import check_open, is_due
from tidemark.services.sink.connectors.staging import (
    FILES,
    FileList,
    Ledger,
    Part,
    StagedFile,
    StagingSettings,
    decode_handle,
    encode_handle,
)
from tidemark.services.sink.connectors.tablecolumns import TableColumns
from tidemark.services.sink.connectors.tablereleases import FileRefused, table_releases
from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.formats import FormatError
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.message_sizes import sized
from tidemark.shared.model.settings import check_positive, knob
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.sink import Identity, Rejected, TargetRefused

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSinkSettings:
    """Bounds of a file sink."""

    buffer_bytes_max: int = 64 * 1024 * 1024
    """Rows held in memory, as Arrow bytes, before they are written to staged files."""
    handle_bytes_max: int = sized(64 * 1024, grows=False)
    """A handle above this becomes a list of files at the destination (C7)."""
    summary_every: int = 16
    """`_manifest.json` lags at most so many releases behind the manifests while the pipeline runs; at its end, none."""
    summary_rounds_max: int = 16
    """How often the summary is built anew because manifests came meanwhile."""
    volume_manifests: int = 1_000
    """Manifests of an identity in one volume; twice so many lie beside the volumes at the most, to be listed when a sink opens."""
    manifests_kept_max: int = 100_000
    """Manifests of the destination that a task keeps in memory; others are read again for the summary."""

    compact_releases: int = 256
    """Releases after which one task makes a table's small files into large ones."""
    file_bytes: int = knob(128 * 1024 * 1024)
    """Of a large one."""

    def __post_init__(self) -> None:
        """Raise ValueError for values that cannot work."""
        check_positive(self, "file sink")


class FileSink:
    """`SinkPort` into files at one destination. `attempt` is a name that no other sink object has."""

    def __init__(
        self,
        destination: Destination,
        encoding: Encoding,
        attempt: str,
        executor: Executor,
        settings: FileSinkSettings | None = None,
        handle_bytes_max: int = StagingSettings().handle_bytes_max,
    ) -> None:
        self._destination = destination
        self._encoding = encoding
        self._attempt = attempt
        self._executor = executor
        self._settings = settings or FileSinkSettings()
        self._releases, self._fit = self._kind(encoding)
        self._handle_bytes_max = handle_bytes_max
        self._rows = RowBuffer(encoding, self._fit)
        self._ledger = Ledger()
        self._folders = itertools.count()
        self._identity: Identity | None = None
        self._marker = Epoch(0)
        self._restored_from = Epoch(0)
        self._collected = False
        self._since_summary = 0

    def _kind(self, encoding: Encoding) -> tuple[Releases, Fit | None]:
        """Tables for formats with columns, manifests for the others."""
        settings, destination = self._settings, self._destination
        bounds = {"compact_files": settings.compact_releases, "target_bytes": settings.file_bytes}
        table = table_releases(destination, encoding, **bounds)
        if table is None:
            kept, rounds = settings.manifests_kept_max, settings.summary_rounds_max
            return ManifestStore(destination, kept, rounds, settings.volume_manifests), None
        return table, TableColumns(table.agree, encoding.partition_by, table.forbidden, lambda: table.changed).fit

    async def open(self, identity: Identity, restored_from: Epoch, *, joins: bool = False) -> Epoch:
        """See `Sink.open`. Nothing is fenced: see the module's text on zombies."""
        return await self._executor.blocking(partial(self._open, identity, restored_from, joins=joins))

    def _open(self, identity: Identity, restored_from: Epoch, *, joins: bool) -> Epoch:
        self._destination.prepare()
        self._releases.convert()
        marker = self._releases.marker(str(identity))
        check_open(identity, marker, restored_from, self.place, joins=joins)
        self._identity = identity
        self._ledger = Ledger(newest=restored_from)
        self._rows = RowBuffer(self._encoding, self._fit)
        if marker is None or (joins and marker < restored_from):
            self._releases.publish(self._manifest(restored_from, marker, (), final=False))
            marker = restored_from
        self._marker = marker
        self._restored_from = restored_from
        self._collected = False
        self._collect_once()
        # A predecessor may have died between its last manifest and the summary.
        self._releases.settle()
        return marker

    async def accept(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """See `Sink.accept`. After TargetUnavailable nothing of the batch was taken: it may be handed over again."""
        return await self._executor.blocking(self._accept, batch)

    def _accept(self, batch: pa.RecordBatch) -> list[Rejected]:
        if self._rows.rows and self._rows.size_bytes >= self._settings.buffer_bytes_max:
            self._write()
        return self._rows.add(batch) if batch.num_rows else []

    def _write(self) -> None:
        """Rows in memory become staged files."""
        folder = self._new_folder()
        staged: list[StagedFile] = []
        for number, content in enumerate(self._rows.files()):
            inside = f"{content.folder}/" if content.folder else ""
            name = f"{folder}/{inside}part-{number:05d}{SUFFIXES[self._encoding.format]}{STAGED_SUFFIX}"
            self._create(name, content.data)
            staged.append(StagedFile(name, content.rows, len(content.data), sha256(content.data), content.partition))
        for part in staged:
            self._ledger.add(part)
        self._rows.clear()

    def _new_folder(self) -> str:
        label = f"{self._ledger.newest:0{EPOCH_DIGITS}d}"
        return f"{STAGED}/{self._identity}/{label}-{self._attempt}-{next(self._folders)}"

    def _create(self, name: str, data: bytes) -> None:
        if not self._destination.create(name, data):
            raise TargetRefused(
                f"{self._destination.uri(name)}: a staged file of this name exists; attempts need names of their own"
            )

    async def stage(self, epoch: Epoch, committed: Epoch) -> bytes:
        """See `Sink.stage`. May be repeated after TargetUnavailable."""
        return await self._executor.blocking(self._stage, epoch, committed)

    def _stage(self, epoch: Epoch, committed: Epoch) -> bytes:
        if self._rows.rows:
            self._write()
        parts = self._ledger.stage(epoch, committed)
        handle = encode_handle(parts, sys.maxsize)
        if len(handle) <= self._settings.handle_bytes_max:
            return handle
        data = FILES.encode([part for part in parts if isinstance(part, StagedFile)])
        name = f"{self._new_folder()}/files"
        self._create(name, data)
        rows = sum(part.rows for part in parts)
        return encode_handle((FileList(name, rows, len(data), sha256(data)),))

    async def release(self, row: MirrorRow, staged: bytes) -> None:
        """See `Sink.release`."""
        await self._executor.blocking(self._release, row, staged)

    async def skip(self, row: MirrorRow, staged: bytes) -> int:
        """See `Sink.skip`: files that are gone or not whole, or that the table refuses, are passed over."""
        skipped: list[int] = []
        await self._executor.blocking(self._release, row, staged, skipped)
        return sum(skipped)

    def _release(self, row: MirrorRow, staged: bytes, skipped: list[int] | None = None) -> None:
        """`skipped`: takes the rows of files that may be passed over; None: none may."""
        identity = self._identity
        if identity is None:
            raise ValueError("file sink: release before open")
        if is_due(identity, self._marker, row, self.place):
            self._publish(row, self._files(row, decode_handle(staged, self._handle_bytes_max), skipped), skipped)
            self._marker = row.epoch
            self._since_summary += 1
            self._collect_once()
        self._summarise(row, identity)

    def _publish(self, row: MirrorRow, files: Sequence[StagedFile], skipped: list[int] | None) -> None:
        left = tuple(files)
        while True:
            try:
                self._releases.publish(self._manifest(row.epoch, row.predecessor, left, final=row.final))
            except FileRefused as refused:
                if skipped is None:
                    raise
                skipped += [file.rows for file in left if file.name == refused.file]
                left = tuple(file for file in left if file.name != refused.file)
            else:
                return

    def _files(self, row: MirrorRow, parts: Sequence[Part], skipped: list[int] | None) -> tuple[StagedFile, ...]:
        """The staged files of a commit, each still there in its size."""
        files: list[StagedFile] = []
        for part in parts:
            try:
                files += self._of_part(row, part)
            except TargetRefused:
                if skipped is None:
                    raise
                skipped.append(part.rows)
        whole: list[StagedFile] = []
        for file in files:
            try:
                self._check_whole(row, file)
            except TargetRefused:
                if skipped is None:
                    raise
                skipped.append(file.rows)
            else:
                whole.append(file)
        return tuple(whole)

    def _of_part(self, row: MirrorRow, part: Part) -> Sequence[StagedFile]:
        match part:
            case StagedFile():
                return [part]
            case FileList():
                return self._listed(row, part)
        raise TargetRefused(f"{self.place}: commit {row.epoch}: the handle is another sink's: {type(part).__name__}")

    def _check_whole(self, row: MirrorRow, file: StagedFile) -> None:
        size = self._destination.size(file.name)
        if size is None:
            # An earlier try of this release has given it its name.
            size = self._destination.size(visible_name(file.name))
        if size != file.size_bytes:
            raise TargetRefused(
                f"{self._destination.uri(file.name)}: commit {row.epoch} needs this staged file with {file.size_bytes} bytes,"
                f" found {'none' if size is None else f'{size} bytes'}; only the product may delete below {STAGED}"
            )

    def _listed(self, row: MirrorRow, part: FileList) -> tuple[StagedFile, ...]:
        data = self._destination.read(part.name)
        if data is None or sha256(data) != part.digest:
            found = "none" if data is None else f"digest {sha256(data)}"
            raise TargetRefused(
                f"{self._destination.uri(part.name)}: commit {row.epoch} needs this list with digest {part.digest}, found {found}"
            )
        try:
            return tuple(FILES.decode(data))
        except FormatError as error:
            raise TargetRefused(f"{self._destination.uri(part.name)}: {error}") from error

    def _summarise(self, row: MirrorRow, identity: Identity) -> None:
        """Task 0 keeps the summary; at the end every task leaves it complete before it reports the release."""
        due = identity.index == 0 and self._since_summary >= self._settings.summary_every
        if due or (row.final and row.epoch == self._marker):
            self._releases.settle()
            self._since_summary = 0

    def _collect_once(self) -> None:
        """Remove files that can no longer be committed, once the marker has reached the restored checkpoint."""
        if self._collected or self._marker < self._restored_from:
            return
        self._collected = True
        folder = f"{STAGED}/{self._identity}"
        labels = {name: _label(name) for name in self._destination.names(folder)}
        old = [name for name, label in labels.items() if label is not None and label < self._restored_from]
        if old:
            listed = self._releases.listed(str(self._identity), self._marker)
            if listed is None:
                _log.warning("sink.listing_not_whole", identity=str(self._identity), place=self.place)
                self._collected = False
                return
            self._releases.clear([name for name in old if name not in listed])

    def _manifest(
        self, epoch: Epoch, predecessor: Epoch | None, files: tuple[StagedFile, ...], *, final: bool
    ) -> Manifest:
        identity = self._identity
        assert identity is not None
        return Manifest(
            identity=str(identity),
            job=identity.job,
            vertex=identity.vertex,
            index=identity.index,
            epoch=epoch,
            predecessor=predecessor,
            final=final,
            format=self._encoding.format,
            rows=sum(file.rows for file in files),
            files=files,
        )

    @property
    def place(self) -> str:
        """See `Sink.place`."""
        return self._destination.uri("").rstrip("/")

    async def close(self) -> None:
        """See `Sink.close`."""
        self._releases.close()


def _label(name: str) -> Epoch | None:
    """The label in a staged file's name (its third part begins with it); None for a file that is not ours."""
    parts = name.split("/")
    digits = parts[2].partition("-")[0] if len(parts) > 3 else ""  # noqa: PLR2004 - `_staged/<identity>/<label>-…/<file>`
    return Epoch(int(digits)) if digits.isdigit() else None
