"""A file as a table: JSON lines (or one JSON array), CSV with a header, Parquet. It is read whole, and again when it has changed.

CSV has no types: a column whose every value is a whole number, a number, or true and false is that; others are strings. Whole numbers with
leading zeros are codes, so they are strings. Empty fields are missing.
"""

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.services.operator.tables.held import HeldTable
from tidemark.shared.adapters.filesystems import unreachable
from tidemark.shared.language.values import ExtendedJsonError, parse_json
from tidemark.shared.model.values import INT64_MAX, INT64_MIN, Document, Found
from tidemark.shared.operators.batches import TIMESTAMP, documents_of
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.tables import Names, TableRefused, TableUnavailable
from tidemark.shared.runtime.settings import LookupSettings

_WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_TRUTH: Final = {"true": True, "false": False}
Version = tuple[Any, ...]


class FileTable:
    """`Table` over one file of a file system (fsspec's)."""

    def __init__(self, filesystem: Any, path: str, executor: Executor, clock: Clock, settings: LookupSettings) -> None:
        self._filesystem = filesystem
        self._path = path
        self._executor = executor
        self._clock = clock
        self._settings = settings
        self._held: HeldTable | None = None
        self._version: Version = ()
        self._looked_ms = 0

    async def find(self, columns: Sequence[Names], wanted: Sequence[tuple[object, ...]]) -> Sequence[Found]:
        """See `Table.find`."""
        now_ms = self._clock.monotonic_ms()
        if self._held is None or now_ms - self._looked_ms >= self._settings.file_interval_ms:
            changed = await self._executor.blocking(self._read_if_changed)
            if changed is not None:
                self._version, self._held = changed
            self._looked_ms = now_ms
        assert self._held is not None
        return await self._held.find(columns, wanted)

    def _read_if_changed(self) -> tuple[Version, HeldTable] | None:
        try:
            info = self._filesystem.info(self._path)
            version = tuple(info.get(name) for name in ("size", "mtime", "ino", "ETag", "LastModified"))
            if self._held is not None and version == self._version:
                return None
            data = self._filesystem.cat_file(self._path)
        except FileNotFoundError as error:
            raise TableRefused(
                f"{self._path}: no such file; a lookup's table is a file below its connection's path"
            ) from error
        except unreachable() as error:
            raise TableUnavailable(f"{self._path}: {error}") from error
        documents = self._documents(data)
        if len(documents) > self._settings.rows_max:
            raise TableRefused(
                f"{self._path}: {len(documents)} documents, and lookup.rows_max is {self._settings.rows_max}; a file is held in memory"
                " whole: put it into a database, or raise the bound"
            )
        return version, HeldTable(documents)

    def _documents(self, data: bytes) -> list[Document]:
        read = _READERS.get(self._path.rpartition(".")[2].lower())
        if read is None:
            raise TableRefused(f"{self._path}: expected a name that ends in one of {', '.join(sorted(_READERS))}")
        try:
            return read(data)
        except (ExtendedJsonError, ValueError, csv.Error, pa.ArrowException) as error:
            raise TableRefused(f"{self._path}: {error}") from error

    async def close(self) -> None:
        """Nothing is open."""


def _json(data: bytes) -> list[Document]:
    text = data.removeprefix(b"\xef\xbb\xbf").strip()
    values = [parse_json(line) for line in text.split(b"\n") if line.strip()] if text[:1] != b"[" else parse_json(text)
    documents: list[Document] = []
    for number, value in enumerate(values if isinstance(values, list) else [], 1):
        if type(value) is not dict:
            raise ValueError(f"document {number}: expected an object, found {str(value)[:60]}")
        documents.append(value)
    return documents


def _csv(data: bytes) -> list[Document]:
    lines = csv.reader(io.StringIO(data.decode("utf-8-sig")), strict=True)
    header = next(lines, [])
    rows = [row for row in lines if row]
    for number, row in enumerate(rows, 2):
        if len(row) > len(header):
            raise ValueError(f"record {number}: {len(row)} fields, but the header names {len(header)}")
    converts = [_converter([row[i] for row in rows if i < len(row) and row[i]]) for i in range(len(header))]
    return [
        {name: convert(cell) for name, convert, cell in zip(header, converts, row, strict=False) if cell}
        for row in rows
    ]


def _converter(cells: list[str]) -> Callable[[str], Any]:
    if all(_WHOLE.fullmatch(cell) and INT64_MIN <= int(cell) <= INT64_MAX for cell in cells):
        return int
    if all(_NUMBER.fullmatch(cell) for cell in cells):
        return float
    if all(cell in _TRUTH for cell in cells):
        return _TRUTH.__getitem__
    return str


def _parquet(data: bytes) -> list[Document]:
    # Times of 96 bits (Spark's): the years 1 to 9999 do not fit 64 bits of nanoseconds.
    table = pq.read_table(pa.BufferReader(data), use_threads=False, coerce_int96_timestamp_unit="us")
    table = table.cast(pa.schema([pa.field(f.name, _known(f.type)) for f in table.schema]))
    return [document for batch in table.to_batches() for document in documents_of(batch)]


def _known(kind: pa.DataType) -> pa.DataType:
    """The type whose cells the language has values for: dates become instants, small numbers wider ones, rarer types text."""
    if pa.types.is_dictionary(kind):
        return _known(kind.value_type)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return TIMESTAMP
    if pa.types.is_integer(kind) and kind not in (pa.int32(), pa.int64()):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_time(kind) or pa.types.is_duration(kind) or pa.types.is_large_string(kind):
        return pa.string()
    return kind


_READERS: Final[dict[str, Callable[[bytes], list[Document]]]] = {
    "json": _json,
    "jsonl": _json,
    "ndjson": _json,
    "csv": _csv,
    "parquet": _parquet,
}
