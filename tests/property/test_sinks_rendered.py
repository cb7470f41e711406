"""Rows rendered a column at a time are the bytes that each would be alone; runs are held and divided without losing a record."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property import test_compiled_documents as documents
from tests.property.language_strategies import DOCUMENTS
from tidemark.services.sink.connectors.kafkaruns import HeldRuns, TopicRun, decode_runs, encode_runs, sizes_of
from tidemark.shared.adapters.kafka_packed import packed
from tidemark.shared.language.stages import DateFormat, OutputFormat
from tidemark.shared.language.values import ExtendedJsonError, encode_value, parse_json, render_json, written
from tidemark.shared.model.values import Document, Long
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.batches import TIMESTAMP, documents_of
from tidemark.shared.operators.rendered import rendered
from tidemark.shared.ports.log import NewRecord, RecordColumns

COLUMNS = {
    "s": (pa.string(), st.text(max_size=5)),
    "i": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "l": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "b": (pa.bool_(), st.booleans()),
    "d": (pa.float64(), st.sampled_from([0.5, -0.0, 1e300, float("nan"), 3.0])),
    "t": (TIMESTAMP, st.sampled_from([0, 1, 1_700_000_000_000, -5, 2**45])),
    'odd "name"\n': (pa.int32(), st.just(1)),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows of some declared fields, now and then with a missing one."""
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True))
    rows = draw(st.integers(1, 12))
    arrays = []
    for name in names:
        kind, cells = COLUMNS[name]
        optional = cells if draw(st.integers(0, 9)) else st.none() | cells
        values = draw(st.lists(optional, min_size=rows, max_size=rows))
        arrays.append(pa.array(values, pa.int64()).cast(kind) if kind == TIMESTAMP else pa.array(values, kind))
    return pa.RecordBatch.from_arrays(arrays, names=names)


def check(batch: pa.RecordBatch) -> None:
    """Byte for byte what the interpreter renders."""
    assert rendered(batch).to_pylist() == [render_json(document) for document in documents_of(batch)]


@given(batches())
def test_what_is_rendered_at_once_is_what_each_is_alone(batch: pa.RecordBatch) -> None:
    """Columns of each type, with cells that are missing."""
    check(batch)
    check(batch.slice(1))


FIELDS = {
    "s": pa.array(["x", None, 'q"\n\x01'], pa.string()), "i": pa.array([1, None, -7], pa.int32()), "a": pa.array([None, 2.5, 1e22]),
    "list": pa.array([[1, 2], None, []], pa.list_(pa.int64())), "t": pa.array([1, None, -1], pa.int64()).cast(TIMESTAMP),
    "é": pa.array([True, None, False]),
    "tagged": pa.array([encode_value({"a": [1, {"b": "é"}]}), None, encode_value(Long(5))], pa.binary()),
}  # fmt: skip
MARKS = {"tagged": {b"tagged": b"1"}, "missing": {b"empty": b"missing"}, "null": {b"empty": b"null"}, "ask": None}


@given(
    texts=st.lists(documents.texts(), min_size=3, max_size=3),
    names=st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=4),
    marks=st.sampled_from(["missing", "null", "ask"]),
    encoded=st.booleans(),
)
@settings(max_examples=400)
def test_documents_with_fields_from_columns_are_rendered_as_the_interpreter_does(
    texts: list[bytes], names: list[str], marks: str, encoded: bool
) -> None:
    """What nobody touched is copied, in JSON or in the compact codec; columns take the places of fields, or come behind."""
    try:
        found = [parse_json(text) for text in texts]
    except ExtendedJsonError:
        return
    if any(type(document) is not dict for document in found):
        return
    under = pa.array([encode_value(document) for document in found] if encoded else texts, pa.binary())
    fields = [
        pa.field(name, FIELDS[name].type, metadata=MARKS["tagged" if name == "tagged" else marks]) for name in names
    ]
    schema = pa.schema([*fields, pa.field(REST if encoded else RAW, pa.binary())])
    check(pa.RecordBatch.from_arrays([*(FIELDS[name] for name in names), under], schema=schema))


@pytest.mark.parametrize("encoded", [True, False])
def test_documents_are_rendered_without_the_interpreter(encoded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested objects, dates, escapes and numbers of all sizes are not looked at one by one."""
    text = b'{"a": {"b":[1,{"c":"\\u00e9\\n"},[],{}]},"t":{"$date":"2024-01-01T00:00:00.5Z"},"d":1e21,"n":null,"l":{"$numberLong":"5"}}'
    under = pa.array([encode_value(parse_json(text)) if encoded else text], pa.binary())
    batch = pa.RecordBatch.from_arrays([pa.array(["v"]), under], names=["n", REST if encoded else RAW])
    expected = [render_json(document) for document in documents_of(batch)]
    monkeypatch.setattr("tidemark.shared.operators.rendered.documents_of", lambda _batch: pytest.fail("looked at"))
    assert rendered(batch).to_pylist() == expected


@given(st.lists(st.floats(), max_size=200))
def test_doubles_are_rendered_as_short_as_can_be(numbers: list[float]) -> None:
    """The shortest text that is read as the same double, in the interpreter's form."""
    check(pa.RecordBatch.from_arrays([pa.array(numbers, pa.float64())], names=["d"]))


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 253_402_300_800_000), max_size=50))
def test_dates_are_rendered_as_instants_or_numbers(times: list[int]) -> None:
    """From 1970 to 9999 as ISO 8601."""
    check(pa.RecordBatch.from_arrays([pa.array(times, pa.int64()).cast(TIMESTAMP)], names=["t"]))


@given(
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=9), max_size=6),
    st.integers(1, 7),
    st.integers(1, 900),
)
def test_parts_have_every_record_once_and_in_order(texts: list[list[bytes]], records_max: int, bytes_max: int) -> None:
    """Within the bounds, but for a single record that exceeds them."""
    held = HeldRuns()
    for number, values in enumerate(texts):
        held.add(TopicRun(f"t{number}", RecordColumns.of([NewRecord(value) for value in values])))
    found: list[tuple[str, bytes | None]] = []
    while held.count:
        runs = held.first(records_max, bytes_max)
        held.drop(runs)
        part = [
            (run.topic, value) for run in decode_runs(encode_runs(runs)) for value in run.columns.values.to_pylist()
        ]
        size = sum(int(sizes_of(run.columns).sum()) for run in runs)
        assert 1 <= len(part) <= records_max
        assert size <= bytes_max or len(part) == 1
        found += part
    assert held.size_bytes == 0
    assert found == [(f"t{number}", value) for number, values in enumerate(texts) for value in values]


FORMS = [
    (output, dates) for output in ("relaxedJson", "canonicalJson", "basicJson") for dates in ("default", "ISO8601")
]


@pytest.mark.parametrize(("output", "dates"), FORMS)
@given(found=st.lists(DOCUMENTS, max_size=5), encoded=st.booleans(), canonical=st.booleans())
@settings(max_examples=60)
def test_every_form_is_that_of_the_interpreter(
    output: OutputFormat, dates: DateFormat, found: list[Document], encoded: bool, canonical: bool
) -> None:
    """Values of all types, in documents as they are read and as operators make them."""
    texts = [encode_value(each) if encoded else render_json(each, canonical=canonical) for each in found]
    batch = pa.RecordBatch.from_arrays([pa.array(texts, pa.binary())], names=[REST if encoded else RAW])
    assert rendered(batch, output, dates).to_pylist() == [written(each, output, dates) for each in documents_of(batch)]


@pytest.mark.parametrize(("output", "dates"), FORMS)
@given(batches())
def test_columns_are_written_in_every_form(output: OutputFormat, dates: DateFormat, batch: pa.RecordBatch) -> None:
    """As documents are."""
    assert rendered(batch, output, dates).to_pylist() == [written(each, output, dates) for each in documents_of(batch)]


@given(st.lists(st.floats(), max_size=200))
def test_canonical_doubles_are_those_of_python(numbers: list[float]) -> None:
    """Exponents have a sign, and two digits."""
    batch = pa.RecordBatch.from_arrays([pa.array(numbers, pa.float64())], names=["d"])
    texts = rendered(batch, "canonicalJson").to_pylist()
    assert texts == [render_json(document, canonical=True) for document in documents_of(batch)]


@given(st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=3), st.binary(max_size=9))
def test_runs_of_a_part_are_packed_wherever_they_lie_in_it(topics: list[str], value: bytes) -> None:
    """Names of any length stand between them; compiled code takes numbers alone that begin at places for numbers."""
    columns = RecordColumns.of([NewRecord(value, None, (("h", b"1"),), 5), NewRecord(b"x", b"k", (), 6)])
    runs = decode_runs(encode_runs([TopicRun(topic, columns) for topic in topics]))
    (expected,) = packed(columns, 1_000, None, transactional=True)
    for run in runs:
        (batch,) = packed(run.columns, 1_000, None, transactional=True)
        assert (batch.record_count(), batch.size()) == (expected.record_count(), expected.size())
