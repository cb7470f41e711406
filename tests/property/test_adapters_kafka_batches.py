"""Record batches taken apart at once: the same records as the client library reads one by one, whatever is in them."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from shared.adapters.kafka_batches import BrokenBatch, PartitionAnswer

Record = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes]]]
Row = tuple[int, int, bytes | None, bytes | None]
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


def test_batches_of_the_old_format_are_read_by_the_library() -> None:
    """What brokers wrote before 2017 stands beside what they write today."""
    old = LegacyRecordBatchBuilder(1, 0, 10**6)
    for i in range(3):
        old.append(i, 5_000 + i, b"k", b"v%d" % i)
    before, behind = bytes(old.build()), built([(0, 7, None, b"new", [])], 3)
    assert ours(before + behind) == theirs(before) + theirs(behind)
    assert len(ours(before + behind)) == 4


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
