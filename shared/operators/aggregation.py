"""Partial aggregation of rows in their windows, and the merge of partials: typed or general, as the plan says."""

import pyarrow as pa

from shared.operators import general_group, typed_group
from shared.operators.base import PART, POS, TS, Out
from shared.operators.batches import one_batch, typed, user_columns
from shared.operators.context import TaskContext
from shared.operators.dead_letters import Failure, dead_letters
from shared.operators.documents import through
from shared.operators.sessions import assign_sessions
from shared.operators.window_plan import WindowPlan


def partials_of(plan: WindowPlan, rows: pa.RecordBatch, context: TaskContext) -> tuple[pa.Table, list[Out], int]:
    """Rows with WSTART and WEND to partials; dead letters of rows on which an expression failed, and their number."""
    if plan.typed is not None:
        if not plan.typed.inputs <= set(user_columns(rows)):
            rows = typed(rows, plan.spec.schema)
        return typed_group.partials(plan.typed, rows, plan.extras), [], 0
    staged = through(plan.before, rows, context, inside=True)
    table, failures = general_group.partials(plan, staged.batch, context.topic)
    failures = _once(staged.batch, failures)
    letters = dead_letters(staged.batch, failures, plan.group.name, context)
    return table, [*staged.letters, *letters], staged.failed + len(failures)


def merged(plan: WindowPlan, table: pa.Table) -> pa.Table:
    """Partials of one window and key become one row; overlapping sessions of one key become one."""
    if plan.sessions:
        table = assign_sessions(table)
    if plan.typed is not None:
        return typed_group.merge(plan.typed, table, plan.extras)
    return general_group.merge(plan, table)


def one_merged(plan: WindowPlan, table: pa.Table) -> pa.RecordBatch:
    """As `merged`, as one batch."""
    return one_batch(merged(plan, table))


def _once(rows: pa.RecordBatch, failures: list[Failure]) -> list[Failure]:
    """A row that fails in several windows is one dead letter."""
    if len(failures) < 2:  # noqa: PLR2004 - nothing twice
        return failures
    names = [n for n in (TS, PART, POS) if n in rows.schema.names]
    places = list(zip(*(rows.column(n).to_pylist() for n in names), strict=True))
    seen: dict[tuple[object, ...], Failure] = {}
    for failure in failures:
        seen.setdefault((*places[failure.row], failure.path, failure.reason), failure)
    return list(seen.values())
