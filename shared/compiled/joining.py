"""The rows that a join keeps: matched in the order of their times, dropped, and put together as documents.

Rows lie in slots, those of a key and side in a list in the order in which they were applied, which is that of their times. A slot's
numbers stand side by side in `rows`, shape (slots, ROW); a key's in `keys`, shape (keys, KEYS); a document's to give out in `found`, shape
(m, FOUND). -1 is no slot. `tidemark.shared.operators.join_rows` has the rules.
"""

from typing import Final

import numpy as np

from tidemark.shared.compiled.compiling import BYTES, BYTES_OUT, INT64_ROWS_OUT, INT64S, INT64S_OUT, compiled, part
from tidemark.shared.compiled.encoding import put_count
from tidemark.shared.compiled.memory import borrowed, copy_bytes
from tidemark.shared.compiled.packed import header

TIME, ARRIVAL, PART, POSITION, KEY, SIDE, NUMBER, MATCHED, BEGIN, END, NEXT, BEFORE = range(12)
ROW: Final = 12
"""BEGIN to END: where the encoded document lies. NEXT, BEFORE: in its list. NUMBER: of its own output among those of its key and time."""
FIRST, LAST, TIME_OF_KEY, NUMBER_OF_KEY, ROWS_OF_KEY = 0, 2, 4, 5, 6
KEYS: Final = 7
"""FIRST and LAST, by side: the ends of its lists. The time applied last, the last number given at it; how many rows wait or are kept."""
LEFT, RIGHT, FOUND_TIME, FOUND_KEY, FOUND_NUMBER, FOUND_ARRIVAL = range(6)
FOUND: Final = 6
_NULL: Final = 0xC0


@part
def _append(slot, rows, keys):
    """Put a row at the end of its list."""
    key, side = rows[slot, KEY], rows[slot, SIDE]
    last = keys[key, LAST + side]
    rows[slot, BEFORE], rows[slot, NEXT] = last, -1
    keys[key, LAST + side] = slot
    if last >= 0:
        rows[last, NEXT] = slot
    else:
        keys[key, FIRST + side] = slot


@part
def _find(found, made, left, right, time, key, number, arrival):
    found[made, LEFT], found[made, RIGHT], found[made, FOUND_TIME] = left, right, time
    found[made, FOUND_KEY], found[made, FOUND_NUMBER], found[made, FOUND_ARRIVAL] = key, number, arrival
    return made + 1


@part
def _pairs(key, side, time, reach, rows, keys):
    """(how many of the other side may match a row of this time that is applied now, the first of them or -1)."""
    bound, at, first, pairs = time - reach[1 - side], keys[key, LAST + 1 - side], np.int64(-1), 0
    while at >= 0 and rows[at, TIME] >= bound:
        first, at, pairs = at, rows[at, BEFORE], pairs + 1
    return pairs, first


@compiled(0, INT64S, INT64S, INT64_ROWS_OUT, INT64_ROWS_OUT)
def link(slots, reach, rows, keys):
    """Put rows into their lists, in this order; their keys' times and numbers go on behind the last of them."""
    for slot in slots:
        keys[rows[slot, KEY], TIME_OF_KEY], keys[rows[slot, KEY], NUMBER_OF_KEY] = rows[slot, TIME], -1
        _append(slot, rows, keys)
    for place in range(len(slots) - 1, -1, -1):
        slot = slots[place]
        key = rows[slot, KEY]
        if keys[key, NUMBER_OF_KEY] < 0:
            pairs, _ = _pairs(key, rows[slot, SIDE], rows[slot, TIME], reach, rows, keys)
            keys[key, NUMBER_OF_KEY] = rows[slot, NUMBER] + pairs


@compiled(0, INT64S, INT64_ROWS_OUT, INT64_ROWS_OUT)
def prepend(slots, rows, keys):
    """Put rows in front of their lists, in this order: they were applied before all that are in these."""
    for place in range(len(slots) - 1, -1, -1):
        slot = slots[place]
        key, side = rows[slot, KEY], rows[slot, SIDE]
        first = keys[key, FIRST + side]
        rows[slot, BEFORE], rows[slot, NEXT] = -1, first
        keys[key, FIRST + side] = slot
        if first >= 0:
            rows[first, BEFORE] = slot
        else:
            keys[key, LAST + side] = slot


@part
def _before(rows, left, right):
    """Whether a row is applied before another one of its time; bytes and arrivals aside."""
    for field in (SIDE, PART, POSITION, KEY):
        if rows[left, field] != rows[right, field]:
            return rows[left, field] < rows[right, field]
    return False


@compiled(0, INT64S_OUT, INT64_ROWS_OUT, "int64")
def sort_runs(slots, rows, most):
    """Sort rows of one time by side, partition, position and key, where there are few of them; slots: by time."""
    begin = 0
    while begin < len(slots):
        end = begin + 1
        while end < len(slots) and rows[slots[end], TIME] == rows[slots[begin], TIME]:
            end += 1
        if end - begin <= most:
            for place in range(begin + 1, end):
                slot, at = slots[place], place
                while at > begin and _before(rows, slot, slots[at - 1]):
                    slots[at] = slots[at - 1]
                    at -= 1
                slots[at] = slot
        begin = end


@compiled(2, INT64S, "int64", INT64S, INT64_ROWS_OUT, INT64_ROWS_OUT, INT64_ROWS_OUT, "int64", "int64")
def apply(slots, begin, reach, rows, keys, found, made, most):
    """Apply rows in this order, from `begin` on: each pairs with those of the other side of its key that may match.

    reach: by side, how much later than such a row one of the other side may still be its match, ms. most: with so many found no further row
    is applied. Gives (the first that was not applied, also where `found` has too little room for its pairs; how many are found).
    """
    for place in range(begin, len(slots)):
        slot = slots[place]
        key, side, time = rows[slot, KEY], rows[slot, SIDE], rows[slot, TIME]
        pairs, first = _pairs(key, side, time, reach, rows, keys)
        if made >= most or made + pairs > len(found):
            return place, made
        number = keys[key, NUMBER_OF_KEY] + 1 if keys[key, TIME_OF_KEY] == time else np.int64(0)
        rows[slot, NUMBER], rows[slot, MATCHED] = number, pairs > 0
        at = first
        for _ in range(pairs):
            rows[at, MATCHED] = 1
            number += 1
            left, right = (slot, at) if side == 0 else (at, slot)
            arrival = max(rows[slot, ARRIVAL], rows[at, ARRIVAL])
            made = _find(found, made, left, right, time, key, number, arrival)
            at = rows[at, NEXT]
        keys[key, TIME_OF_KEY], keys[key, NUMBER_OF_KEY] = time, number
        _append(slot, rows, keys)
    return len(slots), made


@compiled(1, INT64S, "bool", INT64_ROWS_OUT, INT64_ROWS_OUT, INT64_ROWS_OUT, "int64")
def expire(slots, outer, rows, keys, found, made):
    """Drop rows of one side, the first ones of their lists; with `outer` those without a match are found, alone."""
    for slot in slots:
        key, side, after = rows[slot, KEY], rows[slot, SIDE], rows[slot, NEXT]
        keys[key, FIRST + side] = after
        if after >= 0:
            rows[after, BEFORE] = -1
        else:
            keys[key, LAST + side] = -1
        keys[key, ROWS_OF_KEY] -= 1
        if outer and not rows[slot, MATCHED]:
            left, right = (slot, np.int64(-1)) if side == 0 else (np.int64(-1), slot)
            made = _find(found, made, left, right, rows[slot, TIME], key, rows[slot, NUMBER], rows[slot, ARRIVAL])
    return made


@compiled(1, BYTES, INT64S, INT64_ROWS_OUT, BYTES_OUT, "int64", "bool")
def gather(arena, slots, rows, out, to, moves):
    """Copy the documents of rows one behind the other; the place behind them. moves: from now on they lie there."""
    source, target = borrowed(arena), borrowed(out)
    for slot in slots:
        begin, size = rows[slot, BEGIN], rows[slot, END] - rows[slot, BEGIN]
        copy_bytes(target, to, source, begin, size)
        if moves:
            rows[slot, BEGIN], rows[slot, END] = to, to + size
        to += size
    return to


@compiled(0, BYTES, INT64S, INT64S, INT64_ROWS_OUT, BYTES, BYTES_OUT, INT64S_OUT)
def documents(arena, lefts, rights, rows, name, out, offsets):
    """Left documents with the right ones as a field `name`, an encoded name; null, or an empty one, where there is none."""
    source, target, field = borrowed(arena), borrowed(out), borrowed(name)
    to = np.int64(0)
    for place in range(len(lefts)):
        offsets[place] = to
        left, right = lefts[place], rights[place]
        count, begin, end = np.int64(0), np.int64(0), np.int64(0)
        if left >= 0:
            _, _, begin, _, count = header(source, rows[left, BEGIN])
            end = rows[left, END]
        to = put_count(target, to, count + 1)
        copy_bytes(target, to, source, begin, end - begin)
        to += end - begin
        copy_bytes(target, to, field, 0, len(name))
        to += len(name)
        if right >= 0:
            size = rows[right, END] - rows[right, BEGIN]
            copy_bytes(target, to, source, rows[right, BEGIN], size)
            to += size
        else:
            target[to] = _NULL
            to += 1
    offsets[len(lefts)] = to
