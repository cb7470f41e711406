"""Rows of 2 GiB or more, which Arrow has in no single array of bytes: none is lost without a word."""

import numpy as np
import pyarrow as pa
import pytest

from tidemark.shared.language.documents import parse
from tidemark.shared.operators.aggregation import at_once
from tidemark.shared.operators.base import REST, WEND, WSTART, OperatorError
from tidemark.shared.operators.batches import one_batch
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.planning.physical import plan_processor
from tidemark.shared.planning.specs import StepHead

_SIZE = 1_100_000_000


def _large() -> pa.Array:
    """One value; no memory is written for it."""
    return pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(np.array([0, _SIZE], np.int32)), pa.py_buffer(np.zeros(_SIZE, np.uint8))]
    )


def test_rows_for_one_batch_that_has_no_room_for_them_fail_the_task() -> None:
    """They were an empty batch."""
    part = pa.RecordBatch.from_arrays([_large()], names=[REST])
    with pytest.raises(
        OperatorError, match="2 rows are to be worked on at once, and a column of theirs has 2 GiB or more"
    ):
        one_batch(pa.Table.from_batches([part, part]))


def test_an_epochs_rows_of_sessions_may_be_of_any_size() -> None:
    """They come in several batches then, those that were in time first."""
    window = {"gap": {"size": 5, "unit": "ms"}, "partitionBy": "$k", "pipeline": [{"$sort": {"v": 1}}, {"$count": "n"}]}
    document = {
        "connections": {
            "in": {"type": "kafka", "bootstrapServers": "memory"},
            "out": {"type": "kafka", "bootstrapServers": "memory"},
        },
        "pipeline": [
            {"$source": {"connectionName": "in", "topic": "a"}},
            {"$sessionWindow": window},
            {"$emit": {"connectionName": "out", "topic": "b"}},
        ],
    }
    head = next(v.head for v in plan_processor(parse(document)).vertices if isinstance(v.head, StepHead))
    plan = WindowPlan(head.step.window)
    columns = {name: pa.nulls(1, plan.rows_schema.field(name).type) for name in plan.rows_schema.names}
    loose = pa.RecordBatch.from_pydict({**columns, REST: _large()}, schema=plan.rows_schema)
    one = pa.array([1], pa.int64())
    fine = pa.RecordBatch.from_pydict({**columns, WSTART: one, WEND: one}, schema=plan.rows_schema)
    found = at_once(plan, [loose, fine, loose])
    assert [each.num_rows for each in found] == [1, 1, 1]
    assert [each.column(WSTART).null_count for each in found] == [0, 1, 1]
