"""A task in memory: a machine, its body, its queue to the log, and a mailbox of what the coordinator says."""

import copy
import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field
from functools import partial
from random import Random

from tests.harness.task_world.bodies import AnyBody, SinkBody, SourceBody
from tests.harness.task_world.plan import SOURCE, Layout, MemoryLog, Row, owner
from tidemark.shared.model.checkpoint import PartHandle, TaskProtocolState
from tidemark.shared.model.frames import BarrierFrame, DataFrame, Frame, Inline
from tidemark.shared.model.ids import TASK_PART, EdgeId, Epoch, Offset, Seq, TaskId
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.protocol.task import commands as do
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.protocol.task.machine import TaskMachine

Work = do.Apply | do.Advance | do.FireProcessingTime | do.Flush | do.TakeSnapshot
BYTES_ROW = 10


@dataclass(frozen=True)
class Taken:
    """What an acknowledged snapshot holds."""

    protocol: TaskProtocolState
    body: AnyBody
    applied: dict[tuple[str, TaskId], int]
    staged: tuple[Row, ...]


@dataclass
class Actor:
    """One task of one generation."""

    task: TaskId
    generation: int
    machine: TaskMachine
    body: AnyBody
    layout: Layout
    log: MemoryLog
    rng: Random
    trace: Callable[[str], None]
    on_ack: Callable[["Actor", Epoch, Taken], None]
    on_ask: Callable[[], None]
    mailbox: deque[ev.Event] = field(default_factory=deque)
    work: Work | None = None
    positions: dict[EdgeId, Offset] = field(default_factory=dict)
    outbox: dict[tuple[EdgeId, int], deque[Frame]] = field(default_factory=dict)
    unacked: dict[tuple[EdgeId, int], deque[tuple[Frame, Offset]]] = field(default_factory=dict)
    copied: dict[Epoch, tuple[AnyBody, dict[tuple[str, TaskId], int], tuple[Row, ...]]] = field(default_factory=dict)
    undurable: deque[Epoch] = field(default_factory=deque)
    applied: dict[tuple[str, TaskId], int] = field(default_factory=dict)
    """DATA frames applied, by edge incarnation and sender."""
    reading: Frame | None = None
    now: int = 0

    def start(self) -> None:
        """Stand where the machine stands."""
        self.now = self.machine.processing_time_ms
        self.positions = {e: p.next_offset for e, p in self.machine.receiver.partitions.items()}
        self._carry_out(self.machine.start())

    # --- what may happen -----------------------------------------------------------------------------------------------

    def choices(self, *, faults: bool) -> list[tuple[str, Callable[[], None]]]:
        """Everything that could happen next at this task."""
        found: list[tuple[str, Callable[[], None]]] = []
        if self.machine.stopped:
            return found
        if self.work is not None:
            found.append((f"answers {type(self.work).__name__}", self.answer))
        if self.mailbox:
            found.append(("hears", self.hear))
        if self.undurable:
            found.append(("durable", self.durable))
        found += [("writes", partial(self.write, key)) for key, queue in self.outbox.items() if queue]
        found += [("acked", partial(self.broker_acks, key)) for key, queue in self.unacked.items() if queue]
        if faults:
            found += [
                ("repeats", partial(self.repeat, key))
                for key, q in self.unacked.items()
                if q and self.rng.random() < 0.1
            ]
        if self.machine.may_read():
            found += [("reads", partial(self.read, edge)) for edge in self.positions if self.next_frame(edge)]
            if self.task.vertex == SOURCE:
                found.append(("produces", self.produce))
        return found

    def handle(self, event: ev.Event) -> None:
        """One event; then all must hold."""
        before = (self.machine.input_watermark_ms, self.machine.sender.watermark_ms, self.machine.processing_time_ms)
        commands = self.machine.handle(event)
        after = (self.machine.input_watermark_ms, self.machine.sender.watermark_ms, self.machine.processing_time_ms)
        assert all(a >= b for a, b in zip(after, before, strict=True)), (
            f"{self.task}: time fell from {before} to {after} (W1, W5)"
        )
        self.machine.validate()
        self._carry_out(commands)

    def hear(self) -> None:
        event = self.mailbox.popleft()
        self.trace(f"  {event}")
        self.handle(event)

    def tick(self, ms: int) -> None:
        self.now += ms
        self.handle(ev.Ticked(self.now, self.now))

    def durable(self) -> None:
        epoch = self.undurable.popleft()
        self.handle(ev.StateDurable(epoch, (PartHandle(TASK_PART, b""),), (), b""))

    def write(self, key: tuple[EdgeId, int]) -> None:
        frame = self.outbox[key].popleft()
        offset = self.log.append(self.layout.incarnations[key[0]], key[1], frame)
        self.trace(f"  {key[0]}/{key[1]}@{offset} {describe(frame)}")
        self.unacked.setdefault(key, deque()).append((frame, offset))

    def repeat(self, key: tuple[EdgeId, int]) -> None:
        """F2: the answers were lost; the same frames are written again, in order."""
        again = [frame for frame, _ in self.unacked.pop(key)]
        self.outbox.setdefault(key, deque()).extendleft(reversed(again))

    def broker_acks(self, key: tuple[EdgeId, int]) -> None:
        frame, offset = self.unacked[key].popleft()
        self.handle(ev.BrokerAcked(key[0], key[1], frame.header.seq, offset))

    def next_frame(self, edge: EdgeId) -> tuple[Offset, Frame] | None:
        return self.log.read(self.layout.incarnations[edge], self.task.index, self.positions[edge])

    def read(self, edge: EdgeId) -> None:
        found = self.next_frame(edge)
        assert found is not None
        offset, frame = found
        self.trace(f"  {edge}@{offset} {describe(frame)}")
        self.positions[edge] = Offset(offset + 1)
        self.handle(ev.FrameRead(edge, offset, frame, size_of(frame)))

    def produce(self) -> None:
        assert isinstance(self.body, SourceBody)
        rows = self.body.read(self.rng)
        emissions = self._route(rows)
        self.handle(ev.Produced(emissions, self.body.out_wm, self.body.idle(), self.body.ended()))

    # --- the machine's commands ------------------------------------------------------------------------------------------

    def _carry_out(self, commands: Iterable[do.Command]) -> None:
        working = False
        for command in commands:
            match command:
                case do.Send(edge, partition, frame):
                    assert not working, "frames behind a work command would be overtaken by its own"
                    self.outbox.setdefault((edge, partition), deque()).append(frame)
                case do.Seek(edge, offset):
                    self.trace(f"  {self.task} seeks {edge} to {offset}")
                    self.positions[edge] = offset
                case do.Acknowledge(epoch, protocol):
                    self.on_ack(self, epoch, Taken(protocol, *self.copied.pop(epoch)))
                case do.AskCheckpoint():
                    self.on_ask()
                case do.StopAsZombie():
                    self.trace(f"  {self.task} stops")
                    self.outbox.clear()
                case do.InputEnded():
                    self.trace(f"  {self.task} has ended")
                case _:
                    assert self.work is None, f"{command} while {self.work} is under way"
                    working, self.work = True, command
                    self._check_apply(command)

    def answer(self) -> None:
        """Do the work and say so."""
        work, self.work = self.work, None
        rows: list[Row] = []
        match work:
            case do.Apply(_, _, bodies):
                rows = self.body.apply((row for body in bodies for row in decode(body)), self.now)
            case do.Advance(_, watermark):
                ended = all(c.progress.ended for c in self.machine.receiver.channels())
                assert watermark < MAX_TIME or ended, f"{self.task}: the end of time before the end of input (W3)"
                rows = self.body.advance(watermark, self.now)
            case do.FireProcessingTime(_, now):
                rows = self.body.fire(now)
            case do.Flush():
                rows = self.body.flush()
            case do.TakeSnapshot(ticket, epoch, committed):
                self._check_snapshot(epoch)
                staged = self.body.stage(epoch, committed) if isinstance(self.body, SinkBody) else ()
                self.copied[epoch] = (copy.deepcopy(self.body), dict(self.applied), staged)
                self.undurable.append(epoch)
                self.handle(ev.SnapshotTaken(ticket))
                return
            case None:
                raise AssertionError("no work")
        done = ev.Done(work.ticket, self._route(rows), self.body.out_wm, self.body.next_timer())
        self.handle(done)

    def _route(self, rows: Iterable[Row]) -> tuple[ev.Emission, ...]:
        rows, watermark = list(rows), self.machine.sender.watermark_ms
        pieces = []
        for edge in self.layout.outputs(self.task.vertex):
            routed: dict[int, list[Row]] = {}
            for row in rows:
                kind = "raw" if edge.edge == "source>step" else row.kind
                told = Row(kind, row.split, row.key, row.number, row.ts, row.ts >= watermark)
                routed.setdefault(owner(row.group(), edge.receivers), []).append(told)
            for partition, mine in routed.items():
                size = self.rng.randint(1, 2)
                for start in range(0, len(mine), size):
                    part = mine[start : start + size]
                    ipc = json.dumps([astuple(r) for r in part]).encode()
                    bodies = (Inline("rows", len(part), ipc),)
                    pieces.append(ev.Emission(edge.edge, partition, bodies, BYTES_ROW * len(part)))
        return tuple(pieces)

    # --- what must hold ---------------------------------------------------------------------------------------------------

    def _check_apply(self, command: Work) -> None:
        """W1: no on-time row is below the watermark that its channel had before it. Also counts frames."""
        if not isinstance(command, do.Apply):
            return
        applying = self.machine._work
        channel = applying.channel  # type: ignore[union-attr]
        for body in command.bodies:
            for row in decode(body):
                below = row.on_time and row.ts < channel.progress.watermark_ms
                assert not below, (
                    f"{self.task}: {row} of {channel.sender} is below {channel.progress.watermark_ms} (W1)"
                )
        key = (self.layout.incarnations[command.edge], channel.sender)
        self.applied[key] = self.applied.get(key, 0) + 1

    def _check_snapshot(self, epoch: Epoch) -> None:
        """C3: exactly the rows in front of BARRIER n are in snapshot n, for every channel."""
        for edge, partition in self.machine.receiver.partitions.items():
            incarnation = self.layout.incarnations[edge]
            frames = self.log.partitions.get((incarnation, self.task.index), [])
            for sender in partition.channels:
                counted: dict[Seq, Frame] = {}
                for frame in frames:
                    verdict = self.machine.receiver.lineage.judge(frame.header.generation, frame.header.epoch)
                    if frame.header.sender == sender and verdict.value == "counts":
                        counted.setdefault(frame.header.seq, frame)
                channel = partition.channels[sender]
                where = f"{self.task} snapshot {epoch}, {sender} on {edge}"
                waits = self.machine.alignment_timeout_ms is None
                assert channel.taken_barrier == epoch or not waits, f"{where}: taken before its barrier (C3)"
                barrier = [f for f in counted.values() if isinstance(f, BarrierFrame) and f.header.epoch == epoch]
                assert len(barrier) == 1 or not waits, f"{where}: {len(barrier)} barriers"
                before = [f for f in counted.values() if isinstance(f, DataFrame) and f.header.seq < channel.taken_seq]
                assert all(f.header.epoch <= epoch for f in before), (
                    f"{where}: rows of a later epoch are in it (C3, C13)"
                )
                applied = self.applied.get((incarnation, sender), 0)
                assert applied == len(before), f"{where}: {applied} frames are in it, {len(before)} are due (C3)"


def decode(body: object) -> list[Row]:
    """The rows of a body."""
    assert isinstance(body, Inline)
    return [Row(*values) for values in json.loads(body.ipc)]


def size_of(frame: Frame) -> int:
    """As the log has it, bytes."""
    return (
        BYTES_ROW * sum(b.rows for b in frame.bodies if isinstance(b, Inline))
        if isinstance(frame, DataFrame)
        else BYTES_ROW
    )


def describe(frame: Frame) -> str:
    """For the trace."""
    h = frame.header
    wm = "end" if h.watermark_ms == MAX_TIME else h.watermark_ms if h.watermark_ms > -(2**62) else "-"
    return f"{type(frame).__name__[:-5]} g{h.generation} {h.sender} #{h.seq} e{h.epoch} w{wm}"
