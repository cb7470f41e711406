"""Local time of arrays of instants, exactly as `library.zones` gives it for one."""

from datetime import UTC, tzinfo
from typing import Final

import numpy as np
import numpy.typing as npt

from tidemark.shared.language.expressions.library.zones import offset_ms

_BUCKET_MS: Final = 900_000
"""Zones change their offset rarely: within a quarter of an hour that begins and ends with one offset it is that one."""


def offsets(ms: npt.NDArray[np.int64], zone: tzinfo) -> npt.NDArray[np.int64]:
    """How far local time is ahead of UTC at each instant, ms; shape (rows,)."""
    if zone is UTC or not len(ms):
        return np.zeros(len(ms), dtype=np.int64)
    buckets, inverse = np.unique(ms // _BUCKET_MS, return_inverse=True)
    first = np.array([offset_ms(zone, int(b) * _BUCKET_MS) for b in buckets], dtype=np.int64)
    last = np.array([offset_ms(zone, (int(b) + 1) * _BUCKET_MS - 1) for b in buckets], dtype=np.int64)
    found: npt.NDArray[np.int64] = first[inverse]
    for row in np.flatnonzero((first != last)[inverse]):
        found[row] = offset_ms(zone, int(ms[row]))
    return found
