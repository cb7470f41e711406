"""The departures' document, planned, and its real operators run in one thread: counts, late flights and alerts are the oracle's.

No broker and no protocol: rows go from task to task by function call, so that nothing but the operators is at trial. What the protocol
leaves open is drawn from a seed: how far each split is read, how often partial aggregates are given out, when watermarks travel, when
everything is restored from a snapshot.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.harness.fronted import Fronted
from tests.oracle import departures as oracle
from tests.oracle.check_demo import feed_of, settled_feed
from tidemark.shared.language.documents.parse import parse
from tidemark.shared.model.ids import Offset, SplitId, StatePart, owner_of
from tidemark.shared.model.plan import OUT, PhysicalPlan, Vertex
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import GROUP, Out
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.build import OperatorChain, build_chain
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.planning.physical import plan_processor
from tidemark.shared.planning.specs import ReadHead

DOCUMENT = Path(__file__).parents[2] / "deploy" / "pipelines" / "departures" / "pipeline.yaml"
GROUPS = 16
CONTEXT = TaskContext("departures", "test", "departures")


class Task:
    """One task of a vertex, with the watermark of each of its senders."""

    def __init__(self, vertex: Vertex, index: int, senders: int, splits: dict[SplitId, int]) -> None:
        self.vertex, self.index, self.splits = vertex, index, splits
        self.inputs = [MIN_TIME] * max(senders, 1)
        self.stored: dict[StatePart, bytes] = {}
        self.front: Fronted | None = None
        self.chain = OperatorChain(())
        self.start()

    def start(self) -> None:
        """From what is stored; a new task from nothing."""
        front_parts = {p: d for p, d in self.stored.items() if p.startswith("split:")}
        self.chain = build_chain(self.vertex.chain, CONTEXT)
        self.chain.restore({p: d for p, d in self.stored.items() if p not in front_parts})
        if isinstance(self.vertex.head, ReadHead):
            sent = MIN_TIME if self.front is None else self.front.output_watermark()
            self.front = Fronted(self.vertex.chain[0], CONTEXT)
            self.front.restore(front_parts, sent)
            self.front.assign(self.splits)

    def store(self) -> None:
        changes: dict[StatePart, bytes | None] = dict(self.chain.snapshot())
        if self.front is not None:
            changes.update(self.front.snapshot())
        for part, data in changes.items():
            if data is None:
                self.stored.pop(part, None)
            else:
                self.stored[part] = data


class World:
    """All tasks of a plan; what reaches a sink is kept as documents."""

    def __init__(self, plan: PhysicalPlan, tasks: int, splits: Sequence[SplitId]) -> None:
        self.plan = plan
        self.tasks: dict[str, list[Task]] = {}
        self.written: dict[str, list[dict[str, Any]]] = {}
        for vertex in plan.vertices:
            if vertex.service == "sink":
                self.written[vertex.id] = []
                continue
            count = min(tasks, vertex.max_tasks or tasks)
            senders = sum(len(self.tasks[e.sender]) for e in plan.inputs_of(vertex.id))
            self.tasks[vertex.id] = [
                Task(vertex, i, senders, {s: n for n, s in enumerate(splits) if n % count == i}) for i in range(count)
            ]
        self.sources = self.tasks[plan.vertices[0].id]

    def read(self, task: Task, records: RawBatch) -> None:
        assert task.front is not None
        for out in task.front.on_records(records):
            self._send(task, task.chain.on_batch(out.batch, out.content, "") if out.port == OUT else [out])

    def give_out(self) -> None:
        for tasks in self.tasks.values():
            for task in tasks:
                self._send(task, task.chain.before_barrier())

    def watermarks(self) -> None:
        for tasks in self.tasks.values():
            for task in tasks:
                now = min(task.inputs) if task.front is None else task.front.output_watermark()
                self._send(task, task.chain.on_watermark(now))
                self._tell(task, task.chain.output_watermark() if task.chain.operators else now)

    def restart(self) -> None:
        self.give_out()
        for tasks in self.tasks.values():
            for task in tasks:
                task.store()
                task.start()
                now = min(task.inputs) if task.front is None else task.front.output_watermark()
                assert not list(task.chain.on_watermark(now))

    def _tell(self, sender: Task, watermark_ms: int) -> None:
        for edge in self.plan.outputs_of(sender.vertex.id):
            if edge.receiver in self.written:
                continue
            first = 0
            for other in self.plan.inputs_of(edge.receiver):
                if other == edge:
                    break
                first += len(self.tasks[other.sender])
            for receiver in self.tasks[edge.receiver]:
                place = first + sender.index
                receiver.inputs[place] = max(receiver.inputs[place], watermark_ms)

    def _send(self, sender: Task, outs: Sequence[Out]) -> None:
        for out in outs:
            for edge in self.plan.outputs_of(sender.vertex.id):
                if edge.port != out.port:
                    continue
                if edge.receiver in self.written:
                    self.written[edge.receiver] += documents_of(out.batch)
                    continue
                receivers = self.tasks[edge.receiver]
                for receiver, batch in self._routed(out.batch, receivers, edge.partitioning):
                    self._send(receiver, receiver.chain.on_batch(batch, out.content, edge.tag))

    @staticmethod
    def _routed(batch: pa.RecordBatch, receivers: list[Task], how: str) -> Iterator[tuple[Task, pa.RecordBatch]]:
        if how != "key":
            yield receivers[0], batch
            return
        owners = [owner_of(g, len(receivers), GROUPS) for g in batch.column(GROUP).to_pylist()]
        for receiver in receivers:
            rows = [i for i, owner in enumerate(owners) if owner == receiver.index]
            if rows:
                yield receiver, batch.take(pa.array(rows))


def run(partitions: list[list[bytes]], tasks: int, seed: int, most: int, restart_every: int) -> World:
    plan = plan_processor(parse(DOCUMENT.read_text()), GROUPS, engine="local")
    splits = [SplitId(f"departures-{p}") for p in range(len(partitions))]
    world = World(plan, tasks, splits)
    rng = random.Random(seed)
    places = [0] * len(partitions)
    left = [len(p) for p in partitions]
    step = 0
    while any(left):
        p = rng.choices(range(len(left)), weights=left)[0]
        n = min(left[p], rng.randint(1, most))
        values = partitions[p][places[p] : places[p] + n]
        positions = np.arange(places[p], places[p] + n, dtype=np.int64)
        records = RawBatch(splits[p], p, positions, np.zeros(n, dtype=np.int64), pa.array(values, pa.binary()))
        world.read(world.sources[p % len(world.sources)], records)
        places[p], left[p], step = Offset(places[p] + n), left[p] - n, step + 1
        if rng.random() < 0.4:
            world.give_out()
        if rng.random() < 0.5:
            world.watermarks()
        if restart_every and step % restart_every == 0:
            world.restart()
    for p, split in enumerate(splits):
        front = world.sources[p % len(world.sources)].front
        assert front is not None
        front.on_status(split, "finished")
    world.give_out()
    world.watermarks()
    for tasks_ in world.tasks.values():
        assert all(t.chain.output_watermark() == MAX_TIME for t in tasks_)
    return world


@pytest.fixture(scope="module")
def winter() -> tuple[list[list[bytes]], oracle.Settled]:
    return [[v for _, v in p] for p in feed_of(days=60).partitions], settled_feed(days=60)


COURSES = {
    "one task, all at once": (1, 1, 10**6, 0),
    "one task, small steps": (1, 2, 300, 0),
    "two tasks, restarts": (2, 3, 2000, 7),
    "three tasks, restarts": (3, 4, 500, 20),
}


@pytest.mark.parametrize("name", COURSES)
def test_the_operators_give_what_the_oracle_says(name: str, winter: tuple[list[list[bytes]], oracle.Settled]) -> None:
    """Counts, late flights and alerts are a function of the partitions, whatever tasks, steps, epochs and restarts do."""
    partitions, settled = winter
    world = run(partitions, *COURSES[name])
    counts_vertex, alerts_vertex, letters_vertex = world.written
    counts = {(d["origin"], int(d["hour"])): d["departures"] for d in world.written[counts_vertex]}
    assert len(counts) == len(world.written[counts_vertex])
    assert counts == settled.counts
    letters = world.written[letters_vertex]
    assert sorted(d["doc"]["id"] for d in letters) == sorted(f.id for f in settled.late)
    assert {d["errInfo"]["reason"] for d in letters} == {"Input document arrived late."}
    alerts = sorted(world.written[alerts_vertex], key=lambda a: (a["hour"], a["origin"]))
    assert alerts == oracle.alerts(settled.counts)


@pytest.mark.slow
def test_a_year_through_the_operators() -> None:
    """The whole year with two tasks, in the steps of a second's feed, with restarts: the oracle's counts, late flights and alerts."""
    settled = settled_feed()
    world = run([[v for _, v in p] for p in feed_of().partitions], 2, 5, 3000, 40)
    counts, alerts, letters = world.written.values()
    assert {(d["origin"], int(d["hour"])): d["departures"] for d in counts} == settled.counts
    assert sorted(d["doc"]["id"] for d in letters) == sorted(f.id for f in settled.late)
    assert sorted(alerts, key=lambda a: (a["hour"], a["origin"])) == oracle.alerts(settled.counts)
