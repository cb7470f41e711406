"""Rows of which only a sum is known: enough to tell later whether a file of several checkpoints' rows holds just these."""

import hashlib
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

_BYTES: Final = 32
"""Of a SHA-256."""


class RowSum(Struct, frozen=True, array_like=True):
    """Of a multiset of lines: how many, and the sum of their SHA-256 modulo 2**256, big-endian. Equal sums are equal multisets."""

    rows: int = 0
    total: bytes = bytes(_BYTES)

    @staticmethod
    def of(lines: Iterable[str]) -> "RowSum":
        """The sum of these lines."""
        rows, total = 0, 0
        for rows, line in enumerate(lines, 1):  # noqa: B007 - counts them
            total += int.from_bytes(hashlib.sha256(line.encode()).digest())
        return RowSum(rows, (total % 256**_BYTES).to_bytes(_BYTES))

    def __add__(self, other: "RowSum") -> "RowSum":
        """The sum of both multisets together."""
        total = (int.from_bytes(self.total) + int.from_bytes(other.total)) % 256**_BYTES
        return RowSum(self.rows + other.rows, total.to_bytes(_BYTES))

    def __sub__(self, other: "RowSum") -> "RowSum":
        """The sum of these lines without the others."""
        total = (int.from_bytes(self.total) - int.from_bytes(other.total)) % 256**_BYTES
        return RowSum(self.rows - other.rows, total.to_bytes(_BYTES))


NO_ROWS: Final = RowSum()
