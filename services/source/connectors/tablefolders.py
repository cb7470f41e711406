"""Which files are part of a table: they are read by the table's log, or not at all.

A folder with `_delta_log` is a Delta Lake table, and one with `metadata/*.metadata.json` an Iceberg table, each with all that lies below.
Files lie there that are no part of the table any more, or not yet; and columns that divide it may lie in no file.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from tidemark.services.source.connectors.tableversions import VersionRefused
from tidemark.shared.adapters.filesystems import unreachable
from tidemark.shared.ports.log import LogUnavailable

_PATTERN: Final = re.compile(r"[*?\[{]")
_ALL: Final = re.compile(r"(([^/*?\[{]+=)?\*{1,2}/)*(\*{1,2}|\*\.parquet)?")
"""What behind a table's folder means all of it."""


@dataclass(frozen=True, slots=True)
class TableFolder:
    """A folder that is a table."""

    path: str
    kind: Literal["delta", "iceberg"]


def is_pattern(glob: str) -> bool:
    """Whether it may match several files."""
    return _PATTERN.search(glob) is not None


def fixed_folder(glob: str) -> str:
    """The part of a glob before its first pattern, up to its last slash; of one without a pattern, all of it as a folder."""
    found = _PATTERN.search(glob)
    return glob.rstrip("/") + "/" if found is None else glob[: glob.rfind("/", 0, found.start()) + 1]


class TableFolders:
    """What is known of folders, on one file system of fsspec. Functions block. LogUnavailable."""

    def __init__(self, filesystem: Any, glob: str) -> None:
        self._filesystem = filesystem
        self._glob = glob
        self._plain: set[str] = set()
        """Folders that are no table, and in none."""
        self._names: list[str] = []

    def delta_table(self) -> str | None:
        """The folder of the Delta table that the glob names; None if it names files. VersionRefused where it names parts of a table."""
        fixed = fixed_folder(self._glob)
        table = self._above(fixed.rstrip("/"))
        if table is None:
            return None
        if table.kind == "delta" and table.path == fixed.rstrip("/") and _ALL.fullmatch(self._glob[len(fixed) :]):
            return table.path
        raise self._refused(table, self._glob)

    def check(self, names: list[str]) -> None:
        """VersionRefused for files that are part of a table: it came since, or the glob reaches into it."""
        if names == self._names:
            return
        fixed = fixed_folder(self._glob).rstrip("/")
        self._plain.discard(fixed)
        folders = {name.rpartition("/")[0] for name in names} - self._plain
        for folder in [fixed, *sorted(folders)]:
            if table := self._above(folder):
                raise self._refused(table, folder)
        self._plain |= folders
        self._names = names

    def _above(self, folder: str) -> TableFolder | None:
        """The table that a folder is, or lies in."""
        here = PurePosixPath(folder)
        for each in (here, *here.parents):
            path = str(each)
            if path in self._plain:
                return None
            if path in ("", ".", "/"):
                continue
            try:
                if self._filesystem.exists(f"{path}/_delta_log"):
                    return TableFolder(path, "delta")
                if self._filesystem.glob(f"{self._escaped(path)}/metadata/*.metadata.json"):
                    return TableFolder(path, "iceberg")
            except (PermissionError, FileNotFoundError, NotADirectoryError, NotImplementedError):
                continue  # a file system that lists nothing there, or not to us
            except unreachable() as error:
                raise LogUnavailable(f"$source.path {self._glob}: {path}: {error}; it is tried again") from error
        return None

    @staticmethod
    def _escaped(path: str) -> str:
        return re.sub(r"([*?\[])", r"[\1]", path)

    def _refused(self, table: TableFolder, found: str) -> VersionRefused:
        how = (
            f"give path: {table.path} alone, pick rows with $match, and read several tables with $union; where its files were read as they"
            " lay until now, start without state"
            if table.kind == "delta"
            else "give format: iceberg, a connection with its catalog, and the table's name as path"
        )
        name = {"delta": "Delta Lake", "iceberg": "Iceberg"}[table.kind]
        return VersionRefused(
            f"$source.path {self._glob}: {found} is part of the {name} table {table.path}, and files in it may be no part of it any more:"
            f" {how}"
        )
