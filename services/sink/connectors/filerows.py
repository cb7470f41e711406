"""Rows on their way into files: taken batch by batch, divided by `partitionBy`, and given out as complete files' bytes.

S6: rows that the destination would refuse are found here, before staging: a partition value that is nested or too long for a folder's name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.services.sink.connectors.csvlines import csv_bytes
from tidemark.services.sink.connectors.formats import jsonl_bytes, parquet_bytes
from tidemark.services.sink.connectors.tablecolumns import TAKES_NO_NULL, Fitted, needed, numbered
from tidemark.shared.adapters.tablelibraries import no_catalog
from tidemark.shared.compiled import tags
from tidemark.shared.compiled.documents import read_packed
from tidemark.shared.language.csv_cells import text_of
from tidemark.shared.language.expressions.ast import Expr, FieldPath, Literal
from tidemark.shared.language.stages import Connection, DateFormat, EmitFormat, FileEmit, OutputFormat
from tidemark.shared.language.values import decode_doc, type_name
from tidemark.shared.model.failures import WrongSetup
from tidemark.shared.model.values import MISSING, Document, Value
from tidemark.shared.operators.batches import declared_columns, values_of
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.encoded import encoded, field_counts
from tidemark.shared.operators.frame import Cells, frame_of
from tidemark.shared.operators.rendered import rendered
from tidemark.shared.ports.sink import Rejected

Int64s = npt.NDArray[np.int64]
FOLDER_BYTES_MAX: Final = 240
"""A partition's folder name, encoded; file systems end at 255."""
FOLDERS_MAX: Final = 20
"""One in the other, of those that an expression gives."""
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""The folder of rows with a null or missing partition field, as Hive and Spark name it."""

_ODD: Final = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""Characters that Hive encodes in the names of folders."""

Fit = Callable[[pa.RecordBatch], Fitted]
"""Rows as a table takes them, without the partition's columns: readers find those in the table's log, and in the names of folders."""
Key = tuple[str | None, ...]
"""The folder that an expression gives ("" without one), and the texts of the `partitionBy` fields of a row."""


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table by name, folders and all, and how its catalog is reached."""

    name: str
    catalog: Mapping[str, Any]
    check: Callable[[str], None] = lambda _: None
    """Raises where documents may not reach a file that the table names."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How rows become bytes."""

    format: EmitFormat
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, Any] | None = None
    table: "CatalogTable | None" = None
    """Of a table that a catalog knows."""
    folder: Expr | None = None
    """The expression for each document's folder; None: all lie in one, but for `partition_by`."""
    output_format: OutputFormat = "relaxedJson"
    date_format: DateFormat = "default"
    source_topics: Topics = None
    """Those that the rows came from, for `$meta`."""

    @classmethod
    def of(cls, stage: FileEmit, table: "CatalogTable | None" = None, source_topics: Topics = None) -> "Encoding":
        """That of a stage."""
        options, folder = stage.write_options, stage.folder
        written = stage.output_format, stage.date_format
        return cls(stage.format, stage.partition_by, options, table, folder, *written, source_topics)

    @property
    def divides(self) -> bool:
        """Whether rows go into different folders."""
        return bool(self.partition_by) or self.folder is not None


def encoding_of(
    stage: FileEmit,
    connection: Connection | None,
    source_topics: Topics = None,
    check: Callable[[str], None] = lambda _: None,
) -> Encoding:
    """How a stage's rows become files, at a connection with its values put in. WrongSetup where the connection lacks a needed setting."""
    table = None
    if stage.format == "iceberg":
        if connection is None or "catalog" not in connection.settings:
            raise WrongSetup(no_catalog(stage.path if connection is None else f"connections.{connection.name}"))
        table = CatalogTable(stage.file_path, connection.settings["catalog"], check)
    return Encoding.of(stage, table, source_topics)


@dataclass(frozen=True, slots=True)
class FileContent:
    """One file to write."""

    folder: str
    """`field=value/…`, "" without `partitionBy`."""
    partition: dict[str, str | None]
    rows: int
    data: bytes


class BadFolder(Exception):
    """Why a value names no folder."""


class RowBuffer:
    """Rows of the epoch that are not yet in files. The sink bounds it by `size_bytes`. Functions may take long: they belong on a thread."""

    def __init__(self, encoding: Encoding, fit: Fit | None = None) -> None:
        """`fit`: for formats with columns."""
        self._encoding = encoding
        self._fit = fit
        self._known: pa.Schema = pa.schema([])
        """The table's columns, for formats with columns."""
        self._chunks: dict[Key, list[pa.Table]] = {}
        self.size_bytes = 0
        """Arrow bytes of the batches that were taken."""
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> list[Rejected]:
        """Take a batch; the rows that it did not take."""
        rows, rejected = self._rows_of(batch)
        if rejected:
            gone = {found.row for found in rejected}
            kept = [at for at in range(batch.num_rows) if at not in gone]
            others = self.add(batch.take(pa.array(kept, pa.int64()))) if kept else []
            return sorted([*rejected, *(Rejected(kept[o.row], o.reason) for o in others)], key=lambda r: r.row)
        members, refused = self._divided(batch)
        rejected = [Rejected(row, reason) for row, reason in sorted(refused.items())]
        for key, indices in members:
            whole = len(indices) == batch.num_rows
            self._chunks.setdefault(key, []).append(rows if whole else rows.take(pa.array(indices)))
        self.rows += batch.num_rows - len(rejected)
        self.size_bytes += batch.nbytes
        return rejected

    def _divided(self, batch: pa.RecordBatch) -> tuple[list[tuple[Key, Int64s]], dict[int, str]]:
        """The rows of each key, in order; and the rows that have none, with the reason. Each different value is looked at once."""
        encoding, refused = self._encoding, dict[int, str]()
        if not encoding.divides:
            return [(("",), np.arange(batch.num_rows))], refused
        exprs: list[Expr] = [Literal("") if encoding.folder is None else encoding.folder]
        exprs += [FieldPath(tuple(field.split("."))) for field in encoding.partition_by]
        frame = frame_of(exprs, batch, encoding.source_topics)
        columns = [self._texts(number, frame.computed(expr), refused) for number, expr in enumerate(exprs)]
        kept = np.setdiff1d(np.arange(batch.num_rows), np.fromiter(refused, np.int64, len(refused)))
        which = np.zeros(len(kept), np.int64)
        for texts, places in columns:
            which = np.unique(which * len(texts) + places[kept], return_inverse=True)[1]
        order = np.argsort(which, kind="stable")
        firsts = np.unique(which, return_index=True)[1]
        keys = [tuple(texts[places[row]] for texts, places in columns) for row in kept[firsts].tolist()]
        bounds = np.searchsorted(which[order], np.arange(len(keys) + 1))
        return [(key, kept[order[bounds[n] : bounds[n + 1]]]) for n, key in enumerate(keys)], refused

    def _texts(self, number: int, found: Cells, refused: dict[int, str]) -> tuple[list[str | None], Int64s]:
        """The different texts of a part of the keys, and which is each row's, shape (n,). number: 0 of the folder, then of the fields."""
        for row, error in found.errors.items():
            refused.setdefault(row, f"path: {error}")
        coded = found.array.dictionary_encode(null_encoding="encode")
        places = coded.indices.to_numpy().astype(np.int64)
        texts: list[str | None] = []
        reasons: dict[int, str] = {}
        for place, value in enumerate(values_of(coded.dictionary, found.field)):
            try:
                texts.append(
                    self._text(self._encoding.partition_by[number - 1], value) if number else self._inner(value)
                )
            except BadFolder as error:
                texts.append(None)
                reasons[place] = str(error)
        for row in np.flatnonzero(np.isin(places, list(reasons))).tolist():
            refused.setdefault(row, reasons[places[row]])
        return texts, places

    def _rows_of(self, batch: pa.RecordBatch) -> tuple[pa.Table, list[Rejected]]:
        """The rows in the form of the file; those that it cannot have, without which the others are to be added again."""
        encoding, unfit = self._encoding, self._empty(batch) + self._beyond(batch)
        if unfit:
            return pa.table({}), unfit
        if self._fit is not None:
            rows, refused, self._known = self._fit(batch)
            return rows, [Rejected(row, reason) for row, reason in sorted(refused.items())]
        if encoding.format == "csv":
            return pa.table({"document": encoded(batch)}), []
        return pa.table({"document": rendered(batch, encoding.output_format, encoding.date_format)}), []

    def _empty(self, batch: pa.RecordBatch) -> list[Rejected]:
        """Rows without a field. Without a declared column a file of columns cannot hold them, though other rows have fields."""
        if self._encoding.format == "json" or declared_columns(batch):
            return []
        name = "CSV" if self._encoding.format == "csv" else "Parquet"
        empty = np.flatnonzero(field_counts(encoded(batch)) == 0).tolist()
        return [Rejected(at, f"{name} has no row without a field") for at in empty]

    def _beyond(self, batch: pa.RecordBatch) -> list[Rejected]:
        """Rows with a field that is none of the columns that CSV shall have; without a declaration, none."""
        names = (self._encoding.options or {}).get("fields") or ()
        if not names:
            return []
        documents = encoded(batch)
        cells = read_packed(documents, [(name,) for name in names])
        known = sum((cell.tags != tags.MISSING).astype(np.int64) for cell in cells.values())
        beyond = np.flatnonzero(field_counts(documents) != known).tolist()
        return [Rejected(at, _no_column(decode_doc(documents[at].as_py()), names)) for at in beyond]

    def _inner(self, value: Value) -> str:
        """The folder that an expression's value names. BadFolder if it names none."""
        return _folder_of(value) if self._encoding.folder is not None else ""

    def _text(self, field: str, value: Value) -> str | None:
        """The text of a `partitionBy` field, None for null and missing. BadFolder for what is no folder's name."""
        if isinstance(value, (list, dict)):
            raise BadFolder(f"partitionBy {field}: expected a plain value, found one of type {type_name(value)}")
        text = None if value is None or value is MISSING else text_of(value)
        if text is None and self._needs(field):
            raise BadFolder(f"partitionBy {field}: {TAKES_NO_NULL}, and the document has none")
        # By the format: an audit refuses the same rows, and fits none.
        if text in ("", NULL_FOLDER) and self._encoding.format in ("parquet", "iceberg"):
            what = repr(text) if text else "empty text"
            raise BadFolder(f"partitionBy {field}: a table has no {what} as a partition: it would be read as null")
        size = len(f"{_as_hive(field)}={_folder(text)}".encode())
        if size > FOLDER_BYTES_MAX:
            raise BadFolder(
                f"partitionBy {field}: expected at most {FOLDER_BYTES_MAX} bytes as a folder's name, found {size}"
            )
        return text

    def _needs(self, field: str) -> bool:
        """Whether a table takes no null of a field of `partitionBy`."""
        return self._fit is not None and field in needed(self._known)

    def files(self) -> list[FileContent]:
        """The rows taken so far, as files. They stay until `clear`, so that writing may be tried again."""
        fields = self._encoding.partition_by
        return [
            FileContent(
                folder="/".join(
                    [
                        *([inside] if inside else []),
                        *(f"{_as_hive(field)}={_folder(text)}" for field, text in zip(fields, key, strict=True)),
                    ]
                ),
                partition=dict(zip(fields, key, strict=True)),
                rows=sum(len(chunk) for chunk in group),
                data=self._bytes(group, key),
            )
            for (inside, *key), chunks in self._chunks.items()
            for group in joinable(chunks)
        ]

    def _bytes(self, group: Sequence[pa.Table], key: Sequence[str | None]) -> bytes:
        encoding = self._encoding
        options = encoding.options or {}
        if self._fit is not None:
            rows = pa.concat_tables(group, promote_options="default")
            for name, text in zip(encoding.partition_by, key, strict=True) if encoding.format == "iceberg" else ():
                # In this format the files, too, have the columns that divide the rows.
                texts = pa.array([text] * rows.num_rows, pa.string())
                rows = rows.append_column(pa.field(name, pa.string(), nullable=not self._needs(name)), texts)
            return parquet_bytes(numbered(rows, self._known), options)
        if encoding.format == "json":
            return jsonl_bytes(pa.concat_tables(group))
        return csv_bytes(pa.concat_tables(group).column(0), options.get("delimiter", ","), options.get("fields") or ())

    def clear(self) -> None:
        """The files from `files` are durable: forget their rows."""
        self._chunks = {}
        self.size_bytes = 0
        self.rows = 0


def _no_column(document: Document, names: Sequence[str]) -> str:
    other = next((name for name in document if name not in names), "")
    return f"{other!r:.80} is no column of the CSV: name it in writeOptions.fields, or leave it out with $project"


def joinable(chunks: Sequence[pa.Table]) -> list[Sequence[pa.Table]]:
    """Chunks that fit one file: tables in which columns of one name have one type. Other chunks would be converted, perhaps with loss."""
    groups: list[list[pa.Table]] = []
    schema: pa.Schema | None = None
    for chunk in chunks:
        try:
            schema = (
                pa.unify_schemas([schema, chunk.schema], promote_options="default")
                if schema is not None
                else chunk.schema
            )
            if not groups:
                groups.append([])
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            schema = chunk.schema
            groups.append([])
        groups[-1].append(chunk)
    return list(groups)


def _folder_of(value: Value) -> str:
    """The folder that a value names, its names encoded. BadFolder for a value that is none."""
    if type(value) is not str:
        raise BadFolder(f"path: expected the name of a folder, found a value of type {type_name(value)}")
    names = value.strip("/").split("/")
    encoded = [_as_hive(name).replace("%3D", "=") for name in names]
    if len(names) > FOLDERS_MAX or not all(names) or any(name[0] in "._" for name in names):
        raise BadFolder(
            f"path: expected at most {FOLDERS_MAX} names of folders, none of them empty or with a dot or _ in front, found {value!r:.80}"
        )
    if max(len(name.encode()) for name in encoded) > FOLDER_BYTES_MAX:
        raise BadFolder(f"path: expected at most {FOLDER_BYTES_MAX} bytes as a folder's name, found {value!r:.80}")
    return "/".join(encoded)


def _as_hive(text: str) -> str:
    """A text in a folder's name: letters beyond ASCII stay, for Spark decodes what is encoded byte by byte, and polars no field's name."""
    return _ODD.sub(lambda found: quote(found[0], safe=""), text)


def _folder(text: str | None) -> str:
    # An empty text would be no folder; Hive knows it as null, and the manifest says which it was.
    return _as_hive(text) if text else NULL_FOLDER
