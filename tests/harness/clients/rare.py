"""Topics that clients leave behind on a bad day: compacted, cut, with transactions that timed out, were fenced or wait for long."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.harness.clients.drawing import START_MS, coded
from tests.harness.clients.running import Row, consumed, ran
from tests.harness.clients.standing import Brokers, ends_of, make
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import TopicPartition

COMPACTED: Final = {
    "cleanup.policy": "compact", "segment.ms": "200", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "200",
    "delete.retention.ms": "60000",
}  # fmt: skip
_CLEANED_S: Final = 40.0
"""Within so long a cleaner has been."""
_LARGE_BYTES: Final = 8 << 20
Does = list[dict[str, Any]]


def record(n: int, key: str | None = None, pad: int = 0, *, value: bool = True) -> dict[str, Any]:
    """The n-th one, in the first partition."""
    text = json.dumps({"n": n, "at": START_MS + n, "pad": "x" * pad}).encode() if value else None
    return {"p": 0, "k": coded(None if key is None else key.encode()), "v": coded(text), "t": START_MS + n, "h": []}


async def wrote(brokers: Brokers, client: str, topic: str, does: Does, **said: Any) -> None:
    """A client does this."""
    settings = {
        "client": client,
        "bootstrap": brokers.new,
        "topic": topic,
        "codec": "none",
        "acks": "all",
        "timeout_ms": 60_000,
    }
    await ran(client, brokers.built, "produce", [{**settings, **said}, *does])


async def compacted(brokers: Brokers, topic: str) -> None:
    """Holes in batches, batches that are gone or empty, tombstones, in transactions and without, compressed or not."""
    await make(brokers.new, topic, COMPACTED)
    for turn, (client, codec) in enumerate(
        (("franz", "lz4"), ("java", "none"), ("sarama", "zstd"), ("kafkajs", "gzip"))
    ):
        keys = [f"k{turn if n % 5 else n}-{client}" for n in range(60)]
        does: Does = [record(100 * turn + n, key, value=n % 7 > 0) for n, key in enumerate(keys)]
        transactional = client in ("java", "sarama")
        more = {"transactional": f"{topic}-{client}"} if transactional else {"idempotent": client != "kafkajs"}
        whole = (
            [{"do": "begin"}, *does, {"do": "commit"}, {"do": "begin"}, *does[:7], {"do": "abort"}]
            if transactional
            else does
        )
        await wrote(brokers, client, topic, whole, codec=codec, batch_records=20, **more)
        await SystemClock().sleep_ms(300)  # older than a segment may be
        await wrote(brokers, "kafkago", topic, [record(100 * turn + 99, f"last-{turn}")])
    ends = await ends_of(brokers.new, topic)
    async with asyncio.timeout(_CLEANED_S):
        while len(await consumed("librdkafka", brokers.built, brokers.new, topic, ends)) > 200:
            await SystemClock().sleep_ms(500)


async def cut(brokers: Brokers, topic: str) -> None:
    """Records are deleted in the middle of a compressed batch."""
    await make(brokers.new, topic, {})
    await wrote(brokers, "java", topic, [record(n) for n in range(300)], codec="snappy")
    log = KafkaLog(KafkaSettings(bootstrap=brokers.new))
    try:
        await log.delete_records({TopicPartition(topic, 0): Offset(137)})
    finally:
        await log.close()


async def left_open(brokers: Brokers, topic: str) -> None:
    """A transaction that nobody ends: the broker aborts it; records of others stand behind it. Then one that a successor fences."""
    await make(brokers.new, topic, {})
    await wrote(brokers, "java", topic, [record(n) for n in range(20)])
    begun: Does = [{"do": "begin"}, *(record(n) for n in range(20, 40)), {"do": "flush"}]
    await wrote(brokers, "franz", topic, begun, transactional=f"{topic}-left", timeout_ms=4_000)
    await wrote(brokers, "librdkafka", topic, [record(n) for n in range(40, 60)], codec="lz4")
    await wrote(brokers, "sarama", topic, begun, transactional=f"{topic}-fenced", timeout_ms=60_000)
    again: Does = [{"do": "begin"}, *(record(n) for n in range(60, 80)), {"do": "commit"}]
    await wrote(brokers, "java", topic, again, transactional=f"{topic}-fenced", timeout_ms=60_000)


async def large(brokers: Brokers, topic: str) -> None:
    """Batches as large as a topic lets in, of one record or of many."""
    await make(brokers.new, topic, {"max.message.bytes": str(_LARGE_BYTES + 100_000)})
    await wrote(
        brokers, "java", topic, [record(0, pad=_LARGE_BYTES - 200), record(1), record(2, pad=_LARGE_BYTES - 200)]
    )
    some = [record(n, pad=2_000) for n in range(3, 3_000)]
    await wrote(brokers, "franz", topic, some, codec="zstd", batch_bytes=_LARGE_BYTES)
    await wrote(brokers, "librdkafka", topic, some, batch_bytes=_LARGE_BYTES)


async def tiny(brokers: Brokers, topic: str) -> None:
    """A batch a record, of two clients, one by one."""
    await make(brokers.new, topic, {})
    for client in ("sarama", "kafkago"):
        await wrote(brokers, client, topic, [record(n) for n in range(1_500)], batch_records=1)


RARE: Final = {"compacted": compacted, "cut": cut, "left-open": left_open, "large": large, "tiny": tiny}


async def rare_topics(brokers: Brokers, tag: str, names: Sequence[str] = tuple(RARE)) -> Mapping[str, list[Row]]:
    """Each of them, and what Java reads there."""
    rows = {}
    for name in names:
        topic = f"{name}-{tag}"
        await RARE[name](brokers, topic)
        rows[topic] = await consumed("java", brokers.built, brokers.new, topic, await ends_of(brokers.new, topic))
    return rows
