"""`$firstN` and its kin with an `n` that depends on the group's key: `{n: {$cond: [{$eq: ["$kind", "big"]}, 10, 3]}}`.

All documents of a group have its key, so each brings the same n: the state takes it from the first of them.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from tidemark.shared.language.accumulators.base import AnyImplementation, OrderKey
from tidemark.shared.language.values.codec import decode_value, encode_value
from tidemark.shared.model.values import Binary, Value

State: TypeAlias = tuple[int, Any] | None
"""n and the state of the accumulator with that n; None before the first document."""


class Counted:
    """An accumulator that `add` is given `[n, value]` for."""

    combinable = True

    def __init__(self, of: Callable[[int], AnyImplementation]) -> None:
        """`of`: the accumulator with an n."""
        self._of = of
        self.ordered = of(1).ordered

    def init(self) -> State:
        """None yet."""
        return None

    def add(self, state: State, value: Value, order_key: OrderKey) -> State:
        """One more value, with the n of its group."""
        n, inner = value
        accumulator = self._of(n)
        known = accumulator.init() if state is None else state[1]
        return n, accumulator.add(known, inner, order_key)

    def merge(self, left: State, right: State) -> State:
        """Both together."""
        if left is None or right is None:
            return right if left is None else left
        return left[0], self._of(left[0]).merge(left[1], right[1])

    def finish(self, state: State) -> Value:
        """The array."""
        return [] if state is None else self._of(state[0]).finish(state[1])

    def encode(self, state: State) -> bytes:
        """The state, with n."""
        return encode_value(None if state is None else [state[0], Binary(self._of(state[0]).encode(state[1]))])

    def decode(self, data: bytes) -> State:
        """The state again."""
        found = decode_value(data)
        return None if found is None else (int(found[0]), self._of(int(found[0])).decode(bytes(found[1])))
