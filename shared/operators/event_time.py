"""Event times of a batch: `timeField`, vectorised for `$toDate` of a declared field and for expressions with a kernel, else interpreted.

A row without an event time (the expression fails, or gives no date) is a failure, never a guess. Event times lie within ±2⁶¹ ms.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import values
from tidemark.shared.language.expressions.ast import Call, Expr, FieldPath
from tidemark.shared.language.values import decode_value, type_name
from tidemark.shared.model.values import Date
from tidemark.shared.operators.batches import column_field
from tidemark.shared.operators.cells import encoded_cells
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.dead_letters import Cause, Failures, RowFailure
from tidemark.shared.operators.decode import TYPE_NAMES, instants
from tidemark.shared.operators.frame import Cells, evaluated
from tidemark.shared.operators.windows import EVENT_TIME_LIMIT_MS

Int64s = npt.NDArray[np.int64]
NO_TIME: Final = "NoEventTime"
_NO_TIMESTAMP: Final = -1
"""Kafka's, of a record to which neither its producer nor a broker gave one."""

_UNTIMED: Final = Cause("The record has no timestamp of its own; name its time in timeField.", NO_TIME, "timeField")


def event_times(batch: pa.RecordBatch, expr: Expr, topic: Topics = None) -> tuple[Int64s, Failures]:
    """The event time of each row, ms, shape (n,) (0 where it failed), and the failures."""
    column = _texts(batch, expr)
    found = evaluated(expr, batch, topic) if column is None else Cells(column_field(column.type), column)
    cells, times = found.array, np.zeros(batch.num_rows, dtype=np.int64)
    odd = np.ones(batch.num_rows, dtype=np.bool_)
    if pa.types.is_timestamp(cells.type):
        times = cells.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        odd = _beyond(times) | cells.is_null().to_numpy(zero_copy_only=False)
    failures = Failures.of_errors(found.errors, "")
    odd[failures.rows] = False
    if not len(failures) and not odd.any():
        return times, failures
    times, rows = np.array(times), np.flatnonzero(odd)
    times[failures.rows] = 0
    some = cells.take(pa.array(rows))
    times[rows], refused = _judged(encoded_cells(some, found.field), rows)
    return times, Failures.joined([failures, refused])


def no_event_time(timestamps: Int64s) -> Failures:
    """Which records of a topic have a timestamp, ms, that is no event time, and why."""
    none, beyond = timestamps == _NO_TIMESTAMP, _beyond(timestamps)
    if not none.any() and not beyond.any():
        return Failures.of([])
    rows = np.flatnonzero(none | beyond)
    causes = {_UNTIMED: 0}
    places = np.zeros(len(rows), dtype=np.int64)
    for place, time in zip(np.flatnonzero(beyond[rows]).tolist(), timestamps[beyond].tolist(), strict=True):
        places[place] = causes.setdefault(_too_far(Date(time)), len(causes))
    return Failures(rows, tuple(causes), places)


def _judged(cells: pa.BinaryArray, rows: Int64s) -> tuple[Int64s, Failures]:
    """Encoded values as event times, ms (0 for those that are none), and why these rows have none."""
    found = values.read(cells)
    dates = found.is_("date")
    refused = ~dates | _beyond(found.numbers)
    causes: dict[Cause, int] = {}
    places = np.full(len(rows), -1)
    for kind in np.unique(found.tags[~dates]).tolist():
        if kind in TYPE_NAMES:
            places[found.tags == kind] = causes.setdefault(_no_date(TYPE_NAMES[kind]), len(causes))
    alone = np.flatnonzero(refused & (places < 0))
    for row, cell in zip(alone.tolist(), cells.take(pa.array(alone)).to_pylist(), strict=True):
        value = decode_value(cell)
        cause = _no_date(type_name(value)) if type(value) is not Date else _too_far(value)
        places[row] = causes.setdefault(cause, len(causes))
    return np.where(refused, 0, found.numbers), Failures(rows[refused], tuple(causes), places[refused])


def _beyond(times: Int64s) -> npt.NDArray[np.bool_]:
    """Which times, shape (n,), ms, are too far from 1970."""
    return (times >= EVENT_TIME_LIMIT_MS) | (times <= -EVENT_TIME_LIMIT_MS)


def _no_date(found: str) -> Cause:
    return Cause(f"The event time is a date, found {found}.", NO_TIME, "timeField")


def _too_far(time: Date) -> Cause:
    return Cause(f"The event time {int(time)} ms is beyond ±2^61.", NO_TIME, "timeField")


def _texts(batch: pa.RecordBatch, expr: Expr) -> pa.Array | None:
    """timestamp[ms] of a declared column of texts all of which are instants; None for anything else."""
    match expr:
        case Call("$toDate", (FieldPath((name,)),)) if name in batch.schema.names:
            column = batch.column(name)
        case _:
            return None
    found = instants(column) if pa.types.is_string(column.type) and not column.null_count else None
    return None if found is None or found.null_count else found


def rows_of(failures: Sequence[RowFailure] | Failures, count: int) -> npt.NDArray[np.bool_]:
    """A mask, shape (count,), of the rows that failed."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[failures.rows if isinstance(failures, Failures) else [f.row for f in failures]] = True
    return mask
