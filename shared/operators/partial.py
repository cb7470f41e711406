"""The sender's half of a window: judges lateness where it may, puts rows into windows, aggregates where possible.

Rules (architecture.md, Spark stages; protocol P3, W1):

- PA1 With `lateness: split` each row is judged here, by its split's watermark before it; late rows become dead letters here.
- PA2 Data that may be late at the receiver travel as rows without a window, so that a dead letter has the document. With `merged` these
  are rows of a window that the watermark last sent has closed. In either mode they are rows of a split that came or came back late (AWAY),
  and where `idleTimeout` may close windows (its timer runs from arrivals) all rows, with `split` those in time for one of their windows.
  Where windows overlap, the split's watermark before it goes with such a row, so that one dead letter names all that it missed.
- PA3 Everything else is put into its windows here, and travels as partials; as rows with WSTART and WEND where the window's
  pipeline needs rows.
- PA4 Partials are held until the barrier, `held_groups_max` or a source's idleness (`before_barrier`); the output watermark stands
  meanwhile at that of the last time nothing was held, so that no receiver closes a window that a held partial belongs to. At the end of
  input all is given out.
- PA5 Where the stage is divided by key groups, each partial and each row has GROUP: that of its key (window_keys.py). A row without a
  window goes to the task of the key that it will have, which alone judges it and tells of it.
- PA6 Of rows that travel with their windows no more goes than the window's pipeline looks at: fields (`WindowPlan.looked_at`), and, where
  it begins with `$sort`, `$skip` and `$limit`, of a batch so many rows of each window (`WindowPlan.first_rows`).
- PA7 Where windows overlap, rows are aggregated by pane (the rows that are in the same windows), and a pane's partials are spread over its
  windows before they go: the work for a row does not grow with the number of its windows. Where an expression reads the window, or the
  output has the time of an element, each window has its own.
- PA8 A row on which a stage in the window fails is one dead letter, that of its first window (AGAIN), if it fails in all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.language.stages import HoppingWindow, SessionWindow
from tidemark.shared.model.frames import Content
from tidemark.shared.model.held import Why
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.aggregation import merged, narrowed, partials_of, spread, travelling
from tidemark.shared.operators.base import AWAY, GROUP, WEND, WSTART, Operator, Out
from tidemark.shared.operators.batches import one_batch, select, with_column
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.dead_letters import dead_letters
from tidemark.shared.operators.first_rows import first_of
from tidemark.shared.operators.grouping import groups_of
from tidemark.shared.operators.sessions import keyed
from tidemark.shared.operators.specs import PartialSpec
from tidemark.shared.operators.window_keys import homes, key_groups
from tidemark.shared.operators.window_plan import SESSION_KEY, WindowPlan
from tidemark.shared.operators.windows import Entered, enter, in_windows, pieces, split_limits, times_of

Bools = npt.NDArray[np.bool_]
_UNMERGED_PANES_MAX: Final = 4_096
"""Of panes so many rows are merged: merging takes as long as to make them, and each would be spread over all of its windows."""
_COUNTED_MAX: Final = 1 << 16
"""Of so many partials of windows at the most nobody looks how many there will be."""


@dataclass(slots=True)
class PartialAggregate(Operator):
    """One task's partial aggregation for one window; before a barrier it gives out all that it holds, and keeps nothing."""

    spec: PartialSpec
    context: TaskContext = NOWHERE
    _plan: WindowPlan = field(init=False)
    _held: list[pa.Table] = field(default_factory=list)
    """Of windows."""
    _held_rows: int = 0
    _compact_rows: int = 0
    _panes: list[pa.Table] = field(default_factory=list)
    """Of panes, which are not yet spread over their windows."""
    _pane_rows: int = 0
    _compact_panes: int = 0
    _input_ms: int = MIN_TIME
    _sent_ms: int = MIN_TIME
    _late: int = 0
    _in_gaps: int = 0
    _as_rows: int = 0
    _failed: int = 0

    def __post_init__(self) -> None:
        self._plan = WindowPlan(self.spec.window)

    # --- Operator -----------------------------------------------------------------------------------------------------

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """Documents into windows."""
        del content, tag
        outs: list[Out] = []
        batch = _without_windows(batch)
        if isinstance(self._plan.spec.stage, SessionWindow):
            batch, outs = keyed(self._plan.spec.stage, batch, self.context)
            self._failed += sum(out.batch.num_rows for out in outs)
        for piece in pieces(self._plan, batch):
            outs += self._piece(piece)
        return outs

    def _piece(self, batch: pa.RecordBatch) -> list[Out]:
        entered = self._entered(batch)
        loose = self._loose(batch, entered)
        outs = self._late_rows(batch, entered, entered.late & ~loose)
        kept = entered.in_time & ~loose
        if loose.any():
            self._as_rows += int(loose.sum())
            outs.append(self._as_they_are(select(batch, loose)))
        if kept.any():
            outs += self._kept(batch, entered, kept)
        return outs

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """Nothing fires here; the end of input gives out the partials held."""
        self._input_ms = watermark_ms
        if watermark_ms == MAX_TIME:
            return self.before_barrier()
        if not (self._held or self._panes):
            self._sent_ms = watermark_ms
        return ()

    def before_barrier(self) -> Sequence[Out]:
        """Give out the partials held (PA4)."""
        outs = []
        if self._held or self._panes:
            outs = [Out(OUT, "partials", self._routed(one_batch(self._merged())))]
        self._held, self._held_rows, self._compact_rows = [], 0, 0
        self._sent_ms = self._input_ms
        return outs

    def output_watermark(self) -> int:
        """The input watermark when nothing was held last (PA4); the step takes the allowed lateness off."""
        return self._sent_ms

    def held_by(self) -> tuple[str, Why]:
        """PA4."""
        return self._plan.spec.stage.name, "epoch"

    def held_rows(self, merge_above: int) -> int:
        """Partials that are held (PA4), merged first if they would be more than `merge_above`."""
        if self._most_rows() > max(merge_above, self._compact_rows):
            self._merge_held()
        return self._most_rows()

    def counters(self) -> Mapping[str, int]:
        """Totals since the task's start."""
        return {"late": self._late, "inGaps": self._in_gaps, "asRows": self._as_rows, "failed": self._failed}

    # --- parts --------------------------------------------------------------------------------------------------------

    def _entered(self, batch: pa.RecordBatch) -> Entered:
        plan = self._plan
        entered = enter(plan, batch, split_limits(plan, batch) if plan.judged_at_source else MIN_TIME)
        self._in_gaps += int((~entered.there).sum())
        return entered

    def _late_rows(self, batch: pa.RecordBatch, entered: Entered, told: Bools) -> list[Out]:
        """PA1. told: those of which this half tells, shape (n,)."""
        if not told.any():
            return []
        failures = [each for each in entered.failures(self._plan.spec.stage.path) if told[each.row]]
        self._late += len(failures)
        return dead_letters(batch, failures, self._plan.spec.stage.name, self.context)

    def _loose(self, batch: pa.RecordBatch, entered: Entered) -> Bools:
        """Rows that travel as such (PA2), shape (n,)."""
        n = batch.num_rows
        loose: Bools = np.zeros(n, dtype=np.bool_)
        plan = self._plan
        if AWAY in batch.schema.names and not plan.processing_time:
            away = batch.column(AWAY).fill_null(False).to_numpy(zero_copy_only=False)
            loose = entered.in_time & away
        if plan.judged_at_source and plan.idle_timeout_ms is not None:
            loose = entered.in_time
        if not plan.judged_at_source and not plan.processing_time:
            limit = plan.closed_to(self._sent_ms)
            ends = limit if plan.idle_timeout_ms is None else MAX_TIME
            loose |= entered.there & (entered.firsts + entered.size_ms <= ends)
            if plan.extras:
                loose |= times_of(plan, batch) < limit
        return loose

    def _floors(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64] | int:
        """The time behind which an element is not on time (W6)."""
        plan = self._plan
        return split_limits(plan, batch) if plan.judged_at_source else plan.closed_to(self._sent_ms)

    def _kept(self, batch: pa.RecordBatch, entered: Entered, kept: Bools) -> list[Out]:
        """Rows into their windows."""
        return self._take(in_windows(self._plan, batch, entered, kept, self._floors(batch)))

    def _take(self, rows: pa.RecordBatch) -> list[Out]:
        if self._plan.mode == "rows":
            return [self._as_they_are(narrowed(self._plan, first_of(self._plan, rows, self.context)))]
        table, letters, failed = partials_of(self._plan, rows, self.context)
        self._failed += failed
        self._hold(table)
        outs = list(letters)
        if self._held_rows > max(2 * self._compact_rows, self.context.unmerged_groups_max):
            self._merge_held()
        if self._most_rows() > self.context.held_groups_max:
            outs += self.before_barrier()
        return outs

    def _hold(self, table: pa.Table) -> None:
        if self._plan.by_panes and table.num_rows:
            self._panes.append(table)
            self._pane_rows += table.num_rows
            if self._pane_rows > max(2 * self._compact_panes, _UNMERGED_PANES_MAX):
                self._merge_panes()
        elif table.num_rows:
            self._held.append(table)
            self._held_rows += table.num_rows

    def _merge_panes(self) -> pa.Table:
        self._panes = [merged(self._plan, pa.concat_tables(self._panes))]
        self._pane_rows = self._compact_panes = self._panes[0].num_rows
        return self._panes[0]

    def _most_rows(self) -> int:
        """How many partials of windows there are at the most: each key's, in all windows from the first to the last."""
        stage = self._plan.spec.stage
        if not self._panes or not isinstance(stage, HoppingWindow):
            return self._held_rows
        spread_rows = self._pane_rows * -(-stage.interval_ms // stage.hop_size_ms)
        if spread_rows > _COUNTED_MAX:
            panes = self._merge_panes()
            begins, ends = panes.column(WSTART).to_numpy(), panes.column(WEND).to_numpy()
            windows = (int(ends.max()) - stage.interval_ms - int(begins.min())) // stage.hop_size_ms + 1
            keys = groups_of([panes.column(name) for name in self._plan.key_columns], self._pane_rows)
            spread_rows = min(spread_rows, len(keys.firsts) * windows)
        return self._held_rows + spread_rows

    def _as_they_are(self, rows: pa.RecordBatch) -> Out:
        """PA5: rows that travel as such."""
        batch, groups = travelling(self._plan, rows), self.spec.key_groups
        if groups:
            batch = with_column(batch, GROUP, pa.array(homes(self._plan, rows, groups, self.context)))
        return Out(OUT, "rows", batch)

    def _routed(self, partials: pa.RecordBatch) -> pa.RecordBatch:
        """PA5."""
        groups = self.spec.key_groups
        return with_column(partials, GROUP, pa.array(key_groups(self._plan, partials, groups))) if groups else partials

    def _merge_held(self) -> None:
        self._held = [self._merged()]
        self._held_rows = self._compact_rows = self._held[0].num_rows

    def _merged(self) -> pa.Table:
        if self._panes:
            panes = self._merge_panes()
            self._panes, self._pane_rows, self._compact_panes = [], 0, 0
            return merged(self._plan, pa.concat_tables([*self._held, spread(self._plan, panes)]))
        if len(self._held) == 1 and self._plan.mode == "typed":
            return self._held[0]  # of one window and key there is one row
        return merged(self._plan, pa.concat_tables(self._held))


def _without_windows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The windows of a window stage before this one are no longer the rows'."""
    gone = [n for n in (WSTART, WEND, SESSION_KEY) if n in batch.schema.names]
    return batch.drop_columns(gone) if gone else batch
