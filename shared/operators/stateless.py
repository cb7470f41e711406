"""Stages that treat each document by itself, as an operator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from shared.model.frames import Content
from shared.model.ids import StatePart
from shared.model.plan import OUT
from shared.model.time import MAX_TIME, MIN_TIME
from shared.operators.base import Out
from shared.operators.context import NOWHERE, TaskContext
from shared.operators.documents import through
from shared.operators.specs import StatelessSpec


@dataclass(slots=True)
class StatelessStages:
    """An `Operator` without state. A document on which a stage fails becomes a dead letter; the others go on (D1)."""

    spec: StatelessSpec
    context: TaskContext = NOWHERE
    _watermark_ms: int = MIN_TIME
    _failed: int = 0
    _discarded: int = 0

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """Rows behind the stages, and dead letters."""
        del tag
        staged = through(self.spec.stages, batch, self.context)
        self._failed += staged.failed
        self._discarded += staged.discarded
        return [*([Out(OUT, content, staged.batch)] if staged.batch.num_rows else []), *staged.letters]

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """Passed on as it is: what a stage drops moves it too (D4)."""
        self._watermark_ms = watermark_ms
        return ()

    def on_processing_time(self, now_ms: int) -> Sequence[Out]:
        """Nothing waits."""
        del now_ms
        return ()

    def before_barrier(self) -> Sequence[Out]:
        """Nothing is held."""
        return ()

    def output_watermark(self) -> int:
        """The input watermark, ms."""
        return self._watermark_ms

    def next_processing_time(self) -> int:
        """Never."""
        return MAX_TIME

    def snapshot(self) -> Mapping[StatePart, bytes | None]:
        """No state."""
        return {}

    def restore(self, parts: Mapping[StatePart, bytes]) -> None:
        """No state."""
        del parts

    def counters(self) -> Mapping[str, int]:
        """Documents on which a stage failed, and those that `$validate` discarded."""
        return {"failed": self._failed, "discarded": self._discarded}
