"""One pass over documents in the compact codec (`tidemark.shared.language.values.codec`): the values at the paths that are asked for.

The codec is MessagePack; a `bin` holds a typed value, its first byte says which. Our own code wrote the documents: nothing is checked but
that no byte outside of a document is looked at.
"""

import numpy as np

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.compiling import (
    BYTE_ROWS_OUT,
    BYTES,
    INT32_ROWS_OUT,
    INT64_ROWS_OUT,
    INT64S,
    compiled,
    part,
    rare,
)
from tidemark.shared.compiled.json import below, is_leaf, put
from tidemark.shared.compiled.memory import borrowed, byte_at
from tidemark.shared.compiled.name_tables import number_of
from tidemark.shared.compiled.scanning import character

_DATE, _LONG = ord("D"), ord("L")


@part
def _number(text, at, size):
    """A big-endian number without a sign."""
    found = np.uint64(0)
    for place in range(at, at + size):
        found = found << np.uint64(8) | np.uint64(byte_at(text, place))
    return found


@part
def _signed(text, at, size):
    """A big-endian number with a sign."""
    shift = np.uint64(64 - 8 * size)
    return np.int64(_number(text, at, size) << shift) >> np.int64(shift)


@rare
def _sized(text, at, code):
    """(tag, value, begin of the content, its bytes, fields or items in it) of a value that has its size in the header."""
    none = np.int64(0)
    if code <= 0xC6:  # bin
        width = 1 << (code - 0xC4)
        begin, size = at + 1 + width, np.int64(_number(text, at + 1, width))
        kind = byte_at(text, begin) if size == 9 else 0
        if kind == _DATE or kind == _LONG:
            return tags.DATE if kind == _DATE else tags.LONG, _signed(text, begin + 1, 8), begin, size, none
        return tags.OTHER, none, begin, size, none
    if 0xD9 <= code <= 0xDB:  # str
        width = 1 << (code - 0xD9)
        size = np.int64(_number(text, at + 1, width))
        return tags.STRING, size, at + 1 + width, size, none
    width = 2 if code == 0xDC or code == 0xDE else 4
    count = np.int64(_number(text, at + 1, width))
    return (tags.ARRAY if code <= 0xDD else tags.OBJECT), none, at + 1 + width, none, count


@part
def header(text, at):
    """(tag, value, begin of the content, its bytes, fields or items in it) of the value at a place."""
    code, none = np.int64(byte_at(text, at)), np.int64(0)
    if code < 0x80:
        return tags.INT, code, at + 1, none, none
    if code < 0x90:
        return tags.OBJECT, none, at + 1, none, code & 0x0F
    if code < 0xA0:
        return tags.ARRAY, none, at + 1, none, code & 0x0F
    if code < 0xC0:
        return tags.STRING, code & 0x1F, at + 1, code & 0x1F, none
    if code >= 0xE0:
        return tags.INT, code - 256, at + 1, none, none
    if code == 0xC0:
        return tags.NULL, none, at + 1, none, none
    if code <= 0xC3:
        return tags.BOOL, code & 1, at + 1, none, none
    if code == 0xCB:
        return tags.DOUBLE, np.int64(_number(text, at + 1, 8)), at + 9, none, none
    if 0xCC <= code <= 0xD3:
        width = 1 << (code & 3)
        found = _signed(text, at + 1, width) if code >= 0xD0 else np.int64(_number(text, at + 1, width))
        return tags.INT if -(2**31) <= found < 2**31 else tags.LONG, found, at + 1 + width, none, none
    return _sized(text, at, code)


@part
def skip(text, at, end, count):
    """The place behind so many values."""
    while count and at < end:
        tag, _, at, size, inside = header(text, at)
        at += size
        count += (2 * inside if tag == tags.OBJECT else inside) - 1
    return at


@part
def is_text(text, at, size):
    """Whether bytes are UTF-8, which those of half a pair are not."""
    end = at + size
    while at < end:
        step = 1 if byte_at(text, at) < 0x80 else character(text, at, end)
        if step == 0:
            return False
        at += step
    return True


@part
def _document(text, at, end, whole, tree, cells, row, frames):
    """Read a document's values at the paths of the tree into the cells of the row. frames: node and fields left, by depth.

    whole: the size of the text.
    """
    _, _, at, _, count = header(text, at)
    frames[0, 0], frames[1, 0], depth = 0, count, 1
    while depth and at < end:
        if frames[1, depth - 1] == 0:
            depth -= 1
            continue
        frames[1, depth - 1] -= 1
        _, _, name, size, _ = header(text, at)
        node = number_of(tree[0], frames[0, depth - 1], text, name, name + size, whole)
        at = name + size
        if node == 0:
            at = skip(text, at, end, 1)
            continue
        begin = at
        tag, found, content, size, count = header(text, at)
        if tag == tags.STRING and not is_text(text, content, size):
            tag = tags.OTHER
        if tag == tags.OBJECT and not is_leaf(tree, node):
            frames[0, depth], frames[1, depth], at = node, count, content
            put(cells, node, row, tag, found, begin, skip(text, begin, end, 1))
            depth += 1
            continue
        at = skip(text, begin, end, 1)
        if tag == tags.ARRAY:
            below(cells, tree, node, row, tags.SPREAD)
        put(cells, node, row, tag, found, content if tag == tags.STRING else begin, at)


@compiled(
    *(0, BYTES, INT64S, BYTES, INT64S, INT64S, INT64S, INT64S),
    *(BYTE_ROWS_OUT, INT64_ROWS_OUT, INT32_ROWS_OUT, INT32_ROWS_OUT, INT64_ROWS_OUT),
)
def read(text, bounds, names, name_ends, above, slots, last, kinds, values, begins, ends, stack):
    """As `json.read`, of encoded documents; one of no bytes has no fields. The place of a string is that of its characters.

    stack: room to work in, shape (2, m + 2).
    """
    tree = (borrowed(names), borrowed(name_ends), borrowed(above), borrowed(slots)), borrowed(last)
    cells = borrowed(kinds), borrowed(values), borrowed(begins), borrowed(ends)
    frames, whole = borrowed(stack), borrowed(text)
    for row in range(len(bounds) - 1):
        if bounds[row] < bounds[row + 1]:
            _document(whole, bounds[row], bounds[row + 1], len(text), tree, cells, row, frames)
