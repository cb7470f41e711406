"""The task machine: one event in, commands out (`TaskMachine.handle`).

    frames ──► Receiver ──► Apply / Advance ──► Done ──► Sender ──► frames
                  │ all barriers n                          ▲
                  └──► Flush n ──► Done ──► TakeSnapshot ───┴─► BARRIER n ──► Acknowledge n

| rule | where |
| --- | --- |
| F1 F3 L1 L2 C3 C4 C5 | receiver.py |
| F4 F7 F8 | sender.py |
| F9 | pace.py |
| C2 C13 | `_cut_if_due` |
| C6 C7 | `_snapshot_taken`, `_try_acknowledge` |
| W1 W3 W5 | `_settle`, `_done`, `_ticked` |
| E1 | `_settle` (all inputs ended), `_produced`, `_end_output` |
| P1 | `_step`: frames of epoch n+1 are read while epoch n is being taken |

Work goes one piece at a time. While rows are being worked on, frames queue in `_agenda`; the driver keeps it short, for it reads no
more until `may_read`. While a snapshot is being taken every channel is blocked, so a frame can only wait, be left or be dropped. These
go on, and no frame is on the agenda when the snapshot says where to resume. Everything else is handled at once.
"""

from collections import deque
from dataclasses import dataclass, field

from msgspec import structs

from tidemark.shared.model.checkpoint import TaskProtocolState
from tidemark.shared.model.frames import BarrierFrame, DataFrame, EndFrame, WatermarkFrame
from tidemark.shared.model.ids import NO_EPOCH, EdgeId, Epoch
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.protocol.errors import LocalError, PeerError, require
from tidemark.shared.protocol.task import commands as do
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.protocol.task.pace import Pace
from tidemark.shared.protocol.task.receiver import (
    ChannelReceiver,
    Deliver,
    DropFrame,
    InputPartition,
    Receiver,
    WaitFrame,
    Zombie,
)
from tidemark.shared.protocol.task.sender import Sender
from tidemark.shared.protocol.task.work import (
    Advancing,
    AgendaItem,
    Applying,
    Copying,
    Firing,
    Flushing,
    HeardStart,
    PendingAck,
    Regate,
    Work,
)
from tidemark.shared.protocol.watermarks import all_idle, combined_watermark


@dataclass(slots=True)
class TaskMachine:
    """One task of one generation. Built by `tidemark.shared.protocol.task.start`; `handle` is its only mutator."""

    receiver: Receiver
    sender: Sender
    is_source: bool
    input_watermark_ms: int = MIN_TIME
    idle: bool = False
    ended: bool = False
    processing_time_ms: int = 0
    alignment_timeout_ms: int | None = None
    """How long barriers are waited for behind the coordinator's word; None: until all have come, however long that takes (C13)."""
    introduce: tuple[EdgeId, ...] = ()
    """Out edges that begin with a new incarnation (R4)."""
    stopped: bool = False
    last_snapshot: Epoch = NO_EPOCH
    committed: Epoch = NO_EPOCH
    drops: dict[str, int] = field(default_factory=dict)
    """Frames that did not count, by reason."""
    pace: Pace = field(default_factory=Pace)
    """A source's."""
    _input_held: bool = False
    _asked: bool = False
    _asked_for: Epoch = NO_EPOCH
    """The last epoch that was full and whose end the task asked for (F9)."""
    _ticket: int = 0
    _work: Work | None = None
    _agenda: deque[AgendaItem] = field(default_factory=deque)
    """Work that follows from one event; it is empty before the next event is taken."""
    _next_processing_ms: int = MAX_TIME
    _batching: bool = False
    """Rows are held until the epoch ends."""
    _unfinished: Advancing | None = None
    """A watermark that the body applies in pieces; only a checkpoint's cut comes between two of them (C13)."""
    _cut: Epoch = NO_EPOCH
    """The last checkpoint for which barriers were waited for no longer (C13)."""
    _fire_due: bool = False
    _named_committed: Epoch = NO_EPOCH
    """The last committed checkpoint that the barriers name, of the checkpoint being aligned (C5)."""
    _told: HeardStart | None = None
    """The coordinator's last word, until its checkpoint is cut."""
    _pending: PendingAck | None = None
    _out: list[do.Command] = field(default_factory=list)

    # --- questions of the driver --------------------------------------------------------------------------------------

    def may_read(self) -> bool:
        """Whether the driver may read frames, or a source its input: no rows are being worked on, and no one holds the task back.

        F7, F8; P1: a receiver reads on while a snapshot is being taken.
        """
        if self.stopped or self._agenda or self.sender.held_back_by_receivers():
            return False
        if not self.is_source:
            return self._work is None or self.taking()
        held = self._input_held or self.sender.held_back_by_commits() or self.pace.full()
        return self._work is None and not self.ended and not held

    def next_processing_ms(self) -> int:
        """When processing time next has something to do, ms; MAX_TIME for never."""
        return self._next_processing_ms

    def waits_for(self, tick: ev.Ticked) -> bool:
        """Whether this tick would change anything.

        A timer is due, a watermark is not told, an epoch has been under way for long, barriers have been waited for long enough.
        """
        due = self._next_processing_ms <= tick.now_ms or self._is_cut_due(tick.monotonic_ms)
        return due or self.sender.holds_news() or (self.is_source and self.pace.grows_late(tick.monotonic_ms))

    # --- the mutator --------------------------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> list[do.Command]:
        """Take an event and return the commands, in order. Raises PeerError for a broken frame, LocalError for a wrong driver."""
        if self.stopped:
            return []
        match event:
            case ev.FrameRead():
                self._agenda.append(event)
            case ev.Done():
                self._done(event)
            case ev.Produced():
                self._produced(event)
            case ev.SnapshotTaken():
                self._snapshot_taken(event)
            case ev.StateDurable():
                self._state_durable(event)
            case ev.BrokerAcked():
                self.sender.acked(event.edge, event.partition, event.seq, event.offset)
                self._try_acknowledge()
            case ev.ReadUpTo():
                self.sender.read_up_to(event.edge, event.partition, event.offset)
            case _:
                self._control(event)
        self._run()
        self._ask_for_checkpoint()
        out, self._out = self._out, []
        return out

    def _control(self, event: ev.Event) -> None:
        match event:
            case ev.CheckpointStarted():
                self._learn_commit(event.committed)
                later = self._told is None or event.epoch > self._told.epoch
                if later and (self.is_source or not event.aligned):
                    self._told = HeardStart(event.epoch, event.committed, self.pace.now_ms)
            case ev.CheckpointAborted():
                self.pace.aborted(event.epoch)
                self._end_checkpoint(event.epoch)
            case ev.SourcesStarted():
                self.pace.begin(event.target_ms, event.first_rows)
            case ev.EpochTook():
                self.pace.took(event.epoch, event.took_ms, event.late, event.late_ms)
            case ev.CheckpointCommitted():
                self._learn_commit(event.epoch)
            case ev.InputHeld():
                self._input_held = event.held
            case ev.Ticked():
                self.pace.now_ms = max(self.pace.now_ms, event.monotonic_ms)
                self._ticked(event.now_ms)
            case _:
                message = f"{self.sender.task}: unknown event {event!r}"
                raise LocalError(message)

    def start(self) -> list[do.Command]:
        """The first commands: R4's introductions on edges that begin anew; then the restored watermark, for the operators.

        After a rescale this watermark may be above the one that some of their state has seen, and lets that state fire now.
        """
        for edge in self.introduce:
            self._out += self.sender.introduce(self.sender.edges[edge], ended=self.ended)
        if not self.is_source and not self.ended and self.input_watermark_ms > MIN_TIME:
            self._start(Advancing(final=False))
        out, self._out = self._out, []
        return out

    # --- the agenda ---------------------------------------------------------------------------------------------------

    def taking(self) -> bool:
        """A snapshot is under way: every channel is blocked."""
        return isinstance(self._work, Flushing | Copying)

    def _run(self) -> None:
        going = True
        while going and not self.stopped:
            going = self._begin_work() if self._work is None else self.taking() and self._step()

    def _begin_work(self) -> bool:
        """Begin the next work when nothing is under way: a checkpoint's cut (C2, C13), the next piece, a snapshot (C3), timers, frames."""
        self._cut_if_due()
        epoch = self.receiver.aligned()
        if epoch is not None and (self._unfinished is None or epoch == self._cut):
            self._start(Flushing(epoch, self._named_committed))
            return True
        if self._unfinished is not None:
            self._start(self._unfinished)
            return True
        if self._fire_due:
            self._fire_due = False
            if self._next_processing_ms <= self.processing_time_ms and not self.ended:
                self._start(Firing())
            return True
        return self._step()

    def _step(self) -> bool:
        if not self._agenda:
            return False
        match self._agenda.popleft():
            case ev.FrameRead() as read:
                partition = self.receiver.partitions[read.edge]
                self._admitted(partition, self.receiver.admit(read.edge, read.offset, read.frame, read.size_bytes))
            case Regate(partition, waiting):
                self._admitted(partition, self.receiver.gate(partition, waiting))
        return True

    def _admitted(self, partition: InputPartition, admission: Deliver | DropFrame | WaitFrame | Zombie) -> None:
        match admission:
            case DropFrame(why):
                self.drops[why] = self.drops.get(why, 0) + 1
            case Zombie(generation):
                self.stopped = True
                self._out = [do.StopAsZombie(generation)]
            case WaitFrame(ended):
                if ended is not None:
                    self._end_checkpoint(ended)
            case Deliver(channel, frame):
                self._deliver(partition, channel, frame)

    def _deliver(
        self,
        partition: InputPartition,
        channel: ChannelReceiver,
        frame: DataFrame | WatermarkFrame | BarrierFrame | EndFrame,
    ) -> None:
        progress = channel.progress
        match frame:
            case DataFrame():
                if progress.ended:
                    message = f"edge {partition.edge}: {channel.sender} sent rows, seq {frame.header.seq}, behind its END (E1)"
                    raise PeerError(message)
                progress.idle = False
                self._start(Applying(channel, frame.header.watermark_ms), partition.edge, frame)
            case WatermarkFrame():
                progress.raise_to(frame.header.watermark_ms)
                progress.idle = frame.idle
                self._settle()
            case EndFrame():
                progress.ended = True
                self._settle()
            case BarrierFrame():
                progress.raise_to(frame.header.watermark_ms)
                self._learn_commit(frame.committed)
                if self.receiver.barrier(channel, frame.header.epoch) is not None:
                    self._go_on_with_waiting()
                if self.receiver.aligning == frame.header.epoch:
                    self._named_committed = frame.committed
                self._settle()

    def _start(self, work: Work, edge: EdgeId | None = None, frame: DataFrame | None = None) -> None:
        if self._work is not None:
            message = f"{self.sender.task}: {work} begins while {self._work} is under way"
            raise LocalError(message)
        self._work = work
        self._ticket += 1
        match work:
            case Applying():
                if edge is None or frame is None:
                    message = "rows without a frame"
                    raise LocalError(message)
                self._out.append(do.Apply(self._ticket, edge, frame.bodies))
            case Advancing():
                self._out.append(do.Advance(self._ticket, self.input_watermark_ms))
            case Firing():
                self._out.append(do.FireProcessingTime(self._ticket, self.processing_time_ms))
            case Flushing(epoch, _):
                self._out.append(do.Flush(self._ticket, epoch))
            case Copying(epoch, committed):
                self._out.append(do.TakeSnapshot(self._ticket, epoch, committed))

    # --- answers to work ------------------------------------------------------------------------------------------------

    def _answered(self, ticket: int) -> Work:
        if self._work is None or ticket != self._ticket:
            message = f"{self.sender.task}: answer to ticket {ticket}, but {self._ticket} is the last and {self._work} is under way"
            raise LocalError(message)
        work, self._work = self._work, None
        return work

    def _emit(self, emissions: tuple[ev.Emission, ...], output_watermark_ms: int) -> None:
        """W1, F4: rows first, then the watermark that they are behind."""
        self.sender.watermark_ms = max(self.sender.watermark_ms, output_watermark_ms)
        grouped: dict[tuple[EdgeId, int], list[ev.Emission]] = {}
        for emission in emissions:
            grouped.setdefault((emission.edge, emission.partition), []).append(emission)
        for (edge, partition), group in grouped.items():
            self._out += self.sender.data(edge, partition, [(e.bodies, e.size_bytes) for e in group])

    def _done(self, event: ev.Done) -> None:
        work = self._answered(event.ticket)
        self._emit(event.emissions, event.output_watermark_ms)
        if self.is_source:
            self.pace.produced(0, _rows_of(event.emissions), 0 if isinstance(work, Flushing) else self.pace.held_rows)
        self._next_processing_ms = event.next_processing_ms
        self._batching = event.batching
        match work:
            case Applying(channel, watermark_ms):
                channel.progress.raise_to(watermark_ms)
                self._settle()
            case Advancing(final):
                if final and not event.unfinished:
                    self._end_output()
                if event.unfinished or self._unfinished is not None:
                    self._unfinished = work if event.unfinished else None
                    self._tell_idle()
            case Firing():
                pass
            case Flushing(epoch, committed):
                self._tell_idle()
                self._out += self.sender.watermarks()
                self._start(Copying(epoch, committed))
            case Copying():
                message = f"{self.sender.task}: TakeSnapshot is answered by SnapshotTaken"
                raise LocalError(message)

    def _settle(self) -> None:
        """W3: derive the input watermark and idleness anew; E1: all inputs ended, which alone is the end of time."""
        if self.is_source or self.ended:
            return
        inputs = [channel.progress for channel in self.receiver.channels()]
        final = all(p.ended for p in inputs)
        watermark = MAX_TIME if final else combined_watermark(inputs)
        self._tell_idle()
        if final or self.input_watermark_ms < watermark < MAX_TIME:
            self.input_watermark_ms = watermark
            self._start(Advancing(final))

    def _tell_idle(self) -> None:
        """W3: idle as its inputs are, but for a task that holds rows, or that has not finished with its watermark."""
        if self.is_source or self.ended:
            return
        idle = not self._batching and all_idle([channel.progress for channel in self.receiver.channels()])
        idle = idle and self._unfinished is None
        if idle != self.idle:
            self.idle = self.sender.idle = idle
            self._out += self.sender.watermarks()

    def _end_output(self) -> None:
        self.ended = True
        self.idle = self.sender.idle = False
        self._out += self.sender.watermarks()
        self._out += self.sender.ends()
        self._out.append(do.InputEnded())

    def _produced(self, event: ev.Produced) -> None:
        if not self.is_source or self._work is not None or self.ended:
            message = f"{self.sender.task}: input produced while it may not be read"
            raise LocalError(message)
        self.pace.produced(event.taken_rows, _rows_of(event.emissions), event.held_rows)
        self._emit(event.emissions, event.output_watermark_ms)
        if event.ended:
            self._end_output()
        elif event.idle != self.idle:
            self.idle = self.sender.idle = event.idle
            self._out += self.sender.watermarks()

    # --- checkpoints ------------------------------------------------------------------------------------------------------

    def _cut_if_due(self) -> None:
        """C13: barriers are waited for no longer; a source, which has none to wait for, is cut between two reads (C2)."""
        told = self._told
        if told is None or not self._is_cut_due(self.pace.now_ms):
            return
        self._told = None
        if self.receiver.cut(told.epoch):
            self._named_committed, self._cut = told.committed, told.epoch

    def _is_cut_due(self, now_ms: int) -> bool:
        told, timeout_ms = self._told, self.alignment_timeout_ms
        return told is not None and timeout_ms is not None and now_ms - told.since_ms >= timeout_ms

    def _snapshot_taken(self, event: ev.SnapshotTaken) -> None:
        work = self._answered(event.ticket)
        if not isinstance(work, Copying):
            message = f"{self.sender.task}: SnapshotTaken answers {work}"
            raise LocalError(message)
        self._out += self.sender.barriers(work.epoch, work.committed)
        if self.is_source:
            self.pace.barrier(work.epoch)
        protocol = TaskProtocolState(
            inputs=tuple(partition.state() for partition in self.receiver.partitions.values()),
            outputs=self.sender.state(),
            input_watermark_ms=self.input_watermark_ms,
            output_watermark_ms=self.sender.watermark_ms,
            idle=self.idle,
            ended=self.ended,
            processing_time_ms=self.processing_time_ms,
        )
        self._pending = PendingAck(work.epoch, protocol, self.sender.next_seqs())
        self.last_snapshot = work.epoch
        self._end_checkpoint(work.epoch, taken=True)

    def _state_durable(self, event: ev.StateDurable) -> None:
        """C7; C5: of a checkpoint that has ended it is of no interest."""
        if isinstance(self._work, Copying) and self._work.epoch == event.epoch:
            message = f"{self.sender.task}: state of {event.epoch} is durable before SnapshotTaken said what it is"
            raise LocalError(message)
        if self._pending is not None and self._pending.epoch == event.epoch:
            self._pending.durable = event
            self._try_acknowledge()

    def _end_checkpoint(self, epoch: Epoch, *, taken: bool = False) -> None:
        """C5: checkpoint `epoch` has ended here; frames that waited for it go on."""
        if not taken and self._pending is not None and self._pending.epoch <= epoch:
            self._pending = None
        if not taken and self.taking():
            # It is being taken: the task goes on from that snapshot, and the coordinator ignores its ack.
            self.receiver.ended_up_to = max(self.receiver.ended_up_to, epoch)
            return
        if self.receiver.end(epoch):
            self._go_on_with_waiting()

    def _go_on_with_waiting(self) -> None:
        for partition, waiting in reversed(self.receiver.take_waiting()):
            self._agenda.appendleft(Regate(partition, waiting))
        for edge, offset in self.receiver.take_left_behind():
            kept = [item for item in self._agenda if not (isinstance(item, ev.FrameRead) and item.edge == edge)]
            self._agenda = deque(kept)
            """Work that follows from one event; it is empty before the next event is taken."""
            self._out.append(do.Seek(edge, offset))

    def _try_acknowledge(self) -> None:
        """C7: durable here, and every frame up to the barrier at the broker."""
        pending = self._pending
        if pending is None or pending.durable is None or not self.sender.all_acked(pending.behind):
            return
        durable = pending.durable
        protocol = structs.replace(pending.protocol, outputs=self.sender.with_unread(pending.protocol.outputs))
        self._pending = None
        self._out.append(
            do.Acknowledge(pending.epoch, protocol, durable.parts, durable.blobs, durable.staged, durable.listed)
        )

    def _learn_commit(self, epoch: Epoch) -> None:
        if epoch > self.committed:
            self.committed = epoch
            self._asked = False
            self.sender.committed(epoch)
            self.pace.committed(epoch)

    def _ask_for_checkpoint(self) -> None:
        """F8: a source that is held back asks, once a commit. F9: a source whose epoch is full asks, once an epoch."""
        if not self.is_source or self.stopped:
            return
        if not self._asked and self.sender.held_back_by_commits():
            self._asked = True
            self._out.append(do.AskCheckpoint())
        elif self._asked_for < self.sender.epoch and self.pace.full():
            self._asked_for = self.sender.epoch
            self._out.append(do.AskCheckpoint())

    def _ticked(self, now_ms: int) -> None:
        """W5: processing time never falls; watermarks that no row has carried go out."""
        self.processing_time_ms = max(self.processing_time_ms, now_ms)
        self._out += self.sender.watermarks()
        self._fire_due = True

    # --- invariants between two events ----------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise LocalError where the machine contradicts itself; for tests, after every event."""
        self.receiver.validate()
        self.sender.validate()
        self.pace.validate(str(self.sender.task))
        taking = self._work.epoch if isinstance(self._work, Flushing | Copying) else None
        aligning = self.receiver.aligning
        claims = {
            "a stopped task has nothing to say": not (self.stopped and self._out),
            "nothing is put off without a reason": self.stopped or not self._agenda or self._work is not None,
            "frames are let wait, not put off, while a snapshot is taken": self.stopped
            or not (taking and self._agenda),
            "a receiver takes what it has aligned": taking is None or self.receiver.aligned() == taking,
            "what has ended is not aligned": aligning is None
            or taking == aligning
            or aligning > self.receiver.ended_up_to,
            "a complete alignment is taken": self.stopped or self._work is not None or self.receiver.aligned() is None,
            "an acknowledgement is of the last snapshot": self._pending is None
            or self._pending.epoch == self.last_snapshot,
            "the sender's epoch follows the last snapshot": self.sender.epoch > self.last_snapshot,
            "idle and ended are told as they are": self.sender.idle == self.idle and self.sender.ended == self.ended,
        }
        require(str(self.sender.task), claims)


def _rows_of(emissions: tuple[ev.Emission, ...]) -> int:
    return sum(body.rows for emission in emissions for body in emission.bodies)
