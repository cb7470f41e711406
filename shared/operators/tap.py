"""Gives rows out on a port of their own, and passes them on: an `$emit` before the end of a pipeline."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tidemark.shared.model.frames import Content
from tidemark.shared.model.plan import OUT
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.passing import Passing
from tidemark.shared.operators.program import through
from tidemark.shared.operators.specs import TapSpec


class Tap(Passing):
    """Stateless."""

    def __init__(self, spec: TapSpec, context: TaskContext = NOWHERE) -> None:
        self._port, self._stages, self._context = spec.port, spec.stages, context

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """The same rows on both ports, but for what is done to those of the tap."""
        del tag
        staged = through(self._stages, batch, self._context)
        return (Out(self._port, content, staged.batch), Out(OUT, content, batch), *staged.letters)

    def counters(self) -> Mapping[str, int]:
        """Nothing is counted."""
        return {}
