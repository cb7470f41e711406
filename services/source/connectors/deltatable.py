"""Delta Lake tables (`tableversions`): the library reads the log, and says which files a version has and which of their rows are deleted.

Columns have other names in files, or ids, where the table's metadata says so (Column Mapping), and narrower types in older files.

What follows a version stands in the log's entries, one JSON file a version: rows are added by `add` of `dataChange`, and taken away by such
a `remove`. Entries without `dataChange` put the same rows into other files. (delta.io, PROTOCOL.md: Delta Log Entries.)
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import deltalake
import pyarrow as pa
import pyarrow.fs
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from tidemark.services.source.connectors.tablerows import PARQUET, Columns, DataFile, Find, by_id, by_name, id_of
from tidemark.services.source.connectors.tableversions import TableFile, VersionRefused, gone, taken_away
from tidemark.shared.adapters.filesystems import unreachable
from tidemark.shared.ports.log import LogUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG: Final = "_delta_log"
_MAPPING: Final = "delta.columnMapping.mode"
_PANIC: Final = "PanicException"
"""What the library raises, as no Exception, where it finds what it did not think of."""
_READ: Final = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features of a table that a reader has to know, and this one does."""


class DeltaVersions:
    """The table in a folder. `filesystem` is fsspec's, `folder` its path there; `uri` and `options` are the library's."""

    def __init__(self, filesystem: Any, folder: str, uri: str, options: Mapping[str, str]) -> None:
        self.place = uri
        self._filesystem = filesystem
        self._folder = folder.rstrip("/")
        self._options = dict(options)
        self._known: tuple[int, Mapping[str, TableFile]] | None = None
        """The version that was listed last."""

    def identity(self) -> str:
        """The id in its metadata."""
        return str(self._open().metadata().id)

    def newest(self) -> int:
        """See `TableVersions.newest`."""
        return self._open().version()

    def _open(self, version: int | None = None) -> deltalake.DeltaTable:
        with self._in_words():
            return deltalake.DeltaTable(self.place, version=version, storage_options=self._options or None)

    @contextmanager
    def _in_words(self) -> "Iterator[None]":
        try:
            yield
        except TableNotFoundError as error:
            raise LogUnavailable(
                f"{self.place}: no version of the Delta table is there yet; it is tried again"
            ) from error
        except DeltaError as error:
            raise VersionRefused(f"{self.place}: the Delta table cannot be read: {error}") from error
        except unreachable() as error:
            raise LogUnavailable(f"{self.place}: {error}; it is tried again") from error
        except BaseException as error:
            if type(error).__name__ != _PANIC:
                raise
            raise VersionRefused(f"{self.place}: the Delta table is damaged: {error}") from error

    def files(self, version: int) -> Sequence[TableFile]:
        """See `TableVersions.files`."""
        return list(self._files(version).values())

    def _files(self, version: int) -> Mapping[str, TableFile]:
        if self._known is None or self._known[0] != version:
            self._known = version, self._listed(self._at(version), version)
        return self._known[1]

    def _at(self, version: int) -> deltalake.DeltaTable:
        try:
            return self._open(version)
        except VersionRefused as error:
            self.newest()  # if the present version can be read, the table is whole
            raise gone(self.place, version, "its log is not whole any more") from error

    def _listed(self, table: deltalake.DeltaTable, version: int) -> Mapping[str, TableFile]:
        features = set(table.protocol().reader_features or ())
        if unknown := sorted(features - _READ):
            raise self._refused(version, f"it has features that are not read here: {', '.join(unknown)}")
        with self._in_words():
            mapping = table.metadata().configuration.get(_MAPPING, "none")
            columns = Columns(pa.schema(table.schema().to_arrow()), _find(mapping))
            actions = pa.table(table.get_add_actions())
            kept = self._kept(table, version) if "deletionVectors" in features else {}
        paths = [unquote(path) for path in actions["path"].to_pylist()]
        if outside := [path for path in paths if _is_outside(path)]:
            raise self._outside(version, outside[0])
        sizes = dict(zip(paths, actions["size_bytes"].to_pylist(), strict=True))
        filesystem = pyarrow.fs.PyFileSystem(DeltaStorageHandler(table.table_uri, self._options or None, sizes))
        divided = self._divided(actions)
        files = []
        for at, (path, changed_ms) in enumerate(zip(paths, actions["modification_time"].to_pylist(), strict=True)):
            values = {name: column[at] for name, column in divided.items()}
            fragment = partial(PARQUET.make_fragment, path, filesystem=filesystem)
            file = DataFile(
                fragment, columns, values, kept.pop(path, None), _with_ids if mapping == "id" else _as_it_is
            )
            files.append(TableFile(path, changed_ms or self._modified_ms(filesystem, path), file.count, file.rows))
        if kept:
            raise self._refused(version, f"it has deletion vectors of files that it does not have: {', '.join(kept)}")
        return {file.name: file for file in sorted(files, key=lambda file: (file.changed_ms, file.name))}

    @staticmethod
    def _divided(actions: pa.Table) -> Mapping[str, pa.ChunkedArray]:
        """Of each column that divides the table, what it is in each file."""
        if "partition" not in actions.column_names:
            return {}
        values = actions["partition"].combine_chunks()
        return {field.name: values.field(at) for at, field in enumerate(values.type)}

    def _kept(self, table: deltalake.DeltaTable, version: int) -> dict[str, pa.BooleanArray]:
        """Of each file with a deletion vector, which of its rows are there."""
        try:
            vectors = list(map(pa.record_batch, table.deletion_vectors()))
        except DeltaError as error:
            raise self._refused(
                version, f"its deletion vectors are not read beside another feature: {error}"
            ) from error
        kept = {}
        for batch in vectors:
            for path, rows in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
                if not path.startswith(table.table_uri):
                    raise self._outside(version, path)
                kept[unquote(path.removeprefix(table.table_uri))] = rows.values
        return kept

    @staticmethod
    def _modified_ms(filesystem: Any, path: str) -> int:
        """Where a writer does not tell when it wrote a file."""
        modified = filesystem.get_file_info(path).mtime
        return 0 if modified is None else int(modified.timestamp() * 1_000)

    def _refused(self, version: int, why: str) -> VersionRefused:
        return VersionRefused(
            f"{self.place}: version {version} cannot be read: {why}. Let its writers rewrite it without them (ALTER TABLE … DROP FEATURE),"
            " or read a copy"
        )

    def _outside(self, version: int, path: str) -> VersionRefused:
        return VersionRefused(
            f"{self.place}: version {version} cannot be read: its rows lie outside of its folder, as those of a shallow clone: {path}. Read"
            " the table that they are of, or a deep clone"
        )

    # --- what follows a version

    def next(self, version: int) -> int | None:
        """See `TableVersions.next`."""
        following = version + 1
        entry = self._entry(following)
        if entry is None:
            if self.newest() >= following:
                raise gone(self.place, version, f"the log has no entry {following} any more")
            return None
        with self._as_entry(following):
            removes = any(_changes(line, "remove") for line in entry)
            operations = [str(line["commitInfo"].get("operation")) for line in entry if line.get("commitInfo")]
        if removes:
            raise taken_away(self.place, following, ", ".join(operations))
        return following

    def _entry(self, version: int) -> list[dict[str, Any]] | None:
        path = f"{self._folder}/{LOG}/{version:020d}.json"
        try:
            self._filesystem.invalidate_cache()
            text = self._filesystem.cat_file(path)
        except FileNotFoundError:
            return None
        except unreachable() as error:
            raise LogUnavailable(f"{path}: {error}; it is tried again") from error
        with self._as_entry(version):
            return [dict(json.loads(line)) for line in text.splitlines() if line]

    @contextmanager
    def _as_entry(self, version: int) -> "Iterator[None]":
        """Others may have written whatever they like into the log."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise VersionRefused(
                f"{self.place}: version {version} cannot be read: its entry of the log is damaged: {error!r}"
            ) from error

    def added(self, version: int) -> Sequence[TableFile]:
        """See `TableVersions.added`."""
        entry = self._entry(version)
        if entry is None:
            raise gone(self.place, version, "its entry of the log is not there any more")
        with self._as_entry(version):
            names = {unquote(line["add"]["path"]) for line in entry if _changes(line, "add")}
        if not names:
            return ()
        return [file for name, file in self._files(version).items() if name in names]

    def close(self) -> None:
        """Nothing is open."""


def _find(mapping: str) -> Find:
    """How a table with a mode of column mapping finds a column in its files."""

    def find(column: pa.Field, among: Sequence[pa.Field]) -> int | None:
        told = column.metadata or {}
        if mapping == "id":
            return by_id(told[b"delta.columnMapping.id"], among)
        return by_name(told[b"delta.columnMapping.physicalName"].decode() if mapping == "name" else column.name, among)

    return find


def _as_it_is(columns: pa.Schema) -> pa.Schema:
    return columns


def _with_ids(columns: pa.Schema) -> pa.Schema:
    """ArrowInvalid for a file that does not tell them."""
    if len(columns) and all(id_of(column) is None for column in columns):
        raise pa.ArrowInvalid(f"its columns have no ids, by which the table finds them ({_MAPPING}: id)")
    return columns


def _is_outside(path: str) -> bool:
    """Whether a path of a log leads out of the table's folder, where documents may not be allowed to read."""
    return bool(urlsplit(path).scheme) or path.startswith("/") or ".." in path.split("/")


def _changes(line: Mapping[str, Any], kind: str) -> bool:
    """Whether a line of an entry adds or removes a file with its rows."""
    return line.get(kind) is not None and bool(line[kind].get("dataChange", True))
