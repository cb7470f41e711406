"""How many rows a source may put into an epoch, so that the later vertices work them off in time (F9).

The coordinator tells how long an epoch took from its start until it was released everywhere. Its rows and that time give the number of
rows that would have taken the target. An epoch also has a fixed cost without any rows (a job of Spark, a slow commit of a target). Two
epochs of different sizes show it. Fewer rows would not make it shorter, so rows may always take as long as the fixed cost.
"""

from dataclasses import dataclass, field
from typing import Final

from tidemark.shared.model.ids import NO_EPOCH, Epoch
from tidemark.shared.protocol.errors import require

_GROWTH: Final = 8
"""The next epoch has at most so many times the rows of one that was fast."""
_DIFFERENT: Final = 1.25
"""The ratio by which two epochs must differ in size before their times show the fixed cost."""
_REMEMBERED: Final = 0.9
"""The part of the known fixed cost that is kept after each epoch that does not show it: so sizes change until one does."""
_ANY_ROWS: Final = 2**62
"""No bound."""
_PIECES: Final = 8
"""An epoch is not filled in smaller parts: small pieces are slow, and held rows are merged only where they would be too many."""
_BECAME_LEAST: Final = 1 / 64
"""Rows that a row becomes, as far as it is counted on: of aggregated rows few are left, and the next ones may all be kept."""
_EPOCHS_MAX: Final = 64
"""Epochs whose rows are remembered until their time is told: more than may wait for their release (C11)."""


@dataclass(slots=True)
class Pace:
    """Of one source task. Rows are those that it sends, partial results of windows included."""

    target_ms: int = 0
    """The time that an epoch may take behind its barrier; 0: the coordinator has not told it yet, and there is no bound."""
    window_rows: int = 0
    """Of an epoch, at the most; never below 1."""
    sent_rows: int = 0
    """Sent since the last barrier, and those of checkpoints that were aborted."""
    held_rows: int = 0
    """Waiting for the next barrier inside of the task."""
    now_ms: int = 0
    """Monotonic, as of the last tick."""
    _became: float = 1.0
    """Rows that one row of the input became, last."""
    _fixed_ms: float = 0.0
    """The fixed cost of an epoch, without rows, as far as it is known."""
    _compared: tuple[int, int] = (0, 0)
    """Rows and time of the epoch with which the next of another size is compared."""
    _learned: Epoch = NO_EPOCH
    """The last epoch that was used to learn the fixed cost: each is told with every start until the next has ended."""
    _flight: Epoch = NO_EPOCH
    """Its barrier is sent; it is neither committed nor aborted."""
    _flight_since_ms: int = 0
    _rows: dict[Epoch, int] = field(default_factory=dict)
    """By epoch, the rows of epochs whose barriers this task has sent."""

    def begin(self, target_ms: int, window_rows: int) -> None:
        """The coordinator has told the target time of an epoch and the rows to begin with; a repeat changes nothing."""
        if not self.target_ms and target_ms:
            self.target_ms, self.window_rows = target_ms, max(1, window_rows)

    def full(self) -> bool:
        """Whether no input is to be taken before the next barrier."""
        return self.target_ms > 0 and self.sent_rows + self.held_rows >= self._bound_rows()

    def room_rows(self) -> int:
        """How many rows of input may be taken now, at least 1 while it is not full."""
        if not self.target_ms:
            return _ANY_ROWS
        bound = self._bound_rows()
        left = bound - self.sent_rows - self.held_rows
        return max(1, int(max(left, bound // _PIECES) / self._became)) if left > 0 else 0

    def grows_late(self, now_ms: int) -> bool:
        """Whether the epoch under way is so late that it may bound the next."""
        return self._flight != NO_EPOCH and now_ms - self._flight_since_ms > self.target_ms > 0

    def produced(self, taken_rows: int, sent_rows: int, held_rows: int) -> None:
        """So many rows of input became so many that were sent; of all that came before so many are held now."""
        more = sent_rows + held_rows - self.held_rows
        if taken_rows:
            self._became = max(_BECAME_LEAST, more / taken_rows)
        self.sent_rows += sent_rows
        self.held_rows = held_rows

    def barrier(self, epoch: Epoch) -> None:
        """The epoch ends here."""
        self._rows[epoch] = self.sent_rows + self._rows.pop(self._flight, 0)
        while len(self._rows) > _EPOCHS_MAX:
            del self._rows[next(iter(self._rows))]
        self._flight, self._flight_since_ms = epoch, self.now_ms
        self.sent_rows = self.held_rows = 0

    def committed(self, epoch: Epoch) -> None:
        """Checkpoint `epoch` is committed."""
        if self._flight <= epoch:
            self._flight = NO_EPOCH

    def aborted(self, epoch: Epoch) -> None:
        """Checkpoint `epoch` has been given up: its rows are the next one's, and it was too large if it took so long."""
        if NO_EPOCH < self._flight <= epoch:
            self.window_rows = self._bound_rows()
            self.sent_rows += self._rows.pop(self._flight, 0)
            self._flight = NO_EPOCH

    def took(self, epoch: Epoch, took_ms: int, late: Epoch = NO_EPOCH, late_ms: int = 0) -> None:
        """The epoch took so long from its start until it was released; a later one has taken so long by now, and only bounds the next."""
        for older in [e for e in self._rows if e < epoch]:
            del self._rows[older]
        if not self.target_ms:
            return
        if rows := self._rows.get(epoch, 0):
            if epoch > self._learned:
                self._learned = epoch
                self._learn_fixed(rows, took_ms)
            fit = self._fitting(rows, took_ms)
            self.window_rows = min(self.window_rows, fit) if fit < rows else max(self.window_rows, fit)
        rows = self._rows.get(late, 0)
        if rows and (fit := self._fitting(rows, late_ms)) < rows:
            self.window_rows = min(self.window_rows, fit)

    def _bound_rows(self) -> int:
        """The window; if the last epoch is under way for longer than the target, the smaller bound that its time until now suggests."""
        rows = self._rows.get(self._flight, 0)
        elapsed_ms = self.now_ms - self._flight_since_ms
        if self._flight == NO_EPOCH or not rows or elapsed_ms <= self.target_ms:
            return self.window_rows
        return min(self.window_rows, self._fitting(rows, elapsed_ms))

    def _fitting(self, rows: int, took_ms: int) -> int:
        """How many rows would have taken the target."""
        spare_ms = max(self.target_ms - self._fixed_ms, self._fixed_ms)
        work_ms = took_ms - self._fixed_ms
        if work_ms * _GROWTH <= spare_ms:
            return _GROWTH * rows
        return max(1, int(rows * spare_ms / work_ms))

    def _learn_fixed(self, rows: int, took_ms: int) -> None:
        before_rows, before_ms = self._compared
        if _alike(rows, before_rows):
            self._fixed_ms = min(self._fixed_ms * _REMEMBERED, took_ms)
            if not _alike(took_ms, before_ms):
                self._compared = rows, took_ms
            return
        self._compared = rows, took_ms
        each_ms = max(0.0, (took_ms - before_ms) / (rows - before_rows))
        if before_rows and (each_ms or _alike(took_ms, before_ms)):  # else later vertices are slower or faster now
            self._fixed_ms = min(took_ms, before_ms, max(0.0, took_ms - each_ms * rows))

    def validate(self, task: str) -> None:
        """Raise LocalError where it contradicts itself."""
        claims = {
            "an epoch has room for a row (F9)": not self.target_ms or self._bound_rows() >= 1,
            "rows are counted (F9)": self.sent_rows >= 0 and self.held_rows >= 0,
        }
        require(task, claims)


def _alike(one: int, other: int) -> bool:
    return max(one, other) < _DIFFERENT * min(one, other)
