"""The rows of whole windows, on which stages work that gather documents, and the engine's columns of what comes out."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.operators.base import ARRIVAL, NO_SPLIT, PART, POS, TS, WEND, WSTART
from tidemark.shared.operators.batches import with_column
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.grouping import Groups, Merge, groups_of, numbers_of
from tidemark.shared.operators.window_plan import SESSION, SESSION_KEY, WindowPlan

Int64s = npt.NDArray[np.int64]
CHOSEN = "__chosen"
"""Engine column of closed windows: the earliest or latest time of the rows behind an output row, null for none (W6)."""
ORDER = "__order"
"""Engine column of closed windows: the first part of the order key of rows that no `$group` has aggregated yet."""

HASH = "__hash"
"""Engine column of closed windows: the hash, of 31 bits, of the key that a row was worked on by, where keys are (`WindowSpec.whole`)."""


@dataclass(frozen=True, slots=True)
class Windows:
    """A batch in which the rows of a window stand together."""

    plan: WindowPlan
    batch: pa.RecordBatch
    context: TaskContext
    places: Int64s
    """Of each row in its window, from 0; shape (n,)."""
    runs: Int64s
    """The number of each row's window in the batch; shape (n,)."""

    @classmethod
    def of(cls, plan: WindowPlan, batch: pa.RecordBatch, context: TaskContext) -> "Windows":
        """The windows of a batch."""
        columns = [numbers_of(batch.column(name)) for name in plan.window_columns if name != SESSION]
        columns += [groups_of([batch.column(SESSION)], batch.num_rows).codes] if plan.sessions else []
        places = ranks(*columns)
        return cls(plan, batch, context, places, np.cumsum(places == 0) - 1)

    @property
    def starts(self) -> Int64s:
        """The first row of each window."""
        return np.flatnonzero(self.places == 0)

    def ordered(self, rows: Int64s) -> pa.RecordBatch:
        """The rows in another order, window after window, which counts from here on (D15)."""
        return with_column(self.batch.take(pa.array(rows)), ORDER, pa.array(self.places))

    def made(self, windows: Int64s) -> dict[str, pa.Array]:
        """Engine columns of new rows, each of the window of this number: its bounds, and the earliest or latest time of the rows it had."""
        names = [n for n in (WSTART, WEND, HASH, SESSION, SESSION_KEY, ARRIVAL) if n in self.batch.schema.names]
        engine = {name: self.batch.column(name).take(pa.array(self.starts[windows])) for name in names}
        times = pc.subtract(engine[WEND], 1)
        if CHOSEN in self.batch.schema.names:
            most: Merge = "max" if self.plan.spec.stage.output_time == "latest" else "min"
            engine[CHOSEN] = (
                Groups(self.runs, self.starts).reduced(self.batch.column(CHOSEN), most).take(pa.array(windows))
            )
            times = pc.coalesce(engine[CHOSEN], times)
        return {**engine, TS: times, PART: no_split(len(windows)), POS: pa.array(ranks(windows))}


def ranks(*columns: Int64s) -> Int64s:
    """0, 1, 2, … within runs of rows that are equal in all columns, shape (n,)."""
    n = len(columns[0])
    index = np.arange(n, dtype=np.int64)
    differs = np.any([c[1:] != c[:-1] for c in columns], axis=0)
    starts = np.concatenate(([True], differs))[:n]
    return index - np.maximum.accumulate(np.where(starts, index, 0))


def no_split(rows: int) -> pa.Array:
    """PART of rows that are no record of their own."""
    return pa.array(np.full(rows, NO_SPLIT, dtype=np.int32))
