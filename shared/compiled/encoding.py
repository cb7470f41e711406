"""Rows to documents in the compact codec: what stands in a document's own text, or in the codec, with some top-level fields from columns.

- E1 What is written is, byte for byte, what `tidemark.shared.language.values.encode_doc` makes of the documents.
- E2 A row that this code does not surely write (typed values that it does not know, names that stand twice) is marked; the interpreter
  writes it.
"""

from typing import Final

import numpy as np
from numba import types

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.compiling import compiled, part, rare
from tidemark.shared.compiled.json import first_kind, scalar, typed
from tidemark.shared.compiled.memory import borrowed, byte_at, copy_bytes, move_bytes
from tidemark.shared.compiled.packed import header, skip
from tidemark.shared.compiled.rendering import ASK, DEPTH_MAX, column_of, known_name
from tidemark.shared.compiled.scanning import QUOTE, copy_string, skip_space, string_end

_OPEN, _CLOSE, _LIST, _COMMA, _COLON = (ord(c) for c in "{}[,:")
_NULL: Final = 0xC0
_FIXED_MAX: Final = 15
"""Fields or items that a header of one byte may tell."""


# --- parts of a value -------------------------------------------------------------------------------------------------


@part
def _put_number(out, to, number, width):
    """Write a big-endian number of so many bytes."""
    for i in range(width):
        out[to + i] = np.uint8(number >> np.uint64(8 * (width - 1 - i)) & np.uint64(0xFF))
    return to + width


@part
def _put_whole(out, to, number):
    """Write a whole number of 64 bits."""
    if -32 <= number < 128:
        out[to] = np.uint8(number & 0xFF)
        return to + 1
    code, power = 0xCC if number >= 0 else 0xD0, 0
    if number >= 0:
        power = 0 if number < 2**8 else 1 if number < 2**16 else 2 if number < 2**32 else 3
    else:
        power = 0 if number >= -(2**7) else 1 if number >= -(2**15) else 2 if number >= -(2**31) else 3
    out[to] = np.uint8(code + power)
    return _put_number(out, to + 1, np.uint64(number), 1 << power)


@part
def _put_string_head(out, to, size):
    """Write what stands before the characters of a string."""
    if size < 32:
        out[to] = np.uint8(0xA0 | size)
        return to + 1
    power = 0 if size < 2**8 else 1 if size < 2**16 else 2
    out[to] = np.uint8(0xD9 + power)
    return _put_number(out, to + 1, np.uint64(size), 1 << power)


@part
def _put_bin(out, to, kind, number):
    """Write a typed value of eight bytes."""
    out[to], out[to + 1], out[to + 2] = 0xC4, 9, kind
    return _put_number(out, to + 3, np.uint64(number), 8)


@part
def put_count(out, to, count):
    """Write the header of an object of so many fields; the place behind it."""
    if count <= _FIXED_MAX:
        out[to] = np.uint8(0x80 | count)
        return to + 1
    width = 2 if count < 2**16 else 4
    out[to] = np.uint8(0xDE + (0 if width == 2 else 1))
    return _put_number(out, to + 1, np.uint64(count), width)


@part
def _put_head(out, begin, to, count, is_list):
    """Write the header of an object or an array whose content stands from begin + 1 to `to`; the place behind the content."""
    if count > _FIXED_MAX:
        width = 2 if count < 2**16 else 4
        move_bytes(out, begin + 1 + width, begin + 1, to - begin - 1)
        to += width
    put_count(out, begin, count)
    if is_list:
        out[begin] = out[begin] + 0x10 if count <= _FIXED_MAX else out[begin] - 2
    return to


@rare
def _put_cell(out, to, tag, number, text, begin, end):
    """Write a value; of a string the characters from begin to end, of ENCODED the bytes."""
    if tag == tags.STRING:
        to = _put_string_head(out, to, end - begin)
    elif tag == tags.INT or (tag == tags.LONG and not -(2**31) <= number < 2**31):
        return _put_whole(out, to, number)
    elif tag == tags.LONG or tag == tags.DATE:
        return _put_bin(out, to, ord("L") if tag == tags.LONG else ord("D"), number)
    elif tag == tags.DOUBLE:
        out[to] = 0xCB
        return _put_number(out, to + 1, np.uint64(number), 8)
    elif tag == tags.BOOL or tag == tags.NULL:
        out[to] = np.uint8(_NULL if tag == tags.NULL else 0xC2 + number)
        return to + 1
    copy_bytes(out, to, text, begin, end - begin)
    return to + end - begin


@part
def _put_string(text, at, end, size, out, to):
    """(behind it, behind what was written) of a JSON string that opens at a place; (-1, …) if it is none."""
    close, saved = string_end(text, at + 1, end, size) if at < end and byte_at(text, at) == QUOTE else (-1, 0)
    if close < 0:
        return -1, to
    to = _put_string_head(out, to, close - at - 1 - saved)
    if saved:
        return close + 1, copy_string(text, at + 1, close, out, to)
    copy_bytes(out, to, text, at + 1, close - at - 1)
    return close + 1, to + close - at - 1


@part
def _put_name(text, at, end, size, out, to):
    """(where the value begins, behind the name) of a field; (-1, …) if it is none."""
    at, to = _put_string(text, at, end, size, out, to)
    at = skip_space(text, at, end) if at >= 0 else end
    if at >= end or byte_at(text, at) != _COLON:
        return -1, to
    return skip_space(text, at + 1, end), to


# --- values in JSON ---------------------------------------------------------------------------------------------------


@rare
def _put_value(text, at, end, size, out, to, frames, names, used_before):
    """(behind it, behind what was written) of the value at a place; (-1, …) where the interpreter has to write it (E2).

    frames: by depth: the bracket, the names of the object around, where the header stands, and the fields or items so far.
    """
    depth = 0
    used = frames[4]
    used[0] = used[1] = used_before
    while at < end:
        byte = byte_at(text, at)
        done = True
        if byte == _OPEN or byte == _LIST:
            kind, behind = first_kind(text, at, end, size) if byte == _OPEN else (np.int64(0), at)
            if kind:
                at, tag, found = typed(text, behind, end, size, kind)
                if at < 0 or tag == tags.OTHER:
                    return -1, to
                to = _put_cell(out, to, tag, found, text, at, at)
            else:
                if depth >= DEPTH_MAX:
                    return -1, to
                frames[0, depth], frames[1, depth], frames[2, depth], frames[3, depth] = byte, used[0], to, 0
                used[0] = used[1]
                depth, to = depth + 1, to + 1
                at = skip_space(text, at + 1, end)
                done = at < end and byte_at(text, at) == byte + 2  # the closing bracket
                frames[3, depth - 1] = -1 if done else 0
        elif byte == QUOTE:
            at, to = _put_string(text, at, end, size, out, to)
        else:
            at, tag, found = scalar(text, at, end, size)
            to = _put_cell(out, to, tag, found, text, at, at) if at >= 0 else to
        if at < 0:
            return -1, to
        while done and depth:
            frames[3, depth - 1] += 1
            at = skip_space(text, at, end)
            if at >= end:
                return -1, to
            byte = byte_at(text, at)
            at += 1
            if byte == _COMMA:
                at = skip_space(text, at, end)
                done = False
            elif byte == frames[0, depth - 1] + 2:
                depth -= 1
                to = _put_head(out, frames[2, depth], to, frames[3, depth], frames[0, depth] == _LIST)
                used[1], used[0] = used[0], frames[1, depth]
            else:
                return -1, to
        if depth == 0:
            return at, to
        if frames[0, depth - 1] == _OPEN:
            begin = to
            at, to = _put_name(text, at, end, size, out, to)
            if at < 0 or known_name(out, begin, to, names, used):
                return -1, to
    return -1, to


# --- rows -------------------------------------------------------------------------------------------------------------


@part
def _place(cells, row, column, null, out, mark, to):
    """What a column says of a field whose name was written from `mark` to `to`; `mark` if nothing. null: what the document has is."""
    kinds, numbers, begins, ends, strings = cells
    tag = kinds[column, row]
    if tag == ASK:
        return _put_cell(out, to, tags.NULL, 0, strings, 0, 0) if null else mark
    if tag == tags.MISSING:
        return mark
    return _put_cell(out, to, tag, numbers[column, row], strings, begins[column, row], ends[column, row])


@part
def _rest(cells, row, columns, out, to, count):
    """(behind them, how many fields there are in all) with the fields that the document does not have."""
    texts, text_ends, placed = columns
    low = 0
    for column in range(len(text_ends)):
        high = text_ends[column]
        tag = cells[0][column, row]
        if not placed[column] and tag != tags.MISSING and tag != ASK:
            copy_bytes(out, to, texts, low, high - low)
            to = _place(cells, row, column, False, out, to, to + high - low)
            count += 1
        low = high
    return to, count


@part
def _json_row(text, at, end, size, cells, row, columns, out, to, frames, names):
    """Behind what was written of a row whose document is JSON; -1 where the interpreter has to (E2)."""
    texts, text_ends, placed = columns
    at, top, count = skip_space(text, at, end), to, 0
    to += 1
    at = skip_space(text, at + 1, end) if at < end and byte_at(text, at) == _OPEN else end
    if at >= end:
        return -1
    used = frames[5]
    used[0] = used[1] = 0
    while byte_at(text, at) != _CLOSE:
        mark = to
        at, to = _put_name(text, at, end, size, out, to)
        if at < 0 or at >= end or known_name(out, mark, to, names, used):
            return -1
        column, null, value = column_of(out, mark, to, texts, text_ends), byte_at(text, at) == 110, to
        at, to = _put_value(text, at, end, size, out, to, frames, names, used[1])
        if at < 0:
            return -1
        if column >= 0:
            placed[column] = True
            to = _place(cells, row, column, null, out, mark, value)
        count += to != mark
        at = skip_space(text, at, end)
        if at < end and byte_at(text, at) == _COMMA:
            at = skip_space(text, at + 1, end)
        elif at >= end or byte_at(text, at) != _CLOSE:
            return -1
        if at >= end:
            return -1
    to, count = _rest(cells, row, columns, out, to, count)
    return _put_head(out, top, to, count, False)


@part
def _packed_row(text, at, end, cells, row, columns, out, to):
    """As `_json_row`, of an encoded document; one of no bytes has no fields."""
    texts, text_ends, placed = columns
    top, count = to, 0
    to += 1
    _, _, at, _, fields = header(text, at) if at < end else (0, np.int64(0), at, np.int64(0), np.int64(0))
    for _ in range(fields):
        mark = to
        behind = skip(text, at, end, 1)
        copy_bytes(out, to, text, at, behind - at)
        to, at = to + behind - at, behind
        column, null, behind = (
            column_of(out, mark, to, texts, text_ends),
            byte_at(text, at) == _NULL,
            skip(text, at, end, 1),
        )
        if column >= 0:
            placed[column] = True
            to = _place(cells, row, column, null, out, mark, to)
        else:
            copy_bytes(out, to, text, at, behind - at)
            to += behind - at
        at = behind
        count += to != mark
    to, count = _rest(cells, row, columns, out, to, count)
    return _put_head(out, top, to, count, False)


_BYTES, _INT64S = types.Array(types.uint8, 1, "C", readonly=True), types.Array(types.int64, 1, "C", readonly=True)
_INT64_ROWS: Final = types.Array(types.int64, 2, "C", readonly=True)


@compiled(
    types.int64(
        *(_BYTES, _INT64S, types.boolean, _BYTES, _INT64S),
        *(types.Array(types.uint8, 2, "C", readonly=True), _INT64_ROWS, _INT64_ROWS, _INT64_ROWS, _BYTES),
        *(types.uint8[::1], types.int64[::1], types.boolean[::1]),
        *(types.boolean[::1], types.int64[:, ::1], types.uint64[::1]),
    )
)
def encode(
    text, bounds, encoded, texts, text_ends, kinds, numbers, begins, ends, strings, out, offsets, sure,
    placed, stack, known,
):  # fmt: skip
    """As `rendering.render`, into the codec; texts: the encoded names of the columns. No kind of a cell is OTHER."""
    whole, target, frames, names = borrowed(text), borrowed(out), borrowed(stack), borrowed(known)
    cells = borrowed(kinds), borrowed(numbers), borrowed(begins), borrowed(ends), borrowed(strings)
    columns = borrowed(texts), borrowed(text_ends), borrowed(placed)
    to = np.int64(0)
    for row in range(len(sure)):
        offsets[row] = to
        placed[:] = False
        at, end = bounds[row], bounds[row + 1]
        if encoded:
            behind = _packed_row(whole, at, end, cells, row, columns, target, to)
        else:
            behind = _json_row(whole, at, end, len(text), cells, row, columns, target, to, frames, names)
        sure[row] = behind >= 0
        to = behind if behind >= 0 else to
    offsets[len(sure)] = to
    return to
