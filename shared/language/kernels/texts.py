"""Strings and conversions on columns.

What one evaluation may produce is counted by the interpreter: rows in which a result is more than a small part of it are left to it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shared.language.expressions.environment import RESULT_UNITS_MAX
from shared.language.kernels.arithmetic import nulls
from shared.language.kernels.base import TIMESTAMP, WHOLE, Column, Doubtful, Fallback, Unvectorised

_FEW_DIGITS: Final = r"^-?[0-9]{1,9}$"
_ISO: Final = r"^[1-9]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,3})?Z?$"
_SHORT_BYTES: Final = RESULT_UNITS_MAX // 256
"""Texts up to this are within what an evaluation may produce, in 256 calls."""
_ALL_BYTES: Final = 2**31 - 1
"""What the texts of one Arrow array may have together."""


def _short(lengths: pa.Array) -> None:
    """Doubtful for rows whose texts, of these many bytes, the interpreter has to count; Fallback for too many together."""
    long = pc.fill_null(pc.greater(lengths, _SHORT_BYTES), False).to_numpy(zero_copy_only=False)
    if long.any():
        raise Doubtful(long)
    if (pc.sum(lengths).as_py() or 0) > _ALL_BYTES:
        raise Fallback


def concat(args: Sequence[Column]) -> Column:
    """`$concat` of strings."""
    if not args or any(arg.type not in ("string", "null") for arg in args):
        raise Unvectorised
    if any(arg.type == "null" for arg in args):
        return nulls(len(args[0].values))
    lengths = pc.binary_length(args[0].values).cast(pa.int64())
    for arg in args[1:]:
        lengths = pc.add(lengths, pc.binary_length(arg.values).cast(pa.int64()))
    _short(lengths)
    return Column("string", pc.binary_join_element_wise(*(arg.values for arg in args), ""))


def letters(function: Any) -> Callable[[Sequence[Column]], Column]:
    """`$toUpper` and `$toLower` of strings: null gives the empty string."""

    def apply(args: Sequence[Column]) -> Column:
        (arg,) = args
        if arg.type != "string":
            raise Unvectorised
        _short(pc.binary_length(arg.values))
        return Column("string", function(pc.fill_null(arg.values, "")))

    return apply


def length(args: Sequence[Column]) -> Column:
    """`$strLenCP`: a null fails."""
    (arg,) = args
    if arg.type != "string":
        raise Unvectorised
    if arg.has_nulls:
        raise Fallback
    return Column("int", pc.utf8_length(arg.values))


def to_date(args: Sequence[Column]) -> Column:
    """`$toDate` of dates, longs, and ISO strings in UTC."""
    (arg,) = args
    if arg.type in ("date", "long"):
        return Column("date", arg.values.cast(TIMESTAMP))
    if arg.type != "string":
        raise Unvectorised
    if pc.any(pc.invert(pc.match_substring_regex(arg.values, _ISO))).as_py():
        raise Fallback
    try:
        local = pc.utf8_rtrim(arg.values, "Z").cast(pa.timestamp("ms"))
    except pa.ArrowInvalid:
        raise Fallback from None
    return Column("date", local.cast(pa.int64()).cast(TIMESTAMP))


def _whole_texts(values: pa.Array) -> pa.Array:
    """Whole numbers of at most nine digits, int64; Fallback for any other text."""
    if pc.any(pc.invert(pc.match_substring_regex(values, _FEW_DIGITS))).as_py():
        raise Fallback
    return values.cast(pa.int64())


def to_int(args: Sequence[Column]) -> Column:
    """`$toInt` of ints, and of texts of few digits."""
    (arg,) = args
    if arg.type == "int":
        return Column("int", arg.values)
    if arg.type != "string":
        raise Unvectorised
    return Column("int", _whole_texts(arg.values).cast(pa.int32()))


def to_long(args: Sequence[Column]) -> Column:
    """`$toLong` of whole numbers and dates, and of texts of few digits."""
    (arg,) = args
    if arg.type == "string":
        return Column("long", _whole_texts(arg.values))
    if arg.type not in (*WHOLE, "date"):
        raise Unvectorised
    return Column("long", arg.values.cast(pa.int64()))


def nth_part(column: Column, delimiter: Any, index: int) -> Column:
    """The part of a string between delimiters at an index from the beginning; Doubtful for strings of fewer parts."""
    if column.type != "string" or type(delimiter) is not str or not delimiter or index < 0:
        raise Unvectorised
    if column.has_nulls:
        raise Fallback
    _short(pc.binary_length(column.values))
    parts = pc.split_pattern(column.values, delimiter, max_splits=index + 1)
    few = pc.less_equal(pc.list_value_length(parts), index).to_numpy(zero_copy_only=False)
    if few.any():
        raise Doubtful(few)
    return Column("string", pc.list_element(parts, index))


def to_double(args: Sequence[Column]) -> Column:
    """`$toDouble` of numbers."""
    (arg,) = args
    if arg.type not in (*WHOLE, "double"):
        raise Unvectorised
    return Column("double", pc.cast(arg.values, pa.float64(), safe=False))


def to_string(args: Sequence[Column]) -> Column:
    """`$toString` of strings and whole numbers."""
    (arg,) = args
    if arg.type not in (*WHOLE, "string"):
        raise Unvectorised
    if arg.type == "string":
        _short(pc.binary_length(arg.values))
    return Column("string", arg.values.cast(pa.string()))
