"""A source's front under its input machine, as a task has them, without the source: records and statuses come from the test."""

from collections.abc import Mapping
from typing import Any

from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.held import SplitHeld
from tidemark.shared.model.ids import FIRST_OFFSET, Epoch, SplitId, StatePart
from tidemark.shared.model.splits import Status
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.source_front import SourceFront
from tidemark.shared.operators.specs import FrontSpec
from tidemark.shared.protocol.source.machine import Input
from tidemark.shared.protocol.source.split import Split


class Fronted:
    """Calls come one at a time; `assign` first, after `restore`."""

    def __init__(self, spec: FrontSpec, context: TaskContext = NOWHERE) -> None:
        self.spec, self.context = spec, context
        self.front = SourceFront(spec, context)
        self.input = Input()

    def restore(self, parts: Mapping[StatePart, bytes], watermark_ms: int = MIN_TIME) -> None:
        """`watermark_ms`: the highest that was sent before."""
        self.front.restore(parts)
        self.input.watermark_ms = watermark_ms

    def assign(self, splits: Mapping[SplitId, int]) -> None:
        """These, with their ordinals, are the task's."""
        for name, noted in self.front.assign(splits).items():
            known = KnownSplit(splits[name], "", FIRST_OFFSET)
            watermark_ms = self.front.watermarks([name])[name]
            self.input.splits[name] = Split.restored(known, None, watermark_ms, noted, 0, first=True)

    def on_records(self, *gathered: Any) -> list[Out]:
        """What becomes of them."""
        names = {raw.split for raw in gathered}
        outs = self.front.on_records(*gathered, away=self.input.rows(names))
        self.input.judged(self.front.watermarks(names), 0)
        return outs

    def on_status(self, split: SplitId, status: Status) -> None:
        """It is said so."""
        self.input.become([split], status)

    def output_watermark(self) -> int:
        """The task's, ms."""
        return self.input.watermark_ms

    def idle(self) -> bool:
        """W3."""
        return self.input.is_idle()

    def ended(self) -> bool:
        """E1."""
        return self.input.has_ended()

    def split_watermarks(self) -> dict[SplitId, tuple[int, Status, bool]]:
        """By split: its watermark, its status, whether it is away."""
        return {s: (each.progress.watermark_ms, each.status, each.away) for s, each in self.input.splits.items()}

    def told_of(self, split: SplitId) -> SplitHeld:
        """As a heartbeat has it."""
        return self.front.told_of(split, self.input.splits[split].held(None, 0))

    def snapshot(self) -> Mapping[StatePart, bytes | None]:
        """What has changed since the last one."""
        return self.front.snapshot(self.input.copied(Epoch(1)))

    def counters(self) -> Mapping[str, int]:
        """The front's."""
        return self.front.counters()
