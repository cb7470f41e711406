"""The contract of accumulators: partial, merge, finish.

- A1 `finish(merge(a, b))` depends on the values added to a and b, never on how they were split over them, in which order they were
  added or which of the two stands first. (Rows with equal order keys, which only the parts of one `$unwind`-ed record have, keep the
  order in which they were added, and belong into one partial.)
- A2 `decode(encode(state))` behaves as `state`.
- A3 A state belongs to its caller: `add` and `merge` may change the states they are given, which are used no more.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from tidemark.shared.language.expressions.ast import Expr, SortKey
from tidemark.shared.language.expressions.errors import SIZE, ExpressionError
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.values.codec import decode_value, encode_value
from tidemark.shared.model.values import Value


@dataclass(frozen=True, slots=True)
class Accumulator:
    """An accumulator and its arguments; `accumulators.implementation` says how it adds, merges and finishes."""

    op: str
    """`$sum`, `$topN`, …"""
    input: Expr
    """The expression that is evaluated on each document: the input, or the output of `$top` and its kin."""
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


class Implementation(ABC, Generic[S]):
    """How one accumulator works. `ordered`: the order keys matter. `empty`: makes the state of nothing."""

    ordered: ClassVar[bool] = False
    empty: Callable[[], S]

    def init(self) -> S:
        """The state of nothing."""
        return self.empty()

    @abstractmethod
    def add(self, state: S, value: Value, order_key: OrderKey) -> S:
        """A state and one more value, as `accumulator_input` gave it, MISSING included. ExpressionError if it cannot be added."""

    @abstractmethod
    def merge(self, left: S, right: S) -> S:
        """One state of two."""

    @abstractmethod
    def finish(self, state: S) -> Value:
        """The accumulator's value."""

    def encode(self, state: S) -> bytes:
        """The bytes of a state."""
        return encode_value(state)

    def decode(self, data: bytes) -> S:
        """The state of these bytes."""
        state: S = decode_value(data)
        return state


AnyImplementation: TypeAlias = Implementation[Any]


class Kept(Implementation[list[S]]):
    """Keeps the added values that `keep` selects."""

    empty = list

    @abstractmethod
    def keep(self, state: list[S]) -> list[S]:
        """The values of the state that are kept."""

    def merge(self, left: list[S], right: list[S]) -> list[S]:
        """The values of both states that are kept."""
        left.extend(right)
        return self.keep(left)


class TooManyValues(ExpressionError):
    """A group keeps more than the document allows. Which row is one too many depends on how the rows were split (A1): none is to blame."""


def bounded(items: int, most: int, name: str) -> None:
    """TooManyValues where a group keeps more than the document allows."""
    if items > most:
        raise TooManyValues(
            f"{name} keeps more than {most} values for one group; options.limits.valuesPerGroup sets how many it may",
            SIZE,
        )
