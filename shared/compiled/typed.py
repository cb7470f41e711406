"""Values of records with a schema in extended JSON, canonical but for plain numbers: longs, doubles, binary, decimals.

All functions write into `out` at `to`, where there is room, and give the place behind.
"""

from typing import Final

import numpy as np

from tidemark.shared.compiled.compiling import part, rare
from tidemark.shared.compiled.memory import byte_at
from tidemark.shared.compiled.rendering import CANONICAL, put_double_cell
from tidemark.shared.compiled.scanning import QUOTE
from tidemark.shared.compiled.writing import put_all, put_double, put_number, put_whole

_INT32: Final = 1 << 31
_DIGITS_MAX: Final = 8
"""Bytes of a decimal's number that this code reads: they fit a word."""
_PLAIN_ZEROS: Final = 6
"""Behind the point, of a decimal without an exponent."""
_EXPONENT: Final = 0x7FF << 52
_LONG_HEAD, _DECIMAL_HEAD, _BINARY_HEAD, _SUBTYPE, _SUBTYPE_UUID, _ALPHABET = (
    np.frombuffer(text, dtype=np.uint8)
    for text in (
        b'{"$numberLong":"', b'{"$numberDecimal":"', b'{"$binary":{"base64":"', b'","subType":"00"}}', b'","subType":"04"}}',
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    )
)  # fmt: skip


@part
def put_long(out, to, number):
    """Write a long: with its type where 32 bits would hold it."""
    if not -_INT32 <= number < _INT32:
        return put_whole(out, to, number)
    to = put_whole(out, put_all(out, to, _LONG_HEAD), number)
    out[to], out[to + 1] = QUOTE, 125
    return to + 2


@rare
def double_of_float(bits):
    """The bits of a double that is a float of 32 bits."""
    sign, exponent, fraction = bits >> 31 << 63, bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:
        return sign | _EXPONENT | fraction << 29
    if exponent:
        return sign | (exponent + 896) << 52 | fraction << 29
    if not fraction:
        return sign
    exponent = np.int64(897)
    while not fraction & 0x800000:
        fraction <<= 1
        exponent -= 1
    return sign | exponent << 52 | (fraction & 0x7FFFFF) << 29


@part
def put_any_double(out, to, bits):
    """Write a double, also one that is none or infinite."""
    if bits & _EXPONENT != _EXPONENT:
        return put_double(out, to, bits)
    return put_double_cell(CANONICAL, out, to, bits)


@rare
def put_binary(out, to, text, at, size, uuid):
    """Write bytes as extended JSON."""
    to = put_all(out, to, _BINARY_HEAD)
    for place in range(at, at + size, 3):
        left = min(3, at + size - place)
        word = np.int64(byte_at(text, place)) << 16
        if left > 1:
            word |= np.int64(byte_at(text, place + 1)) << 8
        if left > 2:
            word |= np.int64(byte_at(text, place + 2))
        for n in range(4):
            out[to + n] = _ALPHABET[word >> (18 - 6 * n) & 63] if n <= left else 61
        to += 4
    return put_all(out, to, _SUBTYPE_UUID) if uuid else put_all(out, to, _SUBTYPE)


@rare
def put_decimal(out, to, text, at, size, scale):
    """Write a decimal as extended JSON; -1 where the plain reader has to."""
    if size > _DIGITS_MAX:
        return -1
    found = np.int64(0)
    for place in range(at, at + size):
        byte = np.int64(byte_at(text, place))
        found = found << 8 | (byte - 256 if place == at and byte > 127 else byte)
    to = put_all(out, to, _DECIMAL_HEAD)
    if found < 0:
        out[to] = 45
        to += 1
    number = np.uint64(0) - np.uint64(found) if found < 0 else np.uint64(found)
    count, rest = np.int64(1), number // np.uint64(10)
    while rest:
        count += 1
        rest //= np.uint64(10)
    if count - scale <= -_PLAIN_ZEROS:
        return -1
    whole, behind, power = number, np.uint64(0), np.uint64(1)
    for _ in range(min(scale, 19)):
        power *= np.uint64(10)
    if scale > 19:
        whole, behind = np.uint64(0), number
    elif scale:
        whole, behind = number // power, number % power
    to = put_number(out, to, whole)
    if scale:
        out[to] = 46
        for place in range(to + scale, to, -1):
            out[place] = np.uint8(48) + np.uint8(behind % np.uint64(10))
            behind //= np.uint64(10)
        to += scale + 1
    out[to], out[to + 1] = QUOTE, 125
    return to + 2
