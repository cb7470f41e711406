"""A windowed pipeline run by its real operators in one thread: source tasks, then the step, under any schedule.

Frames of a task wait in its channel, first in first out, until the schedule delivers them; an epoch delivers all and copies every
task; a restart throws away what no copy covers, and reads on from the copy's positions. The outputs that count are those that an epoch
covered. What a window's result is meant to be says `tests.oracle.windows`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tests.harness.fronted import Fronted
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import SplitId, StatePart
from tidemark.shared.model.plan import DLQ, OUT
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.build import OperatorChain, build_chain
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.specs import FrontSpec, OperatorSpec, StepSpec
from tidemark.shared.operators.step_operator import StepOperator
from tidemark.shared.planning.physical import plan_processor

CONTEXT = TaskContext("test", "test", "events")


@dataclass
class Task:
    """A source's task: front, fused operators, positions, and the frames that no receiver has read."""

    front_spec: FrontSpec
    chain_specs: tuple[OperatorSpec, ...]
    splits: dict[SplitId, int]
    front: Fronted = field(init=False)
    chain: OperatorChain = field(init=False)
    positions: dict[SplitId, int] = field(init=False)
    channel: deque[Out | int] = field(default_factory=deque)
    received_ms: int = MIN_TIME
    """The watermark that the step has had from this task."""
    parts: dict[StatePart, bytes] = field(default_factory=dict)
    """Of the last copy: the front's, under `front|`, and the chain's."""
    copied: tuple[dict[SplitId, int], int, int] = ({}, MIN_TIME, MIN_TIME)

    def __post_init__(self) -> None:
        self.copied = (dict.fromkeys(self.splits, 0), MIN_TIME, MIN_TIME)
        self.restore()

    def copy(self) -> None:
        for prefix, operator in (("front|", self.front), ("chain|", self.chain)):
            for part, data in operator.snapshot().items():
                name = StatePart(prefix + part)
                if data is None:
                    del self.parts[name]
                else:
                    self.parts[name] = data
        self.copied = (dict(self.positions), self.chain.output_watermark(), self.received_ms)

    def restore(self) -> None:
        self.front = Fronted(self.front_spec, CONTEXT)
        self.chain = build_chain(self.chain_specs, CONTEXT)
        positions, sent_ms, received_ms = self.copied
        self.front.restore(_below(self.parts, "front|"), sent_ms)
        self.chain.restore(_below(self.parts, "chain|"))
        self.front.assign(self.splits)
        self.chain.on_watermark(sent_ms)
        self.positions, self.received_ms = dict(positions), received_ms
        self.channel.clear()


class World:
    """The tasks of a document with a source and one window, over the given records."""

    def __init__(self, document: dict[str, Any], records: Sequence[Sequence[bytes]], tasks: int) -> None:
        plan = plan_processor(parse(document), engine="local", collects=True)
        source, window = plan.vertices[0], plan.vertices[1]
        (step,) = window.chain
        assert isinstance(step, StepSpec)
        self._records = records
        self._step_spec = step
        front, *chain = source.chain
        splits = {SplitId(f"s-{i}"): i for i in range(len(records))}
        self.tasks = [
            Task(front, tuple(chain), {s: o for s, o in splits.items() if o % tasks == index}) for index in range(tasks)
        ]
        self._step_parts: dict[StatePart, bytes] = {}
        self._step = StepOperator(self._step_spec, CONTEXT)
        self._fresh: list[Out] = []
        self._covered: list[Out] = []

    # --- what a schedule may do -----------------------------------------------------------------------------------------

    def feed(self, split: int, count: int) -> None:
        """Its task reads so many records of a split."""
        task = self.tasks[split % len(self.tasks)]
        name = SplitId(f"s-{split}")
        begin = task.positions[name]
        values = self._records[split][begin : begin + count]
        if not values:
            return
        positions = np.arange(begin, begin + len(values), dtype=np.int64)
        raw = RawBatch(name, split, positions, positions * 0, pa.array(values, type=pa.binary()))
        task.positions[name] = begin + len(values)
        for out in task.front.on_records(raw):
            task.channel.extend(task.chain.on_batch(out.batch, out.content, "") if out.port == OUT else [out])
        self._advance(task)

    def flush(self, index: int) -> None:
        """A task gives out what it holds, as where it holds too much."""
        task = self.tasks[index % len(self.tasks)]
        task.channel.extend(task.chain.before_barrier())
        task.channel.append(task.chain.output_watermark())

    def deliver(self, index: int, count: int) -> None:
        """The step reads so many frames of a task."""
        task = self.tasks[index % len(self.tasks)]
        for _ in range(min(count, len(task.channel))):
            frame = task.channel.popleft()
            if isinstance(frame, int):
                self._watermark(task, frame)
            elif frame.port == DLQ:
                self._fresh.append(frame)
            else:
                self._fresh += self._step.on_batch(frame.batch, frame.content, "")

    def epoch(self) -> None:
        """A checkpoint: everything is given out, delivered and copied."""
        for index in range(len(self.tasks)):
            self.flush(index)
            self.deliver(index, len(self.tasks[index].channel))
        self._fresh += self._step.before_barrier()
        for part, data in self._step.snapshot().items():
            assert data is not None
            self._step_parts[part] = data
        for task in self.tasks:
            task.copy()
        self._covered += self._fresh
        self._fresh = []

    def restart(self) -> None:
        """Everything goes back to the last epoch."""
        self._fresh = []
        for task in self.tasks:
            task.restore()
        self._step = StepOperator(self._step_spec, CONTEXT)
        self._step.restore(dict(self._step_parts))
        self._fresh += self._step.on_watermark(self._input())

    def finish(self) -> None:
        """The rest of the input, and its end."""
        for split in range(len(self._records)):
            self.feed(split, len(self._records[split]))
        for task in self.tasks:
            for name in task.splits:
                task.front.on_status(name, "finished")
            task.channel.extend(task.chain.on_watermark(MAX_TIME))
            task.channel.append(MAX_TIME)
        self.epoch()

    # --- what came out --------------------------------------------------------------------------------------------------

    def documents(self) -> list[Document]:
        """What the windows gave, as far as epochs cover it, in the order of coming."""
        return [d for out in self._covered if out.port == OUT for d in documents_of(out.batch)]

    def dead_letters(self) -> list[Document]:
        """Dead letters, as far as epochs cover them."""
        return [d for out in self._covered if out.port == DLQ for d in documents_of(out.batch)]

    def step_counters(self) -> dict[str, int]:
        """What the step counted since the last restart."""
        return dict(self._step.counters())

    # --- inside ---------------------------------------------------------------------------------------------------------

    def _advance(self, task: Task) -> None:
        task.channel.extend(task.chain.on_watermark(task.front.output_watermark()))
        task.channel.append(task.chain.output_watermark())

    def _watermark(self, task: Task, watermark_ms: int) -> None:
        assert watermark_ms >= task.received_ms, "W1: a task's watermark went back"
        before = self._input()
        task.received_ms = watermark_ms
        if self._input() > before:
            self._fresh += self._step.on_watermark(self._input())

    def _input(self) -> int:
        return min(task.received_ms for task in self.tasks)


def _below(parts: dict[StatePart, bytes], prefix: str) -> dict[StatePart, bytes]:
    return {StatePart(p.removeprefix(prefix)): d for p, d in parts.items() if p.startswith(prefix)}
