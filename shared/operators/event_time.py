"""Event times of a batch: `timeField`, vectorised for `$toDate` of a declared field and for what has a kernel, else interpreted.

A row without an event time (the expression fails, or gives no date) is a failure, never a guess. Event times lie within ±2⁶¹ ms.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shared.language.expressions.ast import Call, Expr, FieldPath
from shared.language.values import type_name
from shared.model.values import Date
from shared.operators.batches import documents_of
from shared.operators.context import Topics
from shared.operators.dead_letters import Failure
from shared.operators.decode import instants
from shared.operators.rows import environments, evaluate_rows
from shared.operators.stage_columns import evaluated_mostly
from shared.operators.windows import EVENT_TIME_LIMIT_MS

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
NO_TIME: Final = "NoEventTime"


def event_times(batch: pa.RecordBatch, expr: Expr, topic: Topics = None) -> tuple[Int64s, list[Failure]]:
    """The event time of each row, ms, shape (n,) (0 where it failed), and the failures."""
    found = _vectorised(batch, expr)
    if found is None:
        return _interpreted(batch, expr, topic)
    column, doubtful = found
    times: Int64s = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    if len(times) and (int(times.max()) >= EVENT_TIME_LIMIT_MS or int(times.min()) <= -EVENT_TIME_LIMIT_MS):
        return _interpreted(batch, expr, topic)
    if not doubtful.any():
        return times, []
    rows = np.flatnonzero(doubtful)
    some, failures = _interpreted(batch.take(pa.array(rows)), expr, topic)
    times = times.copy()
    times[rows] = some
    return times, [replace(failure, row=int(rows[failure.row])) for failure in failures]


def _vectorised(batch: pa.RecordBatch, expr: Expr) -> tuple[pa.Array, Bools] | None:
    """timestamp[ms] or int64, and the rows that only the interpreter can tell, null here; None where no kernel fits."""
    match expr:
        case Call("$toDate", (FieldPath((name,)),)) | FieldPath((name,)):
            at = batch.schema.get_field_index(name)
        case _:
            at = -1
    if at < 0:
        found = evaluated_mostly(expr, batch)
        return found if found is not None and pa.types.is_timestamp(found[0].type) else None
    column = batch.column(at)
    if pa.types.is_string(column.type) and isinstance(expr, Call):
        column = instants(column)
    elif not pa.types.is_timestamp(column.type) and not (isinstance(expr, Call) and pa.types.is_int64(column.type)):
        return None
    return column, column.is_null().to_numpy(zero_copy_only=False)


def _interpreted(batch: pa.RecordBatch, expr: Expr, topic: Topics) -> tuple[Int64s, list[Failure]]:
    values, failures = evaluate_rows(expr, environments(batch, documents_of(batch), topic))
    failed = {f.row for f in failures}
    times = np.zeros(batch.num_rows, dtype=np.int64)
    for row, value in enumerate(values):
        if row in failed:
            continue
        if type(value) is not Date:
            failures.append(Failure(row, f"The event time is a date, found {type_name(value)}.", NO_TIME, "timeField"))
        elif not -EVENT_TIME_LIMIT_MS < value < EVENT_TIME_LIMIT_MS:
            failures.append(Failure(row, f"The event time {int(value)} ms is beyond ±2^61.", NO_TIME, "timeField"))
        else:
            times[row] = value
    return times, failures


def rows_of(failures: Sequence[Failure], count: int) -> npt.NDArray[np.bool_]:
    """A mask, shape (count,), of the rows that failed."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[[f.row for f in failures]] = True
    return mask
