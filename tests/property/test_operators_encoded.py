"""Rows encoded by compiled code are the bytes that the codec makes of each document."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property import test_compiled_documents as documents
from tests.property.test_sinks_rendered import FIELDS, MARKS, batches
from tidemark.shared.language.values import ExtendedJsonError, encode_docs, encode_value, parse_json
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.batches import NARROW, documents_of
from tidemark.shared.operators.encoded import encoded


def check(batch: pa.RecordBatch, without: tuple[str, ...] = ()) -> None:
    """Byte for byte what the codec makes of the documents, but for the fields left out."""
    found = [{n: v for n, v in d.items() if n not in without} for d in documents_of(batch)]
    assert encoded(batch, without).to_pylist() == encode_docs(found)


@given(batches())
def test_columns_alone_are_encoded_as_documents_are(batch: pa.RecordBatch) -> None:
    """Columns of each type, with cells that are missing."""
    check(batch)
    check(batch.slice(1))
    check(batch, ("i", "other"))


@given(
    texts=st.lists(documents.texts(), min_size=3, max_size=3),
    names=st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=4),
    marks=st.sampled_from(["missing", "null", "ask"]),
    packed=st.booleans(),
    without=st.sampled_from([(), ("s",), ("tagged", "nowhere"), ("a",)]),
)
@settings(max_examples=400)
def test_documents_with_fields_from_columns_are_encoded_as_the_interpreter_does(
    texts: list[bytes], names: list[str], marks: str, packed: bool, without: tuple[str, ...]
) -> None:
    """What nobody touched is copied or read from JSON; columns take the places of fields, or come behind."""
    try:
        found = [parse_json(text) for text in texts]
    except ExtendedJsonError:
        return
    if any(type(document) is not dict for document in found):
        return
    under = pa.array([encode_value(document) for document in found] if packed else texts, pa.binary())
    fields = [
        pa.field(
            n, FIELDS[n].type, metadata=MARKS["tagged" if n == "tagged" else marks] or ({} if n != "i" else NARROW)
        )
        for n in names
    ]
    arrays = [*(FIELDS[name] for name in names), under]
    schema = pa.schema([*fields, pa.field(REST if packed else RAW, pa.binary())])
    check(pa.RecordBatch.from_arrays(arrays, schema=schema), without)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 300, 70_000])
@pytest.mark.parametrize("form", ["object", "array"])
def test_headers_of_every_size_are_the_codecs(count: int, form: str) -> None:
    """Objects and arrays of so many values, in each other and beside a string of as many characters."""
    inner = [1] * count if form == "array" else {f"n{i}": i for i in range(count)}
    texts = [
        json.dumps({"a": inner, "s": "x" * count, "b": [inner, {}]}).encode(),
        json.dumps({"é": [[inner]]}).encode(),
    ]
    check(pa.RecordBatch.from_arrays([pa.array(texts, pa.binary())], names=[RAW]))
    if form == "object":
        check(pa.RecordBatch.from_arrays([pa.array([json.dumps(inner).encode()], pa.binary())], names=[RAW]), ("n3",))


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.floats() | st.integers(-(2**17), 2**17), max_size=20))
def test_numbers_of_every_size_are_the_codecs(numbers: list[float]) -> None:
    """Whole numbers take the fewest bytes, doubles nine."""
    text = json.dumps({"n": numbers}).replace("Infinity", "1e300").replace("NaN", "0.5").encode()
    check(pa.RecordBatch.from_arrays([pa.array([text], pa.binary())], names=[RAW]))
