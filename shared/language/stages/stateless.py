"""Stages that take one document at a time and keep nothing."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.query.ast import Predicate
from tidemark.shared.language.stages.base import StageBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Match(StageBase):
    """Lets through what the predicate is true of."""

    predicate: Predicate


@dataclass(frozen=True, slots=True)
class Keep:
    """A field that `$project` keeps."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A field that `$project` or `$unset` leaves out."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A field that takes an expression's value; missing takes the field away."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class Branch:
    """What happens to the fields inside a field, through arrays too."""

    fields: tuple[tuple[str, "Leaf"], ...]


Leaf: TypeAlias = Keep | Drop | Computed | Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFields(StageBase):
    """`$addFields` and `$set`: a tree of computed fields; expressions see the document as it came."""

    fields: Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(StageBase):
    """`$project`: inclusion (the tree has Keep, Computed; the rest goes) or exclusion (Drop; the rest stays)."""

    mode: Literal["inclusion", "exclusion"]
    fields: Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class Unset(StageBase):
    """`$unset`: a tree of Drop."""

    fields: Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceRoot(StageBase):
    """`$replaceRoot` and `$replaceWith`: the document becomes the expression's value, which must be a document."""

    new_root: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwind(StageBase):
    """One document for each item of an array."""

    names: tuple[str, ...]
    include_array_index: tuple[str, ...] | None = None
    preserve_null_and_empty_arrays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Redact(StageBase):
    """The expression gives `$$DESCEND`, `$$PRUNE` or `$$KEEP` for the document and, descending, for each one inside it."""

    expr: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate(StageBase):
    """Lets through what the validator is true of; the rest is discarded, dead-lettered, or stops the processor (`error`)."""

    validator: Predicate
    validation_action: Literal["discard", "dlq", "error"] = "discard"


Stateless: TypeAlias = Match | AddFields | Project | Unset | ReplaceRoot | Unwind | Redact | Validate
