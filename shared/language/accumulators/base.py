"""The contract of accumulators: partial, merge, finish.

- A1 `finish(merge(a, b))` depends on what was added to a and b, never on how it was split over them, in which order it was added or
  which of the two stands first. (Rows with equal order keys, which only the parts of one `$unwind`-ed record have, keep the order in
  which they were added, and belong into one partial.)
- A2 `decode(encode(state))` behaves as `state`.
- A3 A state belongs to its caller: `add` and `merge` may change the states they are given, which are used no more.
"""

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from tidemark.shared.language.expressions.ast import Expr, SortKey
from tidemark.shared.language.expressions.errors import SIZE, ExpressionError
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.model.values import Value


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


OrderKey: TypeAlias = tuple[int, int, int]
"""(event time, partition, position), D11; behind a `$sort` (0, 0, index), D15."""
S = TypeVar("S")


class Implementation(Protocol[S]):
    """How one accumulator works.

    combinable: a state is smaller than the rows in it, so that it pays to send states. ordered: the order keys matter.
    """

    combinable: bool
    ordered: bool

    def init(self) -> S:
        """The state of nothing."""
        ...

    def add(self, state: S, value: Value, order_key: OrderKey) -> S:
        """A state and one more value, as `accumulator_input` gave it, MISSING included. ExpressionError for what cannot be added."""
        ...

    def merge(self, left: S, right: S) -> S:
        """One state of two."""
        ...

    def finish(self, state: S) -> Value:
        """The accumulator's value."""
        ...

    def encode(self, state: S) -> bytes:
        """The bytes of a state."""
        ...

    def decode(self, data: bytes) -> S:
        """The state of these bytes."""
        ...


AnyImplementation: TypeAlias = Implementation[Any]


class Ordered(Generic[S]):
    """Defaults of accumulators for which order counts."""

    combinable = True
    ordered = True


class Unordered(Generic[S]):
    """Defaults of accumulators for which only what was added counts."""

    combinable = True
    ordered = False


class TooManyValues(ExpressionError):
    """A group keeps more than the document allows. Which row is one too many depends on how the rows were split (A1): none is to blame."""


def bounded(items: int, most: int, name: str) -> None:
    """TooManyValues where a group keeps more than the document allows."""
    if items > most:
        raise TooManyValues(
            f"{name} keeps more than {most} values for one group; options.limits.valuesPerGroup sets how many it may",
            SIZE,
        )
