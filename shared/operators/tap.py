"""Gives rows out on a port of their own, and passes them on: an `$emit` before the end of a pipeline."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from shared.model.frames import Content
from shared.model.plan import OUT
from shared.operators.base import Out
from shared.operators.passing import Passing
from shared.operators.specs import TapSpec


class Tap(Passing):
    """Stateless."""

    def __init__(self, spec: TapSpec) -> None:
        self._port = spec.port

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """The same rows on both ports."""
        del tag
        return (Out(self._port, content, batch), Out(OUT, content, batch))

    def counters(self) -> Mapping[str, int]:
        """Nothing is counted."""
        return {}
