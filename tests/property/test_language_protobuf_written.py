"""Documents written as messages of Protocol Buffers by compiled code: for drawn schemas what the plain writer makes of each document."""

import random
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.drawn_messages import drawn_records, drawn_schema
from tidemark.shared.language.protobuf import ProtobufError
from tidemark.shared.language.protobuf.many_writing import ManyProtobufWriter
from tidemark.shared.language.protobuf.messages import Messages, indexes_in
from tidemark.shared.language.protobuf.reading import reader_of
from tidemark.shared.language.protobuf.writing import writer_of
from tidemark.shared.language.values import encode_value, parse_json
from tidemark.shared.model.values import Binary, Date, Value, long
from tidemark.shared.process.protobuf_compiler import compiled

SEEDS = st.integers(0, 2**32)
VALUES: tuple[Value, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    127,
    128,
    2**31 - 1,
    -(2**31),
    long(5),
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    -(2**63),
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1,
    2.0**53,
    1e300,
    3.4028235677973366e38,
    3.4e38,
    1e-46,
    7e-46,
    7.1e-46,
    1e-45,
    float("nan"),
    float("inf"),
    "",
    "a",
    "true",
    "1",
    "K0",
    "K1",
    "ä" * 100,
    Date(0),
    Date(-1),
    Date(1_700_000_000_123),
    Date(2**63 - 1),
    Binary(b""),
    Binary(b"abc", 4),
    Decimal("1.50"),
    Decimal("-0.05"),
    Decimal(0),
    Decimal("1E+5"),
    Decimal("NaN"),
    Decimal("12345678901234567890.1"),
    [],
    [1],
    ["a", None],
    {},
    {"a": 1},
    {"1": 2},
    {"-5": 1, "12": 2, "3": 3},
    {"true": 1, "false": 0},
    {"01": 1},
    {"-0": 1},
    {"trxe": 1},
)
RARE = re.compile(r"Decimal\('[^']{18}|Decimal\('[^']*E|'-?\d{19,20}':|'-0'")
"""Of these the compiled writer is not always sure: long decimals, those with an exponent, keys of many digits."""


def changed(chance: random.Random, value: Value) -> Value:
    """A value with a part of another type, a field less or more, or another order of fields."""
    if chance.random() < 0.05:
        return chance.choice(VALUES)
    if type(value) is dict:
        names = chance.sample(list(value), len(value))
        found = {name: changed(chance, value[name]) for name in names if chance.random() < 0.95}
        return {**found, "other": 1} if chance.random() < 0.01 else found
    return [changed(chance, item) for item in value] if type(value) is list else value


def compare(messages: Messages, name: str, documents: list[Value]) -> list[tuple[bool, bool]]:
    """All that is written is what the plain writer makes; whether each is written at once, and whether it can be written."""
    records, sure = ManyProtobufWriter(messages, name).write(
        pa.array([encode_value(each) for each in documents], pa.binary())
    )
    write, found = writer_of(messages, name), []
    for document, record, known in zip(documents, records.to_pylist(), sure.tolist(), strict=True):
        try:
            plain = write(document)
        except ProtobufError:
            plain = None
        assert record == (plain if known else b""), document
        found.append((known, plain is not None))
    return found


def read_documents(messages: Messages, records: list[bytes]) -> list[tuple[str, Value]]:
    """The names of the messages and the documents of those records that can be read."""
    read, found = reader_of(messages), []
    for data in records:
        try:
            document: Any = parse_json(read(data))
        except (ProtobufError, ValueError):
            continue
        found.append((messages.at(indexes_in(data, 0)[0]).full_name, document))
    return found


@given(SEEDS, SEEDS)
def test_many_documents_written_at_once_are_what_each_is(schema_seed: int, seed: int) -> None:
    """Byte for byte, whether they fit or not; all that fit are written, but for groups and rare numbers."""
    schema, chance = drawn_schema(schema_seed), random.Random(seed)
    documents = read_documents(schema.messages, list(drawn_records(schema, seed, 12, 0.0)))
    for name in sorted({name for name, _ in documents}):
        own = [document for other, document in documents if other == name]
        for document, (at_once, fits) in zip(own, compare(schema.messages, name, own), strict=True):
            assert at_once or not fits or not schema.plain or RARE.search(repr(document)), document
        compare(schema.messages, name, [changed(chance, document) for document in own for _ in range(3)])


ALL = """syntax = "proto3";
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto"; import "confluent/type/decimal.proto";
enum Kind { K0 = 0; K1 = 1; M3 = -3; }
message All { VALUE v = 1; oneof one { VALUE w = 2; Kind x = 3; } repeated VALUE l = 4; map<KEY, VALUE> m = 5; MORE }
"""


@pytest.mark.parametrize(
    "kind",
    [
        "int32",
        "sint32",
        "sfixed32",
        "int64",
        "sint64",
        "sfixed64",
        "uint32",
        "fixed32",
        "uint64",
        "fixed64",
        "double",
        "float",
        "bool",
        "string",
        "bytes",
        "Kind",
        "google.protobuf.Timestamp",
        "google.protobuf.StringValue",
        "google.protobuf.Int64Value",
        "google.protobuf.FloatValue",
        "confluent.type.Decimal",
        "All",
    ],
)
def test_each_type_takes_what_it_takes_plainly(kind: str) -> None:
    """Every value as a field, as an alternative, as an item and in a map."""
    key = {"int32": "sint32", "bool": "bool", "int64": "fixed64", "uint64": "int64"}.get(kind, "string")
    messages = compiled(ALL.replace("VALUE", kind).replace("KEY", key).replace("MORE", "optional int32 o = 7;"), {})
    documents: list[Value] = []
    for value in VALUES:
        documents += [
            {"v": value},
            {"w": value},
            {"w": value, "x": "K1"},
            {"l": [value, value]},
            {"m": {"1": value}},
            {"m": value},
            {"l": value},
            value,
        ]
    found = compare(messages, "All", documents)
    assert sum(at_once for at_once, _ in found) > 0.4 * sum(fits for _, fits in found)


LINK = (
    'syntax = "proto3"; message Link { Link next = 1; repeated Link all = 2; map<string, Link> by = 3; int32 n = 4; }'
)


@pytest.mark.parametrize("name", ["next", "all", "by"])
def test_documents_inside_of_themselves_are_written_as_deep_as_plainly(name: str) -> None:
    """And no deeper; lengths of several bytes are put in front of what they are of."""
    messages, documents = compiled(LINK, {}), []
    document: Any = {"n": 7}
    for _ in range(70):
        documents.append(document)
        document = {"n": 300, name: {"next": document, "all": [document], "by": {"key": document}}[name]}
    assert compare(messages, "Link", documents) == [(True, True)] * 64 + [(False, False)] * 6
    large: Any = {"next": {"by": {"x": {"n": 1}, "": {"all": [{"n": n} for n in range(5_000)]}}}, "n": -1}
    assert compare(messages, "", [large, {}, large]) == [(True, True)] * 3


@given(SEEDS, st.sampled_from(["string", "int32", "sint64", "uint64", "bool"]), st.integers(0, 100))
def test_keys_of_maps_are_sorted(seed: int, kind: str, count: int) -> None:
    """As the library sorts them."""
    if kind not in _MAPS:
        _MAPS[kind] = compiled(f'syntax = "proto3"; message M {{ map<{kind}, int32> m = 1; }}', {})
    chance = random.Random(seed)
    keys = (
        ["true", "false"]
        if kind == "bool"
        else [str(chance.choice([-1, 1, 1]) * chance.randrange(10 ** chance.randint(1, 9))) for _ in range(count)]
        + ["", "1", "12"] * (kind == "string")
    )
    document: Value = {"m": {key: number for number, key in enumerate(keys) if kind != "uint64" or key[0] != "-"}}
    compare(_MAPS[kind], "", [document])


_MAPS: dict[str, Messages] = {}
