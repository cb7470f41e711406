"""What stands around a measurement: records written by an ordinary producer, results read and compared, the moments of their release."""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiokafka
import numpy as np
import numpy.typing as npt

from tests.harness.bench.events import BEGIN_MS, MINUTE_MS, Load
from tidemark.services.local.jars import ensure_jars
from tidemark.services.local.java import find_java

_HERE: Final = Path(__file__).parent
_LOOK_S: Final = 0.05
_QUIET_S: Final = 3.0
"""All results are there, and nothing more has been released for so long: it is the end."""
_PATIENCE_S: Final = 120.0
"""Nothing has been released for so long, and not all results are there."""
_FIRST, _LAST = 0.1, 0.97
"""The part of the results between which the rate is taken: without the start, and without the end's last epoch."""
CLOSING: Final = 256
"""Records a partition behind the others, an hour later: they let every window in front of them close."""


async def java(program: str, *arguments: object, jars: Sequence[Path] = ()) -> None:
    """Run a program of this folder to its end."""
    paths = ":".join(map(str, (*ensure_jars(), *jars)))
    words = [str(find_java().executable), "-cp", paths, str(_HERE / program), *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(*words)
    assert await process.wait() == 0, f"{program} {arguments} failed"


async def feed(bootstrap: str, load: Load, linger_ms: int, *, closing: bool) -> None:
    """Write the events, as an ordinary producer does, and behind them what closes their windows."""
    keys, amounts = load.drawn()
    with tempfile.NamedTemporaryFile() as file:
        for begin in range(0, load.events, 100_000):
            file.write(load.texts(begin, min(begin + 100_000, load.events), keys, amounts))
        file.flush()
        await java(
            "Clients.java", "produce", bootstrap, load.topic, load.partitions, linger_ms, load.event_bytes, file.name
        )
    if closing:
        await _close(bootstrap, load)


async def _close(bootstrap: str, load: Load) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    at_ms = BEGIN_MS + (load.windows + 60) * MINUTE_MS
    for number in range(CLOSING):
        text = b'{"key":"end-%012d","ts":%013d,"amount":10000}' % (number, at_ms)
        for partition in range(load.partitions):
            await producer.send(load.topic, text, partition=partition)
    await producer.flush()
    await producer.stop()


@dataclass
class Watched:
    """How much was released, and when; seconds of the monotonic clock."""

    moments: list[float] = field(default_factory=list)
    released: list[int] = field(default_factory=list)

    @property
    def first_s(self) -> float:
        """When the first was there."""
        return next(t for t, n in zip(self.moments, self.released, strict=True) if n)

    @property
    def last_s(self) -> float:
        """When the last was there."""
        return self.moments[self.released.index(self.released[-1])]

    def steady(self, events: int) -> float:
        """Events a second, between a tenth of the results and nearly all of them."""
        share = np.array(self.released) / self.released[-1]
        begin, end = int(np.argmax(share >= _FIRST)), int(np.argmax(share >= _LAST))
        if end <= begin:
            return float("nan")
        return float((share[end] - share[begin]) * events / (self.moments[end] - self.moments[begin]))


async def watch(bootstrap: str, topic: str, partitions: int, results: int, quiet_s: float = _QUIET_S) -> Watched:
    """Look where committed records end, until there are so many, and no more come. Offsets count the markers of transactions, too."""
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed", group_id=None)
    await consumer.start()
    places = [aiokafka.TopicPartition(topic, number) for number in range(partitions)]
    seen = Watched()
    began = time.monotonic()
    try:
        while True:
            ends = sum((await consumer.end_offsets(places)).values())
            now = time.monotonic()
            seen.moments.append(now)
            seen.released.append(ends)
            silent_s = now - (seen.last_s if ends else began)
            if ends >= results and silent_s > quiet_s:
                return seen
            assert silent_s < _PATIENCE_S, f"{topic}: {ends} of {results} results after {silent_s:.0f} s of silence"
            await asyncio.sleep(_LOOK_S)
    finally:
        await consumer.stop()


async def values_of(bootstrap: str, topic: str, partitions: int) -> list[bytes]:
    """The committed values of a topic."""
    with tempfile.NamedTemporaryFile() as file:
        await java("Clients.java", "consume", bootstrap, topic, partitions, file.name)
        return Path(file.name).read_bytes().split(b"\n")[:-1]


def mapped(load: Load) -> list[bytes]:
    """What a map gives that adds the double of the amount, sorted."""
    keys, amounts = load.drawn()
    texts = load.texts(0, load.events, keys, amounts)
    size = load.event_bytes
    every = (texts[at : at + size - 1] for at in range(0, len(texts), size))
    return sorted(t + b',"double":%d}' % (2 * a) for t, a in zip(every, amounts.tolist(), strict=True))


def cells(rows: npt.NDArray[np.int64], load: Load) -> npt.NDArray[np.int64]:
    """Rows of (window's start ms, key number, count, sum), shape (n, 4), in the order of windows and keys, without those of the end."""
    kept = rows[rows[:, 0] < BEGIN_MS + load.windows * MINUTE_MS]
    return kept[np.lexsort((kept[:, 1], kept[:, 0]))]
