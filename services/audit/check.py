"""`tidemark audit NAME`: was every record counted once? Computed again from the source topic and the bytes of the outputs.

The audit believes none of the system's own counts. The mirror says where the source's splits stood at each committed checkpoint
(history.py); the records between two of them are the epoch's. The document is run again over them (recompute.py). Its result
for an epoch must be the epoch's content in the outputs, as readers see them (outputs.py): files by manifests, with digests, topics
read committed, by markers. The first difference is named, with epoch, place, expectation and finding.

Records that retention has taken from the source cannot be computed again: NotAuditable says so, and is no success.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import get_args

from tidemark.services.audit.account import account_of, same
from tidemark.services.audit.checkpoint import AuditCheckpoint, digest_of_plan, keep, last_checkpoint
from tidemark.services.audit.corrections import late_places
from tidemark.services.audit.expected import PLAIN, ExpectedOutput, expected_at_topic, expected_in_files
from tidemark.services.audit.files import FilesRead, file_output, read_files
from tidemark.services.audit.forms import forms_at
from tidemark.services.audit.history import (
    AuditFailed,
    Commit,
    NotAuditable,
    PastGone,
    commit_of,
    mirrored,
    pieces_of,
    read_history,
)
from tidemark.services.audit.installed import AuditedInstallation, local_installation
from tidemark.services.audit.merged import TargetRead, Unread, compare, merged_output
from tidemark.services.audit.outputs import NO_OUTPUT, KeptOutput, Output, VertexReleases, topic_output
from tidemark.services.audit.patient import PatientLog
from tidemark.services.audit.reach import Judge
from tidemark.services.audit.reading import TooMuchHeld
from tidemark.services.audit.recompute import Accept, Positions, Recomputed, SplitRecords, Stand, Texts, recompute
from tidemark.services.audit.refusals import told_refusals
from tidemark.services.audit.report import NOTHING, Audited
from tidemark.services.audit.rowsums import NO_ROWS, RowSum
from tidemark.services.audit.settings import audit_settings
from tidemark.services.audit.sources import SourceRead, or_compacted, refused, source_records, sources_of
from tidemark.services.audit.tables import targets_of
from tidemark.services.sink.connecting import stage_of
from tidemark.services.sink.connectors.registered import Unregistered
from tidemark.shared.language.documents import InvalidDocument, Processor, all_stages, parse, resolve
from tidemark.shared.language.documents.model import plugin_uses
from tidemark.shared.language.stages import (
    Connection,
    FileEmit,
    Https,
    HttpsEmit,
    KafkaEmit,
    Lookup,
)
from tidemark.shared.language.values import ExtendedJsonError, parse_json
from tidemark.shared.model.checkpoint import SplitStand
from tidemark.shared.model.ids import NO_EPOCH, Epoch, JobId, ProcessorName, SplitId, VertexId
from tidemark.shared.model.messages import RunningPlan
from tidemark.shared.model.plan import PhysicalPlan
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.model.splits import Status
from tidemark.shared.model.values import Document
from tidemark.shared.operators.context import context_of, source_place
from tidemark.shared.operators.dead_letters import LATE
from tidemark.shared.planning import DeadLetterHead, WriteHead, plan_processor
from tidemark.shared.plugins.interface import PluginError
from tidemark.shared.ports.blobs import BlobError
from tidemark.shared.protocol.coordinator.record import decode_plan

__all__ = ["AuditFailed", "Audited", "NotAuditable", "audit", "audit_local"]


async def audit(name: ProcessorName, installed: AuditedInstallation, *, resumes: bool = False) -> Audited:
    """Audit a processor: from the begin of its job, or, where that is no longer there, from where the last audit ended.

    resumes: from there in any case, if there was an audit.

    Raises:
        AuditFailed: the first discrepancy.
        NotAuditable: something needed is gone.
    """
    installed = replace(installed, log=PatientLog(installed.log))
    row = await installed.row_of(name)
    plan = decode_plan(row.plan)
    can_be_computed_again(parse(plan.document))
    last = await last_checkpoint(row.job, plan, installed.blobs, installed.keys)
    if last is not None and resumes:
        return await _from(row, plan, installed, last)
    try:
        return await _from(row, plan, installed, None)
    except (PastGone, TooMuchHeld) as error:
        if last is None:
            raise
        found = await _from(row, plan, installed, last)
        return replace(found, notes=(*found.notes, f"an audit from the begin of the job: {error}"))


async def _from(
    row: ProcessorRow, plan: RunningPlan, installed: AuditedInstallation, last: AuditCheckpoint | None
) -> Audited:
    """Behind this checkpoint, or from the begin: in pieces, each behind the one before it."""
    processor = parse(plan.document)
    ends: list[Commit | None] = [*await _pieces(row, processor, installed, last), None]
    done: list[Audited] = []
    begin, at, further = _Begin(last, {}, frozenset()), 0, 1
    while at < len(ends):
        piece = await _piece(row, plan, processor, installed, begin, ends[at])
        if piece is None:  # this is no end: each time twice as far, so that what is read again is not more than all
            at, further = min(at + further, len(ends) - 1), 2 * further
        elif piece.checkpoint is None and ends[at] is not None:  # nothing to go on from
            at = len(ends) - 1
        else:
            done.append(piece.audited)
            begin, at, further = _Begin(piece.checkpoint, piece.owed, piece.untold), at + 1, 1
    kept = () if begin.last is None else await _kept(begin.last, installed)
    unchecked = dict.fromkeys(what for each in done for what in each.unchecked)
    notes = dict.fromkeys((*(note for each in done for note in each.notes), *kept))
    epochs = tuple(epoch for each in done for epoch in each.epochs)
    return Audited(epochs, tuple(unchecked), tuple(notes), done[-1].unread, done[0].before)


async def _pieces(
    row: ProcessorRow, processor: Processor, installed: AuditedInstallation, last: AuditCheckpoint | None
) -> list[Commit]:
    """The commits at which pieces end, but for the last piece; none where an audit cannot go on from a commit."""
    if processor.options.alignment_timeout_ms is not None:
        return []
    after, several = _stood(last, processor), len(processor.sources) > 1
    commits = await mirrored(row.job, installed.log, installed.topics, after, several=several)
    return pieces_of(commits, after, audit_settings().piece_records)


def _stood(last: AuditCheckpoint | None, processor: Processor) -> Commit | None:
    """The commit of a checkpoint."""
    several = len(processor.sources) > 1
    return None if last is None else commit_of(last.commit, last.place, last.offset, several=several)


@dataclass(frozen=True, slots=True)
class _Begin:
    """Where a piece begins."""

    last: AuditCheckpoint | None
    owed: Mapping[VertexId, RowSum]
    """By output: rows that the pieces before expect in files that hold those of several epochs."""
    untold: frozenset[VertexId]
    """Outputs of which it is not known what others wrote there."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of an audit that has found no discrepancy."""

    audited: Audited
    checkpoint: AuditCheckpoint | None
    """To go on from; None: not possible."""
    owed: dict[VertexId, RowSum]
    untold: frozenset[VertexId]


async def _piece(
    row: ProcessorRow,
    plan: RunningPlan,
    processor: Processor,
    installed: AuditedInstallation,
    begin: _Begin,
    until: Commit | None,
) -> _Piece | None:
    """None: its outputs alone cannot be judged, those of more epochs may."""
    tables = await targets_of(row, processor, installed, rows=until is None)
    try:
        return await _audited(row, plan, processor, installed, tables, begin, until)
    except PluginError as error:
        raise NotAuditable(str(error)) from error
    finally:
        for table in tables.values():
            if isinstance(table, TargetRead):
                table.close()


async def _audited(
    row: ProcessorRow,
    plan: RunningPlan,
    processor: Processor,
    installed: AuditedInstallation,
    tables: Mapping[VertexId, TargetRead | Unread],
    begin: _Begin,
    until: Commit | None,
) -> _Piece | None:
    name, last = row.name, begin.last
    before, after = {} if last is None else last.outputs, _stood(last, processor)
    files = _files(processor, row.job, installed, before, None if until is None else until.epoch, begin.owed)
    commits = await read_history(
        row, processor, installed.store, installed.blobs, installed.log, installed.topics, after, until
    )
    known = commits if after is None else [after, *commits]
    aligned = processor.options.alignment_timeout_ms is None
    _has_what_is_compared(name, known, aligned=aligned)
    outputs = await _outputs(processor, row, known, installed, {**tables, **files}, begin, until)
    _is_unchanged(name, plan.since)
    sources = sources_of(row, processor, installed)
    splits = await source_records(sources, known, after)
    left = [what for source in sources for what in await source.unread(row, known)] if until is None else []
    began = sorted(known[0].stands) if last is None else last.began
    stands = _stands(sources, commits, after, began)
    read = [table for table in tables.values() if isinstance(table, TargetRead)]
    expected = await _expected(processor, installed, outputs)
    expected |= {table.vertex: replace(table.expected, accept=table.rejected) for table in read}
    accepts, texts = _by_vertex(expected)
    kept, run = _released(commits, outputs) if aligned else NO_EPOCH, None if last is None else last.run
    again = partial(recompute, processor, splits, stands, name, accepts=accepts, texts=texts, code=plan.code)
    refusals = told_refusals(processor, outputs, commits, expected)
    again = partial(again, running=plan.tasks, begin=run, keep=kept, refusals=refusals and refusals.fresh)
    again = partial(again, noted={commit.epoch: commit.noted for commit in commits})
    done = await _recomputed(again, expected)
    late = _told_late(done.plan, outputs, splits, commits) if done.paced and aligned else None
    told = None if late is None else await _recomputed(partial(again, late=late.places), expected)
    sure = late is not None and late.all_told and _tell(done.paced, known)
    moments = (last is not None and last.moments) or _has_moments(known)
    by_epoch = aligned and not (moments or _may_have_idled(sources, commits)) and (sure or not done.paced)
    unchecked = [f"{table.vertex}: {table.why}" for table in tables.values() if isinstance(table, Unread)]
    compared = partial(_compared, outputs=outputs, commits=commits, expected=expected, read=read, by_epoch=by_epoch)
    compared = partial(compared, kept=kept, part=until is not None)
    async with or_compacted(sources, splits, known, after):
        done, judged = await _by_letters(done, told, compared, sure=sure)
    if judged is None:
        return None
    unchecked += judged
    notes = tuple(note for table in read for note in table.notes)
    vouched = {vertex: output for vertex, output in outputs.items() if not done.reasons(vertex)}
    covered = NOTHING if last is None else last.covered
    account = account_of(done, outputs, vouched, commits, after)
    goes_on = all(_can_go_on(table, outputs) for table in tables.values())
    checkpoint = None
    if done.kept is not None and goes_on and (until is None or kept == until.epoch):
        at = next(commit for commit in commits if commit.epoch == kept)
        checkpoint = AuditCheckpoint(
            document=digest_of_plan(plan),
            commit=at.row,
            place=at.place,
            offset=at.offset,
            began=began,
            moments=moments,
            covered=covered.with_epochs(each for each in account if each.epoch <= kept),
            run=done.kept,
            outputs={vertex: output.keep(kept, before.get(vertex, NO_OUTPUT)) for vertex, output in outputs.items()},
        )
    owed = {vertex: begin.owed.get(vertex, NO_ROWS) + output.owed for vertex, output in outputs.items()}
    untold = frozenset(vertex for vertex, output in outputs.items() if not output.tells)
    return _Piece(Audited(account, tuple(unchecked), notes, tuple(left), covered), checkpoint, owed, untold)


def _by_vertex(expected: Mapping[VertexId, ExpectedOutput]) -> tuple[dict[VertexId, Accept], dict[VertexId, Texts]]:
    """What targets refuse, and how they have rows where documents alone do not tell."""
    texts = {vertex: at.texts for vertex, at in expected.items() if at.texts is not None}
    return {vertex: at.accept for vertex, at in expected.items()}, texts


def _is_unchanged(name: ProcessorName, since: Epoch) -> None:
    """NotAuditable behind a modify."""
    if since > NO_EPOCH:
        message = (
            f"{name}: its document, or the code of its computations, was changed at checkpoint {since}, or it went back to a kept one"
            " there, and what came out before followed from another one: it cannot be computed again. Markers, manifests and digests"
            " are as they should be"
        )
        raise NotAuditable(message)


def _can_go_on(table: TargetRead | Unread, outputs: Mapping[VertexId, Output]) -> bool:
    """Whether a later audit may go on from this one: not over a table that could not be read, or judged, this time alone."""
    return table.always if isinstance(table, Unread) else outputs[table.vertex].table is not None


def _has_what_is_compared(name: ProcessorName, commits: Sequence[Commit], *, aligned: bool) -> None:
    """NotAuditable where nothing is committed, or what came out up to the last commit follows from no positions."""
    if not commits:
        message = f"{name} has committed nothing yet; there is nothing to audit"
        raise NotAuditable(message)
    if not aligned and not commits[-1].row.final:
        message = (
            f"{name}: with options.checkpoint.alignmentTimeout a checkpoint's records may still be on their way behind it, so its output is"
            " no function of positions before the end: drain it, then audit it"
        )
        raise NotAuditable(message)


async def _recomputed(again: Callable[[], Recomputed], expected: Mapping[VertexId, ExpectedOutput]) -> Recomputed:
    """What comes out; once more behind each topic of which an expectation had to ask first."""
    while True:
        try:
            done = again()
            if done.beyond:
                raise AuditFailed(done.beyond)
            return done
        except Unregistered as missing:
            asked = [await each.ask(missing.topic) for each in expected.values()]
            if not any(asked):
                message = f"topic {missing.topic}: there are more topics than an audit keeps numbers of schemas for"
                raise NotAuditable(message) from missing


@dataclass(frozen=True, slots=True)
class _ToldLate:
    """What dead letters say of the rows that came late."""

    places: Mapping[VertexId, Positions]
    """By source."""
    all_told: bool
    """No letter is missing, or without the place of its record."""


def _told_late(
    plan: PhysicalPlan, outputs: Mapping[VertexId, Output], splits: Sequence[SplitRecords], commits: Sequence[Commit]
) -> _ToldLate | None:
    """The records that dead letters name as late; None: no queue tells them."""
    queues = {v.id: outputs.get(v.id) for v in plan.vertices if isinstance(v.head, DeadLetterHead)}
    letters: list[Document] = []
    all_told = True
    for vertex, queue in queues.items():
        if queue is None:
            return None
        all_told &= not (queue.gone or queue.untold or queue.owed.rows or queue.mixed)
        all_told &= all(queue.complete(commit, vertex) for commit in commits)
        try:
            letters += [parse_json(text) for text, _ in chain(*queue.texts.values(), queue.large)]
        except ExtendedJsonError:  # they have another form
            return None
    if not queues:
        return None
    late = [letter for letter in letters if letter["errInfo"]["reason"] == LATE]
    places: dict[VertexId, Positions] = {}
    told = [0] * len(late)
    for source in sorted({split.source for split in splits}):
        topic = context_of(plan, source, "").topic
        partitions = {source_place(topic, split.ordinal): split.ordinal for split in splits if split.source == source}
        found = [late_places([letter], None, partitions) for letter in late]
        places[source] = frozenset().union(*found)
        told = [times + len(each) for times, each in zip(told, found, strict=True)]
    # Where two sources read one topic, a letter may be of either.
    return _ToldLate(places, all_told and all(times == 1 for times in told))


async def _by_letters(
    done: Recomputed,
    told: Recomputed | None,
    compared: Callable[[Recomputed], Awaitable[list[str] | None]],
    *,
    sure: bool,
) -> tuple[Recomputed, list[str] | None]:
    """A run that knows from letters which rows came late, if everything follows from it; else the one that does not. As compared.

    sure: letters tell all that is not known; AuditFailed, too, for what does not follow.
    """
    if told is not None and sure:
        return told, await compared(told)
    judged = None
    if told is not None:
        with suppress(AuditFailed):  # of a row that missed some of its windows, letters do not tell all
            judged = await compared(told)
    return (done, await compared(done)) if told is None or judged is None else (told, judged)


async def _compared(
    done: Recomputed,
    *,
    outputs: Mapping[VertexId, Output],
    commits: Sequence[Commit],
    expected: Mapping[VertexId, ExpectedOutput],
    read: Sequence[TargetRead],
    by_epoch: bool,
    kept: Epoch,
    part: bool,
) -> list[str] | None:
    """As `_judged`, and then the tables."""
    judged = await _judged(done, outputs, commits, expected, by_epoch=by_epoch, part=part)
    if judged is None:
        return None
    for table in read:
        if table.vertex not in done.chance:
            compare(table, done.epochs, outputs[table.vertex], commits, by_epoch=by_epoch, keep=kept, part=part)
    return [*judged, *(why for table in read for why in table.unchecked)]


async def _judged(
    done: Recomputed,
    outputs: Mapping[VertexId, Output],
    commits: Sequence[Commit],
    expected: Mapping[VertexId, ExpectedOutput],
    *,
    by_epoch: bool,
    part: bool,
) -> list[str] | None:
    """About which outputs nothing is said, and why. AuditFailed for another that is not as it must be.

    None: of a piece, where rows that follow from one of its epochs may have come out in another one, which may lie behind its end.
    """
    unchecked, loose = [], part and not by_epoch
    for vertex, output in outputs.items():
        whys = done.reasons(vertex)
        unchecked += [f"{vertex}: {why}" for why in whys]
        if vertex in done.chance:
            continue
        if loose and (output.gone or output.untold):
            return None
        try:
            how = expected.get(vertex, PLAIN)
            await same(vertex, done, output, commits, how, by_epoch=by_epoch, others=bool(whys), part=part)
        except NotAuditable:
            raise
        except AuditFailed:
            if loose:
                return None
            raise
    return unchecked


async def _kept(checkpoint: AuditCheckpoint, installed: AuditedInstallation) -> tuple[str, ...]:
    """What is to be said of it: nothing, or why the next audit cannot begin there."""
    try:
        await keep(checkpoint, installed.blobs, installed.keys)
    except BlobError as error:
        return (f"the next audit cannot begin at checkpoint {checkpoint.commit.epoch}: {error}",)
    return ()


def _released(commits: Sequence[Commit], outputs: Mapping[VertexId, Output]) -> Epoch:
    """The last commit up to which all outputs are complete; NO_EPOCH: not even the first is, or files have later rows, too."""
    complete = takewhile(lambda commit: all(o.complete(commit, vertex) for vertex, o in outputs.items()), commits)
    last = max((commit.epoch for commit in complete), default=NO_EPOCH)
    return last if all(o.last_mixed <= last for o in outputs.values()) else NO_EPOCH


def can_be_computed_again(processor: Processor) -> None:
    """NotAuditable for a document with a result that is no function of the records of its sources."""
    for use in plugin_uses(processor.pipeline):
        if use.kind not in ("format", "computation"):
            raise NotAuditable(f"{use.path}: an audit asks no plug-in for what was read or written")
    refused(processor)
    for stage in all_stages(processor.pipeline):
        if isinstance(stage, Lookup | Https):
            raise NotAuditable(
                f"{stage.path}: what was answered then cannot be asked for now; no audit can compute it again"
            )
        if isinstance(stage, HttpsEmit):
            raise NotAuditable(f"{stage.path}: nobody can read back what a server was told")


def _stands(
    sources: Sequence[SourceRead], commits: Sequence[Commit], after: Commit | None, first: Collection[SplitId]
) -> list[tuple[Epoch, Mapping[SplitId, Stand]]]:
    """Where splits stood at each barrier, and which of them were idle, or came, on the way there.

    after: the commit in front of these. first: the splits of the job's first commit.
    """
    may_idle = _may_idle(sources)
    found: list[tuple[Epoch, Mapping[SplitId, Stand]]] = []
    before: Mapping[SplitId, SplitStand] = {} if after is None else after.stands
    for commit in commits:
        stands = {}
        for split, stand in commit.stands.items():
            last = before.get(split)
            away = (split not in first and _is_new(last)) or (may_idle and _idled(stand, last))
            stands[split] = Stand(stand.next, _status(stand.status, commit), away, commit.waits)
        found.append((commit.epoch, stands))
        before = commit.stands
    return found


def _is_new(last: SplitStand | None) -> bool:
    """Whether nothing of a split had been read at the commit before: its task says that it is not idle with the first rows."""
    return last is None or last.next == last.begin


def _idled(stand: SplitStand, last: SplitStand | None) -> bool:
    """Whether a split was idle since the commit before; also where an earlier release did not note it."""
    idle = "idle" in (stand.status, None if last is None else last.status)
    return idle or stand.idled is None or stand.idled >= (stand.begin if last is None else last.next)


def _status(status: str, commit: Commit) -> Status:
    if status not in get_args(Status):
        message = f"{commit.place}: commit {commit.epoch}: a split is {status!r}, expected one of {get_args(Status)}"
        raise AuditFailed(message)
    return status  # type: ignore[return-value]


def _may_idle(sources: Sequence[SourceRead]) -> bool:
    return any(source.stage.partition_idle_timeout_ms is not None for source in sources)


def _may_have_idled(sources: Sequence[SourceRead], commits: Sequence[Commit]) -> bool:
    """Whether nobody noted what idle splits let the watermark reach."""
    return _may_idle(sources) and not _all_noted(commits)


def _all_noted(commits: Sequence[Commit]) -> bool:
    """Whether all say where the watermark stood."""
    return all(commit.noted.reached_ms for commit in commits)


def _tell(paced: Sequence[Judge], commits: Sequence[Commit]) -> bool:
    """Whether letters say all that these judges decided: not, where receivers waited for a task that had nothing to read."""
    return all(judge.tells for judge in paced) and (_all_noted(commits) or not any(commit.waits for commit in commits))


def _has_moments(commits: Sequence[Commit]) -> bool:
    """Whether nobody noted when within an epoch the watermark was let go or held: by a task without splits, or a split that came (W2)."""
    came = len({frozenset(commit.stands) for commit in commits}) > 1
    return not _all_noted(commits) and (came or any(commit.waits for commit in commits))


async def audit_local(name: ProcessorName, data_dir: Path) -> Audited:
    """Audit a processor of this machine, whether it runs or not."""
    async with local_installation(data_dir) as installed:
        return await audit(name, installed)


# --- the outputs ----------------------------------------------------------------------------------------------------------


def _files(
    processor: Processor,
    job: JobId,
    installed: AuditedInstallation,
    before: Mapping[VertexId, KeptOutput],
    until: Epoch | None,
    owed: Mapping[VertexId, RowSum],
) -> dict[VertexId, FilesRead]:
    """The files that `$emit` stages write, as they are now, up to this epoch."""
    found = {}
    for vertex in plan_processor(processor, engine="local").vertices:
        if isinstance(vertex.head, WriteHead | DeadLetterHead) and isinstance(stage := stage_of(vertex.head), FileEmit):
            installed.check_place(processor, stage)
            connection, kept = _connection(processor, stage, installed.environment), before.get(vertex.id, NO_OUTPUT)
            due = owed.get(vertex.id, NO_ROWS)
            found[vertex.id] = read_files(stage, connection, job, vertex.id, kept, until=until, owed=due)
    return found


async def _outputs(
    processor: Processor,
    row: ProcessorRow,
    commits: Sequence[Commit],
    installed: AuditedInstallation,
    reads: Mapping[VertexId, TargetRead | Unread | FilesRead],
    begin: _Begin,
    until: Commit | None,
) -> dict[VertexId, Output]:
    found: dict[VertexId, Output] = {}
    last = begin.last
    before, since = ({}, NO_EPOCH) if last is None else (last.outputs, last.commit.epoch)
    ended = row.state == "FINISHED" and until is None
    end = None if until is None else until.epoch
    for vertex in plan_processor(processor, engine="local").vertices:
        if not isinstance(vertex.head, WriteHead | DeadLetterHead):
            continue
        kept = before.get(vertex.id, NO_OUTPUT)
        tells = vertex.id not in begin.untold
        what = VertexReleases(
            row.job, vertex.id, commits, ended=ended, before=kept, since=since, until=end, tells=tells
        )
        match stage_of(vertex.head):
            case KafkaEmit() as stage:
                found[vertex.id] = await topic_output(installed.log_at(processor, stage.connection_name), stage, what)
            case _:
                match reads[vertex.id]:
                    case FilesRead() as read:
                        found[vertex.id] = file_output(read, what)
                    case TargetRead() as read:
                        found[vertex.id] = await merged_output(read, what, installed.blobs)
                    case Unread():
                        continue
        if what.ended and not all(found[vertex.id].complete(commit, vertex.id) for commit in commits):
            message = (
                f"{vertex.id}: the processor is FINISHED with commit {commits[-1].epoch}, but markers stand at "
                f"{found[vertex.id].released}"
            )
            raise AuditFailed(message)
    return found


async def _expected(
    processor: Processor, installed: AuditedInstallation, outputs: Mapping[VertexId, Output]
) -> dict[VertexId, ExpectedOutput]:
    """The rows that topics and files would not have taken, and the form of documents there."""
    found: dict[VertexId, ExpectedOutput] = {}
    plan = plan_processor(processor, engine="local")
    for vertex in plan.vertices:
        topics = context_of(plan, vertex.id, "").topic
        match stage_of(vertex.head) if isinstance(vertex.head, WriteHead) else None:
            case KafkaEmit() as stage:
                connection = processor.connections[stage.connection_name]
                with suppress(InvalidDocument):
                    connection = resolve(connection, installed.environment)
                log = installed.log_at(processor, stage.connection_name)
                forms, prefix = forms_at(processor, stage, installed), installed.topics.prefix
                found[vertex.id] = each = await expected_at_topic(stage, connection, log, prefix, topics, forms)
                for topic in sorted({written.topic for written, _ in outputs[vertex.id].ranges}):
                    await each.ask(topic)
            case FileEmit() as stage:
                found[vertex.id] = expected_in_files(stage, topics)
    return found


def _connection(processor: Processor, stage: FileEmit, environment: Mapping[str, str]) -> Connection | None:
    name = stage.connection_name
    return None if name is None else resolve(processor.connections[name], environment)
