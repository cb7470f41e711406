"""Columns of documents read at once are those of the documents' values one by one; lines of JSON are each document's rendering."""

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property.language_strategies import DOCUMENTS, INTS, LONGS, NAMES, VALUES
from tidemark.services.sink.connectors.filerows import Encoding, RowBuffer
from tidemark.services.sink.connectors.tables import table_of, table_of_documents
from tidemark.shared.language.values import render_json
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.batches import column_field, documents_of, rest_of

LIKE = st.sampled_from([INTS, INTS | LONGS, INTS | st.floats(), st.text("ab", max_size=3), st.booleans(), VALUES])


def shown(table: pa.Table) -> list[str]:
    """The cells, as Arrow writes them: NaN is like itself, and no date is too far away."""
    return [f"{name} {table.column(name).combine_chunks().to_string(window=1_000)}" for name in table.column_names]


@st.composite
def alike(draw: st.DrawFn) -> list[Document]:
    """Documents whose fields mostly have one type each."""
    kinds = draw(st.dictionaries(NAMES, LIKE, max_size=4))
    fields = {name: kind | st.none() if draw(st.booleans()) else kind for name, kind in kinds.items()}
    return draw(st.lists(st.fixed_dictionaries({}, optional=fields), max_size=12))


@given(alike() | st.lists(DOCUMENTS, max_size=40))
@example([{"a": -(2**63)}, {"a": 1.5}])
@settings(max_examples=200)
def test_columns_of_documents_are_those_of_their_values(documents: list[Document]) -> None:
    """Types, order and cells, in the compact codec and in JSON, whatever the fields are called and have."""
    expected = table_of_documents(documents)
    for batch in (
        pa.RecordBatch.from_pydict({REST: rest_of(documents)}),
        pa.RecordBatch.from_pydict({RAW: pa.array([render_json(d, canonical=True) for d in documents], pa.binary())}),
    ):
        found = table_of(batch)
        assert found.schema == expected.schema
        assert shown(found) == shown(expected)


@given(alike(), st.data())
def test_a_declared_column_stays_beside_those_of_the_other_fields(
    documents: list[Document], data: st.DataObject
) -> None:
    """The declared field has the column's cells and type, however the documents call it, and a loose column is a field like any other."""
    cells = data.draw(st.lists(st.none() | INTS, min_size=len(documents), max_size=len(documents)))
    named = pa.field("b", pa.int32())
    loose = column_field(pa.int32(), empty="missing", loose=True).with_name("loose")
    array = pa.array(cells, pa.int32())
    batch = pa.RecordBatch.from_arrays(
        [array, array, rest_of(documents)], schema=pa.schema([named, loose, pa.field(REST, pa.binary())])
    )
    found = table_of(batch)
    others = [{name: value for name, value in d.items() if name != "b"} for d in documents_of(batch)]
    expected = table_of_documents(others)
    assert found.column_names[0] == "b"
    assert found.column("b").to_pylist() == cells
    assert shown(found.drop_columns(["b"])) == shown(expected)


@given(st.lists(DOCUMENTS, max_size=8))
def test_lines_of_json_are_the_documents_renderings(documents: list[Document]) -> None:
    """A file of JSON lines has each row's document as the interpreter renders it, in order."""
    rows = RowBuffer(Encoding("json"))
    assert not rows.add(pa.RecordBatch.from_pydict({REST: rest_of(documents[:3])}))
    assert not documents[3:] or not rows.add(pa.RecordBatch.from_pydict({REST: rest_of(documents[3:])}))
    (file,) = rows.files()
    assert file.data == b"".join(render_json(document) + b"\n" for document in documents)
    assert file.rows == len(documents)
