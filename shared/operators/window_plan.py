"""How a window stage runs: which part of its pipeline goes before the shuffle, and in which form. Both halves derive it from the spec.

- `typed`: `$group` over declared fields; partials are plain columns (typed_group.py).
- `general`: any other `$group`; partials hold encoded accumulator states (general_group.py).
- `rows`: no `$group`, or one behind `$sort`, `$limit` or `$count`: the rows travel, each with its window, and the whole pipeline runs
  when the window closes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from shared.language.stages import Count, Group, InnerStage, Limit, SessionWindow, Sort, Stateless
from shared.model.time import MIN_TIME, minus
from shared.operators.base import ARRIVAL
from shared.operators.specs import WindowSpec
from shared.operators.typed_group import Merge, TypedGroup
from shared.operators.typed_group import plan as plan_typed

Mode = Literal["typed", "general", "rows"]

FIRST: Final = "__first"
"""int64 on partials, for `outputTime: earliest`: event time of the earliest element that was on time; null for none."""
LAST: Final = "__last"
"""int64 on partials, for `outputTime: latest`: the latest event time."""


@dataclass(frozen=True)
class WindowPlan:
    """A `WindowSpec` taken apart."""

    spec: WindowSpec

    @cached_property
    def _group_at(self) -> int | None:
        """Where the `$group` is that can be aggregated beforehand: nothing but stateless stages stands before it."""
        for i, stage in enumerate(self.spec.stage.pipeline):
            if isinstance(stage, Group):
                return i
            if isinstance(stage, Sort | Limit | Count):
                return None
        return None

    @cached_property
    def mode(self) -> Mode:
        """In which form the window's input travels."""
        if self._group_at is None:
            return "rows"
        return "general" if self.typed is None else "typed"

    @cached_property
    def before(self) -> tuple[Stateless, ...]:
        """Stages that run on each row in its window, before aggregation."""
        stages = self.spec.stage.pipeline[: self._group_at or 0]
        return tuple(s for s in stages if not isinstance(s, Group | Sort | Limit | Count))

    @cached_property
    def group(self) -> Group:
        """The `$group` that is aggregated beforehand; only where `mode` is not `rows`."""
        assert self._group_at is not None
        stage = self.spec.stage.pipeline[self._group_at]
        assert isinstance(stage, Group)
        return stage

    @cached_property
    def typed(self) -> TypedGroup | None:
        """The typed form of `group`, where it has one."""
        if self._group_at is None or isinstance(self.spec.stage, SessionWindow) or self.before:
            return None
        return plan_typed(self.group, self.spec.schema)

    @cached_property
    def after(self) -> tuple[InnerStage, ...]:
        """Stages that run when a window closes: on the groups, or, with `rows`, on all rows."""
        if self._group_at is None:
            return self.spec.stage.pipeline
        return self.spec.stage.pipeline[self._group_at + 1 :]

    @cached_property
    def extras(self) -> dict[str, Merge]:
        """Columns that partials carry besides, and how they merge."""
        found: dict[str, Merge] = {}
        if self.spec.stage.output_time == "earliest":
            found[FIRST] = "min"
        if self.spec.stage.output_time == "latest":
            found[LAST] = "max"
        if self.idle_timeout_ms is not None:
            found[ARRIVAL] = "max"
        return found

    @property
    def processing_time(self) -> bool:
        """Windows on arrival times: nothing is late, and processing time closes them."""
        return self.spec.stage.boundary == "processingTime"

    @property
    def idle_timeout_ms(self) -> int | None:
        """`idleTimeout`, if the window has one."""
        stage = self.spec.stage
        return None if isinstance(stage, SessionWindow) else stage.idle_timeout_ms

    @property
    def judged_at_source(self) -> bool:
        """`lateness: split` on rows of a source: the sender judges (language.md, Time)."""
        return self.spec.lateness == "split" and self.spec.from_source and not self.processing_time

    def closed_to(self, watermark_ms: int) -> int:
        """Windows whose end is at or below this are closed by a watermark, ms."""
        return minus(watermark_ms, self.spec.stage.allowed_lateness_ms) if not self.processing_time else MIN_TIME
