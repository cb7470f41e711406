"""Records of CSV in topics, and keys of MessagePack: what is written is read back, and what is no record says why."""

import asyncio
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.services.library.release_world import InlineSpawner
from tidemark.services.sink.connecting import forms_of
from tidemark.services.sink.connectors.formatted import FormattedForms
from tidemark.services.sink.connectors.kafkacells import RecordRefused
from tidemark.services.source.connecting import records_of
from tidemark.services.source.connectors.formatted import FormattedRecords
from tidemark.shared.language.documents import InvalidDocument, Processor, parse
from tidemark.shared.language.documents.model import plugin_uses
from tidemark.shared.language.stages import KafkaEmit, KafkaSource
from tidemark.shared.language.values import encode_docs, parse_json
from tidemark.shared.model.ids import SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.values import Date, Value, long
from tidemark.shared.plugins.csvline import CsvLine
from tidemark.shared.plugins.installed import make_of
from tidemark.shared.process.connections import Connections
from tidemark.testing import FormatContract

NAMES = ["id", "note", "n"]
TEXTS = st.text(st.characters(codec="utf-8"))


class TestCsv(FormatContract):
    """What others' formats have to keep."""

    plugin = CsvLine
    config: ClassVar[Mapping[str, Any]] = {"fields": NAMES, "delimiter": ";", "types": {"n": "int"}}
    documents = ({}, {"n": 7}, {"id": 'a;"b"', "note": "two\r\nlines", "n": -1}, {"note": "ü"})


def line(**config: Any) -> CsvLine:
    """A format of these cells."""
    return make_of("csv", CsvLine, {"fields": NAMES, **config}, {})


@given(cells=st.lists(TEXTS, min_size=3, max_size=3), delimiter=st.sampled_from([",", ";", "\t", "|", "ü"]))
def test_texts_come_back_whatever_they_hold(cells: list[str], delimiter: str) -> None:
    """Delimiters, quotes and line ends within them; an empty one is missing."""
    form = line(delimiter=delimiter)
    document: dict[str, Value] = {name: cell for name, cell in zip(NAMES, cells, strict=True) if cell}
    assert form.decode(form.encode(document)) == document


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a,b,1,more", "it has 4 cells, but csv.fields names 3"),
        (b"a,b,1\na,b,2", "expected one line, found 2"),
        (b"", "expected one line, found 0"),
        (b'a,"b', "its quotes are no CSV: unexpected end of data"),
        (b"a,\xff,1", "invalid start byte"),
    ],
)
def test_what_is_no_line_says_why(data: bytes, said: str) -> None:
    """A dead letter has it as its reason."""
    with pytest.raises(ValueError, match=said):
        line().decode(data)


def test_a_field_without_a_cell_is_not_dropped() -> None:
    """Nothing that a document has is lost on the way."""
    with pytest.raises(ValueError, match=r"no cell for the field 'other': name it in csv\.fields"):
        line().encode({"id": "a", "other": 1})


def test_a_cell_may_be_as_long_as_a_record() -> None:
    """The library's own bound is 128 KiB."""
    document: dict[str, Value] = {"id": "x" * 300_000}
    assert line().decode(line().encode(document)) == document


# --- topics -----------------------------------------------------------------------------------------------------------


def _parsed(source: dict[str, Any], emit: dict[str, Any]) -> Processor:
    ends = {"connectionName": "k", "topic": "t"}
    pipeline = [{"$source": ends | source}, {"$emit": ends | {"topic": "u"} | emit}]
    return parse(json.dumps({"connections": {"k": {"type": "kafka", "bootstrapServers": "b"}}, "pipeline": pipeline}))


def _ends(processor: Processor) -> tuple[FormattedRecords, FormattedForms]:
    source, emit = processor.pipeline[0], processor.pipeline[-1]
    assert isinstance(source, KafkaSource)
    assert isinstance(emit, KafkaEmit)
    connections = Connections("w")
    records, forms = (
        records_of(connections, processor, source, InlineSpawner()),
        forms_of(connections, processor, emit, InlineSpawner()),
    )
    assert isinstance(records, FormattedRecords)
    assert isinstance(forms, FormattedForms)
    return records, forms


def _batch(values: list[bytes | None], keys: list[bytes | None]) -> RawBatch:
    places = np.arange(len(values), dtype=np.int64)
    return RawBatch(SplitId("t-0"), 0, places, places, pa.array(values, pa.binary()), keys=pa.array(keys, pa.binary()))


async def test_a_topic_of_lines_is_read_and_written() -> None:
    """Declared fields have their types, the others are texts; tombstones stay; a line that is none keeps its bytes, with the reason."""
    csv = {"csv": {"fields": ["id", "at", "price"], "delimiter": ";"}}
    processor = _parsed({"format": csv, "schema": {"at": "long", "price": "decimal"}}, {"format": csv})
    assert not list(plugin_uses(processor.pipeline))
    records, forms = _ends(processor)
    found = await records.decoded(_batch([b"a;5;0.10", None, b"b;x", b"a;b;c;d"], [None] * 4))
    documents = [None if text is None else parse_json(text) for text in found.values.to_pylist()[:3]]
    assert documents == [{"id": "a", "at": 5, "price": Decimal("0.10")}, None, {"id": "b", "at": "x"}]
    assert found.unread == {
        3: "pipeline[0].$source.format, format csv: ValueError: it has 4 cells, but csv.fields names 3"
    }
    await forms.prepare("u")
    assert forms.value({"id": "a;b", "at": Date(0)}, lambda: b"", "u") == b'"a;b";1970-01-01T00:00:00Z;'
    with pytest.raises(RecordRefused, match="no cell for the field 'more'"):
        forms.value({"more": 1}, lambda: b"", "u")


PIECES = st.sampled_from([
    b"a", b"12", b"-0", b"1.50", b"1e5", b"true", b"x" * 70, b",", b";", b'"', b'""', b"\n", b"\r\n", b"\r", b" ", b"\xc3\xbc", b"\xff",
    b"\xef\xbb\xbf", b"",
])  # fmt: skip
RECORDS = st.lists(st.none() | st.lists(PIECES, max_size=9).map(b"".join) | st.just(b"a;2;0.5;true"), max_size=12)
LAYOUT: dict[str, Any] = {"csv": {"fields": ["t", "i", "d", "b"], "delimiter": ";"}}


@given(records=RECORDS)
@example(records=[b'a;"', b'";1'])
@example(records=[b"a;1\na;2", b"a;3", b""])
@example(records=[b"a\n\n", b"\n", b"\n\na"])
@example(records=[b"a;1\n", b"a;2\r", b"\xef\xbb\xbfa", b"\xff"])
def test_many_records_are_read_as_each_alone(records: list[bytes | None]) -> None:
    """Values and reasons, whatever stands in the records beside it."""
    schema = {"i": "int", "d": "decimal", "b": "bool"}
    form, plain = (
        _ends(_parsed({"format": LAYOUT, "schema": schema}, {"format": LAYOUT}))[0],
        line(**LAYOUT["csv"], types=schema),
    )
    found = asyncio.run(form.decoded(_batch(records, [None] * len(records))))
    for row, (record, text) in enumerate(zip(records, found.values.to_pylist(), strict=True)):
        wanted, reason = _alone(plain, record)
        assert found.unread.get(row, "").removeprefix("pipeline[0].$source.format, format csv: ") == reason
        assert (record if reason or text is None else parse_json(text)) == wanted


def _alone(form: CsvLine, record: bytes | None) -> tuple[Any, str]:
    try:
        return None if record is None else form.decode(record), ""
    except ValueError as error:
        return record, f"{type(error).__name__}: {error}"


VALUES_OF_CELLS = (
    st.none()
    | TEXTS
    | st.integers(-(2**40), 2**40).map(long)
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.just(Date(5))
)


@given(
    documents=st.lists(
        st.dictionaries(st.sampled_from(["t", "i", "d", "b", "more"]), VALUES_OF_CELLS), min_size=1, max_size=8
    ),
    delimiter=st.sampled_from([";", ",", "ü"]),
)
@example(documents=[{"t": "a"}, {"more": "x", "t": "b"}, {}], delimiter=";")
def test_many_documents_are_written_as_each_alone(documents: list[dict[str, Any]], delimiter: str) -> None:
    """In the order of the cells, whatever order their fields have; one with another field is refused by itself."""
    form = {"csv": {**LAYOUT["csv"], "delimiter": delimiter}}
    forms, plain = _ends(_parsed({"format": LAYOUT}, {"format": form}))[1], line(**form["csv"])
    asyncio.run(forms.prepare("u"))
    cells = pa.array(encode_docs(documents), pa.binary())
    many = forms.values(lambda: cells, lambda: cells, ["u"], np.zeros(len(documents), np.int64))
    for row, document in enumerate(documents):
        if many is not None and many[row].is_valid:
            assert many[row].as_py() == plain.encode(document)
        elif "more" in document:
            with pytest.raises(RecordRefused, match="no cell for the field 'more'"):
                forms.value(document, lambda: b"", "u")
        else:
            assert forms.value(document, lambda: b"", "u") == plain.encode(document)
    if delimiter == ";" and not any("more" in document for document in documents):
        assert many is not None


@pytest.mark.parametrize("key", ["k1", 7, 2.5, None, True, {"a": 1, "b": ["x"]}, [1, "x"], Date(1_000), long(2**40)])
async def test_keys_of_messagepack_are_any_values(key: Value) -> None:
    """As others write them, and read back as what they were."""
    records, forms = _ends(
        _parsed({"config": {"keyFormat": "messagePack"}}, {"config": {"key": "$k", "keyFormat": "messagePack"}})
    )
    await forms.prepare("u")
    written = forms.key(key, "u")
    plain = msgpack.Timestamp(1) if type(key) is Date else key
    assert msgpack.unpackb(written, timestamp=0) == plain
    found = await records.decoded(_batch([b"{}"], [written]))
    assert parse_json(found.keys[0].as_py()) == key  # type: ignore[index]  # keys were given


async def test_a_key_that_is_none_is_told() -> None:
    """Beside a value that is a document."""
    records, _ = _ends(
        _parsed({"config": {"keyFormat": "messagePack"}}, {"config": {"key": "$k", "keyFormat": "messagePack"}})
    )
    found = await records.decoded(_batch([b"{}"], [b"\xc1"]))
    assert "its key: " in found.unread[0]
    assert "no value begins with the byte 0xc1" in found.unread[0]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("csv", r"CSV names its cells: \{csv: \{fields: \[a, b\]\}\}"),
        ("json", "records are JSON where no format stands"),
        ("Avro", "Avro is no word here: schemaRegistry names the connection"),
        ({"csv": {}}, r"\$source\.format\.csv: CSV needs fields: the names of a line's cells, in their order"),
        ({"csv": {"fields": []}}, "names at least one cell"),
        ({"csv": {"fields": ["a", "b", "a"]}}, "names 'a' twice"),
        ({"csv": {"fields": ["a"], "delimiter": ";;"}}, "one character, no quote and no line end, found ';;'"),
        ({"csv": {"fields": ["a"], "delimiter": '"'}}, "one character, no quote"),
        ({"csv": {"fields": ["a"], "delimeter": ";"}}, "delimiter"),
        ({"csv": {"fields": ["a"]}, "delimiter": ";"}, r"\$source\.format\.delimiter: stands within csv"),
    ],
)
def test_wrong_documents_are_told(form: object, said: str) -> None:
    """With the place, and what is meant."""
    with pytest.raises(InvalidDocument, match=said):
        _parsed({"format": form}, {})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"schema": {"note": "string", "att": "long"}},
            r"schema\.att: no cell of format\.csv\.fields.*did you mean.*at",
        ),
        (
            {"timeField": {"$toDate": "$time"}},
            "timeField: reads 'time', and no cell of format.csv.fields has this name",
        ),
    ],
)
def test_fields_that_no_cell_is_are_told(more: dict[str, Any], said: str) -> None:
    """Else each record would be a dead letter."""
    with pytest.raises(InvalidDocument, match=said):
        _parsed({"format": {"csv": {"fields": ["id", "note", "at"]}}, **more}, {})


def test_a_time_of_cells_is_taken() -> None:
    """Also where another field may take its place."""
    at = {"$toDate": {"$ifNull": ["$at", "$later"]}}
    found = _parsed({"format": {"csv": {"fields": ["id", "at"]}}, "schema": {"at": "long"}, "timeField": at}, {})
    assert isinstance(found.pipeline[0], KafkaSource)
