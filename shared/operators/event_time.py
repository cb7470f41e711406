"""Event times of a batch: `timeField`, vectorised for `$toDate` of a declared field and for expressions with a kernel, else interpreted.

A row without an event time (the expression fails, or gives no date) is a failure, never a guess. Event times lie within ±2⁶¹ ms.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.language.expressions.ast import Call, Expr, FieldPath
from tidemark.shared.language.values import type_name
from tidemark.shared.model.values import Date, Value
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.dead_letters import Failure
from tidemark.shared.operators.decode import instants
from tidemark.shared.operators.frame import evaluated
from tidemark.shared.operators.windows import EVENT_TIME_LIMIT_MS

Int64s = npt.NDArray[np.int64]
NO_TIME: Final = "NoEventTime"


def event_times(batch: pa.RecordBatch, expr: Expr, topic: Topics = None) -> tuple[Int64s, list[Failure]]:
    """The event time of each row, ms, shape (n,) (0 where it failed), and the failures."""
    column = _texts(batch, expr)
    if column is None:
        found = evaluated(expr, batch, topic)
        if found.errors or found.array.null_count or not pa.types.is_timestamp(found.array.type):
            return _checked(found.values(), found.failures(""))
        column = found.array
    times: Int64s = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if len(times) and (int(times.max()) >= EVENT_TIME_LIMIT_MS or int(times.min()) <= -EVENT_TIME_LIMIT_MS):
        return _checked([Date(time) for time in times.tolist()], [])
    return times, []


def _texts(batch: pa.RecordBatch, expr: Expr) -> pa.Array | None:
    """timestamp[ms] of a declared column of texts all of which are instants; None for anything else."""
    match expr:
        case Call("$toDate", (FieldPath((name,)),)) if name in batch.schema.names:
            column = batch.column(name)
        case _:
            return None
    found = instants(column) if pa.types.is_string(column.type) and not column.null_count else None
    return None if found is None or found.null_count else found


def _checked(values: list[Value], failures: list[Failure]) -> tuple[Int64s, list[Failure]]:
    """Times of values that may be none."""
    failed = {f.row for f in failures}
    times = np.zeros(len(values), dtype=np.int64)
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
