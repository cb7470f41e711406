"""Quotas of namespaces (E4): how many processors, and how many tasks of those that run or are to run.

A processor's namespace is the part of its name before the first dot, "" without one. What is counted are the rows that the leader holds,
and the row that is being written: a new leader counts the same.
"""

from collections.abc import Iterable

from tidemark.shared.model.ids import ProcessorName, namespace_of
from tidemark.shared.model.messages import RunningPlan
from tidemark.shared.protocol.coordinator.kept import next_plan
from tidemark.shared.protocol.coordinator.record import PendingPlan, decode_plan
from tidemark.shared.protocol.coordinator.settings import Quota
from tidemark.shared.protocol.coordinator.state import ACTIVE, Context, ProcessorState


def quota_of(quotas: Iterable[Quota], namespace: str) -> Quota:
    """Its own, else that of all others, else one without bounds."""
    by_name = {quota.namespace: quota for quota in quotas}
    return by_name.get(namespace) or by_name.get("*") or Quota(namespace)


def refused_creation(quotas: Iterable[Quota], name: str, others: Iterable[str]) -> str:
    """Why no processor of this name is created beside these names; "" if one is."""
    namespace = namespace_of(name)
    most = quota_of(quotas, namespace).processors
    there = sum(namespace_of(other) == namespace for other in others)
    if most is None or there < most:
        return ""
    return f"{_shown(namespace)} has {there} of at most {most} processors: drop one first, or raise its quota"


def refused_run(p: ProcessorState, plan: RunningPlan | PendingPlan) -> str:
    """Why the processor does not run by this plan beside the others of its namespace; "" if it does."""
    wanted = sum(plan.tasks.values())
    return "" if p.phase in ACTIVE and wanted <= _held(p) else refused_tasks(p.ctx, p.name, wanted)


def refused_tasks(ctx: Context, name: ProcessorName, wanted: int) -> str:
    """Why a processor of this name does not begin to run with so many tasks; "" if it does."""
    namespace = namespace_of(name)
    most = quota_of(ctx.settings.quotas, namespace).tasks
    if most is None:
        return ""
    held = [*((o.name, _held(o)) for o in ctx.states()), *ctx.starting()]
    others = sum(tasks for other, tasks in held if other != name and namespace_of(other) == namespace)
    if others + wanted <= most:
        return ""
    return (
        f"{name} would run with {wanted} tasks, others of {_shown(namespace)} run with {others}, and at most {most} may: stop one, give"
        " this one fewer tasks, or raise the quota"
    )


def _held(p: ProcessorState) -> int:
    """Tasks of a processor that runs or is to run, by the latest decision."""
    row, kept = (p.row, p.kept) if p.write is None else (p.write.row, p.write.kept)
    if p.phase not in ACTIVE and (p.write is None or row.state != "STARTING"):
        return 0
    plan = next_plan(p, kept) if row.plan == p.row.plan else decode_plan(row.plan)
    return sum(plan.tasks.values())


def _shown(namespace: str) -> str:
    return f"namespace {namespace}" if namespace else "the namespace of names without a dot"
