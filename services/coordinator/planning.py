"""Planning for the coordinator: vertices, edges, task counts; a refusal uses the user's words."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from tidemark.shared.computation.bundle import Bundle
from tidemark.shared.computation.entries import class_of
from tidemark.shared.computation.problems import ClassError, ComputationError
from tidemark.shared.language.documents import InvalidDocument, Processor, all_stages, parse, refusals
from tidemark.shared.language.documents.changes import REMEDY, meaning
from tidemark.shared.language.documents.connections import REFERENCE
from tidemark.shared.language.documents.load import load
from tidemark.shared.language.documents.model import plugin_uses
from tidemark.shared.language.problems import DocumentError
from tidemark.shared.language.stages import Compute
from tidemark.shared.model.ids import VertexId
from tidemark.shared.model.messages import KEY_GROUPS, RunningPlan
from tidemark.shared.model.plan import PhysicalPlan, Vertex
from tidemark.shared.operators.specs import ComputeSpec, StepSpec
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.planning import Engine, PlanError, StepHead, plan_processor
from tidemark.shared.planning.names import keep_names, names_of
from tidemark.shared.process.allowed import ANYBODY, Allowed, NotAllowed, closed_values
from tidemark.shared.protocol.coordinator.events import PlannedEdge, PlannedPipeline, PlannedVertex
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.coordinator import PlanRefusal
from tidemark.shared.runtime.topics import check_topics


def plan_for_coordinator(  # noqa: PLR0913 - a document, what there was, and what an installation sets
    engine: Engine,
    document: str,
    parallelism: Mapping[str, int],
    previous: RunningPlan | None,
    connections: Mapping[str, str],
    *,
    collects: bool = False,
    tasks_max: int = KEY_GROUPS,
    document_bytes_max: int = CoordinatorSettings().document_bytes_max,
    code_of: Callable[[Sequence[str]], Bundle] = lambda _: Bundle(),
    prefix: str = "tidemark",
    allowed: Allowed = ANYBODY,
) -> PlannedPipeline:
    """Plan a document, the registry's connections (JSON by name) that its stages name put in. Raises PlanRefusal.

    With `previous` its state is kept: vertices that stay keep their names (E3).
    `code_of`: the code of computations' classes, as it is now (R5). `prefix`: of the installation's own topics. `allowed`: what documents
    may reach.
    """
    try:
        own = document
        document = document if collects else with_connections(document, connections)
        _check_size(document, document_bytes_max)
        processor = parse(document, known_connections=None if collects else {})
        check_topics(processor, prefix)
        if not collects:
            check_reach(processor, own_connections(own), allowed)
        plan = plan_processor(processor, engine=engine, collects=collects)
        if previous is not None:
            plan = _continued(previous, processor, plan, engine, collects=collects)
        code = code_of(classes_of(plan))
    except (InvalidDocument, PlanError, ComputationError) as error:
        raise PlanRefusal(str(error)) from error
    _check_size(document, document_bytes_max, len(code.packed))
    _check(plan, parallelism, tasks_max)
    return PlannedPipeline(
        document=document,
        vertices=tuple(PlannedVertex(v.id, v.service, tasks_of(v, parallelism)) for v in plan.vertices),
        edges=tuple(PlannedEdge(e.id, e.sender, e.receiver) for e in plan.edges),
        checkpoint_interval_ms=processor.options.checkpoint_interval_ms,
        names=_names(previous, plan),
        code=code.packed,
        code_digest=code.digest,
    )


def classes_of(plan: PhysicalPlan) -> list[str]:
    """The classes of its computations, `module:Class`. ClassError."""
    chains = (spec for vertex in plan.vertices for spec in vertex.chain)
    return sorted({class_of(spec.stage.class_) for spec in chains if isinstance(spec, ComputeSpec)})


def _check_size(document: str, bytes_max: int, code_bytes: int = 0) -> None:
    size = len(document.encode()) + code_bytes
    if size > bytes_max:
        message = (
            f"the document, with the connections that it names and {code_bytes} bytes of its computations' code, has {size} bytes; at most"
            f" {bytes_max} fit into an assignment, by message_bytes_max: put data into files or topics, install code as a"
            " package, or raise it and the brokers' bound"
        )
        raise PlanRefusal(message)


def _names(previous: RunningPlan | None, plan: PhysicalPlan) -> dict[str, VertexId]:
    """The plan's, and below `gone/` those that parts had that are no longer there: no other part may have them (S1)."""
    now = names_of(plan)
    before = previous.names.values() if previous is not None else ()
    return {**{f"gone/{name}": name for name in before if name not in now.values()}, **now}


def with_connections(document: str, registry: Mapping[str, str]) -> str:
    """The document with those connections of the registry that it names and does not bring itself: so a worker needs no registry.

    The registry's names are offered where a name is unknown.
    """
    tree, _ = load(document)
    if not isinstance(tree, dict) or not registry:
        return document
    own = tree.get("connections") or {}
    missing = {name for name in _named(tree) if name in registry and name not in own}
    if not missing:
        return document
    found = {name: msgspec.json.decode(registry[name]) for name in sorted(missing)}
    return msgspec.json.encode({**tree, "connections": {**own, **found}}).decode()


def own_connections(document: str) -> frozenset[str]:
    """The names of the connections that a document brings itself."""
    tree, _ = load(document)
    own = tree.get("connections") if isinstance(tree, dict) else None
    return frozenset(map(str, own)) if isinstance(own, dict) else frozenset()


def check_reach(processor: Processor, own: Collection[str], allowed: Allowed) -> None:
    """InvalidDocument for errors that show before any value is put in: secrets that a document names itself, places, classes."""
    found = []
    for name, connection in processor.connections.items():
        for value in closed_values(connection.settings, allowed.variables):
            if name in own:
                reason = (
                    f"${{{value}}} is not open to documents: a secret stands in a connection of the registry, which a document names;"
                    " a variable of the environment is opened by `tidemark up --variable`, or `variables` of TIDEMARK_ALLOW"
                )
                found.append(DocumentError(f"connections.{name}", reason))
        if not REFERENCE.search(msgspec.json.encode(connection.settings, enc_hook=str).decode()):
            found += _refused(f"connections.{name}", allowed.check_connection, connection)
    for stage in all_stages(processor.pipeline):
        if isinstance(stage, Compute):
            found += _refused(stage.path, lambda path: allowed.check_class(class_of(path)), stage.class_)
    for use in plugin_uses(processor.pipeline):
        found += _refused(use.path, partial(allowed.check_plugin, use.plugin, use.config), use.path)
    if found:
        raise InvalidDocument(found)


def _refused(place: str, check: Callable[[Any], None], what: object) -> list[DocumentError]:
    try:
        check(what)
    except (NotAllowed, ClassError) as error:
        return [DocumentError(place, str(error).removeprefix(f"{place}: "))]
    return []


def _named(tree: object) -> Iterator[str]:
    """Every `connectionName` in a tree."""
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            name = item.get("connectionName")
            if isinstance(name, str):
                yield name
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _continued(
    previous: RunningPlan, processor: Processor, plan: PhysicalPlan, engine: Engine, *, collects: bool
) -> PhysicalPlan:
    """The plan with the names that its parts had. PlanRefusal where the change would take the state's meaning away."""
    before = parse(previous.document)
    if refused := refusals(before, processor):
        raise PlanRefusal("\n".join(map(str, refused)))
    old = plan_processor(before, engine=engine, collects=collects, names=previous.names, running=previous.tasks)
    used = frozenset(previous.names.values())
    names = keep_names(old, plan, used)
    new = plan_processor(processor, engine=engine, collects=collects, names=names, running=previous.tasks)
    _check_open_windows(old, new)
    return new


def _check_open_windows(old: PhysicalPlan, new: PhysicalPlan) -> None:
    """The state of open windows has columns: of declared fields, of accumulators' states, of rows. Another plan may expect others."""
    before = dict(_windows(old))
    for name, window in _windows(new):
        if name in before and (why := _unread(before[name], window)):
            raise PlanRefusal(f"{window.spec.stage.path}: {why}{REMEDY}")


def _unread(before: WindowPlan, after: WindowPlan) -> str:
    """Why a plan cannot go on with another's open windows; "" where it can."""
    if before.mode != after.mode or (before.mode != "rows" and before.partial_schema != after.partial_schema):
        return (
            "its open windows hold their records in another form than the new document would read: outputTime has changed, or a stage"
            " before the window computes a field that was declared (or no longer does)"
        )
    if before.mode != "rows":
        return ""
    held, asked = before.looked_at, after.looked_at
    if held is not None and (asked is None or asked - held):
        more = "whole documents" if asked is None else f"the fields {', '.join(sorted(asked - held))}"
        known = ", ".join(sorted(held)) or "no fields"
        return f"of the records in its open windows there is {known}, which its stages looked at; the new ones expect {more}"
    most, wanted = before.first_rows, after.first_rows
    if most is not None and (wanted is None or wanted > most or meaning(before.sorts) != meaning(after.sorts)):
        return f"of its open windows there are the first {most} records, in the order of its $sort; the new stages expect others"
    return ""


def _windows(plan: PhysicalPlan) -> Iterator[tuple[VertexId, WindowPlan]]:
    for vertex in plan.vertices:
        steps = [spec for spec in vertex.chain if isinstance(spec, StepSpec)]
        if isinstance(vertex.head, StepHead):
            steps.append(vertex.head.step)
        yield from ((vertex.id, WindowPlan(step.window)) for step in steps)


def tasks_of(vertex: Vertex, parallelism: Mapping[str, int]) -> int:
    """Task count of a vertex: by its own name, else by its service, else 1; at most what it allows."""
    wanted = parallelism.get(vertex.id, parallelism.get(vertex.service, 1))
    return min(wanted, vertex.max_tasks or wanted)


def task_names(plan: PhysicalPlan) -> frozenset[str]:
    """What numbers of tasks may be of: its vertices, and services, those too of which it needs nothing."""
    return frozenset({vertex.id for vertex in plan.vertices} | {vertex.service for vertex in plan.vertices} | _SERVICES)


_SERVICES: Final = frozenset({"source", "operator", "spark", "sink"})


def _check(plan: PhysicalPlan, parallelism: Mapping[str, int], tasks_max: int) -> None:
    names = {v.id for v in plan.vertices} | {v.service for v in plan.vertices}
    for name, tasks in parallelism.items():
        if name not in task_names(plan):
            message = f"parallelism.{name}: no such vertex or service; expected one of {', '.join(sorted(names))}"
            raise PlanRefusal(message)
        if not 1 <= tasks <= tasks_max:
            message = f"parallelism.{name}: expected 1 to {tasks_max} tasks, found {tasks}"
            raise PlanRefusal(message)
