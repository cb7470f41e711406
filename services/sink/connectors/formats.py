"""The formats of a file sink: a table, or documents, as the bytes of one complete file, and back for readers of released files."""

import csv
import io
import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.shared.language.stages import EmitFormat, FileFormat

SUFFIXES: Final[Mapping[EmitFormat, str]] = {
    "parquet": ".parquet",
    "iceberg": ".parquet",
    "json": ".jsonl",
    "csv": ".csv",
}


def parquet_bytes(table: pa.Table, options: Mapping[str, object]) -> bytes:
    """A Parquet file. `options` go to the writer: compression, compression_level, row_group_size."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"compression": "zstd", **options})
    return bytes(sink.getvalue().to_pybytes())


def jsonl_bytes(documents: pa.Table) -> bytes:
    """One document a line: the texts of its one column."""
    return b"".join(text + b"\n" for text in documents.column(0).to_pylist())


def rows_of(format_: FileFormat, data: bytes) -> list[dict[str, Any]]:
    """The rows of a file's bytes: Parquet's as Python values, JSON lines as JSON, CSV as text. ValueError if they are damaged."""
    match format_:
        case "parquet":
            return list(table_from(data).to_pylist())
        case "json":
            return [json.loads(line) for line in data.splitlines() if line]
        case "csv":
            return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def table_from(data: bytes) -> pa.Table:
    """A Parquet file's table. ValueError if it is damaged."""
    try:
        return pq.read_table(pa.BufferReader(data))
    except pa.ArrowInvalid as error:
        raise ValueError(f"not a Parquet file: {error}") from error
