"""Numbers of encoded documents as formats with types of their own take them: exactly, as `shared.language.values.fitting` defines it."""

from typing import Final

import numpy as np

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.compiling import part, rare
from tidemark.shared.compiled.memory import byte_at, double_bits, double_of_bits
from tidemark.shared.compiled.writing import shortest

DECIMAL, BINARY = tags.COUNT, tags.COUNT + 1
"""Types of values, told apart among tags.OTHER."""
KINDS: Final = tags.COUNT + 2
"""How many there are."""
INT32: Final = 1 << 31
_EXACT: Final = 1 << 53
"""Up to it a double has each whole number."""
DIGITS_MAX: Final = 18
"""Digits that a word has room for, whatever they are."""
_EXPONENT: Final = 0x7FF << 52
_NAN: Final = 0x7FF8 << 48


@part
def kind_of(text, tag, content):
    """The tag, or DECIMAL or BINARY; tags.OTHER of others."""
    if tag != tags.OTHER:
        return tag
    byte = byte_at(text, content)
    return DECIMAL if byte == 78 else BINARY if byte == 66 else tags.OTHER


@part
def whole_of(kind, number):
    """(whether a value is surely a whole number of 64 bits, the number)."""
    if kind == tags.INT or kind == tags.LONG:
        return True, number
    if kind == tags.DOUBLE:
        found = double_of_bits(number)
        if -_EXACT < found < _EXACT and np.float64(np.int64(found)) == found:
            return True, np.int64(found)
    return False, np.int64(0)


@part
def double_of(kind, number):
    """(whether a value is surely a double, its bits)."""
    if kind == tags.DOUBLE:
        return True, number
    if (kind == tags.INT or kind == tags.LONG) and -_EXACT <= number <= _EXACT:
        return True, np.int64(double_bits(np.float64(number)))
    return False, np.int64(0)


@rare
def float_of(bits):
    """The bits of the float of 32 bits that is nearest to a double; -1 where it has none, or is no number."""
    sign, exponent = (bits >> 32) & 0x80000000, (bits >> 52 & 0x7FF) - 1023
    if exponent == 1024:
        if bits & ((1 << 52) - 1):
            return np.int64(0x7FC00000) if bits == _NAN else np.int64(-1)
        return sign | 0x7F800000
    if exponent < -150:
        return sign
    shift = np.int64(29) if exponent >= -126 else 29 - 126 - exponent
    whole = (bits & ((1 << 52) - 1)) | 1 << 52
    found, rest, half = whole >> shift, whole & ((1 << shift) - 1), 1 << (shift - 1)
    if rest > half or (rest == half and found & 1):
        found += 1
    if exponent >= -126:
        found += (exponent + 126) << 23
    return sign | found if found < 0x7F800000 else np.int64(-1)


@rare
def _scaled(negative, digits, count, exponent):
    """(whether it surely is one, digits times a power of ten) as a whole number of at most `DIGITS_MAX` digits."""
    while exponent < 0 and digits and digits % 10 == 0:
        digits, exponent, count = digits // 10, exponent + 1, count - 1
    if digits == 0:
        return True, np.int64(0)
    if exponent < 0 or count + exponent > DIGITS_MAX:
        return False, np.int64(0)
    for _ in range(exponent):
        digits *= 10
    return True, -digits if negative else digits


@part
def digits_in(number):
    """How many digits a whole number without a sign has."""
    count, rest = np.int64(1), number // np.uint64(10)
    while rest:
        count += 1
        rest //= np.uint64(10)
    return count


@rare
def decimal_parts(text, content, size):
    """(whether it is negative, its digits as a number, how many, how many behind the point) of a decimal; -1 behind the point: not sure."""
    at, end, negative = content + 1, content + size, False
    if byte_at(text, at) == 45:
        negative, at = True, at + 1
    digits, count, point = np.int64(0), np.int64(0), np.int64(-1)
    while at < end:
        digit = np.int64(byte_at(text, at)) - 48
        if digit == -2 and point < 0:
            point = np.int64(0)
        elif 0 <= digit <= 9 and count < DIGITS_MAX:
            digits, count = digits * 10 + digit, count + 1
            point += point >= 0
        else:
            return False, np.int64(0), np.int64(0), np.int64(-1)
        at += 1
    return negative, digits, count, max(point, 0)


@rare
def unscaled_of(text, kind, number, content, size, scale):
    """(whether a number is surely a whole one of 10^-scale, how many of them); a double is its shortest decimal."""
    nothing = False, np.int64(0)
    if kind == tags.INT or kind == tags.LONG:
        if not -(10**DIGITS_MAX) < number < 10**DIGITS_MAX:
            return nothing
        whole = np.uint64(-number) if number < 0 else np.uint64(number)
        return _scaled(number < 0, np.int64(whole), digits_in(whole), scale)
    if kind == tags.DOUBLE:
        if number & _EXPONENT == _EXPONENT:
            return nothing
        bits = number & ~(np.int64(-1) << np.int64(63))
        if bits == 0:
            return True, np.int64(0)
        digits, exponent = shortest(bits)
        return _scaled(number < 0, np.int64(digits), digits_in(digits), np.int64(exponent) + scale)
    if kind != DECIMAL:
        return nothing
    negative, digits, count, point = decimal_parts(text, content, size)
    return _scaled(negative, digits, count, scale - point) if point >= 0 else nothing
