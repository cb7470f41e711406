"""The work of an operator, as frozen data. The planner puts specs into `Vertex.head` and `Vertex.chain`; `build.py` makes operators.

Rules:

- A spec holds typed parts of the language (stages, expressions, schemas), never text that has still to be parsed or checked.
- A spec is equal to another iff both do the same: a worker makes the coordinator's plan again, and compares.

A window of the document becomes two specs that share one `WindowSpec`: `PartialSpec` ends the chain of the sender (it assigns
windows, judges lateness where the sender may, and aggregates beforehand), `StepSpec` is the head of the receiver (merge, close,
finish, the stages behind `$group`), whatever the accumulators are: data that cannot be aggregated beforehand travel as rows.
"""

from dataclasses import dataclass
from typing import Literal

from tidemark.shared.language.expressions.ast import Expr, Meta
from tidemark.shared.language.expressions.ast import Literal as Constant
from tidemark.shared.language.schema import NO_SCHEMA, Schema
from tidemark.shared.language.stages import (
    Compute,
    Gathering,
    Group,
    PositionHorizon,
    SessionWindow,
    Source,
    Stateless,
    TimeHorizon,
    Unwind,
    Window,
)
from tidemark.shared.language.stages.base import Stage
from tidemark.shared.language.stages.windows import nodes_in

Lateness = Literal["split", "merged"]

HORIZON_OF_IDS = TimeHorizon(86_400_000)
"""How long record ids are remembered where neither document nor service says."""


@dataclass(frozen=True, slots=True)
class FrontSpec:
    """Decoding, event time, dedupe and watermarks: the first operator of a source's task (`source_front.SourceFront`)."""

    source: Source
    """Its schema, timeField, recordId, watermark and maxEventTimeJump are read here; the rest is the connector's."""
    horizon: TimeHorizon | PositionHorizon = HORIZON_OF_IDS
    """Of record ids, where the source names none."""
    reads: tuple[tuple[str, ...], ...] = ()
    """Paths of no declared field that are read with the declared ones (`read_ahead`)."""
    key_groups: int = 0
    """Of the shuffle by record id that follows: rows get KEY and GROUP; 0 where repeats are looked for here, or not at all."""


@dataclass(frozen=True, slots=True)
class InOrderSpec:
    """Holds an epoch's rows, and gives them out in the order of their splits."""

    stage: str
    """The name of the stage that needs this."""


@dataclass(frozen=True, slots=True)
class DistinctSpec:
    """Drops repeats by record id; its rows come with KEY and GROUP, in order (`InOrderSpec`)."""

    path: str
    """Of the source."""
    horizon: TimeHorizon = HORIZON_OF_IDS
    key_groups: int = 128


@dataclass(frozen=True, slots=True)
class StatelessSpec:
    """Stages that treat each document by itself, in order."""

    stages: tuple[Stateless, ...]
    schema: Schema = NO_SCHEMA
    """Declared fields of the documents that come in."""


@dataclass(frozen=True, slots=True)
class KeyBySpec:
    """Adds KEY and GROUP for an edge that is partitioned by key. A document on which the key fails goes to the dead letters."""

    key: Expr
    path: str
    """Place of the stage that asks for the key, for dead letters."""
    key_groups: int = 128
    inside: bool = False
    """The documents become a field of others (`$join`): one that has no room for a further level goes to the dead letters, too."""


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """A window stage as it runs; both its halves read it."""

    stage: Window
    lateness: Lateness = "merged"
    schema: Schema = NO_SCHEMA
    """Declared fields of the documents that come in: `schemas.after` derives it stage by stage."""
    from_source: bool = True
    """Rows come from a source, with their split's watermark (WM); else only the step's input watermark judges lateness."""
    stages_behind: int = 0
    """So many stages at the end of the window's pipeline stand behind the window in the document."""

    @property
    def group_at(self) -> int | None:
        """Where the `$group` is that can be aggregated beforehand: nothing but stateless stages stands before it.

        The bounds of a session are known when it closes, so nothing that reads them can be worked on before.
        """
        for i, stage in enumerate(self.stage.pipeline):
            if isinstance(stage, Group):
                of_session = isinstance(self.stage, SessionWindow) and _reads_bounds(self.stage.pipeline[: i + 1])
                return None if of_session else i
            if isinstance(stage, Gathering):
                return None
        return None

    @property
    def whole(self) -> str:
        """Why one task has to see all rows of a window; "" where each key's rows can be worked on apart from all others."""
        stage, at = self.stage, self.group_at
        if isinstance(stage, SessionWindow):
            return "" if stage.partition_by is not None else "sessions without partitionBy are of all rows"
        if at is None:
            return "its pipeline begins with no $group, and takes all rows of a window"
        group = stage.pipeline[at]
        if isinstance(group, Group) and isinstance(group.id, Constant):
            return "$group has one _id for all rows"
        behind = (each.name for each in stage.pipeline[at + 1 :] if isinstance(each, Gathering))
        if name := next(behind, ""):
            return f"{name} behind $group takes all groups of a window"
        if stage.idle_timeout_ms is not None:
            return "idleTimeout runs from the last arrival of any key"
        if any(isinstance(each, Unwind) for each in stage.pipeline[:at]):
            return "$unwind before $group gives a row that may be late several keys"
        return ""


def _reads_bounds(stages: tuple[Stage, ...]) -> bool:
    asked = (node.names for node in nodes_in(stages) if isinstance(node, Meta))
    return any(names[:1] in ((), ("window",)) and names[1:] != ("partition",) for names in asked)


@dataclass(frozen=True, slots=True)
class PartialSpec:
    """The sender's half of a window."""

    window: WindowSpec
    key_groups: int = 0
    """Of the shuffle that follows: rows and partials get GROUP; 0 where all go to one task."""


@dataclass(frozen=True, slots=True)
class StepSpec:
    """The receiver's half of a window: head of a Spark stage, or operator of a single task with `engine: local`."""

    window: WindowSpec


@dataclass(frozen=True, slots=True)
class ComputeSpec:
    """A keyed computation; its rows come with KEY and GROUP (`KeyBySpec` before the shuffle)."""

    stage: Compute
    lateness: Lateness = "merged"
    from_source: bool = False
    """Rows come straight from a source, with their split's watermark (WM)."""
    key_groups: int = 128


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """A `$join`; the rows of its inputs `left` and `right` come with KEY and GROUP (`KeyBySpec` before the shuffles)."""

    path: str
    type: Literal["inner", "left", "right", "full"]
    before_ms: int
    after_ms: int
    as_: str
    lateness: Lateness = "merged"


@dataclass(frozen=True, slots=True)
class TapSpec:
    """Gives its rows out on a port of their own, too, and passes them on: an `$emit` before the end of the pipeline."""

    port: str
    stages: tuple[Stateless, ...] = ()
    """Done to the rows of that port alone."""


@dataclass(frozen=True, slots=True)
class BranchSpec:
    """Marks the rows of one of the streams that a `$union` brings together, where an operator behind it goes by order keys."""

    branch: int
    """1 and up: the rows of the first stream stay as they are."""


OperatorSpec = (
    FrontSpec
    | InOrderSpec
    | DistinctSpec
    | StatelessSpec
    | KeyBySpec
    | PartialSpec
    | StepSpec
    | ComputeSpec
    | JoinSpec
    | TapSpec
    | BranchSpec
)
