"""What the coordinator asks of planning: vertices, edges, task counts; refused in the user's words."""

from collections.abc import Mapping

from shared.language.documents import InvalidDocument, parse
from shared.model.messages import RunningPlan
from shared.model.plan import PhysicalPlan, Vertex
from shared.planning import Engine, PlanError, plan_processor
from shared.protocol.coordinator.events import PlannedEdge, PlannedPipeline, PlannedVertex
from shared.runtime.coordinator import PlanRefusal

TASKS_MAX = 128
"""As many as key groups: more could own none."""


def plan_for_coordinator(
    engine: Engine,
    document: str,
    parallelism: Mapping[str, int],
    previous: RunningPlan | None,
    *,
    collects: bool = False,
) -> PlannedPipeline:
    """Plan a document. Raises PlanRefusal."""
    del previous
    try:
        processor = parse(document)
        plan = plan_processor(processor, engine=engine, collects=collects)
    except (InvalidDocument, PlanError) as error:
        raise PlanRefusal(str(error)) from error
    _check(plan, parallelism)
    return PlannedPipeline(
        document=document,
        vertices=tuple(PlannedVertex(v.id, v.service, tasks_of(v, parallelism)) for v in plan.vertices),
        edges=tuple(PlannedEdge(e.id, e.sender, e.receiver) for e in plan.edges),
        checkpoint_interval_ms=processor.options.checkpoint_interval_ms,
    )


def tasks_of(vertex: Vertex, parallelism: Mapping[str, int]) -> int:
    """Task count of a vertex: by its own name, else by its service, else 1; at most what it allows."""
    wanted = parallelism.get(vertex.id, parallelism.get(vertex.service, 1))
    return min(wanted, vertex.max_tasks or wanted)


def _check(plan: PhysicalPlan, parallelism: Mapping[str, int]) -> None:
    names = {v.id for v in plan.vertices} | {v.service for v in plan.vertices}
    for name, tasks in parallelism.items():
        if name not in names and name not in ("source", "operator", "spark", "sink"):
            message = f"parallelism.{name}: no such vertex or service; expected one of {', '.join(sorted(names))}"
            raise PlanRefusal(message)
        if not 1 <= tasks <= TASKS_MAX:
            message = f"parallelism.{name}: expected 1 to {TASKS_MAX} tasks, found {tasks}"
            raise PlanRefusal(message)
