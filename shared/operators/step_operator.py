"""A window's step as an operator of one task: `engine: local`.

It steps before a barrier and at the end of input, as on Spark; the rows that came since are its input. So which rows are late follows
from where the watermark stood at barriers, not from how fast senders were between two. An `idleTimeout` closes windows between barriers,
too, and so does an epoch with more rows than may be open (`between`). State is one part (`task`): with this engine a stage has one task.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.model.formats import STEP_STATE, Codec
from tidemark.shared.model.frames import Content
from tidemark.shared.model.held import Why
from tidemark.shared.model.ids import TASK_PART, StatePart
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import MAX_OPEN, MIN_OPEN, WSTART, Operator, OperatorError, Out
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.specs import StepSpec
from tidemark.shared.operators.step import EpochInput, Step, StepState, Times
from tidemark.shared.operators.window_plan import WindowPlan

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def encode_table(table: pa.Table | None) -> bytes | None:
    """The bytes of a table, with metadata; None for None."""
    if table is None:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_table(data: bytes | None) -> pa.Table | None:
    """The table of these bytes."""
    if data is None:
        return None
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()


class StoredStep(msgspec.Struct, frozen=True):
    """State of a step in the snapshot; tables as Arrow IPC, None for none."""

    closed_to_ms: int
    forced_ms: int
    last_arrival_ms: int
    partials: bytes | None
    rows: bytes | None


_CODEC: Final[Codec[StoredStep]] = Codec(STEP_STATE, StoredStep)


@dataclass(slots=True)
class StepOperator(Operator):
    """An `Operator`."""

    spec: StepSpec
    context: TaskContext = NOWHERE
    _step: Step = field(init=False)
    _state: StepState = field(default_factory=StepState)
    _partials: list[pa.RecordBatch] = field(default_factory=list)
    _rows: list[pa.RecordBatch] = field(default_factory=list)
    _rows_in: int = 0
    """Of both."""
    _input_ms: int = MIN_TIME
    """The input watermark."""
    _watermark: int = MIN_TIME
    """The same, as of the last step."""
    _processing: int = MIN_TIME
    _output: int = MIN_TIME
    _dirty: bool = True
    _between: bool = False
    """See `between`."""
    _arrived: bool = False
    _now: int = MIN_TIME
    """The processing time told last, where windows go by it."""
    _due: bool = False
    """A window has reached its end by it since the last barrier."""
    _counts: dict[str, int] = field(default_factory=lambda: {"late": 0, "latePartials": 0, "inGaps": 0, "failed": 0})

    def __post_init__(self) -> None:
        self._step = Step(WindowPlan(self.spec.window), self.context)

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """Kept for the next step."""
        del tag
        self._arrived = True
        (self._partials if content == "partials" else self._rows).append(batch)
        self._rows_in += batch.num_rows
        most = self.context.open_rows_max
        if self._rows_in + self._open_rows() <= most:
            return ()
        self._between = self._between or self._step.plan.sessions  # whose rows are judged all at once else
        outs = list(self._run(self._watermark, self._processing))  # rows of one window and key become one
        if self._open_rows() > most:  # a wide epoch: what the watermark has passed has to go
            self._between = True
            outs += self._run(self._input_ms, self._processing)
        if self._open_rows() > most:
            raise OperatorError(
                f"{self.spec.window.stage.path}: open windows keep {self._open_rows()} groups and rows, and open_rows_max allows {most};"
                f" the watermark stands at {self._watermark} ms: see which source holds it back, make windows shorter, run the"
                " installation with engine spark, or raise open_rows_max in TIDEMARK_RUNTIME"
            )
        return outs

    def _open_rows(self) -> int:
        return sum(table.num_rows for table in (self._state.partials, self._state.rows) if table is not None)

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """Kept for the next step; the end of input is one."""
        self._input_ms = max(self._input_ms, watermark_ms)
        return self._run(watermark_ms, max(self._processing, self._now)) if watermark_ms == MAX_TIME else ()

    def on_processing_time(self, now_ms: int) -> Sequence[Out]:
        """A step up to this processing time, if it can close anything.

        Windows on processing time wait for the barrier, as on Spark: senders hold rows that arrived in time until then (PA4).
        """
        now = max(self._processing, now_ms)
        if self._step.plan.processing_time:
            self._now = max(self._now, now)
            self._due = self._due or self._step.next_processing_time(self._state) <= now
            return ()
        if self._arrived and self._idles:
            # Something has come since time was last told: its arrival is now, and wins over a timer of this instant (ST4).
            self._state = replace(self._state, last_arrival_ms=max(self._state.last_arrival_ms, now))
            self._arrived = False
            self._dirty = True
        waits = self._idles and bool(self._partials or self._rows)
        if not waits and now < self.next_processing_time():
            self._processing = now
            return ()
        return self._run(self._watermark, now)

    def before_barrier(self) -> Sequence[Out]:
        """The epoch's step: take in the waiting rows, and close windows that the watermark, or processing time, has passed."""
        processing, self._due = max(self._processing, self._now if self._due else MIN_TIME), False
        if self._partials or self._rows or processing > self._processing or self._input_ms > self._watermark:
            return self._run(self._input_ms, processing)
        return ()

    def output_watermark(self) -> int:
        """See step.py, ST5."""
        return self._output

    def held_by(self) -> tuple[str, Why]:
        """ST5: an output time inside an open window, the allowed lateness, or what came since the last step."""
        if self._input_ms > self._watermark:
            return self._step.plan.spec.stage.name, "epoch"
        open_window = self._output < self._state.closed_to_ms
        return self._step.plan.spec.stage.name, "openWindow" if open_window else "allowedLateness"

    def next_processing_time(self) -> int:
        """When processing time next closes a window; at once where an arrival waits to be told the time; never once one is due."""
        if self._due:
            return MAX_TIME
        if self._arrived and self._idles:
            return MIN_TIME
        return self._step.next_processing_time(self._state)

    def held_rows(self, merge_above: int) -> int:
        """Rows that wait for the barrier, and those of open windows behind a watermark that does."""
        del merge_above
        return self._rows_in + (self._open_rows() if self._input_ms > self._watermark else 0)

    def between(self) -> bool:
        """Whether an epoch was too wide."""
        return self._between

    def snapshot(self) -> Mapping[StatePart, bytes | None]:
        """Open windows."""
        self._between = False
        if not self._dirty:
            return {}
        self._dirty = False
        state = self._state
        stored = StoredStep(
            state.closed_to_ms,
            state.forced_ms,
            state.last_arrival_ms,
            encode_table(state.partials),
            encode_table(state.rows),
        )
        return {TASK_PART: _CODEC.encode(stored)}

    def restore(self, parts: MutableMapping[StatePart, bytes]) -> None:
        """Open windows as they were."""
        data = parts.pop(TASK_PART, None)
        if data is None:
            return
        stored = _CODEC.decode(data)
        partials, rows = decode_table(stored.partials), decode_table(stored.rows)
        for table in (partials, rows):
            if table is not None and table.num_rows and (why := self._step.plan.unread(table.schema.names)):
                raise OperatorError(why)
        self._state = StepState(partials, rows, stored.closed_to_ms, stored.forced_ms, stored.last_arrival_ms)
        self._dirty = False
        self._arrived = (
            True  # a copy may have been taken before the last arrival was told the time: a timer then runs from now
        )

    def counters(self) -> Mapping[str, int]:
        """Totals since the task's start; and the starts of the first and the last open window, ms, where there is one."""
        starts = [
            table.column(WSTART)
            for table in (self._state.partials, self._state.rows)
            if table is not None and table.num_rows
        ]
        if not starts:
            return dict(self._counts)
        found = [pc.min_max(column) for column in starts]
        first, last = min(f["min"].as_py() for f in found), max(f["max"].as_py() for f in found)
        return {**self._counts, MIN_OPEN: first, MAX_OPEN: last}

    @property
    def _idles(self) -> bool:
        return self._step.plan.idle_timeout_ms is not None

    def _run(self, watermark_ms: int, processing_ms: int) -> Sequence[Out]:
        times = Times(self._watermark, watermark_ms, self._processing, processing_ms)
        result = self._step(self._state, EpochInput(tuple(self._partials), tuple(self._rows)), times)
        self._partials, self._rows, self._rows_in = [], [], 0
        self._watermark, self._processing = watermark_ms, processing_ms
        self._state, self._dirty = result.state, True
        self._output = max(self._output, result.output_watermark_ms)
        self._counts["late"] += result.counts.late
        self._counts["latePartials"] += result.counts.late_partials
        self._counts["inGaps"] += result.counts.in_gaps
        self._counts["failed"] += result.counts.failed
        return result.outs
