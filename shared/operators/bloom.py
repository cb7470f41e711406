"""A Bloom filter over 32-bit hashes, vectorised; grows so that false positives stay below about one in a hundred."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

_BITS_AN_ID: Final = 10
_PROBES: Final = 4
_START_BITS: Final = 1 << 13
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)

Hashes = npt.NDArray[np.uint32]


@dataclass(slots=True)
class Bloom:
    """Which hashes may have been added. Hashes that were are always hits."""

    _bits: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(_START_BITS, dtype=np.bool_))
    _hashes: list[Hashes] = field(default_factory=list)
    added: int = 0

    def add(self, hashes: Hashes) -> None:
        """Add hashes, shape (n,)."""
        self.added += len(hashes)
        self._hashes.append(hashes)
        if self.added * _BITS_AN_ID > len(self._bits):
            while self.added * _BITS_AN_ID > len(self._bits) // 2:
                self._bits = np.zeros(len(self._bits) * 2, dtype=np.bool_)
            self._hashes = [np.concatenate(self._hashes)]
            hashes = self._hashes[0]
        for places in self._places(hashes):
            self._bits[places] = True

    def hits(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Which may have been added, shape (n,)."""
        hit: npt.NDArray[np.bool_] = np.ones(len(hashes), dtype=np.bool_)
        if not self.added:
            return ~hit
        for places in self._places(hashes):
            hit &= self._bits[places]
        return hit

    def _places(self, hashes: Hashes) -> list[npt.NDArray[np.uint64]]:
        """Double hashing: probes h, h + g, h + 2g, … of a 64-bit mix."""
        mixed = (hashes.astype(np.uint64) + np.uint64(1)) * _STEP
        mixed ^= mixed >> np.uint64(29)
        step = (mixed * _STEP >> np.uint64(32)) | np.uint64(1)
        mask = np.uint64(len(self._bits) - 1)
        return [(mixed + step * np.uint64(i)) & mask for i in range(_PROBES)]
