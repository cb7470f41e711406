"""Feeds a topic with prepared records, at a pace, and keeps the end offsets that the broker has acknowledged."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition

_SLICES_PER_S = 20
"""How smoothly the demo is fed."""


@dataclass(slots=True)
class Fed:
    """How far the feed is."""

    sent: int = 0
    acked: dict[int, Offset] = field(default_factory=dict)
    """By partition: the offset behind the last record that the broker has."""


async def feed(
    log: Log,
    topic: str,
    records: Iterable[tuple[int, bytes, bytes]],
    total: int,
    seconds: float,
    fed: Fed,
    hold: Callable[[int], Awaitable[None]] | None = None,
) -> None:
    """Send (partition, key, value) in order, evenly over so many seconds; `fed` follows.

    hold: awaited before each slice with the number sent so far.
    """
    writer = await log.writer("feeder")
    loop = asyncio.get_running_loop()
    began = loop.time()
    size = max(1, round(total / max(1.0, seconds * _SLICES_PER_S)))
    pending: list[tuple[int, Awaitable[Offset]]] = []
    try:
        for partition, key, value in records:
            pending.append((partition, await writer.send(TopicPartition(topic, partition), NewRecord(value, key))))
            fed.sent += 1
            if len(pending) >= size:
                await _settle(pending, fed)
                if hold is not None:
                    await hold(fed.sent)
                ahead = began + fed.sent / total * seconds - loop.time()
                if ahead > 0:
                    await asyncio.sleep(ahead)
        await _settle(pending, fed)
    finally:
        await writer.close()


async def _settle(pending: list[tuple[int, Awaitable[Offset]]], fed: Fed) -> None:
    for partition, answer in pending:
        fed.acked[partition] = Offset(await answer + 1)
    pending.clear()
