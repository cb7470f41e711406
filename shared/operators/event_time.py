"""Event times of a batch: `timeField`, vectorised for `$toDate` of a declared field and for expressions with a kernel, else interpreted.

A row without an event time (the expression fails, or gives no date) is a failure, never a guess. Event times lie within ±2⁶¹ ms.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.language.expressions.ast import Call, Expr, FieldPath
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.values import type_name
from tidemark.shared.model.values import Date, Value
from tidemark.shared.operators.batches import column_field, values_of
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.dead_letters import Failure, Failures
from tidemark.shared.operators.decode import instants
from tidemark.shared.operators.frame import Cells, evaluated
from tidemark.shared.operators.windows import EVENT_TIME_LIMIT_MS

Int64s = npt.NDArray[np.int64]
NO_TIME: Final = "NoEventTime"


def event_times(batch: pa.RecordBatch, expr: Expr, topic: Topics = None) -> tuple[Int64s, Failures]:
    """The event time of each row, ms, shape (n,) (0 where it failed), and the failures."""
    column = _texts(batch, expr)
    found = evaluated(expr, batch, topic) if column is None else Cells(column_field(column.type), column)
    cells, errors = found.array, dict(found.errors)
    if pa.types.is_timestamp(cells.type):
        times: Int64s = cells.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        odd = (times >= EVENT_TIME_LIMIT_MS) | (times <= -EVENT_TIME_LIMIT_MS)
        odd |= cells.is_null().to_numpy(zero_copy_only=False)
    else:
        times, odd = np.zeros(len(cells), dtype=np.int64), np.ones(len(cells), dtype=np.bool_)
    failed = list(errors)
    odd[failed] = False
    if failed or odd.any():
        times = np.array(times)
        times[failed] = 0
        rows = np.flatnonzero(odd)
        some = values_of(cells.take(pa.array(rows)), found.field)
        for row, value in zip(rows.tolist(), some, strict=True):
            reason = _refused(value)
            times[row] = value if reason is None else 0
            if reason is not None:
                errors[row] = ExpressionError(reason, NO_TIME, "timeField")
    return times, Failures.of_errors(errors, "")


def _refused(value: Value) -> str | None:
    """Why a value is no event time."""
    if type(value) is not Date:
        return f"The event time is a date, found {type_name(value)}."
    if not -EVENT_TIME_LIMIT_MS < value < EVENT_TIME_LIMIT_MS:
        return f"The event time {int(value)} ms is beyond ±2^61."
    return None


def _texts(batch: pa.RecordBatch, expr: Expr) -> pa.Array | None:
    """timestamp[ms] of a declared column of texts all of which are instants; None for anything else."""
    match expr:
        case Call("$toDate", (FieldPath((name,)),)) if name in batch.schema.names:
            column = batch.column(name)
        case _:
            return None
    found = instants(column) if pa.types.is_string(column.type) and not column.null_count else None
    return None if found is None or found.null_count else found


def rows_of(failures: Sequence[Failure] | Failures, count: int) -> npt.NDArray[np.bool_]:
    """A mask, shape (count,), of the rows that failed."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[failures.rows if isinstance(failures, Failures) else [f.row for f in failures]] = True
    return mask
