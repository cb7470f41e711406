"""How far the receivers' watermark may have been when a row came (W3, W4), and so whether the moment decided if the row was late.

A commit notes where the watermark stood at each vertex (`MirrorRow.reached`). Windows judge by that, and so nothing is left to moments.
Joins and computations judge a row when it comes, between two barriers: a row that is late by where the watermark stood at the one behind
it, and not by the one before, was judged by the moment. Of those dead letters tell how. So do windows where a checkpoint was aborted, at
whose barrier they judged rows, too, and where an epoch had more rows than one task may keep.

Rows of earlier releases note nothing, and so do checkpoints that are not aligned. There nobody knows when a split became idle, or which
task heard of its return; positions and the notes of idleness say between which bounds the watermark stood.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from tidemark.shared.language.stages import TumblingWindow
from tidemark.shared.model.ids import SplitId, VertexId
from tidemark.shared.model.plan import PhysicalPlan
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import TS, WM
from tidemark.shared.operators.batches import int64s
from tidemark.shared.operators.specs import ComputeSpec, JoinSpec, OperatorSpec, StepSpec
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.operators.windows import enter

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Noted:
    """What a commit says of watermarks."""

    reached_ms: Mapping[VertexId, int] = field(default_factory=dict)
    """Where they stood at its barrier (`MirrorRow.reached`); empty where nobody noted it."""
    between: frozenset[VertexId] = frozenset()
    """Where rows of its epoch were judged at other times than at the barrier in front of it, too (`MirrorRow.between`)."""


@dataclass(frozen=True, slots=True)
class SplitReach:
    """A split at a barrier."""

    source: VertexId
    watermark_ms: int
    """Its own, behind all records in front of the barrier."""
    idled: bool
    """It was idle, or not there yet, at some time since the barrier before."""
    finished: bool


@dataclass(frozen=True, slots=True)
class Judge:
    """An operator that finds rows late by the watermark at their arrival."""

    vertex: VertexId
    near: frozenset[VertexId]
    """The sources with rows that come to it as records still."""
    sources: frozenset[VertexId]
    """Those with splits that its watermark waits for."""
    window: WindowPlan | None
    """None: a computation by event time, or a join."""
    split: bool
    """Rows were judged before by their own split's watermark (`lateness: split`): only those that passed come."""
    bounded: bool = True
    """Its watermark is nowhere above those of the splits: no window in front of it goes by the clock."""

    def limits(self, batch: pa.RecordBatch) -> tuple[Int64s, Int64s, Int64s]:
        """Of rows in windows: the watermarks from which on they are late there, and their split's before them, ms; rows; each (m,)."""
        times, before = int64s(batch.column(TS)), int64s(batch.column(WM))
        if self.window is None:
            limits, rows, passed = times + 1, np.arange(len(times)), times >= before
        else:
            lateness_ms = self.window.spec.stage.allowed_lateness_ms
            entered = enter(self.window, batch, MIN_TIME)
            rows, starts = entered.each()
            limits = starts + entered.size_ms + lateness_ms
            passed = times + lateness_ms >= before if self.window.sessions else limits > before[rows]
            if (
                self.window.extras and not self.split
            ):  # the same watermark decides which elements give the output its time (W6)
                limits = np.concatenate([limits, times + lateness_ms + 1])
                rows = np.concatenate([rows, np.arange(len(times))])
        if self.split:
            return limits[passed], np.full(int(passed.sum()), MIN_TIME), rows[passed]
        return limits, before[rows], rows

    @property
    def tells(self) -> bool:
        """Its dead letters say all that it decides of rows: none is late in part, and none decides what another one does."""
        if self.window is None:
            return self.near == self.sources
        if len(self.sources) > 1:
            return False
        return isinstance(self.window.spec.stage, TumblingWindow) and not self.window.extras

    @property
    def joins(self) -> bool:
        """A row that is too late by itself may still join what is open."""
        return self.window is not None and self.window.sessions


def judges_of(plan: PhysicalPlan) -> list[Judge]:
    """Those of a plan."""
    found = []
    for vertex in plan.vertices:
        near, sources = _near(plan, vertex.id), sources_of(plan, vertex.id)
        if not near and len(sources) == 1:
            continue
        bounded = not any(_by_clock(spec) for v in plan.upstream({vertex.id}) for spec in plan.vertex(v).chain)
        for spec in vertex.chain:
            if isinstance(spec, StepSpec):
                # With lateness by split their senders judge these rows, whatever else comes into the window.
                window = WindowPlan(replace(spec.window, from_source=True))
                if not window.processing_time:
                    found.append(Judge(vertex.id, near, sources, window, window.judged_at_source, bounded))
            elif isinstance(spec, ComputeSpec | JoinSpec) and _by_event_time(spec):
                found.append(Judge(vertex.id, near, sources, None, spec.lateness == "split", bounded))
    return found


def _by_event_time(spec: ComputeSpec | JoinSpec) -> bool:
    return isinstance(spec, JoinSpec) or spec.stage.order == "eventTime"


def _by_clock(spec: OperatorSpec) -> bool:
    return isinstance(spec, StepSpec) and (
        spec.window.stage.boundary == "processingTime" or WindowPlan(spec.window).idle_timeout_ms is not None
    )


def sources_of(plan: PhysicalPlan, vertex: VertexId) -> frozenset[VertexId]:
    """The sources of a vertex' rows; of a source itself."""
    upstream = plan.upstream({vertex})
    return frozenset(v.id for v in plan.vertices if v.id in upstream and v.service == "source")


def _near(plan: PhysicalPlan, vertex: VertexId) -> frozenset[VertexId]:
    """The sources with rows that come to a vertex through none that makes other rows of them."""
    found: set[VertexId] = set()
    left = [edge.sender for edge in plan.inputs_of(vertex)]
    while left:
        sender = plan.vertex(left.pop())
        if not any(isinstance(spec, StepSpec | ComputeSpec | JoinSpec) for spec in sender.chain):
            if sender.service == "source":
                found.add(sender.id)
            left += [edge.sender for edge in plan.inputs_of(sender.id)]
    return frozenset(found)


class Bounds(Struct):
    """What is known of the watermark of one judge at a barrier."""

    late: bool = False
    """The moment may have decided whether a row was late."""
    least_ms: int = MIN_TIME
    """It was not below this."""
    most_ms: int = MIN_TIME
    """It was not above this."""
    ahead_ms: dict[SplitId, int] = {}
    """Receivers may have come so far without the split."""
    reached_ms: int | None = None
    """It stood here; None: nobody noted it."""


@dataclass(slots=True)
class Reach:
    """The bounds for one judge from barrier to barrier.

    unbounded: receivers may judge rows in front of a barrier behind it (C13). told: it is known which rows came late by other splits' pace.
    """

    judge: Judge
    unbounded: bool = False
    told: bool = False
    bounds: Bounds = field(default_factory=lambda: Bounds(reached_ms=MIN_TIME))
    """At the last barrier."""
    next_ms: int | None = None
    """Where it stands at the next one; None: nobody noted it."""
    between: bool = False
    """Rows of this epoch were judged between its barriers, too."""
    beyond_ms: int | None = None
    """At the last barrier it is said to have stood above this, where no records could have brought it; None: it stood as it may."""
    _earliest_ms: int | None = None
    """The least limit of rows of this epoch, from splits that were idle in it."""

    @property
    def late(self) -> bool:
        """See `Bounds`."""
        return self.bounds.late

    def read(self, source: VertexId, split: SplitId, batch: pa.RecordBatch, *, idled: bool) -> Bools:
        """Rows of one split; which of them other splits' pace has judged, shape (m,).

        idled: the split was idle at some time of this epoch.
        """
        judge, bounds = self.judge, self.bounds
        paced = np.zeros(batch.num_rows, dtype=np.bool_)
        if (bounds.late and not self.told) or source not in judge.near or self._steps:
            return paced
        limits, before, rows = judge.limits(batch)
        exact = bounds.reached_ms is not None and self.next_ms is not None
        least_ms = bounds.reached_ms if bounds.reached_ms is not None and exact else bounds.least_ms
        if not judge.joins:
            open_ = limits > least_ms
            limits, before, rows = limits[open_], before[open_], rows[open_]
        ends = self.next_ms == MAX_TIME and not self.told  # which tells no bound
        ahead_ms = bounds.ahead_ms.get(split, MIN_TIME)
        if self.next_ms is None or not exact:
            known_ms = max(bounds.most_ms, ahead_ms)
        elif idled and not ends:
            known_ms = self.next_ms
        else:  # receivers wait for a split that is not idle, but for what its task had promised before
            known_ms = min(self.next_ms, ahead_ms)
        paced[rows[limits <= np.maximum(before, known_ms)]] = True
        if paced.any() and not self.told:
            bounds.late = True
        elif len(limits) and (self.unbounded or (idled and (ends or not exact))):
            earliest_ms = int(limits.min())
            self._earliest_ms = earliest_ms if self._earliest_ms is None else min(self._earliest_ms, earliest_ms)
        return paced

    def at_barrier(self, splits: Mapping[SplitId, SplitReach], watermark_ms: int) -> None:
        """The epoch is over, with all splits, and this watermark at the least in front of the judge."""
        known = self.bounds
        splits = {split: at for split, at in splits.items() if at.source in self.judge.sources}
        held = [at.watermark_ms for at in splits.values() if not at.finished]
        furthest_ms = max((at.watermark_ms for at in splits.values()), default=MIN_TIME)
        bounds = [
            max(at.watermark_ms, known.ahead_ms.get(split, MIN_TIME))
            for split, at in splits.items()
            if not at.idled and not at.finished
        ]
        known.least_ms = max(known.least_ms, min([watermark_ms, *held]) if held else MIN_TIME)
        known.most_ms = max(known.most_ms, min(bounds, default=furthest_ms))
        known.ahead_ms |= {split: furthest_ms for split, at in splits.items() if at.idled}
        limit_ms = MAX_TIME if self.unbounded else known.most_ms
        if self.next_ms is not None and self.judge.bounded:
            most_ms = MAX_TIME if all(at.finished for at in splits.values()) else known.most_ms
            self.beyond_ms = most_ms if self.next_ms > most_ms else None
        known.late |= self._earliest_ms is not None and self._earliest_ms <= limit_ms
        self._earliest_ms = None
        if not self._steps:
            # A window's rows, say, are late where other inputs went on while their source was idle.
            known.late |= any(at.idled and at.source not in self.judge.near for at in splits.values())
        known.reached_ms, self.next_ms = self.next_ms, None

    @property
    def _steps(self) -> bool:
        """It is a window, whose rows of this epoch were judged by where the watermark stood at the barrier in front of it."""
        known = None not in (self.bounds.reached_ms, self.next_ms)
        return self.judge.window is not None and known and not self.between
