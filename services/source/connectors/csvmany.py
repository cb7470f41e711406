"""Many records of a CSV file at once, by compiled code: the documents that the plain reader gives for each."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from tidemark.shared.compiled import csv
from tidemark.shared.language.values import render_json

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
