"""Batches that compiled code packs are those of the client library, byte for byte; none is lost on the way to a batch and back."""

import numpy as np
import pytest
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from tidemark.shared.adapters.kafka_packed import packed
from tidemark.shared.adapters.kafka_sending import Batch, OpenBatch, joined
from tidemark.shared.ports.log import NewRecord, RecordColumns

_PIECES = st.none() | st.binary(max_size=70) | st.integers(120, 140).map(bytes)
_HEADERS = st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=5)), max_size=3).map(tuple)
_TIMES = st.integers(0, 2**42) | st.integers(1_700_000_000_000, 1_700_000_001_000)
RECORDS = st.builds(NewRecord, _PIECES, _PIECES, _HEADERS, _TIMES)


def built(batch: Batch) -> bytes:
    """A batch's bytes."""
    return b"".join(batch._build())


def by_library(records: list[NewRecord], *, transactional: bool) -> bytes:
    """The library's batch of records, one by one."""
    builder = BatchBuilder(1 << 20, 0, is_transactional=transactional)
    for r in records:
        assert builder.append(timestamp=r.timestamp_ms, key=r.key, value=r.value, headers=list(r.headers)) is not None
    builder._set_producer_state(7, 3, 5)
    return bytes(builder._build())


@given(st.lists(RECORDS, min_size=1, max_size=30), st.integers(62, 2_000), st.booleans())
def test_what_is_packed_is_what_the_client_library_packs(
    records: list[NewRecord], bytes_max: int, transactional: bool
) -> None:
    """KP1, KP2: keys, values, tombstones, headers and times; a batch has as many records as fit, and one at least."""
    left = records
    for batch in packed(RecordColumns.of(records), bytes_max, None, transactional=transactional):
        count = batch.record_count()
        batch._set_producer_state(7, 3, 5)
        assert batch.size() == len(built(batch))
        assert built(batch) == by_library(left[:count], transactional=transactional)
        assert batch.size() <= bytes_max or count == 1
        assert count == len(left) or len(by_library(left[: count + 1], transactional=transactional)) > bytes_max
        left = left[count:]
    assert not left


@given(st.lists(RECORDS, min_size=1, max_size=30), st.sampled_from(["gzip", "snappy", "lz4", "zstd"]))
def test_what_is_compressed_is_unpacked_by_the_client_library(records: list[NewRecord], compression: str) -> None:
    """Each record as it was, whether or not compressing made the batch smaller."""
    (batch,) = packed(RecordColumns.of(records), 1_000_000, compression, transactional=False)
    read = MemoryRecords(built(batch)).next_batch()
    assert read.validate_crc()
    assert [NewRecord(r.value, r.key, tuple(r.headers), r.timestamp) for r in read] == records


@given(st.lists(RECORDS, min_size=2, max_size=20), st.data())
def test_some_of_the_records_are_packed_as_if_they_were_all(records: list[NewRecord], data: st.DataObject) -> None:
    """A slice of columns, and records taken out of them, are records like others."""
    begin = data.draw(st.integers(0, len(records) - 1))
    rows = data.draw(st.permutations(range(len(records) - begin)))
    columns = RecordColumns.of(records)[begin:].take(np.array(rows, dtype=np.int64))
    expected = [records[begin + row] for row in rows]
    assert list(columns) == expected
    (batch,) = packed(columns, 1_000_000, None, transactional=False)
    batch._set_producer_state(7, 3, 5)
    assert built(batch) == by_library(expected, transactional=False)


@pytest.mark.parametrize("columns", [RecordColumns.of([NewRecord(b"a")])])
def test_a_record_without_a_time_has_the_time_of_its_writing(columns: RecordColumns) -> None:
    """As the library: two calls one after the other give times that do not fall."""
    first, second = (built(next(packed(columns, 1_000, None, transactional=False))) for _ in range(2))
    assert 0 < int.from_bytes(first[27:35], "big") <= int.from_bytes(second[27:35], "big")


@given(st.lists(RECORDS, min_size=1, max_size=30), st.integers(62, 2_000), st.booleans())
def test_what_is_appended_is_what_the_client_library_appends(
    records: list[NewRecord], bytes_max: int, transactional: bool
) -> None:
    """KP1, KP2, record by record: each is told its place and its time, and the first that does not fit is not taken."""
    left = records
    while left:
        batch = OpenBatch(bytes_max, None, transactional=transactional)
        places = [
            batch.append(timestamp=r.timestamp_ms, key=r.key, value=r.value, headers=list(r.headers)) for r in left
        ]
        count = batch.record_count()
        assert places[:count] == [(place, r.timestamp_ms) for place, r in enumerate(left[:count])]
        assert places[count:] == [None] * (len(left) - count)
        assert batch.closed() == (count < len(left))
        batch._set_producer_state(7, 3, 5)
        assert batch.size() == len(built(batch))
        assert built(batch) == by_library(left[:count], transactional=transactional)
        assert batch.append(timestamp=1, key=b"k", value=b"v", headers=[]) is None
        assert batch.size() <= bytes_max or count == 1
        assert count == len(left) or len(by_library(left[: count + 1], transactional=transactional)) > bytes_max
        left = left[count:]


@given(st.lists(RECORDS, min_size=1, max_size=30), st.sampled_from(["gzip", "snappy", "lz4", "zstd"]))
def test_what_is_appended_and_compressed_is_unpacked_by_the_client_library(
    records: list[NewRecord], compression: str
) -> None:
    """As above, whatever the codec."""
    batch = OpenBatch(1_000_000, compression, transactional=False)
    for r in records:
        assert batch.append(timestamp=r.timestamp_ms, key=r.key, value=r.value, headers=r.headers) is not None
    read = MemoryRecords(built(batch)).next_batch()
    assert read.validate_crc()
    assert [NewRecord(r.value, r.key, tuple(r.headers), r.timestamp) for r in read] == records


@given(
    st.dictionaries(
        st.text(max_size=5), st.lists(st.tuples(st.integers(0, 9), st.lists(st.binary(max_size=9)))), max_size=3
    ),
    st.sampled_from([(0, 0), (0, 2), (3, 7)]),
)
def test_a_request_of_pieces_is_that_of_the_client_library(
    topics: dict[str, list[tuple[int, list[bytes]]]], versions: tuple[int, int]
) -> None:
    """Whatever version of the protocol a broker speaks: topics, partitions and batches."""
    identity = "me" if versions[0] else None
    whole = {topic: [(at, b"".join(pieces)) for at, pieces in each] for topic, each in topics.items()}
    library = ProduceRequest(identity, -1, 1_000, list(whole.items())).prepare({0: versions})
    ours = joined(ProduceRequest(identity, -1, 1_000, list(topics.items()))).prepare({0: versions})
    assert ours.encode() == library.encode()
    assert type(ours) is type(library)
