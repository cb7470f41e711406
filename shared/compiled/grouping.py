"""Rows to groups: equal cells in all columns, one code."""

import numpy as np

from tidemark.shared.compiled.compiling import BOOLS, BYTES, INT32S_OUT, INT64S, INT64S_OUT, compiled
from tidemark.shared.compiled.hashing import PRIME_1, equal, hashed, mixed
from tidemark.shared.compiled.memory import borrowed


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
        at = mixed(mixed(np.uint64(code) * PRIME_1 + np.uint64(valid), np.uint64(number)), PRIME_1) & places
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
        at = mixed(hashed(whole, begin, end, size) + np.uint64(valid), np.uint64(code) * PRIME_1) & places
        while True:
            group = np.int64(table[at])
            if group < 0:
                table[at], firsts[count], found[row] = count, row, count
                count += 1
                break
            first = firsts[group]
            known = there[first] if len(there) else True
            same = (len(codes) == 0 or codes[first] == code) and known == valid
            if same and (not valid or equal(whole, bounds[first], bounds[first + 1], size, whole, begin, end, size)):
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
