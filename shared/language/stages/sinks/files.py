"""`$emit` into files, and into tables that are files."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import (
    DOCUMENT,
    PATHS,
    STRING,
    Kind,
    Option,
    Read,
    choice,
    closed,
    closed_schema,
    integer,
    list_of,
    read_options,
)
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages.base import ConnectionNeed
from tidemark.shared.language.stages.formats import check_csv
from tidemark.shared.language.stages.sinks.base import NAME, WRITTEN, DateFormat, OutputFormat, SinkBase
from tidemark.shared.language.stages.sources.files import FILE_FORMAT, check_iceberg
from tidemark.shared.model.values import Value

EmitFormat = Literal["json", "csv", "parquet", "iceberg"]
"""Of these, parquet is a Delta Lake table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEmit(SinkBase):
    """Immutable files below `path`; `partition_by` makes a folder for each value, `field=value`.

    folder: an expression that gives each document's folder below `path`, which is the connection's then.
    """

    file_path: str
    folder: Expr | None = None
    format: EmitFormat = "json"
    connection_name: str | None = None
    partition_by: tuple[str, ...] = ()
    output_format: OutputFormat = "relaxedJson"
    date_format: DateFormat = "default"
    write_options: Mapping[str, Value] = field(default_factory=dict)

    def target(self) -> tuple[Any, ...]:
        """The folder that is written."""
        return ("files", self.connection_name, self.file_path)

    def needs(self) -> Iterator[ConnectionNeed]:
        """The connection, if the path is no local one."""
        if self.connection_name is not None:
            yield ConnectionNeed(self.connection_name, ("files",), self.path)


def _line_feed(tree: object, path: str, scope: Scope) -> Any:
    if tree != "\n":
        scope.problems.add(path, f"expected a line feed, for each document is a line, found {tree!r:.20}")
    return tree


_LINES: Final = Kind(_line_feed, STRING.schema)
_FILE_CONFIG: Final = closed(
    *WRITTEN,
    Option(
        "writeOptions",
        DOCUMENT,
        "accepted and without effect: files end with checkpoints, and by their size",
        into=None,
    ),
    Option("delimiter", _LINES, "a line feed: a document a line", into=None),
)
_LEVELS: Final = {"gzip": 9, "brotli": 11, "lz4": 12, "zstd": 22}
"""The highest level of each that has levels; all begin at 1."""
_OF_TABLES: Final = (
    Option("compression", choice("none", "snappy", *_LEVELS), "of columns (default zstd)"),
    Option(
        "compression_level", integer(1, max(_LEVELS.values())), "of gzip (to 9), brotli (to 11), lz4 (to 12) or zstd"
    ),
    Option("row_group_size", integer(1), "rows of a group in a file, at most"),
)
_OF_CSV: Final = (
    Option(
        "fields",
        list_of(STRING),
        "the columns of each file, in order; a document with another field is refused (default: those of the file's documents)",
    ),
    Option("delimiter", STRING, "a character between cells (default a comma)"),
)
_OPTIONS_OF: Final[Mapping[str, tuple[Option, ...]]] = {"parquet": _OF_TABLES, "iceberg": _OF_TABLES, "csv": _OF_CSV}


def _write_options(tree: object, path: str, scope: Scope) -> Any:
    return dict(read_options(tree, path, scope, (*_OF_TABLES, *_OF_CSV)))


_FILES: Final = (
    Option("connectionName", STRING, "the connection of the files; without it a local path"),
    Option(
        "path",
        NAME,
        "the folder, or an expression that gives one below the connection's",
        required=True,
        into="file_path",
    ),
    Option(
        "format",
        FILE_FORMAT,
        "json is a document a line (default, with bucket or config), parquet (or delta) a Delta Lake table, iceberg a table of the"
        " connection's `catalog`",
    ),
    Option("partitionBy", PATHS, "a folder for each value"),
    Option("writeOptions", Kind(_write_options, closed_schema((*_OF_TABLES, *_OF_CSV))), "of tables, or of CSV"),
    Option("bucket", STRING, "accepted and without effect: the connection's path names the bucket", into=None),
    Option("region", STRING, "accepted and without effect: the connection has it", into=None),
    Option("config", _FILE_CONFIG, "how documents are written, of format json"),
)


def read(tree: object, path: str, scope: Scope) -> FileEmit | None:
    """`$emit` with a path."""
    before = len(scope.problems.errors)
    o = read_options(tree, path, scope, _FILES)
    _check_files(o, path, scope)
    if len(scope.problems.errors) > before:
        return None
    computed = {} if type(o["path"]) is str else {"file_path": "", "folder": o["path"]}
    return FileEmit(path=path, **{**o.fields, **computed})


def _check_files(o: Read, path: str, scope: Scope) -> None:
    kind = o.get("format")
    if kind is None and "bucket" not in o and "config" not in o:
        scope.problems.add(path, "$emit needs format: json is a document a line")
    if kind not in (None, "json") and "config" in o:
        scope.problems.add(
            join(path, "config"), f"tells how JSON is written, and format is {kind}: writeOptions are of the format"
        )
    if o.get("writeOptions"):
        _check_write_options(o["writeOptions"], kind or "json", join(path, "writeOptions"), scope)
    if kind == "iceberg":
        _check_iceberg(o, path, scope)
    if "path" in o and type(o["path"]) is not str:
        if kind in ("parquet", "iceberg"):
            message = "a table is one folder, and this is an expression: partitionBy divides a table"
            scope.problems.add(join(path, "path"), message)
        if "connectionName" not in o:
            message = "a path that an expression gives is below that of a connection: give connectionName"
            scope.problems.add(path, message)


def _check_write_options(found: Mapping[str, Any], kind: str, path: str, scope: Scope) -> None:
    names = [option.name for option in _OPTIONS_OF.get(kind, ())]
    for name in found.keys() - set(names):
        has = f"has {', '.join(names)}" if names else "has no writeOptions"
        scope.problems.add(join(path, name), f"format {kind} {has}")
    check_csv(found, path, scope)
    packing = found.get("compression") or "zstd"
    if (level := found.get("compression_level")) is not None and level > _LEVELS.get(packing, 0):
        most = f"levels from 1 to {_LEVELS[packing]}" if packing in _LEVELS else "no levels"
        scope.problems.add(join(path, "compression_level"), f"{packing} has {most}, found {level}")


def _check_iceberg(o: Read, path: str, scope: Scope) -> None:
    check_iceberg(o, path, scope)
    for name in o.get("partitionBy", ()):
        if "." in name:
            scope.problems.add(
                join(path, "partitionBy"),
                f"a table of Iceberg is divided by its columns: make a field of {name} with $set",
            )


SCHEMA: Final = closed_schema(_FILES)
