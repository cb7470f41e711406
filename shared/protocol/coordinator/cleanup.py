"""Forgetting and deleting (C11, C12): rounds of retention, remains of a change of plan or of job, and a processor that is dropped.

A decision to delete rests on commits that the store has confirmed, and the mirror has. An older copy of the store, in which blobs that
an older commit reads would be missed, is not led then (C9). A deletion that is right once is right for ever, since numbers only grow and
the retained checkpoints only move on. So a deletion that a deposed coordinator still carries out harms nobody.
"""

from typing import Final

from tidemark.shared.model.messages import DropProcessor
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.checkpoints import taken_up_to
from tidemark.shared.protocol.coordinator.commands import CoordinatorCommand, OpId
from tidemark.shared.protocol.coordinator.retention import blobs_kept, record_floors
from tidemark.shared.protocol.coordinator.state import FORGOTTEN_MAX, Cleaning, Dropped, Phase, ProcessorState

_SUPERFLUOUS_MAX: Final = 32
"""Commit rows behind which a round comes early: checkpoints may follow each other fast, and a leader reads all rows."""


def clean(p: ProcessorState, now_ms: int) -> bool:
    """Begin a round if there is something to do: first forget commit rows, then delete the blobs that nothing lists any more.

    True: there is nothing to do before something else happens.
    """
    if p.cleaning is not None or p.phase is Phase.DROPPING or not p.mirror.caught_up:
        return False
    p.unreleased()
    forget = p.commits.superfluous(p.row.last, FORGOTTEN_MAX if now_ms >= p.clean_at_ms else _SUPERFLUOUS_MAX + 1)
    if now_ms < p.clean_at_ms and len(forget) <= _SUPERFLUOUS_MAX:
        return False
    progress = bool(p.row.last) and p.cleaned_at != p.row.last
    superfluous = p.superfluous_lineage()
    if not (progress or forget or p.unwanted_topics() or p.old_jobs() or superfluous):
        return True
    p.clean_at_ms = now_ms + p.settings.cleanup_interval_ms
    if forget or superfluous:
        op = p.ctx.op()
        p.cleaning = Cleaning(op, forget, superfluous)
        p.emit(do.StoreForget(op, p.ctx.token, p.row.job, forget, superfluous))
    else:
        p.cleaning = Cleaning(None, ())
        _delete(p, p.cleaning)
    return False


def forgotten(p: ProcessorState) -> None:
    """The rows are forgotten; blobs that only they listed may go."""
    cleaning = p.cleaning
    assert cleaning is not None
    p.commits.forget(cleaning.forget)
    if cleaning.forget:
        p.cleaned_at = None  # entries that only these rows kept go now: the last commit may stay the last
    p.lineage = [e for e in p.lineage if e.generation not in cleaning.generations]
    cleaning.forget_op = None
    _delete(p, cleaning)


def _delete(p: ProcessorState, cleaning: Cleaning) -> None:
    if p.row.last and p.cleaned_at != p.row.last:
        p.cleaned_at = p.row.last
        _ask(
            p,
            cleaning,
            do.DeleteBlobs(p.ctx.op(), p.row.job, taken_up_to(p.commits, p.row.last), blobs_kept(p.commits)),
        )
        unread = {each.epoch for each in p.kept.checkpoints} - {p.row.last, *p.unreleased()}
        read = [commit for commit in p.commits if commit.epoch not in unread]  # whoever goes back has other edges
        if floors := record_floors(read, p.row.last, p.plan.edges):
            _ask(p, cleaning, do.DeleteRecords(p.ctx.op(), floors))
        if (before := p.mirror.to_trim(p.kept.mirror, p.settings.mirror_rows_kept)) is not None:
            _ask(p, cleaning, do.TrimMirror(p.ctx.op(), p.row.job, before))
    if topics := p.unwanted_topics():
        _ask(p, cleaning, do.DeleteTopics(p.ctx.op(), topics))
    for old in p.old_jobs():
        _ask(p, cleaning, do.DeleteBlobs(p.ctx.op(), old.job, None, frozenset()))
        if old.epochs:
            _ask(p, cleaning, do.StoreForget(p.ctx.op(), p.ctx.token, old.job, old.epochs))
    if not cleaning.waiting:
        p.cleaning = None


_Deletion = do.DeleteBlobs | do.DeleteRecords | do.DeleteTopics | do.TrimMirror | do.StoreForget


def _ask(p: ProcessorState, cleaning: Cleaning, command: _Deletion) -> None:
    cleaning.waiting[command.op] = command
    p.emit(command)


def deleted(p: ProcessorState, op: OpId, *, done: bool) -> None:
    """A deletion has been answered. Deleted names leave the list with the next write of the row; the rest is tried again."""
    cleaning = p.cleaning
    if cleaning is None or op not in cleaning.waiting:
        return
    command = cleaning.waiting.pop(op)
    if done:
        _strike(p, command)
    else:
        p.cleaned_at = None
    if not cleaning.waiting:
        p.cleaning = None


def _strike(p: ProcessorState, command: CoordinatorCommand) -> None:
    """Remember it for the next write of the row (`ProcessorState.next_kept`)."""
    if isinstance(command, do.TrimMirror):
        p.mirror.trimmed = command.before
    elif isinstance(command, do.DeleteTopics):
        p.gone_topics |= frozenset(command.topics)
    elif isinstance(command, do.DeleteBlobs) and command.up_to is None:
        p.gone_jobs |= {command.job}


# --- DROPPING ---------------------------------------------------------------------------------------------------------


def drop(p: ProcessorState) -> None:
    """Delete topics and blobs of all of the processor's jobs, and tell what the row alone knows; then the row (C8, C12)."""
    if p.dropping is None:
        p.dropping = set()
        topics = (*(b.topic for b in p.plan.edges), *p.kept.obsolete_topics, *p.unwanted_topics())
        commands: list[do.DeleteTopics | do.DeleteBlobs] = []
        if topics:
            commands.append(do.DeleteTopics(p.ctx.op(), topics))
        jobs = (p.row.job, *(o.job for o in p.old_jobs()))
        commands.extend(do.DeleteBlobs(p.ctx.op(), job, None, frozenset()) for job in jobs)
        for command in commands:
            p.dropping.add(command.op)
            p.emit(command)
        return
    if p.dropping:
        return
    if p.untold is None:
        _tell_answers(p)
    if not p.untold:
        p.change_row(p.next_kept(), Dropped(), p.row)


def _tell_answers(p: ProcessorState) -> None:
    """All that are kept, and the drop's: behind the row only the brokers know them, and a later leader may read each request again."""
    p.emit(do.RetractStatus(p.name))  # in front of the answer: who has it sees no processor of this name
    kept = tuple(p.answers)
    for known, error in kept:
        p.emit(do.Answer(known, p.name, error))
    waiting = [r for r in p.requests if isinstance(r, DropProcessor)]
    for request in waiting:
        p.requests.remove(request)
        p.answer(request.request, "")
    p.untold = {known for known, _ in kept} | {request.request for request in waiting}


def dropped(p: ProcessorState, event: ev.Deleted | ev.DeletionFailed) -> bool:
    """A drop's deletion has been answered; all begin again when one has failed, after a while. False: it is no drop's."""
    if p.dropping is None or event.op not in p.dropping:
        return False
    p.dropping.discard(event.op)
    if isinstance(event, ev.DeletionFailed):
        p.outage = event.reason
        p.dropping = None
        p.retry_at_ms = event.now_ms + p.settings.retry_ms
    return True
