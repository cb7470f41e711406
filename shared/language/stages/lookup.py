"""`$lookup` and `$cachedLookup`."""

from dataclasses import dataclass

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.stages.base import InnerStage, Stage
from tidemark.shared.model.values import Document


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
class Lookup(Stage):
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
    """A lookup whose answers are kept for `ttl_ms`, at most `max_entries` of them, and `bytes_max` as they are encoded."""

    ttl_ms: int
    max_entries: int = 10_000
    bytes_max: int | None = None
