"""Record batches taken apart at once: the same records as the client library reads one by one, whatever is in them."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from zlib import crc32

import pytest
from aiokafka import codec as codecs
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.shared.adapters import kafka_batches, kafka_messages, kafka_unpacking
from tidemark.shared.adapters.kafka_batches import BrokenBatch, PartitionAnswer
from tidemark.shared.adapters.kafka_reader import PASSED, FetchedRecords
from tidemark.shared.compiled import kafka

Record = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes]]]
Row = tuple[int, int, bytes | None, bytes | None]
PACKED_BY = {1: codecs.gzip_encode, 2: codecs.snappy_encode, 3: codecs.lz4_encode}
ALL = 10**9
TEXT = st.text(max_size=90).map(str.encode)
BYTES = st.one_of(TEXT, TEXT, st.binary(max_size=300), st.just(b"\0" * 20))
RECORD = st.tuples(
    st.integers(0, 3),
    st.integers(-(2**40), 2**40),
    st.none() | BYTES,
    st.none() | BYTES,
    st.lists(st.tuples(st.text(max_size=3), BYTES), max_size=2),
)
BATCH = st.tuples(st.lists(RECORD, min_size=1, max_size=300), st.sampled_from([0, 0, 1, 2, 3, 4]))

FEW = st.tuples(st.lists(RECORD, min_size=1, max_size=30), st.sampled_from([0, 1, 2, 3, 4]))


def built(records: list[Record], base: int, codec: int = 0) -> bytes:
    """One batch as a broker keeps it; each record's first number is how many before it were compacted away."""
    builder = DefaultRecordBatchBuilder(
        2, codec, is_transactional=False, producer_id=-1, producer_epoch=0, base_sequence=0, batch_size=10**8
    )
    offset = -1
    for gap, time_ms, key, value, headers in records:
        offset += gap + 1
        builder.append(offset, time_ms, key, value, headers)
    data = bytearray(builder.build())
    data[0:8] = base.to_bytes(8, "big")
    return bytes(data)


def theirs(data: bytes) -> list[Row]:
    """The records as the library reads them."""
    rows, reading = [], MemoryRecords(data)
    while reading.has_next():
        rows += [(r.offset, r.timestamp, r.key, r.value) for r in reading.next_batch()]
    return rows


def ours(data: bytes, max_bytes: int = ALL, *, with_keys: bool = True) -> list[Row]:
    """The records as they come in columns."""
    fetched, rows = PartitionAnswer(data, 0, 0, (), committed_only=True), list[Row]()
    while fetched.more:
        records, _ = fetched.take(max_bytes, with_keys=with_keys)
        if records is not None:
            keys = [None] * len(records.offsets) if records.keys is None else records.keys.to_pylist()
            columns = records.offsets.tolist(), records.timestamps.tolist(), keys, records.values.to_pylist()
            rows += zip(*columns, strict=True)
    return rows


@given(st.lists(BATCH, min_size=1, max_size=4), st.integers(1, 2000))
def test_the_same_records_as_one_by_one(batches: list[tuple[list[Record], int]], max_bytes: int) -> None:
    """Offsets, times, keys and values are the library's, for texts, bytes, nulls, headers, gaps and each compression."""
    data = b"".join(built(records, 1000 * i, codec) for i, (records, codec) in enumerate(batches))
    expected = theirs(data)
    assert ours(data) == expected
    assert ours(data, max_bytes) == expected
    assert ours(data, with_keys=False) == [(offset, time, None, value) for offset, time, _, value in expected]
    assert ours(data[:-1]) == theirs(data[:-1])


MESSAGE = st.tuples(st.integers(0, 3), st.just(-1) | st.integers(0, 2**42), st.none() | BYTES, st.none() | BYTES)
SET = st.tuples(
    st.lists(MESSAGE, min_size=1, max_size=30),
    st.sampled_from([(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (1, 3)]),
)


def message_set(records: list[Row], base: int, magic: int, codec: int) -> bytes:
    """Messages of a format before 2, each alone or together in one, as a broker keeps them; the first number of each as in `built`."""
    data = bytearray()
    offset, first = -1, 0 if codec and magic else base
    for gap, time_ms, key, value in records:
        offset += gap + 1
        one = LegacyRecordBatchBuilder(magic, 0, 10**6)
        one.append(first + offset, time_ms, key, value)
        data += one.build()
    if not codec:
        return bytes(data)
    outer = LegacyRecordBatchBuilder(magic, 0, 10**6)
    outer.append(base + offset, 77, None, PACKED_BY[codec](bytes(data)))
    data = bytearray(outer.build())
    data[17] |= codec
    data[12:16] = crc32(bytes(data[16:])).to_bytes(4, "big")
    return bytes(data)


def of_sets(sets: list[tuple[list[Row], tuple[int, int]]]) -> tuple[bytes, list[Row]]:
    """Message sets one behind the other, and the records in them."""
    parts, rows = [], []
    for place, (records, (magic, codec)) in enumerate(sets):
        parts.append(message_set(records, 1000 * place, magic, codec))
        offset = 1000 * place - 1
        for gap, time_ms, key, value in records:
            offset += gap + 1
            rows.append((offset, time_ms if magic else -1, key, value))
    return b"".join(parts), rows


@given(st.lists(SET, min_size=1, max_size=4), st.integers(1, 2000))
def test_messages_of_the_old_formats_stand_beside_what_brokers_write_today(
    sets: list[tuple[list[Row], tuple[int, int]]], max_bytes: int
) -> None:
    """Offsets, times, keys and values of each, alone or compressed together, with gaps; without a time as Kafka's client has it."""
    data, rows = of_sets(sets)
    behind = built([(0, 7, None, b"new", [])], 5000)
    assert ours(data + behind) == rows + theirs(behind)
    assert ours(data + behind, max_bytes) == rows + theirs(behind)


@settings(max_examples=25)
@given(st.lists(SET, min_size=1, max_size=3), st.integers(300, 5_000), st.integers(60, 900))
def test_messages_that_unpack_to_much_come_in_parts_and_are_the_same(
    sets: list[tuple[list[Row], tuple[int, int]]], most: int, part: int
) -> None:
    """Whatever the bound of what is unpacked at once, where each message is below it."""
    sets = [s for s in sets if all(len((k or b"") + (v or b"")) + 40 < most for _, _, k, v in s[0])]
    data, rows = of_sets(sets)
    with bounded(most, part):
        assert ours(data) == rows


def test_a_message_with_another_crc_is_not_read() -> None:
    """Of each size: small ones are checked by other code."""
    for size in (10, 5_000):
        data = bytearray(message_set([(0, 5, b"k", b"v" * size)], 7, 1, 0))
        data[-1] ^= 1
        with pytest.raises(BrokenBatch, match="CRC"):
            ours(bytes(data))


def test_a_frame_of_lz4_with_the_checksum_of_old_clients_is_read() -> None:
    """In format 0 its head has a checksum of other bytes (KAFKA-3160)."""
    data = bytearray(message_set([(0, -1, b"k", b"v" * 300)] * 3, 0, 0, 3))
    frame = data.index(b"\x04\x22\x4d\x18")
    data[frame + 6 + (8 if data[frame + 4] & 8 else 0)] ^= 0xA5
    data[12:16] = crc32(bytes(data[16:])).to_bytes(4, "big")
    assert ours(bytes(data)) == [(n, -1, b"k", b"v" * 300) for n in range(3)]


def signed(data: bytearray) -> bytes:
    """The batch with the CRC of its bytes."""
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def check_mutated(seed: int, count: int) -> tuple[int, int]:
    """(read, broken) of so many batches with changed bytes under a right CRC; an AssertionError names the batch."""
    chooser, read = random.Random(seed), 0
    plain: Sequence[Any] = [
        [(0, 5, b"key", b"value", [("h", b"x")]), (1, 6, None, b"v" * 70, []), (0, -7, b"", None, [])],
        [(0, i, None, b"%060d" % i, []) for i in range(20)],
    ]
    for _ in range(count):
        data = bytearray(built(chooser.choice(plain), 100))
        for _ in range(chooser.randint(1, 2)):
            at = chooser.choice([chooser.randrange(61, len(data)), chooser.randrange(57, 75)])
            data[at] = chooser.choice([chooser.randrange(256), data[at] ^ 1, data[at] ^ 0x80, 0, 1, 0xFF])
        batch = signed(data)
        try:
            expected: list[Row] | None = theirs(batch)
        except UnicodeDecodeError:
            continue  # the name of a header: it is not looked at here
        except Exception:  # noqa: BLE001 - whatever the library raises, it does not read the batch
            expected = None
        try:
            found: list[Row] | None = ours(batch)
        except BrokenBatch:
            found = None
        assert found == expected, batch.hex()
        read += found is not None
    return read, count - read


@pytest.mark.parametrize("seed", [1, 2])
def test_malformed_batches_are_refused_where_the_library_refuses_them(seed: int) -> None:
    """Bytes that no producer writes, under a right CRC: the same records, or none at all and an error."""
    read, broken = check_mutated(seed, 3_000)
    assert read > 100
    assert broken > 100


def test_a_batch_that_names_more_records_than_it_can_have_is_refused() -> None:
    """Nothing is set aside for records that are not there."""
    data = bytearray(built([(0, 0, None, b"v", [])], 7))
    data[57:61] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(BrokenBatch, match="names another number of records") as raised:
        ours(signed(data))
    assert raised.value.base_offset == 7


def test_what_does_not_unpack_is_named_and_what_lies_before_it_is_read() -> None:
    """A batch of broken gzip is an error of its own, behind the records before it."""
    first, broken = built([(0, 1, None, b"a", [])], 5), bytearray(built([(0, 1, None, b"b", [])], 6, 1))
    broken[70:80] = b"0123456789"
    fetched = PartitionAnswer(first + signed(broken), 0, 0, (), committed_only=True)
    records, _ = fetched.take(ALL, with_keys=True)
    assert records is not None
    assert records.values.to_pylist() == [b"a"]
    assert fetched.next_fetch_offset == 6
    with pytest.raises(BrokenBatch, match="cannot be unpacked"):
        fetched.take(ALL, with_keys=True)


@settings(max_examples=25)
@given(st.lists(FEW, min_size=1, max_size=3), st.integers(300, 5_000), st.integers(60, 900), st.integers(0, 900))
def test_what_unpacks_to_much_comes_in_parts_and_is_the_same(
    batches: list[tuple[list[Record], int]], most: int, part: int, position: int
) -> None:
    """Whatever the bound of what is unpacked at once, for each compression; a record above it is told by its place and size."""
    data = b"".join(built(records, 1000 * i, codec) for i, (records, codec) in enumerate(batches))
    position = min(position, theirs_next(built(batches[0][0], 0)) - 1)  # a broker sends the batch that has it
    expected = [row for row in theirs(data) if row[0] >= position]
    snappy = any(codec == 2 for _, codec in batches)  # its format bounds what comes of a byte
    with bounded(most, part):
        fetched, rows, unread = (
            PartitionAnswer(data, 0, position, (), committed_only=True),
            list[Row](),
            dict[int, str](),
        )
        while fetched.more:
            before = fetched.next_fetch_offset
            records, size_bytes = fetched.take(ALL, with_keys=True)
            assert fetched.next_fetch_offset >= before
            if records is not None:
                assert snappy or size_bytes <= len(data) + most + part
                keys = [None] * len(records.offsets) if records.keys is None else records.keys.to_pylist()
                columns = records.offsets.tolist(), records.timestamps.tolist(), keys, records.values.to_pylist()
                rows += zip(*columns, strict=True)
                unread.update(records.unread)
    assert fetched.next_fetch_offset == theirs_next(data)
    assert [row[0] for row in rows] == [row[0] for row in expected]
    assert [row for row in rows if row[0] not in unread] == [row for row in expected if row[0] not in unread]
    assert all(len((row[2] or b"") + (row[3] or b"")) + 400 > most for row in expected if row[0] in unread)


def test_a_record_that_is_too_large_is_passed_with_its_place_and_size() -> None:
    """Those around it come as ever; it has no value, and a reason."""
    texts = [b"a" * 50, b"b" * 5_000, b"c" * 50]
    for codec in (1, 3, 4):
        data = built([(0, 7, None, text, []) for text in texts], 40, codec)
        with bounded(1_000, 64):
            fetched, found = PartitionAnswer(data, 0, 0, (), committed_only=True), []
            while fetched.more:
                found.append(fetched.take(ALL, with_keys=False)[0])
        assert [(r.offsets.tolist(), r.values.to_pylist(), list(r.unread)) for r in found if r is not None] == [
            ([40], [texts[0]], []), ([41], [b""], [41]), ([42], [texts[2]], []),
        ]  # fmt: skip
        assert found[1] is not None
        assert "5007 bytes unpacked; at most 1000" in found[1].unread[41]


def test_a_batch_that_unpacks_to_less_than_it_names_is_broken_in_parts_too() -> None:
    """It is named, whatever was given out of it."""
    data = bytearray(built([(0, 7, None, b"x" * 500, []) for _ in range(9)], 0, 1))
    data[57:61] = (99).to_bytes(4, "big")
    with bounded(1_000, 64):
        fetched = PartitionAnswer(signed(data), 0, 0, (), committed_only=True)

        def all_of_it() -> None:
            while fetched.more:
                fetched.take(ALL, with_keys=False)

        with pytest.raises(BrokenBatch, match="names 99 records, and unpacks to 9"):
            all_of_it()


def theirs_next(data: bytes) -> int:
    """The offset behind the last batch."""
    reading, behind = MemoryRecords(data), 0
    while reading.has_next():
        behind = reading.next_batch().next_offset
    return behind


@contextmanager
def bounded(most: int, part: int) -> Iterator[None]:
    """So many bytes are unpacked at once at most, and so many of a part."""
    with (
        patch.object(kafka_unpacking, "UNPACKED_BYTES_MAX", most),
        patch.object(kafka_batches, "UNPACKED_BYTES_MAX", most),
        patch.object(kafka_messages, "UNPACKED_BYTES_MAX", most),
        patch.object(kafka_messages, "PART_BYTES", part),
        patch.object(kafka_unpacking, "PART_BYTES", part),
        patch.object(kafka_unpacking, "_TIMES_MAX", {}),
    ):
        yield


@settings(max_examples=60)
@given(st.lists(FEW, min_size=1, max_size=5), st.integers(100, 5_000), st.integers(0, 900))
def test_in_the_place_of_what_unpacks_to_much_stands_a_record(
    batches: list[tuple[list[Record], int]], most: int, begin: int
) -> None:
    """Who reads records one by one gets those of all other batches, and one with the last offset for each that is above the bound."""
    parts = [built(records, 1000 * i, codec) for i, (records, codec) in enumerate(batches)]
    begin = min(begin, theirs_next(parts[0]) - 1)  # a broker sends the batch that has it
    at, expected = TopicPartition("t", 0), list[Row]()
    for part, (records, codec) in zip(parts, batches, strict=True):
        large = codec in (1, 3, 4) and len(built(records, 0)) - kafka.HEADER_BYTES > most
        expected += [(theirs_next(part) - 1, -1, None, b"")] if large else theirs(part)
    with bounded(most, 64):
        fetched = FetchedRecords()
        fetched[at] = FetchResult(at, assignment=None, partition_records=opened(b"".join(parts), at, begin), backoff=0)
        found = list(fetched[at]._partition_records)
    shown = [
        (r.offset, -1, None, b"") if (PASSED in dict(r.headers)) else (r.offset, r.timestamp, r.key, r.value)
        for r in found
    ]
    assert shown == [row for row in expected if row[0] >= begin]
    assert fetched[at]._partition_records.next_fetch_offset == theirs_next(parts[-1])


@given(st.lists(FEW, min_size=1, max_size=4), st.integers(0, 3), st.integers(kafka.CRC_AT, 10**6), st.integers(1, 255))
def test_a_batch_with_another_crc_is_not_read(
    batches: list[tuple[list[Record], int]], which: int, place: int, other: int
) -> None:
    """Whatever byte behind its format was changed: the library hears of it, and the batches in front are given out."""
    parts = [bytearray(built(records, 1000 * i, codec)) for i, (records, codec) in enumerate(batches)]
    at, which = TopicPartition("t", 0), which % len(parts)
    expected = [row for part in parts[:which] for row in theirs(bytes(part))]
    damaged = parts[which]
    damaged[kafka.CRC_AT + (place - kafka.CRC_AT) % (len(damaged) - kafka.CRC_AT)] ^= other
    fetched = FetchedRecords()
    fetched[at] = FetchResult(at, assignment=None, partition_records=opened(b"".join(parts), at, 0), backoff=0)
    found: list[Row] = []
    with pytest.raises(CorruptRecordException):
        found += ((r.offset, r.timestamp, r.key, r.value) for r in fetched[at]._partition_records)
    assert [*map(tuple, found)] == expected


def opened(data: bytes, at: TopicPartition, begin: int) -> PartitionRecords:
    """An answer of a broker, as the library is about to read it."""
    return PartitionRecords(at, MemoryRecords(data), [], begin, None, None, False, READ_COMMITTED)
