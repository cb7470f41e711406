"""`$percentile`, `$median` and `$approxCountDistinct`: bounded, mergeable, and the same however the input was split (A1).

Quantiles: the multiset of the numbers while it has few distinct ones (then the answer is exact), else counts by the leading bits of the
doubles, each with its least number; coarser bits when there are too many. A level is left only when the union at that level is too
large, so the level at the end, and with it the answer, depends on the union alone. At the first coarse level the relative error is at
most 2⁻¹⁰.

Distinct counts: the set of 64-bit hashes while it is small, else HyperLogLog (Flajolet and others, 2007) with 2¹⁴ registers: 0.8 %.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidemark.shared.language.accumulators.base import Implementation, OrderKey
from tidemark.shared.language.values.codec import decode_value, encode_value
from tidemark.shared.language.values.keys import canonical_key
from tidemark.shared.language.values.types import is_nan, is_number
from tidemark.shared.model.values import MISSING, Binary, Value, long

LEVELS: Final = ((0, 4096), (42, 16_384), (46, 16_384), (49, 16_384), (52, 16_384))
"""Bits of a double that are dropped, and how many buckets there may be; at the last level 4,096 exponents and signs are all."""
_DOUBLE: Final = struct.Struct(">d")
_BITS: Final = struct.Struct(">q")


def _bucket(value: float, level: int) -> int:
    """An integer that orders doubles, without its last bits."""
    (bits,) = _BITS.unpack(_DOUBLE.pack(value))
    ordered = bits if bits >= 0 else -(bits & 0x7FFF_FFFF_FFFF_FFFF) - 1
    return int(ordered >> LEVELS[level][0])


@dataclass(slots=True)
class Quantiles:
    """Buckets: [count, least number], at a level."""

    level: int = 0
    buckets: dict[int, list[Any]] = field(default_factory=dict)

    def put(self, value: float, count: int) -> None:
        """Count a number."""
        key = _bucket(value, self.level)
        known = self.buckets.get(key)
        if known is None:
            self.buckets[key] = [count, value]
            self._coarsen()
        else:
            known[0] += count
            known[1] = min(known[1], value)

    def _coarsen(self) -> None:
        while len(self.buckets) > LEVELS[self.level][1] and self.level + 1 < len(LEVELS):
            self.raise_to(self.level + 1)

    def raise_to(self, level: int) -> None:
        """Go to a coarser level."""
        old = self.buckets
        self.level, self.buckets = level, {}
        for count, least in old.values():
            key = _bucket(least, level)
            known = self.buckets.setdefault(key, [0, least])
            known[0] += count
            known[1] = min(known[1], least)

    def quantile(self, p: float) -> float | None:
        """The number at ⌈p·n⌉; None of none."""
        total = sum(count for count, _ in self.buckets.values())
        if total == 0:
            return None
        rank = max(1, math.ceil(p * total))
        seen = 0
        value = None
        for key in sorted(self.buckets):
            count, value = self.buckets[key]
            seen += count
            if seen >= rank:
                break
        return value


class Percentiles(Implementation[Quantiles]):
    """`$percentile`, and `$median` (one value, not an array)."""

    empty = Quantiles

    def __init__(self, points: tuple[float, ...], *, alone: bool) -> None:
        self.points = points
        self.alone = alone

    def add(self, state: Quantiles, value: Value, order_key: OrderKey) -> Quantiles:
        """Numbers count, as doubles; NaN and the rest do not."""
        if is_number(value) and not is_nan(value):
            state.put(float(value) + 0.0, 1)
        return state

    def merge(self, left: Quantiles, right: Quantiles) -> Quantiles:
        """Both together, at the coarser level."""
        low, high = (left, right) if left.level >= right.level else (right, left)
        for count, least in high.buckets.values():
            low.put(least, count)
        return low

    def finish(self, state: Quantiles) -> Value:
        """The quantiles; null of no numbers."""
        values = [state.quantile(p) for p in self.points]
        return values[0] if self.alone else values

    def encode(self, state: Quantiles) -> bytes:
        """The level and the buckets."""
        return encode_value([state.level, [[long(count), least] for count, least in state.buckets.values()]])

    def decode(self, data: bytes) -> Quantiles:
        """The level and the buckets again."""
        level, pairs = decode_value(data)
        return Quantiles(level, {_bucket(least, level): [int(count), least] for count, least in pairs})


_P: Final = 14
REGISTERS: Final = 1 << _P
REST_BITS: Final = 64 - _P
REST_MASK: Final = (1 << REST_BITS) - 1
"""Of a hash behind the number of its register."""
EXACT_MAX: Final = 2048
"""Where a sketch begins to estimate: its precision, and part of its stored form."""


@dataclass(slots=True)
class DistinctSketch:
    """Hashes, or registers once there were too many."""

    hashes: set[int] = field(default_factory=set)
    registers: bytearray | None = None

    def put(self, hashed: int) -> None:
        """Take in a hash of 64 bits."""
        if self.registers is None:
            self.hashes.add(hashed)
            if len(self.hashes) > EXACT_MAX:
                self.spill()
        else:
            _register(self.registers, hashed)

    def spill(self) -> None:
        """Go over to registers."""
        self.registers = bytearray(REGISTERS)
        for hashed in self.hashes:
            _register(self.registers, hashed)
        self.hashes = set()

    def count(self) -> int:
        """The estimate: exact while there are few."""
        if self.registers is None:
            return len(self.hashes)
        weights = [0] * 65
        for value in self.registers:
            weights[value] += 1
        return estimate(weights)


def estimate(weights: Sequence[int]) -> int:
    """How many different hashes there were; `weights`: how many registers have each value."""
    total = math.fsum(n * 2.0**-value for value, n in enumerate(weights))
    found = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS * REGISTERS / total
    if found <= 2.5 * REGISTERS and weights[0]:
        found = REGISTERS * math.log(REGISTERS / weights[0])
    return round(found)


def _register(registers: bytearray, hashed: int) -> None:
    index = hashed >> REST_BITS
    zeros = REST_BITS - (hashed & REST_MASK).bit_length() + 1
    registers[index] = max(registers[index], zeros)


def hash_of(value: Value) -> int:
    """64 bits: equal for equal values."""
    return int.from_bytes(digest(canonical_key(value)), "big")


def digest(key: bytes) -> bytes:
    """The hash of canonical bytes."""
    return hashlib.blake2b(key, digest_size=8).digest()


class ApproxCountDistinct(Implementation[DistinctSketch]):
    """`$approxCountDistinct`: how many different values; missing does not count."""

    empty = DistinctSketch

    def add(self, state: DistinctSketch, value: Value, order_key: OrderKey) -> DistinctSketch:
        """Take one more value."""
        if value is not MISSING:
            state.put(hash_of(value))
        return state

    def merge(self, left: DistinctSketch, right: DistinctSketch) -> DistinctSketch:
        """The sketch of both inputs together."""
        if right.registers is not None and left.registers is None:
            left, right = right, left
        if left.registers is not None and right.registers is not None:
            left.registers = bytearray(map(max, left.registers, right.registers))
        for hashed in right.hashes:
            left.put(hashed)
        return left

    def finish(self, state: DistinctSketch) -> Value:
        """The estimate, as a long."""
        return long(state.count())

    def encode(self, state: DistinctSketch) -> bytes:
        """Pack the hashes, or the registers where there are many."""
        if state.registers is not None:
            return encode_value(Binary(bytes(state.registers), 1))
        return encode_value(Binary(b"".join(h.to_bytes(8, "big") for h in sorted(state.hashes)), 0))

    def decode(self, data: bytes) -> DistinctSketch:
        """Hashes or registers again."""
        content = decode_value(data)
        assert isinstance(content, Binary)
        if content.subtype == 1:
            return DistinctSketch(registers=bytearray(content))
        return DistinctSketch({int.from_bytes(content[i : i + 8], "big") for i in range(0, len(content), 8)})
