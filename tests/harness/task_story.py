"""A test as a story: a list of actions against one task machine, with a driver in memory that does what the script says.

    play(task(senders=2), Rows(0, "a"), Barrier(0, 1), Rows(0, "b"), Barrier(1, 1), Expect("apply a", "flush 1", "snapshot 1 after 0", ...))

Frames are numbered as their sender would (seq, epoch) unless an action says otherwise; they lie in a log, from which the driver reads
whenever the machine lets it. After every event the machine's own invariants are checked. `Expect` names all commands since the last
one, in the words of `say`.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.shared.model.checkpoint import LineageEntry, PartHandle, TaskProtocolState
from tidemark.shared.model.frames import BarrierFrame, DataFrame, EndFrame, Frame, Header, Inline, WatermarkFrame
from tidemark.shared.model.ids import (
    TASK_PART,
    EdgeId,
    Epoch,
    Generation,
    Incarnation,
    JobId,
    Offset,
    Seq,
    TaskId,
    VertexId,
)
from tidemark.shared.model.messages import EdgeBinding
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.protocol.task import commands as do
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.protocol.task.start import TaskLimits, TaskStart, start_task

JOB = JobId("0" * 32)
IN, OUT = EdgeId("up>me"), EdgeId("me>down")
UP, ME = VertexId("up"), VertexId("me")
FRAME_BYTES = 10

Work = do.Apply | do.Advance | do.FireProcessingTime | do.Flush | do.TakeSnapshot


def task(
    *,
    senders: int = 1,
    receivers: int = 1,
    source: bool = False,
    generation: int = 1,
    lineage: Sequence[tuple[int, int]] | None = None,
    restored: Mapping[int, TaskProtocolState] | None = None,
    tasks: int = 1,
    index: int = 0,
    incarnation: str = "i1",
    limits: TaskLimits = TaskLimits(),  # noqa: B008 -- frozen
    sharing: bool = False,
    alignment_timeout_ms: int | None = None,
) -> TaskStart:
    """A task `me` between `senders` tasks of `up` and `receivers` tasks of `down`; lineage: (generation, restored_from).

    sharing: `up` is no source, so that its tasks hear the same.
    """
    entries = [LineageEntry(Generation(g), Epoch(e), 1) for g, e in lineage or [(generation, 0)]]
    outputs = [EdgeBinding(OUT, Incarnation(incarnation), "", tasks, receivers)] if receivers else []
    return TaskStart(
        task=TaskId(ME, index),
        tasks=tasks,
        job=JOB,
        generation=Generation(generation),
        lineage=entries,
        restored_from=next(e.restored_from for e in entries if e.generation == generation),
        inputs=[] if source else [(EdgeBinding(IN, Incarnation("i1"), "", senders, tasks), UP)],
        outputs=outputs,
        restored=restored or {},
        is_source=source,
        limits=limits,
        sharing=frozenset({UP} if sharing else ()),
        alignment_timeout_ms=alignment_timeout_ms,
    )


def say(command: do.Command) -> str:  # noqa: PLR0911 -- one for each command
    """A command in a few words."""
    match command:
        case do.Apply(_, _, bodies):
            return "apply " + " ".join(b.ipc.decode() for b in bodies if isinstance(b, Inline))
        case do.Advance(_, watermark):
            return f"advance {moment(watermark)}"
        case do.FireProcessingTime(_, now):
            return f"fire {now}"
        case do.Flush(_, epoch):
            return f"flush {epoch}"
        case do.TakeSnapshot(_, epoch, committed):
            return f"snapshot {epoch} after {committed}"
        case do.Send(_, partition, frame):
            return f"{say_frame(frame)} to {partition}"
        case do.Seek(_, offset):
            return f"seek {offset}"
        case do.Acknowledge(epoch):
            return f"ack {epoch}"
        case do.AskCheckpoint():
            return "ask"
        case do.StopAsZombie(generation):
            return f"zombie {generation}"
        case do.InputEnded():
            return "ended"


def say_frame(frame: Frame) -> str:
    """A frame in a few words."""
    match frame:
        case DataFrame(header, bodies):
            return (
                f"{' '.join(b.ipc.decode() for b in bodies if isinstance(b, Inline))} at {moment(header.watermark_ms)}"
            )
        case WatermarkFrame(header, idle):
            return f"{'idle' if idle else 'watermark'} {moment(header.watermark_ms)}"
        case BarrierFrame(header, committed):
            return f"barrier {header.epoch} after {committed}"
        case EndFrame():
            return "end"


def moment(ms: int) -> str:
    """A watermark in words."""
    return {MIN_TIME: "none", MAX_TIME: "max"}.get(ms, str(ms))


def rows(name: str) -> Inline:
    """A body with a name for content."""
    return Inline("rows", 1, name.encode())


def emission(name: str, partition: int = 0) -> ev.Emission:
    """Rows on the out edge."""
    return ev.Emission(OUT, partition, (rows(name),), FRAME_BYTES)


@dataclass(frozen=True)
class Lie:
    """What a header says against its sender's true count; the frame is not counted."""

    generation: int | None = None
    seq: int | None = None
    epoch: int | None = None


@dataclass
class _Writer:
    """A sender upstream: what its next frame's header says."""

    seq: int = 0
    epoch: int = 1
    watermark_ms: int = MIN_TIME


@dataclass
class Story:
    """The driver in memory; actions act on it."""

    start: TaskStart
    emits: Mapping[str, Sequence[ev.Emission]] = field(default_factory=dict)
    """What the operators answer to work, by its words."""
    timers: deque[int] = field(default_factory=deque)
    """What the next answers say of processing time; MAX_TIME when there are none."""
    batches: bool = False
    """The body holds rows until the epoch ends."""
    holds_rows: bool = False

    def __post_init__(self) -> None:
        """Build the machine and start it."""
        self.machine = start_task(self.start)
        self.writers: dict[int, _Writer] = {}
        self.log: list[tuple[Frame, int]] = []
        self.position = 0
        self.said: list[str] = []
        self.sent: list[Frame] = []
        self.unacked: deque[tuple[int, Seq]] = deque()
        self.broker_offset = 0
        self.snapshots: dict[int, TaskProtocolState] = {}
        self.holding = False
        self.held: Work | None = None
        self.watermark_ms = self.machine.sender.watermark_ms
        partitions = self.machine.receiver.partitions
        if partitions:
            restored = partitions[IN]
            self.position = restored.next_offset
            for sender, channel in restored.channels.items():
                watermark_ms = channel.progress.watermark_ms
                self.writers[sender.index] = _Writer(channel.next_seq, self.start.restored_from + 1, watermark_ms)
        self.machine.validate()
        self.carry_out(self.machine.start())

    def handle(self, event: ev.Event) -> None:
        """One event, its consequences, and the invariants."""
        commands = self.machine.handle(event)
        self.machine.validate()
        self.carry_out(commands)

    def carry_out(self, commands: Sequence[do.Command]) -> None:
        """As a driver does: work is done at once, unless it is being held."""
        work: Work | None = None
        for command in commands:
            self.said.append(say(command))
            match command:
                case do.Send(_, partition, frame):
                    assert work is None, "a frame behind a work command would be overtaken by the work's own"
                    self.sent.append(frame)
                    self.unacked.append((partition, frame.header.seq))
                case do.Seek(_, offset):
                    self.position = offset
                case do.Acknowledge(epoch, protocol):
                    self.snapshots[epoch] = protocol
                case do.Apply() | do.Advance() | do.FireProcessingTime() | do.Flush() | do.TakeSnapshot():
                    assert work is None
                    work = command
                case _:
                    pass
        if work is not None and self.holding:
            self.held = work
        elif work is not None:
            self.answer(work)

    def answer(self, work: Work, *, unfinished: bool = False) -> None:
        """Do the work, or a piece of it, which moves no watermark here."""
        if isinstance(work, do.TakeSnapshot):
            self.handle(ev.SnapshotTaken(work.ticket))
            return
        if isinstance(work, do.Advance) and not unfinished:
            self.watermark_ms = max(self.watermark_ms, work.watermark_ms)
        timer = self.timers.popleft() if self.timers else MAX_TIME
        if isinstance(work, do.Apply | do.Flush):
            self.holds_rows = self.batches and isinstance(work, do.Apply)
        emissions = tuple(self.emits.get(say(work), ()))
        self.handle(ev.Done(work.ticket, emissions, self.watermark_ms, timer, self.holds_rows, unfinished))

    def read(self) -> None:
        """Read as long as the machine lets us."""
        while self.position < len(self.log) and self.machine.may_read():
            offset = self.position
            frame, size_bytes = self.log[offset]
            self.position += 1
            self.handle(ev.FrameRead(IN, Offset(offset), frame, size_bytes))

    def header(self, sender: int, lie: Lie | None = None) -> Header:
        """The next header of a sender."""
        writer = self.writers[sender]
        seq, epoch, generation = writer.seq, writer.epoch, self.start.generation
        if lie is None:
            writer.seq += 1
        else:
            seq = seq if lie.seq is None else lie.seq
            epoch = epoch if lie.epoch is None else lie.epoch
            generation = generation if lie.generation is None else Generation(lie.generation)
        me = TaskId(UP, sender)
        return Header(JOB, Incarnation("i1"), generation, me, Seq(seq), Epoch(epoch), writer.watermark_ms)


class Action:
    """Something that happens in a story."""

    def act(self, story: Story) -> None:
        """Do it."""
        raise AssertionError(self)


@dataclass(frozen=True)
class _Written(Action):
    sender: int = 0

    def write(self, story: Story, frame: Frame, size_bytes: int = FRAME_BYTES) -> None:
        story.log.append((frame, size_bytes))


@dataclass(frozen=True)
class Rows(_Written):
    """A sender writes rows; `watermark`: its header's."""

    name: str = ""
    watermark: int | None = None
    size_bytes: int = FRAME_BYTES
    lie: Lie | None = None

    def act(self, story: Story) -> None:
        writer = story.writers[self.sender]
        writer.watermark_ms = writer.watermark_ms if self.watermark is None else self.watermark
        self.write(story, DataFrame(story.header(self.sender, self.lie), (rows(self.name),)), self.size_bytes)


@dataclass(frozen=True)
class Says(_Written):
    """A sender writes WATERMARK."""

    watermark: int = MIN_TIME
    idle: bool = False

    def act(self, story: Story) -> None:
        story.writers[self.sender].watermark_ms = self.watermark
        self.write(story, WatermarkFrame(story.header(self.sender), self.idle))


@dataclass(frozen=True)
class Barrier(_Written):
    """A sender writes BARRIER; `watermark`: its header's."""

    epoch: int = 0
    committed: int = 0
    watermark: int | None = None

    def act(self, story: Story) -> None:
        writer = story.writers[self.sender]
        writer.watermark_ms = writer.watermark_ms if self.watermark is None else self.watermark
        writer.epoch = self.epoch
        self.write(story, BarrierFrame(story.header(self.sender), Epoch(self.committed)))
        writer.epoch = self.epoch + 1


@dataclass(frozen=True)
class End(_Written):
    """A sender writes END."""

    def act(self, story: Story) -> None:
        self.write(story, EndFrame(story.header(self.sender)))


@dataclass(frozen=True)
class Again(Action):
    """The frame at this offset is written once more, byte for byte (F2)."""

    offset: int

    def act(self, story: Story) -> None:
        story.log.append(story.log[self.offset])


@dataclass(frozen=True)
class Event(Action):
    """Anything else that the driver brings."""

    event: ev.Event

    def act(self, story: Story) -> None:
        story.handle(self.event)


@dataclass(frozen=True)
class Holds(Action):
    """From now on work is not answered until `Answers`."""

    def act(self, story: Story) -> None:
        story.holding = True


@dataclass(frozen=True)
class Answers(Action):
    """The work that is held is done, or (`unfinished`) a piece of it; what follows from it is held again, or (`go_on`) not."""

    go_on: bool = False
    unfinished: bool = False

    def act(self, story: Story) -> None:
        assert story.held is not None
        work, story.held = story.held, None
        story.holding = not self.go_on
        story.answer(work, unfinished=self.unfinished)


@dataclass(frozen=True)
class Produces(Action):
    """A source has read input."""

    names: Sequence[str] = ()
    watermark: int = MIN_TIME
    idle: bool = False
    ended: bool = False
    partition: int = 0
    held_rows: int = 0

    def act(self, story: Story) -> None:
        emissions = tuple(emission(name, self.partition) for name in self.names)
        story.handle(ev.Produced(emissions, self.watermark, self.idle, self.ended, len(self.names), self.held_rows))


@dataclass(frozen=True)
class Durable(Action):
    """The state of a snapshot is durable."""

    epoch: int

    def act(self, story: Story) -> None:
        story.handle(ev.StateDurable(Epoch(self.epoch), (PartHandle(TASK_PART, b""),), (), b""))


@dataclass(frozen=True)
class BrokerHas(Action):
    """The broker acknowledges this many more frames; all that were sent, if not said."""

    frames: int | None = None

    def act(self, story: Story) -> None:
        count = len(story.unacked) if self.frames is None else self.frames
        for _ in range(count):
            partition, seq = story.unacked.popleft()
            story.handle(ev.BrokerAcked(OUT, partition, seq, Offset(story.broker_offset)))
            story.broker_offset += 1


@dataclass(frozen=True)
class Expect(Action):
    """Exactly these commands since the last Expect."""

    said: tuple[str, ...]

    def __init__(self, *said: str) -> None:
        object.__setattr__(self, "said", said)

    def act(self, story: Story) -> None:
        told, story.said = story.said, []
        assert told == list(self.said), f"expected {list(self.said)}, found {told}"


@dataclass(frozen=True)
class Room(Action):
    """So many rows of input may be taken now."""

    rows: int

    def act(self, story: Story) -> None:
        found = story.machine.pace.room_rows()
        assert found == self.rows, f"expected room for {self.rows} rows, found {found}"


@dataclass(frozen=True)
class MayRead(Action):
    """Whether the machine lets the driver read."""

    may: bool

    def act(self, story: Story) -> None:
        assert story.machine.may_read() is self.may


def started(epoch: int, committed: int = 0, *, aligned: bool = False) -> Event:
    """The coordinator starts a checkpoint."""
    return Event(ev.CheckpointStarted(Epoch(epoch), Epoch(committed), aligned))


def aborted(epoch: int) -> Event:
    """The coordinator gives a checkpoint up."""
    return Event(ev.CheckpointAborted(Epoch(epoch)))


def committed(epoch: int) -> Event:
    """A commit is heard of."""
    return Event(ev.CheckpointCommitted(Epoch(epoch)))


def ticked(now_ms: int, monotonic_ms: int = 0) -> Event:
    """Time goes on."""
    return Event(ev.Ticked(now_ms, monotonic_ms))


def took(epoch: int, took_ms: int) -> Event:
    """The coordinator has said how long an epoch took."""
    return Event(ev.EpochTook(Epoch(epoch), took_ms))


def play(
    start: TaskStart,
    *actions: Action,
    emits: Mapping[str, Sequence[ev.Emission]] | None = None,
    timers: Sequence[int] = (),
    batches: bool = False,
    log: Sequence[tuple[Frame, int]] = (),
) -> Story:
    """Tell a story from its beginning; the story as it stands at its end. `log`: what lies in the partition already."""
    story = Story(start, emits or {}, deque(timers), batches)
    story.log += log
    for action in actions:
        action.act(story)
        story.read()
    return story
