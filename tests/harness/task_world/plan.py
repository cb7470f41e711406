"""The pipeline that the explorer runs: sources → operators → a step → sinks, and from the sources to the step too."""

from dataclasses import dataclass

from tidemark.shared.model.frames import Frame
from tidemark.shared.model.ids import EdgeId, Incarnation, Offset, TaskId, VertexId, owner_of
from tidemark.shared.model.messages import EdgeBinding

SOURCE, OPERATOR, STEP, SINK = (VertexId(v) for v in ("source", "operator", "step", "sink"))
VERTICES = (SOURCE, OPERATOR, STEP, SINK)
EDGES = tuple(
    (EdgeId(f"{a}>{b}"), a, b) for a, b in ((SOURCE, OPERATOR), (SOURCE, STEP), (OPERATOR, STEP), (STEP, SINK))
)
"""The step has two inputs: it aligns over both."""
GROUPS = 8
OFFSET_STEP = 2
"""Offsets have holes, as where a real log has markers."""


@dataclass(frozen=True, slots=True)
class Row:
    """What travels. `number` is the source's value, a running sum, a window's count."""

    kind: str
    split: int
    key: int
    number: int
    ts: int
    on_time: bool

    def group(self) -> int:
        """Its key group."""
        return (self.split * 3 + self.key) % GROUPS


def owner(group: int, tasks: int) -> int:
    """The partition for a key group."""
    return owner_of(group, tasks, GROUPS)


@dataclass(frozen=True, slots=True)
class Layout:
    """Task counts, and the incarnations of the edges that follow from them (R4)."""

    tasks: dict[VertexId, int]
    incarnations: dict[EdgeId, Incarnation]

    @staticmethod
    def first(tasks: dict[VertexId, int]) -> "Layout":
        """Of a new processor."""
        return Layout(tasks, {edge: Incarnation(f"{edge}#0") for edge, _, _ in EDGES})

    def rescaled(self, tasks: dict[VertexId, int], generation: int) -> "Layout":
        """Edges whose senders or receivers change get a new incarnation."""
        incarnations = {
            edge: self.incarnations[edge]
            if all(tasks[v] == self.tasks[v] for v in (a, b))
            else Incarnation(f"{edge}#{generation}")
            for edge, a, b in EDGES
        }
        return Layout(tasks, incarnations)

    def binding(self, edge: EdgeId) -> EdgeBinding:
        """The edge as it runs."""
        a, b = next((a, b) for e, a, b in EDGES if e == edge)
        incarnation = self.incarnations[edge]
        return EdgeBinding(edge, incarnation, incarnation, self.tasks[a], self.tasks[b])

    def inputs(self, vertex: VertexId) -> list[tuple[EdgeBinding, VertexId]]:
        """In edges with their senders."""
        return [(self.binding(edge), a) for edge, a, b in EDGES if b == vertex]

    def outputs(self, vertex: VertexId) -> list[EdgeBinding]:
        """Out edges."""
        return [self.binding(edge) for edge, a, _ in EDGES if a == vertex]

    def all_tasks(self) -> list[TaskId]:
        """Every task."""
        return [TaskId(v, i) for v in VERTICES for i in range(self.tasks[v])]


class MemoryLog:
    """Partitions of edges, by incarnation; append only."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[Incarnation, int], list[Frame]] = {}

    def append(self, incarnation: Incarnation, partition: int, frame: Frame) -> Offset:
        """Write a frame; where it lies."""
        frames = self.partitions.setdefault((incarnation, partition), [])
        frames.append(frame)
        return Offset((len(frames) - 1) * OFFSET_STEP)

    def read(self, incarnation: Incarnation, partition: int, offset: Offset) -> tuple[Offset, Frame] | None:
        """The first frame at `offset` or above."""
        index = -(-offset // OFFSET_STEP)
        frames = self.partitions.get((incarnation, partition), [])
        return (Offset(index * OFFSET_STEP), frames[index]) if index < len(frames) else None
