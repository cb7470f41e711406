"""`$min`, `$max`, `$top`, `$bottom` and their kin with an n, which may depend on the key of the group."""

from bisect import insort
from collections.abc import Callable
from typing import Any, TypeAlias

from tidemark.shared.language.accumulators.base import AnyImplementation, Implementation, Kept, OrderKey
from tidemark.shared.language.expressions.ast import SortKey
from tidemark.shared.language.expressions.sorting import values_at
from tidemark.shared.language.values.codec import decode_value, encode_value
from tidemark.shared.language.values.order import sort_key
from tidemark.shared.model.values import MISSING, Binary, Value

Row: TypeAlias = tuple[tuple[Any, ...], OrderKey, list[Any], Any]
"""The orderable form of the sort key, the order key, the sort key's values, the output."""


class Descending:
    """An orderable thing the other way round."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __lt__(self, other: "Descending") -> bool:
        return bool(other.key < self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descending) and bool(other.key == self.key)

    def __hash__(self) -> int:
        return hash(self.key)


def sort_values(document: Value, keys: tuple[SortKey, ...]) -> list[Any]:
    """A document's sort values: one per key; of an array the least item, descending the greatest; missing is null."""
    result: list[Any] = []
    for key in keys:
        items = [None if item is MISSING else item for item in values_at(document, key.names)]
        if not items:
            result.append([])  # an empty array, below null
        else:
            result.append((max if key.descending else min)(items, key=sort_key))
    return result


def orderable(values: list[Any], keys: tuple[SortKey, ...]) -> tuple[Any, ...]:
    """The orderable form of `sort_values`."""
    forms = [(0,) if value == [] and type(value) is list else sort_key(value) for value in values]
    return tuple(Descending(form) if key.descending else form for form, key in zip(forms, keys, strict=True))


def _by_both(row: Row) -> tuple[Any, ...]:
    return (row[0], row[1])


class Top(Kept[Row]):
    """The first n rows of the sort, or the last n, in the order of the sort."""

    ordered = True

    def __init__(self, n: int, keys: tuple[SortKey, ...], *, bottom: bool, alone: bool) -> None:
        self.most = n
        self.keys = keys
        self.bottom = bottom
        self.alone = alone

    def add(self, state: list[Row], value: Value, order_key: OrderKey) -> list[Row]:
        """Keeps `[sort values, output]` if it is among the n."""
        values, output = value
        row: Row = (orderable(values, self.keys), order_key, values, output)
        if len(state) >= self.most and not self.bottom and not _by_both(row) < _by_both(state[-1]):
            return state
        insort(state, row, key=_by_both)
        return self._cut(state)

    def keep(self, state: list[Row]) -> list[Row]:
        """The n at one end."""
        state.sort(key=_by_both)
        return self._cut(state)

    def _cut(self, state: list[Row]) -> list[Row]:
        if self.bottom:
            del state[: -self.most]
        else:
            del state[self.most :]
        return state

    def finish(self, state: list[Row]) -> Value:
        """The output, or the array of outputs."""
        if self.alone:
            return state[0][3] if state else None
        return [row[3] for row in state]

    def encode(self, state: list[Row]) -> bytes:
        """Sort values, order keys and outputs."""
        return encode_value([[values, list(order), output] for _, order, values, output in state])

    def decode(self, data: bytes) -> list[Row]:
        """Sort values, order keys and outputs again."""
        return [
            (orderable(values, self.keys), (int(order[0]), int(order[1]), int(order[2])), values, output)
            for values, order, output in decode_value(data)
        ]


State: TypeAlias = tuple[int, Any] | None
"""n and the state of the accumulator with that n; None before the first document."""


class CountedByKey(Implementation[State]):
    """An accumulator that `add` is given `[n, value]` for, of a missing value `[n]`."""

    def __init__(self, of: Callable[[int], AnyImplementation]) -> None:
        """`of`: the accumulator with an n."""
        self.of = of
        self.ordered = of(1).ordered  # type: ignore[misc]

    def init(self) -> State:
        """No value has come yet."""
        return None

    def add(self, state: State, value: Value, order_key: OrderKey) -> State:
        """One more value, with the n of its group."""
        n, *some = value
        accumulator = self.of(n)
        known = accumulator.init() if state is None else state[1]
        return n, accumulator.add(known, some[0] if some else MISSING, order_key)

    def merge(self, left: State, right: State) -> State:
        """The state of both inputs together."""
        if left is None or right is None:
            return right if left is None else left
        return left[0], self.of(left[0]).merge(left[1], right[1])

    def finish(self, state: State) -> Value:
        """The array of values."""
        return [] if state is None else self.of(state[0]).finish(state[1])

    def encode(self, state: State) -> bytes:
        """The state, with n."""
        return encode_value(None if state is None else [state[0], Binary(self.of(state[0]).encode(state[1]))])

    def decode(self, data: bytes) -> State:
        """The state that `encode` has packed."""
        found = decode_value(data)
        return None if found is None else (int(found[0]), self.of(int(found[0])).decode(bytes(found[1])))


def _key(value: Value) -> tuple[Any, ...]:
    return (sort_key(value), encode_value(value))


def _greatest_first(value: Value) -> tuple[Any, ...]:
    return (Descending(sort_key(value)), encode_value(value))


class Extremes(Kept[Any]):
    """The n least (or greatest) values, in order; one and not an array where `alone`."""

    def __init__(self, n: int, *, greatest: bool, alone: bool) -> None:
        self.most = n
        self.greatest = greatest
        self.alone = alone

    def add(self, state: list[Any], value: Value, order_key: OrderKey) -> list[Any]:
        """Keeps the value if it is among the n."""
        if value is None or value is MISSING:
            return state
        if len(state) >= self.most:
            last, new = sort_key(state[-1]), sort_key(value)
            if (new < last) if self.greatest else (new > last):
                return state
        insort(state, value, key=_greatest_first if self.greatest else _key)
        del state[self.most :]
        return state

    def keep(self, state: list[Any]) -> list[Any]:
        """Keep the n that come first."""
        if len(state) > 1:
            if self.greatest:  # equal ones by encoding, ascending, whichever way the values go
                state.sort(key=encode_value)
                state.sort(key=sort_key, reverse=True)
            else:
                state.sort(key=_key)
            del state[self.most :]
        return state

    def finish(self, state: list[Any]) -> Value:
        """The value, null without any; or the array."""
        if self.alone:
            return state[0] if state else None
        return list(state)
