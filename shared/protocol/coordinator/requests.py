"""Users' requests to a processor that exists (C11, E2, E3, S6): one at a time, in their order.

A request is answered when its effect is durable. A repeated one gets the same answer and is not carried out again.
"""

from msgspec import structs

from tidemark.shared.model.messages import (
    CreateProcessor,
    DropProcessor,
    ForgetCheckpoint,
    KeepCheckpoint,
    ModifyProcessor,
    OfJob,
    PutConnection,
    Request,
    Sample,
    SampleProcessor,
    SkipRelease,
    StartProcessor,
    StopProcessor,
    another_job,
)
from tidemark.shared.model.processors import document_digest
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.kept import forgotten, kept_as, kept_last, next_plan, unknown
from tidemark.shared.protocol.coordinator.plans import fault_of, pending_of
from tidemark.shared.protocol.coordinator.quotas import refused_run
from tidemark.shared.protocol.coordinator.record import Decisions
from tidemark.shared.protocol.coordinator.splits import unknown_splits
from tidemark.shared.protocol.coordinator.state import ACTIVE, Applied, Phase, ProcessorState
from tidemark.shared.protocol.coordinator.status import shown_state


def receive(p: ProcessorState, request: Request) -> None:
    """Take a request in, or answer it at once."""
    for known, error in p.answers:
        if known == request.request and not (_is_dropping(p, request) and not error):
            p.emit(do.Answer(request.request, p.name, error))
            return
    if any(r.request == request.request for r in p.requests):
        return
    if len(p.requests) >= p.settings.requests_max:
        p.emit(do.Answer(request.request, p.name, f"{len(p.requests)} requests wait for {p.name}; ask again later"))
        return
    p.requests.append(request)


def _is_dropping(p: ProcessorState, request: Request) -> bool:
    """It is answered when all is gone, by whoever leads then."""
    return p.phase is Phase.DROPPING and isinstance(request, DropProcessor)


def serve(p: ProcessorState) -> None:
    """Decide the oldest request; may issue a write. What comes while the processor is being dropped is decided behind that (C8)."""
    while p.requests and p.write is None and p.phase is not Phase.DROPPING:
        request = p.requests[0]
        refusal = _of_another_job(p, request) or _decide(p, request)
        if refusal is None:
            return  # a write, or planning, is under way
        p.requests.popleft()
        p.answer(request.request, refusal)


def _of_another_job(p: ProcessorState, request: Request) -> str:
    """E2: a refusal where the request names a job that the processor has no more."""
    changed = another_job(request.job, p.row.job) if isinstance(request, OfJob) else ""
    return changed and f"{p.name} {changed}: look at it again"


def _decide(p: ProcessorState, request: Request) -> str | None:
    match request:
        case StartProcessor():
            return _start(p, request)
        case StopProcessor():
            return _stop(p, request)
        case ModifyProcessor():
            return _modify(p, request)
        case DropProcessor():
            return _drop(p, request)
        case SkipRelease():
            return _skip(p, request)
        case KeepCheckpoint():
            return _decided(p, request, kept_last(p, request))
        case ForgetCheckpoint():
            return _decided(p, request, forgotten(p, request))
        case SampleProcessor():
            return _sample(p, request)
        case PutConnection():
            return ""  # the coordinator's own (`machine.py`)
        case CreateProcessor():
            return f"a processor named {p.name} exists; modify it, or drop it first"


def _write(p: ProcessorState, request: Request, kept: Decisions, *, desired: str, **changes: object) -> None:
    """Write the row for this request, its answer beside it, so that a repeat is known after a change of leaders too."""
    answers = (*kept.answers, (request.request, ""))[-p.settings.answers_max :]
    row = structs.replace(p.row, desired=desired, **changes)
    p.change_row(structs.replace(kept, answers=answers), Applied(request), row)


def _decided(p: ProcessorState, request: Request, found: Decisions | str | None) -> str | None:
    """What a decision that changes nothing else comes to."""
    if isinstance(found, Decisions):
        _write(p, request, found, desired=p.row.desired)
        return None
    return found


# --- each returns "" (done, nothing to write), a refusal, or None: not decided yet ----------------------------------------


def _start(p: ProcessorState, request: StartProcessor) -> str | None:
    if request.checkpoint:
        return _start_from(p, request)
    if p.phase in ACTIVE:
        if not request.resume:
            return f"{p.name} is running: stop it before a start without state"
        if p.row.desired == "drained":
            return f"{p.name} is draining, which cannot be taken back; start it without state when it has finished"
        if p.row.desired == "running":
            return ""
        _write(p, request, p.next_kept(), desired="running")
        return None
    if request.resume and p.row.state == "FINISHED" and not p.kept.without_state:
        return f"{p.name} has finished and cannot be resumed; start it without state"
    kept = p.next_kept()
    if not request.resume:
        kept = structs.replace(kept, go_back="")
    if p.plan.code_digest and not kept.go_back:  # who goes back has the code of then
        found = _with_code_as_it_is(p, kept, keeps=request.resume and not p.kept.without_state)
        if found is None or isinstance(found, str):
            return found
        kept = found
    if not request.resume or kept.without_state:  # a drain was of the life before
        kept = structs.replace(kept, without_state=True, drain=None)
    if over := refused_run(p, next_plan(p, kept)):
        return over
    desired = "running" if kept.drain is None else "drained"
    _write(p, request, kept, desired=desired, state="STARTING", reason="", failures=0)
    return None


def _start_from(p: ProcessorState, request: StartProcessor) -> str | None:
    """The plan is the one of the kept checkpoint, its code too: what waits to be changed, drained or begun anew is given up."""
    kept = p.next_kept()
    if not request.resume:
        return "a start is from a kept checkpoint, or without state, not both"
    if (back := kept_as(kept, request.checkpoint)) is None:
        return unknown(p, kept, request.checkpoint)
    if p.phase in ACTIVE:
        return f"{p.name} is running: stop it before a start from checkpoint {back.name}"
    if over := refused_run(p, back.plan):
        return over
    kept = structs.replace(kept, go_back=back.name, without_state=False, pending=None, drain=None)
    _write(p, request, kept, desired="running", state="STARTING", reason="", failures=0)
    return None


def _with_code_as_it_is(p: ProcessorState, kept: Decisions, *, keeps: bool) -> Decisions | str | None:
    """R5: the code of computations is looked at again; another one is a change of plan. None: it is being looked at; a text: a refusal."""
    if p.planned is None:
        if p.planning_op is None:
            _ask_plan(p, None, p.row.parallelism if p.kept.pending is None else p.kept.pending.parallelism, keeps=keeps)
        return None
    found, p.planned = p.planned, None
    if isinstance(found, str):
        return found
    runs = p.plan.code_digest if kept.pending is None else kept.pending.code_digest
    if found.code_digest == runs:
        return kept
    parallelism = p.row.parallelism if kept.pending is None else kept.pending.parallelism
    return structs.replace(kept, pending=pending_of(found, parallelism))


def _stop(p: ProcessorState, request: StopProcessor) -> str | None:
    if p.phase not in ACTIVE:
        if request.drain and p.row.state != "FINISHED":
            return f"{p.name} is {p.row.state}: there is no input to drain; start it first"
        return ""
    if not request.drain:
        if p.row.desired == "stopped":
            return ""
        _write(p, request, p.next_kept(), desired="stopped")
        return None
    if unknown := unknown_splits(p, request.until):
        return unknown
    if p.kept.drain is not None and p.kept.drain != request.until:
        return f"{p.name} is draining until {p.kept.drain}; that cannot be changed"
    _write(p, request, structs.replace(p.next_kept(), drain=request.until), desired="drained")
    return None


def _modify(p: ProcessorState, request: ModifyProcessor) -> str | None:
    if refusal := _not_modifiable(p, request):
        return refusal
    if p.planned is None:
        if p.planning_op is None:
            keeps = request.resume_from_checkpoint and not p.kept.without_state
            _ask_plan(p, request.document, _parallelism(p, request), keeps=keeps)
        return None
    planned, p.planned = p.planned, None
    if isinstance(planned, str):
        return planned
    keeps = request.resume_from_checkpoint and not p.kept.without_state
    if fault := fault_of(planned, p.sinks() if keeps else frozenset()):
        return fault
    pending = pending_of(planned, _parallelism(p, request))
    if p.phase in ACTIVE and (over := refused_run(p, pending)):
        return over
    kept = structs.replace(p.next_kept(), pending=pending, without_state=not keeps)
    _write(p, request, kept, desired=p.row.desired)
    return None


def _not_modifiable(p: ProcessorState, request: ModifyProcessor) -> str:
    if p.kept.go_back:
        return f"{p.name} is about to begin from checkpoint {p.kept.go_back}: let it run first, or start it otherwise"
    if request.replaces not in ("", document_digest(next_plan(p, p.kept).document)):
        there = "another one waits for the next checkpoint" if p.kept.pending is not None else "it has another one now"
        return f"{p.name}: the document was changed by somebody else, {there}: look at it again, and make the change to that"
    if p.phase in ACTIVE:
        if not request.resume_from_checkpoint:
            return f"{p.name} is running: stop it before a change that does not keep its state"
        if p.row.desired == "drained":
            return f"{p.name} is draining; a change would never run"
    elif p.row.state == "FINISHED" and request.resume_from_checkpoint and not p.kept.without_state:
        return f"{p.name} has finished; a change can only run without its state"
    return ""


def _ask_plan(p: ProcessorState, document: str | None, parallelism: dict[str, int], *, keeps: bool) -> None:
    """Plan this document, or the one that runs or waits to."""
    base = p.plan.document if p.kept.pending is None else p.kept.pending.document
    p.planning_op = p.ctx.op()
    previous = p.plan if keeps else None
    p.emit(do.MakePlan(p.planning_op, p.name, base if document is None else document, parallelism, previous))


def _parallelism(p: ProcessorState, request: ModifyProcessor) -> dict[str, int]:
    if request.parallelism is not None:
        return request.parallelism
    return p.row.parallelism if p.kept.pending is None else p.kept.pending.parallelism


def _sample(p: ProcessorState, request: SampleProcessor) -> str:
    if p.phase is not Phase.RUNNING:
        return f"{p.name} is {shown_state(p)}: only a running processor has something to show"
    edges = [binding.edge for binding in p.plan.edges]
    if request.edge and request.edge not in edges:
        return f"{p.name} has no edge {request.edge}; it has {', '.join(edges) or 'none'}"
    limit = min(request.limit, p.settings.sample_max)
    p.tell(Sample(p.row.job, p.row.generation, request.request, limit, request.edge))
    return ""


def _drop(p: ProcessorState, request: DropProcessor) -> str | None:
    if p.phase in ACTIVE:
        return f"{p.name} is running: stop it before it is dropped"
    _write(p, request, p.next_kept(), desired="dropped")
    return None


def _skip(p: ProcessorState, request: SkipRelease) -> str | None:
    """S6: the order stands from the next start on, until the sink has released the commit."""
    if p.phase in ACTIVE:
        return f"{p.name} is running; a refusal stops it, and then what is refused can be passed over"
    waiting = tuple(i for i in p.waiting_for(request.epoch) if request.vertex in (None, i[0]))
    if not waiting:
        which = "no sink" if request.vertex is None else f"sink {request.vertex}"
        unreleased = ", ".join(map(str, p.unreleased())) or "none"
        return f"{which} of {p.name} has commit {request.epoch} to release; waiting for a release: {unreleased}"
    kept = p.next_kept()
    skips = tuple(sorted({*kept.skips, *((v, i, request.epoch) for v, i in waiting)}))
    _write(p, request, structs.replace(kept, skips=skips), desired=p.row.desired)
    return None


# --- its effect is durable ----------------------------------------------------------------------------------------------


def applied(p: ProcessorState, request: Request, now_ms: int) -> None:
    """Act on a request whose effect the store has."""
    if isinstance(request, DropProcessor):
        p.phase = Phase.DROPPING  # answered when all is gone
        return
    if p.requests and p.requests[0].request == request.request:
        p.requests.popleft()
    p.answer(request.request, "")
    match request:
        case StartProcessor():
            if p.phase is Phase.IDLE:
                p.phase = Phase.WAITING
                p.resume_at_ms = now_ms
                p.outages, p.outage = 0, ""
            p.stop_since_ms = None
        case _:
            pass
    waits_for_commit = p.phase is Phase.RUNNING and (p.row.desired == "stopped" or p.kept.pending is not None)
    if not waits_for_commit:
        p.leave_behind = None
    elif p.leave_behind is None:
        p.leave_behind = p.row.last
