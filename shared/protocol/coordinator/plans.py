"""From a planned pipeline to one that runs: topics and incarnations of edges (R4), and the remains of a change of plan."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from tidemark.shared.model.ids import NO_EPOCH, EdgeId, Incarnation, ProcessorName, VertexId
from tidemark.shared.model.messages import EdgeBinding, RunningPlan
from tidemark.shared.protocol.coordinator.events import PlannedPipeline
from tidemark.shared.protocol.coordinator.record import Identity, PendingPlan

OPERATOR = "operator"
SINK = "sink"
_NOT_IN_TOPICS = re.compile(r"[^A-Za-z0-9._-]+")
_READABLE_MAX = 80
"""Part of a topic's name that people read: Kafka takes 249 characters in all."""


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """A plan with its edges bound, and the topics that it no longer uses."""

    plan: RunningPlan
    left: tuple[str, ...]


def pending_of(planned: PlannedPipeline, parallelism: dict[str, int]) -> PendingPlan:
    """The durable form of a planned pipeline."""
    return PendingPlan(
        document=planned.document,
        tasks={v.id: v.tasks for v in planned.vertices},
        services={v.id: v.service for v in planned.vertices},
        edges=tuple((e.id, e.sender, e.receiver) for e in planned.edges),
        key_groups=planned.key_groups,
        parallelism=parallelism,
        interval_ms=planned.checkpoint_interval_ms,
        names=planned.names,
        code=planned.code,
        code_digest=planned.code_digest,
    )


def fault_of(planned: PlannedPipeline, sinks: frozenset[VertexId]) -> str:
    """Why this plan cannot be run; empty if it can. `sinks`: vertices that have released under this job (S1)."""
    ids = {v.id for v in planned.vertices}
    if not ids or len(ids) != len(planned.vertices):
        return f"the plan has {len(planned.vertices)} vertices with {len(ids)} names; each needs a name of its own"
    for vertex in planned.vertices:
        if vertex.tasks < 1:
            return f"vertex {vertex.id}: expected at least one task, found {vertex.tasks}"
        if vertex.id in sinks and vertex.service != SINK:
            return f"vertex {vertex.id} was a sink and would be run by {vertex.service}; it needs another name"
    for edge in planned.edges:
        if edge.sender not in ids or edge.receiver not in ids:
            return f"edge {edge.id}: {edge.sender} or {edge.receiver} is not a vertex of the plan"
    return ""


def bind(
    pending: PendingPlan,
    version: int,
    name: ProcessorName,
    fresh: Callable[[], str],
    prefix: str,
    before: RunningPlan | None,
) -> BoundPlan:
    """Give every edge an incarnation: the one it has if neither its senders nor its partitions change, else a new one (R4)."""
    old = {b.edge: b for b in before.edges} if before is not None else {}
    edges = []
    for edge, sender, receiver in pending.edges:
        was = old.get(EdgeId(edge))
        senders, receivers = pending.tasks[sender], pending.tasks[receiver]
        if was is None or (was.senders, was.receivers) != (senders, receivers):
            incarnation = Incarnation(fresh())
            topic = topic_name(prefix, name, edge, incarnation)
            was = EdgeBinding(EdgeId(edge), incarnation, topic, senders, receivers)
        edges.append(was)
    plan = RunningPlan(
        version,
        pending.document,
        pending.tasks,
        tuple(edges),
        pending.key_groups,
        pending.services,
        pending.names,
        code=pending.code,
        code_digest=pending.code_digest,
    )
    used = {b.topic for b in edges}
    left = tuple(b.topic for b in old.values() if b.topic not in used)
    return BoundPlan(plan, left)


def rebound(plan: RunningPlan, name: ProcessorName, fresh: Callable[[], str], prefix: str) -> BoundPlan:
    """The same plan with every edge new: for a start without state (E2)."""
    edges = []
    for b in plan.edges:
        incarnation = Incarnation(fresh())
        topic = topic_name(prefix, name, b.edge, incarnation)
        edges.append(EdgeBinding(b.edge, incarnation, topic, b.senders, b.receivers))
    return BoundPlan(structs.replace(plan, edges=tuple(edges), since=NO_EPOCH), tuple(b.topic for b in plan.edges))


def topic_name(prefix: str, name: str, edge: str, incarnation: Incarnation) -> str:
    """A legal topic name that people can read; the incarnation alone makes it unique."""
    readable = _NOT_IN_TOPICS.sub("-", f"{name}.{edge}")[:_READABLE_MAX]
    return f"{prefix}.{readable}.{incarnation}"


def sinks_of(plan: RunningPlan) -> tuple[VertexId, ...]:
    """The vertices that release."""
    return tuple(v for v in plan.tasks if plan.services.get(v) == SINK)


def own_identities(plan: RunningPlan) -> frozenset[Identity]:
    """The release identities of a plan's own sink tasks."""
    return frozenset((v, i) for v in sinks_of(plan) for i in range(plan.tasks[v]))
