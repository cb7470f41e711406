"""Memory that a process has let go of and will want again at once: kept, within a bound, instead of given back to the system.

A source works through megabytes of answers and columns, some dozens of times a second. The C library gives the top of its heap, and every
block above 128 KiB, back to the system as soon as they are free; the next batch has the same pages cleared and mapped again. That was a
seventh of a source's processor time.
"""

import ctypes
import os
from typing import Final

M_TRIM_THRESHOLD: Final = -1  # malloc.h
M_MMAP_THRESHOLD: Final = -3
_MMAP_BYTES_MAX: Final = 32 << 20
"""The most that the C library takes as its bound for blocks of their own."""
_OWN: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Who sets one of these has tuned the allocator, and is left alone."""


def keep_freed(kept_bytes: int) -> bool:
    """Keep up to so much freed memory at the top of each heap, for what is allocated next; blocks above it are still given back at once.

    False, and nothing has changed, where the environment tunes the allocator, or the C library has no such setting (it is not glibc).
    """
    if any(name in os.environ for name in _OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    blocks = mallopt(M_MMAP_THRESHOLD, min(kept_bytes, _MMAP_BYTES_MAX))
    return bool(blocks) and bool(mallopt(M_TRIM_THRESHOLD, kept_bytes))
