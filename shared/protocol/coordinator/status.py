"""A processor as users see it in the registry."""

from msgspec import structs

from tidemark.shared.model.ids import Place, VertexId
from tidemark.shared.model.messages import ProcessorStatus
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.kept import next_plan
from tidemark.shared.protocol.coordinator.state import HOSTED, Phase, ProcessorState, bounded

_ANSWER_CHARACTERS_MAX = 200
"""Limit of an answer in the registry: a status, with a document and many answers, is one message. The caller got the full answer."""


def shown_state(p: ProcessorState) -> str:
    """CREATED, STARTING, RUNNING, STOPPING, STOPPED, FINISHED or FAILED."""
    if p.phase in (Phase.IDLE, Phase.DROPPING):
        return p.row.state
    if p.row.desired in ("stopped", "drained"):
        return "STOPPING"
    return "RUNNING" if p.phase is Phase.RUNNING else "STARTING"


def shown_reason(p: ProcessorState) -> str:
    """The reason why it waits, or why it failed."""
    if p.store_away:
        return "waits for the coordinator's store, which does not answer"
    if p.phase is Phase.PREPARING and p.run is not None:
        if p.run.wants_service:
            return f"waits for a worker of service {p.run.wants_service} with a free slot"
        if not p.run.topics_ready:
            return "waits for its topics"
        return "waits for the mirror of its commits"
    if p.run is not None and p.run.waiting:
        return p.run.waiting
    if p.phase is Phase.RUNNING and p.held:
        return f"holds its input until sinks have released {len(p.unreleased())} committed checkpoints"
    if p.phase is not Phase.IDLE and p.outage:
        return f"waits until an outage is over: {p.outage}"
    if p.phase not in (Phase.IDLE, Phase.RUNNING) and p.setback:
        return f"begins again: {p.setback}"
    return p.row.reason


def status_of(p: ProcessorState) -> ProcessorStatus:
    """The whole of it."""
    waiting = p.commits.unreleased(p.released)
    released = waiting[0].predecessor if waiting else p.row.last
    tasks: list[tuple[VertexId, int, Place]] = []
    if p.run is not None and p.phase in HOSTED:
        alive = p.ctx.workers.alive
        tasks = [
            (t.vertex, t.index, alive[w].place if w in alive else Place(w)) for t, w in sorted(p.run.holders.items())
        ]
    plan = (
        next_plan(p, p.kept) if p.phase is Phase.IDLE else p.plan
    )  # of one that does not run, what a change has made of it
    return ProcessorStatus(
        name=p.name,
        job=p.row.job,
        state=shown_state(p),
        reason=bounded(shown_reason(p), p.settings.reason_characters_max),
        generation=p.row.generation,
        last=p.row.last,
        released=released,
        plan_version=p.row.plan_version,
        document=plan.document,
        parallelism=p.row.parallelism if p.kept.pending is None else p.kept.pending.parallelism,
        tasks=tuple(tasks),
        answers=tuple((request, bounded(error, _ANSWER_CHARACTERS_MAX)) for request, error in p.answers),
        commits=p.kept.commits,
        services=plan.services,
        epoch_ms=p.epoch_ms,
        changes=p.changes,
        checkpoints=tuple((each.name, each.epoch) for each in p.kept.checkpoints),
    )


def publish(p: ProcessorState, now_ms: int) -> bool:
    """Publish the status if it has changed; mere progress only every `status_interval_ms`. True: all of it has been published before."""
    status = status_of(p)
    shown = (status.state, status.generation, status.job)
    if shown != p.shown:
        p.shown, p.changes = shown, p.changes + 1
        status = structs.replace(status, changes=p.changes)
    if status == p.status:
        return True
    if p.status is not None and now_ms - p.status_at_ms < p.settings.status_interval_ms:
        old = structs.replace(
            p.status, last=status.last, released=status.released, commits=status.commits, epoch_ms=status.epoch_ms
        )
        if old == status:
            return False
    p.status = status
    p.status_at_ms = now_ms
    p.emit(do.PublishStatus(status))
    return False
