"""Stages that treat each document by itself, as an operator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemark.shared.model.frames import Content
from tidemark.shared.model.plan import OUT
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.passing import Passing
from tidemark.shared.operators.program import through
from tidemark.shared.operators.specs import StatelessSpec


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
        staged = through(self.spec.stages, batch, self.context)
        self._failed += staged.failed
        self._discarded += staged.discarded
        return [*([Out(OUT, content, staged.batch)] if staged.batch.num_rows else []), *staged.letters]

    def counters(self) -> Mapping[str, int]:
        """Documents on which a stage failed, and those that `$validate` discarded."""
        return {"failed": self._failed, "discarded": self._discarded}
