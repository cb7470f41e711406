"""The releases of one identity against the commits: what its markers or manifests may say, in which order (protocol, S1, S2)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidemark.services.cli.audit_history import AuditFailed, Commit, Identity
from tidemark.shared.model.ids import NO_EPOCH, Epoch


@dataclass(frozen=True, slots=True)
class Step:
    """What a marker or a manifest says."""

    epoch: Epoch
    predecessor: Epoch | None
    part: int
    parts: int
    empty: bool
    """It stands for no output: an identity may begin or join with it."""
    place: str


def released_steps(
    identity: Identity, steps: Sequence[Step], commits: Sequence[Commit]
) -> Iterator[tuple[Step, Commit]]:
    """The steps that release something, each with its commit. AuditFailed at the first that the commits do not allow."""
    named = {commit.epoch: commit for commit in commits if identity in commit.staged}
    marker: Epoch | None = None
    part, parts = 1, 1
    for step in steps:
        begins = marker is None or (step.empty and step.epoch not in named)
        if part < parts:
            if (step.epoch, step.part, step.parts) != (marker, part + 1, parts):
                raise AuditFailed(_said(step, f"part {part + 1} of {parts} of commit {marker}"))
        elif begins:
            _begins(step, marker, named)
        else:
            following = next((epoch for epoch in named if epoch > (marker or NO_EPOCH)), None)
            if following is None:
                raise AuditFailed(_said(step, f"nothing behind commit {marker}"))
            if (step.epoch, step.predecessor, step.part) != (following, named[following].row.predecessor, 1):
                raise AuditFailed(_said(step, f"commit {following} behind {named[following].row.predecessor}"))
        if not begins:
            yield step, named[step.epoch]
        marker, part, parts = step.epoch, step.part, step.parts


def _begins(step: Step, marker: Epoch | None, named: Mapping[Epoch, Commit]) -> None:
    """An identity begins, or comes back, at a checkpoint that has nothing of it, and passes over no commit that names it."""
    if step.predecessor != marker or step.parts != 1 or not step.empty:
        raise AuditFailed(_said(step, f"an empty beginning behind {marker}"))
    passed = next((epoch for epoch in named if (marker or NO_EPOCH) < epoch <= step.epoch), None)
    if passed is not None:
        raise AuditFailed(_said(step, f"commit {passed}, which is passed over"))


def _said(step: Step, expected: str) -> str:
    of = f"part {step.part} of {step.parts} of " if step.parts > 1 else ""
    return f"{step.place}: says {of}commit {step.epoch} behind {step.predecessor}, expected {expected}"
