"""Generations: how one begins, is placed, restores, is taken over by a new leader, and ends (R1–R4, S1, C10).

WAITING ──row written──► PREPARING ──topics, mirror, workers──► RESTORING ──all restored──► RUNNING or RELEASING
▲                                                                                            │
└───────────────────────── a failure, a lost worker, a change of plan ◄──────────────────────┘
"""

from msgspec import structs

from tidemark.shared.model.checkpoint import LineageEntry, TaskHandle
from tidemark.shared.model.ids import NO_EPOCH, Epoch, Generation, JobId, Offset, TaskId, VertexId, WorkerIncarnation
from tidemark.shared.model.messages import (
    AbortCheckpoint,
    Assign,
    HoldInput,
    RunningPlan,
    StartSources,
    StopTasks,
    TellSplits,
)
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.checkpoints import Numbers
from tidemark.shared.protocol.coordinator.kept import go_back, kept_as, removed_sinks
from tidemark.shared.protocol.coordinator.mirror import Mirror
from tidemark.shared.protocol.coordinator.pace import EpochTimes, first_rows, target_ms
from tidemark.shared.protocol.coordinator.plans import OPERATOR, SINK, bind, own_identities, rebound, sinks_of
from tidemark.shared.protocol.coordinator.record import (
    RELEASE,
    RUN,
    Decisions,
    Identity,
    OldJob,
    PendingPlan,
    RemovedSink,
)
from tidemark.shared.protocol.coordinator.retention import Retained
from tidemark.shared.protocol.coordinator.shares import share_first
from tidemark.shared.protocol.coordinator.splits import SOURCE, own_splits, unlisted
from tidemark.shared.protocol.coordinator.state import (
    HOSTED,
    Began,
    Doom,
    Ended,
    FailureCounted,
    GenerationRun,
    Phase,
    ProcessorState,
    Reserved,
    Work,
    plan_bytes,
)
from tidemark.shared.protocol.coordinator.workers import Need

# --- the parts of a generation ----------------------------------------------------------------------------------------


def works_of(plan: RunningPlan, kept: Decisions) -> dict[TaskId, Work]:
    """The tasks of a generation, each release identity in exactly one of them (S1)."""
    if kept.purpose == RELEASE:
        return _release_only(kept.identities, plan, kept.removed)
    own = own_identities(plan)
    known = frozenset(kept.identities)
    taken_over: dict[Identity, list[Identity]] = {}
    orphans = []
    for vertex, index in kept.identities:
        if (vertex, index) in own:
            continue
        if vertex in plan.tasks and plan.services.get(vertex) == SINK:
            taken_over.setdefault((vertex, index % plan.tasks[vertex]), []).append((vertex, index))
        else:
            orphans.append((vertex, index))
    works = {
        TaskId(vertex, index): Work(
            plan.services[vertex],
            plan,
            retired=tuple(taken_over.get((vertex, index), ())),
            new_identity=(vertex, index) in own and (vertex, index) not in known,
        )
        for vertex, count in plan.tasks.items()
        for index in range(count)
    }
    return works | _release_only(orphans, plan, kept.removed)


def _release_only(
    identities: tuple[Identity, ...] | list[Identity], plan: RunningPlan, removed: tuple[RemovedSink, ...]
) -> dict[TaskId, Work]:
    """One task a vertex, which holds all of the vertex' identities and only releases (S1, E2)."""
    plans = {r.vertex: r.plan for r in removed} | dict.fromkeys(sinks_of(plan), plan)
    by_vertex: dict[VertexId, list[int]] = {}
    for vertex, index in identities:
        by_vertex.setdefault(vertex, []).append(index)
    works = {}
    for vertex, indices in by_vertex.items():
        first, *rest = sorted(indices)
        works[TaskId(vertex, first)] = Work(SINK, plans[vertex], True, tuple((vertex, i) for i in rest))
    return works


# --- WAITING: begin the next generation -------------------------------------------------------------------------------


def begin(p: ProcessorState) -> None:
    """Write the next generation: (g + 1, restored_from = last committed), with a new block of numbers (R1, C1)."""
    kept = p.next_kept()
    unreleased = p.unreleased()
    row = structs.replace(p.row, generation=Generation(p.row.generation + 1), state="STARTING")
    if (back := kept_as(kept, kept.go_back)) is not None:
        return go_back(p, kept, back)
    if kept.without_state and not unreleased:
        return _begin_new_job(p, kept, row)
    if p.final() and not unreleased:
        return end(p, "FINISHED", "")
    if kept.without_state or p.final():
        return _write_generation(p, structs.replace(kept, purpose=RELEASE), row, new_job=False)
    kept = structs.replace(kept, purpose=RUN)
    if kept.pending is not None and _may_change(p, kept.pending):
        kept, row = _change_plan(p, kept, row)
    return _write_generation(p, kept, row, new_job=False)


def _may_change(p: ProcessorState, pending: PendingPlan) -> bool:
    """R4, C13: the stages of a document made the data in the channels, for these tasks. Other code of computations may read it.

    Where the plan may not change, the running plan goes on to a checkpoint that is aligned.
    """
    if p.row.last == NO_EPOCH or p.is_aligned():
        return True
    return (pending.document, pending.tasks) == (p.plan.document, p.plan.tasks)


def _change_plan(p: ProcessorState, kept: Decisions, row: ProcessorRow) -> tuple[Decisions, ProcessorRow]:
    """The pending plan becomes the plan (R4, E3)."""
    pending = kept.pending
    assert pending is not None
    version = row.plan_version + 1
    bound = bind(pending, version, p.name, p.ctx.fresh, p.settings.topic_prefix, p.plan)
    kept = structs.replace(
        kept,
        pending=None,
        interval_ms=pending.interval_ms,
        removed=removed_sinks(p, kept, pending.tasks),
        obsolete_topics=(*kept.obsolete_topics, *bound.left),
        splits={v: known for v, known in kept.splits.items() if v in pending.tasks},
    )
    same = (pending.document, pending.code_digest) == (p.plan.document, p.plan.code_digest)
    since = p.plan.since if same else row.last
    plan = structs.replace(bound.plan, since=since)
    row = structs.replace(row, plan_version=version, plan=plan_bytes(plan), parallelism=pending.parallelism)
    return kept, row


def _begin_new_job(p: ProcessorState, kept: Decisions, row: ProcessorRow) -> None:
    """A start without state: all that was committed is released; a new job id, nothing of the old one stays (E2)."""
    version = row.plan_version
    settings, fresh = p.settings, p.ctx.fresh
    if kept.pending is not None:
        version += 1
        bound = bind(kept.pending, version, p.name, fresh, settings.topic_prefix, None)
        row = structs.replace(row, parallelism=kept.pending.parallelism)
        interval_ms = kept.pending.interval_ms
    else:
        bound = rebound(p.plan, p.name, fresh, settings.topic_prefix)
        interval_ms = kept.interval_ms
    old_topics = tuple(b.topic for b in p.plan.edges)
    kept = Decisions(
        drain=kept.drain,
        interval_ms=interval_ms,
        unwanted_topics=(*kept.unwanted_topics, *kept.obsolete_topics, *old_topics),
        old_jobs=(*kept.old_jobs, OldJob(p.row.job, tuple(c.epoch for c in p.commits))),
        answers=kept.answers,
        shown=kept.shown,
        changes=kept.changes,
    )
    row = structs.replace(row, job=JobId(fresh()), last=NO_EPOCH, plan_version=version, plan=plan_bytes(bound.plan))
    _write_generation(p, kept, row, new_job=True)


def _write_generation(p: ProcessorState, kept: Decisions, row: ProcessorRow, *, new_job: bool) -> None:
    block = Reserved(row.reserved, Epoch(row.reserved + p.settings.numbers_block))
    row = structs.replace(row, reserved=block.end)
    entry = LineageEntry(row.generation, row.last, row.plan_version)
    p.change_row(kept, Began(entry, new_job, block), row)


def begun(p: ProcessorState, began: Began, now_ms: int) -> None:
    """The generation is durable: the row refuses every later write of an earlier generation (C8)."""
    if began.new_job:
        p.lineage.clear()
        p.commits = Retained()
        p.watch()
        p.released.clear()
        p.mirror = Mirror()
    p.lineage.append(began.entry)
    p.times = EpochTimes(timings=p.times.timings)
    p.numbers = Numbers(began.block.given, began.block.end)
    p.run = GenerationRun(p.kept.purpose, works_of(p.plan, p.kept), since_ms=now_ms)
    p.phase = Phase.PREPARING


# --- PREPARING, RESTORING ---------------------------------------------------------------------------------------------


def prepare(p: ProcessorState, now_ms: int) -> None:
    """Topics, then the mirror, then a worker for every task; then assign them all (R1, R2)."""
    run = p.run
    assert run is not None
    if p.row.last != NO_EPOCH and (unknown := unlisted(p, run)):
        # Nothing is read before it is listed, so no commit of ours can be without: positions would be forgotten (I1).
        p.doom = Doom(
            f"the processor's row has commit {p.row.last} and lists no splits of {', '.join(unknown)}: another version of Tidemark wrote"
            " it; go on with that version, or start without state",
            permanent=True,
        )
        return
    if not run.topics_ready:
        if run.topics_op is None:
            run.topics_op = p.ctx.op()
            wanted = tuple(do.TopicWanted(b.topic, b.receivers) for b in p.plan.edges)
            p.emit(do.CreateTopics(run.topics_op, p.row.job, wanted))
        return
    if not p.mirror.caught_up:
        return  # a sink reads in the mirror which commits to release (S2): it must find `last` there
    workers = p.ctx.workers
    placed = workers.place(p.name, [Need(t, w.service) for t, w in run.tasks.items()], now_ms)
    if isinstance(placed, tuple):
        run.wants_service = ", ".join(placed)
        for service in placed:
            for command in workers.wish(service, now_ms):
                p.emit(command)
        return
    run.wants_service = ""
    run.holders = placed
    run.since_ms = now_ms
    workers.occupy(p.name, placed.values())
    p.phase = Phase.RESTORING
    newest = p.commits.newest
    handles = newest.tasks if newest is not None and p.row.last != NO_EPOCH else ()
    for task, worker in placed.items():
        p.tell(_assignment(p, task, worker, handles))


def _assignment(p: ProcessorState, task: TaskId, worker: WorkerIncarnation, handles: tuple[TaskHandle, ...]) -> Assign:
    assert p.run is not None
    work = p.run.tasks[task]
    return Assign(
        to=worker,
        name=p.name,
        job=p.row.job,
        generation=p.row.generation,
        lineage=p.named_lineage(),
        last=p.row.last,
        plan=work.plan,
        vertex=task.vertex,
        index=task.index,
        # Nobody restores from staged output or from positions of splits: the mirror has them, and an assignment must stay small.
        handles=tuple(structs.replace(h, staged=b"", positions=b"") for h in handles if h.vertex == task.vertex),
        retired=work.retired,
        new_identity=work.new_identity,
        release_only=work.release_only,
        skips=p.kept.skips if work.service == SINK else (),
        listed=task.vertex in p.kept.splits,
        splits=own_splits(p, task) if work.service == SOURCE else {},
        mirror=p.mirror_begin() if work.service == SINK else Offset(0),
    )


def restore(p: ProcessorState, now_ms: int) -> None:
    """Wait for every task, and until the row lists the splits that sources read (I1), but not for ever; then start them (R1)."""
    run = p.run
    assert run is not None
    missing = sorted(run.tasks.keys() - run.restored)
    unknown = unlisted(p, run)
    if not missing and not unknown:
        _go(p, now_ms)
    elif now_ms - run.since_ms > p.settings.restore_timeout_ms:
        what = (
            f"tasks {', '.join(map(str, missing))} did not restore"
            if missing
            else f"{', '.join(unknown)} found no splits"
        )
        outage = p.outage_since(run.since_ms) or run.have_waited(missing, run.since_ms)
        reason = f"{what} within {p.settings.restore_timeout_ms} ms"
        if run.waiting:
            reason += f"; {run.waiting}"
        p.doom = Doom(reason, counts=not outage, outage=outage)


def _go(p: ProcessorState, now_ms: int) -> None:
    assert p.run is not None
    p.last_start_ms = now_ms
    p.timeouts = 0
    p.setback = ""
    p.checkpoint_wanted = False
    p.held = False
    if p.run.purpose == RELEASE:
        p.phase = Phase.RELEASING
        return
    p.phase = Phase.RUNNING
    target = target_ms(p.settings, interval_ms(p))
    share_first(p)
    operators = any(work.service == OPERATOR for work in p.run.tasks.values())
    rows = first_rows(p.settings, p.row.failures, operators=operators)
    p.tell(StartSources(p.row.job, p.row.generation, target, rows))
    if p.row.desired == "stopped" or p.kept.pending is not None:
        p.leave_behind = p.row.last


def interval_ms(p: ProcessorState) -> int:
    """From the start of a checkpoint to that of the next, ms."""
    return p.kept.interval_ms or p.settings.checkpoint_interval_ms


# --- ADOPTING: a new leader, a generation that may be running ---------------------------------------------------------


def is_the_one_that_was_ordered(p: ProcessorState) -> bool:
    """Whether tasks of the row's generation may go on: not behind a start that begins from another state, or has gone back (E2)."""
    begins_anew = p.kept.without_state and p.kept.purpose != RELEASE
    return (
        bool(p.lineage) and not p.kept.go_back and not begins_anew and p.lineage[-1].plan_version == p.row.plan_version
    )


def adopt(p: ProcessorState, now_ms: int) -> None:
    """Go on with the running generation if all its tasks are there, else begin the next (C1, R2)."""
    run = p.run
    assert run is not None
    if run.holders.keys() == run.tasks.keys():
        run.since_ms = now_ms
        p.phase = Phase.RESTORING
        p.ctx.workers.occupy(p.name, run.holders.values())
        if p.row.reserved > p.row.last:
            # A checkpoint that an earlier leader had in flight has a number outside this leader's block: it is never committed (C1).
            p.tell(AbortCheckpoint(p.row.job, p.row.generation, p.row.reserved))
        p.tell(HoldInput(p.row.job, p.row.generation, held=False))
        p.tell(TellSplits(p.row.job, p.row.generation))
    elif now_ms >= p.resume_at_ms:
        leave(p, now_ms, now_ms)


# --- the end of a generation ------------------------------------------------------------------------------------------


def leave(p: ProcessorState, now_ms: int, resume_at_ms: int) -> None:
    """The generation is over: its tasks stop, the next begins at `resume_at_ms`."""
    if p.phase in HOSTED:
        p.tell(StopTasks(p.row.job, p.row.generation))
    _forget_run(p, now_ms)
    p.phase = Phase.WAITING
    p.resume_at_ms = resume_at_ms


def _forget_run(p: ProcessorState, now_ms: int) -> None:
    p.ctx.workers.vacate(p.name, now_ms)
    p.run = None
    p.flight = None
    p.doom = None
    p.leave_behind = None
    p.stop_since_ms = None
    p.checkpoint_wanted = False
    p.held = False
    p.numbers = Numbers()


def settle(p: ProcessorState, doom: Doom, now_ms: int) -> None:
    """Decide what follows from a failure: the next generation, at once or later, or FAILED (R1, C10)."""
    if doom.permanent:
        return end(p, "FAILED", doom.reason)
    if p.row.desired == "stopped":
        return end(p, "STOPPED", "")
    p.setback = doom.reason
    if not doom.counts:
        if doom.outage:
            p.outages += 1
            p.outage = doom.reason
        return leave(p, now_ms, p.backoff_until(now_ms, p.outages) if doom.outage else now_ms)
    if p.run is not None and (p.run.read_on or now_ms - p.run.since_ms >= p.settings.steady_ms):
        return leave(p, now_ms, p.backoff_until(now_ms, 1))  # it had come further: not one of those in a row
    failures = p.row.failures + 1
    if failures >= p.settings.failures_max:
        reason = f"{failures} generations in a row ended before a checkpoint had read on; the last one: {doom.reason}"
        return end(p, "FAILED", reason, failures)
    row = structs.replace(p.row, failures=failures, state="STARTING", reason=doom.reason)
    return p.change_row(p.next_kept(), FailureCounted(), row)


def counted(p: ProcessorState, now_ms: int) -> None:
    """The failure is on record."""
    leave(p, now_ms, p.backoff_until(now_ms, p.row.failures))


def end(p: ProcessorState, state: str, reason: str, failures: int | None = None) -> None:
    """The processor comes to rest in this state, once the row says so."""
    if state == "FAILED" and p.kept.pending is not None and not _may_change(p, p.kept.pending):
        reason += (
            "; the document or task counts that were ordered since have not begun: they need a checkpoint that waits for all barriers, and"
            " the last one has records on their way (options.checkpoint.alignmentTimeout). Mend what fails, or start without state"
        )
    row = structs.replace(p.row, state=state, reason=reason, failures=p.row.failures if failures is None else failures)
    p.change_row(p.next_kept(), Ended(), row)


def ended(p: ProcessorState, now_ms: int) -> None:
    """The row says so: tasks stop."""
    if p.phase in HOSTED:
        p.tell(StopTasks(p.row.job, p.row.generation))
    _forget_run(p, now_ms)
    p.outages, p.outage, p.setback = 0, "", ""
    p.phase = Phase.IDLE
