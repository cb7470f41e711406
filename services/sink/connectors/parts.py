"""Sinks that release a commit part by part, each with its marker in one step (protocol, S2, S3).

Such a step may fail behind any part, and a commit is then released again: what is left follows from the newest marker alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from hashlib import sha256

from tidemark.services.sink.connectors.kafkamarkers import Marker, next_part
from tidemark.services.sink.connectors.markers import check_open
from tidemark.services.sink.connectors.staging import Part, PartStore
from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.ids import Epoch
from tidemark.shared.ports.sink import Identity, TargetRefused


class PartsSink(ABC):
    """The release of a commit, and an operator's order to pass over what is refused. A sink says how one part is written."""

    def __init__(self, parts: PartStore) -> None:
        self._parts = parts
        self._identity: Identity | None = None
        self._part = 0
        """Which part is being released, from 1."""

    async def release(self, row: MirrorRow, staged: bytes) -> None:
        """See `Sink.release`. After TargetUnavailable it is called again: it goes on behind the last part that is written.

        Raises:
            Fenced: a newer holder of the identity releases; stop.
        """
        await self._release(row, staged, frozenset())

    async def skip(self, row: MirrorRow, staged: bytes) -> int:
        """See `Sink.skip`: a part of which something is refused is passed over whole; its marker is written alone."""
        parts = self._parts.listed(staged)
        passed: set[int] = set()
        while True:
            self._part = 0
            try:
                await self._release(row, staged, frozenset(passed))
            except TargetRefused:
                if self._part == 0 or self._part in passed:
                    raise
                passed.add(self._part)
            else:
                return sum(parts[number - 1].rows for number in passed)

    @abstractmethod
    async def _release(self, row: MirrorRow, staged: bytes, passed: frozenset[int]) -> None:
        """`passed`: the numbers of parts that are left out."""
        ...

    def _left(
        self, marker: Marker, row: MirrorRow, staged: bytes, passed: frozenset[int], place: str
    ) -> Iterator[tuple[Marker, Part | None]]:
        """What is to be written behind a marker: the next ones, each with its part, or None where it goes alone."""
        parts = self._parts.listed(staged)
        ahead = part_markers(marker.identity, row.epoch, row.predecessor, staged, len(parts))
        for each in ahead[next_part(marker, row, len(ahead), ahead[0].digest, place) - 1 :]:
            self._part = each.part
            yield each, parts[each.part - 1] if parts and each.part not in passed else None


def first_marker(
    found: Marker | None, identity: Identity, restored_from: Epoch, place: str, *, joins: bool
) -> Marker | None:
    """The marker to write where an identity is taken over, None where the one that was found stays (S2). Raises as `check_open`."""
    check_open(identity, None if found is None else found.epoch, restored_from, place, joins=joins)
    if found is not None and not (joins and found.released < restored_from):
        return None
    return Marker(identity=str(identity), epoch=restored_from, predecessor=None if found is None else found.released)


def part_markers(identity: str, epoch: Epoch, predecessor: Epoch, staged: bytes, parts: int) -> tuple[Marker, ...]:
    """The markers of a commit, in order: one a part, and one where nothing was staged."""
    digest, total = sha256(staged).hexdigest(), max(1, parts)
    return tuple(
        Marker(identity=identity, epoch=epoch, predecessor=predecessor, part=number, parts=total, digest=digest)
        for number in range(1, total + 1)
    )
