"""Reading one file from a position: JSON lines, CSV, Parquet. Records come out as one extended JSON text each.

Positions: the byte at which a record begins (JSON lines, CSV), or the row's number (Parquet). They grow within a file and mean the same
after a restart. Functions block. A record that is not complete yet (a last line without its end, an open quote) is one only if the file
no longer grows.

A record that cannot be read comes out all the same, as its bytes with the reason (`FileRecords.unread`). It becomes a dead letter, and
the records behind it are read. LogError is for a wrong file: of another kind than stated, without a header, without the end of a line.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.services.source.connectors.csvlines import CsvLines, CsvMany
from tidemark.services.source.connectors.parquetcells import texts_of
from tidemark.shared.adapters.parquetpieces import Pieces
from tidemark.shared.language.csv_cells import value_of
from tidemark.shared.language.limits import DEFAULTS
from tidemark.shared.language.stages import FileFormat
from tidemark.shared.language.values import render_json
from tidemark.shared.model.values import Document
from tidemark.shared.ports.log import LogError

_UTF8_MARK: Final = b"\xef\xbb\xbf"
_OTHER_KINDS: Final = {
    b"\x1f\x8b": "compressed with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard",
    b"\xfd7zXZ": "compressed with xz",
    b"\x04\x22\x4d\x18": "compressed with LZ4",
    b"\xff\x06\x00\x00sN": "compressed with Snappy",
    **{b"BZh%d1AY&" % level: "compressed with bzip2" for level in range(1, 10)},
    b"PK\x03\x04": "a ZIP archive",
    b"PAR1\x15": "Parquet",
    b"Obj\x01": "Avro",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}
"""The first bytes of files that are no text in UTF-8, and the kinds of file that have them."""


@dataclass(frozen=True, slots=True)
class FileRecords:
    """Consecutive records of a file."""

    positions: list[int]
    values: list[bytes]
    next_position: int
    at_end: bool
    """Nothing complete is left behind `next_position` now."""
    unread: Mapping[int, str] = field(default_factory=dict)
    """Why a value, by its index, is no record but the bytes of one that could not be read."""


Opening = Callable[[], Any]
"""Opens a file to read its bytes."""


class FileReader(Protocol):
    """Reads records of files of one format."""

    def read(self, opening: Opening, name: str, position: int, max_bytes: int, *, grows: bool) -> FileRecords:
        """Records from a position, about `max_bytes` of them and at least one if there is one. LogError for bytes that are no record."""
        ...

    def close(self) -> None:
        """Close the files that it has kept open."""
        ...


class _ReadsOpen(Protocol):
    """Reads a file that is handed in, positioned anywhere."""

    def read(self, file: Any, name: str, position: int, max_bytes: int, *, grows: bool) -> FileRecords:
        """See `FileReader.read`."""
        ...


class _Afresh:
    """Opens a file for each read: one that grows has more by then."""

    def __init__(self, reader: _ReadsOpen) -> None:
        self._reader = reader

    def read(self, opening: Opening, name: str, position: int, max_bytes: int, *, grows: bool) -> FileRecords:
        """See `FileReader.read`."""
        with closing(opening()) as file:
            return self._reader.read(file, name, position, max_bytes, grows=grows)

    def close(self) -> None:
        """See `FileReader.close`."""


class JsonLines:
    """A document a line; empty lines are passed. One above `record_bytes_max` is an error: it is more likely no line at all."""

    def __init__(self, record_bytes_max: int = DEFAULTS.record_bytes_max) -> None:
        self._record_bytes_max = record_bytes_max

    def read(self, file: Any, name: str, position: int, max_bytes: int, *, grows: bool) -> FileRecords:
        """See `FileReader.read`."""
        _check_place(file, name, position)
        _check_kind(file, name, position)
        file.seek(position)
        data: bytes = file.read(max_bytes)
        while data and b"\n" not in data:
            more = file.read(max_bytes)
            if not more:
                break
            data += more
            if b"\n" not in data:
                self._check(data, name, position)
        ended = data.rfind(b"\n") + 1
        whole = data[:ended]
        rest_is_record = not grows and len(data) > ended and not file.read(1)
        if rest_is_record:
            whole = data
        positions: list[int] = []
        values: list[bytes] = []
        at = position
        for line in whole.split(b"\n"):
            self._check(line, name, at)  # each line is checked, so that the size of a fetch does not matter
            text = line.removeprefix(_UTF8_MARK).strip() if at == 0 else line.strip()
            if text:
                positions.append(at)
                values.append(text)
            at += len(line) + 1
        next_position = position + len(whole)
        file.seek(next_position)
        # A line that has begun is nothing yet in a file that grows.
        left = file.read(1)
        return FileRecords(positions, values, next_position, at_end=not left or (grows and ended == 0))

    def _check(self, line: bytes, name: str, position: int) -> None:
        if len(line) > self._record_bytes_max:
            raise LogError(
                f"{name}: no end of line within {self._record_bytes_max} bytes from byte {position}; is it JSON lines? "
                "options.limits.recordBytes allows longer ones"
            )


@dataclass(frozen=True, slots=True)
class _BrokenRecord:
    """A record that is none: its bytes, and where the next one begins."""

    data: bytes
    next_position: int
    reason: str


class CsvRecords:
    """A header, then a record a line (quoted fields may have line ends). Empty fields are missing, and so are those behind a short record.

    Fields are strings, but for those with another declared type; a value that does not convert stays a string, for the schema to refuse.
    A record with more fields than the header, or with bytes that are no UTF-8, is unread as a whole. Where quotes are wrong only its first
    line is: a quote that nothing closes must not take the rest of the file with it.
    """

    def __init__(
        self, types: Mapping[str, str], delimiter: str = ",", record_bytes_max: int = DEFAULTS.record_bytes_max
    ) -> None:
        self._types = types
        self._delimiter = delimiter
        self._record_bytes_max = record_bytes_max
        # The library's own bound of a field is the process': it must not be below that of a record.
        csv.field_size_limit(max(csv.field_size_limit(), record_bytes_max))

    def read(self, file: Any, name: str, position: int, max_bytes: int, *, grows: bool) -> FileRecords:
        """See `FileReader.read`."""
        _check_place(file, name, position)
        _check_kind(file, name, position)
        header, start = self._header(file, name, grows=grows)
        if header is None:
            return FileRecords([], [], position, at_end=True)
        lines = CsvLines(file, self._record_bytes_max, name, max(position, start))
        start = lines.at
        positions: list[int] = []
        values: list[bytes] = []
        unread: dict[int, str] = {}
        records = self._records(lines)
        many = CsvMany(file, header, self._types, self._delimiter, self._record_bytes_max)
        while lines.at - start < max_bytes:
            places, documents, begin = many.read(lines.at, start + max_bytes)
            if begin > lines.at:
                positions += places
                values += documents
                lines = CsvLines(file, self._record_bytes_max, name, begin)
                records = self._records(lines)
                continue
            record = self._next(records, lines, len(header), grows=grows)
            if record is None:
                return FileRecords(positions, values, begin, at_end=True, unread=unread)
            if isinstance(record, _BrokenRecord):
                positions.append(begin)
                unread[len(values)] = record.reason
                values.append(record.data)
                lines = CsvLines(file, self._record_bytes_max, name, record.next_position)
                records = self._records(lines)
            elif record:
                positions.append(begin)
                values.append(render_json(self._document(header, record)))
        return FileRecords(positions, values, lines.at, at_end=False, unread=unread)

    def _header(self, file: Any, name: str, *, grows: bool) -> tuple[list[str] | None, int]:
        """The names of the fields, None if there are none yet; and where the records begin."""
        lines = CsvLines(file, self._record_bytes_max, name)
        found = self._next(self._records(lines), lines, None, grows=grows)
        if isinstance(found, _BrokenRecord):
            raise LogError(f"{name}: byte 0: not CSV in UTF-8: {found.reason}")
        _check_names(name, found or ())
        return found, lines.at

    def _next(
        self, records: Iterator[list[str]], lines: CsvLines, fields_max: int | None, *, grows: bool
    ) -> list[str] | _BrokenRecord | None:
        """The next whole record; None at the end, and for a record that is not whole yet."""
        lines.begin_record()
        try:
            record = next(records, None)
        except csv.Error as error:
            # An open quote at the end of a file that grows may yet be closed.
            if grows and (lines.ended or not lines.complete):
                return None
            return _BrokenRecord(lines.between(lines.first_end), lines.first_end, f"its quotes are no CSV: {error}")
        if record is None or (grows and not lines.complete):
            return None
        if lines.undecodable:
            return _BrokenRecord(lines.between(lines.at), lines.at, f"it is not UTF-8: {lines.undecodable}")
        if fields_max is not None and len(record) > fields_max:
            return _BrokenRecord(
                lines.between(lines.at), lines.at, f"it has {len(record)} fields, but the header names {fields_max}"
            )
        return record

    def _records(self, lines: CsvLines) -> Iterator[list[str]]:
        return csv.reader(lines, delimiter=self._delimiter, strict=True)

    def _document(self, header: list[str], record: list[str]) -> Document:
        return {
            field: value_of(text, self._types.get(field)) for field, text in zip(header, record, strict=False) if text
        }


_PARQUET_BYTES: Final = 1 << 20
"""Of Parquet's rows that are unpacked together; as many rows as make the work for each batch small."""
_PARQUET_ROWS: Final = 16_384
"""At most, however short they are."""
_BEGUN_BYTES: Final = 64 << 20
"""Packed bytes of the row groups that are open, beside the one that was read last."""
_BEGUN_LEAST: Final = 4 << 20
"""So much each of them counts at the least, so that few files are open."""


@dataclass(slots=True)
class _Begun:
    """A row group that was read in part. To go on, a reader would else unpack it from its first row, at each read."""

    file: Any
    batches: Iterator[pa.RecordBatch]
    skipped: int
    """Rows of the next batches that are not wanted."""
    end: int
    """The number of the row behind it."""
    rows: int
    """How many rows the file has."""
    size: int
    """Its packed bytes."""


class ParquetRows:
    """Rows as documents; null cells are missing fields."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, int], _Begun] = {}
        """By the file and the row to go on with, in the order in which they were read. Threads that read and count take them away."""

    def read(self, opening: Opening, name: str, position: int, max_bytes: int, *, grows: bool) -> FileRecords:
        """See `FileReader.read`. A Parquet file is complete or none: it does not grow."""
        begun = self._begun.pop((name, position), None)
        goes_on = begun is not None
        try:
            begun = begun or self._begin(opening(), name, position)
            if begun is None:
                return FileRecords([], [], position, at_end=True)
            try:
                values = self._values(begun, max_bytes)
            except BaseException:
                begun.file.close()
                raise
        except pa.ArrowInvalid as error:
            raise LogError(f"{name}: not a Parquet file: {error}; files must appear complete, by a rename") from error
        next_position = position + len(values)
        if position and next_position < begun.end:
            self._keep((name, next_position), begun)
        else:
            # A read from the beginning may be a look at the first rows alone.
            begun.file.close()
        # A file that was written again, with more rows, is seen when it is opened again.
        at_end = next_position >= begun.rows and not goes_on
        return FileRecords(list(range(position, next_position)), values, next_position, at_end)

    def close(self) -> None:
        """See `FileReader.close`."""
        while self._begun:
            self._begun.popitem()[1].file.close()

    def _keep(self, place: tuple[str, int], begun: _Begun) -> None:
        self._let_go(place)
        left = _BEGUN_BYTES
        for older, each in reversed(list(self._begun.items())):
            left -= max(each.size, _BEGUN_LEAST)
            if left < 0:
                self._let_go(older)
        self._begun[place] = begun

    def _let_go(self, place: tuple[str, int]) -> None:
        if (begun := self._begun.pop(place, None)) is not None:
            begun.file.close()

    def _begin(self, file: Any, name: str, position: int) -> _Begun | None:
        """The row group that holds a row, which comes next; None behind the last row."""
        found: _Begun | None = None
        try:
            # Times of 96 bits (Spark's): the years 1 to 9999 do not fit 64 bits of nanoseconds.
            parquet = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
            _check_names(name, parquet.schema_arrow.names)
            group, first = self._group_of(parquet, position)
            if position > parquet.metadata.num_rows:
                raise LogError(_replaced(name, position, parquet.metadata.num_rows, "rows"))
            if group is None:
                return None
            # A few at a time: a group may be as large as its writer liked.
            known = parquet.metadata.row_group(group)
            rows = min(max(_PARQUET_BYTES * known.num_rows // max(known.total_byte_size, 1), 1), _PARQUET_ROWS)
            rows = Pieces(file, parquet.metadata).rows(group, rows)
            batches = parquet.iter_batches(batch_size=rows, row_groups=[group])
            size = sum(known.column(column).total_compressed_size for column in range(known.num_columns))
            found = _Begun(file, batches, position - first, first + known.num_rows, parquet.metadata.num_rows, size)
            return found
        finally:
            if found is None:
                file.close()

    def _values(self, begun: _Begun, max_bytes: int) -> list[bytes]:
        values: list[bytes] = []
        size = 0
        for batch in begun.batches:
            gone = min(begun.skipped, batch.num_rows)
            begun.skipped -= gone
            texts = texts_of(batch.slice(gone))
            values += texts
            size += sum(map(len, texts))
            if values and size >= max_bytes:
                break
        return values

    def _group_of(self, parquet: Any, row: int) -> tuple[int | None, int]:
        """The row group that holds a row, and the number of its first row."""
        first = 0
        for group in range(parquet.num_row_groups):
            count = parquet.metadata.row_group(group).num_rows
            if row < first + count:
                return group, first
            first += count
        return None, first


def _check_names(name: str, fields: Sequence[str]) -> None:
    repeated = sorted(field for field, count in Counter(filter(None, fields)).items() if count > 1)
    if repeated:
        raise LogError(f"{name}: expected fields of different names, found {repeated[0]!r} more than once; rename one")


def _check_kind(file: Any, name: str, position: int) -> None:
    """Text is expected. Of something else every line would be a dead letter, and the file would count as read."""
    if position:
        return
    file.seek(0)
    begin: bytes = file.read(8)
    for mark, kind in _OTHER_KINDS.items():
        if begin.startswith(mark):
            raise LogError(
                f"{name}: expected text in UTF-8, found a file that is {kind}; unpack or convert it, or leave it out of $source.path"
            )


def _check_place(file: Any, name: str, position: int) -> None:
    """A record begins at this byte, or nothing does: else another file lies where the one was that was read."""
    size = file.seek(0, 2)
    if position > size:
        raise LogError(_replaced(name, position, size, "bytes"))
    if 0 < position < size:
        file.seek(position - 1)
        if file.read(1) != b"\n":
            raise LogError(
                f"{name}: byte {position} is to be read next, but no line begins there: the file was replaced, or its last line went on"
                " after it had been read; files that are being read may only be added to"
            )


def _replaced(name: str, position: int, size: int, unit: str) -> str:
    return (
        f"{name}: position {position} is to be read next, but the file has {size} {unit}: it was replaced or cut;"
        " files that are being read may only be added to"
    )


def reader_of(
    format_: FileFormat, types: Mapping[str, str], record_bytes_max: int = DEFAULTS.record_bytes_max
) -> FileReader:
    """The reader of a format. `types`: declared type by field, for CSV; `record_bytes_max`: of a line."""
    match format_:
        case "json":
            return _Afresh(JsonLines(record_bytes_max))
        case "csv":
            return _Afresh(CsvRecords(types, record_bytes_max=record_bytes_max))
        case "parquet":
            return ParquetRows()
