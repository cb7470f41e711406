"""The transitions that a release marker allows a sink (protocol, S2). Every sink asks here, so that all refuse alike.

The marker of an identity is the last checkpoint with output visible at the target. It moves from a commit to the one that names
it as its predecessor, and in no other way.
"""

from typing import Final

from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.ids import NO_EPOCH, Epoch
from tidemark.shared.ports.sink import Identity, MarkerAhead, ReleaseGap, TargetRefused

NO_MARKER: Final = (
    "Start without state; if that fails for the same reason, because committed output has to be released before, drop the processor and"
    " create it again"
)
"""What is left to a user (E2)."""


def check_open(identity: Identity, marker: Epoch | None, restored_from: Epoch, place: str, *, joins: bool) -> None:
    """Whether an identity may be taken over from a marker (None: there is none) (S2).

    Raises:
        MarkerAhead: the target shows output that the restored checkpoint has not committed.
        TargetRefused: an identity that has released before has no marker any more.
    """
    if marker is None:
        if restored_from > NO_EPOCH and not joins:
            raise TargetRefused(
                f"{place}: the release marker of {identity} is gone, and checkpoint {restored_from} is being restored: which commits"
                f" are released is not known. Bring the markers back. Or: {NO_MARKER}"
            )
        return
    if marker > restored_from:
        raise MarkerAhead(
            f"{place}: output of {identity} is released up to checkpoint {marker}, but checkpoint {restored_from} is being restored;"
            " going on would write what follows a second time. Restore a checkpoint at or above the marker, or drop the"
            " processor and create it again: it then begins without state"
        )


def is_due(identity: Identity, marker: Epoch, row: MirrorRow, place: str) -> bool:
    """Whether this commit is the next to release; False if it has been released.

    Raises:
        MarkerAhead: the marker is a number that the row's history does not have.
        ReleaseGap: an earlier commit comes first.
        ValueError: the row is another job's.
    """
    if row.job != identity.job:
        raise ValueError(
            f"{place}: a commit of job {row.job} came to the sink of {identity}; commits are filtered by job first"
        )
    if row.epoch <= marker:
        return False
    if row.predecessor == marker:
        return True
    if marker > row.predecessor:
        raise MarkerAhead(
            f"{place}: the marker of {identity} is {marker}, but commit {row.epoch} follows {row.predecessor}:"
            " the target was written from another history; nothing is released"
        )
    raise ReleaseGap(
        f"{place}: the marker of {identity} is {marker}, but commit {row.epoch} follows {row.predecessor}:"
        f" the commits after {marker} are to be released first"
    )
