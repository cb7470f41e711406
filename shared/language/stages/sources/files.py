"""`$source` of files."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import BOOLEAN, STRING, Kind, Option, Read, choice
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages.base import ConnectionNeed
from tidemark.shared.language.stages.sources.base import TIMING, SourceBase, SourceKind

FileFormat = Literal["json", "csv", "parquet"]
SourceFormat = Literal["json", "csv", "parquet", "iceberg"]
"""Of these, parquet is a Delta Lake table, too, where the path is its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource(SourceBase):
    """Files that match a glob; each file is a split. JSON is one document a line. Or one version of a table, and what is added to it."""

    path_glob: str
    format: SourceFormat
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


def no_file(stage: str, glob: str) -> str:
    """The message about a source of files, by its place in the document, whose glob matches nothing."""
    return f"{stage}.path: expected at least one file that matches {glob}, found none"


_FORMATS: Final = choice("json", "csv", "parquet", "delta", "iceberg")


def _file_format(tree: object, path: str, scope: Scope) -> Any:
    found = _FORMATS.read(tree, path, scope)
    return "parquet" if found == "delta" else found


FILE_FORMAT: Final = Kind(_file_format, _FORMATS.schema)
"""A `SourceFormat`; delta is another word for parquet, as those who come from Spark or Flink know it."""

_OPTIONS: Final = (
    Option("connectionName", STRING, "the connection of the files; without it a local path"),
    Option(
        "path",
        STRING,
        "a glob, which follows links to files and not to folders; or the folder of a table",
        required=True,
        into="path_glob",
    ),
    Option(
        "format",
        FILE_FORMAT,
        "json is a document a line, parquet (or delta) files or a Delta Lake table, iceberg a table of the connection's `catalog`",
        required=True,
    ),
    Option(
        "ordered",
        BOOLEAN,
        "one file after the other, by name (default), however many there are; or each a split of its own, some 2,000 a task",
    ),
    Option("follow", BOOLEAN, "the directory or table grows: go on looking for files (default false)"),
    *TIMING,
)


def check_iceberg(found: Read, path: str, scope: Scope) -> None:
    """The options of a table that a catalog knows, of a source or of an `$emit`."""
    if "connectionName" not in found:
        scope.problems.add(path, "format iceberg needs connectionName: a connection of type files that has a catalog")
    if type(found.get("path")) is str and not found["path"].strip("/"):
        scope.problems.add(join(path, "path"), "names the table: namespace/table")


def _check(tree: object, found: Read, path: str, scope: Scope) -> None:
    del tree
    if found.get("format") != "iceberg":
        return
    check_iceberg(found, path, scope)
    if set("*?[{") & set(found.get("path", "")):
        scope.problems.add(join(path, "path"), "names one table of the catalog, namespace/table, and is no glob")
    if found.get("follow") and found.get("ordered") is False:
        scope.problems.add(
            join(path, "ordered"),
            "a table that is followed is read version by version, as one split: leave ordered away",
        )


KIND: Final = SourceKind(FileSource, _OPTIONS, _check)
