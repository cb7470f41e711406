"""Values in the compact codec, as compiled writers put them: byte for byte as `tidemark.shared.language.values.encode_value`."""

from typing import Final

import numpy as np

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.compiling import part, rare
from tidemark.shared.compiled.memory import copy_bytes, move_bytes

NULL: Final = 0xC0
_FIXED_MAX: Final = 15
"""Fields or items that a header of one byte may tell."""


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
def put_string_head(out, to, size):
    """Write the header before the characters of a string."""
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
def put_head(out, begin, to, count, is_list):
    """Write the header of an object or an array with content from begin + 1 to `to`; the place behind the content."""
    if count > _FIXED_MAX:
        width = 2 if count < 2**16 else 4
        move_bytes(out, begin + 1 + width, begin + 1, to - begin - 1)
        to += width
    put_count(out, begin, count)
    if is_list:
        out[begin] = out[begin] + 0x10 if count <= _FIXED_MAX else out[begin] - 2
    return to


@rare
def put_cell(out, to, tag, number, text, begin, end):
    """Write a value; of a string the characters from begin to end, of ENCODED the bytes."""
    if tag == tags.STRING:
        to = put_string_head(out, to, end - begin)
    elif tag == tags.INT or (tag == tags.LONG and not -(2**31) <= number < 2**31):
        return _put_whole(out, to, number)
    elif tag == tags.LONG or tag == tags.DATE:
        return _put_bin(out, to, ord("L") if tag == tags.LONG else ord("D"), number)
    elif tag == tags.DOUBLE:
        out[to] = 0xCB
        return _put_number(out, to + 1, np.uint64(number), 8)
    elif tag == tags.BOOL or tag == tags.NULL:
        out[to] = np.uint8(NULL if tag == tags.NULL else 0xC2 + number)
        return to + 1
    copy_bytes(out, to, text, begin, end - begin)
    return to + end - begin
