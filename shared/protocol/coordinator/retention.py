"""Decides which commit rows and names must stay and which may go (C11, C12)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tidemark.shared.model.checkpoint import CommitRow
from tidemark.shared.model.ids import Epoch, Incarnation, JobId, Offset, VertexId
from tidemark.shared.model.messages import EdgeBinding
from tidemark.shared.protocol.coordinator.commands import Floor
from tidemark.shared.protocol.coordinator.record import Identity

_NAME_PARTS = 5
"""job / vertex or edge / generation / epoch / unique name."""


class Retained:
    """The commit rows of a job that are kept (C11). No question that a step asks looks at those that nobody waits for."""

    def __init__(self, rows: Iterable[CommitRow] = ()) -> None:
        self._rows = {row.epoch: row for row in rows}
        """Oldest first."""
        self._waiting = list(self._rows.values())
        self._over: dict[Epoch, None] = {}
        """Released by all, and not named."""
        self._sinks = frozenset[VertexId]()
        self._named = frozenset[Epoch]()

    def __iter__(self) -> Iterator[CommitRow]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def newest(self) -> CommitRow | None:
        """The last committed one."""
        return next(reversed(self._rows.values()), None)

    def of(self, epoch: Epoch) -> CommitRow | None:
        """A kept row."""
        return self._rows.get(epoch)

    def watch(self, sinks: frozenset[VertexId], named: frozenset[Epoch]) -> None:
        """Releases of these vertices count, removed sinks too, and these commits stay. Where either changes all rows are judged anew."""
        if (sinks, named) != (self._sinks, self._named):
            self._sinks, self._named = sinks, named
            self._waiting, self._over = list(self), {}

    def add(self, row: CommitRow) -> None:
        """A commit that follows the last one."""
        self._rows[row.epoch] = row
        self._waiting.append(row)

    def forget(self, epochs: Iterable[Epoch]) -> None:
        """These rows are gone."""
        for epoch in epochs:
            self._rows.pop(epoch, None)
            self._over.pop(epoch, None)

    def unreleased(self, released: Mapping[Identity, Epoch]) -> list[CommitRow]:
        """Commits that some sink has not reported as released, oldest first (C11). What a sink has released stays so."""
        still = []
        for row in self._waiting:
            if any(h.vertex in self._sinks and released.get((h.vertex, h.index), 0) < row.epoch for h in row.tasks):
                still.append(row)
            elif row.epoch not in self._named:
                self._over[row.epoch] = None
        self._waiting = still
        return still

    def superfluous(self, last: Epoch, most: int) -> tuple[Epoch, ...]:
        """Rows that may be forgotten, as far as `unreleased` has seen (C11); so many at the most."""
        return tuple(islice((epoch for epoch in self._over if epoch != last), most))


def blobs_kept(commits: Iterable[CommitRow]) -> frozenset[str]:
    """Every blob that a retained checkpoint lists: in parts, in manifests, of any task (C12)."""
    names: set[str] = set()
    for commit in commits:
        for handle in commit.tasks:
            names.update(b.name for b in handle.blobs)
            names.update(p.blob.name for p in handle.parts if p.blob is not None)
    return frozenset(names)


@dataclass(frozen=True, slots=True)
class BlobName:
    """A blob's name taken apart."""

    job: JobId
    epoch: Epoch


def parse_blob_name(name: str) -> BlobName | None:
    """`job/vertex-or-edge/generation/epoch/name`; None for anything else, which is never deleted."""
    parts = name.split("/")
    if len(parts) < _NAME_PARTS or not parts[3].isdigit():
        return None
    return BlobName(JobId(parts[0]), Epoch(int(parts[3])))


def blob_may_go(name: str, job: JobId, up_to: Epoch | None, keep: frozenset[str]) -> bool:
    """Whether `DeleteBlobs(job, up_to, keep)` means this name (C12): not newer than the last commit, and on no list."""
    parsed = parse_blob_name(name)
    if parsed is None or parsed.job != job or name in keep:
        return False
    return up_to is None or parsed.epoch <= up_to


AUDIT: Final = "audit"
"""In the place of a vertex, in names of checkpoints that audits have made."""


def audit_folder(job: JobId) -> str:
    """Where the checkpoints of a job's audits lie."""
    return f"{job}/{AUDIT}/"


def audits_kept(names: Iterable[str], job: JobId) -> frozenset[str]:
    """The latest checkpoint of a job's audits: the next one goes on there."""
    found = [(parsed.epoch, n) for n in names if n.startswith(audit_folder(job)) and (parsed := parse_blob_name(n))]
    return frozenset({max(found)[1]} if found else ())


def record_floors(commits: Iterable[CommitRow], last: Epoch, edges: Iterable[EdgeBinding]) -> tuple[Floor, ...]:
    """Per partition of the current edges the lowest offset that a retained checkpoint could resume from (C12).

    Only where the last checkpoint knows the edge: until then its reader starts at the beginning.
    """
    topics = {b.incarnation: b.topic for b in edges}
    lowest: dict[tuple[Incarnation, int], Offset] = {}
    for commit in sorted(commits, key=lambda c: -c.epoch):
        for handle in commit.tasks:
            for state in handle.protocol.inputs:
                key = (Incarnation(state.incarnation), handle.index)
                if commit.epoch == last or key in lowest:
                    lowest[key] = min(lowest.get(key, state.resume_offset), state.resume_offset)
    return tuple(
        Floor(topics[incarnation], partition, offset)
        for (incarnation, partition), offset in sorted(lowest.items())
        if incarnation in topics and offset > 0
    )
