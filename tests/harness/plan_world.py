"""Any plan run by its real operators in one thread, under any schedule: sources, operators, the edges between them, several tasks each.

Frames wait in their channel, first in first out, until the schedule delivers them; an epoch delivers all and copies every task; a restart
throws away what no copy covers, and may change how many tasks the keyed vertices have. What counts is what an epoch covered. Rows that
a task behind a source gives out are held against the watermark that it has sent (W1).
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tests.harness.fronted import Fronted
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import SplitId, StatePart, VertexId, owner_of
from tidemark.shared.model.plan import DLQ, OUT, Edge, Vertex
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import GROUP, TS, Out
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.build import OperatorChain, build_chain
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.specs import FrontSpec
from tidemark.shared.planning import plan_processor
from tidemark.shared.protocol.watermarks import InputProgress, combined_watermark

CONTEXT = TaskContext("test", "test", "events")
GROUPS = 16
Parts = dict[StatePart, bytes]
END = "end"
Frame = Out | tuple[int, bool] | str
"""Rows; a watermark and whether its sender is idle; the end."""


@dataclass(frozen=True)
class Channel:
    """From one task to another."""

    edge: Edge
    sender: int
    receiver: int


@dataclass
class Task:
    """A task of a vertex."""

    vertex: Vertex
    index: int
    chain: OperatorChain
    front: Fronted | None = None
    positions: dict[SplitId, int] = field(default_factory=dict)
    inputs: dict[Channel, InputProgress] = field(default_factory=dict)
    input_ms: int = MIN_TIME
    sent: tuple[int, bool] = (MIN_TIME, False)
    ended: bool = False
    parts: Parts = field(default_factory=dict)
    """As of the last copy."""
    turn: int = 0


@dataclass(frozen=True)
class Copy:
    """A task in the last epoch."""

    parts: Parts
    positions: dict[SplitId, int]
    inputs: dict[Channel, InputProgress]
    input_ms: int
    sent: tuple[int, bool]
    ended: bool


class PlanWorld:
    """The tasks of a document; `records`: by source vertex, by split."""

    def __init__(
        self,
        document: Mapping[str, Any],
        records: Mapping[str, Sequence[Sequence[bytes]]],
        tasks: Mapping[str, int],
        context: TaskContext = CONTEXT,
    ) -> None:
        self._context = context
        self.plan = plan_processor(parse(document), GROUPS, engine="local", collects=True)
        self._vertices = [v for v in self.plan.vertices if v.service != "sink"]
        self._records = {VertexId(name): splits for name, splits in records.items()}
        self._wanted = dict(tasks)
        self._copies: dict[VertexId, list[Copy]] = {}
        self.tasks: dict[VertexId, list[Task]] = {}
        self._channels: dict[Channel, deque[Frame]] = {}
        self._fresh: dict[str, list[Out]] = defaultdict(list)
        self._covered: dict[str, list[Out]] = defaultdict(list)
        self._build()

    # --- what a schedule may do -----------------------------------------------------------------------------------------

    def feed(self, source: int, split: int, count: int) -> None:
        """A source's task reads so many records of a split."""
        vertex = list(self._records)[source % len(self._records)]
        splits = self._records[vertex]
        if not splits:
            return
        ordinal = split % len(splits)
        task = self.tasks[vertex][ordinal % len(self.tasks[vertex])]
        name = SplitId(f"s-{ordinal}")
        begin = task.positions[name]
        values = splits[ordinal][begin : begin + count]
        if not values or task.front is None:
            return
        positions = np.arange(begin, begin + len(values), dtype=np.int64)
        task.positions[name] = begin + len(values)
        for out in task.front.on_records(
            RawBatch(name, ordinal, positions, positions * 0, pa.array(values, type=pa.binary()))
        ):
            self._send(task, task.chain.on_batch(out.batch, out.content, "") if out.port == OUT else [out])
        self._advance_source(task)

    def idle(self, source: int, split: int) -> None:
        """A split of a source is idle."""
        vertex = list(self._records)[source % len(self._records)]
        if self._records[vertex]:
            ordinal = split % len(self._records[vertex])
            task = self.tasks[vertex][ordinal % len(self.tasks[vertex])]
            assert task.front is not None
            was_idle = task.front.idle()
            task.front.on_status(SplitId(f"s-{ordinal}"), "idle")
            self._send(task, task.chain.on_watermark(task.front.output_watermark()))
            if task.front.idle() and not was_idle:  # as a source's body does
                self._send(task, task.chain.before_barrier())
            self._tell(task)

    def deliver(self, channel: int, count: int) -> None:
        """So many frames of a channel reach their receiver."""
        channels = list(self._channels)
        if channels:
            self._deliver(channels[channel % len(channels)], count)

    def epoch(self) -> None:
        """A checkpoint: everything is given out, delivered and copied."""
        for task in self._in_order():
            for channel in list(task.inputs):
                self._deliver(channel, len(self._channels[channel]))
            self._send(task, task.chain.before_barrier())
            self._tell(task)
        self._copies = {v: [self._copy(t) for t in tasks] for v, tasks in self.tasks.items()}
        for sink, outs in self._fresh.items():
            self._covered[sink] += outs
        self._fresh.clear()

    def restart(self, tasks: int = 0) -> None:
        """Everything goes back to the last epoch; keyed vertices have so many tasks then, 0: as many as before."""
        if tasks:
            for vertex in self._vertices:
                if any(e.partitioning == "key" for e in self.plan.inputs_of(vertex.id)):
                    self._wanted[vertex.id] = tasks
        self._fresh.clear()
        self._build()

    def finish(self) -> None:
        """The rest of the input, and its end."""
        for number, (vertex, splits) in enumerate(self._records.items()):
            for ordinal, records in enumerate(splits):
                self.feed(number, ordinal, len(records))
            for task in self.tasks[vertex]:
                assert task.front is not None
                for name in task.positions:
                    task.front.on_status(name, "finished")
                self._end(task)
        self.epoch()

    # --- what came out --------------------------------------------------------------------------------------------------

    def documents(self, sink: str = "collect-1") -> list[Document]:
        """What a sink has, as far as epochs cover it, in the order of coming."""
        return [d for out in self._covered[sink] for d in documents_of(out.batch)]

    def dead_letters(self) -> list[Document]:
        """Dead letters, as far as epochs cover them."""
        return self.documents("dlq")

    # --- building -------------------------------------------------------------------------------------------------------

    def _count(self, vertex: Vertex) -> int:
        return min(self._wanted.get(vertex.id, 1), vertex.max_tasks or 99)

    def _build(self) -> None:
        self.tasks = {}
        self._channels = {}
        for vertex in self._vertices:
            count, copies = self._count(vertex), self._copies.get(vertex.id, [])
            self.tasks[vertex.id] = [self._task(vertex, index, count, copies) for index in range(count)]
        for task in self._in_order():
            if task.front is None and task.input_ms > MIN_TIME and not task.ended:
                self._send(task, task.chain.on_watermark(task.input_ms))
                self._tell(task)

    def _task(self, vertex: Vertex, index: int, count: int, copies: list[Copy]) -> Task:
        task = Task(vertex, index, build_chain(vertex.chain, self._context))
        before = _predecessors(index, count, copies)
        if len(copies) == count:
            task.parts = dict(copies[index].parts) if copies else {}
        else:
            every = {part: data for copy in copies for part, data in copy.parts.items()}
            task.parts = {p: d for p, d in every.items() if owner_of(_group(p), count, GROUPS) == index}
        task.chain.restore({p: d for p, d in task.parts.items() if not p.startswith("front|")})
        task.input_ms = max((c.input_ms for c in before), default=MIN_TIME)
        task.sent = (min((c.sent[0] for c in before), default=MIN_TIME), False)
        task.ended = bool(before) and all(c.ended for c in before)
        for edge in self.plan.inputs_of(vertex.id):
            senders = self.tasks[edge.sender]
            together = "" if senders and senders[0].front is not None else str(edge.sender)
            stays = len(copies) == count and len(self._copies[edge.sender]) == len(senders)
            for sender in senders:
                channel = Channel(edge, sender.index, index)
                task.inputs[channel] = (
                    _same(copies[index].inputs[channel]) if stays else InputProgress(together=together)
                )
                self._channels[channel] = deque()
                if copies and not stays:  # R4: an edge that begins anew is told what its sender has reached
                    self._channels[channel].append(sender.sent)
                    self._channels[channel].extend([END] if sender.ended else [])
        if isinstance(vertex.chain[0], FrontSpec):
            self._source(task, vertex.chain[0], count, copies)
        return task

    def _source(self, task: Task, spec: FrontSpec, count: int, copies: list[Copy]) -> None:
        splits = {SplitId(f"s-{i}"): i for i in range(len(self._records[task.vertex.id])) if i % count == task.index}
        task.front = Fronted(spec, self._context)
        stored = {StatePart(p.removeprefix("front|")): d for p, d in task.parts.items() if p.startswith("front|")}
        task.front.restore(stored, task.sent[0])
        task.front.assign(splits)
        task.chain.on_watermark(task.sent[0])
        task.positions = dict(copies[task.index].positions) if copies else dict.fromkeys(splits, 0)

    def _copy(self, task: Task) -> Copy:
        found = dict(task.chain.snapshot())
        if task.front is not None:
            found.update({StatePart(f"front|{p}"): d for p, d in task.front.snapshot().items()})
        for part, data in found.items():
            if data is None:
                del task.parts[part]
            else:
                task.parts[part] = data
        inputs = {channel: _same(progress) for channel, progress in task.inputs.items()}
        return Copy(dict(task.parts), dict(task.positions), inputs, task.input_ms, task.sent, task.ended)

    # --- running --------------------------------------------------------------------------------------------------------

    def _in_order(self) -> Iterator[Task]:
        for vertex in self._vertices:
            yield from self.tasks[vertex.id]

    def _advance_source(self, task: Task) -> None:
        assert task.front is not None
        self._send(task, task.chain.on_watermark(task.front.output_watermark()))
        self._tell(task)

    def _end(self, task: Task) -> None:
        if not task.ended:
            self._send(task, task.chain.on_watermark(MAX_TIME))
            self._tell(task)
            task.ended = True
            self._broadcast(task, END)

    def _tell(self, task: Task) -> None:
        idle = task.front.idle() if task.front is not None else _all_idle(task.inputs.values())
        told = (max(task.sent[0], task.chain.output_watermark()), idle)
        if told != task.sent:
            task.sent = told
            self._broadcast(task, told)

    def _broadcast(self, task: Task, frame: Frame) -> None:
        for edge in self.plan.outputs_of(task.vertex.id):
            for index in range(len(self.tasks.get(edge.receiver, ()))):
                self._channels[Channel(edge, task.index, index)].append(frame)

    def _send(self, task: Task, outs: Sequence[Out]) -> None:
        for out in outs:
            if task.front is None and out.port != DLQ and out.content == "rows" and out.batch.num_rows:
                assert min(out.batch.column(TS).to_pylist()) >= task.sent[0], (
                    "W1: rows behind the watermark that was sent"
                )
            for edge in self.plan.outputs_of(task.vertex.id):
                if edge.port == out.port:
                    self._route(task, edge, out)

    def _route(self, task: Task, edge: Edge, out: Out) -> None:
        receivers = len(self.tasks.get(edge.receiver, ()))
        if not receivers:
            self._fresh[edge.receiver].append(out)
        elif edge.partitioning == "key":
            owners = out.batch.column(GROUP).to_numpy().astype(np.int64) * receivers // GROUPS
            for owner in np.unique(owners):
                part = out.batch.take(pa.array(np.flatnonzero(owners == owner)))
                self._channels[Channel(edge, task.index, int(owner))].append(Out(out.port, out.content, part))
        else:
            task.turn += 1
            index = 0 if edge.partitioning == "single" else task.turn % receivers
            self._channels[Channel(edge, task.index, index)].append(out)

    def _deliver(self, channel: Channel, count: int) -> None:
        task = self.tasks[channel.edge.receiver][channel.receiver]
        frames = self._channels[channel]
        for _ in range(min(count, len(frames))):
            frame = frames.popleft()
            progress = task.inputs[channel]
            if isinstance(frame, Out):
                progress.idle = False
                self._send(task, task.chain.on_batch(frame.batch, frame.content, channel.edge.tag))
                self._tell(task)
            elif isinstance(frame, tuple):
                progress.raise_to(frame[0])
                progress.idle = frame[1]
            else:
                progress.ended = True
            self._settle(task)

    def _settle(self, task: Task) -> None:
        if all(p.ended for p in task.inputs.values()):
            self._end(task)
            return
        reached = combined_watermark(task.inputs.values())
        if task.input_ms < reached < MAX_TIME:
            task.input_ms = reached
            self._send(task, task.chain.on_watermark(reached))
        self._tell(task)


def _predecessors(index: int, count: int, copies: list[Copy]) -> list[Copy]:
    if len(copies) == count:
        return [copies[index]] if copies else []
    groups = [g for g in range(GROUPS) if owner_of(g, count, GROUPS) == index]
    owners = {owner_of(g, len(copies), GROUPS) for g in groups} if copies else set()
    return [copies[i] for i in sorted(owners)]


def _same(progress: InputProgress) -> InputProgress:
    return replace(progress)


def _all_idle(inputs: Any) -> bool:
    seen = list(inputs)
    return all(p.idle or p.ended for p in seen) and not all(p.ended for p in seen)


def _group(part: StatePart) -> int:
    kind, _, number = part.rpartition("|")[2].partition(":")
    return int(number.partition("#")[0]) if kind == "kg" else 0
