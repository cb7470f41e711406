"""What operators without state and without time of their own share: the watermark passes as it is, nothing waits, nothing is kept."""

from collections.abc import Mapping, MutableMapping, Sequence

from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import Out


class Passing:
    """All of an `Operator` but `on_batch` and `counters`."""

    _watermark_ms: int = MIN_TIME

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

    def restore(self, parts: MutableMapping[StatePart, bytes]) -> None:
        """No state."""
        del parts
