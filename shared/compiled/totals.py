"""Exact totals and deviations (`language.values.totals`) as encoded states: added, merged and rounded without an object a group.

A sum of doubles is a whole number of units of 2⁻¹⁰⁷⁴, of squares one of units of 2⁻²¹⁴⁸, in words of 32 bits: nothing is rounded before the
end. What is rare (a decimal, an infinity, NaN, a sum of whole numbers beyond 128 bits) is left to the plain implementation, which defines
states and results.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.columns import Bools, Int64s, Tagged
from tidemark.shared.compiled.compiling import BOOLS_OUT, BYTES, BYTES_OUT, INT64S, INT64S_OUT, compiled, part, rare
from tidemark.shared.compiled.documents import buffers, cells_of
from tidemark.shared.compiled.memory import borrowed, byte_at, double_bits, leading_zeros
from tidemark.shared.compiled.values import binary_of

_UNITS: Final = 72
"""Words of a sum of doubles: 2,098 bits, 31 more for as many doubles, and room for a carry."""
_SQUARES: Final = 138
_WHOLES: Final = 5
_UNIT_BITS: Final = 1074
_MASK: Final = 0xFFFFFFFF
_HEAD_BYTES: Final = 48
"""The most bytes of a state beside those of its sums of doubles."""
_WHOLE_BYTES: Final = 16
"""A longer sum of whole numbers is added by the plain implementation: one of 64 bits takes 2⁶³ rows to get there."""
_GUARD_BITS: Final = 2
"""Bits behind the last unit that decide the rounding of an average."""
_DOUBLE_BITS: Final = 53
_DECISIVE: Final = 6
"""First words of a number that decide its rounding, behind two counts of 31 bits: of those below counts whether there are any."""
_INFINITY: Final = 0x7FF << 52
_DOUBLE: Final = 2
"""`Total.wide` of doubles."""
_FINITE: Final = 0x7FE
"""From so many bits on that are no part of a double it is infinite."""


def add(cells: Tagged, bounds: Int64s, *, deviation: bool) -> tuple[pa.BinaryArray, Bools]:
    """The encoded states of consecutive groups, and which are sure, shape (m,) both. bounds: where groups begin and the last ends."""
    groups = len(bounds) - 1
    wide = deviation or cells.has(tags.DOUBLE)
    room = _HEAD_BYTES + (4 * (_UNITS + (_SQUARES if deviation else 0)) if wide else 0)
    out, offsets, sure = np.empty(groups * room, np.uint8), np.empty(groups + 1, np.int64), np.ones(groups, np.bool_)
    size = _add(cells.tags, cells.numbers, bounds, deviation, out, offsets, sure, *_room())
    out.resize(size, refcheck=False)
    return binary_of(offsets, out, None), sure


def merge(states: pa.BinaryArray, bounds: Int64s, *, deviation: bool) -> tuple[pa.BinaryArray, Bools]:
    """One state for each of consecutive groups of states, and which are sure, shape (m,) both."""
    groups = len(bounds) - 1
    text, places = buffers(states)
    out = np.empty(int(places[-1] - places[0]) + groups * 3 * _WHOLE_BYTES, np.uint8)
    offsets, sure = np.empty(groups + 1, np.int64), np.ones(groups, np.bool_)
    size = _merge(text, places, bounds, deviation, out, offsets, sure, *_room())
    out.resize(size, refcheck=False)
    return binary_of(offsets, out, None), sure


def finish(states: pa.BinaryArray, *, average: bool) -> tuple[Tagged, Bools]:
    """The sums or averages of totals, and which are sure, shape (n,) both."""
    text, places = buffers(states)
    count = len(states)
    kinds, numbers, sure = np.zeros(count, np.uint8), np.zeros(count, np.int64), np.ones(count, np.bool_)
    _finish(text, places, average, kinds, numbers, sure, *_room())
    zeros = np.zeros(count, np.int32)
    return cells_of(kinds, numbers, zeros, zeros, np.zeros(0, np.uint8), "packed"), sure


def deviations(states: pa.BinaryArray, *, sample: bool) -> tuple[Tagged, Bools]:
    """The deviations of states, and which are sure, shape (n,) both."""
    text, places = buffers(states)
    count = len(states)
    kinds, numbers, sure = np.zeros(count, np.uint8), np.zeros(count, np.int64), np.ones(count, np.bool_)
    _spread(text, places, sample, kinds, numbers, sure, *_room())
    roots, zeros = np.sqrt(numbers.view(np.float64)).view(np.int64), np.zeros(count, np.int32)
    return cells_of(kinds, roots, zeros, zeros, np.zeros(0, np.uint8), "packed"), sure


def _room() -> tuple[Int64s, Int64s, Int64s]:
    """Words to work in: of whole numbers, of units, of squares."""
    return np.zeros(_WHOLES, np.int64), np.zeros(_UNITS, np.int64), np.zeros(_SQUARES, np.int64)


# --- whole numbers of many words --------------------------------------------------------------------------------------


@part
def _put_in(words, value, shift, sign):
    """Add a word of 64 bits, times 2 to the shift."""
    at, off, mask = shift >> 5, np.uint64(shift & 31), np.uint64(_MASK)
    low, high = (value & mask) << off, (value >> np.uint64(32)) << off
    words[at] += sign * np.int64(low & mask)
    words[at + 1] += sign * (np.int64(low >> np.uint64(32)) + np.int64(high & mask))
    words[at + 2] += sign * np.int64(high >> np.uint64(32))


@part
def _put_whole(words, number):
    """Add a whole number of 64 bits."""
    sign = np.int64(-1 if number < 0 else 1)
    _put_in(words, np.uint64(number) if number >= 0 else np.uint64(0) - np.uint64(number), np.int64(0), sign)


@rare
def _put_double(units, squares, bits, deviation):
    """Add a finite double, and its square."""
    field = bits >> 52 & 0x7FF
    mantissa = np.uint64(bits & ((1 << 52) - 1)) | (np.uint64(1 << 52) if field else np.uint64(0))
    shift = np.int64(max(field, 1) - 1)
    _put_in(units, mantissa, shift, np.int64(-1 if bits < 0 else 1))
    if deviation:
        low, high, one = mantissa & np.uint64(_MASK), mantissa >> np.uint64(32), np.int64(1)
        _put_in(squares, low * low, 2 * shift, one)
        _put_in(squares, low * high, 2 * shift + 33, one)
        _put_in(squares, high * high, 2 * shift + 64, one)


@part
def _carried(words):
    """Put each word into 32 bits; what is carried beyond the last is given back."""
    carry = np.int64(0)
    for i in range(len(words)):
        carry += words[i]
        words[i] = carry & _MASK
        carry >>= 32
    return carry


@part
def _made_positive(words):
    """Make words the digits of the number without its sign; whether it was below 0."""
    negative = _carried(words) < 0
    if negative:
        for i in range(len(words)):
            words[i] = -words[i]
        _carried(words)
    return negative


@part
def _bits(words):
    """How many bits the number has."""
    top = len(words) - 1
    while top > 0 and words[top] == 0:
        top -= 1
    return 32 * top + (64 - leading_zeros(np.uint64(words[top])) if words[top] else 0)


@rare
def _put_binary(out, to, words):
    """Write the number as `numbers.pack_int` in the codec: big-endian, with a sign. The words are used up."""
    negative = _made_positive(words)
    size = _bits(words) // 8 + 1
    to = _put_size(out, to, size + 2)
    out[to], out[to + 1] = ord("B"), 0
    to += 2
    carry = np.int64(1)
    for place in range(size):
        byte = words[place >> 2] >> (8 * (place & 3)) & 0xFF if place >> 2 < len(words) else np.int64(0)
        if negative:
            carry += byte ^ 0xFF
            byte = carry & 0xFF
            carry >>= 8
        out[to + size - 1 - place] = np.uint8(byte)
    return to + size


@part
def _put_size(out, to, size):
    """Write the header of so many bytes."""
    if size < 256:
        out[to], out[to + 1] = 0xC4, np.uint8(size)
        return to + 2
    out[to], out[to + 1], out[to + 2] = 0xC5, np.uint8(size >> 8), np.uint8(size & 0xFF)
    return to + 3


@part
def _binary_at(text, at):
    """(begin, size) of the digits of a number in the codec; a size of 0 where there is none."""
    code = byte_at(text, at)
    if code != 0xC4 and code != 0xC5:
        return at, np.int64(0)
    size = np.int64(byte_at(text, at + 1))
    begin = at + 2
    if code == 0xC5:
        size = size << 8 | np.int64(byte_at(text, at + 2))
        begin += 1
    return begin + 2, size - 2


@rare
def _add_binary(text, begin, size, words):
    """Add the number of these digits."""
    for place in range(size):
        byte = np.int64(byte_at(text, begin + size - 1 - place))
        if place == size - 1 and byte >= 0x80:
            byte -= 256
        words[place >> 2] += byte << (8 * (place & 3))


# --- states -----------------------------------------------------------------------------------------------------------


@part
def _cleared(words):
    for i in range(len(words)):
        words[i] = 0


@rare
def _put_state(out, to, deviation, count, wide, wholes, units, squares):
    """Write a state as the plain implementation encodes it."""
    out[to] = 0x94 if deviation else 0x96
    out[to + 1], out[to + 2], out[to + 3] = 0xC4, 9, ord("L")
    for i in range(8):
        out[to + 4 + i] = np.uint8(count >> (56 - 8 * i) & 0xFF)
    to += 12
    if deviation:
        to = _put_binary(out, _put_binary(out, to, units), squares)
        out[to] = 0xC2
        return to + 1
    out[to] = np.uint8(wide)
    to = _put_binary(out, to + 1, wholes)
    to = _put_binary(out, to, units)
    out[to], out[to + 1], out[to + 2], out[to + 3], out[to + 4] = 0xC4, 2, ord("N"), ord("0"), 0xCB
    for i in range(8):
        out[to + 5 + i] = 0
    return to + 13


@rare
def _take_state(text, at, end, deviation, wholes, units, squares):
    """Add the sums of a state; (its count, or -1 where it is not plain; its width)."""
    none = np.int64(-1), np.int64(0)
    if byte_at(text, at) != (0x94 if deviation else 0x96):
        return none
    if byte_at(text, at + 1) != 0xC4 or byte_at(text, at + 2) != 9 or byte_at(text, at + 3) != ord("L"):
        return none
    count, wide = np.int64(0), np.int64(0)
    for i in range(8):
        count = count << 8 | np.int64(byte_at(text, at + 4 + i))
    at += 12
    if not deviation:
        wide = np.int64(byte_at(text, at))
        if wide > _DOUBLE:  # a sum of decimals that is zero is written like none
            return none
        begin, size = _binary_at(text, at + 1)
        if size == 0 or size > _WHOLE_BYTES:
            return none
        _add_binary(text, begin, size, wholes)
        at = begin + size
    begin, size = _binary_at(text, at)
    if size == 0 or size > 4 * (_UNITS - 2):
        return none
    _add_binary(text, begin, size, units)
    at = begin + size
    if deviation:
        begin, size = _binary_at(text, at)
        if size == 0 or size > 4 * (_SQUARES - 2):
            return none
        _add_binary(text, begin, size, squares)
        return (count, wide) if byte_at(text, begin + size) == 0xC2 else none
    plain = end - at == 13 and byte_at(text, at + 1) == 2 and byte_at(text, at + 3) == ord("0")
    for i in range(8):
        plain = plain and byte_at(text, at + 5 + i) == 0
    return (count, wide) if plain else none


_ROOM: Final = (INT64S_OUT, INT64S_OUT, INT64S_OUT)


@compiled(1, BYTES, INT64S, INT64S, "bool", BYTES_OUT, INT64S_OUT, BOOLS_OUT, *_ROOM)
def _add(kinds, numbers, bounds, deviation, out, offsets, sure, wholes, units, squares):
    target, whole, unit, square = borrowed(out), borrowed(wholes), borrowed(units), borrowed(squares)
    to = np.int64(0)
    for group in range(len(bounds) - 1):
        offsets[group] = to
        count, wide = np.int64(0), np.int64(0)
        _cleared(whole)
        _cleared(unit)
        if deviation:
            _cleared(square)
        for row in range(bounds[group], bounds[group + 1]):
            tag = kinds[row]
            if tag == tags.INT or tag == tags.LONG:
                count += 1
                wide = max(wide, np.int64(tag == tags.LONG))
                if deviation:
                    _put_double(unit, square, double_bits(np.float64(numbers[row])), True)
                else:
                    _put_whole(whole, numbers[row])
            elif tag == tags.DOUBLE:
                count, wide = count + 1, np.int64(2)
                if numbers[row] >> 52 & 0x7FF == 0x7FF:
                    sure[group] = False
                else:
                    _put_double(unit, square, numbers[row], deviation)
            elif tag >= tags.OTHER:
                sure[group] = False
        if sure[group]:
            to = _put_state(target, to, deviation, count, wide, whole, unit, square)
    offsets[len(bounds) - 1] = to
    return to


@compiled(1, BYTES, INT64S, INT64S, "bool", BYTES_OUT, INT64S_OUT, BOOLS_OUT, *_ROOM)
def _merge(text, places, bounds, deviation, out, offsets, sure, wholes, units, squares):
    data, target = borrowed(text), borrowed(out)
    whole, unit, square = borrowed(wholes), borrowed(units), borrowed(squares)
    to = np.int64(0)
    for group in range(len(bounds) - 1):
        offsets[group] = to
        count, wide = np.int64(0), np.int64(0)
        _cleared(whole)
        _cleared(unit)
        _cleared(square)
        for row in range(bounds[group], bounds[group + 1]):
            more, width = _take_state(data, places[row], places[row + 1], deviation, whole, unit, square)
            if more < 0:
                sure[group] = False
                break
            count, wide = count + more, max(wide, width)
        if sure[group] and count < 2**31:
            to = _put_state(target, to, deviation, count, wide, whole, unit, square)
        else:
            sure[group] = False
    offsets[len(bounds) - 1] = to
    return to


# --- rounding ---------------------------------------------------------------------------------------------------------


@part
def _divided(words, low, top, count):
    """Divide the words from one to another by a count below 2³¹; whether something is left."""
    rest = np.int64(0)
    for i in range(top - 1, low - 1, -1):
        rest = rest << 32 | words[i]
        words[i] = rest // count
        rest = rest % count
    return rest != 0


@rare
def _rounded(units, negative, count, again, bits_below):
    """The bits of the double nearest to a number of units, divided by two counts below 2³¹ and by 2 to some bits. The words are used up."""
    for i in range(len(units)):
        units[i] <<= _GUARD_BITS
    _carried(units)
    top, below = (_bits(units) + 31) >> 5, False
    low = max(top - _DECISIVE, 0)
    for i in range(low):
        below = below or units[i] != 0
        units[i] = 0
    below = _divided(units, low, top, count) or below
    if again != 1:
        below = _divided(units, low, top, again) or below
    behind = _GUARD_BITS + bits_below
    gone = max(_bits(units) - _DOUBLE_BITS, behind)
    at, off = gone >> 5, np.uint64(gone & 31)
    found = (np.uint64(units[at]) | np.uint64(units[at + 1]) << np.uint64(32)) >> off
    if off:
        found |= np.uint64(units[at + 2]) << (np.uint64(64) - off)
    half = units[(gone - 1) >> 5] >> ((gone - 1) & 31) & 1
    below = below or units[(gone - 1) >> 5] & ((np.int64(1) << ((gone - 1) & 31)) - 1) != 0
    for i in range((gone - 1) >> 5):
        below = below or units[i] != 0
    bits = np.int64(_INFINITY)
    if gone - behind < _FINITE:
        bits = (np.int64(gone - behind) << 52) + np.int64(found)
        if half and (below or bits & 1):
            bits += 1
    return bits | np.int64(-(2**63)) if negative and bits else bits


@compiled(0, BYTES, INT64S, "bool", BYTES_OUT, INT64S_OUT, BOOLS_OUT, *_ROOM)
def _finish(text, places, average, kinds, numbers, sure, wholes, units, squares):
    data, whole, unit, square = borrowed(text), borrowed(wholes), borrowed(units), borrowed(squares)
    for row in range(len(kinds)):
        _cleared(whole)
        _cleared(unit)
        count, wide = _take_state(data, places[row], places[row + 1], False, whole, unit, square)
        if count < 0 or count >= 2**31:
            sure[row] = False
            continue
        negative = _made_positive(whole)
        low = np.uint64(whole[0]) | np.uint64(whole[1]) << np.uint64(32)
        if whole[2] or whole[3] or whole[4] or low >> np.uint64(63):
            sure[row] = False
        elif average and count == 0:
            kinds[row] = tags.NULL
        elif average or wide == 2:
            _put_in(unit, low, np.int64(_UNIT_BITS), np.int64(-1 if negative else 1))
            kinds[row] = tags.DOUBLE
            divisor = count if average else np.int64(1)
            numbers[row] = _rounded(unit, _made_positive(unit), divisor, np.int64(1), np.int64(0))
        else:
            numbers[row] = -np.int64(low) if negative else np.int64(low)
            kinds[row] = tags.LONG if wide == 1 else tags.INT


@compiled(0, BYTES, INT64S, "bool", BYTES_OUT, INT64S_OUT, BOOLS_OUT, *_ROOM)
def _spread(text, places, sample, kinds, numbers, sure, wholes, units, squares):
    """The variances: n·Σx² - (Σx)² over n·(n or n - 1)."""
    data, whole, unit, square = borrowed(text), borrowed(wholes), borrowed(units), borrowed(squares)
    for row in range(len(kinds)):
        _cleared(unit)
        _cleared(square)
        count, _ = _take_state(data, places[row], places[row + 1], True, whole, unit, square)
        _made_positive(unit)
        _carried(square)
        top = (_bits(unit) + 31) >> 5
        if count < 0 or count >= 2**31 or 2 * top > _SQUARES - 1 or _bits(square) > 32 * (_SQUARES - 2):
            sure[row] = False
            continue
        divisor = count - 1 if sample else count
        if divisor <= 0:
            kinds[row] = tags.NULL
            continue
        kinds[row] = tags.DOUBLE
        for i in range(_SQUARES):
            square[i] *= count
        _carried(square)
        for i in range(top):
            if unit[i]:
                for j in range(top):
                    product = np.uint64(unit[i]) * np.uint64(unit[j])
                    square[i + j] -= np.int64(product & np.uint64(_MASK))
                    square[i + j + 1] -= np.int64(product >> np.uint64(32))
        _carried(square)
        if _bits(square):
            numbers[row] = _rounded(square, False, count, divisor, np.int64(_UNIT_BITS))
