"""Builds a task machine for a new generation, from nothing or from a checkpoint (R1, R4, F1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.shared.model.checkpoint import ChannelState, InputState, LineageEntry, OutputState, TaskProtocolState
from tidemark.shared.model.ids import (
    FIRST_OFFSET,
    FIRST_SEQ,
    EdgeId,
    Epoch,
    Generation,
    JobId,
    Offset,
    Seq,
    TaskId,
    VertexId,
    owner_of,
)
from tidemark.shared.model.messages import EdgeBinding
from tidemark.shared.model.settings import knob
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.protocol.lineage import Lineage
from tidemark.shared.protocol.task.machine import TaskMachine
from tidemark.shared.protocol.task.receiver import ChannelReceiver, InputPartition, Receiver
from tidemark.shared.protocol.task.sender import OutputEdge, PartitionSender, Sender
from tidemark.shared.protocol.watermarks import InputProgress


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Bounds of one task, bytes."""

    waiting_bytes_max: int = 16 * 1024 * 1024
    """Frames that ran ahead of an alignment (C4)."""
    ahead_bytes_max: int = knob(8 * 1024 * 1024)
    """W: how far a sender may be ahead of the slowest reader of an edge (F7)."""
    uncommitted_bytes_max: int = knob(1024 * 1024 * 1024)
    """V: how much a source may send between commits (F8)."""


@dataclass(frozen=True, slots=True)
class TaskStart:
    """The part of an assignment that concerns the protocol."""

    task: TaskId
    tasks: int
    """How many tasks the vertex has now."""
    job: JobId
    generation: Generation
    lineage: Sequence[LineageEntry]
    restored_from: Epoch
    inputs: Sequence[tuple[EdgeBinding, VertexId]]
    """In edges, with the sending vertex."""
    outputs: Sequence[EdgeBinding]
    restored: Mapping[int, TaskProtocolState]
    """The states of all tasks of the vertex in the restored checkpoint, by index; empty for a start from nothing."""
    is_source: bool
    limits: TaskLimits = TaskLimits()
    alignment_timeout_ms: int | None = None
    """How long a receiver waits for barriers; None: for ever (C13)."""
    sharing: frozenset[VertexId] = frozenset()
    """Sending vertices whose tasks all receive the same frames: all but sources (W3)."""


def start_task(start: TaskStart) -> TaskMachine:
    """The machine as the checkpoint left it. Edges with an incarnation unknown to the checkpoint begin anew (R4)."""
    previous = _predecessors(start)
    own = start.restored.get(start.task.index) if len(start.restored) == start.tasks else None
    receiver = Receiver(
        lineage=Lineage.of(start.lineage, start.generation),
        partitions={b.edge: _input(b, vertex, start, own) for b, vertex in start.inputs},
        waiting_bytes_max=start.limits.waiting_bytes_max,
        ended_up_to=start.restored_from,
    )
    known = {o.incarnation for o in own.outputs} if own is not None else set()
    # R4, W1: a hold of one of the predecessors comes along with its key groups; no receiver has seen more than the lowest of them.
    watermark_ms = min((p.output_watermark_ms for p in previous), default=MIN_TIME)
    ended = bool(previous) and all(p.ended for p in previous)
    idle = bool(previous) and not ended and all(p.idle or p.ended for p in previous)
    processing_time_ms = max((p.processing_time_ms for p in previous), default=0)
    sender = Sender(
        job=start.job,
        generation=start.generation,
        task=start.task,
        epoch=Epoch(start.restored_from + 1),
        edges={b.edge: _output(b, own, watermark_ms, idle=idle) for b in start.outputs},
        ahead_bytes_max=start.limits.ahead_bytes_max,
        uncommitted_bytes_max=start.limits.uncommitted_bytes_max,
        watermark_ms=watermark_ms,
        idle=idle,
        ended=ended,
    )
    return TaskMachine(
        receiver=receiver,
        sender=sender,
        is_source=start.is_source,
        alignment_timeout_ms=0 if start.is_source else start.alignment_timeout_ms,
        input_watermark_ms=max((p.input_watermark_ms for p in previous), default=MIN_TIME),
        idle=idle,
        ended=ended,
        processing_time_ms=processing_time_ms,
        # Restored timers are known to the operators alone: the first tick asks them.
        _next_processing_ms=processing_time_ms if previous and not start.is_source else MAX_TIME,
        introduce=tuple(b.edge for b in start.outputs if start.restored and b.incarnation not in known),
        committed=start.restored_from,
        last_snapshot=start.restored_from,
    )


def _predecessors(start: TaskStart) -> list[TaskProtocolState]:
    """The old tasks whose share this task takes over: itself, or after a rescale those whose key ranges overlap (R4).

    The splits of a source can go to any task, so a source takes over from all its old tasks. That matters only for `ended` and for
    processing time.
    """
    before = len(start.restored)
    if before == start.tasks:
        return [start.restored[start.task.index]]
    if start.is_source:
        return [_without_watermark(p) for p in start.restored.values()]
    scale = before * start.tasks
    shared = {
        owner_of(point, before, scale)
        for point in range(scale)
        if owner_of(point, start.tasks, scale) == start.task.index
    }
    return [start.restored[index] for index in sorted(shared)]


def _without_watermark(state: TaskProtocolState) -> TaskProtocolState:
    """A source derives its watermark from the splits that it now has, on edges that begin anew."""
    return TaskProtocolState(ended=state.ended, idle=state.idle, processing_time_ms=state.processing_time_ms)


def _input(binding: EdgeBinding, vertex: VertexId, start: TaskStart, own: TaskProtocolState | None) -> InputPartition:
    senders = [TaskId(vertex, index) for index in range(binding.senders)]
    together = vertex if vertex in start.sharing else ""
    state = _input_state(binding, own)
    if state is None:
        fresh = {
            s: ChannelReceiver(
                s,
                Seq(0),
                Seq(0),
                start.restored_from,
                InputProgress(together=together),
                taken_barrier=start.restored_from,
            )
            for s in senders
        }
        return InputPartition(EdgeId(binding.edge), binding.incarnation, fresh, Offset(0))
    saved = {TaskId(c.sender_vertex, c.sender_index): c for c in state.channels}
    channels = {s: _channel(s, saved[s], together) for s in senders}
    return InputPartition(EdgeId(binding.edge), binding.incarnation, channels, state.resume_offset)


def _input_state(binding: EdgeBinding, own: TaskProtocolState | None) -> InputState | None:
    if own is None:
        return None
    return next((i for i in own.inputs if i.incarnation == binding.incarnation), None)


def _channel(sender: TaskId, saved: ChannelState, together: str) -> ChannelReceiver:
    return ChannelReceiver(
        sender=sender,
        next_seq=saved.next_seq,
        restored_seq=saved.next_seq,
        last_barrier=saved.last_barrier,
        progress=InputProgress(saved.watermark_ms, saved.idle, saved.ended, together),
        taken_seq=saved.next_seq,
        taken_barrier=saved.last_barrier,
    )


def _output(binding: EdgeBinding, own: TaskProtocolState | None, watermark_ms: int, *, idle: bool) -> OutputEdge:
    """Behind BARRIER n all partitions know the watermark and the idleness of the snapshot; those of a new edge know nothing."""
    saved: OutputState | None = None
    if own is not None:
        saved = next((o for o in own.outputs if o.incarnation == binding.incarnation), None)
    if saved is None:
        partitions = [PartitionSender(FIRST_SEQ) for _ in range(binding.receivers)]
    else:
        nothing = ((0, FIRST_OFFSET),) * len(saved.next_seq)
        partitions = [
            PartitionSender.restored(seq, watermark_ms, *unread, idle=idle)
            for seq, unread in zip(saved.next_seq, saved.unread or nothing, strict=True)
        ]
    return OutputEdge(EdgeId(binding.edge), binding.incarnation, partitions)
