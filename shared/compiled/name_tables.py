"""Names of fields found among many, whatever their number: by a table of their hashes.

Names lie one behind the other, that of number i between ends[i - 1] and ends[i]; there is no name of number 0. `above` has the number
that a name stands below, 0 in a plain list. `slots` are a power of two, at least twice the names: a name's number, 0 where none is.
"""

from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from tidemark.shared.compiled.columns import Int64s, Uint8s
from tidemark.shared.compiled.compiling import BYTES, INT64S, INT64S_OUT, compiled, part, rare
from tidemark.shared.compiled.hashing import PRIME_1, equal, hashed, slot_of
from tidemark.shared.compiled.memory import borrowed, byte_at

NameTable: TypeAlias = tuple[Uint8s, Int64s, Int64s, Int64s]
"""Names, ends, above, slots."""
_WORD: Final = b"\0" * 8
"""Behind the last name, so that each is read in words."""
_FEW: Final = 8
"""Fewer names are looked at one by one: their lengths alone tell most apart, which costs less than a hash."""
_ROOM: Final = 4
"""Slots of a name, at least half as many."""


@lru_cache(maxsize=256)
def name_table(names: tuple[bytes, ...], above: tuple[int, ...] = ()) -> NameTable:
    """The table of some names, which differ where they stand below the same one. It is for reading alone."""
    ends = np.cumsum([0, *map(len, names)], dtype=np.int64)
    holders = np.array([0, *above], np.int64) if above else np.zeros(len(ends), np.int64)
    slots = np.zeros(1 << (_ROOM * len(names)).bit_length(), np.int64)
    text = np.frombuffer(b"".join((*names, _WORD)), np.uint8)
    _place(text, ends, holders, slots)
    return text, ends, holders, slots


@part
def _slot(text, begin, end, size, holder, slots):
    return slot_of(hashed(text, begin, end, size) ^ np.uint64(holder) * PRIME_1, len(slots))


@compiled(0, BYTES, INT64S, INT64S, INT64S_OUT)
def _place(names, ends, above, slots):
    whole, places = borrowed(names), borrowed(slots)
    for name in range(1, len(ends)):
        slot = _slot(whole, ends[name - 1], ends[name], len(names), above[name], places)
        while places[slot]:
            slot = (slot + 1) & (len(slots) - 1)
        places[slot] = name


@rare
def _hashed_number(table, holder, text, begin, end, size):
    names, ends, above, slots = table
    slot = _slot(text, begin, end, size, holder, slots)
    while True:
        found = slots[slot]
        if found == 0:
            return np.int64(0)
        if above[found] == holder and equal(text, begin, end, size, names, ends[found - 1], ends[found], len(names)):
            return found
        slot = (slot + 1) & (len(slots) - 1)


@part
def number_of(table, holder, text, begin, end, size):
    """The number of a name that stands in a text, of those below a number; 0 if it is none. size: of all of the text."""
    names, ends, above, _ = table
    if len(ends) > _FEW:
        return _hashed_number(table, holder, text, begin, end, size)
    low = np.int64(0)
    for name in range(1, len(ends)):
        high = ends[name]
        if high - low == end - begin and above[name] == holder:
            at = begin
            while at < end and byte_at(text, at) == byte_at(names, low + at - begin):
                at += 1
            if at == end:
                return np.int64(name)
        low = high
    return np.int64(0)
