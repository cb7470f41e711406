"""Operators without state and without time of their own: the watermark passes as it is, nothing waits, nothing is kept.

Streams that flow together (`$union`) keep an order among themselves: event time, partition, stream, position (D11). Two sources number
their partitions alike, so their order keys would tie. The number of the stream stands in the high bits of POS; the first one has 0, so a
pipeline without a union is as it was. People are shown `base.place_of` it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.shared.language.stages.base import too_deep
from tidemark.shared.language.values import encode_value
from tidemark.shared.language.values.depth import DEPTH_MAX
from tidemark.shared.model.frames import Content
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators.base import (
    GROUP,
    KEY,
    PART,
    PLACE,
    PLACE_BITS,
    POS,
    TS,
    WM,
    Operator,
    OperatorError,
    Out,
)
from tidemark.shared.operators.batches import int64s, select, with_column
from tidemark.shared.operators.cells import canonical_column, encoded_cells
from tidemark.shared.operators.computation_rows import ROWS
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.dead_letters import Failures, dead_letters
from tidemark.shared.operators.depth import deeper
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.operators.event_time import rows_of
from tidemark.shared.operators.frame import evaluated
from tidemark.shared.operators.keygroups import key_groups
from tidemark.shared.operators.program import through_in_pieces
from tidemark.shared.operators.specs import BranchSpec, ComputeSpec, KeyBySpec, StatelessSpec, TapSpec

_NULL: Final = encode_value(None)


class Passing(Operator):
    """The watermark passes as it is: rows that a stage drops move it too (D4)."""

    _watermark_ms: int = MIN_TIME

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """Passed on."""
        self._watermark_ms = watermark_ms
        return ()

    def output_watermark(self) -> int:
        """The input watermark, ms."""
        return self._watermark_ms


@dataclass
class StatelessStages(Passing):
    """An `Operator` without state. A document on which a stage fails becomes a dead letter; the others go on (D1)."""

    spec: StatelessSpec
    context: TaskContext = NOWHERE
    _failed: int = 0
    _discarded: int = 0

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """Rows behind the stages, and dead letters."""
        del tag
        outs: list[Out] = []
        for staged in through_in_pieces(self.spec.stages, batch, self.context):
            self._failed += staged.failed
            self._discarded += staged.discarded
            outs += [Out(OUT, content, staged.batch)] if staged.batch.num_rows else []
            outs += staged.letters
        return outs

    def counters(self) -> Mapping[str, int]:
        """Documents on which a stage failed, and those that `$validate` discarded."""
        return {"failed": self._failed, "discarded": self._discarded}


class KeyBy(Passing):
    """An `Operator` without state. A row on which the key fails becomes a dead letter; a missing key is null's."""

    def __init__(self, spec: KeyBySpec, context: TaskContext = NOWHERE) -> None:
        self._spec = spec
        self._context = context
        self._failed = 0

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """The same rows with KEY and GROUP."""
        del tag
        outs: list[Out] = []
        expr = self._spec.key
        found = evaluated(expr, batch, self._context.topic)
        errors = dict(found.errors)
        if self._spec.inside:
            for row in deeper(batch, DEPTH_MAX - 1):
                errors.setdefault(row, too_deep())
        array, failures = found.array, Failures.of_errors(errors, "")
        if failures:
            self._failed += len(failures)
            outs += dead_letters(batch, failures, self._spec.path.rpartition(".")[2], self._context)
            good = ~rows_of(failures, batch.num_rows)
            batch, array = select(batch, good), array.filter(pa.array(good))
        keys = canonical_column(array, found.field)
        if batch.num_rows:
            batch = with_column(batch, KEY, keys)
            batch = with_column(batch, GROUP, pa.array(key_groups(keys, self._spec.key_groups)))
            outs.insert(0, Out(OUT, content, batch))
        return outs

    def counters(self) -> Mapping[str, int]:
        """Rows on which the key failed."""
        return {"failed": self._failed}


class ComputationRows(Passing):
    """The rows of a computation as it takes them (`computation_rows.ROWS`): its own process encodes and evaluates nothing."""

    def __init__(self, spec: ComputeSpec, context: TaskContext = NOWHERE) -> None:
        self._key, self._topic = spec.stage.key, context.topic
        self._split_lateness = spec.lateness == "split" and spec.from_source

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """The columns of `ROWS` alone."""
        del tag
        found = evaluated(self._key, batch, self._topic)
        values = encoded_cells(found.array, found.field).fill_null(_NULL)  # as `KeyBy` has it
        columns = [batch.column(KEY), values, encoded(batch), batch.column(TS)]
        columns += [self._of(batch, PART, 0), self._of(batch, POS, 0)]
        columns.append(self._of(batch, WM if self._split_lateness else "", MIN_TIME))
        rows = [column.cast(field.type) for column, field in zip(columns, ROWS, strict=True)]
        return [Out(OUT, content, pa.RecordBatch.from_arrays(rows, schema=ROWS))]

    def _of(self, batch: pa.RecordBatch, name: str, otherwise: int) -> pa.Array:
        if name in batch.schema.names:
            return batch.column(name).cast(pa.int64()).fill_null(otherwise)
        return pa.array(np.full(batch.num_rows, otherwise, np.int64))


class Tap(Passing):
    """Stateless."""

    def __init__(self, spec: TapSpec, context: TaskContext = NOWHERE) -> None:
        self._port, self._stages, self._context = spec.port, spec.stages, context

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """The same rows on both ports, but for the stages of the tap."""
        del tag
        outs = [Out(OUT, content, batch)]
        for staged in through_in_pieces(self._stages, batch, self._context):
            outs += [Out(self._port, content, staged.batch), *staged.letters]
        return outs


BRANCHES_MAX: Final = 2**11
"""Streams that may flow together."""


class BranchOrdinals(Passing):
    """An `Operator` without state."""

    def __init__(self, spec: BranchSpec) -> None:
        if not 0 < spec.branch < BRANCHES_MAX:
            raise OperatorError(f"stream {spec.branch} of a $union: at most {BRANCHES_MAX} may flow together")
        self._mark = spec.branch << PLACE_BITS

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """The same rows, with the stream's number in POS; one that a union further in has put there gives way."""
        del tag
        if POS in batch.schema.names:
            batch = with_column(batch, POS, pa.array((int64s(batch.column(POS)) & PLACE) | self._mark))
        return (Out(OUT, content, batch),)
