"""Rows on their way into files: taken batch by batch, divided by `partitionBy`, and given out as complete files' bytes.

S6: what the destination would refuse is found here, before staging: a partition value that is nested or too long for a folder's name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from services.sink.connectors.formats import Format, csv_bytes, jsonl_bytes, parquet_bytes, text_of
from services.sink.connectors.tables import DocumentsOf, EncodeValue, table_of
from shared.model.values import Date, Document
from shared.ports.sink import Rejected

FOLDER_BYTES_MAX: Final = 240
"""A partition's folder name, encoded; file systems end at 255."""
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""The folder of rows whose partition field is null or missing, as Hive and Spark name it."""

Key = tuple[str | None, ...]
"""The texts of the `partitionBy` fields of a row."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How rows become bytes."""

    format: Format
    documents_of: DocumentsOf
    encode: EncodeValue
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, Any] | None = None


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

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._chunks: dict[Key, list[pa.Table | list[Document]]] = {}
        self.size_bytes = 0
        """Arrow bytes of the batches that were taken."""

    def add(self, batch: pa.RecordBatch) -> list[Rejected]:
        """Take a batch; the rows that it did not take."""
        encoding = self._encoding
        rows: pa.Table | list[Document]
        if encoding.format == "parquet":
            rows = table_of(batch, encoding.documents_of, encoding.encode)
        else:
            rows = list(encoding.documents_of(batch))
        rejected: list[Rejected] = []
        members: dict[Key, list[int]] = {}
        for at, key in enumerate(self._keys(rows, batch.num_rows)):
            reason = _refusal(encoding.partition_by, key)
            if reason is None:
                members.setdefault(key, []).append(at)
            else:
                rejected.append(Rejected(at, reason))
        for key, indices in members.items():
            whole = len(indices) == batch.num_rows
            self._chunks.setdefault(key, []).append(rows if whole else _take(rows, indices))
        self.size_bytes += batch.nbytes
        return rejected

    def _keys(self, rows: pa.Table | list[Document], count: int) -> list[tuple[Any, ...]]:
        fields = self._encoding.partition_by
        if not fields:
            return [()] * count
        if isinstance(rows, list):
            columns = [[self._text(document.get(field)) for document in rows] for field in fields]
        else:
            columns = [[self._text(value) for value in _values(rows, field, count)] for field in fields]
        return list(zip(*columns, strict=True))

    def _text(self, value: Any) -> Any:
        return value if value is None or isinstance(value, (list, dict)) else text_of(value, self._encoding.encode)

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
                data=self._bytes(group),
            )
            for key, chunks in self._chunks.items()
            for group in _groups(chunks)
        ]

    def _bytes(self, group: Sequence[pa.Table | list[Document]]) -> bytes:
        encoding = self._encoding
        options = encoding.options or {}
        if encoding.format == "parquet":
            return parquet_bytes(pa.concat_tables(group, promote_options="permissive"), options)
        documents = [document for chunk in group for document in chunk]
        if encoding.format == "jsonl":
            return jsonl_bytes(documents, encoding.encode)
        return csv_bytes(documents, encoding.encode, options)

    def clear(self) -> None:
        """What `files` gave is durable."""
        self._chunks = {}
        self.size_bytes = 0


def _take(rows: pa.Table | list[Document], indices: list[int]) -> pa.Table | list[Document]:
    return [rows[at] for at in indices] if isinstance(rows, list) else rows.take(pa.array(indices))


def _groups(chunks: Sequence[pa.Table | list[Document]]) -> list[Sequence[pa.Table | list[Document]]]:
    """Chunks that fit one file: tables whose columns of one name have types with a common one."""
    groups: list[list[pa.Table | list[Document]]] = []
    schema: pa.Schema | None = None
    for chunk in chunks:
        if isinstance(chunk, list):
            return [chunks]
        try:
            schema = (
                pa.unify_schemas([schema, chunk.schema], promote_options="permissive")
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


def _values(table: pa.Table, field: str, count: int) -> list[Any]:
    if field not in table.column_names:
        return [None] * count
    column = table.column(field)
    if pa.types.is_timestamp(column.type):
        numbers = column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).to_pylist()
        return [None if number is None else Date(number) for number in numbers]
    return list(column.to_pylist())


def _folder(text: str | None) -> str:
    # An empty text would be no folder; Hive knows it as null, and the manifest says which it was.
    return quote(text, safe="") if text else NULL_FOLDER


def _refusal(fields: tuple[str, ...], key: tuple[Any, ...]) -> str | None:
    for field, text in zip(fields, key, strict=True):
        if isinstance(text, (list, dict)):
            kind = "an array" if isinstance(text, list) else "a document"
            return f"partitionBy {field}: expected a plain value, found {kind}"
        size = len(field) + len(_folder(text))
        if size > FOLDER_BYTES_MAX:
            return f"partitionBy {field}: expected at most {FOLDER_BYTES_MAX} bytes as a folder's name, found {size}"
    return None
