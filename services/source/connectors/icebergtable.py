"""Apache Iceberg tables (`tableversions`), read by PyIceberg: a version is a snapshot, 0 the table before its first one.

The library says which files a snapshot has, and which of them have deletes of positions for which. Deletes are read here: the library's own
reader takes files of them whole, as numbers of Python. So are rows (`tablerows`): there it makes null arrays and maps empty ones.
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.transforms import IdentityTransform, VoidTransform

from tidemark.services.source.connectors.icebergdeletes import ValueDeletes
from tidemark.services.source.connectors.puffinvectors import vectors_of
from tidemark.services.source.connectors.tablerows import ORC, PARQUET, Columns, by_id, id_of, opened, union
from tidemark.services.source.connectors.tablerows import DataFile as RowsFile
from tidemark.services.source.connectors.tableversions import Batches, TableFile, VersionRefused, away, gone, taken_away
from tidemark.shared.adapters.deletionvectors import Places
from tidemark.shared.adapters.filesystems import unreachable
from tidemark.shared.adapters.icebergfiles import NoCatalogError, packages_for
from tidemark.shared.adapters.tablelibraries import open_catalog
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.source import SourceMissing

_DAMAGED = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, RecursionError, TypeError, ValueError,
    struct.error, zlib.error,
)  # fmt: skip
"""What the library raises where it parses bytes that are no metadata."""
_REFUSALS = (
    BadRequestError, ForbiddenError, UnauthorizedError, ValidationError, pydantic.ValidationError, NotImplementedError, *_DAMAGED,
    sqlalchemy.exc.ArgumentError,
)  # fmt: skip


class IcebergVersions:
    """The table of a name. `check`: raises where a file that it names is none that documents may reach."""

    def __init__(self, name: tuple[str, ...], catalog: Mapping[str, object], check: Callable[[str], None]) -> None:
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
                self._catalog = open_catalog(self._settings, self._check)
            return self._catalog.load_table(self._name)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            with packages_for(self.place):
                yield
        except NoCatalogError as error:
            raise SourceMissing(
                f"{self.place}: there is no catalog in the database that the connection names; correct its catalog.uri, or make it"
            ) from error
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise SourceMissing(
                f"{self.place}: the catalog has no table of this name; correct the path in $source, which names it as namespace/table"
            ) from error
        except _REFUSALS as error:
            raise VersionRefused(f"{self.place}: {str(error) or repr(error)}") from error
        except unreachable(RESTError, sqlalchemy.exc.SQLAlchemyError) as error:
            raise away(self.place, error) from error

    def files(self, version: int) -> Sequence[TableFile]:
        """See `TableVersions.files`."""
        known = self._known  # another thread may list another version meanwhile
        if known is None or known[0] != version:
            self._known = known = version, self._listed(version)
        return known[1]

    def _listed(self, version: int) -> Sequence[TableFile]:
        if not version:
            return ()
        table = self._open()
        snapshot = self._snapshot(table, version)
        with self._reading(version):
            entries = list(_entries(table, snapshot))
            return self._files(table, snapshot, entries)

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

    def _files(self, table: Table, snapshot: Snapshot, entries: Sequence[ManifestEntry]) -> Sequence[TableFile]:
        """Those of rows, in the order in which they came; each has its deletes, which are read when it is. ValueError."""
        kinds: dict[DataFileContent, list[ManifestEntry]] = {kind: [] for kind in DataFileContent}
        for entry in entries:
            _check_format(entry.data_file)
            kinds[entry.data_file.content].append(entry)
        positions = DeleteFileIndex()
        for entry in kinds[DataFileContent.POSITION_DELETES]:
            positions.add_delete_file(entry, partition_key=entry.data_file.partition)
        rows = _Rows(table, snapshot, kinds[DataFileContent.EQUALITY_DELETES])
        files = []
        for entry in sorted(kinds[DataFileContent.DATA], key=lambda each: (_sequence(each), each.data_file.file_path)):
            file = entry.data_file
            deletes = positions.for_data_file(_sequence(entry), file, partition_key=file.partition)
            name = file.file_path.removeprefix(table.location()).lstrip("/")
            told = file, deletes, _sequence(entry)
            files.append(TableFile(name, snapshot.timestamp_ms, partial(rows.count, *told), partial(rows.of, *told)))
        return files

    # --- what follows a version

    def next(self, version: int) -> int | None:
        """See `TableVersions.next`."""
        behind = self._since(self._open(), version)
        if not behind:
            return None
        operation = None if behind[0].summary is None else behind[0].summary.operation
        if operation not in (Operation.APPEND, Operation.REPLACE) or _deletes(behind[0]):
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
            entries = [e for e in _entries(table, snapshot) if e.snapshot_id == version]
            return self._files(table, snapshot, entries)

    def close(self) -> None:
        """Let go of the catalog."""
        if self._catalog is not None:
            self._catalog.close()


def _entries(table: Table, snapshot: Snapshot) -> Iterator[ManifestEntry]:
    """A snapshot's files of rows, and those of deletes."""
    for manifest in snapshot.manifests(table.io):
        yield from manifest.fetch_manifest_entry(table.io)


def _deletes(snapshot: Snapshot) -> bool:
    """Whether one that adds rows says that it deletes some, too."""
    told = snapshot.summary
    return told is not None and told.operation == Operation.APPEND and int(told["added-delete-files"] or 0) > 0


def _sequence(entry: ManifestEntry) -> int:
    """By which deletes know which files are older; 0 in tables of version 1."""
    return entry.sequence_number or 0


def _check_format(file: DataFile) -> None:
    known = {FileFormat.PARQUET, FileFormat.ORC}
    if file.content == DataFileContent.POSITION_DELETES:
        known |= {FileFormat.PUFFIN}
    if file.file_format not in known:
        raise ValueError(f"its file {file.file_path} is in {file.file_format.name}, and Parquet and ORC are read here")


class _Rows:
    """Reads files of a snapshot."""

    def __init__(self, table: Table, snapshot: Snapshot, deletes: Sequence[ManifestEntry]) -> None:
        self._table = table
        self._columns = table.scan(snapshot_id=snapshot.snapshot_id).projection()
        before = sorted(table.schemas().values(), key=lambda schema: -schema.schema_id)
        void = VoidTransform()
        everywhere = [n for n, spec in table.specs().items() if all(part.transform == void for part in spec.fields)]
        self._values = ValueDeletes(deletes, everywhere, [self._columns, *before], self._plain)

    def of(self, file: DataFile, positions: AbstractSet[DataFile], sequence: int) -> Batches:
        """Rows of a file that are there."""
        return self._left(file, positions, sequence).rows()

    def count(self, file: DataFile, positions: AbstractSet[DataFile], sequence: int) -> int:
        """How many."""
        return self._left(file, positions, sequence).count()

    def _left(self, file: DataFile, positions: AbstractSet[DataFile], sequence: int) -> RowsFile:
        scopes = self._values.of(file, sequence)
        sides: list[Callable[[int], Iterator[Places]]] = []
        if positions:
            sides.append(lambda rows: self._by_position(file, positions, rows))
        if scopes:
            sides.append(lambda _: self._values.deleted(scopes, sequence, partial(self._plain, file)))
        deleted = (lambda rows: reduce(union, [side(rows) for side in sides])) if sides else None
        return self._file(file, self._columns, deleted)

    def _by_position(self, file: DataFile, positions: AbstractSet[DataFile], rows: int) -> Iterator[Places]:
        """What vectors, and files of positions, name in a data file of so many rows."""
        named: Places = np.zeros(0, np.int64)
        sides = []
        for delete in positions:
            if delete.file_format == FileFormat.PUFFIN:
                with self._table.io.new_input(delete.file_path).open() as puffin:
                    sides += vectors_of(puffin, file.file_path, rows)
            else:
                named = reduce(np.union1d, self._positions(delete, file.file_path, rows), named)
        return reduce(union, sides, iter([named]))

    def _positions(self, delete: DataFile, path: str, rows: int) -> Iterator[Places]:
        """Those that a file of deletes names in a data file."""
        open_ = self._table.io.new_input(delete.file_path).open
        with opened(open_, PARQUET if delete.file_format == FileFormat.PARQUET else ORC) as fragment:
            for batch in fragment.to_batches(columns=["pos"], filter=pc.field("file_path") == path):
                places = batch.column("pos").drop_null().to_numpy()
                yield places[(places >= 0) & (places < rows)]

    def _plain(self, file: DataFile, columns: Schema) -> Batches:
        return self._file(file, columns, None).rows()

    def _file(self, file: DataFile, columns: Schema, deleted: Callable[[int], Iterator[Places]] | None) -> RowsFile:
        """As the specification finds columns: by ids, else by the table's mapping of names; else by partition, else by default."""
        defaults = {
            str(number).encode(): inner.initial_default
            for number in columns.field_ids
            if (inner := columns.find_field(number)).initial_default is not None
        }
        spec, partition = self._table.specs()[file.spec_id], file.partition
        divided = {
            str(part.source_id).encode(): partition[at]
            for at, part in enumerate(spec.fields)
            if isinstance(part.transform, IdentityTransform)
        }

        def absent(column: pa.Field) -> pa.Scalar | None:
            number = id_of(column) or b""
            value = divided.get(number)
            value = defaults.get(number) if value is None else value
            return None if value is None else pa.scalar(value, column.type)

        shape = Columns(_arrow(columns), lambda column, among: by_id(id_of(column), among), absent)
        return RowsFile(
            lambda: self._table.io.new_input(file.file_path).open(),
            PARQUET if file.file_format == FileFormat.PARQUET else ORC,
            shape,
            deleted=deleted,
            known=self._known,
            told=int(file.record_count),
        )

    def _known(self, columns: pa.Schema) -> pa.Schema:
        """A file's columns with ids: its own, else by the table's mapping of names. ValueError where there is neither."""
        if any(id_of(column) is not None for column in columns):
            return columns
        return schema_to_pyarrow(
            pyarrow_to_schema(columns, self._table.name_mapping(), downcast_ns_timestamp_to_us=True)
        )


def _arrow(columns: Schema) -> pa.Schema:
    """Arrow's types, with 32 bits for bounds."""
    return pa.schema([_small(field) for field in schema_to_pyarrow(columns)])


def _small(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return field.with_type(pa.list_(_small(kind.value_field)))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(_small(kind.key_field), _small(kind.item_field)))
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_small(inner) for inner in kind]))
    return field.with_type({pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind))
