"""A vertex while stages are still being fused into it, and the ends of a pipeline so far: several behind a `$union`.

`options.streamMetaFieldName` puts a document's metadata into a field of it before a sink. `source` has topic, partition, offset and key of
a document that comes straight from a source; `window` has start and end, and the partition of a session, of one that comes from a window.
Behind a computation a document has neither: it comes from many. Beside them stands what `$setStreamMeta` has set.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tidemark.shared.language.expressions.ast import Expr, Meta, ObjectExpr
from tidemark.shared.language.fields import Path, expression_paths
from tidemark.shared.language.schema import NO_SCHEMA, Schema
from tidemark.shared.language.stages import AddFields, Branch, Computed, InnerStage, SessionWindow, Source
from tidemark.shared.language.stages.base import declared
from tidemark.shared.model.ids import VertexId
from tidemark.shared.model.plan import Service, Vertex
from tidemark.shared.operators.specs import (
    BranchSpec,
    FrontSpec,
    KeyBySpec,
    OperatorSpec,
    PartialSpec,
    StatelessSpec,
    TapSpec,
)
from tidemark.shared.planning.specs import Head, StepHead


@dataclass(slots=True)
class Draft:
    """A vertex that still grows."""

    id: VertexId
    service: Service
    head: Head
    chain: list[OperatorSpec] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    max_tasks: int | None = None
    from_source: bool = False
    """Whether its rows come straight from a source, with their split's watermark: lookups keep it."""
    sealed: bool = False
    """A sink already takes the rows of this vertex: no stage may be fused in behind it."""
    source: Source | None = None
    """The source, if the rows are still its records as they were decoded; None once a stage has changed them."""
    scattered: bool = False
    """Rows of one split came through several tasks: an order among them has to be made again (`InOrderSpec`)."""
    divided: bool = False
    """A Spark stage that may have several tasks, each with its own keys: rows of one window come from all of them."""
    windowed: bool = False
    """Its rows carry the window that they come from."""
    told: tuple[str, ...] = ()
    """Metadata that `$setStreamMeta` has set of its rows, by name."""

    @property
    def steps(self) -> bool:
        """Whether it is a Spark stage: nothing but its window's own pipeline runs there."""
        return isinstance(self.head, StepHead)

    def schema(self) -> Schema:
        """Declared fields of the output, as far as they are known: those of the source behind stateless stages."""
        if self.source is None:
            return NO_SCHEMA
        stages = (stage for spec in self.chain if isinstance(spec, StatelessSpec) for stage in spec.stages)
        return declared(self.source.schema, stages)

    def finished(self) -> Vertex:
        """As it is in the plan."""
        chain = list(self.chain)
        if chain and isinstance(chain[0], FrontSpec):
            chain[0] = replace(chain[0], reads=paths_ahead(chain[0], chain[1:]))
        return Vertex(self.id, self.service, self.head, tuple(chain), self.max_tasks, " ".join(self.labels))


Ends = tuple[Draft, ...]
"""Where the rows of a pipeline so far come out; several behind a `$union`."""


PATH = "options.streamMetaFieldName"
_SOURCE = ("topic", "partition", "offset", "key")


def metadata_stage(field: str | None, end: Draft) -> tuple[AddFields, ...]:
    """The stage that adds the field to the rows that come out here; none where there is no field, or nothing to tell."""
    if field is None or not (end.from_source or end.windowed or end.told):
        return ()
    known: list[tuple[str, Expr]] = []
    if end.from_source:
        known.append(("source", ObjectExpr(tuple((name, Meta(("source", name))) for name in _SOURCE))))
    elif end.windowed:
        known.append(("window", Meta(("window",))))
    known += [(name, Meta((name,))) for name in end.told]
    return (AddFields(path=PATH, fields=Branch(((field, Computed(ObjectExpr(tuple(known)))),))),)


_PATHS_MAX: Final = 16
"""Each path is a comparison for each field of a record, and 17 bytes a row."""


def paths_ahead(front: FrontSpec, behind: Sequence[OperatorSpec]) -> tuple[Path, ...]:
    """The undeclared paths that the front and the operators of its chain read of its records, in order."""
    found: set[Path] = set()
    for expr in (front.source.time_field, front.source.record_id):
        if expr is not None:
            found |= expression_paths(expr)
    written = {field.name for field in front.source.schema}
    for spec in behind:
        if isinstance(spec, KeyBySpec):
            found |= {path for path in expression_paths(spec.key) if path and path[0] not in written}
        elif isinstance(spec, StatelessSpec):
            if not _of_stages(spec.stages, found, written):
                break
        elif isinstance(spec, PartialSpec):
            window = spec.window.stage
            if isinstance(window, SessionWindow) and window.partition_by is not None:
                found |= {path for path in expression_paths(window.partition_by) if path and path[0] not in written}
            _of_stages(window.pipeline, found, written)
            break
        elif not isinstance(spec, BranchSpec | TapSpec):
            break
    declared = {field.name for field in front.source.schema}
    own = sorted(path for path in found if path and path[0] not in declared)
    return tuple(own[:_PATHS_MAX])


def _of_stages(stages: Iterable[InnerStage], found: set[Path], written: set[str]) -> bool:
    """Add the paths that stages read of the records; whether the stages behind them may read these, too."""
    for stage in stages:
        found |= {path for path in stage.paths() if path and path[0] not in written}
        if not stage.shows_others:
            return False
        written |= stage.named()
    return True
