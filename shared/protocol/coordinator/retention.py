"""Decides which commit rows and names must stay and which may go (C11, C12): pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemark.shared.model.checkpoint import CommitRow
from tidemark.shared.model.ids import Epoch, Incarnation, JobId, Offset, VertexId
from tidemark.shared.model.messages import EdgeBinding
from tidemark.shared.protocol.coordinator.commands import Floor
from tidemark.shared.protocol.coordinator.record import Identity

_NAME_PARTS = 5
"""job / vertex or edge / generation / epoch / unique name."""


def unreleased(
    commits: Iterable[CommitRow], sinks: frozenset[VertexId], released: Mapping[Identity, Epoch]
) -> list[Epoch]:
    """Commits that some sink has not reported as released, oldest first (C11). `sinks`: removed ones too."""
    return [
        c.epoch
        for c in commits
        if any(released.get((h.vertex, h.index), 0) < c.epoch for h in c.tasks if h.vertex in sinks)
    ]


def retained(
    commits: Sequence[CommitRow], last: Epoch, waiting: Iterable[Epoch], named: Iterable[Epoch]
) -> tuple[list[CommitRow], list[Epoch]]:
    """Commit rows that stay, and the epochs of those that may be forgotten (C11)."""
    stay = {last, *waiting, *named}
    return [c for c in commits if c.epoch in stay], [c.epoch for c in commits if c.epoch not in stay]


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


def record_floors(commits: Sequence[CommitRow], last: Epoch, edges: Iterable[EdgeBinding]) -> tuple[Floor, ...]:
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
