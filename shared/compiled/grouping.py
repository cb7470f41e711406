"""Rows to groups: equal cells in all columns, one code."""

import numpy as np

from tidemark.shared.compiled.compiling import BOOLS, BYTES, INT32S_OUT, INT64S, INT64S_OUT, compiled, part
from tidemark.shared.compiled.memory import borrowed, byte_at, word_at

_PRIME_1, _PRIME_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


@part
def _mixed(found, word):
    found = (found ^ word) * _PRIME_2
    return found ^ found >> np.uint64(32)


@part
def _word(text, at, end, size):
    """The next eight bytes, or those that there are; size: of all of the text."""
    left = end - at
    if left >= 8:
        return word_at(text, at)
    if at + 8 <= size:
        return word_at(text, at) & (np.uint64(1) << np.uint64(8 * left)) - np.uint64(1)
    word = np.uint64(0)
    for place in range(end - 1, at - 1, -1):
        word = word << np.uint64(8) | np.uint64(byte_at(text, place))
    return word


@part
def _hashed(text, begin, end, size):
    """A number of 64 bits of some bytes."""
    found = np.uint64(end - begin)
    for at in range(begin, end, 8):
        found = _mixed(found, _word(text, at, end, size))
    return found


@part
def _equal(text, left, left_end, right, right_end, size):
    if left_end - left != right_end - right:
        return False
    for step in range(0, left_end - left, 8):
        if _word(text, left + step, left_end, size) != _word(text, right + step, right_end, size):
            return False
    return True


@compiled(1, INT64S, INT64S, BOOLS, INT32S_OUT, INT64S_OUT, INT64S_OUT)
def by_numbers(codes, numbers, there, table, found, firsts):
    """Divide groups further by a column of numbers; how many there are.

    codes: the group of each row, shape (n,), nothing for one group of all. there: which cells are no nulls, nothing for all.
    table: all -1, a power of two of at least 2 n places. found: the new groups, from 0 on as they come first. firsts: shape (n,):
    the first row of each.
    """
    places, count = np.uint64(len(table) - 1), np.int64(0)
    for row in range(len(found)):
        code = codes[row] if len(codes) else np.int64(0)
        valid = there[row] if len(there) else True
        number = numbers[row] if valid else np.int64(0)
        at = _mixed(_mixed(np.uint64(code) * _PRIME_1 + np.uint64(valid), np.uint64(number)), _PRIME_1) & places
        while True:
            group = np.int64(table[at])
            if group < 0:
                table[at], firsts[count], found[row] = count, row, count
                count += 1
                break
            first = firsts[group]
            if (
                (numbers[first] == numbers[row] or not valid)
                and (len(there) == 0 or there[first] == valid)
                and (len(codes) == 0 or codes[first] == code)
            ):
                found[row] = group
                break
            at = at + np.uint64(1) & places
    return count


@compiled(1, INT64S, BYTES, INT64S, BOOLS, INT32S_OUT, INT64S_OUT, INT64S_OUT)
def by_texts(codes, text, bounds, there, table, found, firsts):
    """As `by_numbers`, by texts: that of row i is text[bounds[i]:bounds[i + 1]]."""
    whole, size = borrowed(text), len(text)
    places, count = np.uint64(len(table) - 1), np.int64(0)
    for row in range(len(found)):
        code = codes[row] if len(codes) else np.int64(0)
        valid = there[row] if len(there) else True
        begin, end = bounds[row], bounds[row + 1]
        if not valid:
            end = begin
        at = _mixed(_hashed(whole, begin, end, size) + np.uint64(valid), np.uint64(code) * _PRIME_1) & places
        while True:
            group = np.int64(table[at])
            if group < 0:
                table[at], firsts[count], found[row] = count, row, count
                count += 1
                break
            first = firsts[group]
            known = there[first] if len(there) else True
            same = (len(codes) == 0 or codes[first] == code) and known == valid
            if same and (not valid or _equal(whole, bounds[first], bounds[first + 1], begin, end, size)):
                found[row] = group
                break
            at = at + np.uint64(1) & places
    return count


@compiled(0, INT64S, INT64S, INT64S_OUT, INT64S_OUT)
def gathered(codes, order, bounds, out):
    """The rows in `order`, group after group: those of g become out[bounds[g]:bounds[g + 1]]. bounds: shape (groups + 1,), all 0."""
    for row in order:
        bounds[codes[row] + 1] += 1
    for group in range(1, len(bounds)):
        bounds[group] += bounds[group - 1]
    for row in order:
        group = codes[row]
        out[bounds[group]] = row
        bounds[group] += 1
    for group in range(len(bounds) - 1, 0, -1):
        bounds[group] = bounds[group - 1]
    bounds[0] = 0
