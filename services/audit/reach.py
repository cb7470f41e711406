"""How far the receivers' watermark may have been when a row came (W3, W4), and so whether the moment decided if the row was late.

Nobody notes when within an epoch a row came to a receiver, when a split became idle, or which task heard of its return. Positions and
the commits' notes say between which bounds the watermark stood: a row that is late by one bound, and not by the other, was judged by the
moment.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.model.ids import VertexId
from tidemark.shared.model.plan import Vertex
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import TS, WM
from tidemark.shared.operators.batches import int64s
from tidemark.shared.operators.specs import ComputeSpec, StepSpec
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.operators.windows import enter

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SplitReach:
    """A split at a barrier."""

    watermark_ms: int
    """Its own, behind all records in front of the barrier."""
    idled: bool
    """It was idle, or not there yet, at some time since the barrier before."""
    finished: bool


@dataclass(frozen=True, slots=True)
class Judge:
    """An operator behind a source that finds rows late by the watermark at their arrival."""

    vertex: VertexId
    window: WindowPlan | None
    """None: a computation by event time."""
    split: bool
    """Rows were judged before by their own split's watermark (`lateness: split`): only those that passed come."""

    def limits(self, batch: pa.RecordBatch) -> tuple[Int64s, Int64s]:
        """Of rows in windows: the watermarks from which on they are late there, and their split's before them, ms; shape (m,) each."""
        times, before = int64s(batch.column(TS)), int64s(batch.column(WM))
        if self.window is None:
            limits, rows, passed = times + 1, np.arange(len(times)), times >= before
        else:
            lateness_ms = self.window.spec.stage.allowed_lateness_ms
            windows = enter(self.window, batch, MIN_TIME).windows
            limits, rows = windows.ends + lateness_ms, windows.rows
            passed = times + lateness_ms >= before if self.window.sessions else limits > before[rows]
            if (
                self.window.extras and not self.split
            ):  # the same watermark decides which elements give the output its time (W6)
                limits = np.concatenate([limits, times + lateness_ms + 1])
                rows = np.concatenate([rows, np.arange(len(times))])
        if self.split:
            return limits[passed], np.full(int(passed.sum()), MIN_TIME)
        return limits, before[rows]

    @property
    def joins(self) -> bool:
        """A row that is too late by itself may still join what is open."""
        return self.window is not None and self.window.sessions


def judges_of(vertices: Iterable[Vertex]) -> list[Judge]:
    """Those of a plan."""
    found = []
    for vertex in vertices:
        for spec in vertex.chain:
            if isinstance(spec, StepSpec) and spec.window.from_source:
                plan = WindowPlan(spec.window)
                if not plan.processing_time:
                    found.append(Judge(vertex.id, plan, plan.judged_at_source))
            elif isinstance(spec, ComputeSpec) and spec.from_source and spec.stage.order == "eventTime":
                found.append(Judge(vertex.id, None, spec.lateness == "split"))
    return found


@dataclass(slots=True)
class Reach:
    """The bounds from barrier to barrier. unbounded: receivers may judge rows in front of a barrier behind it (C13)."""

    judges: Sequence[Judge] = ()
    unbounded: bool = False
    late: set[VertexId] = field(default_factory=set)
    """Where the moment may have decided whether a row was late."""
    _least_ms: int = MIN_TIME
    """At the last barrier, it was not below this."""
    _most_ms: int = MIN_TIME
    """At the last barrier, it was not above this."""
    _ahead_ms: dict[int, int] = field(default_factory=dict)
    """By ordinal: receivers may have come so far without the split."""
    _earliest_ms: dict[VertexId, int] = field(default_factory=dict)
    """The least limit of rows of this epoch, from splits that were idle in it."""

    def read(self, ordinal: int, batch: pa.RecordBatch, *, idled: bool) -> None:
        """Rows of one split; idled: it was idle at some time of this epoch."""
        known_ms = max(self._most_ms, self._ahead_ms.get(ordinal, MIN_TIME))
        for judge in self.judges:
            if judge.vertex in self.late:
                continue
            limits, before = judge.limits(batch)
            if not judge.joins:
                open_ = limits > self._least_ms
                limits, before = limits[open_], before[open_]
            if bool((limits <= np.maximum(before, known_ms)).any()):
                self.late.add(judge.vertex)
            elif len(limits) and (idled or self.unbounded):
                earliest_ms = int(limits.min())
                self._earliest_ms[judge.vertex] = min(earliest_ms, self._earliest_ms.get(judge.vertex, earliest_ms))

    def at_barrier(self, splits: Mapping[int, SplitReach]) -> None:
        """The epoch is over, with its splits by ordinal."""
        held = [split.watermark_ms for split in splits.values() if not split.finished]
        furthest_ms = max((split.watermark_ms for split in splits.values()), default=MIN_TIME)
        bounds = [
            max(split.watermark_ms, self._ahead_ms.get(ordinal, MIN_TIME))
            for ordinal, split in splits.items()
            if not split.idled and not split.finished
        ]
        self._least_ms = max(self._least_ms, min(held, default=MIN_TIME))
        self._most_ms = max(self._most_ms, min(bounds, default=furthest_ms))
        self._ahead_ms |= {ordinal: furthest_ms for ordinal, split in splits.items() if split.idled}
        limit_ms = MAX_TIME if self.unbounded else self._most_ms
        self.late |= {vertex for vertex, earliest_ms in self._earliest_ms.items() if earliest_ms <= limit_ms}
        self._earliest_ms.clear()
