"""Fields of encoded documents found by their names in a schema: for writers of records with a schema."""

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.compiling import part, rare
from tidemark.shared.compiled.memory import byte_at
from tidemark.shared.compiled.packed import header, skip


@part
def _same(text, at, size, names, begin, end):
    if end - begin != size:
        return False
    same = True
    for i in range(size):
        same &= byte_at(text, at + i) == names[begin + i]
    return same


@rare
def _searched(text, at, size, names, fields, lookup, first, count):
    low, high = first, first + count
    while low < high:
        middle = (low + high) >> 1
        row = first + lookup[middle]
        begin, end = fields[row, 0], fields[row, 1]
        order, i = end - begin - size, 0
        while i < size and i < end - begin:
            if names[begin + i] != byte_at(text, at + i):
                order = -1 if names[begin + i] < byte_at(text, at + i) else 1
                break
            i += 1
        if order < 0:
            low = middle + 1
        elif order > 0:
            high = middle
        else:
            return lookup[middle]
    return -1


@part
def place_fields(text, at, end, names, fields, lookup, first, count, slots, base):
    """The place behind an object; -1 if it is none, or has a field that the schema has not, or one twice.

    fields: from `first` so many of the schema, each with begin and end of its name in `names`; lookup: the same by name. slots: from
    `base` where the value of each stands, -1 where there is none.
    """
    tag, _, at, _, inside = header(text, at)
    if tag != tags.OBJECT:
        return -1
    for slot in range(base, base + count):
        slots[slot] = -1
    place = -1
    for _ in range(inside):
        tag, _, name, size, _ = header(text, at)
        place += 1
        if place >= count or not _same(text, name, size, names, fields[first + place, 0], fields[first + place, 1]):
            place = _searched(text, name, size, names, fields, lookup, first, count)
        if place < 0 or slots[base + place] >= 0:
            return -1
        at = name + size
        slots[base + place] = at
        at = skip(text, at, end, 1)
    return at


@part
def symbol_of(text, at, size, names, symbols, first, count):
    """Which of an enumeration's symbols characters are, from `first`; -1 if none."""
    for i in range(count):
        if _same(text, at, size, names, symbols[first + i, 0], symbols[first + i, 1]):
            return i
    return -1
