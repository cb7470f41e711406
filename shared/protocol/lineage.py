"""Which frames count (L1, L2), from the durable list of generations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from tidemark.shared.model.checkpoint import LineageEntry
from tidemark.shared.model.ids import Epoch, Generation
from tidemark.shared.protocol.errors import LocalError

_NO_CEILING = 2**63 - 1


class Verdict(Enum):
    """The treatment of a frame, by its generation and epoch alone."""

    COUNTS = "counts"
    DISCARDED = "discarded"
    ZOMBIE = "zombie"
    """The frame is from after me: I am the one to stop (L2)."""


def essential(entries: Iterable[LineageEntry], most: int, taken: Epoch) -> tuple[LineageEntry, ...]:
    """The entries on which a verdict may depend, the newest `most` of them, oldest first: a lineage grows for as long as the job lives.

    Some generations were restored from the same checkpoint as a later generation, or from a later checkpoint. The last of these is enough:
    the ones before it committed nothing, so no frame of theirs counts, with an entry or without. Frames of generations up to epoch `taken`
    are in the checkpoint that is restored, on every channel. If the oldest entries are left out, such frames are discarded instead of being
    dropped as repeated. Generations whose frames channels may still carry behind that (C13) are named, however many they are.
    """
    kept: list[LineageEntry] = []
    for entry in sorted(entries, key=lambda e: e.generation):
        while kept and kept[-1].restored_from >= entry.restored_from:
            kept.pop()
        kept.append(entry)
    first = max(0, len(kept) - most)
    while first > 0 and kept[first].restored_from > taken:
        first -= 1
    return tuple(kept[first:])


@dataclass(frozen=True, slots=True)
class Lineage:
    """The generations of a processor up to `current`, as the current one's assignment told."""

    current: Generation
    ceilings: dict[Generation, int]
    snapshot_generation: Generation
    """The generation that committed the checkpoint from which the current one was restored; 0 where there is none."""

    @staticmethod
    def of(entries: Sequence[LineageEntry], current: Generation) -> "Lineage":
        """Compute the ceilings: ceil(h) = the least restored_from of every generation above h (L1)."""
        ceilings: dict[Generation, int] = {}
        lowest = _NO_CEILING
        restored_from: Epoch | None = None
        for entry in sorted(entries, key=lambda e: e.generation, reverse=True):
            if entry.generation > current:
                continue
            if entry.generation == current:
                restored_from = entry.restored_from
            ceilings[entry.generation] = lowest
            lowest = min(lowest, entry.restored_from)
        if restored_from is None:
            message = f"generation {current} is not in its own lineage {[e.generation for e in entries]}"
            raise LocalError(message)
        before = [e.generation for e in entries if e.generation < current and e.restored_from < restored_from]
        return Lineage(current, ceilings, Generation(max(before, default=0)))

    def judge(self, generation: Generation, epoch: Epoch) -> Verdict:
        """L1 and L2 on one frame. A generation that never was in the lineage has written nothing that counts."""
        if generation > self.current:
            return Verdict.ZOMBIE
        return Verdict.COUNTS if epoch <= self.ceilings.get(generation, -1) else Verdict.DISCARDED
