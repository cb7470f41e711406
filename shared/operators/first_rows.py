"""The rows of a batch that a window's `$sort`, `$skip` and `$limit` may let through."""

from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.shared.operators.batches import with_column
from tidemark.shared.operators.closing import sorted_by
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.stages.sort import sort
from tidemark.shared.operators.whole_windows import Windows
from tidemark.shared.operators.window_plan import WindowPlan

_ROW: Final = "__row"
"""Engine column inside this module: the place of a row in the batch."""


def first_of(plan: WindowPlan, rows: pa.RecordBatch, context: TaskContext) -> pa.RecordBatch:
    """Of rows with WSTART and WEND those that stand among the first `plan.first_rows` of their window.

    The whole window has all rows of the batch, so that no other can stand among its first.
    """
    most = plan.first_rows
    if most is None or rows.num_rows <= most:
        return rows
    order = sorted_by(rows, plan.standing)
    found = Windows.of(plan, with_column(rows.take(order), _ROW, order), context)
    for stage in plan.sorts:
        found = Windows.of(plan, sort(stage, found)[0], context)
    kept = found.batch.column(_ROW).to_numpy()[found.places < most]
    return rows.take(pa.array(np.sort(kept)))
