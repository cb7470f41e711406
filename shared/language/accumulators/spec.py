"""The parsed form of a `$group` accumulator."""

from dataclasses import dataclass

from tidemark.shared.language.expressions.ast import Expr, SortKey
from tidemark.shared.language.limits import DEFAULTS, Limits


@dataclass(frozen=True, slots=True)
class Accumulator:
    """An accumulator and its arguments; `accumulators.implementation` says how it adds, merges and finishes."""

    op: str
    """`$sum`, `$topN`, …"""
    input: Expr
    """What is evaluated on each document: the input, or the output of `$top` and its kin."""
    path: str
    n: int | None = None
    """How many, for those that end in N; None where the group's key decides."""
    n_of_key: tuple[Expr, Expr] | None = None
    """The group's key, and how many as an expression of the key's fields."""
    sort_by: tuple[SortKey, ...] = ()
    """For `$top`, `$bottom` and their N forms."""
    percentiles: tuple[float, ...] = ()
    """For `$percentile` and `$median`, each from 0 to 1."""
    limits: Limits = DEFAULTS
    """Of the document: how many values it may keep for a group."""
