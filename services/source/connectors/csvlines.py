"""Lines of a CSV file as text, with the bytes of each record. `csv` tells neither where a record begins nor which bytes it cannot read.

Many records at once are read by compiled code, where it gives the documents that the plain reader gives for each: those of a file, and
those of a topic.
"""

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from tidemark.shared.compiled import csv
from tidemark.shared.language.values import render_json
from tidemark.shared.ports.log import LogError

_UTF8_MARK: Final = b"\xef\xbb\xbf"


class CsvLines:
    """An iterator for `csv.reader`, positioned at a byte. A record above the bound is a LogError: it is more likely none at all."""

    def __init__(self, file: Any, record_bytes_max: int, name: str, at: int = 0) -> None:
        file.seek(at)
        self._file = file
        self._most = record_bytes_max
        self._name = name
        self.at = at
        self.begin = at
        """Where the record began: with quoted fields it may have many lines."""
        self.first_end = at
        """Where its first line ends."""
        self.complete = True
        """The last line had its end."""
        self.ended = False
        """There was no further line."""
        self.undecodable = ""
        """The bytes of the record that are not UTF-8."""

    def begin_record(self) -> None:
        """The lines read next belong to another record."""
        self.begin = self.first_end = self.at
        self.undecodable = ""

    def between(self, end: int) -> bytes:
        """The record's bytes up to a position, without its line end. Reading goes on where it was."""
        self._file.seek(self.begin)
        data: bytes = self._file.read(end - self.begin)
        self._file.seek(self.at)
        return data.rstrip(b"\r\n")

    def __iter__(self) -> "CsvLines":
        return self

    def __next__(self) -> str:
        line: bytes = self._file.readline(self._most)
        if not line:
            self.ended = True
            raise StopIteration
        text = line.removeprefix(_UTF8_MARK) if self.at == 0 else line
        first = self.at == self.begin
        self.at += len(line)
        self.first_end = self.at if first else self.first_end
        self.complete = line.endswith(b"\n")
        if self.at - self.begin > self._most or (not self.complete and len(line) == self._most):
            raise LogError(
                f"{self._name}: byte {self.begin}: no end of a record within {self._most} bytes;"
                " options.limits.recordBytes allows longer ones"
            )
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            self.undecodable = (
                self.undecodable
                or f"byte {text[error.start]:#04x} at its byte {self.at - len(line) - self.begin + error.start}"
            )
            return text.decode("utf-8", "replace")


_BLOCK_BYTES: Final = 1 << 20
"""Of the file, in memory at a time."""
_AHEAD_BYTES: Final = 1 << 16
"""Where less is left of a block, the next one is loaded: a record of this size is whole in one of them."""
_GROWTH: Final = 4
"""Bytes of documents for a byte of the file; what needs more is read in more passes."""
_RECORD_BYTES_MIN: Final = 2
"""A character and the end of a line."""
_PLAIN_MAX: Final = 64
"""Records that the plain reader takes before the compiled one looks again, where it finds none."""
_KINDS: Final = {"int": csv.WHOLE, "long": csv.WHOLE, "double": csv.DOUBLE, "decimal": csv.DECIMAL, "bool": csv.BOOL}


class CsvMany:
    """Reads records of a file that is open. It ends before one that the plain reader has to take."""

    def __init__(
        self, file: Any, header: Sequence[str], types: Mapping[str, str], delimiter: str, record_bytes_max: int
    ) -> None:
        names = [render_json(name) + b":" for name in header]
        self._names = np.frombuffer(b"".join(names), np.uint8)
        self._name_ends = np.cumsum([len(name) for name in names], dtype=np.int64)
        self._kinds = np.array([_KINDS.get(types.get(name, ""), csv.TEXT) for name in header], np.int64)
        # A name that stands twice keeps its first place and its last value: the plain reader's.
        self._possible = len(set(header)) == len(header) > 0 and len(delimiter.encode()) == 1
        self._delimiter, self._most, self._file = ord(delimiter), record_bytes_max, file
        self._begin = self._end = 0
        self._text, self._out, self._places, self._offsets = np.empty(0, np.uint8), *(np.empty(0, np.uint8),) * 3
        self._plain, self._left = 1, 0

    def read(self, at: int, until: int) -> tuple[list[int], list[bytes], int]:
        """(where they begin, documents, where the next begins) of the records from a byte that begin before another."""
        if not self._possible:
            return [], [], at
        if self._left:
            self._left -= 1
            return [], [], at
        if not self._begin <= at < self._end - _AHEAD_BYTES:
            self._load(at, until)
        count, place = csv.read(
            self._text, at - self._begin, min(until, self._end) - self._begin, self._end - self._begin, self._most, self._delimiter,
            self._names, self._name_ends, self._kinds, self._out, self._places, self._offsets,
        )  # fmt: skip
        behind = self._begin + place
        self._plain = 1 if behind > at else min(2 * self._plain, _PLAIN_MAX)
        self._left = self._plain - 1
        offsets = self._offsets[: count + 1].tolist()
        documents = self._out[: offsets[-1]].tobytes()
        values = [documents[begin:end] for begin, end in pairwise(offsets)]
        return (self._places[:count] + self._begin).tolist(), values, behind

    def _load(self, at: int, until: int) -> None:
        self._file.seek(at)
        data = self._file.read(min(_BLOCK_BYTES, until - at) + _AHEAD_BYTES)
        self._file.seek(at)  # the plain reader goes on there
        self._begin, self._end = at, at + len(data)
        self._text = np.empty(2 * len(data) + 128, np.uint8)
        self._text[: len(data)] = np.frombuffer(data, np.uint8)
        self._out = np.empty(_GROWTH * len(data) + _AHEAD_BYTES, np.uint8)
        self._places = np.empty(len(data) // _RECORD_BYTES_MIN + 1, np.int64)
        self._offsets = np.empty(len(self._places) + 1, np.int64)


def csv_documents(
    records: Sequence[bytes], names: Sequence[str], types: Mapping[str, str], delimiter: str
) -> dict[int, bytes]:
    """The documents of records that are a line each, by row, of those that the compiled reader takes."""
    begins = np.cumsum([0, *(len(record) + 1 for record in records)])
    rows = {begin: row for row, begin in enumerate(begins.tolist())}
    text = io.BytesIO(b"\n".join([*records, b""]))
    many = CsvMany(text, names, types, delimiter, int(begins[-1]) + 1)
    found: dict[int, bytes] = {}
    at, until = 0, int(begins[-1])
    while at < until:
        places, documents, behind = many.read(at, until)
        for (begin, end), document in zip(pairwise([*places, behind]), documents, strict=True):
            # A record may have several lines, or a quote that takes the next record in.
            if (row := rows.get(begin, -1)) >= 0 and rows.get(end) == row + 1:
                found[row] = document
        at = behind if behind > at else int(begins[np.searchsorted(begins, at, side="right")])
    return found
