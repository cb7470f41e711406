"""Rows into windows, and the rows that came too late for them. Sessions are in `sessions.py`.

Windows are [start, end), begin at k · hop + offset, and are aligned to 1970 whatever their size (D5, D7). A row is late for
a window that has closed: `limit ≥ end`, where the limit is a watermark less the allowed lateness: that of the row's own split before it
(`lateness: split`), or the step's. It still enters those of its windows that are open.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.language.stages import HoppingWindow, SessionWindow
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import AGAIN, ARRIVAL, TS, WEND, WM, WSTART
from tidemark.shared.operators.batches import with_column
from tidemark.shared.operators.dead_letters import LATE, LATE_CODE, RowFailure
from tidemark.shared.operators.pieces import ranges, row_bytes
from tidemark.shared.operators.window_plan import FIRST, LAST, WindowPlan

Int64s = npt.NDArray[np.int64]

EVENT_TIME_LIMIT_MS: Final = 2**61
"""Event times lie strictly within ± this, so that no sum with a duration leaves 64 bits."""


Bools = npt.NDArray[np.bool_]
_ENTRY_BYTES: Final = 64
"""Bytes that a row takes in a window beside its columns: places, times, and arrays that are worked out of them."""
_LIMIT_MS: Final = 2 * EVENT_TIME_LIMIT_MS
"""No window ends beyond ± this, so a watermark beyond it says no more than this."""


def pieces(plan: WindowPlan, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The batch, cut where its rows in all their windows would be many bytes."""
    stage = plan.spec.stage
    per_row = -(-stage.interval_ms // stage.hop_size_ms) if isinstance(stage, HoppingWindow) else 1
    if per_row == 1 or (WSTART in batch.schema.names and not batch.column(WSTART).null_count):
        return [batch]
    copies = 1 if plan.by_panes else per_row
    sizes = copies * row_bytes(batch) + per_row * _ENTRY_BYTES
    return [batch.slice(begin, end - begin) for begin, end in ranges(sizes)]


@dataclass(frozen=True, slots=True)
class Entered:
    """A batch's rows in their windows: one window at each hop from the first to the last. Shape (n,) each, ms."""

    firsts: Int64s
    """Start of the first window of each row; behind that of the last where a row is in none: a hop above the size leaves gaps."""
    lasts: Int64s
    opens: Int64s
    """Start of the first one that the row is in time for; behind that of the last where it is late for all."""
    size_ms: int
    hop_ms: int

    @property
    def there(self) -> Bools:
        """Which rows are in any window."""
        return np.asarray(self.firsts <= self.lasts)

    @property
    def in_time(self) -> Bools:
        """Which rows are in time for one of their windows at least."""
        return np.asarray(self.opens <= self.lasts)

    @property
    def late(self) -> Bools:
        """Which rows have missed a window."""
        return self.there & (self.opens > self.firsts)

    def each(self) -> tuple[Int64s, Int64s]:
        """(rows, starts) of all windows, row by row; shape (m,) each."""
        rows = np.flatnonzero(self.there)
        return _each(rows, self.firsts[rows], self.lasts[rows], self.hop_ms)

    def failures(self, path: str) -> list[RowFailure]:
        """One late document a row that missed a window."""
        rows = np.flatnonzero(self.late)
        ends = np.minimum(self.opens, self.lasts + self.hop_ms)
        return [
            RowFailure(row, LATE, LATE_CODE, path, tuple(range(first, end, self.hop_ms)))
            for row, first, end in zip(rows.tolist(), self.firsts[rows].tolist(), ends[rows].tolist(), strict=True)
        ]


def times_of(plan: WindowPlan, batch: pa.RecordBatch) -> Int64s:
    """The times by which windows are assigned: event time, or on processing time the arrival; shape (n,), ms."""
    times: Int64s = batch.column(ARRIVAL if plan.processing_time else TS).to_numpy()
    return times


def enter(plan: WindowPlan, batch: pa.RecordBatch, limits_ms: Int64s | int) -> Entered:
    """The rows of a batch in their windows; `limits_ms`: a limit for all, or one a row, shape (n,)."""
    stage = plan.spec.stage
    times = times_of(plan, batch)
    if isinstance(stage, SessionWindow):
        # A row alone; it may be merged with others. The sender knows no sessions: with `split` it goes by the time alone.
        return alone(times, np.asarray(times >= limits_ms), stage.gap_ms)
    size, hop, offset = stage.interval_ms, stage.hop_size_ms, stage.offset_ms
    limits = np.clip(limits_ms, -_LIMIT_MS, _LIMIT_MS)
    firsts = _begins(times - size, hop, offset) + hop
    opens = np.maximum(firsts, _begins(limits - size, hop, offset) + hop)
    return Entered(firsts, _begins(times, hop, offset), opens, size, hop)


def _begins(times_ms: Int64s, hop_ms: int, offset_ms: int) -> Int64s:
    """The last start of a window at or before each time."""
    return (times_ms - offset_ms) // hop_ms * hop_ms + offset_ms


def alone(starts: Int64s, open_: Bools, size_ms: int) -> Entered:
    """Rows in one window each. open_: whether each is in time for it."""
    return Entered(starts, starts, np.where(open_, starts, starts + 1), size_ms, 1)


def split_limits(plan: WindowPlan, batch: pa.RecordBatch) -> Int64s:
    """Each row's limit by its own split's watermark; MIN_TIME where there was none. Shape (n,), ms."""
    before: Int64s = batch.column(WM).fill_null(MIN_TIME).to_numpy()
    unbounded = (before == MIN_TIME) | (before == MAX_TIME)
    return np.where(unbounded, before, before - plan.spec.stage.allowed_lateness_ms)


def in_windows(
    plan: WindowPlan, batch: pa.RecordBatch, entered: Entered, keep: Bools, floors_ms: Int64s | int
) -> pa.RecordBatch:
    """Rows with WSTART, WEND and the columns that `plan.extras` asks for: in each window that they are in time for, or in their pane.

    A pane begins with the first of these windows and ends with the last. keep: shape (n,), rows that are in time for one. floors_ms: an
    element before this (one for all, or one a row) was behind the watermark when it came, and is no candidate for the `outputTime` (W6):
    output must not lie behind the watermark given out.
    """
    size = entered.size_ms
    rows, starts, ends = np.flatnonzero(keep), entered.opens[keep], entered.lasts[keep] + size
    if not plan.by_panes:
        rows, starts = _each(rows, starts, entered.lasts[keep], entered.hop_ms)
        ends = starts + size
    every = len(rows) == batch.num_rows and bool(keep.all())
    out = batch if every else batch.take(pa.array(rows))
    out = with_column(out, WSTART, pa.array(starts))
    out = with_column(out, WEND, pa.array(ends))
    if plan.tells_once:
        out = with_column(out, AGAIN, pa.array(starts > entered.opens[rows]))
    if plan.extras:
        times = times_of(plan, batch)[rows]
        floors = floors_ms if isinstance(floors_ms, int) else floors_ms[rows]
        out = _with_extras(plan, out, times, np.asarray(times < floors))
    return out


def _each(rows: Int64s, firsts: Int64s, lasts: Int64s, hop_ms: int) -> tuple[Int64s, Int64s]:
    """(rows, starts) of each window from the first to the last of each row, in that order."""
    counts = (lasts - firsts) // hop_ms + 1
    if bool((counts == 1).all()):
        return rows, firsts
    before = np.repeat(np.cumsum(counts) - counts, counts)
    steps = np.arange(len(before)) - before
    return np.repeat(rows, counts), np.repeat(firsts, counts) + hop_ms * steps


def _with_extras(plan: WindowPlan, out: pa.RecordBatch, times_ms: Int64s, behind: Bools) -> pa.RecordBatch:
    if FIRST in plan.extras:
        raised = np.maximum(times_ms, _end_of_earlier(plan, out))
        out = with_column(out, FIRST, pa.array(raised, mask=behind))
    if LAST in plan.extras:
        out = with_column(out, LAST, pa.array(times_ms, mask=behind))
    return out


def _end_of_earlier(plan: WindowPlan, out: pa.RecordBatch) -> Int64s:
    """For overlapping windows `earliest` is raised to the end of the window before (W6), ms; shape (n,)."""
    stage = plan.spec.stage
    starts: Int64s = out.column(WSTART).to_numpy()
    if isinstance(stage, SessionWindow) or stage.hop_size_ms >= stage.interval_ms:
        return starts
    return starts - stage.hop_size_ms + stage.interval_ms
