"""Messages of Protocol Buffers read by compiled code: for drawn schemas and drawn bytes what the plain reader gives for each record."""

import re

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.harness.drawn_messages import drawn_records, drawn_schema, varint
from tidemark.shared.language.protobuf import ProtobufError
from tidemark.shared.language.protobuf.many import ManyProtobufReader
from tidemark.shared.language.protobuf.messages import Messages, indexes_in, message_class
from tidemark.shared.language.protobuf.reading import reader_of
from tidemark.shared.process.protobuf_compiler import compiled

SEEDS = st.integers(0, 2**32)
RARE = re.compile(rb'\$numberDecimal|\$date|"[0-9]{19,20}":')
"""Of these the compiled reader is not always sure: long decimals, instants beyond all years, keys that are no long."""


def plainly(messages: Messages, records: list[bytes]) -> list[bytes | str]:
    """What the plain reader gives for each record: the JSON, or the reason why it is none."""
    read = reader_of(messages)
    found: list[bytes | str] = []
    for data in records:
        try:
            found.append(read(data))
        except ProtobufError as error:
            found.append(str(error))
    return found


def compare(messages: Messages, records: list[bytes]) -> list[bool]:
    """All that is read is what the plain reader gives; which are read."""
    texts, sure = ManyProtobufReader(messages).read(pa.array(records, pa.binary()))
    for data, text, known, plain in zip(
        records, texts.to_pylist(), sure.tolist(), plainly(messages, records), strict=True
    ):
        if known:
            assert text == plain, data.hex(" ")
        else:
            assert text == b""
    return list(sure.tolist())


@given(SEEDS, SEEDS, st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.2]))
@example(111818968, 0, 0.01)  # a map of proto2 with a string that is no UTF-8
def test_many_records_at_once_are_what_each_is(schema_seed: int, seed: int, odd: float) -> None:
    """Byte for byte, whole or damaged; and what is none has no text here, so the plain reader says why."""
    schema = drawn_schema(schema_seed)
    compare(schema.messages, list(drawn_records(schema, seed, 20, odd)))


@given(SEEDS, SEEDS)
def test_what_a_serializer_writes_is_read_at_once(schema_seed: int, seed: int) -> None:
    """Of all schemas without groups; long decimals and instants beyond all years are the plain reader's."""
    schema = drawn_schema(schema_seed)
    records = []
    for data in drawn_records(schema, seed, 10, 0.0):
        indexes, begin = indexes_in(data, 0)
        message = message_class(schema.messages.at(indexes)).FromString(data[begin:])
        records.append(data[:begin] + message.SerializePartialToString())
    sure = compare(schema.messages, records)
    for known, text in zip(sure, plainly(schema.messages, records), strict=True):
        if schema.plain and isinstance(text, bytes) and not RARE.search(text):
            assert known, text


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_any_bytes_are_read_alike(records: list[bytes]) -> None:
    """Bytes that nobody wrote."""
    messages = drawn_schema(7).messages
    compare(messages, [b"\x00" + data for data in records] + records)


LINK = 'syntax = "proto3"; message Link { Link next = 1; repeated Link all = 2; map<int32, Link> by = 3; int32 n = 4; }'


@pytest.mark.parametrize("field", [1, 2, 3])
def test_messages_inside_of_messages_are_read_as_deep_as_plainly(field: int) -> None:
    """And no deeper; the plain reader says so, or the library."""
    messages, data, records = compiled(LINK, {}), b"\x20\x07", []
    for _ in range(120):
        records.append(b"\x00" + data)
        content = data if field != 3 else b"\x12" + varint(len(data)) + data
        data = bytes([field << 3 | 2]) + varint(len(content)) + content
    levels = 64 if field == 1 else 32
    assert compare(messages, records) == [True] * levels + [False] * (120 - levels)


@given(SEEDS, st.sampled_from(["string", "int32", "sint64", "uint64", "fixed32", "bool"]), st.integers(0, 400))
def test_keys_of_maps_are_sorted_by_their_text(seed: int, kind: str, count: int) -> None:
    """However many; keys that come again are the plain reader's."""
    messages = compiled_map(kind)
    made = message_class(messages.top[0])()
    entries = made.m  # type: ignore[attr-defined]
    for number in range(count):
        found = (seed * (number + 1) * 7919) >> (number % 29)
        entries[{"string": str(found), "bool": bool(found & 1)}.get(kind, found % 2**31)] = number
    data = b"\x00" + made.SerializeToString()
    assert compare(messages, [data, data + b"\x0a\x00", b"\x00" + data[1:] * 2]) == [
        True,
        *compare(messages, [data + b"\x0a\x00"]),
        not count,
    ]


_MAPS: dict[str, Messages] = {}


def compiled_map(kind: str) -> Messages:
    if kind not in _MAPS:
        _MAPS[kind] = compiled(f'syntax = "proto3"; message M {{ map<{kind}, int32> m = 1; }}', {})
    return _MAPS[kind]


def test_no_records_and_missing_ones() -> None:
    """A column may be empty, and a cell of it null."""
    messages = compiled(LINK, {})
    texts, sure = ManyProtobufReader(messages).read(pa.array([], pa.binary()))
    assert (texts.to_pylist(), sure.tolist()) == ([], [])
    _, sure = ManyProtobufReader(messages).read(pa.array([None, b"\x00"], pa.binary()))
    assert sure.tolist() == [False, True]


def test_a_record_that_would_grow_beyond_its_room_is_the_plain_readers() -> None:
    """Two bytes an item, and a hundred fields with their names in each."""
    fields = "".join(f"int64 a_field_with_a_long_name_{n} = {n};" for n in range(1, 100))
    messages = compiled(f'syntax = "proto3"; message M {{ repeated N n = 1; }} message N {{ {fields} }}', {})
    assert compare(messages, [b"\x00" + b"\x0a\x00" * 5_000]) == [False]
    assert compare(messages, [b"\x00" + b"\x0a\x00"]) == [True]


@pytest.mark.parametrize(
    "before", [b"\x00", b"\x02\x00", b"\x02\x02", b"\x04\x02\x00", b"\x04\x00\x00", b"\x02\x04", b"", b"\x80\x00"]
)
def test_records_are_of_the_message_that_they_name(before: bytes) -> None:
    """By its place in the file, also beside others; places that are none are the plain reader's."""
    messages = compiled(
        'syntax = "proto3"; message A { int32 a = 1; } message B { string b = 1; message C { bool c = 1; } }', {}
    )
    tails = [b"", b"\x08\x01", b"\x0a\x01x"]
    compare(messages, [head + tail for tail in tails for head in (before, b"\x00", b"\x02\x02", before)])
    names_one = before in (b"\x00", b"\x02\x00", b"\x02\x02", b"\x04\x02\x00")
    assert compare(messages, [before]) == [names_one]
