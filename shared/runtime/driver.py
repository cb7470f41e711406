"""Drives one task machine: brings it events, carries its commands out (`tidemark.shared.protocol.task`).

One coroutine (`_main`) owns the machine. Beside it, `_work` calls the body, one piece at a time; `Intake` reads ahead; `Outbox` sends;
and one coroutine makes state durable. They only leave events in the inbox. So a body that waits, for Spark or for a target, does not
keep the task from reading the next frames (P1) or from seeing that it is a zombie (L2).
"""

import asyncio
from collections import deque
from collections.abc import Mapping, MutableMapping, Sequence

from tidemark.shared.model.checkpoint import BlobRef, TaskHandle
from tidemark.shared.model.ids import NO_EPOCH, Epoch, Offset, StatePart
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.protocol.errors import LocalError, PeerError
from tidemark.shared.protocol.task import commands as do
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.protocol.task.machine import TaskMachine
from tidemark.shared.runtime.body import Given, ReadingBody, ReceivingBody, TaskBody
from tidemark.shared.runtime.intake import FrameIntake
from tidemark.shared.runtime.outbox import Outbox, Parcel
from tidemark.shared.runtime.site import TaskSite, TaskWiring
from tidemark.shared.runtime.source_intake import SourceIntake
from tidemark.shared.runtime.state import blobs_of
from tidemark.shared.wire.frames import encode_frame

WorkCommand = do.Apply | do.Advance | do.FireProcessingTime | do.Flush | do.TakeSnapshot


class ZombieError(Exception):
    """A newer generation is at work (L2): the task has stopped, and that is no failure."""


class TaskDriver:
    """One task of one generation, from restore to stop."""

    def __init__(self, wiring: TaskWiring, machine: TaskMachine, body: TaskBody) -> None:
        self.wiring = wiring
        self.machine = machine
        self.body = body
        self.site = TaskSite(wiring, machine)
        self.source = SourceIntake(self.site, body) if isinstance(body, ReadingBody) else None
        self.frames = FrameIntake(self.site)
        self._intake = self.source or self.frames
        self._inbox: deque[ev.Event] = deque()
        """`events_waiting_max`."""
        self._commands: deque[do.Command] = deque()
        """The machine's commands after one event; they are carried out before the next event is taken."""
        self._given: WorkCommand | None = None
        """The work that the body has been given and has not begun."""
        self._to_work = asyncio.Event()
        self._epochs_to_store: deque[tuple[Epoch, Mapping[StatePart, bytes | None], tuple[BlobRef, ...], bytes]] = (
            deque()
        )
        """At most `snapshots_waiting_max`: a store that is slow holds the task's work, not its memory."""
        self._to_store = asyncio.Event()
        self._stored = asyncio.Event()
        self._positions: dict[Epoch, bytes] = {}
        """A source's, of snapshots that are not acknowledged yet; bounded as they are (C10)."""
        self._between: dict[Epoch, bool] = {}
        """Of the same snapshots, whether a window judged rows between barriers (`Copied.between`)."""
        self._taken = NO_EPOCH
        """The last checkpoint of which this task took a snapshot; perhaps it was aborted then."""
        client = f"{machine.sender.job}.{wiring.task}"
        self._outbox = Outbox(wiring.log, wiring.clock, client, self._acked, wiring.settings)
        self.meter = self.site.meter

    # --- life -----------------------------------------------------------------------------------------------------------

    async def open(self, parts: MutableMapping[StatePart, bytes]) -> None:
        """Restore the body and stand at the restored positions; nothing is read or written yet."""
        await self.body.open(parts)

    def start(self) -> None:
        """Go: send the first frames of new edges, read, process. A source takes its input only when it is told to (R1)."""
        self._outbox.open(self.wiring.executor, self.site.fail)
        self._commands.extend(self.machine.start())
        self.site.spawn(self._main(), "main")
        self.site.spawn(self._work(), "work")
        self.site.spawn(self._store(), "store")
        self._intake.start()

    async def close(self) -> None:
        """Stop at once; write nothing more."""
        await self.site.stop()
        await self._outbox.close()
        await self.body.close()

    def post(self, event: ev.Event) -> None:
        """Hand in an event from outside. The task fails where more than `events_waiting_max` wait: its machine stands still."""
        if len(self._inbox) >= self.wiring.settings.events_waiting_max:
            self.site.fail(LocalError(f"{self.wiring.task}: {len(self._inbox)} events wait (events_waiting_max)"))
            return
        self._inbox.append(event)
        self.site.wake.set()

    def _acked(self, parcel: Parcel, offset: Offset) -> None:
        self.post(ev.BrokerAcked(parcel.edge, parcel.partition.partition, parcel.seq, offset))

    # --- the coroutine that owns the machine ------------------------------------------------------------------------------

    async def _main(self) -> None:
        site, intake, source = self.site, self._intake, self.source
        while True:
            while self._commands:
                self._execute(self._commands.popleft())
            if self._inbox:
                self._handle(self._inbox.popleft())
                if source is not None:
                    source.go_on()
            elif intake.has_input():
                self._handle(await intake.take())
            elif not self._commands:
                site.wake.clear()
                intake.rest()
                await site.wake.wait()

    def _handle(self, event: ev.Event) -> None:
        try:
            self._commands.extend(self.machine.handle(event))
        except PeerError as error:
            if not isinstance(event, ev.FrameRead):
                raise
            message = f"{self.frames.place_of(event.edge, event.offset)}: {error}"
            raise PeerError(message) from error

    def _execute(self, command: do.Command) -> None:
        match command:
            case do.Send(edge, partition, frame):
                topic = TopicPartition(self.wiring.outputs[edge].topic, partition)
                parcel = Parcel(edge, topic, frame.header.seq, encode_frame(frame, self.wiring.settings.wire))
                # The last rows before a barrier wait for it where sinks alone need them: a request would keep it waiting for its answer.
                self._outbox.send(parcel, soon=not (self.wiring.gathers and self.machine.taking()))
            case do.Apply() | do.Advance() | do.FireProcessingTime() | do.Flush() | do.TakeSnapshot():
                if self._given is not None:
                    message = f"{self.wiring.task}: {command} is given while {self._given} waits"
                    raise LocalError(message)
                self._given, self.site.working = command, True
                self._to_work.set()
            case do.Acknowledge():
                self._acknowledge(command)
            case do.Seek(edge, offset):
                self.frames.seek(edge, offset)
            case do.AskCheckpoint():
                self.wiring.ways.on_ask()
            case do.StopAsZombie(generation):
                self._outbox.drop()
                message = f"generation {generation} is at work; this task is of {self.machine.sender.generation}"
                raise ZombieError(message)
            case do.InputEnded():
                self.site.log.info("task.input_ended", epoch=self.machine.sender.epoch)

    # --- the coroutine that works with the body ---------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            await self._to_work.wait()
            self._to_work.clear()
            command, self._given = self._given, None
            if command is not None:
                began_ms = self.wiring.clock.monotonic_ms()
                await self._do(command)
                self.site.working = False
                self.meter.worked(self.wiring.clock.monotonic_ms() - began_ms)

    async def _do(self, command: WorkCommand) -> None:
        body = self.body
        match command:
            case do.Apply(ticket, edge, bodies) if isinstance(body, ReceivingBody):
                self.meter.took(bodies)
                self.wiring.ways.on_taken()
                await self._done(ticket, await body.apply(self.wiring.tags[edge], bodies))
            case do.Advance(ticket, watermark_ms) if isinstance(body, ReceivingBody):
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
                self.wiring.passing("snapshot-begun", epoch)
                copied = await body.copy(epoch, committed)
                self.wiring.passing("snapshot-taken", epoch)
                self.post(ev.SnapshotTaken(ticket))
                if copied.positions:
                    self._positions[epoch] = copied.positions
                # What a step at the barrier of an aborted checkpoint made late no commit tells.
                self._between[epoch] = copied.between or self._taken not in (NO_EPOCH, committed)
                self._taken = epoch
                self._epochs_to_store.append((epoch, copied.changed, copied.blobs, copied.staged))
                self._to_store.set()
            case _:
                message = f"{self.wiring.task}: {command} for a task that has no in edges"
                raise LocalError(message)

    async def _done(self, ticket: int, outs: Sequence[Given]) -> None:
        self.meter.gave(outs)
        emissions = await (self.source or self.site).emissions(outs)
        receiving = self.body if isinstance(self.body, ReceivingBody) else None
        batching = receiving is not None and receiving.batching()
        unfinished = receiving is not None and receiving.unfinished()
        times = self.body.output_watermark(), self.body.next_processing_ms()
        self.post(ev.Done(ticket, emissions, *times, batching, unfinished))

    def _acknowledge(self, command: do.Acknowledge) -> None:
        self.meter.acknowledged(command.parts, command.blobs, self.wiring.clock.monotonic_ms())
        if MIN_TIME + 1 < self.machine.sender.watermark_ms < MAX_TIME - 1:
            self.meter.lags.add(self.wiring.clock.now_ms() - self.machine.sender.watermark_ms)
        handle = TaskHandle(
            vertex=self.wiring.task.vertex,
            index=self.wiring.task.index,
            protocol=command.protocol,
            parts=command.parts if command.listed is None else (),
            blobs=command.blobs,
            staged=command.staged,
            positions=self._positions.get(command.epoch, b""),
            listed=command.listed,
            between=self._between.get(command.epoch, False),
        )
        self._positions = {epoch: noted for epoch, noted in self._positions.items() if epoch > command.epoch}
        self._between = {epoch: noted for epoch, noted in self._between.items() if epoch > command.epoch}
        self.wiring.ways.on_ack(command.epoch, handle)

    # --- beside it ----------------------------------------------------------------------------------------------------------

    async def _store(self) -> None:
        """Make snapshots durable, one after the other (C7)."""
        while True:
            while self._epochs_to_store:
                epoch, changed, blobs, staged = self._epochs_to_store.popleft()
                self._stored.set()
                parts = await self.wiring.state.store(epoch, changed)
                listed = await self.wiring.state.listed(epoch, parts)
                self.wiring.passing("state-durable", epoch)
                named = (*blobs_of(parts), *blobs, *(() if listed is None else (listed,)))
                self.post(ev.StateDurable(epoch, parts, named, staged, listed))
            self._to_store.clear()
            await self._to_store.wait()
