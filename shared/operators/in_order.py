"""Gives out an epoch's rows in the order in which their splits gave them.

A shuffle by record id separates rows of one split, and a Spark stage of several tasks those of one window. Where order counts behind
it (which of two copies is the first; an `$emit` or a `$merge` that writes rows of one key; a computation with `order: arrival`), rows
wait here for the end of their epoch.

Rules:

- IO1 Order is (the split's watermark before the row, partition, position): each split's own, and among splits that of time. With it, the
  output of an epoch is a function of where the splits stood at its barrier, not of which task was faster. Rows of windows, which have no
  split, are in the order of their times.
- IO2 The output watermark stands meanwhile at that of the last time nothing was held (W1). A task that holds rows is not idle (W3).
- IO3 Rows are given out before their epoch ends where they take more than `ordered_bytes_max`, so that memory is bounded. They are
  then in order among those that were given out together.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.model.frames import Content
from tidemark.shared.model.held import Why
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import PART, POS, TS, WM, Out
from tidemark.shared.operators.batches import concat, int64s, one_batch
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.passing import Passing
from tidemark.shared.operators.specs import InOrderSpec

Int64s = npt.NDArray[np.int64]


class InOrder(Passing):
    """An `Operator` that holds rows up to the barrier, and keeps no state over it."""

    def __init__(self, spec: InOrderSpec, context: TaskContext = NOWHERE) -> None:
        self._spec = spec
        self._context = context
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._sent_ms = MIN_TIME

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """Held."""
        del content, tag
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        return self._given() if self._held_bytes > self._context.ordered_bytes_max else ()

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """At the end of input give out the rows held; else the watermark waits with them (IO2)."""
        super().on_watermark(watermark_ms)
        if watermark_ms == MAX_TIME:
            return self.before_barrier()
        if not self._held:
            self._sent_ms = watermark_ms
        return ()

    def before_barrier(self) -> Sequence[Out]:
        """Give out the rows held, in order."""
        outs = self._given()
        self._sent_ms = self._watermark_ms
        return outs

    def output_watermark(self) -> int:
        """IO2, ms."""
        return self._sent_ms

    def held_by(self) -> tuple[str, Why]:
        """IO2."""
        return self._spec.stage, "epoch"

    def held_rows(self, merge_above: int) -> int:
        """Rows that wait."""
        del merge_above
        return sum(batch.num_rows for batch in self._held)

    def _given(self) -> Sequence[Out]:
        held, self._held, self._held_bytes = self._held, [], 0
        return [Out(OUT, "rows", batch) for batch in _in_order(held)]


def _in_order(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows in order (IO1): one batch of them, or more where columns differ."""
    if not batches:
        return []
    schemas: list[pa.Schema] = []
    for batch in batches:
        if not any(batch.schema.equals(known, check_metadata=True) for known in schemas):
            schemas.append(batch.schema)
    alike = [[b for b in batches if b.schema.equals(schema, check_metadata=True)] for schema in schemas]
    tables = [one_batch(concat(group)) for group in alike]
    keys = [np.concatenate([_column(table, *names) for table in tables]) for names in ((POS,), (PART,), (WM, TS))]
    order = np.lexsort(keys)
    if len(tables) == 1:
        return tables if bool((order[1:] > order[:-1]).all()) else [tables[0].take(pa.array(order))]
    begins = np.cumsum([0, *(table.num_rows for table in tables)])
    source = np.searchsorted(begins, order, side="right") - 1
    cuts = np.flatnonzero(np.diff(source)) + 1
    found = []
    for rows in np.split(order, cuts):
        table = int(np.searchsorted(begins, rows[0], side="right") - 1)
        found.append(tables[table].take(pa.array(rows - begins[table])))
    return found


def _column(batch: pa.RecordBatch, *names: str) -> Int64s:
    """The first of these columns that is there."""
    name = next((name for name in names if name in batch.schema.names), None)
    return np.full(batch.num_rows, MIN_TIME, dtype=np.int64) if name is None else int64s(batch.column(name))
