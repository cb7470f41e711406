"""The physical plan: vertices, run as tasks by services, and the edges between them.

Made by `tidemark.shared.planning` from a document, deterministically: a worker makes the coordinator's plan again.
The work of a vertex is a tuple of operator specs, frozen data from the language; `tidemark.shared.planning.tasks` builds the
operators of one task from them.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from tidemark.shared.model.ids import EdgeId, VertexId

Service = Literal["source", "operator", "spark", "sink"]
Partitioning = Literal["key", "spread", "single", "copy"]
"""How a sender picks the partition: by key group; round robin by batch; always partition 0; every partition gets
all rows, and each receiver keeps those of its own key groups (behind a Spark stage, whose driver splits nothing)."""
Port = str
"""A vertex's output: `out`, or `dlq` for dead letters."""
OUT: Port = "out"
DLQ: Port = "dlq"


@dataclass(frozen=True, slots=True)
class Edge:
    """Frames from every task of `sender` to every task of `receiver`."""

    id: EdgeId
    sender: VertexId
    receiver: VertexId
    port: Port = OUT
    partitioning: Partitioning = "spread"
    by_reference: bool = False
    tag: str = ""
    """The receiver's name for this input: `left`, `right`; empty where it does not tell inputs apart."""


@dataclass(frozen=True, slots=True)
class Vertex:
    """A node: `head` is the part that only this service does (read, step, release), `chain` are fused pure operators.

    head: a spec of `tidemark.shared.planning.specs` (source, step or sink) or None. chain: operator specs, applied in order.
    """

    id: VertexId
    service: Service
    head: Any
    chain: tuple[Any, ...] = ()
    max_tasks: int | None = None
    """1 where one task has to see all rows."""
    label: str = ""
    """For people: the document's stages in it."""


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """Vertices in topological order, and edges."""

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]

    def vertex(self, vertex: VertexId) -> Vertex:
        """The vertex of this id; KeyError if there is none."""
        for v in self.vertices:
            if v.id == vertex:
                return v
        raise KeyError(vertex)

    def inputs_of(self, vertex: VertexId) -> tuple[Edge, ...]:
        """Edges into a vertex, in plan order."""
        return tuple(e for e in self.edges if e.receiver == vertex)

    def outputs_of(self, vertex: VertexId) -> tuple[Edge, ...]:
        """Edges out of a vertex, in plan order."""
        return tuple(e for e in self.edges if e.sender == vertex)

    def upstream(self, ends: Collection[VertexId]) -> set[VertexId]:
        """These, and all from which their rows come."""
        found: set[VertexId] = set()
        left = list(ends)
        while left:
            vertex = left.pop()
            if vertex not in found:
                found.add(vertex)
                left += [edge.sender for edge in self.inputs_of(vertex)]
        return found
