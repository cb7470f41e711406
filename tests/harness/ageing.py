"""Processors that have committed every second for a year: what it costs to lead, to restore and to list them. Shown in virtual time.

    make age COMMITS=31500000 PROCESSORS=50

The history is made, not run: a mirror whose rows are built when somebody reads them, and a lineage of dead generations. A thousand
rows take 200 ms of virtual time, so whoever reads the history is seen.
"""

import argparse
import logging
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from tests.harness.installation import NAME, Installed, installed
from tests.harness.leaders import Leader, another, of_installation
from tests.harness.sealing import KEYS
from tidemark.shared.adapters.memory_broker import _Stored
from tidemark.shared.adapters.memory_log import MemoryReader
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.checkpoint import LineageEntry, MirrorRow
from tidemark.shared.model.ids import Epoch, Generation, JobId, LeaderToken, Offset, ProcessorName
from tidemark.shared.model.messages import StartProcessor
from tidemark.shared.ports.log import LogRecord, LogUnavailable
from tidemark.shared.protocol.coordinator.record import decode_kept, encode_kept
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.runtime.worker import Worker
from tidemark.shared.wire.messages import encode_message
from tidemark.shared.wire.seals import HEADER

READ_MS_PER_ROW = 0.2
DEAD_GENERATIONS = 2_000
UNREAD = 300_000
"""Three times what a mirror keeps for audits; to read it takes twelve leases."""
DOCUMENT = {
    "connections": {"k": {"type": "kafka", "bootstrapServers": "memory:1"}},
    "pipeline": [
        {"$source": {"connectionName": "k", "topic": "in"}},
        {"$emit": {"connectionName": "k", "topic": "out"}},
    ],
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Of processors of one age. `_ms` in virtual time."""

    lead_ms: int
    """From taking the lease to leading."""
    commit_ms: int
    """From leading to a further commit of every processor."""
    restore_ms: int
    """From a failure of a task of each to all of them running."""
    rows: int
    """Of mirrors, read by leaders and sinks in all that."""
    lineage: int
    """Entries that the store still has, of all processors."""
    retained: int
    """Commit rows that it still has."""
    mirrored: int
    """Rows that are still in their mirrors."""


class History:
    """The rows of a mirror: so many that are made when they are read, of epochs up to the last, then those that were written."""

    def __init__(self, job: JobId, made: int, last: Epoch) -> None:
        self._job = job
        self._made = made
        self._last = last
        self._gone = 0
        self._written: list[_Stored] = []

    def __len__(self) -> int:
        return self._made - self._gone + len(self._written)

    def __getitem__(self, at: int | slice) -> "_Stored | list[_Stored]":
        if isinstance(at, slice):
            return []  # what is let go of; nothing was held for it
        number = at + self._gone
        if number >= self._made:
            return self._written[number - self._made]
        epoch = min(Epoch(number + 1), self._last)
        row = encode_message(MirrorRow(self._job, epoch, Epoch(epoch - 1), Generation(1), ()))
        topic = Topics().commits(self._job)
        seal = (HEADER, KEYS.seal((topic, 0), None, row, ()))
        return _Stored(LogRecord(topic, 0, Offset(number), 0, None, row, (seal,)), None)

    def __iter__(self) -> Iterator[_Stored]:
        return iter(self._written)

    def __delitem__(self, at: slice) -> None:
        count = at.stop
        made = min(count, self._made - self._gone)
        self._gone += made
        del self._written[: count - made]

    def append(self, stored: _Stored) -> None:
        """As a list's."""
        self._written.append(stored)


def _grow_old(there: Installed, commits: int) -> None:
    """As if each processor had committed so often; whoever leads has to read everything anew."""
    store, broker = there.store, there.broker
    for name, row in store.rows.items():
        kept = replace(decode_kept(row.extra), mirror=Offset(commits))
        store.rows[name] = replace(
            row, reserved=Epoch(commits), generation=Generation(DEAD_GENERATIONS), extra=encode_kept(kept)
        )
        topic = Topics().commits(row.job)
        broker.create_topic(topic, 1)
        broker._topics[topic][0].stored = History(row.job, commits, Epoch(commits))  # type: ignore[assignment]
        store.lineage[row.job] = [LineageEntry(Generation(g), Epoch(0), 1) for g in range(1, DEAD_GENERATIONS + 1)]
    _leaderless(there)


def _leaderless(there: Installed) -> None:
    """Whoever leads has lost its lease, and the next reads everything anew."""
    store = there.store
    store.token = LeaderToken(store.token + 1)
    store.holder, store.expires_ms = "nobody", 0
    for name, row in store.rows.items():
        store.rows[name] = replace(row, leader=store.token)


def _lengthen(there: Installed, name: ProcessorName, rows: int, unread: int) -> None:
    """The mirror of a stopped processor has so many rows, and whoever leads reads the last of them."""
    row = there.store.rows[name]
    kept = replace(decode_kept(row.extra), mirror=Offset(rows - unread))
    there.store.rows[name] = replace(row, extra=encode_kept(kept))
    partition = there.broker._topics[Topics().commits(row.job)][0]
    partition.stored = History(row.job, rows - len(partition.stored), Epoch(1))  # type: ignore[assignment]
    _leaderless(there)


@contextmanager
def _slow_mirrors(world: VirtualWorld, read: list[int]) -> Iterator[None]:
    """Rows of mirrors take time to be read, and are counted."""
    real = MemoryReader.fetch

    async def fetch(self: MemoryReader, most: int, timeout_ms: int) -> list[LogRecord]:
        found = await real(self, most, timeout_ms)
        rows = sum(record.topic.endswith(".commits") for record in found)
        if rows:
            read[0] += rows
            await world.clock.sleep_ms(max(1, int(rows * READ_MS_PER_ROW)))
        return found

    MemoryReader.fetch = fetch  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        MemoryReader.fetch = real  # type: ignore[method-assign]


async def _until(there: Installed, holds: Callable[[], bool]) -> int:
    """Wait; how long it took, ms."""
    begin_ms = there.clock.monotonic_ms()
    while not holds():
        await there.clock.sleep_ms(10)
    return there.clock.monotonic_ms() - begin_ms


async def _cost(world: VirtualWorld, there: Installed, first: Leader, second: Leader, commits: int) -> Cost:
    names, store, read = list(there.store.rows), there.store, [0]
    _grow_old(there, commits)
    await _until(there, lambda: there.store.token in {first.driver._token, second.driver._token})
    leader, standby = (first, second) if first.driver._token is not None else (second, first)
    for name in names:
        await there.client.request(StartProcessor(there.client.unique(), name))
    await _until(there, lambda: all(store.rows[name].last > commits + 2 for name in names))
    with _slow_mirrors(world, read):
        token = there.store.token
        leader.cut(away=True)
        await _until(there, lambda: there.store.token > token)
        lead_ms = await _until(there, lambda: standby.driver._token is not None)
        before = {name: store.rows[name].last for name in names}
        commit_ms = await _until(there, lambda: all(store.rows[name].last > before[name] for name in names))
        leader.cut(away=False)
        sinks = there.parts["sink"]
        assert isinstance(sinks, Worker)
        generations = {name: store.rows[name].generation for name in names}
        for hosted in sinks._tasks.values():
            assert hosted.driver is not None
            hosted.driver.site.fail(LogUnavailable("a hiccup"))
        restore_ms = await _until(
            there,
            lambda: all(store.rows[n].generation > generations[n] and store.rows[n].state == "RUNNING" for n in names),
        )
        await there.clock.sleep_ms(60_000)
    return Cost(
        lead_ms,
        commit_ms,
        restore_ms,
        read[0],
        sum(map(len, there.store.lineage.values())),
        sum(map(len, there.store.commits.values())),
        sum(len(there.broker._topics[Topics().commits(row.job)][0].stored) for row in store.rows.values()),
    )


def cost(commits: int, processors: int) -> Cost:
    """Of so many processors that have committed so often, with two coordinators."""

    async def main(world: VirtualWorld) -> Cost:
        settings = RuntimeSettings(engine="local", slots=processors)
        async with installed(world.clock, world.executor, settings=settings) as there, another(there) as second:
            there.broker.create_topic("in", 1)
            there.broker.create_topic("out", 1)
            for number in range(processors):
                await there.create({"name": f"p{number}", **DOCUMENT}, ProcessorName(f"p{number}"))
            return await _cost(world, there, of_installation(there), second, commits)

    return run_virtual(main)


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A leader that goes away while it reads a mirror, and the one that follows it. `_ms` in virtual time."""

    first: int
    """Rows that the first had read by then."""
    second: int
    """Rows that the second read until it led."""
    lead_ms: int
    """From the second's lease to its leading."""
    leases: int
    """Given from the first's on: each of them once."""
    commits: int
    """Of the processor, under the second."""


def taken_over(commits: int, unread: int) -> TakenOver:
    """Of a processor that has committed so often, and whose mirror's last rows, so many, a leader reads."""

    async def main(world: VirtualWorld) -> TakenOver:
        settings = RuntimeSettings(engine="local")
        async with installed(world.clock, world.executor, settings=settings) as there, another(there) as second:
            there.broker.create_topic("in", 1)
            there.broker.create_topic("out", 1)
            await there.create({"name": NAME, **DOCUMENT})
            await there.start()
            await there.committed()
            await there.stop()
            pair, store, read = (of_installation(there), second), there.store, [0]
            with _slow_mirrors(world, read):
                _lengthen(there, NAME, commits, unread)
                lost = store.token
                await _until(there, lambda: read[0] >= unread // 2)
                reading, standby = sorted(pair, key=lambda each: each.driver._lease is None)
                token, first = store.token, read[0]
                reading.cut(away=True)
                await _until(there, lambda: store.token > token)
                reading.cut(away=False)
                begun = read[0]
                lead_ms = await _until(there, lambda: standby.driver._token is not None)
                whole = read[0] - begun
            leases = store.token - lost
            last = store.rows[NAME].last
            await there.start()
            await _until(there, lambda: store.rows[NAME].last > last + 2)
            return TakenOver(first, whole, lead_ms, leases, store.rows[NAME].last - last)

    return run_virtual(main)


def main() -> None:
    """Print what it costs, and what this program took for it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=31_500_000)
    parser.add_argument("--processors", type=int, default=50)
    options = parser.parse_args()
    for commits in (1_000, options.commits):
        began = time.monotonic()
        found = cost(commits, options.processors)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        took = time.monotonic() - began
        sys.stdout.write(
            f"{options.processors} processors, {commits} commits each: {found}; {took:.0f} s, peak {peak} MiB\n"
        )
    sys.stdout.write(
        f"{options.commits} commits, of which a leader reads {UNREAD}: {taken_over(options.commits, UNREAD)}\n"
    )


if __name__ == "__main__":
    main()
