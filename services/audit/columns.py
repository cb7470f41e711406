"""A topic's records as a source reads them: the same columns of the same bytes, whatever clients wrote there."""

from collections.abc import AsyncIterator

import numpy as np
import pyarrow as pa

from tidemark.services.audit.reading import Patience, committed_records
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_raw import RawReader
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.records import RawPartition
from tidemark.shared.ports.log import Log, LogUnavailable, TopicPartition
from tidemark.shared.runtime.reading import ENDS_WAIT_MS
from tidemark.shared.runtime.sealed_log import SealedLog

_AT_ONCE_BYTES = 4 * 1024 * 1024
"""That one fetch brings."""


async def columns_of(log: Log, at: TopicPartition, begin: Offset, end: Offset) -> AsyncIterator[RawPartition]:
    """The committed records from one offset to another. LogUnavailable: after `outage_ms_max` of outages."""
    inner = log.inner if isinstance(log, SealedLog) else log
    if isinstance(inner, KafkaLog):
        begin = max(begin, (await log.begin_offsets([at]))[at])
        async for found in _of_cluster(inner.settings, at, begin, end):
            yield found
        return
    records = [record async for record in committed_records(log, at.topic, at.partition, begin, end)]
    if records:
        yield RawPartition(
            *at,
            offsets=np.array([record.offset for record in records], dtype=np.int64),
            timestamps=np.array([record.timestamp_ms for record in records], dtype=np.int64),
            keys=pa.array([record.key for record in records], pa.binary()),
            values=pa.array([record.value for record in records], pa.binary()),
        )


async def _of_cluster(
    settings: KafkaSettings, at: TopicPartition, begin: Offset, end: Offset
) -> AsyncIterator[RawPartition]:
    patience, position = Patience(), begin
    while position < end:
        reader = RawReader(settings)
        try:
            await reader.start()
            await reader.assign({at: position})
            while position < end:
                found = await reader.fetch(_AT_ONCE_BYTES, ENDS_WAIT_MS)
                position = reader.position(at)
                for some in found:
                    yield _below(some, end)
        except LogUnavailable as error:
            await patience.wait(error)
        finally:
            await reader.close()


def _below(found: RawPartition, end: Offset) -> RawPartition:
    count = int(np.searchsorted(found.offsets, end))
    return RawPartition(
        found.topic,
        found.partition,
        found.offsets[:count],
        found.timestamps[:count],
        None if found.keys is None else found.keys.slice(0, count),
        found.values.slice(0, count),
        {place: why for place, why in found.unread.items() if place < count},
    )
