"""Operator around a keyed computation: rows in, documents out (LANGUAGE.md, Computations).

Late records and failed callbacks become dead letters; a failed timer has no document of its own, so its letter says which timer it was.
"""

from collections.abc import Mapping, MutableMapping, Sequence

import numpy as np
import pyarrow as pa

from tidemark.shared.computation.loading import load_computation
from tidemark.shared.computation.problems import ComputationError
from tidemark.shared.model.held import Why
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.values import Date
from tidemark.shared.operators.base import ARRIVAL, NO_SPLIT, PART, POS, TS, Operator, OperatorError, Out
from tidemark.shared.operators.batches import batch_of, batch_of_encoded
from tidemark.shared.operators.computation import CallbackFailure, CallResults, KeyedComputation, Row
from tidemark.shared.operators.computation_rows import OrderKey
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import LATE, LATE_CODE, RowFailure, dead_letters
from tidemark.shared.operators.specs import ComputeSpec

_FAILED = "ComputationFailed"


class ComputeOperator(Operator):
    """One task's share of a `$compute`. Its rows are those that `ComputationRows` gives."""

    def __init__(self, spec: ComputeSpec, context: TaskContext) -> None:
        stage = spec.stage
        if stage.limits.outputs_max > context.computed_max:
            raise OperatorError(
                f"{stage.path}: options.limits.outputsPerCall={stage.limits.outputs_max} must not be above computed_max="
                f"{context.computed_max} of TIDEMARK_RUNTIME: one callback could let out more than its task may"
            )
        self._spec = spec
        self._context = context
        try:
            computation = load_computation(stage.class_, stage.config, context.code)
        except ComputationError as e:
            raise type(e)(f"{stage.path}: {e}") from e
        self.keyed = KeyedComputation(
            computation,
            order=stage.order,
            groups=spec.key_groups,
            cooling=context.cooling,
            guard=context.guard,
            limits=stage.limits,
            waiting_max=context.waiting_records_max,
            computed_max=context.computed_max,
        )
        self._now_ms = 0

    # --- events -----------------------------------------------------------------------------------------------------------

    def on_batch(self, batch: pa.RecordBatch, content: str, tag: str) -> Sequence[Out]:
        """Rows have come, as `ComputationRows` gives them; with `order: arrival` they are applied at once."""
        del content, tag
        return self._outs(self.keyed.on_batch(batch))

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """Apply all that the watermark has passed; MAX_TIME ends the input."""
        return self._outs(self.keyed.on_watermark(watermark_ms))

    def on_watermark_piece(self, watermark_ms: int, items_max: int) -> tuple[Sequence[Out], bool]:
        """See `KeyedComputation.on_watermark`."""
        outs = self._outs(self.keyed.on_watermark(watermark_ms, items_max))
        return outs, self.keyed.watermark_ms < watermark_ms

    def on_processing_time(self, now_ms: int) -> Sequence[Out]:
        """Fire the processing-time timers that it has reached."""
        self._now_ms = max(self._now_ms, now_ms)
        return self._outs(self.keyed.on_processing_time(now_ms))

    def output_watermark(self) -> int:
        """See `KeyedComputation.output_watermark`, ms."""
        return self.keyed.output_watermark()

    def full(self) -> bool:
        """See `KeyedComputation.full`."""
        return self.keyed.full()

    def held_by(self) -> tuple[str, Why]:
        """See `KeyedComputation.hold`."""
        return self._operator, "timer"

    def next_processing_time(self) -> int:
        """See `KeyedComputation.next_processing_time`, ms."""
        return self.keyed.next_processing_time()

    # --- state ------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Mapping[StatePart, bytes | None]:
        """Keys that changed, by key group."""
        return self.keyed.snapshot()

    def restore(self, parts: MutableMapping[StatePart, bytes]) -> None:
        """The key groups of this task. The input watermark follows as the first `on_watermark` of the new generation."""
        self.keyed.restore(parts)

    def counters(self) -> Mapping[str, int]:
        """Totals since the task's start."""
        counts = self.keyed.counters
        return {
            "records": counts.records,
            "late": counts.late,
            "outputs": counts.outputs,
            "timersFired": counts.timers_fired,
            "timersDiscarded": counts.timers_discarded,
            "failures": counts.failures,
        }

    # --- rows and documents -------------------------------------------------------------------------------------------------

    def _outs(self, applied: CallResults) -> Sequence[Out]:
        outs: list[Out] = []
        if applied.outputs:
            times, _, sequence, packed = zip(*applied.outputs, strict=True)
            outs.append(Out(OUT, "rows", batch_of_encoded(packed, _engine(times, sequence))))
        if applied.late:
            batch = batch_of_encoded([r.packed for r in applied.late], _ordered(applied.late))
            failures = [RowFailure(i, LATE, LATE_CODE) for i in range(len(applied.late))]
            outs += dead_letters(batch, failures, self._operator, self._context)
        if applied.failures:
            outs += self._failed(applied.failures)
        return outs

    def _failed(self, failed: Sequence[CallbackFailure]) -> Sequence[Out]:
        """Letters of records by their places in the source; then of timers, which have none."""
        records = [(f, f.record) for f in failed if f.record is not None]
        timers = [(f, f.timer) for f in failed if f.timer is not None]
        outs: list[Out] = []
        if records:
            placed = _placed([r.timestamp for _, r in records], [f.order for f, _ in records])
            outs += self._letters(batch_of([r.value for _, r in records], placed), [f for f, _ in records])
        if timers:
            documents = [{"key": f.key_value, "timer": t.name, "time": Date(t.time)} for f, t in timers]
            times = pa.array([t.time for _, t in timers], type=pa.int64())
            outs += self._letters(batch_of(documents, {TS: times, ARRIVAL: times}), [f for f, _ in timers])
        return outs

    def _letters(self, batch: pa.RecordBatch, failed: Sequence[CallbackFailure]) -> Sequence[Out]:
        reasons = [
            RowFailure(i, f"{type(f.error).__name__}: {f.error}", _FAILED, path=f"{self._spec.stage.path}.class")
            for i, f in enumerate(failed)
        ]
        return dead_letters(batch, reasons, self._operator, self._context)

    @property
    def _operator(self) -> str:
        return self._spec.stage.name


def _engine(times: Sequence[int], sequence: Sequence[int]) -> dict[str, pa.Array]:
    """Engine columns of a computation's output: the sequence is the order key for the next operator."""
    n = len(times)
    return {
        TS: pa.array(times, type=pa.int64()),
        PART: pa.array(np.full(n, NO_SPLIT, dtype=np.int32)),
        POS: pa.array(sequence, type=pa.int64()),
        ARRIVAL: pa.array(times, type=pa.int64()),
    }


def _ordered(rows: Sequence[Row]) -> dict[str, pa.Array]:
    return _placed([r.timestamp_ms for r in rows], [r.order for r in rows])


def _placed(times: Sequence[int], places: Sequence[OrderKey]) -> dict[str, pa.Array]:
    return {
        TS: pa.array(times, type=pa.int64()),
        PART: pa.array([part for part, _ in places], type=pa.int32()),
        POS: pa.array([position for _, position in places], type=pa.int64()),
        ARRIVAL: pa.array(times, type=pa.int64()),
    }
