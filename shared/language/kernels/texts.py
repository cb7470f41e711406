"""Strings and conversions on columns.

What one evaluation may produce is counted by the interpreter: rows in which a result is more than a small part of it are left to it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import doubles, tags
from tidemark.shared.compiled.documents import buffers, cells_of
from tidemark.shared.language.expressions.environment import RESULT_UNITS_MAX
from tidemark.shared.language.kernels.arithmetic import nulls, whole
from tidemark.shared.language.kernels.base import (
    TIMESTAMP,
    WHOLE,
    Bools,
    Column,
    Unvectorised,
    either,
    filled,
    nulls_of,
    without,
)
from tidemark.shared.language.kernels.dates import of_texts, written
from tidemark.shared.model.values import INT32_MAX, INT32_MIN

_PLAIN_NUMBER: Final = r"^-?[0-9]{1,15}(\.[0-9]{1,15})?$"
"""What Arrow reads as `$toDouble` does, and no double is too small for."""
_FEW_DIGITS: Final = r"^-?[0-9]{1,9}$"
_SHORT_BYTES: Final = RESULT_UNITS_MAX // 256
"""Texts up to this are within what an evaluation may produce, in 256 calls."""
_WHOLE_MAX: Final = 2.0**62
"""Doubles below it are within 64 bits."""
ALL_BYTES: Final = 2**31 - 1
"""Bytes that the texts of one Arrow array may have together."""


def long_texts(lengths: pa.Array) -> Bools | None:
    """The rows whose texts, of these many bytes, the interpreter has to count; Unvectorised for too many together."""
    long = either(filled(pc.greater(lengths, _SHORT_BYTES)))
    if (pc.sum(without(lengths, long)).as_py() or 0) > ALL_BYTES:
        raise Unvectorised
    return long


def concat(args: Sequence[Column]) -> Column:
    """`$concat` of strings."""
    if not args or any(arg.type not in ("string", "null") for arg in args):
        raise Unvectorised
    if any(arg.type == "null" for arg in args):
        return nulls(len(args[0].values))
    lengths = pc.binary_length(args[0].values).cast(pa.int64())
    for arg in args[1:]:
        lengths = pc.add(lengths, pc.binary_length(arg.values).cast(pa.int64()))
    long = long_texts(lengths)
    return Column("string", pc.binary_join_element_wise(*(without(arg.values, long) for arg in args), ""), doubt=long)


def text_of(column: Column) -> Column:
    """Values as the texts that operators on strings work on: null is empty, a double has six digits; Unvectorised where one has none."""
    if column.type == "string":
        return replace(
            column, values=pc.fill_null(column.values, ""), missing=False, absent=False, cells=None, told=None
        )
    if column.type == "null":
        return Column("string", pa.repeat("", len(column.values)))
    if column.type in WHOLE:
        return Column("string", pc.fill_null(column.values.cast(pa.string()), ""))
    if column.type == "double":
        found = ["" if number is None else f"{number:g}" for number in column.values.to_pylist()]
        return Column("string", pa.array(found, pa.string()))
    if column.type == "date":
        text = written(column)
        return replace(text, values=pc.fill_null(text.values, ""))
    raise Unvectorised


def letters(function: Any, arg: Column) -> Column:
    """`$toUpper` and `$toLower`: null gives the empty string."""
    long = long_texts(pc.binary_length(arg.values))
    return Column("string", function(pc.fill_null(without(arg.values, long), "")), doubt=long)


def length(arg: Column) -> Column:
    """`$strLenCP`: a null fails."""
    return Column("int", pc.utf8_length(arg.values), doubt=either(nulls_of(arg)))


def to_date(arg: Column) -> Column:
    """`$toDate` of dates, longs, doubles, and ISO strings."""
    if arg.type in ("date", "long"):
        return Column("date", arg.values.cast(TIMESTAMP))
    if arg.type == "double":
        found, doubt = _whole_numbers(arg)
        return Column("date", found.cast(TIMESTAMP), doubt=doubt)
    return of_texts(arg)


def _unlike(values: pa.Array, pattern: str) -> Bools | None:
    """Texts that do not look so; a null is none."""
    return either(filled(pc.invert(pc.match_substring_regex(values, pattern))))


def _whole_texts(values: pa.Array) -> tuple[pa.Array, Bools | None]:
    """Whole numbers of at most nine digits, int64, and where a text is any other."""
    doubt = _unlike(values, _FEW_DIGITS)
    return without(values, doubt).cast(pa.int64()), doubt


def _whole_numbers(arg: Column) -> tuple[pa.Array, Bools | None]:
    """Numbers, bools and texts of few digits as whole numbers, int64, fractions cut; and where there is doubt."""
    if arg.type == "string":
        return _whole_texts(arg.values)
    if arg.type == "double":
        fits = pc.less(pc.abs(arg.values), _WHOLE_MAX)
        beyond = either(filled(pc.invert(fits)), filled(pc.is_nan(arg.values)))
        return pc.trunc(without(arg.values, beyond)).cast(pa.int64()), beyond
    return arg.values.cast(pa.int64()), None


def to_int(arg: Column) -> Column:
    """`$toInt` of numbers, bools, and texts of few digits."""
    found, doubt = _whole_numbers(arg)
    beyond = filled(pc.or_(pc.less(found, INT32_MIN), pc.greater(found, INT32_MAX)))
    return whole(without(found, beyond), "int", either(doubt, beyond))


def to_long(arg: Column) -> Column:
    """`$toLong` of numbers, bools and dates, and of texts of few digits."""
    if arg.type == "date":
        return Column("long", arg.values.cast(pa.int64()))
    found, doubt = _whole_numbers(arg)
    return Column("long", found, doubt=doubt)


def to_double(arg: Column) -> Column:
    """`$toDouble` of numbers, bools and dates, and of plain texts."""
    if arg.type == "string":
        doubt = _unlike(arg.values, _PLAIN_NUMBER)
        return Column("double", without(arg.values, doubt).cast(pa.float64()), doubt=doubt)
    cells = arg.values.cast(pa.int64()) if arg.type == "date" else arg.values
    return Column("double", pc.cast(cells, pa.float64(), safe=False))


def to_string(arg: Column) -> Column:
    """`$toString` of strings, numbers, bools and dates."""
    if arg.type == "date":
        return written(arg)
    if arg.type == "string":
        return Column("string", arg.values, doubt=long_texts(pc.binary_length(arg.values)))
    if arg.type == "double":
        there = ~nulls_of(arg)
        found = doubles.texts(arg.values.fill_null(0.0).to_numpy(zero_copy_only=False), there)
        return Column("string", found, doubt=either(nulls_of(Column("string", found)) & there))
    return Column("string", arg.values.cast(pa.string()))


def part_of(column: Column, start: int, length: int) -> Column:
    """`$substrCP` from a constant place, of a constant length, both from 0."""
    long = long_texts(pc.binary_length(column.values))
    texts = without(column.values, long)
    if not length:
        return Column("string", pc.if_else(pc.is_null(texts), texts, ""), doubt=long)
    return Column("string", pc.utf8_slice_codeunits(texts, start, start + length), doubt=long)


def part_between(column: Column, start: Column, length: Column, *, of_bytes: bool) -> Column:
    """`$substrCP` and `$substrBytes`: doubt for texts that are not ASCII alone, and for bounds that are no place or size of 32 bits."""
    if start.type not in WHOLE or length.type not in WHOLE:
        raise Unvectorised
    long = either(long_texts(pc.binary_length(column.values)), _wide(column.values))
    text, bounds = buffers(without(column.values, long))
    sizes = np.diff(bounds)
    first, count = (
        pc.fill_null(each.values.cast(pa.int64()), -1).to_numpy(zero_copy_only=False) for each in (start, length)
    )
    odd = (
        (first < 0) | (first > INT32_MAX) | (np.abs(count) > INT32_MAX) | (nulls_of(length) if of_bytes else count < 0)
    )
    begins = np.minimum(np.where(odd, 0, first), sizes)
    ends = np.where(count < 0, sizes, np.minimum(begins + np.where(odd, 0, count), sizes))
    kinds = np.full(len(sizes), tags.STRING, np.uint8)
    at, to = ((bounds[:-1] + each).astype(np.int32) for each in (begins, ends))
    return Column(
        "string",
        cells_of(kinds, (to - at).astype(np.int64), at, to, text, "packed").of("string"),
        doubt=either(long, odd),
    )


def _wide(texts: pa.Array) -> Bools | None:
    """Texts that are not ASCII alone."""
    return either(filled(pc.not_equal(pc.binary_length(texts), pc.utf8_length(texts))))


def trimmed(trim: Any, column: Column, chars: object) -> Column:
    """`$trim` and its kin, of constant characters."""
    if type(chars) is not str or not chars:
        raise Unvectorised
    long = long_texts(pc.binary_length(column.values))
    return Column("string", trim(without(column.values, long), characters=chars), doubt=long)


def place_of(column: Column, part: object, *, of_bytes: bool) -> Column:
    """`$indexOfCP` and `$indexOfBytes` of a constant text: doubt where a text is not ASCII alone and has it, for its code points."""
    if type(part) is not str or not part:
        raise Unvectorised
    found = pc.find_substring(column.values, part)
    wide = None if of_bytes else _wide(column.values)
    there = filled(pc.greater_equal(found, 0))
    return Column("int", found.cast(pa.int32()), doubt=None if wide is None else either(wide & there))


def replaced(column: Column, find: object, by: object, *, every: bool) -> Column:
    """`$replaceOne` and `$replaceAll` of constant texts."""
    if type(find) is not str or type(by) is not str or not find or len(by) > _SHORT_TEXT:
        raise Unvectorised
    long = long_texts(pc.binary_length(column.values))
    texts = pc.replace_substring(without(column.values, long), find, by, max_replacements=None if every else 1)
    return Column("string", texts, doubt=long)


_SHORT_TEXT: Final = 64


def length_bytes(arg: Column) -> Column:
    """`$strLenBytes`: a null fails."""
    return Column("int", pc.binary_length(arg.values).cast(pa.int32()), doubt=either(nulls_of(arg)))
