"""`$min`, `$max`, `$minN`, `$maxN`: by the order over all values; null and missing do not count.

Among values that are equal but not the same (1 and 1.0) the one with the smaller encoding counts, so that the result does not depend on
the order in which they came (A1).
"""

from typing import Any

from tidemark.shared.language.accumulators.base import OrderKey, Unordered
from tidemark.shared.language.values.codec import decode_value, encode_value
from tidemark.shared.language.values.order import sort_key
from tidemark.shared.model.values import MISSING, Value


def _key(value: Value) -> tuple[Any, ...]:
    return (sort_key(value), encode_value(value))


class Extremes(Unordered[list[Any]]):
    """The n least (or greatest) values, in order; one and not an array where `alone`."""

    def __init__(self, n: int, *, greatest: bool, alone: bool) -> None:
        self.most = n
        self.greatest = greatest
        self._alone = alone

    def init(self) -> list[Any]:
        """None yet."""
        return []

    def add(self, state: list[Any], value: Value, order_key: OrderKey) -> list[Any]:
        """Keeps the value if it is among the n."""
        if value is None or value is MISSING:
            return state
        if len(state) >= self.most:
            last, new = sort_key(state[-1]), sort_key(value)
            if (new < last) if self.greatest else (new > last):
                return state
        state.append(value)
        return self._cut(state)

    def _cut(self, state: list[Any]) -> list[Any]:
        if len(state) > 1:
            if self.greatest:  # equal ones by encoding, ascending, whichever way the values go
                state.sort(key=encode_value)
                state.sort(key=sort_key, reverse=True)
            else:
                state.sort(key=_key)
            del state[self.most :]
        return state

    def merge(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The n of both."""
        left.extend(right)
        return self._cut(left)

    def finish(self, state: list[Any]) -> Value:
        """The value, null without any; or the array."""
        if self._alone:
            return state[0] if state else None
        return list(state)

    def encode(self, state: list[Any]) -> bytes:
        """The values."""
        return encode_value(state)

    def decode(self, data: bytes) -> list[Any]:
        """The values."""
        values = decode_value(data)
        assert isinstance(values, list)
        return values
