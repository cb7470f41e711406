"""Protocol Buffers, there and back, for drawn documents; hostile bytes; what does not fit."""

import contextlib
import json
from base64 import b64encode
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, json_format
from hypothesis import given
from hypothesis import strategies as st

from tidemark.shared.language.protobuf import ProtobufError, ProtobufSchemaError
from tidemark.shared.language.protobuf.many import ManyProtobufReader
from tidemark.shared.language.protobuf.many_writing import ManyProtobufWriter
from tidemark.shared.language.protobuf.messages import message_class
from tidemark.shared.language.protobuf.reading import reader_of
from tidemark.shared.language.protobuf.writing import writer_of
from tidemark.shared.language.values import encode_value, parse_json
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, Binary, Date, Value, long
from tidemark.shared.process.protobuf_compiler import compiled

ALL = """syntax = "proto3";
package all;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
enum Kind { NONE = 0; GOOD = 1; BAD = -3; }
message All {
  int32 i = 1; sint32 si = 2; sfixed32 xi = 3; int64 l = 4; sint64 sl = 5; sfixed64 xl = 6;
  uint32 u = 7; fixed32 xu = 8; uint64 ul = 9; fixed64 xul = 10;
  double d = 11; float f = 12; bool b = 13; string s = 14 [(confluent.field_meta).doc = "a text"]; bytes y = 15; Kind k = 16;
  optional int32 oi = 20; google.protobuf.Timestamp at = 21; google.protobuf.StringValue ws = 22;
  google.protobuf.Int64Value wl = 23; confluent.type.Decimal m = 24; oneof one { string left = 25; int64 right = 26; }
  repeated int32 li = 30; repeated string ls = 31; repeated Part lp = 32; repeated google.protobuf.Timestamp lt = 33;
  map<string, int64> ms = 40; map<int32, Part> mi = 41; map<bool, string> mb = 42;
  Part p = 50; All all = 51;
  message Part { string name = 1; repeated Part parts = 2; }
}
"""
MESSAGES = compiled(ALL, {})
WRITE, READ = writer_of(MESSAGES, "all.All"), reader_of(MESSAGES)
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("i", "si", "xi"), 0),
    **dict.fromkeys(("l", "sl", "xl", "u", "xu", "ul", "xul"), long(0)),
    "d": 0.0,
    "f": 0.0,
    "b": False,
    "s": "",
    "y": Binary(b""),
    "k": "NONE",
    **{name: [] for name in ("li", "ls", "lp", "lt")},
    **{name: {} for name in ("ms", "mi", "mb")},
}
INT, LONG = st.integers(INT32_MIN, INT32_MAX), st.integers(INT64_MIN, INT64_MAX).map(long)
UNSIGNED = st.integers(0, 2**32 - 1).map(long)
NAMES = st.text(max_size=5).filter(lambda name: not name.startswith("$"))
PARTS = st.recursive(
    st.builds(lambda name: {"name": name, "parts": []}, st.text(max_size=5)),
    lambda inner: st.builds(
        lambda name, parts: {"name": name, "parts": parts}, st.text(max_size=5), st.lists(inner, max_size=3)
    ),
    max_leaves=5,
)
DATES = st.integers(-62_135_596_800_000, 253_402_300_799_999).map(Date)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("i", "si", "xi", "oi"), INT),
    **dict.fromkeys(("l", "sl", "xl", "wl", "right"), LONG),
    **dict.fromkeys(("u", "xu"), UNSIGNED),
    **dict.fromkeys(("ul", "xul"), st.integers(0, INT64_MAX).map(long)),
    "d": st.floats(allow_nan=False),
    "f": st.floats(width=32, allow_nan=False),
    "b": st.booleans(),
    **dict.fromkeys(("s", "ws"), st.text(max_size=8)),
    "y": st.binary(max_size=8).map(Binary),
    "k": st.sampled_from(["NONE", "GOOD", "BAD"]),
    "at": DATES,
    "m": st.decimals(-(10**20), 10**20, places=4),
    "li": st.lists(INT, max_size=3),
    "ls": st.lists(st.text(max_size=3), max_size=3),
    "lp": st.lists(PARTS, max_size=2),
    "lt": st.lists(DATES, max_size=2),
    "ms": st.dictionaries(NAMES, LONG, max_size=3),
    "mi": st.dictionaries(INT.map(str), PARTS, max_size=2),
    "mb": st.dictionaries(st.sampled_from(["true", "false"]), st.text(max_size=3)),
    "p": PARTS,
}
FLAT = st.fixed_dictionaries({}, optional=FIELDS)
DOCUMENTS = st.builds(lambda outer, inner: {**outer, **({"all": inner} if inner else {})}, FLAT, st.none() | FLAT)


def whole(document: dict[str, Any]) -> dict[str, Any]:
    """As it is read: fields without presence are there."""
    found = {**DEFAULTS, **document}
    return {**found, "all": whole(found["all"])} if "all" in found else found


@given(DOCUMENTS)
def test_a_document_comes_back_with_each_value_and_type(document: dict[str, Any]) -> None:
    """Also as Google's own JSON of the message has it, as far as that has types."""
    record = WRITE(document)
    read = parse_json(READ(record))
    assert isinstance(read, dict)
    expected = whole(document)
    assert read == expected
    assert {name: type(value) for name, value in read.items()} == {name: type(expected[name]) for name in read}
    assert WRITE(read) == record
    message = message_class(MESSAGES.named("all.All")[0]).FromString(record[1:])
    others = json.loads(
        json_format.MessageToJson(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    )
    assert others.keys() == read.keys()
    assert (others["s"], others["ls"], others["k"], int(others["l"])) == (read["s"], read["ls"], read["k"], read["l"])


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_have_a_reason(data: bytes) -> None:
    """Whatever they are, nothing else is raised."""
    with contextlib.suppress(ProtobufError):
        assert isinstance(parse_json(READ(data)), dict)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"other": 1}, "other: all.All has no such field"),
        ({"p": {"x": 1}}, "p.x: all.All.Part has no such field"),
        ({"i": 2**31}, "i: expected a whole number from -2147483648"),
        ({"u": -1}, "u: expected a whole number from 0"),
        ({"l": 0.5}, "l: expected a whole number"),
        ({"d": "1"}, "d: expected a number that a double has exactly"),
        ({"d": 2**53 + 1}, "d: expected a number that a double has exactly"),
        ({"f": 1e39}, "f: expected a number within a float"),
        ({"s": 1}, "s: expected a string"),
        ({"y": "text"}, "y: expected binary"),
        ({"b": 1}, "b: expected true or false"),
        ({"k": "OTHER"}, "k: expected a name of all.Kind"),
        ({"at": "2024"}, "at: expected a date"),
        ({"m": float("nan")}, "m: expected a finite number"),
        ({"li": 1}, "li: expected an array"),
        ({"li": [1, "a"]}, r"li\[1\]: expected a whole number"),
        ({"li": [None]}, r"li\[0\]: expected a whole number"),
        ({"lp": [{}, 1]}, r"lp\[1\]: expected an object, for all.All.Part"),
        ({"ms": []}, "ms: expected an object, for a map"),
        ({"mi": {"x": {}}}, "mi.x: expected a key that is a whole number"),
        ({"mi": {"1" * 5000: {}}}, "expected a key that is a whole number"),
        ({"mb": {"yes": ""}}, "mb.yes: expected the key true or false"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_place(document: dict[str, Value], said: str) -> None:
    """And nothing is cut off or made to fit."""
    with pytest.raises(ProtobufError, match=said):
        WRITE(document)


def test_depth_is_bounded_both_ways() -> None:
    """A message inside of itself; the library has a bound of its own for bytes."""
    deep: dict[str, Any] = {}
    for _ in range(80):
        deep = {"all": deep}
    with pytest.raises(ProtobufError, match="deeper than 64 levels"):
        WRITE(deep)
    data = b""
    for _ in range(70):
        data = (
            b"\x9a\x03"
            + (bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7]))
            + data
        )
    with pytest.raises(ProtobufError, match="deeper than 64 levels"):
        READ(b"\x00" + data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "expected the index of a message, found the end"),
        (b"\x80\x80\x80\x80\x80\x01", "expected the index"),
        (b"\x7e" + b"\x02" * 70, "indexes of a message are announced"),
        (b"\x02\x0e", "message .7. is named, and the schema has 1"),
        (b"\x00\xa0\x06\x01", "message all.All has field 100"),
        (b"\x00\x48" + b"\xff" * 9 + b"\x01", "18446744073709551615 is more than a long holds"),
        (b"\x00\xc2\x02\x06\x0a\x02$a\x10\x01", "would be taken for a type"),
        (b"\x00\xc2\x01\x12\x0a\x10" + b"\x7f" * 16, "a decimal of more than 34 digits"),
    ],
)
def test_a_record_that_would_lose_something_is_unreadable(data: bytes, said: str) -> None:
    """The reason names what it is."""
    with pytest.raises(ProtobufError, match=said):
        READ(data)


def test_presence_is_kept_apart_from_defaults() -> None:
    """A field that was set to its default is there; one that was not is missing, or null in the document that is written."""
    assert "oi" not in parse_json(READ(WRITE({"oi": None})))
    assert parse_json(READ(WRITE({"oi": 0, "ws": "", "p": {}})))["oi"] == 0
    assert parse_json(READ(WRITE({"ws": "", "p": {}}))) == {**DEFAULTS, "ws": "", "p": {"name": "", "parts": []}}


def test_proto2_requires_what_it_says() -> None:
    """Also of bytes; closed enumerations take their own names alone."""
    messages = compiled(
        'syntax = "proto2"; enum E { A = 1; } message M { required int32 n = 1; optional E e = 2 [default = A]; }', {}
    )
    with pytest.raises(ProtobufError, match="requires: n"):
        writer_of(messages, "")({})
    with pytest.raises(ProtobufError, match="lacks what is required: n"):
        reader_of(messages)(b"\x00")
    with pytest.raises(ProtobufError, match="expected a name of E"):
        writer_of(messages, "")({"n": 1, "e": 2})
    assert parse_json(reader_of(messages)(writer_of(messages, "M")({"n": 1, "e": "A"}))) == {"n": 1, "e": "A"}


REQUIRES = """syntax = "proto2";
message M { required int32 a = 1; map<string, int32> m = 2; optional M o = 3; repeated M l = 4; map<bool, M> b = 5; map<string, M> s = 6; }
"""


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"m": {"x": 1}, "o": {}}, "a, o.a"),
        ({"a": 1, "o": {"m": {"x": 1}, "l": [{"a": 1}, {"m": {"x": 1}}]}}, r"o.a, o.l\[1\].a"),
        (
            {"a": 1, "b": {"true": {}, "false": {"a": 1}}, "s": {"y": {}, "x": {}}},
            r'b\[true\].a, s\["x"\].a, s\["y"\].a',
        ),
    ],
)
def test_what_is_required_is_named_wherever_it_is_missing(document: dict[str, Any], said: str) -> None:
    """Also beside maps of numbers, where the library's own list of it ends the process."""
    messages = compiled(REQUIRES, {})
    with pytest.raises(ProtobufError, match=f"requires: {said}$"):
        writer_of(messages, "")(document)
    made = json_format.ParseDict(document, message_class(messages.top[0])())
    with pytest.raises(ProtobufError, match=f"lacks what is required: {said}$"):
        reader_of(messages)(b"\x00" + made.SerializePartialToString())


EXTENDED = """syntax = "proto2"; package p;
message M { optional int32 n = 1; optional M m = 2; extensions 100 to 200; }
message O { optional string s = 1; extend M { repeated O o = 102; } }
extend M { optional string t = 100; repeated int64 l = 101; }
"""


def test_an_extension_is_a_field_by_its_full_name() -> None:
    """As Protobuf's own JSON has it, those of messages inside, too. Many records at once leave them to the plain reader and writer."""
    messages = compiled(EXTENDED, {})
    made = message_class(messages.top[0])
    given = {"n": 1, "[p.t]": "x", "m": {"n": 2, "[p.O.o]": [{"s": "y"}]}}
    record = b"\x00" + json_format.ParseDict(given, made()).SerializeToString()
    assert parse_json(reader_of(messages)(record)) == given
    assert writer_of(messages, "")(given) == record
    with pytest.raises(ProtobufError, match=r"\[p.u\]: p.M has no such field"):
        writer_of(messages, "")({"[p.u]": 1})
    assert ManyProtobufReader(messages).read(pa.array([record, b"\x00\x08\x05"], pa.binary()))[1].tolist() == [
        False,
        True,
    ]
    packed = pa.array([encode_value(given), encode_value({"n": 5})], pa.binary())
    assert ManyProtobufWriter(messages, "").write(packed)[1].tolist() == [False, True]


def test_a_text_that_is_none_is_unreadable() -> None:
    """Of proto2 the library takes it, and gives bytes."""
    messages = compiled('syntax = "proto2"; message M { optional string s = 1; repeated string l = 2; }', {})
    for data in (b"\x00\x0a\x01\xff", b"\x00\x12\x01\xff"):
        with pytest.raises(ProtobufError, match="is no UTF-8"):
            reader_of(messages)(data)


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("message A { optional B b = 1; }", "", '"B" is not defined'),
        ("no schema", "", "schema.proto:1:1"),
        ('import "other.proto";', "", "other.proto: File not found"),
        ('import "../x.proto";', "", "not allowed in the virtual path"),
        ('syntax = "proto3";', "", "has no message ; it has none"),
        ("message A {} message B { message C {} }", "D", "no message D; it has A, B, B.C"),
    ],
)
def test_a_schema_that_is_none_has_the_compilers_words(text: str, name: str, said: str) -> None:
    """With place and name, and without the folder in which it was compiled."""
    with pytest.raises(ProtobufSchemaError, match=said) as told:
        writer_of(compiled(text, {}), name)
    assert "/tmp" not in str(told.value)


def test_a_schema_may_come_parsed() -> None:
    """As Confluent's serializer for Python registers it, in base64; so may what it imports."""

    def parsed(text: str, imports: dict[str, str]) -> str:
        file = descriptor_pb2.FileDescriptorProto()
        compiled(text, imports).file.CopyToProto(file)
        return b64encode(file.SerializeToString()).decode()

    line = "message Line { optional int32 n = 1; }"
    cart = 'import "line.proto"; import "google/protobuf/timestamp.proto"; message Cart { optional Line line = 1; }'
    record = b"\x00\x0a\x02\x08\x07"
    whole_cart = parsed(cart, {"line.proto": line})
    for text in (cart, whole_cart):
        for imported in (line, parsed(line, {})):
            assert reader_of(compiled(text, {"line.proto": imported}))(record) == b'{"line":{"n":7}}'
