"""A Spark stage without Spark: the product's own body and step, whose jobs run in this process on the simulation's blobs.

A job is what Spark would hand to its executors, a function from Arrow batches to Arrow batches; only what the step would ask of Spark's own
columns (two looks at segments) is said here in Arrow.
"""

import functools
import io
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext as SparkTask

from tests.harness.simulation.ports import SCHEME, SimBlobs
from tidemark.services.spark.service import KeptSession, SparkService
from tidemark.shared.operators.base import WEND
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.sessions import intervals
from tidemark.shared.operators.typed_group import ROWS
from tidemark.shared.operators.window_plan import SESSION, WindowPlan
from tidemark.spark_stages.executing import _read
from tidemark.spark_stages.manifest import StageState, StateSegment, StepBounds
from tidemark.spark_stages.step import SparkStep

BOUNDS: Final = StepBounds(segments_max=4, task_rows=8, tasks_planned=3, large_task_rows=16)
STORES: Final[weakref.WeakValueDictionary[str, SimBlobs]] = weakref.WeakValueDictionary()
"""Blobs of the processes that have a stage, by the name that their roots carry; nothing of a seed outlives it."""


@dataclass(frozen=True, slots=True)
class _Task:
    """What code of a task asks of its context."""

    number: int

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self.number

    def taskAttemptId(self) -> int:  # noqa: N802 - Spark's name
        return 0


@dataclass(frozen=True, slots=True)
class _Job:
    """So many tasks, each with its number, one after the other."""

    tasks: int
    work: Callable[..., Iterator[pa.RecordBatch]] = iter

    def mapInArrow(self, work: Callable[..., Iterator[pa.RecordBatch]], _ddl: str) -> "_Job":  # noqa: N802 - Spark's name
        """See Spark."""
        return _Job(self.tasks, work)

    def collect(self) -> list[tuple[Any, ...]]:
        """Rows, as tuples."""
        kind: Any = SparkTask
        rows: list[tuple[Any, ...]] = []
        for number in range(self.tasks):
            kind._taskContext = _Task(number)
            try:
                batches = self.work(iter([pa.record_batch({"id": [number]})]))
                rows += [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
            finally:
                kind._taskContext = None
        return rows


class InProcess:
    """What a step asks of a session."""

    def range(self, _begin: int, end: int, _step: int, _tasks: int) -> _Job:
        """See Spark: each task has one number."""
        return _Job(end)


class InProcessStep(SparkStep):
    """The step, with what it asks of Spark's columns."""

    __slots__ = ()

    def _late(self, added: Sequence[StateSegment], closed_ms: int) -> int:
        suspects = [s for s in added if self._first_end(s) <= closed_ms]
        if not suspects or self.plan.mode == "rows" or self.plan.processing_time:
            return 0
        late = [table.filter(pc.less_equal(table.column(WEND), closed_ms)) for table in self._tables(suspects)]
        return sum(pc.sum(table.column(ROWS)).as_py() or 0 for table in late)

    def open_sessions(
        self, state: StageState, added: Sequence[StateSegment], closed_ms: int, keys: Sequence[bytes]
    ) -> pa.Table:
        """See `SparkStep.open_sessions`."""
        segments = [s for s in (*state.segments, *added) if s.max_end_ms > closed_ms]
        asked = pa.array(keys, pa.binary())
        return intervals(
            table.filter(
                pc.and_(pc.greater(table.column(WEND), closed_ms), pc.is_in(table.column(SESSION), value_set=asked))
            )
            for table in self._tables(segments)
        )

    def _tables(self, segments: Sequence[StateSegment]) -> list[pa.Table]:
        return [_read(self.root, segment, self.plan.segment_schema) for segment in segments]


class SimSpark(SparkService):
    """Stages of a process that has no JVM."""

    def __init__(self, blobs: SimBlobs) -> None:
        super().__init__(KeptSession("nowhere"), BOUNDS, keeps=True)
        STORES[blobs.authority] = blobs

    def session(self) -> Any:
        """What steps are asked of."""
        return InProcess()

    def make(self, plan: WindowPlan, root: str, operators: TaskContext, key_groups: int) -> SparkStep:
        """See `SparkService.make`."""
        named = {
            name: getattr(BOUNDS, name) for name in ("segments_max", "task_rows", "tasks_planned", "large_task_rows")
        }
        return InProcessStep(self.session(), plan, root, operators, key_groups, **named)


class _Files(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The simulation's blobs as Spark's executors see them."""

    protocol = SCHEME
    cachable = False

    def _open(self, path: str, mode: str = "rb", **_options: Any) -> io.BytesIO:
        authority, _, name = path.partition("/")
        blobs = STORES[authority]
        if mode == "rb":
            return io.BytesIO(blobs.read_now(name))
        return _Written(functools.partial(blobs.write_now, name))


class _Written(io.BytesIO):
    """A file that is there once it is closed."""

    def __init__(self, done: Callable[[bytes], None]) -> None:
        super().__init__()
        self._done: Callable[[bytes], None] | None = done

    def close(self) -> None:
        """Write it."""
        done, self._done = self._done, None
        data = self.getvalue() if done is not None else b""
        super().close()
        if done is not None:
            done(data)


fsspec.register_implementation(SCHEME, _Files, clobber=True)
