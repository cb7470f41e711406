"""The commits of a job as an audit takes them: from the mirror, checked against itself, the lineage and the coordinator's store.

Nothing is taken on trust that is told twice: chain, digests, generations, positions that only grow, the rows that the store still has, and
the blobs that these list. The first difference is a Discrepancy that names the place.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import MsgspecError, structs

from tidemark.services.audit.reach import Noted
from tidemark.services.audit.reading import committed_records
from tidemark.shared.language.documents import Processor
from tidemark.shared.model.checkpoint import BlobRef, CommitRow, MirrorRow, SplitStand
from tidemark.shared.model.ids import FIRST_OFFSET, NO_EPOCH, Epoch, Generation, JobId, Offset, SplitId, VertexId
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.ports.blobs import BlobError, BlobStore
from tidemark.shared.ports.commits import CommitStore
from tidemark.shared.ports.log import Log, TopicPartition
from tidemark.shared.protocol.coordinator.checkpoints import CommitPermit
from tidemark.shared.protocol.coordinator.record import decode_plan
from tidemark.shared.runtime.exchange import digest_of
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.limits import WireError
from tidemark.shared.wire.messages import decode_mirror_row, decode_stands

Identity = tuple[VertexId, int]


class AuditFailed(Exception):
    """The first discrepancy."""


class NotAuditable(AuditFailed):
    """Records or outputs that an audit needs are gone, or were never kept: no statement, and no success."""


class PastGone(NotAuditable):
    """Time has taken what an audit from the job's begin needs."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed checkpoint, from the mirror."""

    row: MirrorRow
    stands: Mapping[SplitId, SplitStand]
    """By the names that splits have here (`name_of_split`)."""
    place: str
    """Where its row lies."""
    offset: Offset = FIRST_OFFSET
    """The same, in the mirror."""

    @property
    def epoch(self) -> Epoch:
        """The checkpoint's number."""
        return self.row.epoch

    @property
    def noted(self) -> Noted:
        """What it says of watermarks."""
        return Noted({each.vertex: each.watermark_ms for each in self.row.reached}, frozenset(self.row.between))

    @property
    def waits(self) -> bool:
        """Whether a task of a source had nothing to read: receivers waited until it said that it is idle, or at its end (W3, E1)."""
        return any(not decode_stands(source.positions) for source in self.row.sources)

    @property
    def goes_back(self) -> bool:
        """Whether by it a processor went back to a kept checkpoint: it alone has nothing of any sink (C11)."""
        return not self.row.handles

    @property
    def staged(self) -> dict[Identity, bytes]:
        """By release identity: the handle of its staged data."""
        return {(h.vertex, h.index): h.staged for h in self.row.handles}


async def read_history(
    row: ProcessorRow,
    processor: Processor,
    store: CommitStore,
    blobs: BlobStore,
    log: Log,
    topics: Topics,
    after: Commit | None = None,
    until: Commit | None = None,
) -> list[Commit]:
    """The commits of a job behind this one, or from the first, up to that one, or to the last, oldest first. AuditFailed, NotAuditable."""
    commits = await mirrored(row.job, log, topics, after, until, several=len(processor.sources) > 1)
    if after is None:
        await _from_the_first(row.job, commits, store, topics)
    _chained(commits, after, decode_plan(row.plan).since)
    await _of_lineage(row.job, commits, store, after)
    kept = await _stored(row, commits, store)
    if until is None:
        for commit in kept:
            await _intact(commit, store, blobs)
    return commits


async def _from_the_first(job: JobId, commits: Sequence[Commit], store: CommitStore, topics: Topics) -> None:
    """NotAuditable where the mirror begins behind the first commit."""
    stored = () if commits else await store.commits(job, NO_EPOCH)
    first, predecessor = next(
        ((each.epoch, each.predecessor) for each in (*(c.row for c in commits[:1]), *stored)), (NO_EPOCH, NO_EPOCH)
    )
    if predecessor != NO_EPOCH:
        what = (
            f"commit {first} follows {predecessor}, which is not there" if commits else f"commit {first} is not there"
        )
        raise NotAuditable(_made_anew(topics.commits(job), what))


def pieces_of(commits: Sequence[Commit], after: Commit | None, records_max: int) -> list[Commit]:
    """The commits at which pieces end, but for the last piece: each has so many records at the most, or those of one commit."""
    ends: list[Commit] = []
    records = 0
    for last, taken in zip((None, *commits), positions_of(commits, after), strict=False):
        came = sum(end - first for first, end in taken.values())
        if last is not None and records and records + came > records_max:
            ends.append(last)
            records = 0
        records += came
    return ends


def positions_of(commits: Sequence[Commit], after: Commit | None) -> Iterator[dict[SplitId, tuple[int, int]]]:
    """Of each commit, by split: the first position that it covers, and the first behind it. after: the commit in front of these."""
    before = {} if after is None else {split: int(stand.next) for split, stand in after.stands.items()}
    for commit in commits:
        stands = sorted(commit.stands.items())
        taken = {split: (before.get(split, int(stand.begin)), int(stand.next)) for split, stand in stands}
        before.update({split: end for split, (_, end) in taken.items()})
        yield taken


# --- the mirror -------------------------------------------------------------------------------------------------------------


def name_of_split(source: VertexId, split: SplitId, *, several: bool) -> SplitId:
    """A name that no split of another source has: several may read one topic, and each has its own position in it."""
    return SplitId(f"{source}/{split}") if several else split


async def mirrored(
    job: JobId, log: Log, topics: Topics, after: Commit | None, until: Commit | None = None, *, several: bool
) -> list[Commit]:
    """The rows of the mirror behind this one, up to that one; a repeat says the same as the first. AuditFailed, NotAuditable."""
    topic = topics.commits(job)
    if topic not in await log.list_topics():
        message = f"topic {topic}: the mirror of the commits is not there; it stays while the job lives"
        raise NotAuditable(message)
    partition = TopicPartition(topic, 0)
    begin = (await log.begin_offsets([partition]))[partition]
    first = FIRST_OFFSET if after is None else Offset(after.offset + 1)
    if begin > first:
        message = (
            f"topic {topic}: rows below offset {begin} are gone: a job that has committed more than mirror_rows_kept of the coordinator"
            f" keeps no history, and an audit needs it from offset {first} on"
        )
        raise PastGone(message)
    due = after if after is not None and begin <= after.offset else None
    first = first if due is None else due.offset
    found: dict[Epoch, Commit] = {} if after is None else {after.epoch: after}
    behind = None if until is None else Offset(until.offset + 1)
    async for record in committed_records(log, topic, since=first, until=behind):
        place = f"topic {topic} offset {record.offset}"
        try:
            row = decode_mirror_row(record.value or b"")
        except WireError as error:
            message = f"{place}: {error}"
            raise AuditFailed(message) from error
        if row.job != job:
            message = f"{place}: expected a commit of job {job}, found one of job {row.job}"
            raise AuditFailed(message)
        if due is not None and not _alike(row, due.row):
            break
        due, known = None, found.get(row.epoch)
        if known is None and after is not None and row.epoch < after.epoch:
            continue  # a repeat
        if known is not None and not _alike(known.row, row):
            message = (
                f"{place}: commit {row.epoch} differs from the row of the same number at {known.place}: one of them "
                "was changed"
            )
            raise AuditFailed(message)
        found.setdefault(row.epoch, commit_of(row, place, record.offset, several=several))
    if due is not None:
        raise NotAuditable(
            _made_anew(topic, f"commit {due.epoch} is not at offset {due.offset}, where an earlier audit saw it")
        )
    return [commit for commit in found.values() if commit is not after]


def _made_anew(topic: str, what: str) -> str:
    return (
        f"topic {topic}: {what}: the mirror of the commits was deleted and made anew, and has not all of them any more, so this job"
        " cannot be audited. Markers, outputs and the job itself are as they were; a job that starts without state has a mirror of its own"
    )


def _alike(one: MirrorRow, other: MirrorRow) -> bool:
    """Whether both tell the same commit; a row of an earlier release does not tell how far time had come."""
    if one.reached and other.reached:
        return one == other
    return structs.replace(one, reached=()) == structs.replace(other, reached=())


def commit_of(row: MirrorRow, place: str, offset: Offset, *, several: bool) -> Commit:
    """A row of the mirror. AuditFailed where a digest is not that of its data."""
    return Commit(row, _stands(row, place, several=several), place, offset)


def _stands(row: MirrorRow, place: str, *, several: bool) -> dict[SplitId, SplitStand]:
    """Positions by split, and every digest of the row checked."""
    told = [(h.vertex, h.index, h.staged, h.digest) for h in row.handles]
    told += [(h.vertex, h.index, h.positions, h.digest) for h in row.sources]
    for vertex, index, data, digest in told:
        if digest_of(data) != digest:
            message = (
                f"{place}: commit {row.epoch}: the handle of {vertex}/{index} has digest {digest_of(data)}, expected "
                f"{digest}"
            )
            raise AuditFailed(message)
    found: dict[SplitId, SplitStand] = {}
    for source in row.sources:
        try:
            stands = decode_stands(source.positions)
        except WireError as error:
            message = f"{place}: commit {row.epoch}: {error}"
            raise AuditFailed(message) from error
        for stand in stands:
            name = name_of_split(source.vertex, stand.split, several=several)
            if name in found:
                raise AuditFailed(f"{place}: commit {row.epoch} has a split of {source.vertex} twice: {stand.split}")
            found[name] = stand
    return found


def _chained(commits: list[Commit], before: Commit | None, since: Epoch) -> None:
    """Each names the one before it; no split goes back, but where the processor did (C11), no later than at `since`."""
    for commit in commits:
        last = NO_EPOCH if before is None else before.epoch
        if commit.row.predecessor != last or commit.epoch <= last:
            message = (
                f"{commit.place}: commit {commit.epoch} follows {commit.row.predecessor}, expected {last}: a commit "
                "is missing or was changed"
            )
            raise AuditFailed(message)
        if commit.epoch <= since and commit.goes_back:
            before = commit
            continue
        for split, stand in commit.stands.items():
            reached = before.stands.get(split) if before is not None else None
            least = stand.begin if reached is None else reached.next
            if stand.next < least or (reached is not None and stand.begin != reached.begin):
                message = (
                    f"{commit.place}: commit {commit.epoch} covers {split} from {stand.begin} to {stand.next}, "
                    f"expected an end at or above {least}"
                )
                raise AuditFailed(message)
        if before is not None and (lost := before.stands.keys() - commit.stands.keys()):
            message = (
                f"{commit.place}: commit {commit.epoch} says nothing of {min(lost)}, which commit {before.epoch} had"
            )
            raise AuditFailed(message)
        before = commit


# --- lineage and store ------------------------------------------------------------------------------------------------------


async def _of_lineage(job: JobId, commits: list[Commit], store: CommitStore, after: Commit | None) -> None:
    """The first commit of a generation follows the checkpoint that the generation was restored from."""
    restored = {entry.generation: entry.restored_from for entry in await store.lineage(job)}
    oldest = min(restored, default=Generation(0))
    generation = Generation(0) if after is None else after.row.generation
    for commit in commits:
        row = commit.row
        if row.generation < oldest:
            continue  # of those that no assignment names any more
        if row.generation not in restored or row.generation < generation:
            message = (
                f"{commit.place}: commit {row.epoch} is of generation {row.generation}, expected one of "
                f"{sorted(restored)} and not below {generation}"
            )
            raise AuditFailed(message)
        if row.generation > generation and restored[row.generation] != row.predecessor:
            message = (
                f"{commit.place}: commit {row.epoch} is the first of generation {row.generation} and follows {row.predecessor}, "
                f"but that generation was restored from {restored[row.generation]}"
            )
            raise AuditFailed(message)
        generation = row.generation


async def _stored(row: ProcessorRow, commits: list[Commit], store: CommitStore) -> list[CommitRow]:
    """The commit rows that the store still has agree with the mirror."""
    try:
        stored = await store.commits(row.job, NO_EPOCH)
    except MsgspecError as error:
        message = f"coordinator's store: a commit row of job {row.job} does not decode: {error}"
        raise AuditFailed(message) from error
    mirrored = {commit.epoch: commit for commit in commits}
    last = max((commit.epoch for commit in stored), default=NO_EPOCH)
    if commits and commits[-1].epoch > last:
        message = (
            f"{commits[-1].place}: the mirror has commit {commits[-1].epoch}, the coordinator's store none above "
            f"{last}: it has lost one"
        )
        raise AuditFailed(message)
    for commit in stored:
        mirror = mirrored.get(commit.epoch)
        if mirror is None:
            continue  # committed, and on its way to the mirror
        sinks = frozenset(handle.vertex for handle in mirror.row.handles)
        expected = CommitPermit.of_read(commit).mirror_row(sinks)
        if not _alike(expected, mirror.row):
            what = next(f for f in MirrorRow.__struct_fields__ if getattr(expected, f) != getattr(mirror.row, f))
            message = (
                f"commit {commit.epoch}: the row in the coordinator's store and the one at {mirror.place} differ in "
                f"{what}: one was changed"
            )
            raise AuditFailed(message)
    return stored


async def _intact(commit: CommitRow, store: CommitStore, blobs: BlobStore) -> None:
    """Every blob that a checkpoint lists is there with its digest; of checkpoints that are still retained, for a running job moves on."""
    for handle in commit.tasks:
        refs: dict[str, BlobRef] = {part.blob.name: part.blob for part in handle.parts if part.blob is not None}
        refs.update({blob.name: blob for blob in handle.blobs})
        for ref in refs.values():
            try:
                await blobs.get(ref)
            except BlobError as error:
                if all(other.epoch != commit.epoch for other in await store.commits(commit.job, NO_EPOCH)):
                    return
                message = f"checkpoint {commit.epoch}, state of {handle.vertex}/{handle.index}: {error}"
                raise AuditFailed(message) from error


def first_offset(commits: Sequence[Commit], split: SplitId) -> Offset:
    """Where the job began to read a split."""
    return next(commit.stands[split].begin for commit in commits if split in commit.stands)


@dataclass(frozen=True, slots=True)
class ReleaseStep:
    """A step of a release, as a marker or a manifest tells it."""

    epoch: Epoch
    predecessor: Epoch | None
    part: int
    parts: int
    empty: bool
    """It stands for no output: an identity may begin or join with it."""
    place: str


def released_steps(
    identity: Identity, steps: Sequence[ReleaseStep], commits: Sequence[Commit], marker: Epoch | None
) -> Iterator[tuple[ReleaseStep, Commit]]:
    """The steps that release something, each with its commit. AuditFailed at the first that the commits do not allow.

    marker: the last step before these; None: the identity had none.
    """
    named = {commit.epoch: commit for commit in commits if identity in commit.staged}
    epochs = list(named)  # they rise
    backs = {commit.epoch: commit for commit in commits if commit.goes_back}
    part, parts = 1, 1
    for step in steps:
        begins = marker is None or (step.empty and step.epoch not in named)
        if part < parts:
            if (step.epoch, step.part, step.parts) != (marker, part + 1, parts):
                raise AuditFailed(_said(step, f"part {part + 1} of {parts} of commit {marker}"))
        elif begins:
            _begins(step, marker, named)
        elif step.epoch in backs:
            _goes_on(step, backs[step.epoch], marker, named)
        else:
            at = bisect_right(epochs, marker or NO_EPOCH)
            if at == len(epochs):
                raise AuditFailed(_said(step, f"nothing behind commit {marker}"))
            following = epochs[at]
            if (step.epoch, step.predecessor, step.part) != (following, named[following].row.predecessor, 1):
                raise AuditFailed(_said(step, f"commit {following} behind {named[following].row.predecessor}"))
        if not begins and step.epoch in named:
            yield step, named[step.epoch]
        marker, part, parts = step.epoch, step.part, step.parts


def _begins(step: ReleaseStep, marker: Epoch | None, named: Mapping[Epoch, Commit]) -> None:
    """An identity begins, or comes back, at a checkpoint that has nothing of it, and passes over no commit that names it."""
    if step.predecessor != marker or step.parts != 1 or not step.empty:
        raise AuditFailed(_said(step, f"an empty beginning behind {marker}"))
    _passes_none(step, marker, named)


def _goes_on(step: ReleaseStep, back: Commit, marker: Epoch | None, named: Mapping[Epoch, Commit]) -> None:
    """An identity takes note of a going back, which has no output."""
    if (step.predecessor, step.part, step.parts) != (back.row.predecessor, 1, 1):
        raise AuditFailed(_said(step, f"commit {back.epoch} behind {back.row.predecessor}"))
    _passes_none(step, marker, named)


def _passes_none(step: ReleaseStep, marker: Epoch | None, named: Mapping[Epoch, Commit]) -> None:
    passed = next((epoch for epoch in named if (marker or NO_EPOCH) < epoch <= step.epoch), None)
    if passed is not None:
        raise AuditFailed(_said(step, f"commit {passed}, which is passed over"))


def _said(step: ReleaseStep, expected: str) -> str:
    of = f"part {step.part} of {step.parts} of " if step.parts > 1 else ""
    return f"{step.place}: says {of}commit {step.epoch} behind {step.predecessor}, expected {expected}"
