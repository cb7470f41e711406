"""Apache Iceberg tables (`tablereleases`): the marker of an identity is a property of the table, set by the commit that adds its files.

A table has the name that its folder has below the connection's (`a/b/counts` is the table `counts` of the namespace `a.b`), and the
connection's `catalog` says where tables are known. A catalog lets one commit of two that began from one snapshot through, which is all that
exactly once needs; the library's own repeating of commits is turned off, for it would not look at the marker again.

Files tell the numbers of their fields: some readers know fields by nothing else. Files of earlier versions tell names alone, and the
table's mapping which field a name is. It keeps the names that fields had before others renamed or dropped them: else values of these files
would be gone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pydantic
import sqlalchemy.exc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
    ValidationError,
)
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.name_mapping import MappedField, NameMapping, parse_mapping_from_json
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertCurrentSchemaId
from pyiceberg.table.update.snapshot import ExpireSnapshots, _SnapshotProducer
from pyiceberg.transforms import IdentityTransform, VoidTransform

from tidemark.services.sink.connectors.destination import Destination
from tidemark.services.sink.connectors.filerows import CatalogTable, joinable
from tidemark.services.sink.connectors.formats import parquet_bytes, table_from
from tidemark.services.sink.connectors.manifests import Manifest
from tidemark.services.sink.connectors.tablecolumns import FORBIDDEN, numbered, numbers_of, paths_of, plain
from tidemark.services.sink.connectors.tablereleases import COMPACTED, TOLD, CommitConflict, TableReleases, app_of, told
from tidemark.shared.adapters.icebergfiles import CODE, package_missing
from tidemark.shared.adapters.tablelibraries import iceberg_name, open_catalog
from tidemark.shared.ports.sink import TargetRefused, TargetUnavailable

METADATA: Final = "metadata"
LARGE: Final = "-large.parquet"
"""How names of files end that were made of smaller ones."""
_CUT: Final = f"{TOLD}.state"
"""A property of tables whose earlier versions are gone."""
_PROPERTIES: Final = {
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "100",
}
"""Properties of a table that the sink makes. With them the size of a commit does not grow with the number of earlier commits."""


class IcebergReleases(TableReleases[Table]):
    """`Releases` into the Iceberg table of a destination. Functions block."""

    log = METADATA
    forbidden = FORBIDDEN | {"."}

    def __init__(
        self,
        destination: Destination,
        partition_by: tuple[str, ...] = (),
        *,
        table: CatalogTable,
        **bounds: int,
    ) -> None:
        """`bounds`: those of tables."""
        super().__init__(destination, partition_by, **bounds)
        self._name = iceberg_name(table.name)
        self._known = table
        self._catalog: Catalog | None = None

    # --- the table

    def _tables(self) -> Catalog:
        if self._catalog is None:
            self._catalog = open_catalog(self._known.catalog, self._known.check)
        return self._catalog

    def _open(self) -> Table | None:
        try:
            table = self._tables().load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        if _path(table.location()) != _path(self._location()):
            raise TargetRefused(
                f"{self._place}: the catalog has the table {'.'.join(self._name)} in {table.location()};"
                " expected it in the folder that $emit names"
            )
        if code := sorted(CODE & table.properties.keys()):
            raise TargetRefused(
                f"{self._place}: properties of the table {'.'.join(self._name)} name code to load: {', '.join(code)}; take them away"
            )
        return table

    def _check(self, table: Table) -> None:
        spec, schema = table.spec(), table.schema()
        fields = [field for field in spec.fields if not isinstance(field.transform, VoidTransform)]
        names = {field.source_id: schema.find_column_name(field.source_id) for field in fields}
        found = [str(names[field.source_id]) if isinstance(field.transform, IdentityTransform)
                 else f"{field.transform} of {names[field.source_id]}" for field in fields]  # fmt: skip
        if set(found) - {*self._partition_by}:
            raise TargetRefused(
                f"{self._place}: the table is divided by {', '.join(found)}, and partitionBy of $emit says"
                f" {list(self._partition_by) or 'none'}: a file would have rows of several parts. Let partitionBy name each plain column of"
                " these, and take other transforms from the table's partition spec"
            )

    def _location(self) -> str:
        uri, _ = self._destination.table()
        return uri if "://" in uri else f"file://{uri}"

    def _update(self, table: Table) -> Table | None:
        del table  # the library refreshes no handle of a table that others dropped and made anew
        return self._open()

    def _create(self, schema: pa.Schema) -> None:
        catalog = self._tables()
        try:
            catalog.create_namespace_if_not_exists(self._name[:-1])
            with (
                catalog.create_table_transaction(
                    self._name, schema, location=self._location(), properties=_PROPERTIES
                ) as made,
                made.update_spec() as spec,
            ):
                for name in self._partition_by:
                    spec.add_identity(name)
        except (TableAlreadyExistsError, CommitFailedException):
            # Another task was faster: its decision counts.
            return

    def _schema(self, table: Table) -> pa.Schema:
        columns = table.schema().as_arrow()
        return numbered(plain(columns.empty_table()), columns).schema.remove_metadata()

    def _add_columns(self, table: Table, schema: pa.Schema) -> None:
        try:
            with table.update_schema() as update:
                update.union_by_name(schema)
        except CommitFailedException as error:
            raise CommitConflict(str(error)) from error

    def _marker(self, table: Table, identity: str) -> int | None:
        found = table.properties.get(app_of(identity))
        return None if found is None else int(found)

    # --- commits

    def _commit(self, table: Table, manifest: Manifest) -> None:
        added = [self._file(table, file.name) for file in manifest.files]
        self._change(table, told(manifest), added, properties={app_of(manifest.identity): str(manifest.epoch)})

    def _file(self, table: Table, name: str) -> DataFile:
        path = f"{self._location()}/{name}"
        try:
            return parquet_file_to_data_file(table.io, table.metadata, path)
        except OverflowError:
            # The library takes bounds of dates through Python's, which end with the year 9999: the file has counts alone.
            counts = {**table.metadata.properties, TableProperties.DEFAULT_WRITE_METRICS_MODE: "counts"}
            counts |= {
                f"{TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX}.{each}": "full" for each in self._partition_by
            }
            return parquet_file_to_data_file(table.io, table.metadata.model_copy(update={"properties": counts}), path)

    def _change(
        self,
        table: Table,
        words: str,
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """One commit. CommitConflict if the table is not as the handle has it."""
        _tried_once(table)
        mapping = NameMapping(_mapping(table)).model_dump_json()
        try:
            with table.transaction() as change:
                # Files were compared with these columns; without this only two commits of data would conflict.
                change._apply((), (AssertCurrentSchemaId(current_schema_id=table.schema().schema_id),))  # noqa: SLF001
                change.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping, **(properties or {})})
                snapshot = change.update_snapshot(snapshot_properties={TOLD: words})
                with snapshot.overwrite() if removed else snapshot.merge_append() as files:
                    _ask_apart(files)
                    for file in added:
                        files.append_data_file(file)
                    for file in removed:
                        files.delete_data_file(file)
        except CommitFailedException as error:
            raise CommitConflict(str(error)) from error

    # --- upkeep

    def _compact(self, table: Table) -> tuple[int, int]:
        small = [
            task.file
            for task in ([] if _has_value_deletes(table) else table.scan().plan_files())
            # Files without rows that others marked as deleted: they would come back.
            if task.file.file_size_in_bytes < self._target_bytes and not task.delete_files
        ]
        removed = 0
        with suppress(CommitConflict):  # the rest is for the next time; versions have to go now
            for near in _groups(small, self._target_bytes):
                read = [(file, self._now(table, file)) for file in near]
                left = iter([file for file, rows in read if rows is not None])
                for alike in joinable([rows for _, rows in read if rows is not None]):
                    # Files of a column that others dropped and made with another type stay apart.
                    group = [next(left) for _ in alike]
                    if len(group) > 1:
                        self._join(table, group, pa.concat_tables(alike, promote_options="default"))
                        removed += len(group)
        for _ in range(self._tries_max):
            table.refresh()
            with suppress(CommitConflict):
                return removed, self._expire(table)
        raise CommitConflict(f"{self._tries_max} others meanwhile")

    def _now(self, table: Table, file: DataFile) -> pa.Table | None:
        """The rows of a file in columns of the names that they have now. None where it is to stay as it is.

        That is where others renamed or dropped fields inside of columns, or dropped all of its columns.
        """
        rows = table_from(self._destination.read(self._inside(file.file_path)) or b"")
        schema, known = table.schema(), self._schema(table)
        told = {names: field.field_id for field in _mapping(table) for names in field.names}
        told |= {path[0]: int(number) for path, number in numbers_of(rows.schema).items() if len(path) == 1}
        now = {name: schema.find_column_name(told[name]) for name in rows.column_names if name in told}
        kept = {before: name for before, name in now.items() if name is not None}
        if not kept:
            return None
        found = rows.select([*kept]).rename_columns([*kept.values()])
        inner = {path: number for path, number in numbers_of(found.schema).items() if len(path) > 1}
        numbers = numbers_of(known)
        if any(numbers.get(path) != number for path, number in inner.items()):
            return None
        return plain(found) if numbers_of(numbered(found, known).schema).keys() == paths_of(found.schema) else None

    def _join(self, table: Table, group: Sequence[DataFile], rows: pa.Table) -> None:
        first = self._inside(group[0].file_path).removesuffix(".parquet")
        name = f"{first}-{table.metadata.current_snapshot_id}{LARGE}"
        self._destination.create(name, parquet_bytes(numbered(rows, self._schema(table)), {}))
        self._change(table, COMPACTED, [self._file(table, name)], group)
        table.refresh()

    def _expire(self, table: Table) -> int:
        """Forget all versions that nothing names any more, and delete the files that only they need. CommitConflict."""
        named = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in named]
        if not old:
            return 0
        before = _manifests(table, old)
        _tried_once(table)
        try:
            with table.transaction() as change:
                change.set_properties({_CUT: COMPACTED})
                ExpireSnapshots(change).by_ids([snapshot.snapshot_id for snapshot in old]).commit()
        except CommitFailedException as error:
            raise CommitConflict(str(error)) from error
        table.refresh()
        kept = _manifests(table, table.metadata.snapshots)
        only_old = {path: manifest for path, manifest in before.items() if path not in kept}
        files = {*_files(table, only_old.values())} - {*_files(table, kept.values())}
        paths = [*files, *only_old, *(snapshot.manifest_list for snapshot in old)]
        gone = sorted(path for path in map(self._inside, paths) if "://" not in path and not path.startswith("/"))
        self._destination.delete(gone)
        return len(gone)

    def _log_files(self, table: Table) -> Iterator[str]:
        """The table's metadata, and what they name of the present version."""
        now = table.current_snapshot()
        lists = [] if now is None else [now.manifest_list, *_manifests(table, [now])]
        names = map(self._inside, [table.metadata_location, *lists])
        return (name for name in names if "://" not in name and not name.startswith("/"))

    def _versions(self, table: Table) -> int:
        return len(table.metadata.snapshots)

    def _words(self, table: Table) -> list[str | None]:
        summaries = [snapshot.summary for snapshot in table.metadata.snapshots]
        return [None if summary is None else summary.additional_properties.get(TOLD) for summary in summaries]

    def _is_cut(self, table: Table) -> bool:
        return _CUT in table.properties

    def _live(self, table: Table) -> dict[str, dict[str, Any]]:
        return {self._inside(task.file.file_path): {} for task in table.scan().plan_files()}

    def _inside(self, path: str) -> str:
        return _path(path).removeprefix(f"{_path(self._location())}/")

    def _in_words(self, error: Exception) -> Exception | None:
        if isinstance(error, TargetRefused | TargetUnavailable | CommitConflict):
            return None
        denied = (BadRequestError, ForbiddenError, UnauthorizedError, ValidationError)
        broken = (pydantic.ValidationError, ValueError, sqlalchemy.exc.ArgumentError)
        if (missing := package_missing(self._place, error)) is not None:
            return missing
        words: Exception | None = self._said(error, (*denied, *broken), (RESTError, sqlalchemy.exc.SQLAlchemyError))
        return words

    def close(self) -> None:
        """See `Releases.close`."""
        if self._catalog is not None:
            self._catalog.close()


def _tried_once(table: Table) -> None:
    """Switch off the library's retries: after a conflict the caller decides, because it knows the marker."""
    once = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})


def _ask_apart(files: "_SnapshotProducer[Any]") -> None:
    """An evaluator for each question: the library's one keeps the manifest that it looks at, and many threads ask it.

    A thread then takes another's manifest for its own, passes over it, and the library misses files that are there.
    """
    build = files._build_manifest_evaluator  # noqa: SLF001

    def apart(spec_id: int) -> Callable[[ManifestFile], bool]:
        def evaluate(manifest: ManifestFile) -> bool:
            return bool(build(spec_id)(manifest))

        return evaluate

    files._build_manifest_evaluator = apart  # noqa: SLF001


def _mapping(table: Table) -> list[MappedField]:
    """Which fields the names in files are."""
    told = table.properties.get(TableProperties.DEFAULT_NAME_MAPPING)
    now = table.schema().name_mapping.root
    return now if told is None else _with_earlier(now, parse_mapping_from_json(told).root)


def _with_earlier(now: Sequence[MappedField], before: Sequence[MappedField]) -> list[MappedField]:
    """Fields with their present names, and the earlier ones that no other field has now; those that were dropped, too."""
    known = {field.field_id: field for field in before}
    taken = {name for field in now for name in field.names}
    found = []
    for field in [*now, *(each for each in before if each.field_id not in {other.field_id for other in now})]:
        earlier = known.get(field.field_id, MappedField(names=[]))
        more = [name for name in earlier.names if name not in taken]
        taken |= {*more}
        names = [*(field.names if field in now else []), *more]
        if names:
            fields = _with_earlier(field.fields if field in now else [], earlier.fields)
            found.append(MappedField(field_id=field.field_id, names=names, fields=fields))
    return found


def _path(uri: str) -> str:
    return uri.removeprefix("file://").rstrip("/")


def _partition(file: DataFile) -> str:
    return f"{file.spec_id} {file.partition}"


def _has_value_deletes(table: Table) -> bool:
    """Whether others delete rows by their values, in files that are older than the delete: a file that is written anew is not."""
    now = table.current_snapshot()
    return now is not None and now.summary is not None and int(now.summary["total-equality-deletes"] or 0) > 0


def _manifests(table: Table, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    """The manifests of versions by their paths."""
    return {manifest.manifest_path: manifest for each in snapshots for manifest in each.manifests(table.io)}


def _files(table: Table, manifests: Iterable[ManifestFile]) -> Iterator[str]:
    """The files that manifests list."""
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(table.io):
            yield entry.data_file.file_path


def _groups(files: Sequence[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    """Files of one partition that become one file: at least two each."""
    ordered = sorted(files, key=lambda file: (_partition(file), file.file_path))
    for _, alike in groupby(ordered, key=_partition):
        group: list[DataFile] = []
        size = 0
        for file in alike:
            if len(group) > 1 and size + file.file_size_in_bytes > target_bytes:
                yield group
                group, size = [], 0
            group.append(file)
            size += file.file_size_in_bytes
        if len(group) > 1:
            yield group
