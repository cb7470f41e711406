"""Names of vertices over changes of a document (E3).

State, markers and edges belong to vertices by name. Computations and sinks may come and go while the rest goes on, so those that stay
keep their names wherever they now stand, and new ones get names that nothing had before.
"""

from collections.abc import Iterator
from typing import Any

from tidemark.shared.language.documents.changes import meaning
from tidemark.shared.language.stages import Compute, Sink
from tidemark.shared.model.ids import VertexId
from tidemark.shared.model.plan import PhysicalPlan
from tidemark.shared.operators.specs import ComputeSpec
from tidemark.shared.planning.physical import DLQ_PATH
from tidemark.shared.planning.specs import DeadLetterHead, WriteHead

Named = tuple[str, VertexId, Compute | Sink | DeadLetterHead]
"""Path in the document, vertex, and its stage."""


def names_of(plan: PhysicalPlan) -> dict[str, VertexId]:
    """The names of computations' and sinks' vertices, by path."""
    return {path: vertex for path, vertex, _ in _named(plan)}


def keep_names(old: PhysicalPlan, new: PhysicalPlan, used: frozenset[VertexId]) -> dict[str, VertexId]:
    """Names for `new`, by path: those of `old` for stages that stay, unused ones for the rest. `used`: earlier names still in use.

    A computation stays if its class and key do; a sink if its target does, the one of the very same options first.
    """
    before, after = list(_named(old)), list(_named(new))
    found: dict[str, VertexId] = {}
    for alike in (meaning, _essence):
        for path, _, what in after:
            if path in found:
                continue
            for known in before:
                if known[1] not in found.values() and alike(known[2]) == alike(what):
                    found[path] = known[1]
                    break
    taken = {*used, *(v.id for v in old.vertices), *found.values()}
    for path, vertex, _ in after:
        if path not in found:
            found[path] = _unused(vertex, taken)
            taken.add(found[path])
    return found


def _named(plan: PhysicalPlan) -> Iterator[Named]:
    for vertex in plan.vertices:
        if isinstance(vertex.head, WriteHead):
            yield vertex.head.stage.path, vertex.id, vertex.head.stage
        elif isinstance(vertex.head, DeadLetterHead):
            yield DLQ_PATH, vertex.id, vertex.head
        for spec in vertex.chain:
            if isinstance(spec, ComputeSpec):
                yield spec.stage.path, vertex.id, spec.stage


def _essence(what: Compute | Sink | DeadLetterHead) -> Any:
    """The properties by which a stage is the same one in another plan."""
    if isinstance(what, DeadLetterHead):
        return ("dlq", meaning(what.queue))
    return meaning(what.identity() if isinstance(what, Compute) else what.target())


def _unused(name: VertexId, taken: set[VertexId]) -> VertexId:
    """`emit-3`, the first number of its kind that nothing has had."""
    kind, dash, number = name.rpartition("-")
    base = kind if dash and number.isdigit() else name
    counted = 1
    candidate = name
    while candidate in taken:
        counted += 1
        candidate = VertexId(f"{base}-{counted}")
    return candidate
