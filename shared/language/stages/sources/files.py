"""`$source` of files."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from tidemark.shared.language.kinds import BOOLEAN, STRING, Option, choice
from tidemark.shared.language.stages.base import ConnectionNeed
from tidemark.shared.language.stages.sources.base import TIMING, SourceBase, SourceKind

FileFormat = Literal["json", "csv", "parquet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource(SourceBase):
    """Files that match a glob; each file is a split. JSON is one document a line."""

    path_glob: str
    format: FileFormat
    connection_name: str | None = None
    """None: the path is a local one."""
    ordered: bool = True
    """Files are read one after another in the order of their names, as one split; else each is a split of its own."""
    follow: bool = False
    """The directory grows: look for new files without end. Else the source is bounded."""

    @property
    def bounded(self) -> bool:
        """Unless the directory grows."""
        return not self.follow

    def needs(self) -> Iterator[ConnectionNeed]:
        """The connection, if the path is no local one."""
        if self.connection_name is not None:
            yield ConnectionNeed(self.connection_name, ("files",), self.path)


_OPTIONS: Final = (
    Option("connectionName", STRING, "the connection of the files; without it a local path"),
    Option("path", STRING, "a glob", required=True, into="path_glob"),
    Option("format", choice("json", "csv", "parquet"), "json is a document a line", required=True),
    Option("ordered", BOOLEAN, "one file after the other, by name (default), or each a split of its own"),
    Option("follow", BOOLEAN, "the directory grows: go on looking for files (default false)"),
    *TIMING,
)
KIND: Final = SourceKind(FileSource, _OPTIONS)
