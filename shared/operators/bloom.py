"""A Bloom filter over 32-bit hashes, vectorised, a bit a place."""

from typing import Final

import numpy as np
import numpy.typing as npt

_BITS_AN_ID: Final = 16
_PROBES: Final = 4
_START_BITS: Final = 1 << 13
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)

Hashes = npt.NDArray[np.uint32]


class Bloom:
    """Which hashes may have been added: those that were are hits, of others fewer than one in a hundred while there is room."""

    __slots__ = ("_bits", "added", "room")

    def __init__(self, ids: int = 0) -> None:
        """With room for at least so many hashes."""
        size = _START_BITS
        while size < ids * _BITS_AN_ID:
            size *= 2
        self._bits = np.zeros(size // 8, dtype=np.uint8)
        self.room = size // _BITS_AN_ID
        self.added = 0

    def add(self, hashes: Hashes) -> None:
        """Add hashes, shape (n,)."""
        self.added += len(hashes)
        for places in self._places(hashes):
            np.bitwise_or.at(self._bits, places >> 3, np.left_shift(1, places & 7).astype(np.uint8))

    def hits(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Which may have been added, shape (n,)."""
        hit: npt.NDArray[np.bool_] = np.ones(len(hashes), dtype=np.bool_)
        if not self.added:
            return ~hit
        for places in self._places(hashes):
            hit &= (self._bits[places >> 3] >> (places & 7).astype(np.uint8) & 1).astype(np.bool_)
        return hit

    def _places(self, hashes: Hashes) -> list[npt.NDArray[np.int64]]:
        """Double hashing: probes h, h + g, h + 2g, … of a 64-bit mix."""
        mixed = (hashes.astype(np.uint64) + np.uint64(1)) * _STEP
        mixed ^= mixed >> np.uint64(29)
        step = (mixed * _STEP >> np.uint64(32)) | np.uint64(1)
        mask = np.uint64(8 * len(self._bits) - 1)
        return [((mixed + step * np.uint64(i)) & mask).astype(np.int64) for i in range(_PROBES)]
