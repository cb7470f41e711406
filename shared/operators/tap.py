"""Gives rows out on a port of their own, and passes them on: an `$emit` before the end of a pipeline."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from shared.model.frames import Content
from shared.model.ids import StatePart
from shared.model.plan import OUT
from shared.model.time import MAX_TIME, MIN_TIME
from shared.operators.base import Out
from shared.operators.specs import TapSpec


class Tap:
    """Stateless."""

    def __init__(self, spec: TapSpec) -> None:
        self._port = spec.port
        self._watermark_ms = MIN_TIME

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """The same rows on both ports."""
        del tag
        return (Out(self._port, content, batch), Out(OUT, content, batch))

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """Passed on as it is."""
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
        """Nothing is counted."""
        return {}
