"""Rows on their way into files: taken batch by batch, divided by `partitionBy`, and given out as complete files' bytes.

S6: what the destination would refuse is found here, before staging: a partition value that is nested or too long for a folder's name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from tidemark.services.sink.connectors.formats import csv_bytes, jsonl_bytes, parquet_bytes, text_of
from tidemark.services.sink.connectors.rendered import rendered
from tidemark.shared.language.expressions.paths import read_path
from tidemark.shared.language.stages import EmitFormat
from tidemark.shared.language.values import type_name
from tidemark.shared.model.values import MISSING, Document
from tidemark.shared.operators.batches import declared_columns, documents_of
from tidemark.shared.operators.encoded import encoded, field_counts
from tidemark.shared.operators.frame import partial_documents
from tidemark.shared.ports.sink import Rejected

FOLDER_BYTES_MAX: Final = 240
"""A partition's folder name, encoded; file systems end at 255."""
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""The folder of rows whose partition field is null or missing, as Hive and Spark name it."""

Fit = Callable[[pa.RecordBatch], pa.Table]
"""Rows as a table takes them, without what divides it: readers find that in the table's log, and in the names of folders."""
Key = tuple[str | None, ...]
"""The texts of the `partitionBy` fields of a row."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table by name, folders and all, and how its catalog is reached."""

    name: str
    catalog: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How rows become bytes."""

    format: EmitFormat
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, Any] | None = None
    table: "Table | None" = None
    """Of a table that a catalog knows."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """One file to write."""

    folder: str
    """`field=value/…`, "" without `partitionBy`."""
    partition: dict[str, str | None]
    rows: int
    data: bytes


class RowBuffer:
    """Rows of the epoch that are not yet in files. The sink bounds it by `size_bytes`. Functions may take long: they belong on a thread."""

    def __init__(self, encoding: Encoding, fit: Fit | None = None) -> None:
        """`fit`: for formats with columns."""
        self._encoding = encoding
        self._fit = fit
        self._chunks: dict[Key, list[pa.Table | list[Document]]] = {}
        self.size_bytes = 0
        """Arrow bytes of the batches that were taken."""
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> list[Rejected]:
        """Take a batch; the rows that it did not take."""
        encoding = self._encoding
        rejected = self._empty(batch)
        if rejected:
            empty = {found.row for found in rejected}
            kept = [at for at in range(batch.num_rows) if at not in empty]
            others = self.add(batch.take(pa.array(kept, pa.int64()))) if kept else []
            return sorted([*rejected, *(Rejected(kept[o.row], o.reason) for o in others)], key=lambda r: r.row)
        members: dict[Key, list[int]] = {} if encoding.partition_by else {(): list(range(batch.num_rows))}
        for at, document in enumerate(self._divided_by(batch)):
            key = self._key(document)
            if isinstance(key, str):
                rejected.append(Rejected(at, key))
            else:
                members.setdefault(key, []).append(at)
        rows = self._rows_of(batch)
        for key, indices in members.items():
            whole = len(indices) == batch.num_rows
            self._chunks.setdefault(key, []).append(rows if whole else _take(rows, indices))
        self.rows += batch.num_rows - len(rejected)
        self.size_bytes += batch.nbytes
        return rejected

    def _divided_by(self, batch: pa.RecordBatch) -> Sequence[Document]:
        """What `partitionBy` reads of each row; nothing where it divides nothing."""
        names = frozenset(field.partition(".")[0] for field in self._encoding.partition_by)
        return partial_documents(batch, names) if names else ()

    def _rows_of(self, batch: pa.RecordBatch) -> pa.Table | list[Document]:
        if self._fit is not None:
            return self._fit(batch)
        return documents_of(batch) if self._encoding.format == "csv" else pa.table({"document": rendered(batch)})

    def _empty(self, batch: pa.RecordBatch) -> list[Rejected]:
        """Rows without a field, which a file of columns cannot hold where none is declared: whatever else is in the batch."""
        if self._encoding.format == "json" or declared_columns(batch):
            return []
        name = "CSV" if self._encoding.format == "csv" else "Parquet"
        empty = np.flatnonzero(field_counts(encoded(batch)) == 0).tolist()
        return [Rejected(at, f"{name} has no row without a field") for at in empty]

    def _key(self, document: Document) -> Key | str:
        """The texts of the partition fields; a text alone says why the row is refused."""
        key: list[str | None] = []
        for field in self._encoding.partition_by:
            value = read_path(document, tuple(field.split(".")))
            if isinstance(value, (list, dict)):
                return f"partitionBy {field}: expected a plain value, found one of type {type_name(value)}"
            text = None if value is None or value is MISSING else text_of(value)
            if text == "" and self._fit is not None:
                return f"partitionBy {field}: a table has no empty text as a partition: it would be read as null"
            size = len(field) + len(_folder(text)) + 1
            if size > FOLDER_BYTES_MAX:
                return (
                    f"partitionBy {field}: expected at most {FOLDER_BYTES_MAX} bytes as a folder's name, found {size}"
                )
            key.append(text)
        return tuple(key)

    def files(self) -> list[FileContent]:
        """What was taken, as files; stays taken until `clear`, so that writing may be tried again."""
        fields = self._encoding.partition_by
        return [
            FileContent(
                folder="/".join(
                    f"{quote(field, safe='')}={_folder(text)}" for field, text in zip(fields, key, strict=True)
                ),
                partition=dict(zip(fields, key, strict=True)),
                rows=sum(len(chunk) for chunk in group),
                data=self._bytes(group, key),
            )
            for key, chunks in self._chunks.items()
            for group in _groups(chunks)
        ]

    def _bytes(self, group: Sequence[pa.Table | list[Document]], key: Key) -> bytes:
        encoding = self._encoding
        options = encoding.options or {}
        if self._fit is not None:
            rows = pa.concat_tables(group, promote_options="default")
            for name, text in zip(encoding.partition_by, key, strict=True) if encoding.format == "iceberg" else ():
                # This format has what divides it in its files, too.
                rows = rows.append_column(name, pa.array([text] * rows.num_rows, pa.string()))
            return parquet_bytes(rows, options)
        if encoding.format == "json":
            return jsonl_bytes(pa.concat_tables(group))
        return csv_bytes([document for chunk in group for document in chunk], options)

    def clear(self) -> None:
        """What `files` gave is durable."""
        self._chunks = {}
        self.size_bytes = 0
        self.rows = 0


def _take(rows: pa.Table | list[Document], indices: list[int]) -> pa.Table | list[Document]:
    return [rows[at] for at in indices] if isinstance(rows, list) else rows.take(pa.array(indices))


def _groups(chunks: Sequence[pa.Table | list[Document]]) -> list[Sequence[pa.Table | list[Document]]]:
    """Chunks that fit one file: tables whose columns of one name have one type. Others would be converted, perhaps with loss."""
    groups: list[list[pa.Table | list[Document]]] = []
    schema: pa.Schema | None = None
    for chunk in chunks:
        if isinstance(chunk, list):
            return [chunks]
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


def _folder(text: str | None) -> str:
    # An empty text would be no folder; Hive knows it as null, and the manifest says which it was.
    return quote(text, safe="") if text else NULL_FOLDER
