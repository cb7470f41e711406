"""Bytes in the order of encoded values (`language.values.order`), without an object a value: the lesser value has the lesser bytes.

- OB1 Equal values have equal bytes, whatever their types and encodings are, and the order of bytes is that of values, as `sort_key` has it.
- OB2 A value begins with the rank of its type. A number goes on with the double that is not above it and with what is left over, so longs
  that are no doubles have their place. Texts and containers end in a zero byte, which no more of them can begin with.
- OB3 Values of other types (decimals, ids, binary data), those in which more than DEPTH_MAX lie in each other, and those behind BYTES_MAX
  are not sure.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.columns import Bools
from tidemark.shared.compiled.compiling import (
    BOOLS_OUT,
    BYTES,
    BYTES_OUT,
    INT64_ROWS_OUT,
    INT64S,
    INT64S_OUT,
    compiled,
    part,
)
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.compiled.memory import borrowed, byte_at, double_bits, double_of_bits
from tidemark.shared.compiled.packed import header
from tidemark.shared.compiled.values import binary_of

DEPTH_MAX: Final = 128
"""Objects and arrays that lie in each other: more than the language goes into, and the room to work in stays a page."""
BYTES_MAX: Final = 2**31 - 1
"""Bytes that the values of one Arrow array may have together."""
_GROWTH: Final = 11
"""How many times as long as its encoding a value's bytes may be: a small int has eleven."""
_EXACT: Final = 2**53
"""Whole numbers up to this are doubles exactly."""
_LEAST, _GREATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def ordered(cells: pa.BinaryArray) -> tuple[pa.BinaryArray, Bools]:
    """The bytes of each cell, none of a null one, so that it is below all others; and which are sure, shape (n,) both."""
    cells = cells.fill_null(b"") if cells.null_count else cells
    text, bounds = buffers(cells)
    out = np.empty(int(bounds[-1] - bounds[0]) * _GROWTH, np.uint8)
    offsets, sure = np.empty(len(cells) + 1, np.int64), np.ones(len(cells), np.bool_)
    size = _ordered(text, bounds, out, offsets, sure, np.empty((2, DEPTH_MAX), np.int64))
    if size > BYTES_MAX:
        first = int(np.searchsorted(offsets, BYTES_MAX, "right")) - 1
        sure[first:], offsets[first + 1 :] = False, offsets[first]
        size = int(offsets[first])
    out.resize(size, refcheck=False)
    return binary_of(offsets, out, None), sure


@part
def _put(out, to, number, width):
    """Write a big-endian number."""
    for i in range(width):
        out[to + i] = np.uint8(number >> (8 * (width - 1 - i)) & 0xFF)
    return to + width


@part
def _put_text(out, to, text, at, size):
    """Write characters and the end of a text, which is below each character, a zero included."""
    for place in range(at, at + size):
        byte = byte_at(text, place)
        out[to] = byte
        to += 1
        if byte == 0:
            out[to] = 0xFF
            to += 1
    out[to], out[to + 1] = 0, 0
    return to + 2


@part
def _rank_of_bits(bits):
    """A number in the order of doubles that have these bits; and the bits of such a number."""
    return bits ^ _GREATEST if bits < 0 else bits


@part
def _put_number(out, to, tag, number):
    """Write the double below a number, NaN below all, and how far the number is above it: less than 2^11."""
    beyond = np.int64(0)
    if tag == tags.DOUBLE:
        value = double_of_bits(number)
        found = _LEAST if np.isnan(value) else _rank_of_bits(np.int64(double_bits(value + 0.0)))  # both zeros are one
    else:
        value = np.float64(number)
        found = _rank_of_bits(np.int64(double_bits(value)))
        if number > _EXACT or number < -_EXACT:
            if value >= 2.0**63 or np.int64(value) > number:
                found -= 1
            beyond = number - np.int64(double_of_bits(_rank_of_bits(found)))
    return _put(out, _put(out, to, found ^ _LEAST, 8), beyond, 2)


@part
def _rank(tag):
    """The place of a type in the order; 0 of others."""
    if tag == tags.INT or tag == tags.LONG or tag == tags.DOUBLE:
        return 10
    if tag == tags.STRING:
        return 15
    if tag == tags.NULL:
        return 5
    if tag == tags.OBJECT:
        return 20
    if tag == tags.ARRAY:
        return 25
    if tag == tags.BOOL:
        return 40
    return 45 if tag == tags.DATE else 0


@compiled(1, BYTES, INT64S, BYTES_OUT, INT64S_OUT, BOOLS_OUT, INT64_ROWS_OUT)
def _ordered(text, bounds, out, offsets, sure, stack):
    """stack: of each object or array around, the values that are left of it, and whether they have names."""
    whole, target, frames, to = borrowed(text), borrowed(out), borrowed(stack), np.int64(0)
    for row in range(len(bounds) - 1):
        offsets[row], at, depth = to, bounds[row], 0
        while sure[row] and (depth or at < bounds[row + 1]):
            if depth and frames[0, depth - 1] == 0:
                target[to] = 0
                to += 1
                depth -= 1
                continue
            name, length = at, np.int64(-1)
            if depth:
                frames[0, depth - 1] -= 1
                if frames[1, depth - 1]:
                    _, _, name, length, _ = header(whole, at)
                    at = name + length
            tag, number, at, size, inside = header(whole, at)
            rank = _rank(tag)
            target[to] = rank
            to += 1
            if length >= 0:
                to = _put_text(target, to, whole, name, length)
            if rank == 10:
                to = _put_number(target, to, tag, number)
            elif tag == tags.STRING:
                to = _put_text(target, to, whole, at, size)
            elif tag == tags.BOOL:
                to = _put(target, to, number, 1)
            elif tag == tags.DATE:
                to = _put(target, to, number ^ _LEAST, 8)
            elif rank == 20 or rank == 25:
                sure[row] = depth < DEPTH_MAX
                if sure[row]:
                    frames[0, depth], frames[1, depth] = inside, rank == 20
                    depth += 1
            else:
                sure[row] = rank == 5
            at += size
        if not sure[row]:
            to = offsets[row]
    offsets[len(bounds) - 1] = to
    return to
