"""The parts of a JSON text: strings, numbers, instants. Strict: a part that is not surely well formed is reported, never repaired.

All functions take a text (bytes, shape (n,)), a place in it, and `end`, behind the last byte that may be looked at.
"""

from typing import Final

import numpy as np

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.compiling import part, rare
from tidemark.shared.compiled.decimals import double_of
from tidemark.shared.compiled.memory import byte_at, trailing_zeros, word_at

QUOTE, BACKSLASH, MINUS, PLUS, DOT, ZERO, SPACE = (ord(c) for c in '"\\-+.0 ')
SIGN: Final = -(2**63)
"""The bit of a double that makes it negative."""
_ONES: Final = np.uint64(0x0101010101010101)
_HIGHS: Final = np.uint64(0x8080808080808080)
_QUOTES: Final = np.uint64(0x2222222222222222)
_BACKSLASHES: Final = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES: Final = np.uint64(0x2020202020202020)
_DIGITS_MAX: Final = 19
"""Digits that fit 64 bits; longer numbers are read exactly, but slower."""
_EXPONENT_MAX: Final = 100_000
"""Larger exponents mean the same: zero, or no finite number."""
_INT64_MAX: Final = np.uint64(2**63 - 1)
_INFINITY: Final = 0x7FF << 52


@part
def skip_space(text, at, end):
    """The first place that is no white space."""
    while at < end:
        byte = byte_at(text, at)
        if byte > SPACE or not (byte == SPACE or byte == 10 or byte == 13 or byte == 9):
            break
        at += 1
    return at


@part
def odd_bytes(word):
    """A bit at the first of eight bytes that ends a run of plain characters of a string."""
    quote, backslash = word ^ _QUOTES, word ^ _BACKSLASHES
    found = (quote - _ONES) & ~quote | (backslash - _ONES) & ~backslash | (word - _SPACES) & ~word | word
    return found & _HIGHS


@part
def string_end(text, at, end, size):
    """(place of the closing quote, bytes that escapes take beyond their characters) of a string that begins at `at`.

    (-1, 0) if it is no string in UTF-8. size: of all of the text.
    """
    saved = 0
    while True:
        while at + 8 <= size:
            odd = odd_bytes(word_at(text, at))
            if odd:
                at += trailing_zeros(odd) >> 3
                break
            at += 8
        if at >= end:
            return -1, 0
        byte = byte_at(text, at)
        if byte == QUOTE:
            return at, saved
        if byte == BACKSLASH:
            step, length = _escape(text, at, end)
            saved += step - length
        elif byte < SPACE:
            return -1, 0
        else:
            step = 1 if byte < 0x80 else character(text, at, end)
        if step == 0:
            return -1, 0
        at += step


@rare
def character(text, at, end):
    """How many bytes the character takes that begins with a byte above 127; 0 if it is none (Unicode 15, table 3-7)."""
    first = byte_at(text, at)
    low, high = 0x80, 0xBF
    if 0xC2 <= first <= 0xDF:
        length = 2
    elif 0xE0 <= first <= 0xEF:
        length = 3
        low, high = (0xA0 if first == 0xE0 else low), (0x9F if first == 0xED else high)
    elif 0xF0 <= first <= 0xF4:
        length = 4
        low, high = (0x90 if first == 0xF0 else low), (0x8F if first == 0xF4 else high)
    else:
        return 0
    if at + length > end or not low <= byte_at(text, at + 1) <= high:
        return 0
    for place in range(at + 2, at + length):
        if byte_at(text, place) & 0xC0 != 0x80:
            return 0
    return length


@part
def hex_of(text, at, count):
    """The number that hex digits stand for, all of them in the text; -1 if they are none."""
    found = 0
    for place in range(at, at + count):
        byte = np.int64(byte_at(text, place))
        if ZERO <= byte <= ZERO + 9:
            digit = byte - ZERO
        elif 97 <= byte | 32 <= 102:
            digit = (byte | 32) - 87
        else:
            return -1
        found = found * 16 + digit
    return found


@rare
def code_point(text, at, end):
    """(the character, bytes) of an escape; (-1, 0) if it is none, or half of a pair."""
    if at + 2 > end:
        return -1, 0
    kind = byte_at(text, at + 1)
    if kind != 117:  # u
        return _simple(kind), 2
    code = hex_of(text, at + 2, 4) if at + 6 <= end else -1
    if code < 0xD800 or code > 0xDFFF:
        return code, 6
    if code > 0xDBFF or at + 12 > end or byte_at(text, at + 6) != BACKSLASH or byte_at(text, at + 7) != 117:
        return -1, 0
    second = hex_of(text, at + 8, 4)
    if second < 0xDC00 or second > 0xDFFF:
        return -1, 0
    return 0x10000 + ((code - 0xD800) << 10) + second - 0xDC00, 12


@part
def _simple(kind):
    """The character that a letter behind a backslash stands for; -1 if none."""
    if kind == QUOTE or kind == BACKSLASH or kind == 47:  # a slash
        return np.int64(kind)
    if kind == 98:  # b
        return 8
    if kind == 102:  # f
        return 12
    if kind == 110:  # n
        return 10
    if kind == 114:  # r
        return 13
    return 9 if kind == 116 else -1  # t


@rare
def _escape(text, at, end):
    """(bytes of an escape, bytes of its character in UTF-8); (0, 0) if it is none."""
    code, step = code_point(text, at, end)
    if code < 0:
        return 0, 0
    return step, 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


@part
def put_character(out, to, code):
    """Write a character in UTF-8; the place behind it in `out`."""
    if code < 0x80:
        out[to] = code
        return to + 1
    if code < 0x800:
        out[to], out[to + 1] = 0xC0 | code >> 6, 0x80 | code & 0x3F
        return to + 2
    if code < 0x10000:
        out[to], out[to + 1], out[to + 2] = 0xE0 | code >> 12, 0x80 | code >> 6 & 0x3F, 0x80 | code & 0x3F
        return to + 3
    out[to], out[to + 1] = 0xF0 | code >> 18, 0x80 | code >> 12 & 0x3F
    out[to + 2], out[to + 3] = 0x80 | code >> 6 & 0x3F, 0x80 | code & 0x3F
    return to + 4


@rare
def copy_string(text, at, end, out, to):
    """Write the content of a well-formed string without its escapes; the place behind it in `out`."""
    while at < end:
        byte = byte_at(text, at)
        if byte != BACKSLASH:
            out[to] = byte
            at += 1
            to += 1
            continue
        code, step = code_point(text, at, end)
        at += step
        to = put_character(out, to, code)
    return to


# --- numbers ----------------------------------------------------------------------------------------------------------


@part
def _digit(text, at, end):
    """The digit at a place, above 9 if there is none."""
    return np.int64(byte_at(text, at)) - ZERO & 0xFF if at < end else np.int64(255)


@part
def _digits(text, at, end, found, count):
    """Digits added to a number of `count`: (behind them, number, digits, how many had no room, whether one of those was not 0)."""
    left, lost = 0, False
    digit = _digit(text, at, end)
    while digit <= 9:
        if count < _DIGITS_MAX:
            found = found * np.uint64(10) + np.uint64(digit)
            count += 1 if found else 0
        else:
            left += 1
            lost |= digit != 0
        at += 1
        digit = _digit(text, at, end)
    return at, found, count, left, lost


@part
def number(text, at, end):
    """(behind it, tag, value) of a JSON number: the whole number, or a double's bits. (-1, …) if it is none, or not to be told."""
    negative = byte_at(text, at) == MINUS
    at += 1 if negative else 0
    first = _digit(text, at, end)
    if first > 9 or (first == 0 and _digit(text, at + 1, end) <= 9):
        return -1, 0, np.int64(0)
    at, found, count, left, lost = _digits(text, at, end, np.uint64(0), 0)
    following = np.int64(byte_at(text, at)) if at < end else 0
    if following != DOT and following | 32 != 101:
        if left == 0 and found <= _INT64_MAX:
            whole = -np.int64(found) if negative else np.int64(found)
            return at, tags.INT if -(2**31) <= whole < 2**31 else tags.LONG, whole
        if left == 0 and negative and found == _INT64_MAX + np.uint64(1):
            return at, tags.LONG, np.int64(SIGN)
    exponent = left
    if following == DOT:
        begin = at + 1
        at, found, count, left, more = _digits(text, begin, end, found, count)
        if at == begin:
            return -1, 0, np.int64(0)
        exponent -= at - begin - left
        lost |= more
        following = np.int64(byte_at(text, at)) if at < end else 0
    if following | 32 == 101:
        at, power = _power(text, at + 1, end)
        if at < 0:
            return -1, 0, np.int64(0)
        exponent += power
    bits = double_of(found, exponent)
    if bits >= _INFINITY or (lost and bits != double_of(found + np.uint64(1), exponent)):
        return -1, 0, np.int64(0)
    return at, tags.DOUBLE, bits | SIGN if negative else bits


@rare
def _power(text, at, end):
    """(behind it, value) of an exponent; (-1, 0) if there is none. Beyond any double's it no longer grows."""
    sign = np.int64(byte_at(text, at)) if at < end else 0
    at += 1 if sign == MINUS or sign == PLUS else 0
    digit = _digit(text, at, end)
    if digit > 9:
        return -1, 0
    found = 0
    while digit <= 9:
        found = min(found * 10 + digit, _EXPONENT_MAX)
        at += 1
        digit = _digit(text, at, end)
    return at, -found if sign == MINUS else found


# --- instants ---------------------------------------------------------------------------------------------------------


@part
def _two(text, at, end):
    """The number of two digits; far below 0 if they are none."""
    tens, ones = _digit(text, at, end), _digit(text, at + 1, end)
    return tens * 10 + ones if tens <= 9 and ones <= 9 else -1_000_000


@rare
def instant(text, at, end):
    """(whether it is known to be one, UTC ms) of an ISO 8601 date or instant, in the forms of `parse_iso` that hold no space."""
    year, month, day = (
        _two(text, at, end) * 100 + _two(text, at + 2, end),
        _two(text, at + 5, end),
        _two(text, at + 8, end),
    )
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = 28 + leap if month == 2 else 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31
    separated = at + 10 <= end and byte_at(text, at + 4) == MINUS and byte_at(text, at + 7) == MINUS
    if not separated or year < 0 or not 1 <= month <= 12 or not 1 <= day <= days:
        return False, np.int64(0)
    shifted = year - (1 if month <= 2 else 0)
    of_era = shifted % 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    found = (shifted // 400 * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468) * 86_400_000
    at += 10
    if at == end:
        return True, np.int64(found)
    ms, at = _time_of_day(text, at, end)
    if ms < 0:
        return False, np.int64(0)
    known, offset = _offset(text, at, end)
    return known, np.int64(found + ms - offset)


@part
def _time_of_day(text, at, end):
    """(ms, behind it) of `T12:34:56.789`, where seconds and their fraction may be left out; (-1, 0) if it is none."""
    hour, minute, second, fraction = _two(text, at + 1, end), _two(text, at + 4, end), 0, 0
    if at + 6 > end or not (byte_at(text, at) == 84 or byte_at(text, at) == SPACE) or byte_at(text, at + 3) != 58:
        return -1, 0
    at += 6
    if at < end and byte_at(text, at) == 58:  # a colon
        second = _two(text, at + 1, end)
        at += 3
        if at < end and (byte_at(text, at) == DOT or byte_at(text, at) == 44):  # a comma
            begin = at + 1
            at = begin
            while _digit(text, at, end) <= 9:
                at += 1
            if not 1 <= at - begin <= 9:
                return -1, 0
            for place in range(begin, begin + 3):
                fraction = fraction * 10 + (_digit(text, place, end) if place < at else 0)
    if not 0 <= hour < 24 or not 0 <= minute < 60 or not 0 <= second < 60:
        return -1, 0
    return ((hour * 60 + minute) * 60 + second) * 1000 + fraction, at


@part
def _offset(text, at, end):
    """(whether it is one, ms east of UTC) of `Z`, `+01`, `+0100`, `+01:00`, or nothing, up to the end."""
    if at == end:
        return True, 0
    sign = byte_at(text, at)
    if sign | 32 == 122:  # z
        return at + 1 == end, 0
    if sign != PLUS and sign != MINUS:
        return False, 0
    hours, minutes = _two(text, at + 1, end), 0
    at += 3
    if at < end:
        at += 1 if byte_at(text, at) == 58 else 0
        minutes = _two(text, at, end)
        at += 2
    if at != end or hours < 0 or minutes < 0:
        return False, 0
    ms = (hours * 60 + minutes) * 60_000
    return True, ms if sign == PLUS else -ms
