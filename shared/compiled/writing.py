"""The parts of a JSON text that is written: whole numbers, doubles, strings, as `msgspec.json.encode` writes them; and instants.

All functions write into `out` (bytes) at `to`, where there is room, and give the place behind.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from tidemark.shared.compiled.compiling import part, rare
from tidemark.shared.compiled.memory import byte_at, copy_bytes, high_product, trailing_zeros, word_at
from tidemark.shared.compiled.scanning import BACKSLASH, QUOTE, SIGN, SPACE, code_point, odd_bytes, put_character

_DAY_MS: Final = 86_400_000
"""A unit."""
YEAR_0_MS, YEAR_10000_MS = -62_167_219_200_000, 253_402_300_800_000
"""ISO 8601 has four digits for years."""
_HEX: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_SHORT: Final = np.zeros(32, dtype=np.uint8)
"""The character behind a backslash for a control character; 0: only its number."""
for _code, _letter in ((8, b"b"), (9, b"t"), (10, b"n"), (12, b"f"), (13, b"r")):
    _SHORT[_code] = _letter[0]
_DATE, _LONG = (np.frombuffer(text, dtype=np.uint8) for text in (b'{"$date":"', b'{"$date":{"$numberLong":"'))


@part
def put_all(out, to, text):
    """Write all of a text."""
    copy_bytes(out, to, text, 0, len(text))
    return to + len(text)


@part
def put_number(out, to, number):
    """Write a number without a sign."""
    count, rest = 1, number // np.uint64(10)
    while rest:
        count += 1
        rest //= np.uint64(10)
    for place in range(to + count - 1, to - 1, -1):
        out[place] = np.uint8(48) + np.uint8(number % np.uint64(10))
        number //= np.uint64(10)
    return to + count


@part
def put_whole(out, to, number):
    """Write a whole number of 64 bits."""
    if number < 0:
        out[to] = 45
        return put_number(out, to + 1, np.uint64(0) - np.uint64(number))
    return put_number(out, to, np.uint64(number))


@part
def put_fixed(out, to, number, digits):
    """Write a small number with leading zeros."""
    for place in range(to + digits - 1, to - 1, -1):
        out[place] = 48 + number % 10
        number //= 10
    return to + digits


# --- strings ----------------------------------------------------------------------------------------------------------


@part
def put_escaped(out, to, byte):
    """Write an ASCII character that stands behind a backslash."""
    out[to] = BACKSLASH
    if byte >= SPACE:
        out[to + 1] = byte
        return to + 2
    if _SHORT[byte]:
        out[to + 1] = _SHORT[byte]
        return to + 2
    out[to + 1], out[to + 2], out[to + 3] = 117, 48, 48
    out[to + 4], out[to + 5] = _HEX[byte >> 4], _HEX[byte & 15]
    return to + 6


@part
def put_text(out, to, text, at, end, size):
    """Write characters in UTF-8 as a string; size: of all of the text."""
    out[to] = QUOTE
    to += 1
    while at < end:
        begin = at
        while at + 8 <= size and at < end:
            odd = odd_bytes(word_at(text, at)) if at < end else np.uint64(0)
            if odd:
                at += trailing_zeros(odd) >> 3
                break
            at += 8
        at = min(at, end)
        if at > begin:
            copy_bytes(out, to, text, begin, at - begin)
            to += at - begin
        if at < end:
            byte = byte_at(text, at)
            if byte < SPACE or byte == QUOTE or byte == BACKSLASH:
                to = put_escaped(out, to, byte)
            else:
                out[to] = byte
                to += 1
            at += 1
    out[to] = QUOTE
    return to + 1


@rare
def put_unescaped(out, to, text, at, end):
    """Write the content of a well-formed JSON string, which may have escapes, with those alone that must be."""
    while at < end:
        byte = byte_at(text, at)
        if byte != BACKSLASH:
            out[to] = byte
            at, to = at + 1, to + 1
            continue
        code, step = code_point(text, at, end)
        at += step
        to = (
            put_escaped(out, to, np.uint8(code))
            if code < SPACE or code == QUOTE or code == BACKSLASH
            else put_character(out, to, code)
        )
    return to


# --- doubles ----------------------------------------------------------------------------------------------------------
# Raffaello Giulietti: The Schubfach way to render doubles, 2021. The names are those of the paper.

_K_MIN: Final = -324
"""Of doubles' exponents of ten."""
_K_MAX: Final = 292
"""As above."""
_MASK_63: Final = np.uint64(2**63 - 1)


def _powers_of_ten() -> npt.NDArray[np.uint64]:
    """By k from -324 to 292: the upper and lower 63 of the 126 bits of 10⁻ᵏ, rounded up; shape (617, 2)."""
    found = []
    for k in range(_K_MIN, _K_MAX + 1):
        if k <= 0:
            power = 10**-k
            shift = power.bit_length() - 126
            bits = (power >> shift if shift >= 0 else power << -shift) + 1
        else:
            power = 10**k
            bits = (1 << (power.bit_length() + 125)) // power
            bits = (bits >> (bits.bit_length() - 126)) + 1
        found.append((bits >> 63, bits & (2**63 - 1)))
    return np.array(found, dtype=np.uint64)


_TENS: Final = _powers_of_ten()


@part
def _rounded(g1, g0, cp):
    x1, y0, y1 = high_product(g0, cp), g1 * cp, high_product(g1, cp)
    z = (y0 >> np.uint64(1)) + x1
    w = y1 + (z >> np.uint64(63))
    return w | (((z & _MASK_63) + _MASK_63) >> np.uint64(63))


@rare
def shortest(bits):
    """(digits, exponent of ten) of the shortest decimal that is read as a finite double above 0, and of those the nearest."""
    t, bq = np.uint64(bits & ((1 << 52) - 1)), bits >> 52
    q, c = (bq - 1075, np.uint64(1 << 52) | t) if bq else (np.int64(-1074), t)
    if -53 < q < 0 and bq and (c >> np.uint64(-q)) << np.uint64(-q) == c:
        return c >> np.uint64(-q), np.int64(0)
    odd, even_spacing = c & np.uint64(1), c != np.uint64(1 << 52) or bq <= 1
    cb = c << np.uint64(2)
    cbl, cbr = cb - np.uint64(2 if even_spacing else 1), cb + np.uint64(2)
    k = (q * 661971961083 - (0 if even_spacing else 274743187321)) >> 41
    h = np.uint64(q + ((-k * 913124641741) >> 38) + 2)
    g1, g0 = _TENS[k - _K_MIN, 0], _TENS[k - _K_MIN, 1]
    vb, vbl, vbr = _rounded(g1, g0, cb << h), _rounded(g1, g0, cbl << h), _rounded(g1, g0, cbr << h)
    s = vb >> np.uint64(2)
    if s >= np.uint64(10):
        sp = s // np.uint64(10)
        tp = sp + np.uint64(1)
        below = vbl + odd <= np.uint64(40) * sp
        above = np.uint64(40) * tp + odd <= vbr
        if below != above:
            return (sp if below else tp), k + 1
    below = vbl + odd <= s << np.uint64(2)
    above = ((s + np.uint64(1)) << np.uint64(2)) + odd <= vbr
    if below != above:
        return (s if below else s + np.uint64(1)), k
    middle = (s << np.uint64(2)) + np.uint64(2)
    down = vb < middle or (vb == middle and not s & np.uint64(1))
    return (s if down else s + np.uint64(1)), k


@rare
def _put_double(out, to, bits, least):
    """Write a finite double, with an exponent where its point stands at `least`, or before, or behind the sixteenth digit."""
    if bits < 0:
        out[to] = 45
        to += 1
        bits &= ~np.int64(SIGN)
    if bits == 0:
        out[to], out[to + 1], out[to + 2] = 48, 46, 48
        return to + 3
    digits, exponent = shortest(bits)
    while digits % np.uint64(10) == np.uint64(0):
        digits //= np.uint64(10)
        exponent += 1
    behind = put_number(out, to, digits)
    count = behind - to
    point = count + exponent
    if exponent >= 0 and point <= 16:
        for place in range(behind, behind + exponent):
            out[place] = 48
        out[behind + exponent], out[behind + exponent + 1] = 46, 48
        return behind + exponent + 2
    if 0 < point <= 16:
        for place in range(behind, to + point, -1):
            out[place] = out[place - 1]
        out[to + point] = 46
        return behind + 1
    if least < point <= 0:
        for place in range(behind - 1, to - 1, -1):
            out[place + 2 - point] = out[place]
        out[to], out[to + 1] = 48, 46
        for place in range(to + 2, to + 2 - point):
            out[place] = 48
        return behind + 2 - point
    if count > 1:
        for place in range(behind, to + 1, -1):
            out[place] = out[place - 1]
        out[to + 1] = 46
        behind += 1
    out[behind] = 101
    return put_whole(out, behind + 1, np.int64(point - 1))


@part
def put_double(out, to, bits):
    """Write a finite double."""
    return _put_double(out, to, bits, -5)


@rare
def put_repr(out, to, bits):
    """Write a finite double as Python's `repr` has it: an exponent has a sign, and two digits at least."""
    behind = _put_double(out, to, bits, -4)
    at = behind - 1
    while at > to and 48 <= out[at] <= 57:
        at -= 1
    signed = out[at] == 45 and out[at - 1] == 101
    if not signed and out[at] != 101:
        return behind
    digits = at + 1
    more = (0 if signed else 1) + (1 if behind - digits == 1 else 0)
    for place in range(behind - 1, digits - 1, -1):
        out[place + more] = out[place]
    if not signed:
        out[digits] = 43
    if behind - digits == 1:
        out[digits + more - 1] = 48
    return behind + more


# --- instants ---------------------------------------------------------------------------------------------------------


@rare
def put_date(out, to, ms):
    """Write a date as extended JSON, relaxed: ISO 8601 from 1970 to 9999, else the number."""
    if not 0 <= ms < YEAR_10000_MS:
        return put_date_number(out, to, ms)
    to = put_instant(out, put_all(out, to, _DATE), ms)
    out[to], out[to + 1] = QUOTE, 125
    return to + 2


@part
def put_date_number(out, to, ms):
    """Write a date as extended JSON, canonical."""
    to = put_whole(out, put_all(out, to, _LONG), ms)
    out[to], out[to + 1], out[to + 2] = QUOTE, 125, 125
    return to + 3


@part
def put_instant(out, to, ms):
    """Write an instant of the years 0 to 9999 by ISO 8601, with milliseconds where it has any."""
    days, rest = ms // _DAY_MS, ms % _DAY_MS
    shifted = days + 719_468
    era, of_era = shifted // 146_097, shifted % 146_097
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    to = put_fixed(out, to, year + era * 400 + (1 if month <= 2 else 0), 4)
    out[to] = 45
    to = put_fixed(out, to + 1, month, 2)
    out[to] = 45
    to = put_fixed(out, to + 1, day, 2)
    out[to] = 84
    to = put_fixed(out, to + 1, rest // 3_600_000, 2)
    out[to] = 58
    to = put_fixed(out, to + 1, rest // 60_000 % 60, 2)
    out[to] = 58
    to = put_fixed(out, to + 1, rest // 1000 % 60, 2)
    if rest % 1000:
        out[to] = 46
        to = put_fixed(out, to + 1, rest % 1000, 3)
    out[to] = 90
    return to + 1
