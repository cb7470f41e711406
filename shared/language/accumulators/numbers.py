"""`$sum`, `$avg`, `$count`, `$stdDevPop`, `$stdDevSamp`: exact totals, rounded once (values.totals)."""

import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Final, TypeVar

import msgspec

from tidemark.shared.language.accumulators.base import Implementation, OrderKey
from tidemark.shared.language.values.codec import CodecError
from tidemark.shared.language.values.totals import ZERO, Deviation, Total
from tidemark.shared.model.values import INT32_MAX, Value

G = TypeVar("G", Total, Deviation)
_PACK: Final = msgspec.msgpack.encode
_UNPACK: Final = msgspec.msgpack.decode
_LONG: Final = struct.Struct(">q")


def _tagged(value: int) -> bytes | int:
    """A long as the codec has it: tagged within 32 bits, else itself."""
    return b"L" + _LONG.pack(value) if value <= INT32_MAX else value


def pack_int(value: int) -> bytes:
    """A whole number of any size, as the codec has binary data."""
    return b"B\0" + value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def unpack_int(data: bytes) -> int:
    """The number of a `pack_int`."""
    return int.from_bytes(data[2:], "big", signed=True)


def _untagged(value: bytes | int) -> int:
    return value if isinstance(value, int) else int(_LONG.unpack(value[1:])[0])


class _Exact(Implementation[G]):
    """For states that add and merge themselves."""

    def __init__(self, finish: Callable[[G], Value]) -> None:
        self.rounds: Callable[[G], Value] = finish

    def add(self, state: G, value: Value, order_key: OrderKey) -> G:
        """Numbers are added; the rest is passed over."""
        state.add(value)
        return state

    def merge(self, left: G, right: G) -> G:
        """The state of both inputs together."""
        left.merge(right)
        return left

    def finish(self, state: G) -> Value:
        """The sum, the average, or the deviation."""
        return self.rounds(state)


class TotalOf(_Exact[Total]):
    """`$sum` and `$avg`."""

    empty = Total

    def encode(self, state: Total) -> bytes:
        """A list of the fields, as the codec has it."""
        return _PACK(
            [
                _tagged(state.count), state.wide, pack_int(state.whole), pack_int(state.units),
                b"N" + str(state.decimal).encode() if state.decimal is not ZERO else b"N0", state.special,
            ]
        )  # fmt: skip

    def decode(self, data: bytes) -> Total:
        """The state that `encode` has packed."""
        try:
            count, wide, whole, units, decimal, special = _UNPACK(data)
            exact = ZERO if decimal == b"N0" else Decimal(decimal[1:].decode())
            return Total(_untagged(count), wide, unpack_int(whole), unpack_int(units), exact, special)
        except (msgspec.DecodeError, ValueError, TypeError, InvalidOperation) as e:
            raise CodecError(f"no total: {e}") from e


class DeviationOf(_Exact[Deviation]):
    """`$stdDevPop` and `$stdDevSamp`."""

    empty = Deviation

    def encode(self, state: Deviation) -> bytes:
        """A list of the fields, as the codec has it."""
        return _PACK([_tagged(state.count), pack_int(state.units), pack_int(state.squares), state.special])

    def decode(self, data: bytes) -> Deviation:
        """The state that `encode` has packed."""
        try:
            count, units, squares, special = _UNPACK(data)
            return Deviation(_untagged(count), unpack_int(units), unpack_int(squares), special)
        except (msgspec.DecodeError, ValueError, TypeError) as e:
            raise CodecError(f"no deviation: {e}") from e


class CountOf(Implementation[int]):
    """`$count`: how many were added."""

    empty = int

    def add(self, state: int, value: Value, order_key: OrderKey) -> int:
        """One more, of any value."""
        return state + 1

    def merge(self, left: int, right: int) -> int:
        """The count of both inputs together."""
        return left + right

    def finish(self, state: int) -> Value:
        """An int, or a long beyond 32 bits."""
        return state
