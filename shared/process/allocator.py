"""Memory that a process has let go of and will want again at once: kept, within a bound, instead of given back to the system.

A source works through megabytes of answers and columns, some dozens of times a second. The C library gives the top of its heap, and every
block above 128 KiB, back to the system as soon as they are free; the next batch has the same pages cleared and mapped again. That was a
seventh of a source's processor time.

Freed memory is kept by heap, and by default every thread has a heap of its own, beside those of Arrow's allocator, a segment a thread. So
a process whose work goes from thread to thread takes memory that nobody uses: an operator with 2 MiB of columns at the most held 33 MiB
for them, and came to rest only after minutes. Few heaps, and there Arrow's columns on them, make the bound one of the process.
"""

import ctypes
import os
from typing import Final

M_TRIM_THRESHOLD: Final = -1  # malloc.h
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
"""The C library's name for a setting."""
_MMAP_BYTES_MAX: Final = 32 << 20
"""The most that the C library takes as its bound for blocks of their own."""
_OWN: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""A user who sets one of these has tuned the allocator; it is left alone."""


def keep_freed(kept_bytes: int) -> bool:
    """Keep up to so much freed memory at the top of each heap, for the next allocations; blocks above it are still given back at once.

    False, and nothing has changed, where the environment tunes the allocator, or the C library has no such setting (it is not glibc).
    """
    if any(name in os.environ for name in _OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    blocks = mallopt(M_MMAP_THRESHOLD, min(kept_bytes, _MMAP_BYTES_MAX))
    return bool(blocks) and bool(mallopt(M_TRIM_THRESHOLD, kept_bytes))


def few_heaps(heaps: int) -> bool:
    """So many heaps for all threads together; before there are threads.

    False, and nothing has changed, where the environment says how many, or it is not glibc.
    """
    if any(name in os.environ for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_ARENA_MAX, heaps))


def arrow_on_heaps() -> bool:
    """Arrow's columns on the same heaps: for services whose work goes from thread to thread.

    A source works on one thread, where Arrow's own allocator is a tenth faster.
    False, and nothing has changed, where the environment says which of Arrow's pools.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" in os.environ:
        return False
    import pyarrow as pa  # noqa: PLC0415 - half the memory of a process that has no columns

    pa.set_memory_pool(pa.system_memory_pool())
    return True
