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

from tidemark.shared.language.stages import HoppingWindow, SessionWindow, TumblingWindow
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import ARRIVAL, TS, WEND, WM, WSTART
from tidemark.shared.operators.batches import with_column
from tidemark.shared.operators.dead_letters import LATE, LATE_CODE, Failure
from tidemark.shared.operators.pieces import ranges, row_bytes
from tidemark.shared.operators.window_plan import FIRST, LAST, WindowPlan

Int64s = npt.NDArray[np.int64]

EVENT_TIME_LIMIT_MS: Final = 2**61
"""Event times lie strictly within ± this, so that no sum with a duration leaves 64 bits."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Rows and their windows: row `rows[i]` belongs to [starts[i], starts[i] + size). Shape (m,) each, grouped by row, starts ascending."""

    rows: Int64s
    starts: Int64s
    size_ms: int
    in_gaps: int
    """Rows that belong to no window: a hop above the size leaves gaps."""

    @property
    def ends(self) -> Int64s:
        """Exclusive ends, ms; shape (m,)."""
        return self.starts + self.size_ms


def assign(times_ms: Int64s, window: TumblingWindow | HoppingWindow) -> Assignment:
    """The windows of each time; shape (n,) in, about n · size / hop out."""
    size, hop, offset = window.interval_ms, window.hop_size_ms, window.offset_ms
    last = (times_ms - offset) // hop * hop + offset
    rows = np.arange(len(times_ms), dtype=np.int64)
    if size == hop:
        return Assignment(rows, last, size, 0)
    per_row = -(-size // hop)
    back = np.arange(per_row - 1, -1, -1, dtype=np.int64) * hop
    starts = last[:, None] - back[None, :]
    inside = starts + size > times_ms[:, None]
    index, _ = np.nonzero(inside)
    return Assignment(index.astype(np.int64), starts[inside], size, int((~inside.any(axis=1)).sum()))


Bools = npt.NDArray[np.bool_]
_ENTRY_BYTES: Final = 64
"""Bytes that a row takes in a window beside its columns: places, times, and arrays that are worked out of them."""


def pieces(batch: pa.RecordBatch, window: TumblingWindow | HoppingWindow | SessionWindow) -> list[pa.RecordBatch]:
    """The batch, cut where its rows in all their windows would be many bytes."""
    per_row = -(-window.interval_ms // window.hop_size_ms) if isinstance(window, HoppingWindow) else 1
    if per_row == 1 or (WSTART in batch.schema.names and not batch.column(WSTART).null_count):
        return [batch]
    return [batch.slice(begin, end - begin) for begin, end in ranges(per_row * (row_bytes(batch) + _ENTRY_BYTES))]


@dataclass(frozen=True, slots=True)
class Entered:
    """A batch's rows in their windows."""

    windows: Assignment
    open: Bools
    """Shape (m,): whether the row is in time for that window."""

    def failures(self, path: str) -> list[Failure]:
        """One late document a row that missed a window."""
        missed: dict[int, list[int]] = {}
        at = np.flatnonzero(~self.open)
        for row, start in zip(self.windows.rows[at].tolist(), self.windows.starts[at].tolist(), strict=True):
            missed.setdefault(row, []).append(start)
        return [Failure(row, LATE, LATE_CODE, path, tuple(starts)) for row, starts in missed.items()]


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
        alone = Assignment(np.arange(len(times), dtype=np.int64), times, stage.gap_ms, 0)
        return Entered(alone, np.asarray(times >= limits_ms))
    windows = assign(times, stage)
    limits = limits_ms if isinstance(limits_ms, int) else limits_ms[windows.rows]
    return Entered(windows, np.asarray(windows.ends > limits))


def split_limits(plan: WindowPlan, batch: pa.RecordBatch) -> Int64s:
    """Each row's limit by its own split's watermark; MIN_TIME where there was none. Shape (n,), ms."""
    before: Int64s = batch.column(WM).to_numpy()
    unbounded = (before == MIN_TIME) | (before == MAX_TIME)
    return np.where(unbounded, before, before - plan.spec.stage.allowed_lateness_ms)


def in_windows(
    plan: WindowPlan, batch: pa.RecordBatch, entered: Entered, keep: Bools, floors_ms: Int64s | int
) -> pa.RecordBatch:
    """The kept entries as rows with WSTART, WEND and the columns that `plan.extras` asks for.

    keep: shape (m,). floors_ms: an element before this (one for all, or one a row) was behind the watermark when it came, and is no
    candidate for the `outputTime` (W6): output must not lie behind the watermark given out.
    """
    every = bool(keep.all()) and len(entered.windows.rows) == batch.num_rows
    rows = entered.windows.rows if every else entered.windows.rows[keep]
    starts = entered.windows.starts if every else entered.windows.starts[keep]
    out = batch if every else batch.take(pa.array(rows))
    out = with_column(out, WSTART, pa.array(starts))
    out = with_column(out, WEND, pa.array(starts + entered.windows.size_ms))
    if plan.extras:
        times = times_of(plan, batch)[rows]
        floors = floors_ms if isinstance(floors_ms, int) else floors_ms[rows]
        out = _with_extras(plan, out, times, np.asarray(times < floors))
    return out


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
