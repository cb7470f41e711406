"""Delta Lake tables (`tableversions`), read by the library's data set of a version: typed values of partitions, columns that came later.

What follows a version stands in the log's entries, one JSON file a version: rows are added by `add` of `dataChange`, and taken away by such
a `remove`. Entries without `dataChange` put the same rows into other files. (delta.io, PROTOCOL.md: Delta Log Entries.)
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import deltalake
import pyarrow as pa
from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError

from tidemark.services.source.connectors.tableversions import Batches, TableFile, VersionRefused, gone, taken_away
from tidemark.shared.adapters.filesystems import unreachable
from tidemark.shared.ports.log import LogUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG: Final = "_delta_log"
_BATCH_ROWS: Final = 16_384
"""Read together at most: enough to make the work for each batch small."""
_READ_AHEAD: Final = 1
"""Batches, of the library's threads."""
_MAPPING: Final = "delta.columnMapping.mode"


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
        mapping = table.metadata().configuration.get(_MAPPING, "none")
        if mapping != "none":
            raise self._refused(version, f"its columns have other names in files ({_MAPPING}: {mapping})")
        try:
            rows = table.to_pyarrow_dataset()
        except DeltaProtocolError as error:
            raise self._refused(version, f"it has features that are not read here: {error}") from error
        with self._in_words():
            actions = pa.table(table.get_add_actions()).select(["path", "modification_time"]).to_pylist()
        times = {unquote(action["path"]): action["modification_time"] for action in actions}
        files = [self._file(fragment, rows.schema, times.get(fragment.path)) for fragment in rows.get_fragments()]
        return {file.name: file for file in sorted(files, key=lambda file: (file.changed_ms, file.name))}

    def _file(self, fragment: Any, columns: pa.Schema, changed_ms: int | None) -> TableFile:
        if not changed_ms:  # some writers do not tell
            modified = fragment.filesystem.get_file_info(fragment.path).mtime
            changed_ms = 0 if modified is None else int(modified.timestamp() * 1_000)
        return TableFile(fragment.path, changed_ms, fragment.count_rows, partial(_rows, fragment, columns))

    def _refused(self, version: int, why: str) -> VersionRefused:
        return VersionRefused(
            f"{self.place}: version {version} cannot be read: {why}. Let its writers rewrite it without them (REORG TABLE … APPLY (PURGE),"
            " ALTER TABLE … DROP FEATURE), or read a copy"
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
        if any(_changes(line, "remove") for line in entry):
            operations = [str(line["commitInfo"].get("operation")) for line in entry if "commitInfo" in line]
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
        return [json.loads(line) for line in text.splitlines() if line]

    def added(self, version: int) -> Sequence[TableFile]:
        """See `TableVersions.added`."""
        entry = self._entry(version)
        if entry is None:
            raise gone(self.place, version, "its entry of the log is not there any more")
        names = {unquote(line["add"]["path"]) for line in entry if _changes(line, "add")}
        if not names:
            return ()
        return [file for name, file in self._files(version).items() if name in names]

    def close(self) -> None:
        """Nothing is open."""


def _changes(line: Mapping[str, Any], kind: str) -> bool:
    """Whether a line of an entry adds or removes a file with its rows."""
    return kind in line and bool(line[kind].get("dataChange", True))


def _rows(fragment: Any, columns: pa.Schema) -> Batches:
    batches: Batches = fragment.to_batches(schema=columns, batch_size=_BATCH_ROWS, batch_readahead=_READ_AHEAD)
    return batches
