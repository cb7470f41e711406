"""Entries of maps sorted by their keys: rows of [place of the value, its end, a number or the place of the key, the bytes of the key]."""

import numpy as np

from tidemark.shared.compiled.compiling import part, rare
from tidemark.shared.compiled.memory import byte_at

BY_TEXT, BY_BYTES, LONGER_FIRST, LARGER_FIRST = range(4)
"""Numbers by the text of their digits; texts by their bytes. As Google's library writes them: texts by their bytes, those that go on before
those that end; numbers without a sign, from the largest."""


@rare
def _key_before(text, entries, one, other, order):
    """-1, 0 or 1, as an entry's key comes before that of another, is the same, or comes behind."""
    left, right = entries[one, 2], entries[other, 2]
    if order == BY_BYTES or order == LONGER_FIRST:
        count, others = entries[one, 3], entries[other, 3]
        for i in range(min(count, others)):
            a, b = byte_at(text, left + i), byte_at(text, right + i)
            if a != b:
                return -1 if a < b else 1
        if count == others:
            return 0
        return -1 if (count < others) == (order == BY_BYTES) else 1
    if left == right:
        return 0
    if order == LARGER_FIRST:
        return -1 if np.uint64(left) > np.uint64(right) else 1
    if (left < 0) != (right < 0):
        return -1 if left < right else 1
    a = np.uint64(0) - np.uint64(left) if left < 0 else np.uint64(left)
    b = np.uint64(0) - np.uint64(right) if right < 0 else np.uint64(right)
    power, longer = np.uint64(1), np.uint64(1)
    while a // power >= np.uint64(10):
        power *= np.uint64(10)
    while b // longer >= np.uint64(10):
        longer *= np.uint64(10)
    while a or b or power or longer:  # digit by digit
        if power == 0 or longer == 0:
            return -1 if power == 0 else 1
        x, y = a // power, b // longer
        if x != y:
            return -1 if x < y else 1
        a, b, power, longer = a % power, b % longer, power // np.uint64(10), longer // np.uint64(10)
    return 0


@part
def _swap(entries, one, other):
    for i in range(4):
        held = entries[one, i]
        entries[one, i] = entries[other, i]
        entries[other, i] = held


@rare
def _sift(text, entries, low, root, count, order):
    """Let an entry sink to its place in a heap."""
    while 2 * root + 1 < count:
        child = 2 * root + 1
        if child + 1 < count and _key_before(text, entries, low + child, low + child + 1, order) < 0:
            child += 1
        if _key_before(text, entries, low + root, low + child, order) >= 0:
            return
        _swap(entries, low + root, low + child)
        root = child


@rare
def sorted_entries(text, entries, low, count, order):
    """Whether so many keys from `low` are different ones. They are sorted."""
    for i in range(count // 2 - 1, -1, -1):
        _sift(text, entries, low, i, count, order)
    for left in range(count - 1, 0, -1):
        _swap(entries, low, low + left)
        _sift(text, entries, low, np.int64(0), left, order)
    for i in range(low + 1, low + count):
        if _key_before(text, entries, i - 1, i, order) == 0:
            return False
    return True
