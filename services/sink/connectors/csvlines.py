"""Documents as lines of CSV, by compiled code; `line_of` defines them."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import csv_writing
from tidemark.shared.compiled.columns import bitmap
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.compiled.rendering import room_to_work
from tidemark.shared.language.csv_cells import text_of
from tidemark.shared.language.values import decode_doc, encode_value
from tidemark.shared.model.values import Document

_END: Final = "\r\n"
_GROWTH: Final = 8
"""How many times as long as in the codec a value's text may be: control characters and dates in JSON are, with quotes."""
_ROW_BYTES: Final = 64
"""Of a line, without values and delimiters."""
_COLUMNS, _NAME_BYTES = 64, 1024
"""Room for columns at first; it doubles."""


def csv_bytes(documents: pa.ChunkedArray, delimiter: str = ",", fields: Sequence[str] = ()) -> bytes:
    """A header and a line a document. documents: encoded.

    fields: the columns, in their order, of which documents have no other; without them those in which fields first appear in this file.
    """
    columns = _CsvHeader.of(pa.chunked_array([_headed(fields)])) if fields else _CsvHeader.of(documents)
    header = _line(columns.names, delimiter)
    return b"".join([header, *(_lines(chunk, columns, delimiter) for chunk in documents.chunks)])


def csv_records(documents: pa.BinaryArray, fields: Sequence[str], delimiter: str) -> pa.BinaryArray | None:
    """A line a document with a cell for each of these fields, without its end, null where `line_of` has to make it; None: for all.

    documents: encoded.
    """
    columns = _CsvHeader.of(pa.chunked_array([_headed(fields), documents]))
    if len(columns.names) > len(fields):
        return None
    out, offsets, sure = _written(documents, columns, delimiter)
    ends = offsets[1:][sure]
    kept = np.ones(offsets[-1], np.bool_)
    kept[ends - 1] = kept[ends - 2] = False
    offsets[1:] -= len(_END) * np.cumsum(sure)
    buffers_ = [bitmap(sure), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out[: len(kept)][kept])]
    return pa.Array.from_buffers(pa.binary(), len(documents), buffers_)


def _headed(fields: Sequence[str]) -> pa.BinaryArray:
    return pa.array([encode_value(dict.fromkeys(fields))], pa.binary())


def line_of(document: Document, fields: Sequence[str], delimiter: str) -> bytes:
    """Text as it is, numbers and ISO dates bare, null and missing empty, nested values as relaxed extended JSON."""
    return _line([text_of(document.get(field)) for field in fields], delimiter)


def _line(cells: Sequence[str], delimiter: str) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=_END, delimiter=delimiter).writerow(cells)
    return out.getvalue().encode()


@dataclass(frozen=True, slots=True)
class _CsvHeader:
    """The names of a file's columns, and the table by which they are found."""

    names: list[str]
    tables: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]

    @classmethod
    def of(cls, documents: pa.ChunkedArray, room: int = 1) -> "_CsvHeader":
        """Of all documents; with twice the room where it is not enough."""
        text, ends = np.empty(room * _NAME_BYTES, np.uint8), np.empty(room * _COLUMNS, np.int64)
        slots, count = np.zeros(2 * room * _COLUMNS, np.int64), 0
        for chunk in documents.chunks:
            count = csv_writing.columns(*buffers(chunk), text, ends, slots, count)
            if count < 0:
                return cls.of(documents, 2 * room)
        bounds = [0, *ends[:count].tolist()]
        names = [text[begin:end].tobytes().decode() for begin, end in pairwise(bounds)]
        return cls(names, (text, ends, slots))


def _written(documents: pa.BinaryArray, columns: _CsvHeader, delimiter: str) -> tuple[Any, Any, Any]:
    """(lines one behind the other, where they begin and the last one ends, which of them the compiled code has written)."""
    text, bounds = buffers(documents)
    count, width = len(documents), len(columns.names)
    room = _GROWTH * int(bounds[-1] - bounds[0]) + count * (_ROW_BYTES + width) + _ROW_BYTES
    out, offsets, sure = np.empty(room, np.uint8), np.empty(count + 1, np.int64), np.ones(count, np.bool_)
    stack, cells = room_to_work(0, 0)[1], np.full(width, -1, np.int64)
    if delimiter.isascii():
        csv_writing.write(text, bounds, *columns.tables, width, ord(delimiter), cells, out, offsets, sure, stack)
    else:
        offsets[:], sure[:] = 0, False
    return out, offsets, sure


def _lines(documents: pa.BinaryArray, columns: _CsvHeader, delimiter: str) -> bytes:
    return b"".join(_pieces(documents, columns, delimiter, *_written(documents, columns, delimiter)))


def _pieces(
    documents: pa.BinaryArray, columns: _CsvHeader, delimiter: str, out: Any, offsets: Any, sure: Any
) -> list[bytes]:
    """The compiled lines, with those of `line_of` between them."""
    pieces: list[bytes] = []
    begin = 0
    for row in np.flatnonzero(~sure).tolist():
        pieces += [
            out[begin : offsets[row]].tobytes(),
            line_of(decode_doc(documents[row].as_py()), columns.names, delimiter),
        ]
        begin = offsets[row]
    return [*pieces, out[begin : offsets[-1]].tobytes()]
