"""CSV files that are written, drawn: their bytes are those that `csv.writer` gives for each document's texts."""

import csv
import io
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.language_strategies import DOCUMENTS, SCALARS
from tests.property.test_sinks_rendered import batches
from tidemark.services.sink.connectors import csvlines
from tidemark.services.sink.connectors.csvlines import csv_bytes
from tidemark.services.sink.connectors.filerows import Encoding, RowBuffer
from tidemark.shared.language.csv_cells import text_of
from tidemark.shared.language.values import encode_docs
from tidemark.shared.model.values import Binary, Date, Document, ObjectId, long
from tidemark.shared.operators.batches import documents_of

_TEXTS = st.text(alphabet='a,;"\r\n\t \x00\u00e9\U0001f600', max_size=6)
_CELLS = st.one_of(
    _TEXTS, SCALARS, st.decimals(), st.floats(), st.integers(-(2**62), 2**62).map(Date), st.binary(max_size=5).map(Binary),
    st.lists(_TEXTS, max_size=3), st.dictionaries(_TEXTS, st.floats() | _TEXTS | st.booleans(), max_size=3),
)  # fmt: skip
_NAMES = st.sampled_from(["a", "b", "c", "", 'q"', "x,y", "\u00e9\n"])
_DRAWN = st.dictionaries(_NAMES | st.text(max_size=2), _CELLS, min_size=1, max_size=6)
_ROWS = st.lists(_DRAWN | DOCUMENTS.filter(bool), min_size=1, max_size=8)


def plain(documents: list[Document], delimiter: str) -> bytes:
    """By the library, each cell alone."""
    fields = list(dict.fromkeys(name for document in documents for name in document))
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\r\n", delimiter=delimiter)
    writer.writerow(fields)
    writer.writerows([text_of(document.get(field)) for field in fields] for document in documents)
    return out.getvalue().encode()


@settings(max_examples=400)
@given(st.lists(_ROWS, min_size=1, max_size=3), st.sampled_from([",", ";", "\t", "-", "1", "e", "\u00e9"]))
def test_documents_written_at_once_are_what_each_is_alone(chunks: list[list[Document]], delimiter: str) -> None:
    """In several pieces of one file, with names and cells of every kind."""
    encoded = pa.chunked_array([pa.array(encode_docs(rows), pa.binary()) for rows in chunks])
    assert csv_bytes(encoded, delimiter) == plain([row for rows in chunks for row in rows], delimiter)


@given(batches())
def test_declared_columns_are_what_their_documents_are(batch: pa.RecordBatch) -> None:
    """Cells of columns have the same text as those of documents."""
    buffer = RowBuffer(Encoding("csv"))
    refused = {rejected.row for rejected in buffer.add(batch)}
    kept = [document for row, document in enumerate(documents_of(batch)) if row not in refused]
    assert [file.data for file in buffer.files()] == ([plain(kept, ",")] if kept else [])


def test_more_columns_than_there_was_room_for() -> None:
    """A file of many names."""
    documents: list[Document] = [{f"name {n * k % 1009}": n, "x" * 500: k} for n in range(60) for k in range(30)]
    assert csv_bytes(pa.chunked_array([pa.array(encode_docs(documents), pa.binary())])) == plain(documents, ",")


def test_ordinary_lines_are_all_written_by_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody would see that it writes none."""
    documents: list[Document] = [
        {"t": 'say "a", b', "i": n, "l": long(2**40), "d": n / 7, "b": True, "at": Date(n), "m": Decimal("1.50"), "o": {"a": [n]},
         "id": ObjectId(bytes(range(12))), "z": None}
        for n in range(50)
    ]  # fmt: skip
    expected = plain(documents, ",")
    monkeypatch.delattr(csvlines, "line_of")
    assert csv_bytes(pa.chunked_array([pa.array(encode_docs(documents), pa.binary())])) == expected
