"""The log in memory: clients of a `MemoryBroker`, with the faults that a real log has.

For simulation and for trying out. Records that a client hands over travel beside the caller, in one lane a
partition, so that records of different partitions overtake each other, answers come late, and a lost
connection leaves a prefix of each lane recorded. Errors are those of the port; a writer is unusable after the
first (F2).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final

from tidemark.shared.adapters.faults import Fault, Faults, Operation
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_transactions import MemoryTransactionalWriter, again
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import (
    LogError,
    LogRecord,
    LogUnavailable,
    NewRecord,
    TopicFound,
    TopicPartition,
    TopicRules,
)

BUFFER_RECORDS_MAX: Final = 1000
"""Records that a writer holds unacknowledged, by default; `send` waits beyond that."""


class MemoryReader:
    """`Reader` of a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, faults: Faults, *, committed_only: bool) -> None:
        self._broker = broker
        self._faults = faults
        self._committed_only = committed_only
        self._positions: dict[TopicPartition, Offset] = {}
        self._paused: set[TopicPartition] = set()
        self._change = asyncio.Event()
        self._turn = 0
        self.closed = False

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read these partitions from these offsets; replaces the last assignment."""
        await self._faults.pause()
        for partition in positions:
            self._broker.begin(partition)
        self._positions = dict(positions)
        self._paused.clear()
        self._change.set()

    async def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Go on from here in one partition."""
        self.position(partition)
        self._positions[partition] = offset
        self._change.set()

    def position(self, partition: TopicPartition) -> Offset:
        """The offset that `fetch` goes on from."""
        if partition not in self._positions:
            raise LogError(f"reader: {partition} is not assigned")
        return self._positions[partition]

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return nothing of these until `resume`."""
        for partition in partitions:
            self.position(partition)
        self._paused.update(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Return records of these again."""
        for partition in partitions:
            self.position(partition)
        self._paused.difference_update(partitions)
        self._change.set()

    async def fetch(self, max_records: int, timeout_ms: int) -> list[LogRecord]:
        """The records that are there, at most so many, waiting at most so long for the first; [] after the time."""
        if max_records < 1:
            raise ValueError(f"fetch: expected max_records ≥ 1, found {max_records}")
        await self._faults.pause()
        if self._faults.draw("fetch") is not Fault.NONE:
            raise LogUnavailable("reader: the log did not answer; try again")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            if self.closed:
                raise LogError("reader: used after close; open a new one")
            self._change.clear()
            found = self._take(max_records)
            if found or loop.time() >= deadline:
                return found
            read = [partition for partition in self._positions if partition not in self._paused]
            self._broker.await_change(self._change, read)
            timer = loop.call_at(deadline, self._change.set)
            try:
                await self._change.wait()
            finally:
                timer.cancel()
                self._broker.forget(self._change, read)
            if self._faults.away:
                raise LogUnavailable("reader: the log went away; try again")

    def _take(self, records_max: int) -> list[LogRecord]:
        """Records of the assigned partitions, beginning with another partition each time so that none starves."""
        partitions = list(self._positions)
        if not partitions:
            return []
        self._turn = (self._turn + 1) % len(partitions)
        found: list[LogRecord] = []
        for partition in partitions[self._turn :] + partitions[: self._turn]:
            room = records_max - len(found)
            if room and partition not in self._paused:
                records, position = self._broker.read(
                    partition,
                    self._positions[partition],
                    self._faults.some(room),
                    committed_only=self._committed_only,
                )
                self._positions[partition] = position
                found += records
        return found

    async def close(self) -> None:
        """Stop reading. It may be called again."""
        self.closed = True
        self._change.set()


_Handed = tuple[NewRecord, "asyncio.Future[Offset]"]


class MemoryWriter:
    """`Writer` to a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, faults: Faults, client: str, buffer_records_max: int) -> None:
        self._broker = broker
        self._faults = faults
        self._client = client
        self._buffer_records_max = buffer_records_max
        self._lanes: dict[TopicPartition, deque[_Handed]] = {}
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._pending = 0
        self._room = asyncio.Event()
        self._order = asyncio.Lock()
        self._error: LogError | None = None
        self.closed = False

    async def send(self, partition: TopicPartition, record: NewRecord) -> Awaitable[Offset]:
        """Hand over a record; waits only for room in the buffer."""
        # Waiters for room are let in one by one, first come first served: else the order of the calls is
        # lost.
        async with self._order:
            while self._pending >= self._buffer_records_max and self._error is None:
                self._room.clear()
                await self._room.wait()
            self._raise_if_broken()
            try:
                self._broker.check(partition, record)
            except LogError as error:
                self._fail(error)
                raise
            future: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()
            # The caller need not await each result: `flush` raises the error.
            future.add_done_callback(lambda f: f.cancelled() or f.exception())
            self._lanes.setdefault(partition, deque()).append((record, future))
            self._pending += 1
            if partition not in self._tasks:
                name = f"{self._client}.{partition.topic}.{partition.partition}"
                self._tasks[partition] = asyncio.get_running_loop().create_task(self._drain(partition), name=name)
            return future

    async def flush(self) -> None:
        """Wait until all handed over is acknowledged; raises the first error of any of them."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        self._raise_if_broken()

    async def close(self) -> None:
        """Release all resources; idempotent. Of the unacknowledged records a drawn prefix of each lane is in the log."""
        self.closed = True
        self._fail(LogUnavailable(f"writer {self._client}: closed before the record was acknowledged"))
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def _drain(self, partition: TopicPartition) -> None:
        """Carry one lane's records over in batches, in order, until the lane is empty or the writer broken."""
        lane = self._lanes[partition]
        try:
            while lane:
                await self._faults.pause()
                # A record stays in its lane until the log has it: so a break records a prefix, never a gap.
                fault = self._faults.draw("send") if lane else Fault.NONE
                if fault is Fault.NONE:
                    batch, first = self._record(partition, self._faults.some(len(lane)))
                else:
                    taken = self._faults.part(len(lane)) if fault is Fault.LOST_ANSWER else 0
                    batch, first = self._record(partition, taken)
                    batch += lane
                    lane.clear()
                    self._fail(LogUnavailable(f"writer {self._client}: the log did not acknowledge; open a new writer"))
                # The records are in the log now; the answer still travels.
                await self._faults.pause()
                self._answer(batch, first)
        except LogError as error:
            self._fail(error)
        finally:
            self._tasks.pop(partition, None)

    def _record(self, partition: TopicPartition, count: int) -> tuple[list[_Handed], Offset]:
        """Take so many from the head of a lane into the log; they and their first offset."""
        lane = self._lanes[partition]
        batch = [lane[i] for i in range(count)]
        first = self._broker.append(partition, [record for record, _ in batch]) if batch else Offset(0)
        for _ in batch:
            lane.popleft()
        return batch, first

    def _answer(self, batch: Sequence[_Handed], first: Offset) -> None:
        for number, (_, future) in enumerate(batch):
            self._pending -= 1
            if future.done():
                continue
            if self._error is None:
                future.set_result(Offset(first + number))
            else:
                future.set_exception(again(self._error))
        self._room.set()

    def _fail(self, error: LogError) -> None:
        """Make the writer unusable, once: a drawn prefix of every lane still reaches the log, every result fails."""
        if self._error is not None:
            return
        self._error = error
        for partition, lane in self._lanes.items():
            left = list(lane)
            try:
                if not self._faults.away:
                    self._record(partition, self._faults.part(len(lane)))
            except LogError as refused:
                error.add_note(f"and what was still on its way was refused: {refused}")
            lane.clear()
            self._answer(left, Offset(0))
        self._room.set()

    def _raise_if_broken(self) -> None:
        if self._error is not None:
            raise again(self._error)


_Part = MemoryReader | MemoryWriter | MemoryTransactionalWriter


class MemoryLog:
    """`Log` on a `MemoryBroker`; each simulated process has its own, with its own faults or shared ones."""

    def __init__(
        self, broker: MemoryBroker, faults: Faults | None = None, *, buffer_records_max: int = BUFFER_RECORDS_MAX
    ) -> None:
        self._broker = broker
        self._faults = faults or Faults()
        self._buffer_records_max = buffer_records_max
        self._opened: list[_Part] = []

    @property
    def broker(self) -> MemoryBroker:
        """The broker that it is a client of."""
        return self._broker

    async def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Make it; quiet when it is there with as many partitions. The configuration has no meaning in memory."""
        lost = await self._ask("admin")
        self._broker.create_topic(topic, partitions)
        self._answer(lost, "admin")

    async def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete those that exist."""
        lost = await self._ask("admin")
        for topic in topics:
            self._broker.delete_topic(topic)
        self._answer(lost, "admin")

    async def list_topics(self) -> dict[str, int]:
        """All topics with their numbers of partitions."""
        self._answer(await self._ask("admin"), "admin")
        return self._broker.topics()

    async def describe_topics(self, topics: Sequence[str]) -> dict[str, TopicFound]:
        """Those of these topics that exist."""
        self._answer(await self._ask("admin"), "admin")
        there = self._broker.topics()
        return {topic: TopicFound(self._broker.topic_id(topic), there[topic]) for topic in topics if topic in there}

    async def topic_rules(self, topics: Sequence[str]) -> dict[str, TopicRules]:
        """Nothing is refused in memory, but for records without a key where a topic is compacted."""
        self._answer(await self._ask("admin"), "admin")
        return {topic: TopicRules(needs_key=topic in self._broker.compacted) for topic in topics}

    async def begin_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The first offset that is still there."""
        self._answer(await self._ask("offsets"), "offsets")
        return {partition: self._broker.begin(partition) for partition in partitions}

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The high watermark, open transactions included."""
        self._answer(await self._ask("offsets"), "offsets")
        return {partition: self._broker.end(partition) for partition in partitions}

    async def note_offsets(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Let a group stand at these offsets."""
        lost = await self._ask("admin")
        self._broker.noted.setdefault(group, {}).update(offsets)
        self._answer(lost, "admin")

    async def delete_records(self, before: Mapping[TopicPartition, Offset]) -> None:
        """Let go of records below these offsets."""
        lost = await self._ask("admin")
        for partition, offset in before.items():
            self._broker.delete_records(partition, offset)
        self._answer(lost, "admin")

    async def reader(self, *, committed_only: bool = False, follows: bool = False) -> MemoryReader:
        """A reader with nothing assigned; nothing is asked for in vain here."""
        del follows
        reader = MemoryReader(self._broker, self._faults, committed_only=committed_only)
        self._keep(reader)
        return reader

    async def writer(self, client: str) -> MemoryWriter:
        """A writer; its tasks carry `client` in their names."""
        writer = MemoryWriter(self._broker, self._faults, client, self._buffer_records_max)
        self._keep(writer)
        return writer

    async def transactional_writer(self, identity: str) -> MemoryTransactionalWriter:
        """Fence earlier holders of the identity and abort their open transactions."""
        lost = await self._ask("init")
        epoch = self._broker.open_identity(identity)
        self._answer(lost, "init")
        writer = MemoryTransactionalWriter(self._broker, self._faults, identity, epoch)
        self._keep(writer)
        return writer

    async def close(self) -> None:
        """Release everything, as a process does that ends: calls under way may or may not happen."""
        for part in self._opened:
            await part.close()
        self._opened.clear()

    def _keep(self, part: _Part) -> None:
        """Remember a part that is to be closed, and forget those that are closed."""
        self._opened = [opened for opened in self._opened if not opened.closed]
        self._opened.append(part)

    async def _ask(self, operation: Operation) -> bool:
        """Let the request travel; True if its answer will be lost."""
        await self._faults.pause()
        fault = self._faults.draw(operation)
        if fault is Fault.REFUSED:
            raise LogUnavailable(f"log: {operation} was not answered; try again")
        return fault is Fault.LOST_ANSWER

    def _answer(self, lost: bool, operation: Operation) -> None:  # noqa: FBT001 - private, named at each call
        if lost:
            raise LogUnavailable(f"log: the answer to {operation} was lost; try again")
