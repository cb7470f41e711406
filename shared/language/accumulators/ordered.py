"""Accumulators that go by the order key: `$first`, `$last` and their N forms, `$push`, `$addToSet`, `$mergeObjects`."""

from collections.abc import Iterable
from typing import Any, ClassVar, TypeAlias

from tidemark.shared.language.accumulators.base import Implementation, Kept, OrderKey, bounded
from tidemark.shared.language.expressions.errors import TYPE, ExpressionError
from tidemark.shared.language.limits import DEFAULTS
from tidemark.shared.language.values.codec import decode_value, encode_value
from tidemark.shared.language.values.keys import canonical_key
from tidemark.shared.language.values.types import type_name
from tidemark.shared.model.values import MISSING, Value

Entry: TypeAlias = tuple[OrderKey, Any]


def _by_order(entry: Entry) -> OrderKey:
    return entry[0]


def pack_entries(entries: Iterable[Entry]) -> bytes:
    """Order keys and values."""
    return encode_value([[list(key), value] for key, value in entries])


def unpack_entries(data: bytes) -> list[Entry]:
    """Order keys and values again."""
    return [(_key_of(key), value) for key, value in decode_value(data)]


class Entries(Kept[Entry]):
    """Values with their order keys."""

    ordered = True

    def encode(self, state: list[Entry]) -> bytes:
        """Pack order keys and values."""
        return pack_entries(state)

    def decode(self, data: bytes) -> list[Entry]:
        """Keys and values again."""
        return unpack_entries(data)


class Ends(Entries):
    """`$first`, `$firstN`, `$last`, `$lastN`: the n at one end, in order; a missing value is null."""

    def __init__(self, n: int, *, last: bool, alone: bool) -> None:
        self.most = n
        self.last = last
        self.alone = alone

    def add(self, state: list[Entry], value: Value, order_key: OrderKey) -> list[Entry]:
        """Keeps the value if it is among the n."""
        if len(state) >= self.most:
            far = state[0][0] if self.last else state[-1][0]
            if (order_key < far) if self.last else (order_key >= far):
                return state
        state.append((order_key, None if value is MISSING else value))
        return self.keep(state)

    def keep(self, state: list[Entry]) -> list[Entry]:
        """The n at one end."""
        if len(state) > 1:
            state.sort(key=_by_order)
            if self.last:
                del state[: -self.most]
            else:
                del state[self.most :]
        return state

    def finish(self, state: list[Entry]) -> Value:
        """The value, or the array."""
        if self.alone:
            return state[0][1] if state else None
        return [value for _, value in state]


class Push(Entries):
    """`$push`: all values in order; missing ones are left out."""

    name = "$push"
    of_items: ClassVar[bool] = False
    """Whether the items of arrays are added."""

    def __init__(self, values_max: int = DEFAULTS.group_values_max) -> None:
        self.values_max = values_max

    def add(self, state: list[Entry], value: Value, order_key: OrderKey) -> list[Entry]:
        """Take a value that is not missing."""
        if value is not MISSING:
            state.append((order_key, value))
            bounded(len(state), self.values_max, self.name)
        return state

    def keep(self, state: list[Entry]) -> list[Entry]:
        """Keep all values, within the bound."""
        bounded(len(state), self.values_max, self.name)
        return state

    def finish(self, state: list[Entry]) -> Value:
        """The values as an array, in order."""
        return [value for _, value in sorted(state, key=_by_order)]


class ConcatArrays(Push):
    """`$concatArrays`: the items of all arrays in order; missing ones are left out."""

    name = "$concatArrays"
    of_items = True

    def add(self, state: list[Entry], value: Value, order_key: OrderKey) -> list[Entry]:
        """The items of one more."""
        for item in _items(self.name, value):
            state = super().add(state, item, order_key)
        return state


def _items(name: str, value: Value) -> list[Value]:
    if value is MISSING:
        return []
    if type(value) is not list:
        raise ExpressionError(f"{name} takes arrays, found {type_name(value)}", TYPE)
    return value


class AddToSet(Implementation[dict[bytes, Entry]]):
    """`$addToSet`: of equal values the first, in the order of the first; missing ones are left out, null is a value."""

    ordered = True
    empty = dict
    name = "$addToSet"
    of_items: ClassVar[bool] = False
    """Whether the items of arrays are added."""

    def __init__(self, values_max: int = DEFAULTS.group_values_max) -> None:
        self.values_max = values_max

    def add(self, state: dict[bytes, Entry], value: Value, order_key: OrderKey) -> dict[bytes, Entry]:
        """Keeps the value if it is new, or earlier than its equal."""
        if value is MISSING:
            return state
        key = canonical_key(value)
        known = state.get(key)
        if known is None or order_key < known[0]:
            state.pop(key, None)  # items of one record stand in its order, whichever of them another record had
            state[key] = (order_key, value)
            bounded(len(state), self.values_max, self.name)
        return state

    def merge(self, left: dict[bytes, Entry], right: dict[bytes, Entry]) -> dict[bytes, Entry]:
        """The values of both."""
        for key, entry in right.items():
            known = left.get(key)
            if known is None or entry[0] < known[0]:
                left.pop(key, None)
                left[key] = entry
        bounded(len(left), self.values_max, self.name)
        return left

    def finish(self, state: dict[bytes, Entry]) -> Value:
        """The values as an array, in order."""
        return [value for _, value in sorted(state.values(), key=_by_order)]

    def encode(self, state: dict[bytes, Entry]) -> bytes:
        """Pack order keys and values."""
        return pack_entries(state.values())

    def decode(self, data: bytes) -> dict[bytes, Entry]:
        """Keys and values again."""
        return {canonical_key(value): (key, value) for key, value in unpack_entries(data)}


class SetUnion(AddToSet):
    """`$setUnion`: the different items of all arrays, as `$addToSet` keeps them; missing ones are left out."""

    name = "$setUnion"
    of_items = True

    def add(self, state: dict[bytes, Entry], value: Value, order_key: OrderKey) -> dict[bytes, Entry]:
        """The items of one more."""
        for item in _items(self.name, value):
            state = super().add(state, item, order_key)
        return state


FieldEntry: TypeAlias = tuple[OrderKey, OrderKey, Any]
"""When a field was first and last seen, and its last value."""


class MergeObjects(Implementation[dict[str, FieldEntry]]):
    """`$mergeObjects`: documents put together, later ones win; null and missing are passed over."""

    ordered = True
    empty = dict
    name = "$mergeObjects"

    def __init__(self, values_max: int = DEFAULTS.group_values_max) -> None:
        self.values_max = values_max

    def add(self, state: dict[str, FieldEntry], value: Value, order_key: OrderKey) -> dict[str, FieldEntry]:
        """The fields of one more."""
        if value is None or value is MISSING:
            return state
        if type(value) is not dict:
            raise ExpressionError(f"{self.name} takes documents, found {type_name(value)}", TYPE)
        return self.merge(state, {name: (order_key, order_key, item) for name, item in value.items()})

    def merge(self, left: dict[str, FieldEntry], right: dict[str, FieldEntry]) -> dict[str, FieldEntry]:
        """The fields of both."""
        for name, entry in right.items():
            known = left.get(name)
            if known is None:
                left[name] = entry
            else:
                last = entry if entry[1] >= known[1] else known
                if entry[0] < known[0]:  # fields of one record stand in its order
                    del left[name]
                left[name] = (min(known[0], entry[0]), last[1], last[2])
        bounded(len(left), self.values_max, self.name)
        return left

    def finish(self, state: dict[str, FieldEntry]) -> Value:
        """The document, its fields in the order in which they were first seen."""
        return {name: entry[2] for name, entry in sorted(state.items(), key=lambda item: item[1][0])}

    def encode(self, state: dict[str, FieldEntry]) -> bytes:
        """Names, times and values."""
        return encode_value([[name, list(e[0]), list(e[1]), e[2]] for name, e in state.items()])

    def decode(self, data: bytes) -> dict[str, FieldEntry]:
        """Names, times and values again."""
        return {name: (_key_of(first), _key_of(last), value) for name, first, last, value in decode_value(data)}


def _key_of(items: list[int]) -> OrderKey:
    return (int(items[0]), int(items[1]), int(items[2]))
