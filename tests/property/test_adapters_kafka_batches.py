"""Record batches taken apart at once: the same records as one by one, or none, whatever is in them."""

from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from shared.adapters.kafka_batches import HEADER_BYTES, BatchPlace, read_batches

Record = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes]]]
TEXT = st.text(max_size=90).map(str.encode)
BYTES = st.one_of(TEXT, TEXT, st.binary(max_size=300), st.just(b"\0" * 20))
RECORD = st.tuples(
    st.integers(0, 3),
    st.integers(-(2**40), 2**40),
    st.none() | BYTES,
    st.none() | BYTES,
    st.lists(st.tuples(st.text(max_size=3), BYTES), max_size=2),
)
BATCH = st.lists(RECORD, min_size=1, max_size=300)


def built(records: list[Record], base: int) -> bytes:
    """One batch as a broker keeps it; each record's first number is how many before it were compacted away."""
    builder = DefaultRecordBatchBuilder(
        2, 0, is_transactional=False, producer_id=-1, producer_epoch=0, base_sequence=0, batch_size=10**8
    )
    offset = -1
    for gap, time_ms, key, value, headers in records:
        offset += gap + 1
        builder.append(offset, time_ms, key, value, headers)
    data = bytearray(builder.build())
    data[0:8] = base.to_bytes(8, "big")
    return bytes(data)


def places(data: bytes) -> tuple[list[BatchPlace], list[tuple[Any, ...]]]:
    """Where the batches lie, and their records as the library reads them."""
    found, rows, begin = [], [], 0
    reading = MemoryRecords(data)
    while reading.has_next():
        batch = reading.next_batch()
        end = begin + 12 + int.from_bytes(data[begin + 8 : begin + 12], "big")
        count = int.from_bytes(data[begin + 57 : begin + 61], "big")
        found.append(BatchPlace(begin + HEADER_BYTES, end, batch.base_offset, count, batch.first_timestamp, None))
        rows += [(r.offset, r.timestamp, r.key, r.value) for r in batch]
        begin = end
    return found, rows


@given(st.lists(BATCH, min_size=1, max_size=4))
def test_the_same_records_as_one_by_one(batches: list[list[Record]]) -> None:
    """Offsets, times, keys and values are the library's, for texts, bytes, nulls, headers and gaps; or the reader says that it cannot."""
    data = b"".join(built(records, 1000 * i) for i, records in enumerate(batches))
    found, expected = places(data)
    records = read_batches(data, found)
    if records is not None:
        keys = [None] * len(expected) if records.keys is None else records.keys.to_pylist()
        columns = (records.offsets.tolist(), records.timestamps.tolist(), keys, records.values.to_pylist())
        assert list(zip(*columns, strict=True)) == expected


@given(st.lists(st.tuples(st.none() | TEXT, st.none() | TEXT), min_size=1, max_size=400), st.integers(1, 400))
def test_texts_are_always_taken_at_once(pairs: list[tuple[bytes | None, bytes | None]], per_batch: int) -> None:
    """Keys and values without zero bytes and without headers, in batches of any size, never need the slow way."""
    rows: list[Record] = [
        (0, 1_000 + i, key and key.replace(b"\0", b""), value and value.replace(b"\0", b""), [])
        for i, (key, value) in enumerate(pairs)
    ]
    runs = [rows[at : at + per_batch] for at in range(0, len(rows), per_batch)]
    data = b"".join(built(run, i * per_batch) for i, run in enumerate(runs))
    found, expected = places(data)
    records = read_batches(data, found)
    assert records is not None
    assert records.values.to_pylist() == [row[3] for row in expected]
