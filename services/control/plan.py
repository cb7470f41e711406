"""The plan of a processor with the figures of its vertices, as REST, the console and its live events show it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final

from tidemark.services.control.history import History
from tidemark.services.control.stats import is_queue, late, operator_stats
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.model.ids import VertexId
from tidemark.shared.model.messages import QUOTA_MS, ProcessorStatus
from tidemark.shared.model.plan import OUT, PhysicalPlan, Vertex
from tidemark.shared.planning import Engine, PlanError, plan_processor
from tidemark.shared.planning.describe import INTERPRETED, StageText, edge_text, logical, operators
from tidemark.shared.ports.clock import Executor
from tidemark.shared.runtime.watermark import Tasks

_PLANS_MAX: Final = 100
"""Plans that are remembered: to make one takes milliseconds, of a large document seconds (on a thread)."""


@dataclass(slots=True)
class Plans:
    """Plans by document and the vertices that run. A document may name connections of the registry: a plan does not need them."""

    engine: Engine
    executor: Executor
    _known: dict[tuple[str, frozenset[VertexId]], dict[str, Any]] = field(default_factory=dict)

    async def shown(self, status: ProcessorStatus, tasks: Tasks, history: History) -> dict[str, Any]:
        """Vertices in the order of the data, with their figures, and edges."""
        job = history.of(status.job)
        figures = {each["name"]: each for each in operator_stats(status, tasks)}
        described = await self._described(status)
        vertices = []
        for vertex in described["vertices"]:
            name = vertex["name"]
            beats = [beat for task, beat in tasks.items() if task.vertex == name]
            rates = job.rates(VertexId(name))
            count = max(1, len(beats))
            vertices.append(
                {
                    **vertex,
                    **figures.get(name, {"name": name, "service": vertex["service"], "tasks": 0}),
                    "inputPerSecond": _rounded(rates.get("inRows")),
                    "outputPerSecond": _rounded(rates.get("outRows")),
                    "busyFraction": _rounded(rates.get("busyMs"), 1000 * count, 3),
                    "heldBackFraction": _rounded(rates.get("heldMs"), 1000 * count, 3),
                    "heldByQuotaFraction": _rounded(rates.get(QUOTA_MS), 1000 * count, 3),
                    "inputBytesPerSecond": _rounded(rates.get("inBytes")),
                    "lagMillis": max((beat.counters.get("lagMs", 0) for beat in beats), default=0),
                    "lateMessageCount": late(beats),
                    "isDeadLetterQueue": is_queue(VertexId(name)),
                    "waits": [str(wait) for beat in beats for wait in beat.waiting],
                }
            )
        return {"vertices": vertices, "edges": described["edges"], "interpreted": described["interpreted"]}

    async def _described(self, status: ProcessorStatus) -> dict[str, Any]:
        key = status.document, frozenset(status.services)
        found = self._known.get(key)
        if found is None:
            found = await self.executor.blocking(self._describe, status)
            while len(self._known) >= _PLANS_MAX:
                self._known.pop(next(iter(self._known)))
            self._known[key] = found
        return found

    def _describe(self, status: ProcessorStatus) -> dict[str, Any]:
        try:
            processor = parse(status.document)
            plan = plan_processor(processor, engine=self.engine)
        except (InvalidDocument, PlanError):  # Of another release: what runs is known all the same.
            bare = [
                {"name": v, "service": s, "label": "", "operators": [], "interpreted": []}
                for v, s in status.services.items()
            ]
            return {"vertices": bare, "edges": [], "interpreted": []}
        texts = list(_flat(logical(processor)))
        interpreted = {t.path: [what for what, how in t.expressions if how == INTERPRETED] for t in texts}
        names = _running_names(plan, status)
        return {
            "vertices": [
                {
                    "name": names[vertex.id],
                    "service": vertex.service,
                    "label": vertex.label,
                    "operators": list(operators(vertex)),
                    "interpreted": [
                        f"{path}: {what}" for path in sorted(_paths(vertex)) for what in interpreted.get(path, ())
                    ],
                }
                for vertex in plan.vertices
            ],
            "edges": [
                {
                    "id": f"{names[edge.sender]}{'' if edge.port == OUT else f':{edge.port}'}>{names[edge.receiver]}",
                    "from": names[edge.sender],
                    "to": names[edge.receiver],
                    "partitioning": edge.partitioning,
                    "text": edge_text(edge),
                }
                for edge in plan.edges
            ],
            "interpreted": [f"{path}: {what}" for path, found in interpreted.items() for what in found],
        }


def _rounded(value: float | None, unit: float = 1, digits: int = 1) -> float | None:
    return None if value is None else round(value / unit, digits)


def _flat(texts: tuple[StageText, ...]) -> Iterator[StageText]:
    for text in texts:
        yield text
        yield from _flat(text.inner)


def _running_names(plan: PhysicalPlan, status: ProcessorStatus) -> dict[VertexId, str]:
    """Names that a vertex kept when its document changed (E3): those that are no plan's are given out by service, in order."""
    planned = {vertex.id for vertex in plan.vertices}
    left = [(v, s) for v, s in sorted(status.services.items()) if v not in planned]
    names: dict[VertexId, str] = {}
    for vertex in plan.vertices:
        kept = next((pair for pair in left if pair[1] == vertex.service), None)
        if vertex.id in status.services or kept is None:
            names[vertex.id] = vertex.id
        else:
            names[vertex.id] = kept[0]
            left.remove(kept)
    return names


def _paths(part: object) -> set[str]:
    """Places of the document's stages that a vertex runs."""
    if isinstance(part, tuple):
        return {path for each in part for path in _paths(each)}
    if not is_dataclass(part) or isinstance(part, type):
        return set()
    own = getattr(part, "path", None)
    below = {path for each in fields(part) for path in _paths(getattr(part, each.name))}
    return below | {own} if isinstance(own, str) and not isinstance(part, Vertex) else below
