"""Numbers of 64 bits of bytes, and bytes compared a word at a time: for tables of texts and of names."""

import numpy as np

from tidemark.shared.compiled.compiling import part
from tidemark.shared.compiled.memory import byte_at, word_at

PRIME_1, PRIME_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


@part
def mixed(found, word):
    """A number that depends on each bit of both."""
    found = (found ^ word) * PRIME_2
    return found ^ found >> np.uint64(32)


@part
def word_of(text, at, end, size):
    """The next eight bytes, or those that there are; size: of all of the text."""
    left = end - at
    if left >= 8:
        return word_at(text, at)
    if at + 8 <= size:
        return word_at(text, at) & (np.uint64(1) << np.uint64(8 * left)) - np.uint64(1)
    word = np.uint64(0)
    for place in range(end - 1, at - 1, -1):
        word = word << np.uint64(8) | np.uint64(byte_at(text, place))
    return word


@part
def hashed(text, begin, end, size):
    """A number of 64 bits of some bytes; size: of all of the text."""
    found = np.uint64(end - begin)
    for at in range(begin, end, 8):
        found = mixed(found, word_of(text, at, end, size))
    return found


@part
def slot_of(found, slots):
    """The first of so many slots, a power of two, that a number may have."""
    return np.int64((found ^ found >> np.uint64(29)) & np.uint64(slots - 1))


@part
def equal(text, begin, end, size, other, low, high, other_size):
    """Whether some bytes of two texts are the same; the sizes: of all of them."""
    if end - begin != high - low:
        return False
    for step in range(0, end - begin, 8):
        if word_of(text, begin + step, end, size) != word_of(other, low + step, high, other_size):
            return False
    return True
