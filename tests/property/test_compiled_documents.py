"""The compiled reader agrees with the plain interpreter on what it is sure of, and is sure of what is usual."""

import json
import math
import random
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.columns import Path, Tagged
from tidemark.shared.compiled.documents import read, read_packed
from tidemark.shared.language.values import ExtendedJsonError, decode_value, encode_value, parse_json, render_json
from tidemark.shared.model.values import MISSING, Binary, Date, Long

PATHS: tuple[Path, ...] = (
    ("a",), ("b",), ("a", "b"), ("a", "b", "c"), ("b", "$date"), ("é",), ("$oid",), ("a", "$numberLong"), ('q"',), ("",),
)  # fmt: skip
TYPES = {
    type(None): tags.NULL, bool: tags.BOOL, float: tags.DOUBLE, str: tags.STRING, Date: tags.DATE, Long: tags.LONG,
    dict: tags.OBJECT, list: tags.ARRAY, type(MISSING): tags.MISSING,
}  # fmt: skip


def value_at(document: Any, path: Path) -> tuple[int, Any]:
    """(tag, value) of what a document has at a path."""
    value = document
    for name in path:
        if type(value) is list:
            return tags.SPREAD, None
        value = value.get(name, MISSING) if type(value) is dict else MISSING
    if type(value) is int:
        return tags.INT if -(2**31) <= value < 2**31 else tags.LONG, value
    return TYPES.get(type(value), tags.OTHER), value


def cell(column: Tagged, row: int, strings: pa.StringArray) -> Any:
    """What a cell says by itself."""
    tag, number = int(column.tags[row]), int(column.numbers[row])
    if tag == tags.STRING:
        return strings[row].as_py()
    if tag == tags.DOUBLE:
        return struct.unpack("<d", struct.pack("<q", number))[0]
    return number


def check(texts: Sequence[bytes | None], paths: Sequence[Path] = PATHS, *, trusted: bool = False) -> int:
    """Assert that what is sure is right; how many are sure."""
    found = read(pa.array(texts, pa.binary()), paths, trusted=trusted)
    strings = {path: column.of("string") for path, column in found.columns.items()}
    for row, text in enumerate(texts):
        if not found.sure[row]:
            assert all(column.tags[row] == tags.MISSING for column in found.columns.values())
            continue
        assert text is not None
        document = parse_json(text)
        assert type(document) is dict, text
        for path, column in found.columns.items():
            tag, value = value_at(document, path)
            assert column.tags[row] == tag, (text, path)
            if tag in (tags.BOOL, tags.INT, tags.LONG, tags.DOUBLE, tags.DATE, tags.STRING):
                own = cell(column, row, strings[path])
                assert own == value or (isinstance(own, float) and math.isnan(own) and math.isnan(value)), (text, path)
                assert tag != tags.DOUBLE or struct.pack("<d", own) == struct.pack("<d", value), (text, path)
            if tag not in (tags.MISSING, tags.SPREAD):
                assert encode_value(parse_json(column.piece(row) or b"")) == encode_value(value), (text, path)
    return int(found.sure.sum())


TYPED: tuple[Any, ...] = (
    {"$date": "2013-01-01T00:00:00Z"}, {"$date": "2013-01-01"}, {"$date": "2013-02-29"}, {"$date": "2012-02-29T23:59:59.1239+01:30"},
    {"$date": "2013-01-01 10:20z"}, {"$date": "2013-01-01T10:20:30,5-0830"}, {"$date": 5}, {"$date": {"$numberLong": "-5"}},
    {"$date": "0000-03-01"}, {"$date": "2013-01-01T10:20:30.1 Z"}, {"$date": 5.5}, {"$date": {"$numberInt": "5"}},
    {"$numberLong": "7"}, {"$numberLong": 7}, {"$numberLong": "9223372036854775807"}, {"$numberLong": "x"},
    {"$numberInt": "+7"}, {"$numberInt": "2147483648"}, {"$numberInt": 7}, {"$numberDouble": "NaN"}, {"$numberDouble": "-Infinity"},
    {"$numberDouble": "+Infinity"}, {"$numberDouble": "-0"}, {"$numberDouble": -0.0}, {"$numberDouble": 5}, {"$numberDouble": "1."},
    {"$numberDouble": "1e999"}, {"$numberDecimal": "1.50"}, {"$numberDecimal": "-0"}, {"$numberDecimal": "1E5"},
    {"$numberDecimal": "1.2.3"}, {"$numberDecimal": "1" * 35}, {"$oid": "0123456789abcdefABCDEF01"}, {"$oid": "012345678"},
    {"$minKey": 1}, {"$maxKey": 1}, {"$minKey": {"a": 1}}, {"$undefined": True}, {"$symbol": "s"}, {"$uuid": "x"},
    {"$binary": {"base64": "AQID", "subType": "00"}}, {"$timestamp": {"t": 1, "i": 2}}, {"$date": 1, "$oid": 2}, {"$date": 1, "x": 2},
    {"$regularExpression": {"pattern": "a", "options": ""}}, {"$other": 1}, {"$oid": 5}, {"$date": None}, {"$date": [1]},
    {"$numberLong": "-9223372036854775808"}, {"$numberLong": "9223372036854775808"}, {"$date": {"$numberLong": "9223372036854775807"}},
)  # fmt: skip
names = st.sampled_from(["a", "b", "c", "é", 'q"', "", "$date", "$oid", "$numberLong", "x", "aa"])
typed = st.sampled_from(TYPED)
numbers = st.one_of(
    st.integers(), st.integers(-(2**31) - 2, 2**31 + 2), st.integers(-(2**63) - 2, 2**63 + 2),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, -0.0, 5.0, 1e22, 1e23, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 9007199254740993, 2**64]),
)  # fmt: skip
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=12), typed),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)
documents = st.dictionaries(names, values, max_size=5)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """A document as JSON, in one of the ways in which people write it."""
    document = draw(documents)
    style = draw(st.sampled_from(["plain", "tight", "wide", "twice", "escaped"]))
    if style == "tight":
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    if style == "wide":
        return b" \n" + json.dumps(document, indent=1, separators=(" ,", " :\t")).encode() + b"\r\t"
    if style == "twice":
        return json.dumps(document).replace("{", '{"a": {"b": 9}, ', 1).replace("}", ', "a":7}', 1).encode()
    if style == "escaped":
        return json.dumps(document).replace('"a"', '"\\u0061"').replace("$", "\\u0024").encode()
    return json.dumps(document).encode()


@given(given_texts=st.lists(st.one_of(texts(), texts(), st.binary(max_size=12), st.none()), max_size=12))
@settings(max_examples=400)
def test_what_is_sure_is_what_the_interpreter_reads(given_texts: list[bytes | None]) -> None:
    """Each value has its type, its content and its place; what is no document is never sure."""
    check(given_texts)


@given(document=documents)
@settings(max_examples=300)
def test_what_the_interpreter_rendered_is_always_sure(document: dict[str, Any]) -> None:
    """Trusted texts need nobody else."""
    try:
        value = parse_json(json.dumps(document))
        text = render_json(value, canonical=True)
    except (ExtendedJsonError, UnicodeEncodeError):
        return
    if type(value) is dict:
        assert check([text], trusted=True) == 1


@pytest.mark.parametrize("value", [*TYPED, 2**63 - 1, -(2**63), 2**63, 1e16, 5e-324, -0.0, [{"$odd": 1}]], ids=str)
def test_each_kind_of_value_is_read_as_it_came_and_as_it_was_rendered(value: Any) -> None:
    """A typed value, well formed or not, by itself and in the canonical form."""
    text = json.dumps({"a": value}).encode()
    sure = check([text])
    try:
        document = parse_json(text)
    except ExtendedJsonError:
        assert not sure
        return
    assert check([render_json(document, canonical=True)], trusted=True) == 1
    assert check([render_json({"a": document, "b": [document]}, canonical=True)], trusted=True) == 1


@given(given_texts=st.lists(texts(), min_size=1, max_size=12), begin=st.integers(0, 12), end=st.integers(0, 12))
@settings(max_examples=50)
def test_a_slice_reads_as_its_texts_alone(given_texts: list[bytes], begin: int, end: int) -> None:
    """Arrow's offsets into a larger buffer change nothing."""
    part = pa.array(given_texts, pa.binary())[begin:end]
    alone = pa.array(part.to_pylist(), pa.binary())
    assert read(part, PATHS).sure.tolist() == read(alone, PATHS).sure.tolist()


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1}', b' {"a" : [1, {"b":null}] }\n', b'{"n":1,"n":{"b":2}}', b'{"a":{"k":{"c":1},"k":5}}', b'{"a":[],"b":{}}',
        b'{"a":{"$date":"2024-05-06T07:08:09.123Z"},"b":{"$oid":"0123456789abcdef01234567"}}', b'{"a":{"$numberDecimal":"12.50"}}',
        '{"é":"ü\\u00e9\\ud83d\\ude00"}'.encode(), b'{"\\u00e9":1}', b'{"a":-0,"b":-0.0}', b'{"a":1e22,"b":123456789.125e-3}',
        b'{"a":0.30000000000000004}', b'{"a":12345678901234567890}', b'{"a":{"$date":1,"x":2}}', b"{}",
        b'{"a":' + b"[" * 179 + b"]" * 179 + b"}",
    ],
)  # fmt: skip
def test_usual_documents_are_sure(text: bytes) -> None:
    """They cost no look of the interpreter."""
    assert check([text]) == 1


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"{", b"}", b"[1]", b"null", b'{"a":1', b'{"a":1}}', b'{"a":1} {"b":2}', b'{"a":01}', b'{"a":+1}', b'{"a":1.}',
        b'{"a":.5}', b'{"a":1e}', b'{"a":1e400}', b'{"a":-}', b'{"a":1,}', b'{"a" 1}', b'{"a":1 "b":2}', b"{'a':1}", b'{"a":tru}',
        b'{"a":[1,]}', b'{"a":[1}', b'{"a":"\t"}', b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\xc0\x80"}',
        b'{"a":"\xf4\x90\x80\x80"}', b'{"a":"\xe2\x82"}', b'{"a":"\\ud800"}', b'{"a":"\\udc00"}', b'{"a":"\\ud83d\\u0041"}', b'{"a":"\\x"}',
        b'{"a":"\\u00g0"}', b'{"a":NaN}', b'{"a":1}\x00', b'\xef\xbb\xbf{"a":1}', b'{"a":{"$date":"2013-13-01"}}', b'{"a":{"$oid":"x"}}',
        b'{"a":' + b"[" * 180 + b"]" * 180 + b"}", b'{"$date":1}', b'{"a":"', b'{"a":"\\', b'{"a":"\\u12', b'{"a":nul', b'{"a":{"$date"',
        b'{"a":1,"a":{"b":2}}', b'{"a":{"b":{"c":1}},"a":5}', b'{"a":{"$date":1,"$date":"x"}}', b'{"a":' + b"1" * 400 + b"}",
    ],
)  # fmt: skip
def test_what_is_malformed_is_never_sure(text: bytes) -> None:
    """It is the interpreter's to say why; alone, and where a text lies before and behind it."""
    assert check([text]) == 0
    assert check([b'{"a":1}', text, b'{"a":1}']) == 2


def mutated(chooser: random.Random, text: bytes) -> bytes:
    """The text with some bytes changed, left out, doubled, or taken from elsewhere in it."""
    data = bytearray(text)
    for _ in range(chooser.randint(1, 3)):
        at = chooser.randrange(len(data) + 1)
        match chooser.randrange(5):
            case 0:
                data[at : at + 1] = bytes(
                    [chooser.choice(b'{}[]",:\\u$0123456789eE+-. \n\ttruefalsn\x00\x7f\x80\xc3\xe2\xed\xf0\xff')]
                )
            case 1:
                del data[at : at + chooser.randint(1, 4)]
            case 2:
                data[at:at] = data[at : at + chooser.randint(1, 6)]
            case 3:
                begin = chooser.randrange(len(data) + 1)
                data[at:at] = data[begin : begin + chooser.randint(1, 10)]
            case _:
                data[at : at + 1] = bytes([chooser.randrange(256)])
    return bytes(data)


SEEDS: tuple[bytes, ...] = (
    b'{"a":{"b":{"c":"x\\u00e9\\ud83d\\ude00"},"x":[1,2.5,-3e-7,null,true,false]},"b":{"$date":"2013-07-01T12:00:00.123Z"}}',
    '{"é":"ü€😀","a":{"$numberLong":"-5"},"b":[{"$oid":"0123456789abcdef01234567"},{"$date":{"$numberLong":"12"}}],"$oid":1}'.encode(),
    b'{ "a" : 12345678901234567890 , "b":-9223372036854775808,"x":0.30000000000000004,"q\\"":{"$numberDecimal":"1.50"} }',
    b'{"a":{"$numberDouble":"-0"},"a":{"b":5,"b":{"c":1e-320}},"b":{"$numberInt":"7"},"":123456789012345678.25e-10,"x":{"$minKey":1}}',
)  # fmt: skip


def fuzz(seed: int, count: int) -> tuple[int, int]:
    """(sure, not sure) of so many mutations; an AssertionError names the text on which the two differ."""
    chooser, sure = random.Random(seed), 0
    for begin in range(0, count, 1000):
        size = min(1000, count - begin)
        sure += check([mutated(chooser, chooser.choice(SEEDS)) for _ in range(size)])
    return sure, count - sure


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_documents_are_read_as_the_interpreter_reads_them(seed: int) -> None:
    """Whatever bytes change in a document: where the reader is sure, it is right; and it often is."""
    sure, unsure = fuzz(seed, 5_000)
    assert sure > 300
    assert unsure > 500


def exhaustive(count: int) -> None:
    """Doubles of all sizes, and those that lie just between two."""
    chooser = random.Random(count)
    written = []
    for _ in range(count):
        number = struct.unpack("<d", struct.pack("<Q", chooser.getrandbits(63)))[0]
        if math.isfinite(number):
            written.append(chooser.choice([f"{number!r}", f"{number:.{chooser.randint(0, 25)}e}"]))
    check([b'{"a":%b}' % text.encode() for text in written], [("a",)])


def test_doubles_are_the_nearest() -> None:
    """A number of any number of digits is the double that an ordinary parser gives."""
    exhaustive(20_000)


@example(given_text=b'{"a":{"b":1},"a":[{"b":2}]}')
@given(given_text=texts())
@settings(max_examples=100)
def test_a_path_alone_is_read_as_among_others(given_text: bytes) -> None:
    """What else is asked for changes nothing, but that a name of it may stand twice (J2)."""
    together = read(pa.array([given_text], pa.binary()), PATHS)
    for path in PATHS:
        alone = read(pa.array([given_text], pa.binary()), [path])
        assert (alone.sure | ~together.sure).all()
        for row in np.flatnonzero(together.sure).tolist():
            assert alone.columns[path].tags[row] == together.columns[path].tags[row]


@given(given=st.lists(st.dictionaries(names, values, max_size=20), max_size=5))
@settings(max_examples=300)
def test_encoded_documents_are_read_as_they_decode(given: list[dict[str, Any]]) -> None:
    """The compact codec's documents have at each path what decoding them whole says."""
    try:
        found = [parse_json(json.dumps({"a": document, **document})) for document in given]
    except (ExtendedJsonError, UnicodeEncodeError):
        return
    data: list[bytes | None] = [encode_value(document) for document in found]
    columns = read_packed(pa.array([*data, None], pa.binary()), PATHS)
    for path, column in columns.items():
        strings = column.of("string")
        for row, document in enumerate([*found, {}]):
            tag, value = value_at(document, path)
            assert column.tags[row] == tag, (document, path)
            if tag in (tags.BOOL, tags.INT, tags.LONG, tags.DOUBLE, tags.DATE, tags.STRING):
                own = cell(column, row, strings)
                assert own == value or (isinstance(own, float) and math.isnan(own) and math.isnan(value))
            if tag not in (tags.MISSING, tags.SPREAD, tags.STRING):
                assert encode_value(decode_value(column.piece(row) or b"")) == encode_value(value)


@pytest.mark.parametrize("count", [0, 15, 16, 70_000])
def test_encoded_documents_of_any_size_are_read(count: int) -> None:
    """Headers of maps, arrays and texts of each width."""
    inner = {f"k{n}": n for n in range(count)}
    for value in (inner, list(range(count)), "x" * count, Binary(b"x" * count), Binary(b"D" * count), "é" * count):
        columns = read_packed(pa.array([encode_value({"x": value, "a": {"x": value, "b": -5}})], pa.binary()), PATHS)
        assert columns["a", "b"].numbers.tolist() == [-5]
        whole = read_packed(pa.array([encode_value({"a": value})], pa.binary()), [("a",)])["a",]
        assert whole.tags[0] == value_at({"a": value}, ("a",))[0]


def test_half_a_pair_is_no_string_of_a_column() -> None:
    """A text that no UTF-8 has is told by its piece alone."""
    column = read_packed(pa.array([encode_value({"a": "\ud800"})], pa.binary()), [("a",)])["a",]
    assert column.tags.tolist() == [tags.OTHER]
