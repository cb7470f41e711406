"""A Spark stage's task: collects an epoch's segments, runs the step at its end, announces its output (protocol, section 8).

The driver speaks the in-band protocol on small frames. Segments that come by reference stay by reference; small inline partials of an
epoch are written together as one segment (P1); rows that may be late are few, and judged here.
"""

import errno
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from py4j.protocol import Py4JNetworkError

from tidemark.shared.model.checkpoint import BlobRef
from tidemark.shared.model.failures import Outage
from tidemark.shared.model.formats import SPARK_STATE, Codec
from tidemark.shared.model.frames import Body, Inline, Segment
from tidemark.shared.model.held import Hold, Wait, Why
from tidemark.shared.model.ids import Epoch, StatePart, groups_owned, groups_part
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.aggregation import at_once, take_rows
from tidemark.shared.operators.base import GROUP, MAX_OPEN, MIN_OPEN, WEND, WSTART, Out
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.sessions import intervals
from tidemark.shared.operators.step import Times
from tidemark.shared.operators.window_plan import SESSION, WindowPlan
from tidemark.shared.runtime.body import Announced, Copied, ReceivingBody
from tidemark.shared.runtime.context import AssignedTask
from tidemark.shared.runtime.exchange import blob_name, load_body, parquet_bytes
from tidemark.shared.wire.arrow import decode_batch
from tidemark.spark_stages.beginning import NotBegun
from tidemark.spark_stages.manifest import StageManifest, StageState, StateSegment, joined, share
from tidemark.spark_stages.step import OutputSegment, SparkResult, SparkStep

_PASSING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE)
_NOT_BEGUN: Final = "JAVA_GATEWAY_EXITED"
_WORDS: Final = (
    *(f"[Errno {number}]" for number in _PASSING),
    "No space left on device",
    "Cannot allocate memory",
    _NOT_BEGUN,
    "Answer from Java side is empty",
    "StatusCode.UNAVAILABLE",
    "stopped SparkContext",
    "SparkContext was shut down",
    "SparkContext._taskScheduler()",  # is null: an application that ended while it began, for no master answered
    "ExecutorLostFailure",
)
_SAID_CHARACTERS: Final = 300
"""Of Spark's words: a failed job's have a stack of the JVM behind them."""


class SparkUnavailable(Outage):
    """Spark is away, or cannot work now (C10).

    Its JVM has ended or cannot begin; its executors find no room or no file handles, or are lost; a cluster's master does not answer, or
    has ended the application. Spark tells all of them as text, the executors' as the end of a Python traceback, so they are known by words.
    All else is the stage's own failure.
    """


def outage_of(error: Exception) -> SparkUnavailable | None:
    """The error as an outage, if it is one."""
    if isinstance(error, SparkUnavailable):
        return error
    if isinstance(error, NotBegun):
        return SparkUnavailable(str(error))
    said = str(error)
    word = next((word for word in _WORDS if word in said), None)
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return SparkUnavailable(f"Spark does not answer ({said[:_SAID_CHARACTERS]}); its session is started again")
    if word is None:
        return None
    at = said.index(word)
    line = said[said.rfind("\n", 0, at) + 1 :].splitlines()[0][:_SAID_CHARACTERS]
    where = "; what Java said stands in the log of this Spark service" if word == _NOT_BEGUN else ""
    return SparkUnavailable(f"Spark cannot work now: {line}{where}")


_log = structlog.get_logger()
T = TypeVar("T")


class SparkBody(ReceivingBody):
    """One stage. Its state is a manifest; only `flush` changes it."""

    def __init__(
        self,
        context: AssignedTask,
        plan: WindowPlan,
        operators: TaskContext,
        make: Callable[[WindowPlan, str, TaskContext, int], SparkStep],
    ) -> None:
        self._context = context
        self._plan = plan
        self._operators = operators
        self._make = make
        self._step: SparkStep | None = None
        self._state = StageState()
        self._epoch = Epoch(context.assign.last + 1)
        """Of the frames that are sent now: new segments carry it in their names (C12)."""
        self._input_ms = MIN_TIME
        self._stepped_ms = MIN_TIME
        self._now_ms = MIN_TIME
        self._stepped_now_ms = MIN_TIME
        self._output_ms = MIN_TIME
        assign = context.assign
        own = groups_owned(assign.index, assign.plan.tasks[assign.vertex], assign.plan.key_groups)
        self._owned = (own.start, own.stop)
        self._part = groups_part(own)
        self._gone: frozenset[StatePart] = frozenset()
        """Restored parts that this task's own stands for from the next snapshot on."""
        self._apart: Sequence[StageManifest] = ()
        """Of several ranges of key groups, up to the next step: they may have closed different windows."""
        self._segments: list[Segment] = []
        self._inline: list[Inline] = []
        self._rows: list[Body] = []
        self._counts = {"late": 0, "latePartials": 0, "failed": 0, "sparkJobs": 0, "steps": 0, "segments": 0}

    # --- life -----------------------------------------------------------------------------------------------------------

    async def open(self, parts: Mapping[StatePart, bytes]) -> None:
        """Take the manifests. SegmentDiffers names a listed segment that is gone or changed; to look, the session has to be up."""
        groups = self._context.assign.plan.key_groups
        shares = [share(_CODEC.decode(data), self._owned, groups) for data in parts.values()]
        self._gone = frozenset(parts) - {self._part}
        if not shares:
            return
        shares.sort(key=lambda each: each.groups or self._owned)
        self._state = joined([each.state for each in shares])
        self._stepped_ms = max(each.stepped_ms for each in shares)
        self._stepped_now_ms = max(each.stepped_now_ms for each in shares)
        self._output_ms = min(each.output_ms for each in shares)
        self._input_ms = max(self._input_ms, self._stepped_ms)
        if len({(each.stepped_ms, each.stepped_now_ms, each.state.closed_to_ms) for each in shares}) > 1:
            self._apart = shares
        if self._state.segments:
            step = await self._made()
            await self._on_spark(lambda: step.check(self._state.segments))

    async def _made(self) -> SparkStep:
        """The step: with the first rows, where no state is restored, so that sources read while the session comes up."""
        if self._step is None:
            outside, job = self._context.outside, self._context.assign.job
            root = outside.blobs.uri(job).removesuffix(f"/{job}")
            groups = self._context.assign.plan.key_groups
            starting = Wait("engine", "starting Spark", "Spark", outside.clock.now_ms(), "its session comes up")
            self._context.waits("spark", starting)
            try:
                self._step = await self._on_spark(lambda: self._make(self._plan, root, self._operators, groups))
            finally:
                self._context.waits("spark", None)
        return self._step

    async def _on_spark(self, work: Callable[[], T]) -> T:
        """Work that waits for Spark. SparkUnavailable where it is away; other errors are raised as they are."""
        try:
            return await self._context.outside.executor.blocking(work)
        except Exception as error:
            if (outage := outage_of(error)) is not None:
                raise outage from error
            raise

    async def close(self) -> None:
        """The session stays: it is the process'."""

    # --- the epoch --------------------------------------------------------------------------------------------------------

    async def apply(self, tag: str, bodies: Sequence[Body]) -> Sequence[Out]:
        """Kept for the step at the end of the epoch."""
        del tag
        for body in bodies:
            if body.content == "rows":
                self._rows.append(body)
            elif isinstance(body, Segment):
                self._segments.append(body)
            else:
                self._inline.append(body)
        return ()

    async def advance(self, watermark_ms: int) -> Sequence[Out | Announced]:
        """Noted for the step; at the end of input the step comes at once, for END goes out before the next barrier (E1)."""
        self._input_ms = max(self._input_ms, watermark_ms)
        return await self._run(self._epoch) if watermark_ms == MAX_TIME else ()

    async def fire(self, now_ms: int) -> Sequence[Out]:
        """Noted for the step."""
        self._now_ms = max(self._now_ms, now_ms)
        return ()

    async def flush(self, epoch: Epoch) -> Sequence[Out | Announced]:
        """Run the epoch's step."""
        return await self._run(epoch)

    async def copy(self, epoch: Epoch, committed: Epoch) -> Copied:
        """The manifest, and the segments that it lists."""
        del committed
        self._epoch = Epoch(epoch + 1)
        stored = StageManifest(self._state, self._stepped_ms, self._stepped_now_ms, self._output_ms, self._owned)
        blobs = tuple({s.name: BlobRef(s.name, s.size_bytes, s.digest) for s in self._state.segments}.values())
        changed: dict[StatePart, bytes | None] = {self._part: _CODEC.encode(stored), **dict.fromkeys(self._gone)}
        self._gone = frozenset()
        return Copied(changed, blobs)

    async def _run(self, epoch: Epoch) -> Sequence[Out | Announced]:
        outside, assign = self._context.outside, self._context.assign
        step = await self._made()
        arrived = bool(self._segments or self._inline or self._rows)
        added = [_taken(s) for s in self._segments]
        letters, loose = await self._loose(added)
        added += await self._written(loose, epoch)
        self._segments, self._inline, self._rows = [], [], []
        prefix = blob_name(assign.job, assign.vertex, assign.generation, epoch, outside.unique())
        # W5: never before the last step's, even if the machine's clock is behind after a restore.
        now_ms = max(self._now_ms, self._stepped_now_ms, outside.clock.now_ms())
        outs = await self._caught_up(step, now_ms, prefix)
        times = Times(self._stepped_ms, self._input_ms, self._stepped_now_ms, now_ms)
        self._context.passing("step-running", epoch)
        began_ms = outside.clock.monotonic_ms()
        result: SparkResult = await self._on_spark(lambda: step(self._state, added, times, prefix, arrived=arrived))
        self._state = result.state
        self._stepped_ms, self._stepped_now_ms = self._input_ms, times.processing_ms
        self._output_ms = max(self._output_ms, result.output_watermark_ms)
        self._count(result)
        took_ms = outside.clock.monotonic_ms() - began_ms
        _log.info("step.done", task=str(self._context.task), epoch=epoch, jobs=result.jobs, took_ms=took_ms)
        announced = [
            Announced(o.port, Segment("rows", o.name, o.rows, o.size_bytes, o.digest, o.low_ms, o.high_ms))
            for o in (*outs, *result.outs)
        ]
        return [*letters, *announced]

    async def _caught_up(self, step: SparkStep, now_ms: int, prefix: str) -> list[OutputSegment]:
        """Key groups whose last step was at a lower watermark close what the others have closed, and become one state with them."""
        outs: list[OutputSegment] = []
        states: list[StageState] = []
        for number, each in enumerate(self._apart):
            times = Times(each.stepped_ms, self._stepped_ms, each.stepped_now_ms, now_ms)
            made = functools.partial(step, each.state, (), times, f"{prefix}-{number}", arrived=False)
            result: SparkResult = await self._on_spark(made)
            self._count(result)
            outs += result.outs
            states.append(result.state)
        if states:
            self._apart, self._state = (), joined(states)
        return outs

    async def _loose(self, added: Sequence[StateSegment]) -> tuple[list[Out], list[pa.Table]]:
        """Rows that came without a window are judged by the watermark of the step before."""
        closed = max(self._state.closed_to_ms, self._plan.closed_to(max(self._stepped_ms, self._state.forced_ms)))
        letters: list[Out] = []
        tables: list[pa.Table] = []
        batches = [
            _without_groups(await load_body(self._context.outside.blobs, body, self._context.outside.settings.wire))
            for body in self._rows
        ]
        batches = [*at_once(self._plan, batches)]
        open_ = await self._open_sessions(batches, added, closed) if self._plan.sessions else None
        for batch in batches:
            if self._plan.sessions and tables:
                open_ = pa.concat_tables([open_, intervals(tables[-1:])])
            taken = take_rows(self._plan, batch, closed, self._operators, open_)
            letters += taken.letters
            self._counts["late"] += taken.late
            self._counts["failed"] += taken.failed
            if taken.table.num_rows:
                tables.append(taken.table)
        return letters, tables

    async def _open_sessions(
        self, batches: Sequence[pa.RecordBatch], added: Sequence[StateSegment], closed_ms: int
    ) -> pa.Table:
        """The sessions that rows without a window may join: those in the state, and those that this epoch has brought so far."""
        alone = [batch.filter(pc.is_null(batch.column(WSTART))) for batch in batches]
        keys = sorted({key for batch in alone for key in batch.column(SESSION).unique().to_pylist()})
        if not keys:
            return intervals(())
        step, state = await self._made(), self._state
        found = await self._on_spark(lambda: step.open_sessions(state, added, closed_ms, keys))
        self._counts["sparkJobs"] += 1
        return pa.concat_tables([found, intervals(decode_batch(body.ipc) for body in self._inline)])

    async def _written(self, loose: Sequence[pa.Table], epoch: Epoch) -> list[StateSegment]:
        """P1: the inline partials of this epoch become one segment."""
        inline = [pa.Table.from_batches([_without_groups(decode_batch(body.ipc))]) for body in self._inline]
        if not (loose or inline):
            return []
        table = pa.concat_tables([*loose, *inline]).combine_chunks()
        outside, assign = self._context.outside, self._context.assign
        name = blob_name(assign.job, assign.vertex, assign.generation, epoch, f"in-{outside.unique()}.parquet")
        ref = await outside.blobs.put(name, parquet_bytes(table))
        starts, ends = table.column(WSTART).to_numpy(), table.column(WEND).to_numpy()
        return [StateSegment(name, table.num_rows, ref.size_bytes, ref.digest, int(starts.min()), int(ends.max()))]

    # --- what others ask ----------------------------------------------------------------------------------------------------

    def batching(self) -> bool:
        """Rows wait for the step, or open windows for a watermark that came behind the last one (W3)."""
        waits = bool(self._segments or self._inline or self._rows)
        return waits or (self._input_ms > self._stepped_ms and bool(self._state.segments))

    def output_watermark(self) -> int:
        """That of the last step, ms."""
        return self._output_ms

    def holds(self) -> Sequence[Hold]:
        """Input read since the last step waits for the next; windows left open wait for the allowed lateness or their rows' times."""
        name = self._plan.spec.stage.name
        found = []
        if self._stepped_ms < self._input_ms:
            found.append(Hold(name, "epoch", self._input_ms, self._stepped_ms))
        if self._output_ms < self._stepped_ms:
            open_window = self._output_ms < self._state.closed_to_ms
            why: Why = "openWindow" if open_window else "allowedLateness"
            found.append(Hold(name, why, self._stepped_ms, self._output_ms))
        return found

    def next_processing_ms(self) -> int:
        """Time is looked at in the step, at every barrier."""
        return MAX_TIME

    def counters(self) -> Mapping[str, int]:
        """Steps, jobs, late rows; and the starts of the first and the last open window, ms, the latter where windows have one size."""
        counts = {**self._counts, "segments": len(self._state.segments)}
        if self._state.segments:
            counts[MIN_OPEN] = min(s.min_start_ms for s in self._state.segments)
            if not self._plan.sessions:
                counts[MAX_OPEN] = max(s.max_end_ms for s in self._state.segments) - self._plan.length_ms
        return counts

    def _count(self, result: SparkResult) -> None:
        self._counts["latePartials"] += result.late_partials
        self._counts["failed"] += result.failed
        self._counts["sparkJobs"] += result.jobs
        self._counts["steps"] += 1
        if result.late_partials:
            _log.error("step.late_partials", task=str(self._context.task), rows=result.late_partials)


_CODEC: Final[Codec[StageManifest]] = Codec(SPARK_STATE, StageManifest)


def _without_groups(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch that came by its rows' key groups, which tell nothing more."""
    return batch.drop_columns([GROUP]) if GROUP in batch.schema.names else batch


def _taken(segment: Segment) -> StateSegment:
    """A sender's segment, as part of the state."""
    if PurePosixPath(segment.name).is_absolute():
        message = f"segment {segment.name!r}: expected a name inside the blob store"
        raise ValueError(message)
    return StateSegment(
        segment.name, segment.rows, segment.size_bytes, segment.digest, segment.min_event_ms, segment.max_event_ms
    )
