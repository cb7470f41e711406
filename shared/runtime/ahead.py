"""F7 in event time: a source that is ahead of a receiver whose buffers fill up waits until the slower side has come.

A receiver that keeps rows until the watermark is above them (a join, a keyed computation) tells with what it has read that it is full, and
its input watermark. Who holds that watermark back is not ahead of it, so the one for whom the others wait is never stopped.

Splits that came back from idleness, until every receiver has said how far time was when it read their return (SourceFront, SF2).

A receiver that has taken the snapshot of an epoch has read all frames of that epoch, the return among them. What it reports from then on
as its watermark is at least the highest that it ever had without the split.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidemark.shared.model.ids import EdgeId, Epoch, SplitId


@dataclass(slots=True)
class Returns:
    """Of one source task. `places`: every partition of its out edges."""

    places: frozenset[tuple[EdgeId, int]]
    _heard: dict[tuple[EdgeId, int], tuple[Epoch, int]] = field(default_factory=dict)
    """The last snapshot that a receiver had taken, and its watermark then or later, ms."""
    _waiting: dict[SplitId, tuple[int, Epoch]] = field(default_factory=dict)
    _done: dict[SplitId, int] = field(default_factory=dict)

    def note(self, returned: Mapping[SplitId, int], epoch: Epoch) -> None:
        """Splits that are away, each with the number of its return; frames that tell of a new one are of this epoch."""
        for split, number in returned.items():
            if self._done.get(split) != number and self._waiting.get(split, (None,))[0] != number:
                self._waiting[split] = (number, epoch)

    def heard(self, edge: EdgeId, partition: int, epoch: Epoch, watermark_ms: int) -> None:
        """A receiver's report; reports may repeat or come late."""
        known = self._heard.get((edge, partition))
        if known is None or (epoch, watermark_ms) > known:
            self._heard[edge, partition] = (epoch, watermark_ms)

    def reported(self) -> Iterable[tuple[SplitId, int]]:
        """Splits whose return every receiver has read, each once, with the highest watermark that they reported, ms."""
        found = []
        for split, (number, epoch) in list(self._waiting.items()):
            if all(place in self._heard and self._heard[place][0] >= epoch for place in self.places):
                del self._waiting[split]
                self._done[split] = number
                found.append((split, max((self._heard[place][1] for place in self.places), default=-(2**63))))
        return found


@dataclass(slots=True)
class Ahead:
    """Of one source task; bounded by the partitions of its out edges."""

    _full: dict[tuple[EdgeId, int], int] = field(default_factory=dict)
    """Input watermarks of the receivers that are full, ms."""

    def heard(self, edge: EdgeId, partition: int, watermark_ms: int, *, full: bool) -> bool:
        """A receiver's report; the last one counts. Whether it is full, and was not before."""
        place = edge, partition
        new = full and place not in self._full
        if full:
            self._full[place] = watermark_ms
        else:
            self._full.pop(place, None)
        return new

    def waits(self, watermark_ms: int) -> bool:
        """Whether a source that has promised this watermark is ahead of a receiver that is full."""
        return any(reached_ms < watermark_ms for reached_ms in self._full.values())
