"""The executors' part of a step, in Arrow: gather a window's rows, merge, finish, write segments; and the orders they get for it.

- Rows that fit into tasks' memory by ranges of windows (`gathered_rows_max`) are read here from their segments, each checked against its
  digest, without a shuffle: every task takes a range of windows. More rows are read, merged and shuffled by Spark, and finished here.
- The plan travels as the same bytes at every step, so that a worker takes it apart once.
- Where Spark lets a job have properties, such a task gets its work by one (`carry_out_told`): the function, and with it the plan of the
  job, is then the same at every step, and Spark need not plan each anew.
"""

import base64
import functools
import hashlib
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext as SparkTask

from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators.aggregation import merged
from tidemark.shared.operators.base import TS, WEND, WSTART
from tidemark.shared.operators.batches import one_batch
from tidemark.shared.operators.closing import close
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.sessions import assign_sessions
from tidemark.shared.operators.specs import WindowSpec
from tidemark.shared.operators.window_keys import counted, hashes
from tidemark.shared.operators.window_plan import WindowPlan, in_form
from tidemark.spark_stages.manifest import StateSegment
from tidemark.spark_stages.segments import STATE, Written, read_segment, write_segment, written_rows


class SegmentDiffers(Exception):
    """A segment differs from the manifest. The message names it, with both digests."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order to one task."""

    plan: bytes
    """`packed` of the window's spec and context."""
    root: str
    prefix: str
    """Segments are named below it."""
    above_ms: int
    up_to_ms: int
    """Windows that end in (above, up to] count; others are closed, or stay in their segments."""
    closed_to_ms: int | None
    """Windows that end at or below are finished; None: none are, the rows are compacted."""
    processing_ms: int
    rows_max: int
    """Rows of a range beyond which a task merges the rows read before it reads on."""
    floor_ms: int = MIN_TIME
    """No output has a time before it."""
    key_groups: int = 0
    """How many there are, where keys are divided by them."""


def packed(spec: WindowSpec, context: TaskContext) -> bytes:
    """A spec and a context for `Order.plan`."""
    return pickle.dumps((spec, context))


@functools.lru_cache(maxsize=16)
def _unpacked(data: bytes) -> tuple[WindowPlan, TaskContext]:
    spec, context = pickle.loads(data)  # noqa: S301 - from the step's own driver, as the function that calls this
    return WindowPlan(spec), context


def carry_out(order: Order, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The order on rows that Spark has read and shuffled; gives a row of WRITTEN for each segment."""
    table = _merging(order, _tables(order, batches))
    if table is not None:
        yield from _carried_out(order, table)


def _tables(order: Order, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    schema = _unpacked(order.plan)[0].segment_schema
    return (pa.Table.from_batches([b]).select(schema.names).cast(schema) for b in batches if b.num_rows)


def carry_out_on(
    order: Order,
    segments: Sequence[StateSegment],
    ranges: Sequence[tuple[int, int]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The order on the rows of these segments, read here; each number in `batches` is that of a range of windows to take."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            above, up_to = ranges[number]
            table = _gathered(
                order, [s for s in segments if s.max_end_ms > above and s.min_start_ms < up_to], above, up_to
            )
            if table is not None and table.num_rows:
                yield from _carried_out(order, table)


_HANDED_ROWS: Final = 65_536
"""Of a batch that goes to Spark's own columns."""
WORK_PROPERTY: Final = "tidemark.work"
"""The property of a job with the work of its tasks, as `told` encodes it."""


def told(order: Order, segments: Sequence[StateSegment], ranges: Sequence[tuple[int, int]]) -> str:
    """The arguments of `carry_out_on` as the text of a property."""
    return base64.b64encode(pickle.dumps((order, tuple(segments), tuple(ranges)))).decode()


def carry_out_told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As `carry_out_on`, with the arguments in the job's WORK_PROPERTY."""
    task = SparkTask.get()
    work = None if task is None else task.getLocalProperty(WORK_PROPERTY)
    if work is None:
        message = f"a task of a step: expected the job to have the property {WORK_PROPERTY}, found none"
        raise ValueError(message)
    order, segments, ranges = pickle.loads(base64.b64decode(work))  # noqa: S301 - from the step's own driver, as above
    yield from carry_out_on(order, segments, ranges, batches)


def read_shares(
    order: Order, segments: Sequence[StateSegment], tasks: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The order's rows of segments, for Spark to go on with; each number in `batches` is that of the share of segments to read.

    Partials of a share are merged, some at a time. BUCKET tells where Spark is to bring a row together with those of its key.
    """
    plan = _unpacked(order.plan)[0]
    for batch in batches:
        for number in batch.column(0).to_pylist():
            held: list[pa.Table] = []
            rows = 0
            for segment in segments[number::tasks]:
                held.append(_within(order, segment, order.above_ms, order.up_to_ms))
                rows += held[-1].num_rows
                if rows > order.rows_max:
                    yield from _handed(plan, held)
                    held, rows = [], 0
            yield from _handed(plan, held)


def _handed(plan: WindowPlan, tables: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
    if tables and (table := pa.concat_tables(tables)).num_rows:
        table = table if plan.mode == "rows" else merged(plan, table)
        together = hashes(plan, table) % BUCKETS if not plan.spec.whole else table.column(WEND).to_numpy()
        yield from table.append_column(BUCKET, pa.array(together.astype(np.int64))).to_batches(_HANDED_ROWS)


BUCKET: Final = "__bucket"
"""Beside the columns of a segment: rows with one number are worked on together."""
BUCKETS: Final = 1 << 16
"""Of keys: a hash as a whole, so that keys which it does not tell apart are in one."""


def _within(order: Order, segment: StateSegment, above_ms: int, up_to_ms: int) -> pa.Table:
    table = _counting(order, segment)
    ends = table.column(WEND)
    return table.filter(pc.and_(pc.greater(ends, above_ms), pc.less_equal(ends, up_to_ms)))


def _counting(order: Order, segment: StateSegment) -> pa.Table:
    """The rows of a segment that count."""
    plan = _unpacked(order.plan)[0]
    table = _read(order.root, segment, plan.segment_schema)
    return table if segment.only is None else counted(plan, table, segment.only, order.key_groups)


def _gathered(order: Order, segments: Sequence[StateSegment], above_ms: int, up_to_ms: int) -> pa.Table | None:
    """The rows of a range."""
    return _merging(order, (_within(order, segment, above_ms, up_to_ms) for segment in segments))


def _merging(order: Order, parts: Iterator[pa.Table]) -> pa.Table | None:
    """All of them. Of partials no more than `rows_max` lie there unmerged, or twice as many as there are groups."""
    plan = _unpacked(order.plan)[0]
    tables: list[pa.Table] = []
    rows = merged_rows = 0
    for table in parts:
        tables.append(table)
        rows += table.num_rows
        if plan.mode != "rows" and rows > max(order.rows_max, 2 * merged_rows):
            tables = [merged(plan, pa.concat_tables(tables))]
            rows = merged_rows = tables[0].num_rows
    return pa.concat_tables(tables) if tables else None


DIFFERING_DDL: Final = "said string"
"""The rows of `differing`: a sentence for each segment that differs from the manifest."""


def differing(
    packed_plan: bytes, root: str, segments: Sequence[StateSegment], tasks: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Each number in `batches` is that of the share of segments to look at: for their digests, and the form that the plan goes on with."""
    plan, _ = _unpacked(packed_plan)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            said: list[str] = []
            for segment in segments[number::tasks]:
                try:
                    data = _checked(root, segment)
                    said += filter(None, [plan.unread(pq.read_schema(pa.BufferReader(data)).names)])
                except SegmentDiffers as error:
                    said.append(str(error))
            yield pa.RecordBatch.from_pydict({"said": pa.array(said, pa.string())})


def _checked(root: str, segment: StateSegment) -> bytes:
    """Its bytes; SegmentDiffers where it is gone, or others than those listed."""
    try:
        data = read_segment(root, segment.name)
        digest = hashlib.sha256(data).hexdigest()
    except FileNotFoundError:
        data, digest = b"", "nothing"
    if digest != segment.digest:
        message = (
            f"segment {root}/{segment.name}: expected digest {segment.digest}, found {digest}: it was changed or deleted after it"
            " was listed; restore the store, or go back to an earlier checkpoint"
        )
        raise SegmentDiffers(message)
    return data


def _read(root: str, segment: StateSegment, schema: pa.Schema) -> pa.Table:
    data = _checked(root, segment)
    return in_form(pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False), schema)


def _carried_out(order: Order, table: pa.Table) -> Iterator[pa.RecordBatch]:
    plan, context = _unpacked(order.plan)
    if plan.mode != "rows":
        table = merged(plan, table)
    elif plan.sessions:
        table = assign_sessions(table)
    writer = _Writer(order.root, order.prefix)
    if order.closed_to_ms is None:
        writer.write(STATE, "partials", table, WSTART, WEND)
        yield from written_rows(writer.rows)
        return
    ready = table
    if plan.sessions:
        mask = pc.less_equal(table.column(WEND), order.closed_to_ms)
        ready, left = table.filter(mask), table.filter(pc.invert(mask))
        if left.num_rows:
            writer.write(STATE, "partials", left, WSTART, WEND)
    if ready.num_rows:
        outs, failed = close(plan, one_batch(ready), order.processing_ms, context, order.floor_ms)
        for out in outs:
            # Failures are counted once, with the first segment. Where something failed there is one: its dead letters.
            writer.write(out.port, out.content, out.batch, TS, TS, failed)
            failed = 0
    yield from written_rows(writer.rows)


class _Writer:
    """Names and writes one task's segments."""

    def __init__(self, root: str, prefix: str) -> None:
        task = SparkTask.get()
        attempt = f"{task.partitionId()}-{task.taskAttemptId()}" if task is not None else "0-0"
        self._root = root
        self._prefix = f"{prefix}-{attempt}"
        self.rows: list[Written] = []

    def write(
        self, kind: str, content: str, data: pa.RecordBatch | pa.Table, low: str, high: str, failed: int = 0
    ) -> None:
        name = f"{self._prefix}-{len(self.rows)}.parquet"
        size, digest = write_segment(self._root, name, data)
        bounds = (pc.min(data.column(low)).as_py(), pc.max(data.column(high)).as_py())
        self.rows.append((kind, content, name, data.num_rows, size, digest, *bounds, failed))
