"""F7 in event time: a source that is ahead of a receiver whose buffers fill up waits until the slower side has come.

A receiver that keeps rows until the watermark is above them (a join, a keyed computation) tells with what it has read that it is full, and
its input watermark. Who holds that watermark back is not ahead of it, so the one for whom the others wait is never stopped.
"""

from dataclasses import dataclass, field

from tidemark.shared.model.ids import EdgeId


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
