"""Documents in the compact codec to lines of CSV: what `csv.writer` makes of the text of each value.

- CW1 A line of which this code is not sure (types that are rare, characters that are no UTF-8) is marked; the caller writes it.
- CW2 Names of fields are columns in the order in which they first appear. Fields mostly come in that order, so the next column is looked
  at first, and then a table of hashes.
"""

from typing import Final

import numpy as np

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.compiling import (
    BOOLS_OUT,
    BYTES,
    BYTES_OUT,
    INT64_ROWS_OUT,
    INT64S,
    INT64S_OUT,
    compiled,
    part,
    rare,
)
from tidemark.shared.compiled.hashing import equal, hashed, slot_of
from tidemark.shared.compiled.memory import borrowed, byte_at, copy_bytes, move_bytes
from tidemark.shared.compiled.packed import header, is_text, skip
from tidemark.shared.compiled.rendering import RELAXED, put_decoded
from tidemark.shared.compiled.scanning import QUOTE
from tidemark.shared.compiled.writing import YEAR_0_MS, YEAR_10000_MS, put_all, put_instant, put_repr, put_whole

_LINE_FEED, _RETURN = 10, 13
_EXPONENT: Final = 0x7FF << 52
_FRACTION: Final = (1 << 52) - 1
_TRUE, _FALSE, _NAN, _INFINITY, _MINUS_INFINITY, _HEX = (
    np.frombuffer(text, np.uint8) for text in (b"true", b"false", b"nan", b"inf", b"-inf", b"0123456789abcdef")
)


@rare
def _column(text, at, size, names, ends, slots, count, guess):
    """(column, its slot) of a name; (-1, the slot that is free) if it has none. slots: column + 1, 0 where none is."""
    slot = slot_of(hashed(text, at, at + size, at + size), len(slots))
    column = guess if guess < count else slots[slot] - 1
    while True:
        if column >= 0:
            low = ends[column - 1] if column else np.int64(0)
            if equal(text, at, at + size, at + size, names, low, ends[column], ends[column]):
                return column, slot
        elif slots[slot] == 0:
            return np.int64(-1), slot
        if column == guess:
            guess = np.int64(-2)
            column = slots[slot] - 1
        else:
            slot = (slot + 1) & (len(slots) - 1)
            column = slots[slot] - 1


@rare
def _put_hex(out, to, text, at, end):
    """Write bytes as hex digits."""
    for place in range(at, end):
        byte = byte_at(text, place)
        out[to], out[to + 1] = _HEX[byte >> 4], _HEX[byte & 15]
        to += 2
    return to


@rare
def _put_other(text, content, size, out, to):
    """Behind a decimal, an id or binary data; -1 for other types."""
    kind = byte_at(text, content)
    if kind == 78:  # N
        copy_bytes(out, to, text, content + 1, size - 1)
        return to + size - 1
    if kind == 79:  # O
        return _put_hex(out, to, text, content + 1, content + size)
    if kind == 66:  # B
        return _put_hex(out, to, text, content + 2, content + size)
    return -1


@rare
def _put_plain(tag, number, out, to):
    """Write a number, a truth value or an instant; of null nothing."""
    if tag == tags.INT or tag == tags.LONG:
        return put_whole(out, to, number)
    if tag == tags.BOOL:
        return put_all(out, to, _TRUE) if number else put_all(out, to, _FALSE)
    if tag == tags.DATE:
        return put_instant(out, to, number) if YEAR_0_MS <= number < YEAR_10000_MS else put_whole(out, to, number)
    if tag != tags.DOUBLE:
        return to
    if number & _EXPONENT != _EXPONENT:
        return put_repr(out, to, number)
    if number & _FRACTION:
        return put_all(out, to, _NAN)
    return put_all(out, to, _INFINITY) if number > 0 else put_all(out, to, _MINUS_INFINITY)


@rare
def _quoted(out, begin, to, delimiter):
    """Behind a cell that was written plain, in quotes if it needs them."""
    quotes, odd = 0, False
    for place in range(begin, to):
        byte = out[place]
        quotes += byte == QUOTE
        odd |= byte == delimiter or byte == _LINE_FEED or byte == _RETURN
    if not odd and quotes == 0:
        return to
    behind = to + quotes + 2
    out[behind - 1] = QUOTE
    if quotes == 0:
        move_bytes(out, begin + 1, begin, to - begin)
    else:
        at = behind - 2
        for place in range(to - 1, begin - 1, -1):
            out[at] = out[place]
            at -= 1
            if out[place] == QUOTE:
                out[at] = QUOTE
                at -= 1
    out[begin] = QUOTE
    return behind


@rare
def _put_cell(text, at, end, size, delimiter, out, to, frames):
    """Behind a value's cell; -1 where the caller has to write the line (CW1)."""
    tag, number, content, length, _ = header(text, at)
    begin = to
    if tag == tags.STRING:
        if not is_text(text, content, length):
            return -1
        copy_bytes(out, to, text, content, length)
        to += length
    elif tag == tags.OBJECT or tag == tags.ARRAY:
        at, to = put_decoded(RELAXED, text, at, end, size, out, to, frames)
        if at < 0:
            return -1
    elif tag == tags.OTHER:
        to = _put_other(text, content, length, out, to)
        if to < 0:
            return -1
    else:
        to = _put_plain(tag, number, out, to)
    return _quoted(out, begin, to, delimiter)


@part
def _line(text, at, end, size, table, count, delimiter, cells, out, to, frames):
    """Behind a document's line; -1 where the caller has to write it (CW1). cells: by column where the value stands, -1 between lines."""
    names, ends, slots = table
    _, _, at, _, fields = header(text, at)
    column = np.int64(-1)
    for _ in range(fields):
        _, _, content, length, _ = header(text, at)
        column, _ = _column(text, content, length, names, ends, slots, count, column + 1)
        at = content + length
        cells[column] = at
        at = skip(text, at, end, 1)
    begin = to
    for column in range(count):
        if column:
            out[to] = delimiter
            to += 1
        if cells[column] >= 0 and begin >= 0:
            to = _put_cell(text, cells[column], end, size, delimiter, out, to, frames)
            if to < 0:
                begin, to = np.int64(-1), begin
        cells[column] = -1
    if begin < 0:
        return -1
    if count == 1 and to == begin:  # an empty line would be no record
        out[to], out[to + 1] = QUOTE, QUOTE
        to += 2
    out[to], out[to + 1] = _RETURN, _LINE_FEED
    return to + 2


@compiled(1, BYTES, INT64S, BYTES_OUT, INT64S_OUT, INT64S_OUT, "int64")
def columns(text, bounds, names, ends, slots, count):
    """How many columns there are with those of these documents (CW2), `count` before; -1 where names, ends or slots have no room.

    text, bounds: encoded documents. names, ends: the names, one behind the other. slots: a power of two, 0 at first; half of them are
    taken at most.
    """
    whole, target, places, taken = borrowed(text), borrowed(names), borrowed(ends), borrowed(slots)
    for row in range(len(bounds) - 1):
        at, end = bounds[row], bounds[row + 1]
        if at == end:
            continue
        _, _, at, _, fields = header(whole, at)
        column = np.int64(-1)
        for _ in range(fields):
            _, _, content, length, _ = header(whole, at)
            column, slot = _column(whole, content, length, target, places, taken, count, column + 1)
            if column < 0:
                low = places[count - 1] if count else np.int64(0)
                if count == len(places) or 2 * count >= len(taken) or low + length > len(target):
                    return -1
                copy_bytes(target, low, whole, content, length)
                places[count], taken[slot], column = low + length, count + 1, count
                count += 1
            at = skip(whole, content + length, end, 1)
    return count


@compiled(
    *(1, BYTES, INT64S, BYTES, INT64S, INT64S, "int64", "int64"),
    *(INT64S_OUT, BYTES_OUT, INT64S_OUT, BOOLS_OUT, INT64_ROWS_OUT),
)
def write(text, bounds, names, ends, slots, count, delimiter, cells, out, offsets, sure, stack):
    """Write the lines one behind the other; how many bytes they take. A line where `sure` becomes false is empty (CW1).

    text to count: of `columns`. cells: shape (count,), all -1. out: with room. offsets: shape (n + 1,), where lines begin.
    sure: shape (n,). stack: to work in, see `rendering.room_to_work`.
    """
    whole, target, frames, places = borrowed(text), borrowed(out), borrowed(stack), borrowed(cells)
    table = borrowed(names), borrowed(ends), borrowed(slots)
    to = np.int64(0)
    for row in range(len(sure)):
        offsets[row] = to
        at, end = bounds[row], bounds[row + 1]
        behind = np.int64(-1)
        if at < end:
            behind = _line(whole, at, end, len(text), table, count, delimiter, places, target, to, frames)
        sure[row] = behind >= 0
        to = behind if behind >= 0 else to
    offsets[len(sure)] = to
    return to
