"""Partial aggregation of rows in their windows, and the merge of partials: typed or general, as the plan says."""

from collections import Counter
from collections.abc import Set as AbstractSet

import pyarrow as pa

from tidemark.shared.language.schema import Schema
from tidemark.shared.language.stages import Unwind
from tidemark.shared.operators import general_group, typed_group
from tidemark.shared.operators.base import PART, POS, TS, WEND, WSTART, Out
from tidemark.shared.operators.batches import declared_columns, typed, typed_fields
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import Failure, dead_letters
from tidemark.shared.operators.program import through
from tidemark.shared.operators.sessions import assign_sessions
from tidemark.shared.operators.window_plan import WindowPlan


def partials_of(plan: WindowPlan, rows: pa.RecordBatch, context: TaskContext) -> tuple[pa.Table, list[Out], int]:
    """Rows with WSTART and WEND to partials; dead letters of rows on which an expression failed, and their number.

    Sessions reach as far as all their rows do, those included that stages inside the window drop or fail on (`general_group.extents`).
    """
    staged = through(plan.before, rows, context)
    if plan.typed is not None:
        left = staged.batch if _has(staged.batch, plan.schema, plan.typed.inputs) else typed(staged.batch, plan.schema)
        return typed_group.partials(plan.typed, left, plan.extras), staged.letters, staged.failed
    table, failures = general_group.partials(plan, staged.batch, context.topic)
    if plan.sessions and (failures or _thins(plan, rows, staged.batch)):
        table = pa.concat_tables([table, general_group.extents(plan, rows)])
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


def _has(rows: pa.RecordBatch, schema: Schema, names: AbstractSet[str]) -> bool:
    """Whether declared fields are columns of their types."""
    declared = {field.name: field.type for field in typed_fields(schema)}
    return names <= set(declared_columns(rows)) and all(rows.schema.field(n).type == declared[n] for n in names)


def _thins(plan: WindowPlan, rows: pa.RecordBatch, left: pa.RecordBatch) -> bool:
    """Whether stages before the group may have dropped rows: `$unwind` gives several for one, so that numbers tell nothing."""
    return left.num_rows != rows.num_rows or any(isinstance(stage, Unwind) for stage in plan.before)


def _once(rows: pa.RecordBatch, failures: list[Failure]) -> list[Failure]:
    """A row that fails in several windows is one dead letter; the rows that `$unwind` makes of a record, at one place, are several.

    So of one place there are as many letters as in the window where most failed.
    """
    if len(failures) < 2:  # noqa: PLR2004 - nothing twice
        return failures
    names = [n for n in (TS, PART, POS) if n in rows.schema.names]
    places = list(zip(*(rows.column(n).to_pylist() for n in names), strict=True))
    windows = list(zip(rows.column(WSTART).to_pylist(), rows.column(WEND).to_pylist(), strict=True))
    before: Counter[tuple[object, ...]] = Counter()
    seen: dict[tuple[object, ...], Failure] = {}
    for failure in failures:
        same = (*places[failure.row], failure.path, failure.reason)
        within = (*windows[failure.row], *same)
        seen.setdefault((before[within], *same), failure)
        before[within] += 1
    return list(seen.values())
