"""Apache Iceberg tables (`tableversions`), read by PyIceberg: a version is a snapshot, 0 the table before its first one.

The library maps columns by their ids and applies deletes of positions. It refuses deletes by values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pydantic
import sqlalchemy.exc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    UnauthorizedError,
    ValidationError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files
from pyiceberg.manifest import DataFileContent, ManifestEntry
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot

from tidemark.services.source.connectors.tableversions import Batches, TableFile, VersionRefused, gone, taken_away
from tidemark.shared.adapters.filesystems import unreachable
from tidemark.shared.adapters.tablelibraries import open_catalog
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.source import SourceMissing

_REFUSALS = (
    BadRequestError, ForbiddenError, UnauthorizedError, ValidationError, pydantic.ValidationError, ValueError, NotImplementedError,
    sqlalchemy.exc.ArgumentError,
)  # fmt: skip


class IcebergVersions:
    """The table of a name. `check`: raises where its folder is none that documents may reach."""

    def __init__(self, name: tuple[str, ...], catalog: Mapping[str, Any], check: Callable[[str], None]) -> None:
        self.place = ".".join(name)
        self._name = name
        self._settings = catalog
        self._check = check
        self._catalog: Catalog | None = None
        self._known: tuple[int, Sequence[TableFile]] | None = None
        """The version that was listed last."""

    def identity(self) -> str:
        """The id in its metadata."""
        return str(self._open().metadata.table_uuid)

    def newest(self) -> int:
        """See `TableVersions.newest`."""
        now = self._open().current_snapshot()
        return 0 if now is None else now.snapshot_id

    def _open(self) -> Table:
        with self._in_words():
            if self._catalog is None:
                self._catalog = open_catalog(self._settings)
            table = self._catalog.load_table(self._name)
        self._check(table.location())
        return table

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise SourceMissing(
                f"{self.place}: the catalog has no table of this name; correct the path in $source, which names it as namespace/table"
            ) from error
        except _REFUSALS as error:
            raise VersionRefused(f"{self.place}: {error}") from error
        except unreachable(RESTError, sqlalchemy.exc.SQLAlchemyError) as error:
            raise LogUnavailable(f"{self.place}: {error}; it is tried again") from error

    def files(self, version: int) -> Sequence[TableFile]:
        """See `TableVersions.files`."""
        if self._known is None or self._known[0] != version:
            self._known = version, self._listed(version)
        return self._known[1]

    def _listed(self, version: int) -> Sequence[TableFile]:
        if not version:
            return ()
        table = self._open()
        snapshot = self._snapshot(table, version)
        with self._reading(version):
            tasks = list(table.scan(snapshot_id=version).plan_files())
            came = {entry.data_file.file_path: entry.sequence_number or 0 for entry in _entries(table, snapshot)}
        tasks.sort(key=lambda task: (came.get(task.file.file_path, 0), task.file.file_path))
        return self._files(table, snapshot, tasks)

    def _snapshot(self, table: Table, version: int) -> Snapshot:
        found = table.snapshot_by_id(version)
        if found is None:
            raise gone(self.place, version, "the table has no such snapshot any more")
        return found

    @contextmanager
    def _reading(self, version: int) -> Iterator[None]:
        """The library's errors where a snapshot is listed."""
        try:
            with self._in_words():
                yield
        except VersionRefused as error:
            raise VersionRefused(
                f"{self.place}: version {version} cannot be read: {error.__cause__}. Let its writers rewrite it without what is not read"
                " here (rewrite_data_files takes deletes away), or read a copy"
            ) from error
        except LogUnavailable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise gone(
                    self.place, version, f"a file of its metadata is not there any more: {error.__cause__}"
                ) from error
            raise

    def _files(self, table: Table, snapshot: Snapshot, tasks: Sequence[FileScanTask]) -> Sequence[TableFile]:
        """Files, each with its deletes, which are read when it is."""
        columns = table.scan(snapshot_id=snapshot.snapshot_id).projection()
        scan = ArrowScan(table.metadata, table.io, columns, AlwaysTrue())
        return [
            TableFile(
                task.file.file_path.removeprefix(table.location()).lstrip("/"),
                snapshot.timestamp_ms,
                partial(_count, table, scan, task),
                partial(_rows, table, scan, task),
            )
            for task in tasks
        ]

    # --- what follows a version

    def next(self, version: int) -> int | None:
        """See `TableVersions.next`."""
        behind = self._since(self._open(), version)
        if not behind:
            return None
        operation = None if behind[0].summary is None else behind[0].summary.operation
        if operation not in (Operation.APPEND, Operation.REPLACE):
            raise taken_away(self.place, behind[0].snapshot_id, "" if operation is None else operation.value)
        return int(behind[0].snapshot_id)

    def _since(self, table: Table, version: int) -> Sequence[Snapshot]:
        """The snapshots from behind a version up to the present one."""
        found: list[Snapshot] = []
        parent = table.metadata.current_snapshot_id
        while parent not in (version, None):
            snapshot = table.snapshot_by_id(parent)
            if snapshot is None:
                raise gone(self.place, version, f"the snapshot {parent} behind it is not there any more")
            found.append(snapshot)
            parent = snapshot.parent_snapshot_id
        if parent is None and version:
            raise gone(self.place, version, "the present one does not come from it")
        return found[::-1]

    def added(self, version: int) -> Sequence[TableFile]:
        """See `TableVersions.added`."""
        table = self._open()
        snapshot = self._snapshot(table, version)
        if snapshot.summary is None or snapshot.summary.operation != Operation.APPEND:
            return ()
        with self._reading(version):
            tasks = [FileScanTask(e.data_file) for e in _entries(table, snapshot) if e.snapshot_id == version]
        tasks.sort(key=lambda task: task.file.file_path)
        return self._files(table, snapshot, tasks)

    def close(self) -> None:
        """Let go of the catalog."""
        if self._catalog is not None:
            self._catalog.close()


def _entries(table: Table, snapshot: Snapshot) -> Iterator[ManifestEntry]:
    """A snapshot's files of rows."""
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.data_file.content == DataFileContent.DATA:
                yield entry


def _rows(table: Table, scan: ArrowScan, task: FileScanTask) -> Batches:
    """As `ArrowScan.to_record_batches` gives them, which has all of a file's rows in memory first."""
    deletes = _read_all_delete_files(table.io, [task])
    batches: Batches = scan._record_batches_from_scan_tasks_and_deletes([task], deletes)  # noqa: SLF001
    return batches


def _count(table: Table, scan: ArrowScan, task: FileScanTask) -> int:
    if not task.delete_files:
        return int(task.file.record_count)
    return sum(batch.num_rows for batch in _rows(table, scan, task))
