"""What a closed window gives: finish the groups, run what stands behind `$group`, set the output time."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shared.model.plan import OUT
from shared.model.time import MIN_TIME
from shared.operators import typed_group
from shared.operators.base import ARRIVAL, PART, POS, TS, WEND, WSTART, Out
from shared.operators.context import TaskContext
from shared.operators.window_plan import FIRST, LAST, WindowPlan

Int64s = npt.NDArray[np.int64]


def close(plan: WindowPlan, ready: pa.RecordBatch, processing_ms: int, context: TaskContext) -> list[Out]:
    """The output of closed windows: merged partials, or rows with their windows."""
    del context
    assert plan.typed is not None
    order = sorted_by_window(ready, plan.typed.key_columns)
    ready = ready.take(order)
    columns = typed_group.finish(plan.typed, ready)
    columns += engine_of(plan, ready, processing_ms)
    batch = pa.RecordBatch.from_arrays([a for _, a in columns], schema=pa.schema([f for f, _ in columns]))
    return [Out(OUT, "rows", batch)]


def sorted_by_window(ready: pa.RecordBatch, keys: list[str]) -> pa.Array:
    """Indices in the order of (end, start, key)."""
    by = [(name, "ascending") for name in (WEND, WSTART, *keys)]
    return pc.sort_indices(ready, sort_keys=by)


def engine_of(plan: WindowPlan, ready: pa.RecordBatch, processing_ms: int) -> list[tuple[pa.Field, pa.Array]]:
    """Engine columns of the output of closed windows, a row each: output time, order key, arrival, window."""
    n = ready.num_rows
    ends: Int64s = ready.column(WEND).to_numpy()
    named: list[tuple[str, pa.Array]] = [
        (TS, pa.array(output_times(plan, ready))),
        (PART, pa.array(np.zeros(n, dtype=np.int32))),
        (POS, pa.array(ranks(ends))),
        (WSTART, ready.column(WSTART)),
        (WEND, ready.column(WEND)),
    ]
    if processing_ms != MIN_TIME:
        named.append((ARRIVAL, pa.array(np.full(n, processing_ms, dtype=np.int64))))
    return [(pa.field(name, array.type), array) for name, array in named]


def output_times(plan: WindowPlan, ready: pa.RecordBatch) -> Int64s:
    """W6: the last instant inside, or the earliest on-time or the latest element; ms, shape (n,)."""
    ends: Int64s = ready.column(WEND).to_numpy()
    name = {"earliest": FIRST, "latest": LAST}.get(plan.spec.stage.output_time)
    if name is None:
        return ends - 1
    found = pc.coalesce(ready.column(name), pa.array(ends - 1))
    times: Int64s = found.to_numpy(zero_copy_only=False)
    return times


def ranks(ends: Int64s) -> Int64s:
    """0, 1, 2, … within runs of equal values, shape (n,)."""
    n = len(ends)
    index = np.arange(n, dtype=np.int64)
    starts = np.concatenate(([True], ends[1:] != ends[:-1]))[:n]
    return index - np.maximum.accumulate(np.where(starts, index, 0))
