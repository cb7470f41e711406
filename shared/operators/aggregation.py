"""Partial aggregation of rows in their windows, and the merge of partials: typed or general, as the plan says."""

import pyarrow as pa

from shared.operators import typed_group
from shared.operators.base import Out
from shared.operators.batches import typed, user_columns
from shared.operators.context import TaskContext
from shared.operators.window_plan import WindowPlan


def partials_of(plan: WindowPlan, rows: pa.RecordBatch, context: TaskContext) -> tuple[pa.Table, list[Out], int]:
    """Rows with WSTART and WEND to partials; dead letters of rows on which an expression failed, and their number."""
    assert plan.typed is not None
    if not plan.typed.inputs <= set(user_columns(rows)):
        rows = typed(rows, plan.spec.schema)
    return typed_group.partials(plan.typed, rows, plan.extras), [], 0


def merged(plan: WindowPlan, table: pa.Table) -> pa.Table:
    """Partials of one window and key become one row."""
    assert plan.typed is not None
    return typed_group.merge(plan.typed, table, plan.extras)
