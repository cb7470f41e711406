"""A steady stream of events through a pipeline (or through none): how long each takes, and how long an outage lasts."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiokafka
import numpy as np

from tests.harness.bench.events import BEGIN_MS
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import Log, LogRecord, LogUnavailable, TopicPartition
from tidemark.shared.runtime.reading import followed, reading
from tidemark.shared.wire.messages import decode_mirror_row

_SLICE_S = 0.005
_AGAIN_S = 0.05
_NUMBER_AT = len(b"key-")
_DIGITS = 12


@dataclass
class Stream:
    """Events by number: when each was handed to the producer, and when a reader of committed records first saw it; monotonic seconds."""

    rate: int
    sent_s: list[float] = field(default_factory=list)
    seen_s: dict[int, float] = field(default_factory=dict)
    repeats: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    reading: asyncio.Event = field(default_factory=asyncio.Event)
    """The reader stands where it begins: what was sent before that it would not see."""

    def delays_ms(self, behind: int = 0) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Of every event from number `behind` on; AssertionError if one is missing or came twice."""
        missing = [n for n in range(len(self.sent_s)) if n not in self.seen_s]
        assert not missing, f"{len(missing)} of {len(self.sent_s)} events did not come out, the first is {missing[0]}"
        assert self.repeats == 0, f"{self.repeats} events came out twice"
        return np.array([1000 * (self.seen_s[n] - self.sent_s[n]) for n in range(behind, len(self.sent_s))])

    async def send(self, bootstrap: str, topic: str, seconds: float, partitions: int = 4) -> None:
        """At an even pace, in small batches to all partitions in turn."""
        # What is sent again after an outage is in the topic once.
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=0)
        await producer.start()
        try:
            began, turn = time.monotonic(), 0
            while (passed := time.monotonic() - began) < seconds:
                due = int(passed * self.rate)
                if due > len(self.sent_s):
                    await self._slice(producer, topic, turn % partitions, due - len(self.sent_s))
                    turn += 1
                await asyncio.sleep(_SLICE_S)
        finally:
            await producer.stop()

    async def _slice(self, producer: aiokafka.AIOKafkaProducer, topic: str, partition: int, count: int) -> None:
        batch = producer.create_batch()
        now_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        for _ in range(count):
            value = b'{"key":"key-%012d","ts":%d,"amount":12345}' % (len(self.sent_s), BEGIN_MS)
            if batch.append(timestamp=now_ms, key=None, value=value) is None:
                break
            self.sent_s.append(now_s)
        batch.close()
        await producer.send_batch(batch, topic, partition=partition)

    async def read(self, log: Log, topic: str, partitions: int) -> None:
        """Until cancelled, over outages of the broker."""
        positions = await log.end_offsets([TopicPartition(topic, p) for p in range(partitions)])
        while True:
            try:
                async with reading(log, committed_only=True) as reader:
                    await reader.assign(positions)
                    self.reading.set()
                    while True:
                        records = await reader.fetch(50_000, 1_000)
                        self._take(records)
                        positions.update({TopicPartition(topic, r.partition): Offset(r.offset + 1) for r in records})
            except LogUnavailable:
                await asyncio.sleep(_AGAIN_S)

    def _take(self, records: Sequence[LogRecord]) -> None:
        now_s = time.monotonic()
        for record in records:
            value = record.value or b""
            at = value.index(b"key-") + _NUMBER_AT
            number = int(value[at : at + _DIGITS])
            self.repeats += number in self.seen_s
            self.seen_s.setdefault(number, now_s)
        self._news.set()

    async def all_seen(self, timeout_s: float = 300.0) -> None:
        """Wait until what was sent has come out, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while len(self.seen_s) < len(self.sent_s):
                    self._news.clear()
                    await self._news.wait()

    def outage_s(self, at_s: float) -> float:
        """From a moment until an event sent after it came out."""
        later = [self.seen_s[n] for n, sent in enumerate(self.sent_s) if sent > at_s and n in self.seen_s]
        return min(later) - at_s


@dataclass
class Commits:
    """When a job's checkpoints were committed, monotonic seconds, and by which generation, as its mirror tells."""

    seen: list[tuple[float, int]] = field(default_factory=list)

    async def follow(self, log: Log, topic: str) -> None:
        """Until cancelled."""
        async for record in followed(log, SystemClock(), TopicPartition(topic, 0)):
            self.seen.append((time.monotonic(), decode_mirror_row(record.value or b"").generation))

    def outage_s(self, at_s: float) -> float:
        """From a moment until the next generation's first commit."""
        before = max((generation for seen_s, generation in self.seen if seen_s <= at_s), default=0)
        return min(seen_s for seen_s, generation in self.seen if seen_s > at_s and generation > before) - at_s


async def flowed(
    bootstrap: str, log: Log, source: str, target: str, partitions: int, stream: Stream, seconds: float, *,
    beside: Callable[[], Awaitable[None]] | None = None,
    behind: Callable[[], Awaitable[None]] | None = None,
) -> None:  # fmt: skip
    """Send for so long, and read until all has come out; `beside` runs meanwhile, `behind` when all was sent."""
    listening = asyncio.create_task(stream.read(log, target, partitions))
    helping = asyncio.create_task(_awaited(beside))
    try:
        await _first(stream.reading.wait(), listening)
        await stream.send(bootstrap, source, seconds)
        await helping
        await _awaited(behind)
        await stream.all_seen()
    finally:
        for task in (listening, helping):
            task.cancel()
        await asyncio.gather(listening, helping, return_exceptions=True)


async def _first(wanted: Coroutine[Any, Any, Any], failing: "asyncio.Task[None]") -> None:
    """Wait for the one; if the other ends before it, which only a failure makes it do, raise that."""
    waiting = asyncio.create_task(wanted)
    await asyncio.wait((waiting, failing), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if failing.done():
        await failing


async def _awaited(beside: Callable[[], Awaitable[None]] | None) -> None:
    if beside is not None:
        await beside()
