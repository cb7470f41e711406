"""Delta Lake tables (`tableversions`): which files a version has (`deltalog`), their columns and which of their rows are deleted.

Columns have other names in files, or ids, where the table's metadata says so (Column Mapping), and narrower types in older files.

What follows a version stands in the log's entries, one JSON file a version: rows are added by `add` of `dataChange`, and taken away by such
a `remove`. Entries without `dataChange` put the same rows into other files. (delta.io, PROTOCOL.md: Delta Log Entries.)
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Final

import pyarrow as pa

from tidemark.services.source.connectors.deltacolumns import columns_of, divided_by
from tidemark.services.source.connectors.tablerows import PARQUET, Columns, DataFile, Find, by_id, by_name, id_of
from tidemark.services.source.connectors.tableversions import TableFile, VersionRefused, away, gone, taken_away
from tidemark.shared.adapters.deletionvectors import Places
from tidemark.shared.adapters.deltalog import Action, DeltaLog, NotWhole, State, path_of
from tidemark.shared.adapters.deltavectors import Vector
from tidemark.shared.adapters.filesystems import unreachable
from tidemark.shared.adapters.tablebytes import DAMAGED, Folder, Outside, inside
from tidemark.shared.ports.log import LogUnavailable

_MAPPING: Final = "delta.columnMapping.mode"
_READER_MAX: Final = 3
"""Versions of the protocol for readers; features say what is in the last one."""
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
    """The table in a folder. `filesystem` is fsspec's, `folder` its path there; `check` raises where documents may not read a path."""

    def __init__(self, filesystem: Any, folder: str, check: Callable[[str], None]) -> None:
        self._folder = Folder(filesystem, folder, check)
        self._log = DeltaLog(self._folder)
        self.place = self._folder.path if self._folder.local else str(filesystem.unstrip_protocol(self._folder.path))
        self._known: tuple[int, Mapping[str, TableFile]] | None = None
        """The version that was listed last."""

    def identity(self) -> str:
        """The id in its metadata."""
        version = self.newest()
        with self._in_words(version):
            return str(self._state(version).metadata["id"])

    def newest(self) -> int:
        """See `TableVersions.newest`."""
        with self._in_words(None):
            version = self._log.newest()
        if version is None:
            raise LogUnavailable(f"{self.place}: no version of the Delta table is there yet; it is tried again")
        return version

    def _state(self, version: int) -> State:
        try:
            return self._log.state(version)
        except (NotWhole, FileNotFoundError) as error:
            if version < self.newest():
                raise gone(self.place, version, f"its log is not whole any more: {error}") from error
            raise VersionRefused(
                f"{self.place}: version {version} cannot be read: its log is not whole: {error}"
            ) from error

    @contextmanager
    def _in_words(self, version: int | None, what: str = "its log") -> Iterator[None]:
        """Others may have written whatever they like."""
        where = self.place if version is None else f"{self.place}: version {version}"
        try:
            yield
        except Outside as error:
            raise VersionRefused(
                f"{where} cannot be read: its rows lie outside of its folder, as those of a shallow clone: {error}. Read the table"
                " that they are of, or a deep clone"
            ) from error
        except DAMAGED as error:
            raise VersionRefused(f"{where} cannot be read: {what} is damaged: {error!r:.1000}") from error
        except unreachable() as error:
            raise away(where, error) from error

    def files(self, version: int) -> Sequence[TableFile]:
        """See `TableVersions.files`."""
        return list(self._files(version).values())

    def _files(self, version: int) -> Mapping[str, TableFile]:
        known = self._known  # another thread may list another version meanwhile
        if known is None or known[0] != version:
            with self._in_words(version):
                self._known = known = version, self._listed(self._state(version))
        return known[1]

    def _listed(self, state: State) -> Mapping[str, TableFile]:
        features = set(state.protocol.get("readerFeatures") or ())
        if unknown := sorted(map(str, features - _READ)):
            raise self._refused(state.version, f"it has features that are not read here: {', '.join(unknown)}")
        if (reader := state.protocol["minReaderVersion"]) > _READER_MAX:
            raise self._refused(
                state.version, f"it asks for readers of version {reader}, and {_READER_MAX} is the last one here"
            )
        told = state.metadata
        mapping = dict(told.get("configuration") or ()).get(_MAPPING, "none")
        schema = columns_of(json.loads(told["schemaString"]))
        columns = Columns(schema, _find(mapping))
        known = _with_ids if mapping == "id" else _as_it_is
        divided = cache(lambda values: divided_by(schema, told.get("partitionColumns") or (), dict(values)))
        files = {}
        for (path, _), added in state.files.items():
            if path in files:
                raise ValueError(f"it has the file {path} twice")
            file = DataFile(
                partial(self._folder.open, path),
                PARQUET,
                columns,
                divided(added.values),
                self._deleted(added.vector),
                known,
            )
            changed_ms = added.changed_ms or self._folder.modified_ms(path)
            files[path] = TableFile(path, changed_ms, file.count, file.rows)
        return {file.name: file for file in sorted(files.values(), key=lambda file: (file.changed_ms, file.name))}

    def _deleted(self, vector: Vector | None) -> Callable[[int], Iterator[Places]] | None:
        if vector is None:
            return None
        if vector.file is not None:
            inside(vector.file)
        return partial(vector.places, self._folder.open)

    def _refused(self, version: int, why: str) -> VersionRefused:
        return VersionRefused(
            f"{self.place}: version {version} cannot be read: {why}. Let its writers rewrite it without them (ALTER TABLE … DROP FEATURE),"
            " or read a copy"
        )

    # --- what follows a version

    def next(self, version: int) -> int | None:
        """See `TableVersions.next`."""
        following = version + 1
        with self._in_words(following, "its entry of the log"):
            entry = self._log.entry(following)
            removes, operations = _taken_by(entry or iter(()))
        if entry is None:
            if self.newest() >= following:
                raise gone(self.place, version, f"the log has no entry {following} any more")
            return None
        if removes:
            raise taken_away(self.place, following, ", ".join(operations))
        return following

    def added(self, version: int) -> Sequence[TableFile]:
        """See `TableVersions.added`."""
        with self._in_words(version, "its entry of the log"):
            entry = self._log.entry(version)
            names = None if entry is None else {path_of(line["add"]) for line in entry if _changes(line, "add")}
        if names is None:
            raise gone(self.place, version, "its entry of the log is not there any more")
        return [file for name, file in self._files(version).items() if name in names] if names else ()

    def close(self) -> None:
        """Nothing is open."""


def _taken_by(entry: Iterator[Action]) -> tuple[bool, list[str]]:
    """Whether an entry takes rows away, and by which operations."""
    removes, operations = False, []
    for line in entry:
        removes = _changes(line, "remove") or removes
        if line.get("commitInfo"):
            operations.append(str(line["commitInfo"].get("operation")))
    return removes, operations


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


def _changes(line: Mapping[str, Any], kind: str) -> bool:
    """Whether a line of an entry adds or removes a file with its rows."""
    return line.get(kind) is not None and bool(line[kind].get("dataChange", True))
