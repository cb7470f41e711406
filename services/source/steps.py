"""A script's control steps as they take effect in a source's task (LANGUAGE.md, `script`; D2, D3).

Steps take effect in their order, each fully before the next. Where stages look at time, that takes an epoch a step: only a committed
checkpoint shows that every task has seen a step's effect.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidemark.services.source.connectors.script import split_of
from tidemark.shared.language.documents import Processor, all_stages
from tidemark.shared.language.stages import (
    CachedLookup,
    Compute,
    HoppingWindow,
    Join,
    ScriptSource,
    SessionWindow,
    Source,
    Stage,
    TumblingWindow,
    Window,
)
from tidemark.shared.language.stages.sources.script import IdleStep, ProcessingTimeStep, WatermarkStep
from tidemark.shared.model.ids import SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.operators.source_front import SourceFront
from tidemark.shared.protocol.source.machine import Input


class ClockNotSettable(Exception):
    """A script would set the wall clock, and this installation's is the machine's."""


@dataclass(frozen=True, slots=True)
class Steps:
    """How a source's task carries out the steps that come with a batch."""

    set_time: Callable[[int], None]
    """Puts the wall clock of all tasks to this, ms; raises ClockNotSettable where nobody can."""
    one_by_one: bool
    """A checkpoint has to cover the effect of each step before the next step is read."""
    rows_too: bool
    """The same holds for steps with rows: a late session joins the rows behind it only if both are looked at together."""
    settle_ms: int
    """How long to wait before asking for the checkpoint, ms: all tasks see a clock that was set by then; 0 where none is set."""

    def carry_out(self, steps: Sequence[object], given: Input, front: SourceFront, now_ms: int) -> None:
        """Move watermarks, idleness and time. now_ms: UTC."""
        for step in steps:
            match step:
                case WatermarkStep(time_ms, partition):
                    names = tuple(given.splits) if partition is None else (split_of(partition),)
                    front.raise_to(names, time_ms)
                    given.become(names, "active")  # D3
                    given.judged(front.watermarks(names), now_ms)
                case IdleStep(partition):
                    given.become(tuple(given.splits) if partition is None else (split_of(partition),), "idle")
                case ProcessingTimeStep(time_ms):
                    self.set_time(time_ms)


@dataclass(slots=True)
class Silence:
    """Which partitions a script has left without data for `partitionIdleTimeout`, by its own clock: idle, as a topic's are (W4)."""

    timeout_ms: int | None
    _now_ms: int | None = None
    """The last `processingTime`, ms; None before the first."""
    _fed_ms: dict[SplitId, int] = field(default_factory=dict)

    def behind(self, batch: RawBatch, own: Sequence[SplitId]) -> list[SplitId]:
        """The splits that are idle behind a batch and its steps, as far as time went on in it."""
        if self.timeout_ms is None:
            return []
        if len(batch.positions):
            self._feed([batch.split])
        silent: list[SplitId] = []
        for step in batch.steps:
            match step:
                case WatermarkStep(_, partition):
                    self._feed(own if partition is None else [split_of(partition)])
                case ProcessingTimeStep(time_ms):
                    self._now_ms = time_ms
                    silent = [s for s in own if time_ms - self._fed_ms.setdefault(s, time_ms) >= self.timeout_ms]
        return silent

    def _feed(self, splits: Sequence[SplitId]) -> None:
        if self._now_ms is not None:
            self._fed_ms |= dict.fromkeys(splits, self._now_ms)


def looks_at_time(processor: Processor, *, given: bool = False) -> bool:
    """Whether it matters to a stage when something comes: computations, caches, sessions, windows that see the clock.

    Other windows and joins, too, unless each row is judged by its split's watermark before it: then it is all the same how rows come.

    given: the rows are a table of a caller's, which is read at once as a topic is: computations, caches and sessions take them so, though
    no row is late for a session then, nor for what stands behind it.
    """
    merged = processor.options.lateness == "merged" and not (given and begins_with_session(processor.pipeline))
    return any(_looks(stage, merged=merged, given=given) for stage in all_stages(processor.pipeline))


def _looks(stage: Stage, *, merged: bool, given: bool) -> bool:
    match stage:
        case Compute() | CachedLookup():
            return not given
        case SessionWindow():
            return not given or stage.boundary != "eventTime"
        case TumblingWindow() | HoppingWindow():
            return merged or stage.boundary != "eventTime" or stage.idle_timeout_ms is not None
        case Join():
            return merged
    return isinstance(stage, Source) and sets_clock(stage)


def begins_with_session(pipeline: Sequence[Stage]) -> bool:
    """Whether a session window takes the rows of the source, in front of any other window or join."""
    return isinstance(next((stage for stage in pipeline if isinstance(stage, Window | Join)), None), SessionWindow)


def rows_close(processor: Processor) -> bool:
    """Whether the result of one row may depend on the next one in the same epoch: sessions of event time merge."""
    return any(isinstance(s, SessionWindow) and s.boundary == "eventTime" for s in all_stages(processor.pipeline))


def sets_clock(stage: Source) -> bool:
    """Whether it is a script with `processingTime` steps."""
    return isinstance(stage, ScriptSource) and any(isinstance(step, ProcessingTimeStep) for step in stage.script)
