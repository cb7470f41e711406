"""A document computed again over records that are all there: one task a vertex, one thread, no broker, no state.

With `lateness: split` the result is a function of the records of each split alone (language.md, Time), so it must be what the running
system released. Windows are stepped on Arrow, whatever engine ran them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from shared.language.documents import Processor
from shared.model.ids import SplitId, VertexId
from shared.model.plan import OUT, PhysicalPlan
from shared.model.values import Document
from shared.operators.base import Out
from shared.operators.batches import documents_of
from shared.operators.build import build_chain, build_front
from shared.operators.chain import Chain
from shared.operators.context import TaskContext
from shared.operators.source_front import SourceFront
from shared.operators.specs import FrontSpec
from shared.planning import plan_processor
from shared.ports.source import RawBatch

_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class SplitRecords:
    """All records of one split up to where the processor has read, in order; columns of equal length."""

    split: SplitId
    ordinal: int
    positions: Sequence[int]
    timestamps_ms: Sequence[int]
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]


@dataclass(slots=True)
class Recomputed:
    """What must have come out."""

    outputs: dict[VertexId, list[Document]] = field(default_factory=dict)
    """By sink vertex; dead letters under `dlq`."""
    records: int = 0
    duplicates: int = 0


@dataclass(slots=True)
class _World:
    plan: PhysicalPlan
    context: TaskContext
    chains: dict[VertexId, Chain] = field(default_factory=dict)
    front: SourceFront | None = None
    watermarks: dict[str, int] = field(default_factory=dict)
    done: Recomputed = field(default_factory=Recomputed)

    def build(self) -> None:
        for vertex in self.plan.vertices:
            if vertex.service == "sink":
                self.done.outputs[vertex.id] = []
                continue
            if vertex.chain and isinstance(vertex.chain[0], FrontSpec):
                self.front = build_front(vertex.chain[0], self.context)
            self.chains[vertex.id] = build_chain(vertex.chain, self.context)

    def send(self, sender: VertexId, outs: Sequence[Out]) -> None:
        for out in outs:
            for edge in self.plan.outputs_of(sender):
                if edge.port != out.port:
                    continue
                if edge.receiver in self.done.outputs:
                    self.done.outputs[edge.receiver] += documents_of(out.batch)
                else:
                    self.send(edge.receiver, self.chains[edge.receiver].on_batch(out.batch, out.content, edge.tag))

    def read(self, source: VertexId, batch: RawBatch) -> None:
        if self.front is None:
            message = "the plan has no source"
            raise ValueError(message)
        for out in self.front.on_records(batch):
            self.send(source, self.chains[source].on_batch(out.batch, out.content, "") if out.port == OUT else [out])

    def settle(self, source: VertexId) -> None:
        """Partials out, then the watermark through every vertex in the plan's order."""
        if self.front is None:
            return
        for vertex, chain in self.chains.items():
            self.send(vertex, chain.before_barrier())
            inputs = [self.watermarks[e.id] for e in self.plan.inputs_of(vertex) if e.id in self.watermarks]
            reached = self.front.output_watermark() if vertex == source else min(inputs)
            self.send(vertex, chain.on_watermark(reached))
            for edge in self.plan.outputs_of(vertex):
                self.watermarks[edge.id] = chain.output_watermark()


def recompute(
    processor: Processor, splits: Sequence[SplitRecords], name: str, topic: str | None, *, ended: bool
) -> Recomputed:
    """Run the document over these records; `ended`: they are all there will ever be."""
    world = _World(plan_processor(processor, engine="local"), TaskContext(processor=name, topic=topic))
    world.build()
    source = world.plan.vertices[0].id
    front = world.front
    if front is None:
        message = f"{name}: the plan's first vertex is no source"
        raise ValueError(message)
    front.assign({s.split: s.ordinal for s in splits})
    places = dict.fromkeys((s.split for s in splits), 0)
    while _read_some(world, source, splits, places):
        world.settle(source)
    if ended:
        for split in splits:
            front.on_status(split.split, "finished")
    world.settle(source)
    counters: Mapping[str, int] = front.counters()
    world.done.records, world.done.duplicates = counters["records"], counters["duplicates"]
    return world.done


def _read_some(world: _World, source: VertexId, splits: Sequence[SplitRecords], places: dict[SplitId, int]) -> bool:
    found = False
    for split in splits:
        begin = places[split.split]
        end = min(begin + _ROWS, len(split.positions))
        if begin < end:
            found = True
            places[split.split] = end
            world.read(source, _batch(split, begin, end))
    return found


def _batch(split: SplitRecords, begin: int, end: int) -> RawBatch:
    return RawBatch(
        split.split,
        split.ordinal,
        np.array(split.positions[begin:end], dtype=np.int64),
        np.array(split.timestamps_ms[begin:end], dtype=np.int64),
        pa.array(split.values[begin:end], pa.binary()),
        pa.array(split.keys[begin:end], pa.binary()),
    )
