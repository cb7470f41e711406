"""How a window stage runs: which part of its pipeline goes before the shuffle, and in which form. Both halves derive it from the spec.

- `typed`: `$group` over declared fields; partials are plain columns (typed_group.py).
- `general`: any other `$group`; partials hold encoded accumulator states (general_group.py).
- `rows`: no `$group`, or one behind another stage that gathers documents: the rows travel, each with its window, and the whole
  pipeline runs when the window closes.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Final, Literal

import pyarrow as pa

from tidemark.shared.language.expressions.ast import OF_ENGINE, Meta
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.schema import Schema
from tidemark.shared.language.stages import (
    Count,
    Group,
    HoppingWindow,
    InnerStage,
    Limit,
    SessionWindow,
    Sort,
    Stateless,
)
from tidemark.shared.language.stages.base import Stage, declared
from tidemark.shared.language.stages.skip import Skip
from tidemark.shared.language.stages.windows import nodes_in
from tidemark.shared.model.time import MAX_TIME, MIN_TIME, minus
from tidemark.shared.operators.base import AGAIN, ARRIVAL, KEY, META, PART, POS, REST, SRCKEY, TS, WEND, WM, WSTART
from tidemark.shared.operators.grouping import Merge
from tidemark.shared.operators.specs import WindowSpec
from tidemark.shared.operators.typed_group import ROWS, TypedGroup
from tidemark.shared.operators.typed_group import plan as plan_typed

Mode = Literal["typed", "general", "rows"]

FIRST: Final = "__first"
"""int64 on partials, for `outputTime: earliest`: event time of the earliest element that was on time; null for none."""
LAST: Final = "__last"
"""int64 on partials, for `outputTime: latest`: the latest event time."""


ID: Final = "__id"
"""binary on general partials: the encoded `_id`, that of the row with the least order key."""
ORDER: Final = ("__o0", "__o1", "__o2")
"""int64 on general partials: that order key."""
GENERAL_COLUMNS: Final = ((ID, pa.binary()), *((name, pa.int64()) for name in ORDER))
SESSION: Final = "__sk"
"""binary, on rows and partials of session windows: canonical bytes of the session's key."""
SESSION_KEY: Final = "__sv"
"""binary, beside SESSION: the key's encoded value, for `{$meta: "stream.window.partition"}`."""
ROWS_SCHEMA: Final = pa.schema([
    (REST, pa.binary()), (TS, pa.int64()), (PART, pa.int32()), (POS, pa.int64()), (ARRIVAL, pa.int64()), (SRCKEY, pa.binary()),
    (WSTART, pa.int64()), (WEND, pa.int64()), (FIRST, pa.int64()), (LAST, pa.int64()),
    (SESSION, pa.binary()), (SESSION_KEY, pa.binary()),
])  # fmt: skip
"""Rows on their way to a step: whole documents, and the engine's columns; WSTART null where the step has to judge."""


def _reads_window(stages: Sequence[Stage]) -> bool:
    asked = (node.names for node in nodes_in(tuple(stages)) if isinstance(node, Meta))
    return any(not names or names[0] == "window" for names in asked)


_LATER: Final = frozenset({META, AGAIN, WM})
"""Columns of rows that an earlier build did not write, and that may be null."""


def in_form(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the columns of a schema; one that its writer did not know is null."""
    for field in schema:
        if field.name not in table.schema.names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(schema.names).cast(schema)


def state_column(index: int) -> str:
    """The column of the encoded states of accumulator `index`, on general partials."""
    return f"__s{index}"


@dataclass(frozen=True)
class WindowPlan:
    """A `WindowSpec` taken apart."""

    spec: WindowSpec

    @cached_property
    def mode(self) -> Mode:
        """In which form the window's input travels."""
        if self.spec.group_at is None:
            return "rows"
        return "general" if self.typed is None else "typed"

    @cached_property
    def before(self) -> tuple[Stateless, ...]:
        """Stages that run on each row in its window, before aggregation."""
        stages = self.spec.stage.pipeline[: self.spec.group_at or 0]
        return tuple(s for s in stages if isinstance(s, Stateless))

    @cached_property
    def by_panes(self) -> bool:
        """Whether rows are aggregated by pane first, for windows that overlap: the rows of a pane are in the same windows.

        An expression that reads the window has another value in each.
        """
        stage = self.spec.stage
        if not isinstance(stage, HoppingWindow) or stage.hop_size_ms >= stage.interval_ms:
            return False
        if self.mode == "rows" or self.extras:
            return False
        return not _reads_window((*self.before, self.group))

    @cached_property
    def tells_once(self) -> bool:
        """Whether rows are worked on in each of their windows, and fail in all or none: the first one tells of it.

        What reads the window, and `$limit` and `$skip`, which take other rows in each, may fail in one alone.
        """
        stage = self.spec.stage
        if not isinstance(stage, HoppingWindow) or stage.hop_size_ms >= stage.interval_ms or self.by_panes:
            return False
        own = stage.pipeline[: len(stage.pipeline) - self.spec.stages_behind]
        before = list(takewhile(lambda each: not isinstance(each, Group | Count), own))
        on_rows = [*before, *own[len(before) : len(before) + 1]]
        return not _reads_window(on_rows) and not any(isinstance(each, Limit | Skip) for each in on_rows)

    @cached_property
    def group(self) -> Group:
        """The `$group` that is aggregated beforehand; only where `mode` is not `rows`."""
        assert self.spec.group_at is not None
        stage = self.spec.stage.pipeline[self.spec.group_at]
        assert isinstance(stage, Group)
        return stage

    @cached_property
    def typed(self) -> TypedGroup | None:
        """The typed form of `group`, where it has one."""
        if self.spec.group_at is None or isinstance(self.spec.stage, SessionWindow):
            return None
        return plan_typed(self.group, self.schema)

    @cached_property
    def schema(self) -> Schema:
        """The declared fields of the input of `group`."""
        return declared(self.spec.schema, self.before)

    @cached_property
    def after(self) -> tuple[InnerStage, ...]:
        """Stages that run when a window closes: on the groups, or, with `rows`, on all rows."""
        if self.spec.group_at is None:
            return self.spec.stage.pipeline
        return self.spec.stage.pipeline[self.spec.group_at + 1 :]

    @cached_property
    def looked_at(self) -> Fields:
        """With `rows`: the fields of a row that the pipeline looks at or gives out; None for all.

        A stage that may fail is given whole documents: its dead letters have them.
        """
        names: frozenset[str] = frozenset()
        for stage in self.spec.stage.pipeline:
            read = stage.reads()
            if read is None or not stage.is_sure:
                return None
            names |= read
            if stage.written(None) is not None:
                return names
        return None

    @cached_property
    def sorts(self) -> tuple[Sort, ...]:
        """The `$sort`s that the pipeline begins with."""
        found: list[Sort] = []
        for stage in self.spec.stage.pipeline:
            if not isinstance(stage, Sort):
                break
            found.append(stage)
        return tuple(found)

    @cached_property
    def first_rows(self) -> int | None:
        """With `rows`: how many rows of a window, in the order of `sorts`, go on to other stages than `$skip` and `$limit`; None for all.

        Sessions may grow together, and an `outputTime` may be that of any row.
        """
        if self.sessions or self.extras:
            return None
        skipped = 0
        for stage in self.spec.stage.pipeline[len(self.sorts) :]:
            if isinstance(stage, Limit):
                return skipped + stage.limit
            if not isinstance(stage, Skip):
                return None
            skipped += stage.skip
        return None

    @property
    def standing(self) -> list[str]:
        """With `rows`: the columns by which rows stand before any stage orders them."""
        return [*self.window_columns, ARRIVAL if self.processing_time else TS, PART, POS]

    @cached_property
    def extras(self) -> dict[str, Merge]:
        """Columns that partials carry besides, and how they merge."""
        found: dict[str, Merge] = {}
        if self.spec.stage.output_time == "earliest":
            found[FIRST] = "min"
        if self.spec.stage.output_time == "latest":
            found[LAST] = "max"
        return found

    @cached_property
    def partial_schema(self) -> pa.Schema:
        """Columns of partials, in order (not with `rows`)."""
        if self.typed is not None:
            own = [(k.column, k.type) for k in self.typed.keys]
            values = [(c.name, c.type) for a in self.typed.aggregates for c in a.columns]
        else:
            own = [(KEY, pa.binary()), *GENERAL_COLUMNS]
            values = [(state_column(i), pa.binary()) for i in range(len(self.group.fields))]
        extras = [(name, pa.int64()) for name in self.extras]
        session = [(SESSION, pa.binary()), (SESSION_KEY, pa.binary())] if self.sessions else []
        bounds = [(WSTART, pa.int64()), (WEND, pa.int64())]
        return pa.schema([*bounds, *session, *own, (ROWS, pa.int64()), *values, *extras])

    @cached_property
    def rows_schema(self) -> pa.Schema:
        """Columns of rows on their way to the step: with what `$setStreamMeta` has set, where the window's pipeline asks for it."""
        own = self.spec.stage.pipeline[: len(self.spec.stage.pipeline) - self.spec.stages_behind]
        asked = [node.names for node in nodes_in(own) if isinstance(node, Meta)]
        told = any(not names or names[0] not in OF_ENGINE for names in asked)
        schema = ROWS_SCHEMA.append(pa.field(META, pa.binary())) if told else ROWS_SCHEMA
        schema = schema.append(pa.field(AGAIN, pa.bool_())) if self.tells_once else schema
        return schema.append(pa.field(WM, pa.int64())) if self.limits_travel else schema

    def unread(self, names: Collection[str]) -> str:
        """Why open windows that are kept in these columns cannot be gone on with; "" where they can.

        Another build may have worked on them beforehand, where this one keeps the rows.
        """
        if not (lacking := set(self.segment_schema.names) - _LATER - {*names}):
            return ""
        return (
            f"{self.spec.stage.path}: another build kept its open windows, in a form that this one does not go on with (it expects the"
            f" columns {', '.join(sorted(lacking))}); let that build close them (stop with drain), or start without state"
            " (--without-state; by REST resumeFromCheckpoint: false)"
        )

    @property
    def limits_travel(self) -> bool:
        """Whether a row may be late for some of its windows by its own split, and for others at the receiver, which tells of all."""
        stage = self.spec.stage
        if self.spec.lateness != "split" or self.processing_time or not isinstance(stage, HoppingWindow):
            return False
        return stage.hop_size_ms < stage.interval_ms

    @property
    def segment_schema(self) -> pa.Schema:
        """Columns of what comes to the step: rows or partials."""
        return self.rows_schema if self.mode == "rows" else self.partial_schema

    @property
    def sessions(self) -> bool:
        """Whether windows are sessions, each of one key."""
        return isinstance(self.spec.stage, SessionWindow)

    @property
    def length_ms(self) -> int:
        """The length of a window, or of the shortest session."""
        stage = self.spec.stage
        return stage.gap_ms if isinstance(stage, SessionWindow) else stage.interval_ms

    @property
    def window_columns(self) -> list[str]:
        """Columns that tell windows apart."""
        return [WEND, WSTART, SESSION] if self.sessions else [WEND, WSTART]

    @cached_property
    def key_columns(self) -> list[str]:
        """Columns of partials that tell the groups of one window apart."""
        return [KEY] if self.typed is None else self.typed.key_columns

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
        """`lateness: split` on rows of a source: the sender judges (LANGUAGE.md, Time)."""
        return self.spec.lateness == "split" and self.spec.from_source and not self.processing_time

    def next_processing_time(self, ends: Sequence[int], last_arrival_ms: int) -> int:
        """When processing time next closes one of the windows that end then, ms; MAX_TIME for never."""
        if not ends:
            return MAX_TIME
        if self.processing_time:
            return min(ends)
        if self.idle_timeout_ms is None or last_arrival_ms == MIN_TIME:
            return MAX_TIME
        return max(min(ends), last_arrival_ms) + self.idle_timeout_ms

    def idle_to(self, watermark_ms: int, processing_ms: int, last_arrival_ms: int) -> int:
        """The idle timer has run out for windows whose end is at or below this (ST4), ms; MIN_TIME for none."""
        timeout = None if self.processing_time or watermark_ms == MAX_TIME else self.idle_timeout_ms
        if timeout is None or MIN_TIME in (processing_ms, last_arrival_ms) or processing_ms < last_arrival_ms + timeout:
            return MIN_TIME
        return processing_ms - timeout

    def closable(self, watermark_ms: int, processing_ms: int, closed_to_ms: int, forced_ms: int) -> int:
        """Windows whose end is at or below this are to close, ms. forced_ms: to where `idleTimeout` has put the watermark."""
        if watermark_ms == MAX_TIME:
            return MAX_TIME
        if self.processing_time:
            return processing_ms
        return max(closed_to_ms, self.closed_to(watermark_ms), forced_ms)

    def closed_to(self, watermark_ms: int) -> int:
        """Windows whose end is at or below this are closed by a watermark, ms."""
        return minus(watermark_ms, self.spec.stage.allowed_lateness_ms) if not self.processing_time else MIN_TIME
