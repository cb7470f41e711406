"""Puts a task together from its assignment: plan, machine, body, state, driver (R1, R4)."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from tidemark.shared.language.documents import parse
from tidemark.shared.model.checkpoint import TaskHandle
from tidemark.shared.model.ids import TASK_PART, StatePart, TaskId, groups_of_part, groups_owned, owner_of
from tidemark.shared.model.messages import Assign
from tidemark.shared.planning import plan_processor
from tidemark.shared.planning.alignment import alignment_timeout_ms
from tidemark.shared.protocol.task.start import TaskStart, start_task
from tidemark.shared.runtime.body import TaskBody
from tidemark.shared.runtime.context import AssignedTask, Outside, Service
from tidemark.shared.runtime.driver import TaskDriver
from tidemark.shared.runtime.exchange import Exchange, OutEdge
from tidemark.shared.runtime.site import TaskWiring, Ways
from tidemark.shared.runtime.state import StateBounds, StateStore, load_parts, with_parts

_parsed = lru_cache(maxsize=8)(parse)
"""A worker has many tasks of few documents."""


async def assemble(outside: Outside, service: Service, assign: Assign, ways: Ways) -> TaskDriver:
    """A driver that has restored and stands ready; nothing is read or written yet. If an error prevents this, nothing stays open."""
    settings = outside.settings
    processor = _parsed(assign.plan.document)
    running = assign.plan
    plan = plan_processor(
        processor,
        running.key_groups,
        settings.engine,
        collects=settings.collects,
        names=running.names,
        running=running.tasks,
    )
    vertex = plan.vertex(assign.vertex)
    context = AssignedTask(
        outside,
        assign,
        processor,
        plan,
        vertex,
        ways.on_released,
        ways.on_failed,
        ways.on_waits,
        alignment_timeout_ms(processor, vertex),
    )
    body = await service.build(context)
    try:
        return await _restored(context, body, ways)
    except BaseException as error:
        try:
            await body.close()
        except Exception as also:  # noqa: BLE001 - what came first is the reason; this is told with it
            error.add_note(f"and letting go of what was open failed: {also!r}")
        raise


async def _restored(context: AssignedTask, body: TaskBody, ways: Ways) -> TaskDriver:
    """The driver of a body, at the state that the assignment names."""
    outside, assign, plan = context.outside, context.assign, context.plan
    settings = outside.settings
    machine = start_task(_task_start(assign, context))
    state = StateStore(
        outside.blobs,
        assign.job,
        assign.vertex,
        assign.generation,
        outside.unique,
        StateBounds(
            settings.state_inline_bytes_max,
            settings.state_blobs_max,
            settings.state_blob_bytes_max,
            settings.state_parts_max,
        ),
    )
    bindings = {b.edge: b for b in assign.plan.edges}
    outputs = plan.outputs_of(assign.vertex)
    wiring = TaskWiring(
        task=context.task,
        log=outside.log,
        clock=outside.clock,
        executor=outside.executor,
        settings=settings,
        exchange=Exchange(
            assign.job,
            assign.generation,
            assign.plan.key_groups,
            [OutEdge(e, bindings[e.id].receivers) for e in outputs],
            outside.blobs,
            outside.unique,
            settings.inline_bytes_max,
            settings.wire,
        ),
        state=state,
        inputs={e.id: bindings[e.id] for e in plan.inputs_of(assign.vertex)},
        tags={e.id: e.tag for e in plan.inputs_of(assign.vertex)},
        outputs={e.id: bindings[e.id] for e in outputs},
        ways=ways,
        passing=context.passing,
        gathers=all(plan.vertex(edge.receiver).service == "sink" for edge in outputs),
    )
    driver = TaskDriver(wiring, machine, body)
    handles = await with_parts(outside.blobs, assign.handles)
    parts = await load_parts(outside.blobs, handles, _ownership(context, handles))
    state.restored(handles, parts)
    await driver.open(parts)
    return driver


def _task_start(assign: Assign, context: AssignedTask) -> TaskStart:
    bindings = {b.edge: b for b in assign.plan.edges}
    plan = context.plan
    return TaskStart(
        task=TaskId(assign.vertex, assign.index),
        tasks=assign.plan.tasks[assign.vertex],
        job=assign.job,
        generation=assign.generation,
        lineage=assign.lineage,
        restored_from=assign.last,
        inputs=[(bindings[e.id], e.sender) for e in plan.inputs_of(assign.vertex)],
        outputs=[bindings[e.id] for e in plan.outputs_of(assign.vertex)],
        restored={h.index: h.protocol for h in assign.handles},
        is_source=context.vertex.service == "source",
        limits=context.outside.settings.limits,
        alignment_timeout_ms=context.alignment_timeout_ms,
        sharing=frozenset(v.id for v in plan.vertices if v.service != "source"),
    )


def _ownership(context: AssignedTask, handles: Sequence[TaskHandle]) -> Callable[[StatePart], bool]:
    """Which state parts are this task's: key groups by range, splits by assignment, the rest by index."""
    assign = context.assign
    tasks, groups = assign.plan.tasks[assign.vertex], assign.plan.key_groups
    own = {p.part for h in handles if h.index == assign.index for p in h.parts}
    owned = groups_owned(assign.index, tasks, groups)

    def wanted(part: StatePart) -> bool:
        kind, _, name = part.rpartition("|")[2].partition(":")
        if kind == "kg":
            return owner_of(int(name.partition("#")[0]), tasks, groups) == assign.index
        if kind == "groups":
            there = groups_of_part(name)
            return there.start < owned.stop and owned.start < there.stop
        if kind == "split":
            return name in assign.splits or name.rpartition("#")[0] in assign.splits
        if part == TASK_PART and context.vertex.service == "spark":
            return True  # as manifests were called that are of all key groups
        return part in own

    return wanted
