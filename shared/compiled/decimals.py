"""The double nearest to a decimal number, as an ordinary parser gives it (Lemire: Number parsing at a gigabyte per second, 2021).

Up to 19 digits are taken exactly (Mushtak and Lemire, 2023: then the product of 128 bits always decides). Of more digits the first 19 and
those increased by one have to give the same double; where they do not, the caller asks the interpreter.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from tidemark.shared.compiled.compiling import part, rare
from tidemark.shared.compiled.memory import double_bits, high_product, leading_zeros

_LOWEST: Final = -342
_HIGHEST: Final = 308
_EXACT_UP_TO: Final = 22
_ROUNDED_UP_FROM: Final = -27
"""Reciprocals of powers up to 5²⁷ are rounded up, so that products that lie between two doubles are seen to; smaller ones are cut."""
_WORD: Final = 2**64


def _powers_of_five() -> npt.NDArray[np.uint64]:
    """By exponent from -342 to 308: the upper and the lower 64 bits of the power's first 128 bits; shape (651, 2)."""
    found = []
    for exponent in range(_LOWEST, _HIGHEST + 1):
        power = 5 ** abs(exponent)
        if exponent >= 0:
            shift = 128 - power.bit_length()
            bits = power << shift if shift >= 0 else power >> -shift
        else:
            size = (power - 1).bit_length()
            bits = (1 << (size + 127 if exponent >= _ROUNDED_UP_FROM else 2 * size + 128)) // power + 1
            bits >>= max(bits.bit_length() - 128, 0)
        found.append((bits // _WORD, bits % _WORD))
    return np.array(found, dtype=np.uint64)


_POWERS: Final = _powers_of_five()
_TENS: Final = np.array([10.0**exponent for exponent in range(_EXACT_UP_TO + 1)])


@rare
def double_of(digits, exponent):
    """The bits of the double nearest to digits · 10^exponent; infinity where there is none so large."""
    if digits == np.uint64(0) or exponent < _LOWEST:
        return np.int64(0)
    if exponent > _HIGHEST:
        return np.int64(0x7FF) << 52
    if -_EXACT_UP_TO <= exponent <= _EXACT_UP_TO and digits <= np.uint64(1 << 53):
        number = np.float64(digits)
        number = number / _TENS[-exponent] if exponent < 0 else number * _TENS[exponent]
        return double_bits(number)
    zeros = leading_zeros(digits)
    word = digits << np.uint64(zeros)
    high, low = _product(word, _POWERS[exponent - _LOWEST, 0], _POWERS[exponent - _LOWEST, 1])
    upper = np.int64(high >> np.uint64(63))
    mantissa = high >> np.uint64(upper + 9)
    power = (((152170 + 65536) * exponent) >> 16) + 63 + upper - zeros + 1023
    if power <= 0:
        if -power + 1 >= 64:
            return np.int64(0)
        mantissa >>= np.uint64(-power + 1)
        mantissa = (mantissa + (mantissa & np.uint64(1))) >> np.uint64(1)
        return np.int64(mantissa)
    exactly_between = low <= np.uint64(1) and -4 <= exponent <= 23 and (mantissa & np.uint64(3)) == np.uint64(1)
    if exactly_between and (mantissa << np.uint64(upper + 9)) == high:
        mantissa &= ~np.uint64(1)
    mantissa = (mantissa + (mantissa & np.uint64(1))) >> np.uint64(1)
    if mantissa >= np.uint64(1 << 53):
        mantissa = np.uint64(1 << 52)
        power += 1
    if power >= 0x7FF:
        return np.int64(0x7FF) << 52
    return (np.int64(power) << 52) | np.int64(mantissa & np.uint64((1 << 52) - 1))


@part
def _product(word, upper, lower):
    """The upper and the middle 64 bits of the product of a word and a power, as far as they decide."""
    high = high_product(word, upper)
    low = word * upper
    if (high & np.uint64(0x1FF)) == np.uint64(0x1FF):
        more = high_product(word, lower)
        low += more
        if more > low:
            high += np.uint64(1)
    return high, low
