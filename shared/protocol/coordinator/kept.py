"""Checkpoints that users name: keeping one, forgetting it, and the commit by which a processor goes back to it (C11, E2).

Going back is a commit like others: numbers go on, and sinks release it behind all that came before. It has no output, and its tasks stand
where those of the kept checkpoint did. All edges of the plan are new, so nothing that was on its way counts.
"""

import re
from itertools import islice
from typing import Final

from msgspec import structs

from tidemark.shared.model.checkpoint import CommitRow, TaskHandle
from tidemark.shared.model.ids import NO_EPOCH, Epoch, VertexId
from tidemark.shared.model.messages import ForgetCheckpoint, KeepCheckpoint, ModifyProcessor, RunningPlan, StopProcessor
from tidemark.shared.protocol.coordinator.plans import rebound, sinks_of
from tidemark.shared.protocol.coordinator.record import Decisions, KeptCheckpoint, PendingPlan, RemovedSink, encode_kept
from tidemark.shared.protocol.coordinator.state import Committed, Phase, ProcessorState, plan_bytes

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


# --- requests: each returns a refusal, the decisions to write, or None: not decided yet ----------------------------------


def kept_last(p: ProcessorState, request: KeepCheckpoint) -> Decisions | str | None:
    """The last checkpoint gets a name. None: `wants_aligned`, and the processor has not committed one yet."""
    kept, most = p.next_kept(), p.settings.checkpoints_max
    if not _NAME.fullmatch(request.checkpoint):
        return f"a checkpoint's name: expected letters, digits, '.', '_' and '-', at most 128, found {request.checkpoint[:200]!r}"
    if (known := kept_as(kept, request.checkpoint)) is not None:
        return f"{p.name} keeps checkpoint {known.epoch} as {known.name}: forget it first, or take another name"
    if len(kept.checkpoints) >= most:
        return f"{p.name} keeps {len(kept.checkpoints)} checkpoints ({_names(kept)}), at most {most}: forget one first"
    if p.row.last == NO_EPOCH or kept.without_state or kept.go_back:
        return f"{p.name} has no checkpoint of its present life yet"
    if p.final() or kept.drain is not None:
        return f"{p.name} is at the end of its input: nothing goes on from its last checkpoint"
    if not p.is_aligned():
        if p.phase is Phase.RUNNING:
            return _waits_in_vain(p) or None
        return (
            f"the last checkpoint of {p.name} has records on their way between tasks (options.checkpoint.alignmentTimeout):"
            " ask again while it is RUNNING"
        )
    found = KeptCheckpoint(
        request.checkpoint, p.row.last, p.plan, p.row.parallelism, kept.interval_ms, kept.splits, kept.ended
    )
    checkpoints = (*kept.checkpoints, found)
    size = len(encode_kept(Decisions(checkpoints=checkpoints)))
    if size > p.settings.checkpoints_bytes_max:
        return (
            f"the plans and splits of {p.name}'s kept checkpoints would have {size} bytes, at most"
            f" {p.settings.checkpoints_bytes_max}: forget others first, or install the code of computations as a package"
        )
    return structs.replace(kept, checkpoints=checkpoints)


def _waits_in_vain(p: ProcessorState) -> str:
    """Why it does not wait for the next checkpoint: there may be none for long, and what was asked behind it would wait as long."""
    if p.held:
        return f"{len(p.unreleased())} checkpoints of {p.name} wait for a target, and none is taken until then: ask again behind that"
    if any(isinstance(each, StopProcessor | ModifyProcessor) for each in islice(p.requests, 1, None)):
        return f"{p.name} is to be stopped or changed, and its last checkpoint has records on their way: ask again behind that"
    return ""


def wants_aligned(p: ProcessorState) -> bool:
    """The next checkpoint is to wait for all barriers, and soon: it gets a name (C13)."""
    return bool(p.requests) and isinstance(p.requests[0], KeepCheckpoint)


def forgotten(p: ProcessorState, request: ForgetCheckpoint) -> Decisions | str:
    """Without the kept checkpoint of this name."""
    kept = p.next_kept()
    if kept_as(kept, request.checkpoint) is None:
        return unknown(p, kept, request.checkpoint)
    if kept.go_back == request.checkpoint:
        return (
            f"{p.name} is about to begin from checkpoint {request.checkpoint}: let it run first, or start it otherwise"
        )
    return structs.replace(kept, checkpoints=tuple(k for k in kept.checkpoints if k.name != request.checkpoint))


def kept_as(kept: Decisions, name: str) -> KeptCheckpoint | None:
    """The kept checkpoint of this name."""
    return next((each for each in kept.checkpoints if each.name == name), None)


def next_plan(p: ProcessorState, kept: Decisions) -> RunningPlan | PendingPlan:
    """The plan that these decisions let run next."""
    if (back := kept_as(kept, kept.go_back)) is not None:
        return back.plan
    return p.plan if kept.pending is None else kept.pending


def unknown(p: ProcessorState, kept: Decisions, name: str) -> str:
    """The refusal of a name that no kept checkpoint has."""
    return f"{p.name} keeps no checkpoint named {name[:200]}; it keeps {_names(kept) or 'none'}"


def _names(kept: Decisions) -> str:
    return ", ".join(each.name for each in kept.checkpoints)


# --- going back -------------------------------------------------------------------------------------------------------


def go_back(p: ProcessorState, kept: Decisions, back: KeptCheckpoint) -> None:
    """Write the commit from which the next generation begins, with the plan that the processor had then (C1, C9, R4)."""
    then = p.commits.of(back.epoch)
    assert then is not None, "kept checkpoints are retained (C11)"
    epoch = Epoch(p.row.reserved + 1)
    bound = rebound(back.plan, p.name, p.ctx.fresh, p.settings.topic_prefix)
    version = p.row.plan_version + 1
    gone = {f"gone/{name}": name for name in p.plan.names.values() if name not in back.plan.names.values()}
    plan = structs.replace(bound.plan, version=version, since=epoch, names={**gone, **back.plan.names})
    old_topics = (*kept.obsolete_topics, *(binding.topic for binding in p.plan.edges))
    kept = structs.replace(
        kept,
        go_back="",
        ended=back.ended,
        splits=back.splits,
        interval_ms=back.interval_ms,
        commits=kept.commits + 1,
        removed=removed_sinks(p, kept, plan.tasks),
        obsolete_topics=(),
        unwanted_topics=(*kept.unwanted_topics, *old_topics),
    )
    sinks = sinks_of(back.plan)  # they keep no state, and stand where their targets' markers do
    tasks = tuple(_as_stood(handle) for handle in then.tasks if handle.vertex not in sinks)
    commit = CommitRow(p.row.job, epoch, p.row.last, p.row.generation, tasks)
    row = structs.replace(
        p.row,
        last=epoch,
        reserved=epoch,
        state="STARTING",
        plan_version=version,
        plan=plan_bytes(plan),
        parallelism=back.parallelism,
    )
    p.change_row(kept, Committed(commit), row)


def removed_sinks(p: ProcessorState, kept: Decisions, tasks: dict[VertexId, int]) -> tuple[RemovedSink, ...]:
    """Sinks that are not in the next plan, and have a release identity still (S1)."""
    staying = {vertex for vertex, _ in kept.identities}
    removed = {r.vertex: r for r in kept.removed} | {v: RemovedSink(v, p.plan) for v in sinks_of(p.plan)}
    return tuple(r for v, r in sorted(removed.items()) if v in staying and v not in tasks)


def _as_stood(handle: TaskHandle) -> TaskHandle:
    """Its state, without channels."""
    return structs.replace(handle, protocol=structs.replace(handle.protocol, inputs=(), outputs=()))
