"""Releases into a table: one commit of the table a release, with the marker inside (protocol, S2, S4), in any format.

- Two commits of one identity cannot pass each other: the second meets the first as a conflict, reads the marker again, and finds its
  commit released or another's history.
- The content of a manifest lies in the commit, under `tidemark`: the log of the table tells which file is of which checkpoint.
- Columns are added when rows with them are accepted, as formats allow (all may be null). So all tasks agree on a type before
  anything is staged, and values that do not fit are found there (S6). Others may have changed the table since files were staged: they are
  looked at again beside its columns.
- A table needs a column. Until there is one, markers are manifests, as those of other formats.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from msgspec import structs

from tidemark.services.sink.connectors.destination import Destination, sha256
from tidemark.services.sink.connectors.filerows import Encoding
from tidemark.services.sink.connectors.formats import parquet_bytes, table_from
from tidemark.services.sink.connectors.manifests import (
    STAGED_SUFFIX,
    Manifest,
    ManifestStore,
    decode_told,
    seen,
    show,
    visible_name,
)
from tidemark.services.sink.connectors.staging import StagedFile
from tidemark.services.sink.connectors.tablecolumns import (
    FORBIDDEN,
    RESCUED,
    TAKES_NO_NULL,
    TableColumns,
    exact,
    needed,
    numbered,
    numbers_of,
    plain,
)
from tidemark.shared.model.ids import Epoch
from tidemark.shared.ports.sink import TargetRefused, TargetUnavailable

_DIGEST_DIGITS: Final = 16
"""Of a digest in a file's name: enough to tell two files of one release apart."""
TOLD: Final = "tidemark"
"""The key of a commit's own information under which its manifest lies."""
COMPACTED: Final = "compacted"
"""The value under that key of a commit that made large files of small ones."""
_REFIT: Final = re.compile(rf"(?<=-\d{{5}})-[0-9a-f]{{{_DIGEST_DIGITS}}}(?=\.parquet({re.escape(STAGED_SUFFIX)})?$)")
"""The end of the name of a file that was written anew."""
_log = structlog.get_logger()
Handle = TypeVar("Handle")


def app_of(identity: str) -> str:
    """Under which name a table keeps the marker of an identity."""
    return f"tidemark.{identity}"


def told(manifest: Manifest) -> str:
    """A manifest as a commit of a table carries it."""
    return json.dumps(msgspec.to_builtins(manifest), sort_keys=True, separators=(",", ":"))


def _new(known: pa.Schema, wanted: pa.Schema) -> list[pa.Field]:
    """The columns that a table lacks, but for those whose names differ from others in their case alone: formats take them for the same."""
    names = {name.lower() for name in known.names}
    found = []
    for field in wanted:
        if field.name.lower() not in names:
            names.add(field.name.lower())
            found.append(field)
    return found


def _origin(name: str) -> str:
    """Of a staged file that was written anew the one from which; any other name as it is."""
    return _REFIT.sub("", name)


class CommitConflict(Exception):
    """Others changed the table meanwhile: nothing of this change is in it."""


class FileRefused(TargetRefused):
    """The table takes no row of a staged file, whose name this has; others of the commit may go without it."""

    def __init__(self, message: str, file: str) -> None:
        super().__init__(message)
        self.file = file


@dataclass(frozen=True, slots=True)
class ReadTable:
    """A table for readers."""

    schema: pa.Schema
    manifests: list[Manifest]
    """The manifests in its commits, as far as its log reaches back, in the order of identity and epoch."""
    live: dict[str, dict[str, Any]]
    """Its files, relative to its root, with values of their partition that are not in them."""
    is_compacted: bool
    """Whether it may have files that none of these manifests names: small ones became large ones, or the log was cut."""
    is_cut: bool
    """Whether earlier manifests are gone."""


class TableReleases(ABC, Generic[Handle]):
    """`Releases` of one sink object into the table at a destination. Functions block.

    tries_max: how often a commit is tried anew because others committed meanwhile. compact_files: releases after which task 0 makes small
    files into large ones of up to target_bytes; the small ones then go, and with them older versions of the table that need them.
    """

    forbidden: ClassVar[frozenset[str]] = FORBIDDEN
    """Characters that no column's name has."""
    log: ClassVar[str]
    """The folder in which the format keeps its log of commits."""

    def __init__(
        self,
        destination: Destination,
        partition_by: tuple[str, ...] = (),
        *,
        tries_max: int = 64,
        compact_files: int = 256,
        target_bytes: int = 128 << 20,
    ) -> None:
        self._destination = destination
        self._partition_by = partition_by
        self._tries_max = tries_max
        self._compact_files = compact_files
        self._target_bytes = target_bytes
        self._manifests = ManifestStore(destination)
        self._releasing: Handle | None = None
        """The handle of releases. Accepting opens its own, because the two go on side by side."""
        self._since_compaction = 0
        self.changed = 0
        """How often files did not fit the table: others had changed its columns, so what is known of them is old."""

    # --- the part of a format; errors are the library's, but for a CommitConflict

    @abstractmethod
    def _open(self) -> Handle | None:
        """The table as it is now; None if there is none."""

    @abstractmethod
    def _update(self, table: Handle) -> Handle | None:
        """A handle that sees later commits; None if others dropped the table."""

    def _check(self, table: Handle) -> None:
        """TargetRefused for a table that demands of its files what the sink does not do."""

    @abstractmethod
    def _create(self, schema: pa.Schema) -> None:
        """Make the table; nothing where another was faster."""

    @abstractmethod
    def _schema(self, table: Handle) -> pa.Schema:
        """The columns, in the types that `plain` gives."""

    @abstractmethod
    def _add_columns(self, table: Handle, schema: pa.Schema) -> None:
        """Add columns that may be null. CommitConflict."""

    @abstractmethod
    def _marker(self, table: Handle, identity: str) -> int | None:
        """The marker of an identity in the table."""

    @abstractmethod
    def _commit(self, table: Handle, manifest: Manifest) -> None:
        """One commit: the files of a manifest, itself, and the marker. CommitConflict, for any commit since the handle was updated."""

    @abstractmethod
    def _log_files(self, table: Handle) -> Iterator[str]:
        """The files of the log that tell how the table is now, relative to its root: not those of its history."""

    @abstractmethod
    def _compact(self, table: Handle) -> tuple[int, int]:
        """Make small files into large ones, and delete those that no version needs: how many of each."""

    def _versions(self, table: Handle) -> int:
        """Earlier versions that make each commit slower, and that a compaction lets go of."""
        del table
        return 0

    @abstractmethod
    def _words(self, table: Handle) -> list[str | None]:
        """The texts of commits under `TOLD`, as far back as the log reaches."""

    @abstractmethod
    def _is_cut(self, table: Handle) -> bool:
        """Whether the log does not reach back to the table's begin."""

    @abstractmethod
    def _live(self, table: Handle) -> dict[str, dict[str, Any]]:
        """The files of the table, relative to its root, with values of their partition that are not in them."""

    @abstractmethod
    def _in_words(self, error: Exception) -> Exception | None:
        """A library's error as a sink says it; None for one that is not the library's."""

    def close(self) -> None:
        """See `Releases.close`."""

    # --- the table

    def _refreshed(self) -> Handle | None:
        """The table as it is now; None if there is none."""
        with self._errors():
            self._releasing = self._open() if self._releasing is None else self._update(self._releasing)
            return self._releasing

    def misfits_of(self, names: Container[str] | None) -> list[str]:
        """Why the table as it is now would refuse rows with these fields alone, or, for None, rows of any fields; [] where there is none.

        Raises as a release: TargetRefused, TargetUnavailable, TargetDenied.
        """
        table = self._refreshed()
        if table is None:
            return []
        with self._errors():
            self._check(table)
            columns = [] if names is None else needed(self._schema(table))
        return [
            f"{self._place}: {name}: {TAKES_NO_NULL}, and no document has it"
            for name in columns
            if names is not None and name.split(".")[0] not in names and name not in names
        ]

    def agree(self, wanted: pa.Schema) -> pa.Schema:
        """The table's columns, with those of `wanted` that it did not have; the types of the others stay as they are.

        Of names that differ in their case alone it has one.
        """
        with self._errors():
            for _ in range(self._tries_max):
                table = self._open()
                if table is None:
                    self._create(pa.schema(_new(pa.schema([]), wanted)))
                    continue
                self._check(table)
                known = self._schema(table)
                new = _new(known, wanted)
                if not new:
                    return known
                try:
                    self._add_columns(table, pa.schema(new))
                except CommitConflict:
                    # Another task was faster: its decision counts.
                    continue
        raise TargetUnavailable(
            f"{self._place}: {self._tries_max} other changes of the table at once; it is tried again"
        )

    # --- Releases

    def marker(self, identity: str) -> Epoch | None:
        """See `Releases.marker`."""
        table = self._refreshed()
        if table is not None:
            self._check(table)
        found = None if table is None else self._marker(table, identity)
        if table is None or found is None:
            return self._manifests.marker(identity)
        self._settle(table)
        return Epoch(found)

    def _settle(self, table: Handle) -> None:
        with self._errors():
            self._destination.settle(self._log_files(table))

    def publish(self, manifest: Manifest) -> None:
        """See `Releases.publish`."""
        table = self._refreshed()
        if table is None and manifest.files:
            # Files are staged behind the making of their table.
            raise TargetRefused(
                f"{self._place}: commit {manifest.epoch}: others dropped the table, and with it what was released into it;"
                " bring it back, or start the processor without state"
            )
        if table is None:
            self._manifests.publish(manifest)
            return
        refits: set[str] = set()
        footers: dict[str, pq.FileMetaData] = {}
        for _ in range(self._tries_max):
            if table is None:
                raise TargetUnavailable(f"{self._place}: others drop the table meanwhile; it is tried again")
            at = self._marker(table, manifest.identity)
            if at is None and manifest.predecessor is not None:
                # Read after the table: a release from before the table existed has written its manifest, or conflicts with this commit.
                at = self._manifests.marker(manifest.identity)
            if at is not None and at >= manifest.epoch:
                break
            if at not in (None, manifest.predecessor):
                raise TargetRefused(
                    f"{self._place}: expected marker {manifest.predecessor} of {manifest.identity}, found {at}: another history wrote here"
                )
            with self._errors():
                try:
                    for name in {file.name for file in manifest.files} - footers.keys():
                        footers[name] = self._footer(name)
                    fitting = self._fitting(table, manifest, footers)
                    refits |= {f.name for f in fitting.files} - footers.keys()
                    self._commit(table, self._shown(fitting, refits))
                except CommitConflict:
                    _log.info("sink.table_changed", place=self._place, epoch=manifest.epoch)
                table = self._releasing = self._update(table)
        else:
            raise TargetUnavailable(f"{self._place}: {self._tries_max} other commits at once; it is tried again")
        self._settle(table)
        if refits:
            self.clear(sorted({*refits, *map(_origin, refits)}))
        self._since_compaction += bool(manifest.files)
        if manifest.index == 0 and max(self._since_compaction, self._versions(table)) >= self._compact_files:
            self.compact()

    def _fitting(self, table: Handle, manifest: Manifest, footers: Mapping[str, pq.FileMetaData]) -> Manifest:
        """The manifest with files that fit the columns as they are now. CommitConflict where columns were missing: they are there again."""
        self._check(table)
        known = self._schema(table)
        columns = [name for name in needed(known) if name not in self._partition_by]
        schemas = {name: footer.schema.to_arrow_schema() for name, footer in footers.items()}
        if missing := [field for schema in schemas.values() for field in lacking(known, schema)]:
            self.changed += 1
            self.agree(pa.schema({field.name: field for field in missing}.values()))
            raise CommitConflict("columns were missing")
        for file in manifest.files:
            if name := self._lacks(file.name, footers[file.name], columns):
                self.changed += 1  # rows that come are looked at by the column as it is now
                raise self._needs(file.name, name)
        return structs.replace(
            manifest,
            files=tuple(f if fits(known, schemas[f.name]) else self._refitted(f, known) for f in manifest.files),
        )

    def _there(self, name: str) -> str:
        """Where a staged file lies: under its visible name if a try before this one has shown it."""
        return name if self._destination.size(name) is not None else visible_name(name)

    def _footer(self, name: str) -> pq.FileMetaData:
        with self._destination.open(self._there(name)) as data:
            return pq.read_metadata(data)

    def _needs(self, file: str, column: str) -> FileRefused:
        reason = f"{file} has no value of {column} in some row, and the table takes none without"
        return FileRefused(f"{self._place}: {reason}; let the column take null, or change the pipeline", file)

    def _lacks(self, name: str, footer: pq.FileMetaData, columns: Sequence[str]) -> str:
        """The first of these columns that a staged file has not in each row; "" if none."""
        doubtful = [column for column in columns if may_lack(footer, column)]
        there = {footer.schema.column(at).path.split(".")[0] for at in range(footer.num_columns)}
        if not doubtful or {*doubtful} - there:
            return next((column for column in doubtful if column not in there), "")
        with self._destination.open(self._there(name)) as data:
            rows = pq.read_table(data, columns=doubtful)
        return next((column for column in doubtful if rows.column(column).null_count), "")

    def _shown(self, fitting: Manifest, refits: Container[str]) -> Manifest:
        """Files get their visible names; those that were written anew stay staged, too, until nothing else of their rows can be seen."""
        for file in fitting.files:
            if file.name in refits:
                self._destination.create(visible_name(file.name), self._destination.read(file.name) or b"")
        show(self._destination, structs.replace(fitting, files=tuple(f for f in fitting.files if f.name not in refits)))
        return seen(fitting)

    def clear(self, staged: Sequence[str]) -> None:
        """See `Releases.clear`. A staged file that was written anew tells that several files of its rows may be seen."""
        refits = [name for name in staged if _origin(name) != name]
        if refits:
            names = {visible_name(name) for each in refits for name in (each, _origin(each))}
            table = self.read()
            if table is not None:
                named = {file.name for manifest in table.manifests for file in manifest.files} | table.live.keys()
                self._destination.delete(name for name in sorted(names) if not {name, unquote(name)} & named)
        self._destination.delete(staged)

    def _refitted(self, file: StagedFile, known: pa.Schema) -> StagedFile:
        """A file in the types that the table has now. Its name tells its bytes: other tasks write the same, or another file."""
        self.changed += 1
        rows = refitted(table_from(self._destination.read(self._there(file.name)) or b""), known)
        if name := next(
            (field.name for field in rows.schema if not field.nullable and rows.column(field.name).null_count), ""
        ):
            raise self._needs(file.name, name)
        if len(lacking(known, rows.schema)):
            self.agree(rows.schema)
            raise CommitConflict("there was no column for values that others take none")
        data = parquet_bytes(numbered(rows, known), {})
        digest = sha256(data)
        stem, suffix, rest = file.name.rpartition(".parquet")
        name = f"{stem}-{digest[:_DIGEST_DIGITS]}{suffix}{rest}"
        self._destination.create(name, data)
        _log.warning("sink.file_refitted", place=self._place, file=file.name, rows=file.rows)
        return structs.replace(file, name=name, size_bytes=len(data), digest=digest)

    def settle(self) -> None:
        """See `Releases.settle`: the table's log says all; there is no summary."""

    def listed(self, identity: str, marker: Epoch) -> set[str] | None:
        """See `Releases.listed`: released files lie elsewhere; None while manifests of an older layout are still to be read."""
        del identity, marker
        return None if self._manifests.older() else set()

    def convert(self) -> None:
        """See `Releases.convert`: each identity's rows become one commit of the table, with its marker; then the older files go."""
        older: dict[str, list[tuple[str, Manifest]]] = {}
        for name, manifest in self._manifests.older():
            older.setdefault(manifest.identity, []).append((name, manifest))
        for identity, found in older.items():
            last = max((manifest for _, manifest in found), key=lambda manifest: manifest.epoch)
            marker = self._manifests.marker(identity) or Epoch(last.epoch)
            files = [file for _, manifest in found for file in manifest.files]
            table = self._refreshed()
            if table is None or self._marker(table, identity) is None:
                made = tuple(self._rewritten(file) for file in files)
                rows = sum(file.rows for file in made)
                self.publish(structs.replace(last, epoch=marker, predecessor=None, rows=rows, files=made))
            self._destination.delete([file.name for file in files])
            self._manifests.forget(self._manifests.names(identity))

    def _rewritten(self, file: StagedFile) -> StagedFile:
        """A file of an earlier version as the table takes it, under a visible name."""
        data = self._destination.read(file.name)
        if data is None or sha256(data) != file.digest:
            raise TargetRefused(
                f"{self._destination.uri(file.name)}: expected this file with digest {file.digest} to be converted"
            )
        table = plain(table_from(data))
        others = [pa.field(name, pa.string()) for name in self._partition_by if name not in table.column_names]
        known = self.agree(pa.schema([*table.schema, *others]))
        try:
            columns = {
                name: exact(table.column(name), known.field(name).type)
                for name in table.column_names
                if name not in self._partition_by
            }
        except pa.ArrowInvalid as error:
            raise TargetRefused(
                f"{self._destination.uri(file.name)}: its columns are not those of the other files, which one table must be: {error};"
                " move the folder away, or name another in $emit"
            ) from error
        changed, name = parquet_bytes(numbered(pa.table(columns), known), {}), visible_name(file.name)
        self._destination.create(name, changed)
        return structs.replace(file, name=name, size_bytes=len(changed), digest=sha256(changed))

    # --- for readers

    def read(self) -> "ReadTable | None":
        """The table as it is now; None if there is none."""
        table = self._refreshed()
        if table is None:
            return None
        with self._errors():
            words = [text for text in self._words(table) if text is not None]
            found = [decode_told(f"{self._place}/{self.log}", text) for text in words if text != COMPACTED]
            ordered = sorted(found, key=lambda manifest: (manifest.identity, manifest.epoch))
            is_cut = self._is_cut(table)
            return ReadTable(self._schema(table), ordered, self._live(table), is_cut or COMPACTED in words, is_cut)

    # --- upkeep

    def compact(self) -> None:
        """Make small files into large ones, and delete the small ones: those that the table's log says are removed, and no others."""
        self._since_compaction = 0
        table = self._refreshed()
        if table is None:
            return
        try:
            with self._errors():
                removed, deleted = self._compact(table)
        except Exception as error:  # noqa: BLE001 - no output hangs on it, and no library lists what it may raise
            known = isinstance(error, TargetRefused | TargetUnavailable | CommitConflict)
            _log.warning("sink.not_compacted", place=self._place, reason=str(error) or repr(error), exc_info=not known)
            return  # it is tried again after as many releases
        finally:
            self._releasing = None
        _log.info("sink.compacted", place=self._place, files=removed, deleted=deleted)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """The library's errors in the words of a sink."""
        try:
            yield
        except Exception as error:
            said = self._in_words(error)
            if said is None:
                raise
            if isinstance(said, TargetUnavailable):
                self._releasing = None
            raise said from error

    def _said(self, error: Exception, refused: tuple[type[Exception], ...], away: tuple[type[Exception], ...]) -> Any:
        """For `_in_words`: errors that time does not mend, and those that it does."""
        if isinstance(error, PermissionError):
            return TargetRefused(f"{self._place}: {error}; the sink needs the right to read and write there")
        if isinstance(error, refused):
            return TargetRefused(f"{self._place}: {error}")
        if isinstance(error, (*away, OSError)):
            return TargetUnavailable(f"{self._place}: {error}; it is tried again")
        return None

    @property
    def _place(self) -> str:
        return self._destination.uri("").rstrip("/")


def columns_of(schema: pa.Schema) -> pa.Schema:
    """The columns that have values, in the types that formats have."""
    return plain(schema.empty_table()).schema


def lacking(known: pa.Schema, staged: pa.Schema) -> pa.Schema:
    """Columns of a file that its table has not."""
    return pa.schema([field for field in columns_of(staged) if field.name not in known.names])


def fits(known: pa.Schema, staged: pa.Schema) -> bool:
    """Whether the table's columns take those of a file as they are: else readers see other values, or fail.

    Where the file has numbers, they are those of the columns: others may have made one anew.
    """
    target, numbers = columns_of(known), numbers_of(known)
    if numbers and any(numbers.get(path) != number for path, number in numbers_of(staged).items()):
        return False
    return all(_takes(target.field(field.name), field) for field in columns_of(staged))


def _takes(target: pa.Field, found: pa.Field) -> bool:
    kind = found.type
    if found.nullable and not target.nullable:
        return False
    if pa.types.is_struct(target.type) and pa.types.is_struct(kind):
        fields = {field.name: field for field in target.type}
        return all(field.name in fields and _takes(fields[field.name], field) for field in kind)
    if pa.types.is_list(target.type) and pa.types.is_list(kind):
        return _takes(target.type.value_field, kind.value_field)
    return bool(target.type == kind)


def refitted(rows: pa.Table, known: pa.Schema) -> pa.Table:
    """The rows in the table's types; what no column takes lies with the rescued values."""
    whole = rows.combine_chunks()
    (batch,) = whole.drop_columns([RESCUED] if RESCUED in whole.column_names else []).to_batches() or [None]
    if batch is None:
        return rows
    target = pa.schema([*(f for f in columns_of(known) if f.name != RESCUED), pa.field(RESCUED, pa.string())])
    made = TableColumns(lambda _: target, (), frozenset()).fit(batch).rows
    if RESCUED not in rows.column_names:
        return made
    before = whole.column(RESCUED).to_pylist()
    now = made.column(RESCUED).to_pylist() if RESCUED in made.column_names else [None] * len(before)
    texts = pa.array([_joined(*pair) for pair in zip(before, now, strict=True)], pa.string())
    return made.drop_columns([RESCUED] if RESCUED in made.column_names else []).append_column(RESCUED, texts)


def _joined(before: str | None, now: str | None) -> str | None:
    """Two objects in JSON, neither of them empty, as one: no name is in both."""
    return f"{before[:-1]},{now[1:]}" if before and now else before or now


def may_lack(file: pq.FileMetaData, name: str) -> bool:
    """Whether a file may have a row without a value of a column. Of a column of objects its footer tells of their fields alone."""
    paths = [file.schema.column(at).path for at in range(file.num_columns)]
    if name not in paths:
        return True
    at = paths.index(name)
    found = [file.row_group(group).column(at).statistics for group in range(file.num_row_groups)]
    return any(each is None or each.null_count for each in found)


def table_releases(destination: Destination, encoding: Encoding, **bounds: int) -> TableReleases[Any] | None:
    """Releases into the table at a destination, with the bounds of `TableReleases`; None for a format that is no table."""
    if encoding.format == "parquet":
        from tidemark.services.sink.connectors.delta import DeltaReleases  # noqa: PLC0415

        return DeltaReleases(destination, encoding.partition_by, **bounds)
    if encoding.format == "iceberg":
        from tidemark.services.sink.connectors.iceberg import IcebergReleases  # noqa: PLC0415

        assert encoding.table is not None
        return IcebergReleases(destination, encoding.partition_by, table=encoding.table, **bounds)
    return None
