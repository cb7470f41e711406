"""Taking batches apart: offsets with gaps, positions within a batch, control batches, corruption."""

import gc
import weakref

import pytest
from aiokafka import TopicPartition as TheirPartition
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from tidemark.shared.adapters.kafka_batches import BatchRecords, BrokenBatch
from tidemark.shared.adapters.kafka_raw import answer_of


def batch(*records: tuple[int, bytes | None, bytes | None], base: int = 0, producer: int = -1) -> bytearray:
    """One batch as a broker keeps it: (offset from base, key, value)."""
    builder = DefaultRecordBatchBuilder(
        2, 0, is_transactional=producer >= 0, producer_id=producer, producer_epoch=0, base_sequence=0, batch_size=10**6
    )
    for offset, key, value in records:
        builder.append(offset, 1_000 + offset, key, value, [])
    built = builder.build()
    built[0:8] = base.to_bytes(8, "big")  # not covered by the CRC
    return bytearray(built)


def take(
    *batches: bytearray,
    start: int = 0,
    aborted: tuple[tuple[int, int], ...] = (),
    committed_only: bool = True,
) -> tuple[BatchRecords | None, int]:
    theirs = PartitionRecords(
        TheirPartition("t", 0),
        MemoryRecords(bytes(b"".join(batches))),
        list(aborted),
        start,
        None,
        None,
        True,
        int(committed_only),
    )
    fetched = answer_of(theirs)
    records, _ = fetched.take(10**9, with_keys=True)
    return records, fetched.next_fetch_offset


def test_a_buffer_that_is_used_up_goes_without_the_collector() -> None:
    """Neither the library's object nor ours is part of a cycle: megabytes that were fetched do not wait for a collection."""
    theirs = PartitionRecords(
        TheirPartition("t", 0), MemoryRecords(bytes(batch((0, None, b"a")))), [], 0, None, None, True, 1
    )
    raw = answer_of(theirs)
    assert raw.take(1, with_keys=True)[1] > 1
    alive = [weakref.ref(theirs), weakref.ref(raw)]
    gc.disable()
    try:
        del theirs, raw
        assert [found() for found in alive] == [None, None]
    finally:
        gc.enable()


def test_gaps_of_compaction_keep_their_offsets() -> None:
    """Where records were compacted away the others keep their offsets, and the position passes the batch's end."""
    kept = batch((0, b"k", b"a"), (3, b"k", b"b"), (7, None, b"c"), base=100)
    raw, position = take(kept)
    assert raw is not None
    assert raw.offsets.tolist() == [100, 103, 107]
    assert raw.values.to_pylist() == [b"a", b"b", b"c"]
    assert raw.keys is not None
    assert raw.keys.to_pylist() == [b"k", b"k", None]
    assert raw.timestamps.tolist() == [1_000, 1_003, 1_007]
    assert position == 108


@pytest.mark.parametrize("gap", [False, True])
def test_a_position_within_a_batch(gap: bool) -> None:
    """Records before the position, which a broker sends with the batch that contains it, are left out."""
    kept = [(i, None, b"%d" % i) for i in range(6) if not (gap and i == 1)]
    raw, position = take(batch(*kept, base=10), start=13)
    assert raw is not None
    assert raw.offsets.tolist() == [13, 14, 15]
    assert raw.values.to_pylist() == [b"3", b"4", b"5"]
    assert raw.keys is None
    assert position == 16


def test_aborted_transactions_are_left_out() -> None:
    """Of producers whose transaction is aborted only what lies before it is returned; others are not touched."""
    batches = [
        batch((0, None, b"plain"), base=0),
        batch((0, None, b"gone"), base=1, producer=7),
        batch((0, None, b"kept"), base=2, producer=8),
        batch((0, None, b"gone too"), base=3, producer=7),
    ]
    raw, position = take(*batches, aborted=((7, 1),))
    assert raw is not None
    assert raw.values.to_pylist() == [b"plain", b"kept"]
    assert raw.offsets.tolist() == [0, 2]
    assert position == 4
    dirty, _ = take(*batches, aborted=((7, 1),), committed_only=False)
    assert dirty is not None
    assert len(dirty.values) == 4


def test_a_corrupt_batch_is_named() -> None:
    """A flipped bit is an error that names the offset; it is never returned as a record."""
    broken = batch((0, None, b"value"), base=42)
    broken[-3] ^= 1
    with pytest.raises(BrokenBatch, match="CRC") as raised:
        take(broken)
    assert raised.value.base_offset == 42


def test_nothing_visible_is_no_partition() -> None:
    """When all was aborted there is no column, but the position moves."""
    raw, position = take(batch((0, None, b"gone"), base=5, producer=7), start=5, aborted=((7, 5),))
    assert raw is None
    assert position == 6
