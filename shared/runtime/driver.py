"""Drives one task machine: brings it events, carries its commands out (`tidemark.shared.protocol.task`).

One coroutine (`_main`) owns the machine; beside it one does its work with the body, one piece at a time (`_work`), one reads ahead, one
sends (Outbox), one makes state durable. They only leave events in the inbox. So a body that waits, for Spark or for a target, keeps the
task neither from reading what comes next (P1) nor from seeing that it is a zombie (L2). Whatever escapes any of them fails the task, once,
by `on_failed`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from tidemark.shared.model.checkpoint import BlobRef, KnownSplit, TaskHandle
from tidemark.shared.model.ids import EdgeId, Epoch, Offset, SplitId, StatePart, TaskId
from tidemark.shared.model.messages import EdgeBinding, ReadPosition
from tidemark.shared.ports.clock import Clock, Executor, Handle
from tidemark.shared.ports.log import Log, LogError, LogRecord, LogUnavailable, Reader, TopicPartition
from tidemark.shared.protocol.errors import LocalError, PeerError
from tidemark.shared.protocol.task import commands as do
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.protocol.task.machine import TaskMachine
from tidemark.shared.runtime.ahead import Ahead, Returns
from tidemark.shared.runtime.body import BatchingBody, Fetched, Given, SourceBody, TaskBody
from tidemark.shared.runtime.context import Phase
from tidemark.shared.runtime.exchange import Exchange
from tidemark.shared.runtime.meter import Meter, first_arrival, oldest_work
from tidemark.shared.runtime.outbox import Gathered, Outbox, Parcel
from tidemark.shared.runtime.reading import reading
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.state import StateStore, blobs_of
from tidemark.shared.wire.errors import WireError
from tidemark.shared.wire.frames import decode_frame, encode_frame

Splits = Mapping[SplitId, KnownSplit]
WorkCommand = do.Apply | do.Advance | do.FireProcessingTime | do.Flush | do.TakeSnapshot


class ZombieError(Exception):
    """A newer generation is at work (L2): the task has stopped, and that is no failure."""


@dataclass(frozen=True, slots=True)
class TaskWiring:
    """What the worker hands to a driver."""

    task: TaskId
    log: Log
    clock: Clock
    executor: Executor
    settings: RuntimeSettings
    exchange: Exchange
    state: StateStore
    inputs: Mapping[EdgeId, EdgeBinding]
    tags: Mapping[EdgeId, str]
    outputs: Mapping[EdgeId, EdgeBinding]
    on_ack: Callable[[Epoch, TaskHandle], None]
    on_ask: Callable[[], None]
    on_found: Callable[[Splits, Sequence[SplitId]], None]
    on_ends: Callable[[Splits], None]
    on_failed: Callable[[BaseException], None]
    passing: Callable[[Phase, Epoch], None]
    gathers: bool = False
    """A source's: all that it sends goes to sinks (`Gathered`)."""


class TaskDriver:
    """One task of one generation, from restore to stop."""

    def __init__(self, wiring: TaskWiring, machine: TaskMachine, body: TaskBody) -> None:
        self.wiring = wiring
        self.machine = machine
        self.body = body
        self._log = structlog.get_logger().bind(
            task=str(wiring.task), job=machine.sender.job, generation=machine.sender.generation
        )
        self._inbox: deque[ev.Event] = deque()
        """`events_waiting_max`."""
        self._wake = asyncio.Event()
        self._commands: deque[do.Command] = deque()
        """What one event makes the machine say: carried out before the next is taken."""
        self._given: WorkCommand | None = None
        """What the body has been given to do and has not begun."""
        self._working = False
        self._to_work = asyncio.Event()
        self._frames: deque[tuple[EdgeId, LogRecord]] = deque()
        """One fetch: `fetch_records_max` frames, each of `frame_bytes_max` at the most; the next fetch waits."""
        self._room = asyncio.Event()
        self._seeks: dict[EdgeId, Offset] = {}
        self._edges = {b.topic: edge for edge, b in wiring.inputs.items()}
        self._epochs_to_store: deque[tuple[Epoch, Mapping[StatePart, bytes | None], tuple[BlobRef, ...], bytes]] = (
            deque()
        )
        """At most `snapshots_waiting_max`: a store that is slow holds the task's work, not its memory."""
        self._to_store = asyncio.Event()
        self._stored = asyncio.Event()
        self._positions: dict[Epoch, bytes] = {}
        """A source's, of snapshots that are not acknowledged yet; bounded as they are (C10)."""
        self._handles: list[Handle] = []
        client = f"{machine.sender.job}.{wiring.task}"
        self._outbox = Outbox(wiring.log, wiring.clock, client, self._acked, wiring.settings)
        self.read_offsets: dict[EdgeId, Offset] = {}
        """Per in edge, all below has been taken from the log (F7)."""
        self._failed = False
        self.meter = Meter()

    # --- life -----------------------------------------------------------------------------------------------------------

    async def open(self, parts: MutableMapping[StatePart, bytes]) -> None:
        """Restore the body and stand at the restored positions; nothing is read or written yet."""
        await self.body.open(parts)

    def start(self) -> None:
        """Go: send what a new edge begins with, read, process."""
        self._outbox.open(self.wiring.executor, self._fail)
        self._commands.extend(self.machine.start())
        self._spawn(self._main(), "main")
        self._spawn(self._work(), "work")
        self._spawn(self._store(), "store")
        if self.wiring.inputs:
            self._spawn(self._read(), "read")

    def _spawn(self, activity: Coroutine[Any, Any, None], name: str) -> None:
        self._handles = [handle for handle in self._handles if not handle.done()]
        self._handles.append(self.wiring.executor.spawn(activity, f"{self.wiring.task} {name}", self._fail))

    async def close(self) -> None:
        """Stop at once; write nothing more."""
        self._failed = True
        for handle in self._handles:
            handle.cancel()
        for handle in self._handles:
            await handle.join()
        await self._outbox.close()
        await self.body.close()

    def post(self, event: ev.Event) -> None:
        """Hand in an event from outside. The task fails where more than `events_waiting_max` wait: its machine stands still."""
        if len(self._inbox) >= self.wiring.settings.events_waiting_max:
            self._fail(LocalError(f"{self.wiring.task}: {len(self._inbox)} events wait (events_waiting_max)"))
            return
        self._inbox.append(event)
        self._wake.set()

    def _fail(self, error: BaseException) -> None:
        if not self._failed:
            self._failed = True
            self.wiring.on_failed(error)

    def _acked(self, parcel: Parcel, offset: Offset) -> None:
        self.post(ev.BrokerAcked(parcel.edge, parcel.partition.partition, parcel.seq, offset))

    # --- the one who owns the machine -------------------------------------------------------------------------------------

    async def _main(self) -> None:
        while True:
            self._carry_out()
            if self._inbox:
                self._commands.extend(self.machine.handle(self._inbox.popleft()))
            elif self._frames and self.machine.may_read():
                self._take_frame()
            elif not self._commands:
                self._wake.clear()
                if not self._frames:
                    self._room.set()
                    if not self._working:
                        self.meter.oldest_ms = None
                await self._wake.wait()

    def _take_frame(self) -> None:
        edge, record = self._frames.popleft()
        self.meter.oldest_ms = record.timestamp_ms
        if not self._frames:
            self._room.set()
        place = f"topic {record.topic} partition {record.partition} offset {record.offset}"
        data = record.value or b""
        try:
            frame = decode_frame(data, self.wiring.settings.wire)
        except WireError as error:
            message = f"{place}: {error}"
            raise PeerError(message) from error
        try:
            self._commands.extend(self.machine.handle(ev.FrameRead(edge, record.offset, frame, len(data))))
        except PeerError as error:
            message = f"{place}: {error}"
            raise PeerError(message) from error

    def _carry_out(self) -> None:
        while self._commands:
            self._execute(self._commands.popleft())

    def _execute(self, command: do.Command) -> None:
        match command:
            case do.Send(edge, partition, frame):
                topic = TopicPartition(self.wiring.outputs[edge].topic, partition)
                self._outbox.send(Parcel(edge, topic, frame.header.seq, encode_frame(frame, self.wiring.settings.wire)))
            case do.Apply() | do.Advance() | do.FireProcessingTime() | do.Flush() | do.TakeSnapshot():
                if self._given is not None:
                    message = f"{self.wiring.task}: {command} is given while {self._given} waits"
                    raise LocalError(message)
                self._given, self._working = command, True
                self._to_work.set()
            case do.Acknowledge():
                self._acknowledge(command)
            case do.Seek(edge, offset):
                self._seek(edge, offset)
            case do.AskCheckpoint():
                self.wiring.on_ask()
            case do.StopAsZombie(generation):
                self._outbox.drop()
                message = f"generation {generation} is at work; this task is of {self.machine.sender.generation}"
                raise ZombieError(message)
            case do.InputEnded():
                self._log.info("task.input_ended", epoch=self.machine.sender.epoch)

    # --- the one who works with the body ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            await self._to_work.wait()
            self._to_work.clear()
            command, self._given = self._given, None
            if command is not None:
                began_ms = self.wiring.clock.monotonic_ms()
                await self._do(command)
                self._working = False
                self.meter.busy_ms += self.wiring.clock.monotonic_ms() - began_ms

    async def _do(self, command: WorkCommand) -> None:
        body = self.body
        match command:
            case do.Apply(ticket, edge, bodies):
                self.meter.took(bodies)
                await self._done(ticket, await body.apply(self.wiring.tags[edge], bodies))
            case do.Advance(ticket, watermark_ms):
                await self._done(ticket, await body.advance(watermark_ms))
            case do.FireProcessingTime(ticket, now_ms):
                await self._done(ticket, await body.fire(now_ms))
            case do.Flush(ticket, epoch):
                await self._done(ticket, await body.flush(epoch))
            case do.TakeSnapshot(ticket, epoch, committed):
                while len(self._epochs_to_store) >= self.wiring.settings.snapshots_waiting_max:
                    self._stored.clear()
                    await self._stored.wait()
                self.meter.snapshot_since_ms = self.wiring.clock.monotonic_ms()
                copied = await body.copy(epoch, committed)
                self.wiring.passing("snapshot-taken", epoch)
                self.post(ev.SnapshotTaken(ticket))
                if copied.positions:
                    self._positions[epoch] = copied.positions
                self._epochs_to_store.append((epoch, copied.changed, copied.blobs, copied.staged))
                self._to_store.set()

    async def _done(self, ticket: int, outs: Sequence[Given]) -> None:
        self.meter.gave(outs)
        emissions = await self._emissions(outs)
        batching = isinstance(self.body, BatchingBody) and self.body.batching()
        times = self.body.output_watermark(), self.body.next_processing_ms()
        self.post(ev.Done(ticket, emissions, *times, batching))

    async def _emissions(self, outs: Sequence[Given]) -> tuple[ev.Emission, ...]:
        return await self.wiring.exchange.emissions(outs, self.machine.sender.epoch)

    def _acknowledge(self, command: do.Acknowledge) -> None:
        self.meter.acknowledged(command.parts, command.blobs, self.wiring.clock.monotonic_ms())
        handle = TaskHandle(
            vertex=self.wiring.task.vertex,
            index=self.wiring.task.index,
            protocol=command.protocol,
            parts=command.parts,
            blobs=command.blobs,
            staged=command.staged,
            positions=self._positions.get(command.epoch, b""),
        )
        self._positions = {epoch: noted for epoch, noted in self._positions.items() if epoch > command.epoch}
        self.wiring.on_ack(command.epoch, handle)

    # --- beside it ----------------------------------------------------------------------------------------------------------

    async def _store(self) -> None:
        """Make snapshots durable, one after the other (C7)."""
        while True:
            while self._epochs_to_store:
                epoch, changed, blobs, staged = self._epochs_to_store.popleft()
                self._stored.set()
                parts = await self.wiring.state.store(epoch, changed)
                self.wiring.passing("state-durable", epoch)
                self.post(ev.StateDurable(epoch, parts, (*blobs_of(parts), *blobs), staged))
            self._to_store.clear()
            await self._to_store.wait()

    def _seek(self, edge: EdgeId, offset: Offset) -> None:
        """C4: what was read ahead of this edge is stale."""
        self._seeks[edge] = offset
        self._frames = deque(item for item in self._frames if item[0] != edge)
        """One fetch: `fetch_records_max` frames, each of `frame_bytes_max` at the most; the next fetch waits."""

    async def _read(self) -> None:
        """Read ahead, one fetch at most; what has been taken from the log counts as read (F7)."""
        while True:
            try:
                async with reading(self.wiring.log) as reader:
                    await self._read_with(reader)
            except LogUnavailable as error:
                self._log.warning("task.log_away", reason=str(error))
                await self.wiring.clock.sleep_ms(self.wiring.settings.retry_ms)

    async def _read_with(self, reader: Reader) -> None:
        index = self.wiring.task.index
        partitions = self.machine.receiver.partitions
        places = {edge: TopicPartition(b.topic, index) for edge, b in self.wiring.inputs.items()}
        ahead = {edge: record.offset + 1 for edge, record in self._frames}
        start = {edge: Offset(max(partitions[edge].next_offset, ahead.get(edge, 0))) for edge in places}
        start.update(self._seeks)
        self._seeks.clear()
        await reader.assign({places[edge]: offset for edge, offset in start.items()})
        while True:
            while self._seeks:
                edge, offset = self._seeks.popitem()
                await reader.seek(places[edge], offset)
            records = await reader.fetch(self.wiring.settings.fetch_records_max, self.wiring.settings.fetch_timeout_ms)
            for record in records:
                edge = self._edges[record.topic]
                if edge not in self._seeks:
                    self._frames.append((edge, record))
                    self.read_offsets[edge] = max(self.read_offsets.get(edge, Offset(0)), Offset(record.offset + 1))
            if records:
                self._room.clear()
                self._wake.set()
                if self._frames:
                    await self._room.wait()


class SourceDriver(TaskDriver):
    """A task that reads from outside: fetches ahead, and processes when the machine lets it."""

    def __init__(self, wiring: TaskWiring, machine: TaskMachine, body: SourceBody) -> None:
        super().__init__(wiring, machine, body)
        self.source = body
        self._started = asyncio.Event()
        self._fetched: deque[Fetched] = deque()
        """One fetch of a source, and the next where it need not wait: `fetch_records_max`, `fetch_bytes_max`."""
        self._taking = False
        self._taken = asyncio.Event()
        self._ending: Handle | None = None
        """A drain was asked for: nothing is taken until it is told where splits end (I3)."""
        self._ends_told = False
        self._covered_by: Epoch | None = None
        """Nothing more is fetched until this checkpoint, or a later one, is committed (`SourceBody.settle_ms`)."""
        self.returns = Returns(frozenset((edge, n) for edge, b in wiring.outputs.items() for n in range(b.receivers)))
        self.ahead = Ahead()
        self._gathered = Gathered(machine.sender.watermark_ms)
        self._noted = machine.committed
        self._noting: Handle | None = None
        self._noted_ms = -wiring.settings.note_interval_ms

    def start(self) -> None:
        """Go; but input is taken only after `start_input` (R1)."""
        super().start()
        self._spawn(self._fetch(), "fetch")

    def start_input(self) -> None:
        """All tasks of the generation have restored."""
        self._started.set()

    def tell_found(self, *, again: bool = False) -> None:
        """I1: what there is to read that the row does not list."""
        if again:
            self.source.tell_again()
        if (found := self.source.found()) is not None:
            self.wiring.on_found(*found)

    def read(self, splits: Splits) -> None:
        """I1: the row lists these."""
        self.source.read(splits)

    def tell_ends(self, until: Mapping[str, int]) -> None:
        """I3: say where the input ends, and take none until it is told."""
        if not self._ends_told and (self._ending is None or self._ending.done()):
            self._ending = self.wiring.executor.spawn(self._end(until), f"{self.wiring.task} ends", self._fail)
            self._handles = [*(handle for handle in self._handles if not handle.done()), self._ending]

    async def _end(self, until: Mapping[str, int]) -> None:
        while True:
            while self._taking:
                self._taken.clear()
                await self._taken.wait()
            try:
                self.wiring.on_ends(await self.source.ends(until))
            except LogUnavailable as error:
                self._log.warning("source.log_away", reason=str(error))
                await self.wiring.clock.sleep_ms(self.wiring.settings.retry_ms)
            else:
                return

    def drain(self, splits: Splits) -> None:
        """E2: the input ends where the row says."""
        self._ends_told = True
        self.source.drain(splits)
        self._wake.set()

    def _may_take(self) -> bool:
        waits = self._ending is not None and not self._ends_told
        return self.machine.may_read() and not waits and not self.ahead.waits(self.source.output_watermark())

    async def _fetch(self) -> None:
        await self._started.wait()
        while not self.machine.ended:
            try:
                fetched = await self.source.fetch()
                self.tell_found()
            except LogUnavailable as error:
                self._log.warning("source.log_away", reason=str(error))
                await self.wiring.clock.sleep_ms(self.wiring.settings.retry_ms)
                continue
            self._fetched.append(fetched)
            self._room.clear()
            self._wake.set()
            await self._room.wait()

    async def _main(self) -> None:
        while True:
            self._carry_out()
            if self._inbox:
                self._commands.extend(self.machine.handle(self._inbox.popleft()))
                self._go_on()
            elif self._fetched and self._may_take():
                self._taking = True
                await self._take_fetched()
                self._taking = False
                self._taken.set()
            elif not self._commands:
                if self._fetched:
                    self.source.held_back(self.wiring.clock.monotonic_ms())
                    self.meter.held(self.wiring.clock.monotonic_ms(), first_arrival(self._fetched[0]))
                self._wake.clear()
                await self._wake.wait()

    def heard(self, edge: EdgeId, position: ReadPosition) -> None:
        """A receiver has told where it is."""
        self.returns.heard(edge, position.partition, position.snapshot, position.watermark_ms)
        if self.ahead.heard(edge, position.partition, position.watermark_ms, full=position.full):
            self._log.warning(
                "source.receiver_full", edge=edge, partition=position.partition, time=position.watermark_ms
            )

    async def _take_fetched(self) -> None:
        clock = self.wiring.clock
        fetched, rest = self._fetched.popleft().divided(self.machine.pace.room_rows())
        if rest is not None:
            self._fetched.appendleft(rest)
        elif not fetched.paced:
            self._room.set()
        now_ms = max(clock.now_ms(), self.machine.processing_time_ms)
        began_ms = clock.monotonic_ms()
        self.meter.released(began_ms)
        self.meter.read(fetched.batches)
        outs = await self.source.take(fetched, now_ms, began_ms)
        self.meter.gave(outs)
        self.meter.busy_ms += clock.monotonic_ms() - began_ms
        self.meter.oldest_ms = oldest_work(fetched)
        self.returns.note(self.source.returned(), self.machine.sender.epoch)
        produced = await self._produced(outs, fetched)
        settle_ms = self.source.settle_ms() if fetched.paced else None
        if settle_ms is not None:
            if settle_ms:
                self._spawn(self._ask_later(settle_ms), "ask")
            else:
                self._ask()
        elif produced.ended:
            self.wiring.on_ask()  # what the end let out is released without waiting for the interval
        elif fetched.paced:
            self._room.set()
        self._commands.extend(self.machine.handle(produced))

    async def _produced(self, outs: Sequence[Given], fetched: Fetched) -> ev.Produced:
        """What goes out now. Rows for sinks may wait, but not behind what others are told: idleness, the end, a script's step."""
        source, gathered = self.source, self._gathered
        idle, ended = source.idle(), source.ended()
        waits = self.wiring.gathers and not (idle or ended or fetched.paced)
        gathered.add(outs)
        emissions: tuple[ev.Emission, ...] = ()
        if not waits or gathered.full() or not gathered.rows:
            emissions = await self._emissions(())
        held_rows = gathered.rows + source.held_rows(self.machine.pace.window_rows)
        return ev.Produced(emissions, gathered.watermark_ms, idle, ended, fetched.rows, held_rows)

    async def _emissions(self, outs: Sequence[Given]) -> tuple[ev.Emission, ...]:
        """With what was gathered before, and then behind everything."""
        gathered = self._gathered
        made = await super()._emissions([*gathered.taken(), *outs])
        gathered.watermark_ms = max(gathered.watermark_ms, self.source.output_watermark())
        return made

    async def _ask_later(self, settle_ms: int) -> None:
        """A checkpoint that began before what was set is seen everywhere covers nothing of it."""
        await self.wiring.clock.sleep_ms(settle_ms)
        self._ask()

    async def _room_later(self, settle_ms: int) -> None:
        """What came with the epoch is told the time that it came at, before the next step sets another one."""
        if settle_ms:
            await self.wiring.clock.sleep_ms(settle_ms)
        self._room.set()

    def _ask(self) -> None:
        self._covered_by = self.machine.sender.epoch
        self.wiring.on_ask()

    def _go_on(self) -> None:
        self._note_commit()
        for split, highest_ms in self.returns.reported():
            self.source.on_receivers(split, highest_ms)
        if self._covered_by is not None and self.machine.committed >= self._covered_by:
            self._covered_by = None
            self._spawn(self._room_later(self.source.settle_ms() or 0), "go on")

    def _note_commit(self) -> None:
        """For lag tools, beside the work: what fails is tried with the next commit."""
        committed, now_ms = self.machine.committed, self.wiring.clock.monotonic_ms()
        busy = self._noting is not None and not self._noting.done()
        if committed == self._noted or busy or now_ms - self._noted_ms < self.wiring.settings.note_interval_ms:
            return
        self._noted, self._noted_ms = committed, now_ms
        name = f"{self.wiring.task} note"
        self._noting = self.wiring.executor.spawn(self._note(committed), name, self._fail)
        self._handles = [*(handle for handle in self._handles if not handle.done()), self._noting]

    async def _note(self, epoch: Epoch) -> None:
        try:
            await self.source.note_committed(epoch)
        except LogError as error:
            self._log.warning("source.not_noted", epoch=epoch, reason=str(error))
