"""How long epochs take behind their barriers, and the times that sources are told (F9)."""

from collections.abc import Collection
from dataclasses import dataclass, field

from tidemark.shared.model.ids import NO_EPOCH, Epoch
from tidemark.shared.model.spans import Spans
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings

_SHRINKS = 10
"""The first epoch has so many times fewer rows after each generation that has not read on, and in front of operators."""
_TIMEOUTS = 3
"""An epoch aims at this part of the checkpoint time-out at most."""


@dataclass(slots=True)
class Timings:
    """Of a processor while this coordinator leads."""

    checkpoints: Spans = field(default_factory=Spans)
    """From a checkpoint's start to its commit."""
    releases: Spans = field(default_factory=Spans)
    """From the commit until all sinks have released."""
    latencies: Spans = field(default_factory=Spans)
    """From the barrier in front of an epoch to its release everywhere: the longest that a record of it took, once it was read."""


@dataclass(slots=True)
class EpochTimes:
    """Of one generation. An epoch takes from its start to its commit, and the time of its release, but not the wait for earlier ones."""

    ended: Epoch = NO_EPOCH
    """The last that is released everywhere."""
    ended_ms: int = 0
    """How long it took."""
    _waiting: dict[Epoch, tuple[int, int]] = field(default_factory=dict)
    """Committed, not yet released: how long until the commit, and when that was. As many as C11 lets wait."""
    _released_at_ms: int = 0
    timings: Timings = field(default_factory=Timings)
    _behind_ms: dict[Epoch, int] = field(default_factory=dict)
    """Of those that wait: when the barrier in front of the epoch began."""
    _began_ms: int | None = None
    """The last committed checkpoint."""

    def committed(self, epoch: Epoch, took_ms: int, now_ms: int) -> None:
        """The epoch is committed, so long after its start."""
        self._waiting[epoch] = took_ms, now_ms
        began_ms = now_ms - took_ms
        self._behind_ms[epoch] = began_ms if self._began_ms is None else self._began_ms
        self._began_ms = began_ms
        self.timings.checkpoints.add(took_ms)

    def look(self, unreleased: Collection[Epoch], now_ms: int) -> None:
        """Epochs that no sink has still to release have ended by now."""
        for epoch in [e for e in self._waiting if e not in unreleased]:
            self.ended, self.ended_ms = epoch, self._so_far_ms(epoch, now_ms)
            self._released_at_ms = now_ms
            self.timings.releases.add(now_ms - self._waiting.pop(epoch)[1])
            self.timings.latencies.add(now_ms - self._behind_ms.pop(epoch))

    def told(self, target_ms: int, now_ms: int) -> tuple[Epoch, int, Epoch, int]:
        """The last epoch that ended, and its time; one whose release takes too long, and its time by now."""
        oldest = min(self._waiting, default=NO_EPOCH)
        if oldest != NO_EPOCH and (so_far_ms := self._so_far_ms(oldest, now_ms)) > target_ms:
            return self.ended, self.ended_ms, oldest, so_far_ms
        return self.ended, self.ended_ms, NO_EPOCH, 0

    def _so_far_ms(self, epoch: Epoch, now_ms: int) -> int:
        took_ms, since_ms = self._waiting[epoch]
        return took_ms + now_ms - max(since_ms, self._released_at_ms)


def target_ms(settings: CoordinatorSettings, interval_ms: int) -> int:
    """The time that an epoch may take behind its barrier, ms."""
    return min(max(settings.epoch_target_ms, interval_ms), settings.checkpoint_timeout_ms // _TIMEOUTS)


def first_rows(settings: CoordinatorSettings, failures: int, *, operators: bool) -> int:
    """Rows of a source's first epoch, after so many generations in a row that have not read on. operators: there are tasks of operators."""
    return max(1, settings.first_epoch_rows // int(_SHRINKS ** (failures + operators)))
