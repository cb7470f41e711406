"""Stages that bring other data in: lookups, joins, unions; and keyed computations."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.stages.base import StageBase
from tidemark.shared.language.stages.windows import InnerStage
from tidemark.shared.model.values import Document

if TYPE_CHECKING:
    from tidemark.shared.language.stages import Stage


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table, collection (`db.coll`) or file of a connection."""

    connection_name: str
    table: str


@dataclass(frozen=True, slots=True)
class InlineTable:
    """Documents written into the pipeline itself."""

    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup(StageBase):
    """Adds under `as_` the array of the foreign documents that match.

    They match where `foreign_field` equals `local_field` (names of a path; both None: all do) and come out of `pipeline`, which sees the
    `let` variables.
    """

    from_: TableRef | InlineTable
    as_: tuple[str, ...]
    local_field: tuple[str, ...] | None = None
    foreign_field: tuple[str, ...] | None = None
    let: tuple[tuple[str, Expr], ...] = ()
    pipeline: tuple[InnerStage, ...] = ()
    limits: Limits = DEFAULTS
    """Of the document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLookup(Lookup):
    """A lookup whose answers are kept for `ttl_ms`, at most `max_entries` of them."""

    ttl_ms: int
    max_entries: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(StageBase):
    """`$compute`: a user's computation, `class_` as `module:Class`; `key` a field path's or expression's value."""

    class_: str
    key: Expr
    config: Document
    order: Literal["eventTime", "arrival"] = "eventTime"
    limits: Limits = DEFAULTS
    """Of the document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(StageBase):
    """`$join`: right time in [left − before_ms, left + after_ms]. `from_` is a pipeline that starts with a source."""

    from_: "tuple[Stage, ...]"
    left_key: Expr
    right_key: Expr
    before_ms: int
    after_ms: int
    type: Literal["inner", "left", "right", "full"]
    as_: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Union(StageBase):
    """`$union`: pipelines that each start with a source, merged with this one."""

    pipelines: "tuple[tuple[Stage, ...], ...]"


Relational: TypeAlias = Lookup | CachedLookup | Compute | Join | Union
