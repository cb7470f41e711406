"""What the benchmarks read: JSON events of 60 bytes and more, and what must come out of them, computed apart from the product.

Event i goes to partition i mod 4; `per_window` events share a minute; keys and amounts are drawn with a seed.
"""

import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiokafka
import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
EVENT_BYTES: Final = 60
BEGIN_MS: Final = 1_700_000_040_000
"""The start of a minute."""
MINUTE_MS: Final = 60_000
_CHUNK: Final = 100_000
_BATCH_BYTES: Final = 128 * 1024
_KEY_DIGITS: Final = 12
_TIME_DIGITS: Final = 13
_AMOUNT_DIGITS: Final = 5


@dataclass(frozen=True)
class Load:
    """A preloaded topic. Repeatable: equal fields give equal events."""

    topic: str
    events: int
    keys: int
    per_window: int = 200_000
    partitions: int = 4
    seed: int = 7
    more: bytes = b""
    """Further fields of each event, each behind a comma."""

    @property
    def event_bytes(self) -> int:
        """Of each event."""
        return EVENT_BYTES + len(self.more)

    @property
    def windows(self) -> int:
        """Minutes that have events."""
        return -(-self.events // self.per_window)

    def drawn(self) -> tuple[Int64s, Int64s]:
        """(key number, amount) of every event; shape (events,)."""
        rng = np.random.default_rng(self.seed)
        return rng.integers(0, self.keys, self.events), rng.integers(10_000, 99_999, self.events)

    def expected(self) -> Mapping[tuple[int, int], tuple[int, int]]:
        """By (window, key): count and sum, from the numbers that were drawn."""
        counts, sums = self.expected_columns()
        there = np.flatnonzero(counts)
        return {divmod(int(at), self.keys): (int(counts[at]), int(sums[at])) for at in there}

    def expected_columns(self) -> tuple[Int64s, Int64s]:
        """Counts and sums at window · keys + key; shape (windows · keys,)."""
        keys, amounts = self.drawn()
        cells = np.arange(self.events, dtype=np.int64) // self.per_window * self.keys + keys
        size = self.windows * self.keys
        counts = np.bincount(cells, minlength=size)
        # A double holds these sums exactly: they stay far below 2⁵³.
        sums = np.bincount(cells, weights=amounts, minlength=size).astype(np.int64)
        return counts.astype(np.int64), sums

    def texts(self, begin: int, end: int, keys: Int64s, amounts: Int64s) -> bytes:
        """Events begin … end - 1, one after the other, `event_bytes` each."""
        numbers = np.arange(begin, end, dtype=np.int64)
        times = BEGIN_MS + numbers * MINUTE_MS // self.per_window
        parts = (
            _same(b'{"key":"key-', len(numbers)),
            _digits(keys[begin:end], _KEY_DIGITS),
            _same(b'","ts":', len(numbers)),
            _digits(times, _TIME_DIGITS),
            _same(b',"amount":', len(numbers)),
            _digits(amounts[begin:end], _AMOUNT_DIGITS),
            _same(self.more + b"}", len(numbers)),
        )
        whole = np.concatenate(parts, axis=1)
        assert whole.shape[1] == self.event_bytes, whole.shape
        return whole.tobytes()


def _same(text: bytes, rows: int) -> npt.NDArray[np.uint8]:
    return np.broadcast_to(np.frombuffer(text, dtype=np.uint8), (rows, len(text)))


def _digits(numbers: Int64s, width: int) -> npt.NDArray[np.uint8]:
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


async def preload(bootstrap: str, load: Load) -> None:
    """Write the events into their topic, which exists and is empty."""
    keys, amounts = load.drawn()
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1, max_batch_size=_BATCH_BYTES, linger_ms=0)
    await producer.start()
    try:
        for begin in range(0, load.events, _CHUNK):
            end = min(begin + _CHUNK, load.events)
            text = load.texts(begin, end, keys, amounts)
            sent: list[Awaitable[Any]] = []
            for partition in range(load.partitions):
                first = (partition - begin) % load.partitions
                rows = range(first, end - begin, load.partitions)
                size = load.event_bytes
                values = [text[row * size : (row + 1) * size] for row in rows]
                sent += await _send(producer, load.topic, partition, values)
            for answer in sent:
                await answer
    finally:
        await producer.stop()


async def _send(
    producer: aiokafka.AIOKafkaProducer, topic: str, partition: int, values: list[bytes]
) -> list[Awaitable[Any]]:
    now_ms = time.time_ns() // 1_000_000
    sent: list[Awaitable[Any]] = []
    batch = producer.create_batch()
    for value in values:
        if batch.append(timestamp=now_ms, key=None, value=value) is None:
            batch.close()
            sent.append(await producer.send_batch(batch, topic, partition=partition))
            batch = producer.create_batch()
            batch.append(timestamp=now_ms, key=None, value=value)
    if batch.record_count():
        batch.close()
        sent.append(await producer.send_batch(batch, topic, partition=partition))
    return sent
