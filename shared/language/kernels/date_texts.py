"""Texts of dates on columns: `$dateFromString` with a constant format all of whose parts have a fixed width.

Where a text is as long as its format can be, and each part has the characters that belong there, there is one way to read it. Of every
other row there is doubt.
"""

from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.expressions.ast import Call, Literal
from tidemark.shared.language.expressions.library.date_format import MONTH_NAMES
from tidemark.shared.language.kernels.base import TIMESTAMP, Column, Unvectorised, either, filled
from tidemark.shared.language.values.instants import DAY_MS

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]
_WIDTHS: Final = {"d": 2, "H": 2, "M": 2, "S": 2, "m": 2, "Y": 4, "L": 3, "b": 3, "z": 5}
_MONTHS: Final = np.array([int.from_bytes(name[:3].encode()) for name in MONTH_NAMES], dtype=np.int64)
_BY_MONTH: Final = np.argsort(_MONTHS)
_DAYS: Final = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], dtype=np.int64)
_TEXT_MAX: Final = 64
"""Bytes of a date that the kernel reads; longer ones are interpreted."""


def from_string(expr: Call, column: Column) -> Column:
    """`$dateFromString` with a format, in UTC, without onError and onNull; doubt for rows with any other text."""
    _, form, timezone, on_error, on_null = expr.args
    if not isinstance(form, Literal) or type(form.value) is not str or (timezone, on_error, on_null) != (None,) * 3:
        raise Unvectorised
    layout = _layout(form.value)
    if layout is None:
        raise Unvectorised
    if column.type != "string":
        raise Unvectorised
    fits = filled(pc.equal(pc.binary_length(column.values), layout[1]))
    texts = column.values if bool(fits.all()) else pc.if_else(pa.array(fits), column.values, "0" * layout[1])
    ms, good = _read(_matrix(texts, layout[1]), layout[0])
    return Column("date", pa.array(ms).cast(TIMESTAMP), doubt=either(~(fits & good)))


@lru_cache(maxsize=256)
def _layout(form: str) -> tuple[tuple[tuple[str, int, int], ...], int] | None:
    """(specifier or literal text, begin, end) of each part, and the whole width in bytes; None for a format without."""
    parts: list[tuple[str, int, int]] = []
    at = i = 0
    while i < len(form):
        piece = form[i : i + 2] if form[i] == "%" else form[i]
        width = _WIDTHS.get(piece[1:], 0) if len(piece) > 1 else len(piece.encode())
        if not width:
            return None
        parts.append((piece, at, at + width))
        at, i = at + width, i + len(piece)
    known = {piece for piece, _, _ in parts}
    whole = {"%Y", "%d"} <= known and len(known & {"%m", "%b"}) == 1 and at <= _TEXT_MAX
    return (tuple(parts), at) if whole else None


def _matrix(texts: pa.Array, width: int) -> Bytes:
    """The bytes of texts of one width, shape (n, width)."""
    packed = texts.cast(pa.binary()).cast(pa.binary(width))
    _, data = packed.buffers()
    flat = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return flat[packed.offset * width : (packed.offset + len(packed)) * width].reshape(len(packed), width)


def _read(data: Bytes, parts: tuple[tuple[str, int, int], ...]) -> tuple[Int64s, Bools]:
    """(instants in ms, whether each text is one); shape (n,) each."""
    good: Bools = np.ones(len(data), dtype=np.bool_)
    by: dict[str, Int64s] = {}
    for piece, begin, end in parts:
        cells = data[:, begin:end]
        if len(piece) == 1:
            good &= (cells == np.frombuffer(piece.encode(), dtype=np.uint8)).all(axis=1)
        elif piece == "%b":
            by["%m"] = _month(cells, good)
        elif piece == "%z":
            good &= (cells[:, 0] == ord("+")) | (cells[:, 0] == ord("-"))
            by[piece] = np.where(cells[:, 0] == ord("-"), -1, 1) * _minutes(_number(cells[:, 1:], good), good)
        else:
            by[piece] = _number(cells, good)
    return _instants(by, good), good


def _number(cells: Bytes, good: Bools) -> Int64s:
    digits = cells - np.uint8(ord("0"))
    good &= (digits < 10).all(axis=1)  # noqa: PLR2004 - what is below zero has wrapped around
    powers = 10 ** np.arange(cells.shape[1] - 1, -1, -1, dtype=np.int64)
    found: Int64s = digits.astype(np.int64) @ powers
    return found


def _month(cells: Bytes, good: Bools) -> Int64s:
    wide = cells.astype(np.int64)
    codes = wide[:, 0] << 16 | wide[:, 1] << 8 | wide[:, 2]
    places = np.minimum(np.searchsorted(_MONTHS, codes, sorter=_BY_MONTH), len(_MONTHS) - 1)
    months = _BY_MONTH[places]
    good &= _MONTHS[months] == codes
    return months.astype(np.int64) + 1


def _minutes(clock: Int64s, good: Bools) -> Int64s:
    """Hours and minutes in four digits as minutes."""
    hours, minutes = clock // 100, clock % 100
    good &= (hours < 24) & (minutes < 60)  # noqa: PLR2004 - the clock
    return hours * 60 + minutes


def _instants(by: dict[str, Int64s], good: Bools) -> Int64s:
    zeros = np.zeros(len(good), dtype=np.int64)
    year, month, day = by["%Y"], by["%m"], by["%d"]
    hour, minute, second, ms = (by.get(piece, zeros) for piece in ("%H", "%M", "%S", "%L"))
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    good &= (year >= 1) & (month >= 1) & (month <= 12)  # noqa: PLR2004
    inside = np.clip(month, 1, 12)
    good &= (day >= 1) & (day <= _DAYS[inside - 1] + (leap & (inside == 2)))  # noqa: PLR2004 - February
    good &= (hour <= 23) & (minute <= 59) & (second <= 59)  # noqa: PLR2004 - the clock
    clock = ((hour * 60 + minute - by.get("%z", zeros)) * 60 + second) * 1000 + ms
    return _days(year, inside, day) * DAY_MS + clock


def _days(year: Int64s, month: Int64s, day: Int64s) -> Int64s:
    """Days since 1970 of the calendar, whose years are taken to begin in March (E. G. Richards)."""
    shifted = year - (month <= 2)  # noqa: PLR2004 - January and February belong to the year before
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1  # noqa: PLR2004
    found: Int64s = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    return found
