"""The newest records of a topic, as dead letters and try-outs read them."""

import pytest

from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.reading import newest


async def test_the_newest_records_are_bounded_in_number_and_bytes() -> None:
    """So many of all partitions, in order; and fewer, the newest of each, where they are larger than may be held."""
    log = MemoryLog(MemoryBroker(SystemClock()))
    await log.create_topic("t", 2)
    writer = await log.writer("w")
    for number in range(20):
        record = NewRecord(bytes([number]) * 100, timestamp_ms=1_000 + number)
        await (await writer.send(TopicPartition("t", number % 2), record))
    for limit, bytes_max, expected in (
        (5, None, range(15, 20)),
        (50, None, range(20)),
        (5, 100_000, range(15, 20)),
        (50, 600, range(14, 20)),
        (50, 150, range(20, 20)),
    ):
        found = await newest(log, "t", limit, bytes_max=bytes_max)
        assert [record.value[0] for record in found if record.value] == list(expected), (limit, bytes_max)
    assert await newest(log, "none", 5) == []
    await log.close()


@pytest.mark.parametrize("limit", [1, 2, 5, 9, 100])
async def test_offsets_without_a_record_count_for_none(limit: int) -> None:
    """Markers of transactions and records of aborted ones take places at the end of a topic."""
    log = MemoryLog(MemoryBroker(SystemClock()))
    await log.create_topic("t", 1)
    place, writer = TopicPartition("t", 0), await log.transactional_writer("w")
    for number in range(10):
        committed = await writer.begin((place,))
        await committed.send_batch(place, [NewRecord(bytes([number]))])
        await committed.commit()
    aborted = await writer.begin((place,))
    await aborted.send_batch(place, [NewRecord(b"no")] * 30)
    await aborted.abort()
    found = [record.value[0] for record in await newest(log, "t", limit) if record.value]
    assert found == list(range(10))[-limit:]
    await log.close()
