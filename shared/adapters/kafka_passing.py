"""Batches that unpack to very much, for readers of single records: a record stands in for such a batch, which is never unpacked.

The client library unpacks a batch whole before anybody sees its size. Internal topics and markers hold nothing so large, but everybody who
reaches the brokers can write it there. Sources read such batches in parts (`kafka_batches`).
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

import structlog
from aiokafka.record.default_records import DefaultRecord

from tidemark.shared.adapters.kafka_unpacking import UNPACKED_BYTES_MAX, unpacks_to_more
from tidemark.shared.compiled import kafka

_log = structlog.get_logger()
PASSED: Final = "passed-batch"
"""Header of the record that stands for a batch: how many bytes it has, packed."""
_LENGTH_AT: Final = 8
_LENGTH: Final = struct.Struct(">i")
_MAGIC_AT: Final = 16
_HEADER: Final = struct.Struct(">b4xh4xq")
"""Of a batch, from its format on: the format, attributes, the time of its first record, ms; between them CRC and last offset."""


class Fetched(dict[Any, Any]):
    """Records that the library has fetched and not given out, by partition. Takes the place of its own dict; checks every new entry."""

    def __setitem__(self, partition: Any, result: Any) -> None:
        records = getattr(result, "_partition_records", None)
        if records is not None:
            records._records = Batches(records._records, partition)  # noqa: SLF001 - no hook of the library comes before it unpacks
        super().__setitem__(partition, result)


class Batches:
    """The library's batches of one answer, in their order, with a stand-in for each that unpacks to more than UNPACKED_BYTES_MAX.

    No compiled code: a process that reads single records alone, a coordinator's, needs no LLVM for it.
    """

    def __init__(self, inner: Any, partition: Any) -> None:
        self._inner = inner
        self._partition = partition
        self.has_next = inner.has_next
        self.size_in_bytes = inner.size_in_bytes
        (self._data, self._at) = inner.__reduce__()[2]  # the library shows them to pickle alone

    def next_batch(self) -> Any:
        """The next batch, or the record that stands in for it."""
        batch, begin = self._inner.next_batch(), self._at
        self._at += kafka.LOG_OVERHEAD_BYTES + _LENGTH.unpack_from(self._data, begin + _LENGTH_AT)[0]
        if self._at - begin < kafka.HEADER_BYTES:
            return batch
        magic, attributes, time_ms = _HEADER.unpack_from(self._data, begin + _MAGIC_AT)
        codec = attributes & kafka.CODEC_MASK
        if magic < kafka.FORMAT or not codec:
            return batch
        packed = self._data[begin + kafka.HEADER_BYTES : self._at]
        if not unpacks_to_more(packed, codec):
            return batch
        at, size = self._partition, len(packed)
        _log.error(
            "kafka.batch_passed", topic=at.topic, partition=at.partition, offset=batch.base_offset, packed_bytes=size,
            unpacked_bytes_max=UNPACKED_BYTES_MAX,
        )  # fmt: skip
        return _InPlace(batch, time_ms, size)


class _InPlace:
    """A batch of one record, with the producer, the CRC and the offsets of the one that it stands for."""

    def __init__(self, batch: Any, time_ms: int, packed_bytes: int) -> None:
        self._batch = batch
        headers = [(PASSED, str(packed_bytes).encode())]
        self._records = iter([DefaultRecord(batch.next_offset - 1, time_ms, 0, None, b"", headers)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        return self._records
